"""Run programs that call ONNX Runtime on Opweave, unchanged.

`onnxruntime.InferenceSession` remains the same class, so names that libraries have imported and classes derived from it keep
working. Only its `__init__` is replaced: it changes the class of the new object to one that inherits from Opweave's session
first (see `replaced`).
"""

from __future__ import annotations

import functools
from contextlib import ContextDecorator
from threading import RLock
from typing import TYPE_CHECKING, Any, get_args

from ...support.errors import require
from ...support.names import short_repr

if TYPE_CHECKING:
    from ...backends import Precision
    from ...context.context import MLContext

_lock = RLock()  # guards the lists below
_active: list[replacing_onnxruntime] = []  # started by any thread; the last one chooses the context
_changed: list[tuple[Any, str, Any]] = []  # object, attribute, original value


class replacing_onnxruntime(ContextDecorator):  # noqa: N801  (called like a function)
    """Let programs that use ONNX Runtime run on Opweave: a context manager, a decorator, or `start()` and `stop()`.

    Args:
        context: where all sessions run, instead of the providers that they name. Default, without `device`, `precision` and
            `threads`: the device of the first of their providers that has one, or the CPU if they name none, as in ONNX
            Runtime.
        device: the name of a device of `opweave.devices()`, to make a context on it for all sessions. Default, with
            `precision` or `threads`: "cpu".
        precision: how engines compute float32 operations in this context, as in `create_context`. Default: "float32".
        threads: how many threads an operation on the CPU may use in this context, as in `create_context`; it precedes
            `SessionOptions.intra_op_num_threads`.

    Raises:
        ValidationError: an argument has the wrong type or value, or `context` is given with another one.

    The first session makes the context for `device`, `precision` and `threads`, or raises `NotSupportedError` if there is no
    such device here.

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

    >>> with ow.onnx.replacing_onnxruntime(device="reference"):
    ...     onnxruntime.InferenceSession(model).context.device.name
    'reference'
    """

    def __init__(
        self,
        *,
        context: MLContext | None = None,
        device: str | None = None,
        precision: Precision | None = None,
        threads: int | None = None,
    ) -> None:
        options: dict[str, Any] = {"device": device, "precision": precision, "threads": threads}
        self._options = {name: value for name, value in options.items() if value is not None}
        if context is not None:
            from ...context.context import MLContext

            require(isinstance(context, MLContext), f"context must be an MLContext, got {type(context).__name__}")
            names = " and ".join(self._options)
            require(not names, f"replacing_onnxruntime: context and {names} must not be given together")
        is_name = device is None or (isinstance(device, str) and device != "")
        require(is_name, f"device must be a name of opweave.devices(), got {short_repr(device)}")
        if precision is not None:
            from ...backends.precision import Precision

            allowed = get_args(Precision)
            is_precision = isinstance(precision, str) and precision in allowed
            rule = f"precision must be one of {', '.join(map(repr, allowed))}"
            require(is_precision, f"{rule}, got {short_repr(precision)}")
        is_count = threads is None or (isinstance(threads, int) and not isinstance(threads, bool) and threads > 0)
        require(is_count, f"threads must be a positive integer or None, got {short_repr(threads)}")
        self._context, self._making = context, RLock()

    @property
    def context(self) -> MLContext | None:
        """The context of all sessions, made when it is first read; None if the providers of each session choose."""
        with self._making:
            if self._context is None and self._options:
                from ...context.context import ml

                self._context = ml.create_context(**{"device": "cpu", **self._options})
            return self._context

    def start(self) -> None:
        """Start to replace ONNX Runtime. Each call of `start` needs its own `stop`."""
        import onnxruntime  # noqa: F401  (without the lock: with `opweave exec`, the import itself starts a replacement)

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
        latest = _active[-1] if _active else None
    return None if latest is None else latest.context


# The functions below import Opweave's sessions when the program makes one. `import onnxruntime` may start the replacement
# (`opweave exec`), also where a module of Opweave that these import from is the importer.


def _session_init(self: Any, *args: Any, **kwargs: Any) -> None:
    from .replaced import session_init

    session_init(self, *args, **kwargs)


def _binding_init(self: Any, session: Any) -> None:
    from .replaced_binding import binding_init

    binding_init(self, session)


def _change() -> None:
    import onnxruntime
    from onnxruntime.capi import (
        _pybind_state,
        onnxruntime_inference_collection as collection,
        onnxruntime_pybind11_state as engine,
    )

    from ..ort_api.adapters import RECORDED
    from ..ort_api.options import UNREADABLE, available_providers, get_device, record_calls

    for owner, replacement in ((collection.InferenceSession, _session_init), (collection.IOBinding, _binding_init)):
        original = vars(owner)["__init__"]
        functools.update_wrapper(replacement, original).__dict__["original"] = original
        _set(owner, "__init__", replacement)
    for name, methods in UNREADABLE.items():
        options = getattr(onnxruntime, name)
        for method in methods:
            _set(options, method, record_calls(method, vars(options)[method]))
    for name, (method, record) in RECORDED.items():
        kind = getattr(onnxruntime, name)
        _set(kind, method, record(vars(kind)[method]))
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
