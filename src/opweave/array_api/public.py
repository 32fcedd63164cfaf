"""Public functions of the standard: their results are new arrays, and complex numbers have separate functions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

from ..lazy.array import Array
from ..lazy.assignment import copy_of, is_assignable
from ..support.errors import ValidationError
from .complex_array import ComplexArray

F = TypeVar("F", bound=Callable[..., Any])

_SHARING = frozenset({"asarray", "astype", "from_dlpack"})
"""Functions whose argument `copy` says whether the result may be an argument."""

_OF_TYPES = frozenset({"can_cast", "finfo", "iinfo", "isdtype", "result_type"})
"""Functions of data types, which know complex ones."""

_REAL = frozenset({Array, bool, float, int, type(None)})
"""Classes whose objects are not complex."""

_COMPLEX: dict[str, Callable[..., Any]] = {}
"""Name of a function -> the function for complex numbers."""


def on_complex(name: str) -> Callable[[F], F]:
    """Decorate the function that computes a public function if an argument is complex."""

    def decorate(function: F) -> F:
        _COMPLEX[name] = function
        return function

    return decorate


def publish(functions: dict[str, Any], names: Iterable[str], prefix: str = "") -> None:
    """Replace functions in a module's namespace by those that users call, whose results are new arrays.

    A function that changes nothing may return its argument, such as `broadcast_to(x, x.shape)`, which is free in this
    room. A user's `y[...] = v` would change `x` as well, so users get another array, which shares the values.
    """
    for name in names:
        function = functions[name]
        if inspect.isfunction(function) and name not in _OF_TYPES and not name.startswith("_"):
            functions[name] = _public(function, prefix + name, name in _SHARING)


def _public(function: Callable[..., Any], name: str, may_share: bool) -> Callable[..., Any]:
    @functools.wraps(function)
    def public(*args: Any, **kwargs: Any) -> Any:
        if any(map(_is_complex, args)) or any(map(_is_complex, kwargs.values())):
            if name not in _COMPLEX:
                raise ValidationError(f"{name}: takes no complex numbers; xp.real and xp.imag are their parts")
            if name not in ("asarray", "from_dlpack"):
                device = next((value.context for value in args if isinstance(value, (Array, ComplexArray))), None)
                args = tuple(_array_of_numpy(value, device) for value in args)
            return _COMPLEX[name](*args, **kwargs)
        result = function(*args, **kwargs)
        if may_share:
            return result
        if isinstance(result, Array):
            return _apart(result, args)
        if isinstance(result, list):
            return [_apart(item, args) for item in result]
        return result

    return public


def _is_complex(value: Any) -> bool:
    """Whether an argument is complex, or contains a complex element, or is a complex data type."""
    kind = type(value)
    if kind is Array or kind is int or kind is float or value is None:
        return False
    if isinstance(value, (ComplexArray, complex)):
        return True
    if kind is list or kind is tuple:
        return not _REAL.issuperset(map(type, value)) and any(map(_is_complex, value))
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype.kind == "c"
    if isinstance(value, np.dtype):
        return value.kind == "c"
    if isinstance(value, type):
        return issubclass(value, (complex, np.complexfloating))
    return isinstance(value, str) and value.startswith("complex")


def _array_of_numpy(value: Any, device: Any) -> Any:
    """Return a complex array of NumPy as one of Opweave, and any other value itself."""
    return (
        _COMPLEX["asarray"](value, device=device)
        if isinstance(value, np.ndarray) and value.dtype.kind == "c"
        else value
    )


def _apart(result: Any, args: tuple[Any, ...]) -> Any:
    """Return a result, or a copy of one that is an argument, or that has the memory of one from NumPy."""
    if isinstance(result, Array):
        for value in args:
            if value is result or (isinstance(value, (list, tuple)) and any(item is result for item in value)):
                return copy_of(result)
        if not is_assignable(result):
            return copy_of(result)
    return result
