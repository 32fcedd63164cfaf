"""ONNX models: `InferenceSession` runs them on WebNN graphs, and lets ONNX Runtime do what WebNN cannot express.

import opweave as ow

session = ow.InferenceSession("model.onnx")
(logits,) = session.run(None, {"image": pixels})
print(session.explain())

`save` writes a graph of `MLGraphBuilder` as an ONNX model:

ow.onnx.save(graph, "model.onnx")
"""

from .export import save as save
from .session import InferenceSession as InferenceSession
