"""ONNX models: `InferenceSession` runs them on WebNN graphs, and lets ONNX Runtime do what WebNN cannot express.

    session = ow.InferenceSession("model.onnx")
    (logits,) = session.run(None, {"image": pixels})

`save` and `load` convert graphs of `MLGraphBuilder` to ONNX models and back. `replacing_onnxruntime` lets programs that call
ONNX Runtime run here, unchanged.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # at run time `__getattr__` below imports them when they are first used
    from .convert.register import register_onnx as register_onnx
    from .export import save as save
    from .model.limits import ModelLimits as ModelLimits
    from .session.load import load as load
    from .session.replacement import replacing_onnxruntime as replacing_onnxruntime
    from .session.session import InferenceSession as InferenceSession

_HOMES = {
    "InferenceSession": ".session.session",
    "ModelLimits": ".model.limits",
    "load": ".session.load",
    "register_onnx": ".convert.register",
    "replacing_onnxruntime": ".session.replacement",
    "save": ".export",
}

__all__ = ["InferenceSession", "ModelLimits", "load", "register_onnx", "replacing_onnxruntime", "save"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name], __name__), name)
    return value


def __dir__() -> list[str]:
    return [*(name for name in globals() if name.startswith("__")), *__all__]
