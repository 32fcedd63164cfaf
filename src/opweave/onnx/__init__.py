"""ONNX models: `InferenceSession` runs them on WebNN graphs, and lets ONNX Runtime do what WebNN cannot express.

    import opweave as ow

    session = ow.InferenceSession("model.onnx")
    (logits,) = session.run(None, {"image": pixels})
    print(session.explain())

`save` writes a graph of `MLGraphBuilder` as an ONNX model, and `load` makes a graph of a model:

    ow.onnx.save(graph, "model.onnx")
    graph = ow.onnx.load("model.onnx")

`replacing_onnxruntime` lets programs that call ONNX Runtime run here, unchanged:

    with ow.onnx.replacing_onnxruntime():
        ...
"""

from .convert import load as load
from .export import save as save
from .limits import Limits as Limits
from .register import register_onnx as register_onnx
from .replacement import replacing_onnxruntime as replacing_onnxruntime
from .session import InferenceSession as InferenceSession

__all__ = ["InferenceSession", "Limits", "load", "register_onnx", "replacing_onnxruntime", "save"]
