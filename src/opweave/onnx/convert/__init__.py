"""From an ONNX model to a WebNN graph: tracing, constant folding, control flow, and a converter for each operator."""
