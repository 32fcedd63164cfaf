"""The binding that replaces ONNX Runtime's while `replacing_onnxruntime` is active, imported when a program makes one."""

from __future__ import annotations

from typing import Any

from onnxruntime.capi import onnxruntime_inference_collection as collection

from ...support.errors import require
from .io_binding import IOBinding
from .replaced import derive_class, wrap_errors
from .session import InferenceSession


class ReplacedBinding(IOBinding, collection.IOBinding):  # type: ignore[misc]
    """A binding of Opweave that is also an `onnxruntime.IOBinding`."""

    def __init__(self, session: Any) -> None:
        is_ours = isinstance(session, InferenceSession)
        rule = "IOBinding: session must be an opweave.InferenceSession"
        require(is_ours, f"{rule}, got {type(session).__module__}.{type(session).__qualname__}")
        super().__init__(session)


wrap_errors(ReplacedBinding, IOBinding, binds=True)

_binding_init = getattr(collection.IOBinding.__init__, "original", collection.IOBinding.__init__)


def binding_init(self: Any, session: Any) -> None:
    """`onnxruntime.IOBinding.__init__`: turn the new object into a binding of Opweave, if its session is one of Opweave."""
    if not isinstance(session, InferenceSession):  # ONNX Runtime runs it
        _binding_init(self, session)
        return
    if not isinstance(self, ReplacedBinding):
        self.__class__ = derive_class(type(self), collection.IOBinding, ReplacedBinding)
    ReplacedBinding.__init__(self, session)
