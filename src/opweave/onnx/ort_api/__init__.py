"""The names of ONNX Runtime's Python API: options, methods and values, and what each of them does here."""
