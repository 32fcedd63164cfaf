"""Classes and errors that replace ONNX Runtime's while `replacing_onnxruntime` is active."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakKeyDictionary, ref

from onnxruntime.capi import onnxruntime_inference_collection as collection, onnxruntime_pybind11_state as engine

from ...backends.onnxruntime.native import ENGINE_ERRORS
from ...support.errors import (
    DataError,
    InvalidStateError,
    MLError,
    NotSupportedError,
    OperationError,
    ValidationError,
)
from ..ort_api.options import CPU_PROVIDER
from . import report
from .replacement import default_context
from .session import InferenceSession

if TYPE_CHECKING:
    from .io_binding import IOBinding

F = TypeVar("F", bound=Callable[..., Any])

ERRORS: dict[type[MLError], tuple[type[Exception], ...]] = {
    ValidationError: (engine.InvalidArgument, ValueError),
    DataError: (engine.InvalidGraph, engine.InvalidProtobuf),
    NotSupportedError: (engine.NotImplemented,),
    OperationError: (engine.Fail, engine.RuntimeException),
    InvalidStateError: (engine.Fail,),
}
"""Opweave's errors, and those that ONNX Runtime raises for the same faults."""

_classes: WeakKeyDictionary[type, ref[type]] = WeakKeyDictionary()  # user's class -> its version on Opweave


def _class_like(cls: type, bases: tuple[type, ...], **members: Any) -> type:
    copied = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(cls.__name__, bases, {**copied, **members})


# Errors --------------------------------------------------------------------------------------------------------------


@functools.cache
def _error_class(bases: tuple[type[Exception], ...]) -> type[Exception]:
    return _class_like(bases[0], bases)


def as_theirs(error: MLError, *more: type[Exception]) -> MLError:
    """A copy of `error` that is also caught by handlers for ONNX Runtime's errors, and for `more`.

    >>> isinstance(as_theirs(DataError("model.onnx: it is empty")), engine.InvalidProtobuf)
    True
    """
    cause = error.__cause__
    equivalents = next((theirs for ours, theirs in ERRORS.items() if isinstance(error, ours)), (engine.Fail,))
    theirs = (*((type(cause),) if isinstance(cause, ENGINE_ERRORS) else equivalents), *more)
    bases = (type(error), *(cls for cls in dict.fromkeys(theirs) if not isinstance(error, cls)))
    if len(bases) == 1:
        return error
    translated = _error_class(bases)(*error.args)
    translated.__dict__.update(error.__dict__)
    translated.__cause__, translated.__suppress_context__ = cause, True
    return cast(MLError, translated.with_traceback(error.__traceback__))


def _translate_errors(method: F, *more: type[Exception]) -> F:
    """Wrap a method so that its errors are also instances of ONNX Runtime's error classes."""

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except MLError as error:
            raise as_theirs(error, *more) from error.__cause__

    return cast(F, call)


# Classes -------------------------------------------------------------------------------------------------------------


class ReplacedSession(InferenceSession, collection.InferenceSession):  # type: ignore[misc]
    """A session of Opweave that is also an `onnxruntime.InferenceSession`, and takes the arguments of that class."""

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: Any = None,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        try:
            context = default_context()
            if context is None and providers is None:
                providers = [CPU_PROVIDER]
            InferenceSession.__init__(self, path_or_bytes, sess_options, providers, provider_options, context=context)
        except MLError as error:
            report.add_failure(path_or_bytes, error)
            is_path = isinstance(path_or_bytes, (str, os.PathLike))
            is_supported = is_path or isinstance(path_or_bytes, (bytes, bytearray, memoryview))
            missing = is_path and not os.path.exists(path_or_bytes)
            more = (engine.NoSuchFile,) if missing else () if is_supported else (TypeError,)
            raise as_theirs(error, *more) from error.__cause__
        report.add(self._parts, providers)

    def _binding_class(self) -> type[IOBinding]:
        from .replaced_binding import ReplacedBinding

        return ReplacedBinding

    def __reduce_ex__(self, protocol: Any) -> Any:
        if type(self) is ReplacedSession or issubclass(type(self).__mro__[1], ReplacedSession):
            return super().__reduce_ex__(protocol)
        # Pickle finds the user's class by name, but not the class that `derive_class` derives.
        derived, users = type(self), type(self).__mro__[1]
        if derived.__reduce__ is InferenceSession.__reduce__:
            return _new, (users,), self.__getstate__()
        reduced = super().__reduce_ex__(protocol)
        if not isinstance(reduced, tuple):
            return reduced
        function, arguments, *rest = reduced
        constructor = users if function is derived else function
        return (constructor, tuple(users if value is derived else value for value in arguments), *rest)

    def __getattr__(self, name: str) -> Any:
        private = name in vars(collection.InferenceSession) or name.startswith(
            ("_sess", "_inputs", "_outputs", "_model")
        )
        why = ": it is private to ONNX Runtime, and this session runs on Opweave" if private else ""
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{why}")


def wrap_errors(cls: type, *bases: type, binds: bool = False) -> None:
    """Wrap all public methods that `cls` inherits from `bases`, so that their errors are also ONNX Runtime's.

    Methods that bind memory also raise `RuntimeError`: with `binds`, all of them.
    """
    for base in bases:
        for name, method in vars(base).items():
            if not name.startswith("_") and callable(method):
                more = (RuntimeError,) if binds or "bind" in name else ()
                setattr(cls, name, _translate_errors(method, *more))


wrap_errors(ReplacedSession, *(cls for cls in reversed(InferenceSession.__mro__) if cls is not object))


def _new(cls: Any) -> Any:
    return cls.__new__(cls)


# Replacements of functions -------------------------------------------------------------------------------------------


def session_init(self: Any, *args: Any, **kwargs: Any) -> None:
    """`onnxruntime.InferenceSession.__init__`: turn the new object into a session of Opweave."""
    if not isinstance(self, ReplacedSession):
        self.__class__ = derive_class(type(self), collection.InferenceSession, ReplacedSession)
    ReplacedSession.__init__(self, *args, **kwargs)


def derive_class(cls: type, original: type, replacement: type) -> type:
    """Derive a class from `cls` and `replacement`, so that calls of `cls` to its base class reach Opweave."""
    if cls is original:
        return replacement
    reference = _classes.get(cls)
    derived = reference() if reference is not None else None
    if derived is None:
        derived = _class_like(cls, (cls, replacement), __slots__=())
        _classes[cls] = ref(derived)
    return derived
