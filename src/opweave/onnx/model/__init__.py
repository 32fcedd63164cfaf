"""Reading ONNX models: files, protocol buffers, weights, checks and limits."""
