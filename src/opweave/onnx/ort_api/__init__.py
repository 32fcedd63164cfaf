"""ONNX Runtime's Python API: options, methods and values, and the effect of each in Opweave."""
