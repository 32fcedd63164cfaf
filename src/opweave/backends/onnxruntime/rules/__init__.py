"""ONNX Runtime rules, one file for each family of operations, including composites."""
