"""Run programs that call ONNX Runtime on Opweave, unchanged.

`onnxruntime.InferenceSession` remains the same class, so names that libraries have imported and classes derived from it keep
working. Only its `__init__` is replaced: it changes the class of the new object to one that inherits from Opweave's session
first (see `replaced`).
"""

from __future__ import annotations

from contextlib import ContextDecorator
from threading import RLock
from typing import Any

from ...context.context import MLContext
from ...support.errors import require

_lock = RLock()  # guards the lists below
_active: list[replacing_onnxruntime] = []  # started by any thread; the last one chooses the context
_changed: list[tuple[Any, str, Any]] = []  # object, attribute, original value


class replacing_onnxruntime(ContextDecorator):  # noqa: N801  (called like a function)
    """Let programs that use ONNX Runtime run on Opweave: a context manager, a decorator, or `start()` and `stop()`.

    Args:
        context: where all sessions run, instead of the providers that they name. Default: the device of the first of their
            providers that has one, or the CPU if they name none, as in ONNX Runtime.

    Raises:
        ValidationError: `context` is not an `MLContext`.

    Sessions that already exist do not change, and sessions made inside keep running on Opweave afterwards. The replacement is
    in effect in all threads of the process. Handlers for ONNX Runtime's errors also catch Opweave's.

        with ow.onnx.replacing_onnxruntime():
            engine = RapidOCR()  # makes its sessions by onnxruntime.InferenceSession

        replacement = ow.onnx.replacing_onnxruntime()
        replacement.start()  # for the rest of the program, or until replacement.stop()

    >>> import numpy as np, onnxruntime, opweave as ow
    >>> from onnx.parser import parse_model
    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Relu(x) }'
    >>> model = parse_model(text).SerializeToString()
    >>> with ow.onnx.replacing_onnxruntime():
    ...     isinstance(onnxruntime.InferenceSession(model), ow.InferenceSession)
    True
    >>> isinstance(onnxruntime.InferenceSession(model), ow.InferenceSession)
    False

    >>> replacement = ow.onnx.replacing_onnxruntime()
    >>> replacement.start()
    >>> onnxruntime.InferenceSession(model).run(None, {"x": np.float32([-1, 2])})[0].tolist()
    [0.0, 2.0]
    >>> replacement.stop()
    """

    def __init__(self, *, context: MLContext | None = None) -> None:
        fits = context is None or isinstance(context, MLContext)
        require(fits, f"context must be an MLContext, got {type(context).__name__}")
        self.context = context

    def start(self) -> None:
        """Start to replace ONNX Runtime. Each call of `start` needs its own `stop`."""
        with _lock:
            if not _active:
                _change()
            _active.append(self)

    def stop(self) -> None:
        """Undo one `start`. After the last `stop`, `onnxruntime` is as it was.

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
    """The context of the replacement that was started last; None if the providers of each session choose."""
    with _lock:
        return _active[-1].context if _active else None


def _change() -> None:
    import onnxruntime
    from onnxruntime.capi import (
        _pybind_state,
        onnxruntime_inference_collection as collection,
        onnxruntime_pybind11_state as engine,
    )

    from ..ort_api.options import available_providers, unreadable
    from .replaced import binding_init, get_device, record_calls, session_init

    _set(collection.InferenceSession, "__init__", session_init)
    _set(collection.IOBinding, "__init__", binding_init)
    for owner, methods in unreadable().items():
        cls = getattr(onnxruntime, owner)
        for name in methods:
            _set(cls, name, record_calls(name, vars(cls)[name]))
    # ONNX Runtime's own class asks for the providers of each session, also of those that Opweave makes.
    _set(collection, "C", engine)
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
