"""Sessions of ONNX models: what runs a call, compiled shapes, repeated calls, and the classes that replace ONNX Runtime's."""
