"""ONNX Runtime's rules; one file a family, as in `opweave.ops`."""
