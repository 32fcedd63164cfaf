"""Run programs that call ONNX Runtime on Opweave, unchanged.

    with ow.onnx.replacing_onnxruntime():
        ...  # sessions that are made here, by whatever library, run on Opweave

`onnxruntime.InferenceSession` stays the class that it is: names that libraries have imported, and classes derived from it,
need no change. Only its `__init__` is another one for a while; it gives the new object a class that inherits from Opweave's
session first (`replaced`).
"""

from __future__ import annotations

from contextlib import ContextDecorator
from threading import RLock
from typing import Any

from ..context import MLContext
from ..errors import require

_lock = RLock()  # of what follows
_active: list[replacing_onnxruntime] = []  # what was started, by all threads; the last one decides
_changed: list[tuple[Any, str, Any]] = []  # object, attribute, and what it was


class replacing_onnxruntime(ContextDecorator):  # noqa: N801  (called like a function)
    """Let programs that use ONNX Runtime run on Opweave: a context manager, a decorator, or `start()` and `stop()`.

    Args:
        context: where all sessions run, whatever providers they ask for. Default: what `providers` name, and the CPU where
            there are none, as in ONNX Runtime.

    Raises:
        ValidationError: `context` is no `MLContext`.

    Sessions that exist already stay as they are, and those made within keep running on Opweave afterwards. It is in effect in
    all threads of the process. Errors are caught by handlers for ONNX Runtime's errors, too.

        with ow.onnx.replacing_onnxruntime():
            engine = RapidOCR()  # makes its sessions by onnxruntime.InferenceSession

        replacement = ow.onnx.replacing_onnxruntime()
        replacement.start()  # for the rest of the program, or until replacement.stop()
    """

    def __init__(self, *, context: MLContext | None = None) -> None:
        fits = context is None or isinstance(context, MLContext)
        require(fits, f"context must be an MLContext, got {type(context).__name__}")
        self.context = context

    def start(self) -> None:
        """Begin to replace ONNX Runtime. Each call needs a `stop` of its own, if it is to end."""
        with _lock:
            if not _active:
                _change()
            _active.append(self)

    def stop(self) -> None:
        """End what one `start` began; with the last one that ends, `onnxruntime` is as it was.

        Raises:
            ValidationError: it was not started, or was stopped already.
        """
        with _lock:
            require(self in _active, "replacing_onnxruntime: stop() without start()")
            del _active[len(_active) - 1 - _active[::-1].index(self)]
            if not _active:
                _restore()

    def __enter__(self) -> replacing_onnxruntime:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def default_context() -> MLContext | None:
    """The context that the replacement was started with last; None where providers choose."""
    with _lock:
        return _active[-1].context if _active else None


def _change() -> None:
    import onnxruntime
    from onnxruntime.capi import _pybind_state, onnxruntime_inference_collection as collection

    from .options import available_providers, unreadable
    from .replaced import binding_init, get_device, recording, session_init

    _set(collection.InferenceSession, "__init__", session_init)
    _set(collection.IOBinding, "__init__", binding_init)
    for owner, methods in unreadable().items():
        cls = getattr(onnxruntime, owner)
        for name in methods:
            _set(cls, name, recording(name, vars(cls)[name]))
    for module in (onnxruntime, _pybind_state):
        _set(module, "get_available_providers", available_providers)
        _set(module, "get_device", get_device)


def _set(place: Any, name: str, value: Any) -> None:
    _changed.append((place, name, vars(place)[name]))
    setattr(place, name, value)


def _restore() -> None:
    while _changed:
        place, name, before = _changed.pop()
        setattr(place, name, before)
