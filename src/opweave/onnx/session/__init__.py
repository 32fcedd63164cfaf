"""Sessions of ONNX models: the program of a call, compiled shapes, repeated calls, and classes that replace ONNX Runtime's."""
