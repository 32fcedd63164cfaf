"""Public functions of the standard: each result is a new array, which an assignment changes without changing an argument."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from ..lazy.array import Array
from ..lazy.assignment import copy_of, is_assignable

_SHARING = frozenset({"asarray", "astype", "from_dlpack"})
"""Functions whose argument `copy` says whether the result may be an argument."""


def publish(functions: dict[str, Any], names: Iterable[str]) -> None:
    """Replace functions in a module's namespace by those that users call, whose results are new arrays.

    A function that changes nothing may return its argument, such as `broadcast_to(x, x.shape)`, which is free in this
    room. A user's `y[...] = v` would change `x` as well, so users get another array, which shares the values.
    """
    for name in names:
        function = functions[name]
        if inspect.isfunction(function) and name not in _SHARING and not name.startswith("_"):
            functions[name] = _public(function)


def _public(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def public(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if isinstance(result, Array):
            return _apart(result, args)
        if isinstance(result, list):
            return [_apart(item, args) for item in result]
        return result

    return public


def _apart(result: Any, args: tuple[Any, ...]) -> Any:
    """Return a result, or a copy of one that is an argument, or that has the memory of one from NumPy."""
    if isinstance(result, Array):
        for value in args:
            if value is result or (isinstance(value, (list, tuple)) and any(item is result for item in value)):
                return copy_of(result)
        if not is_assignable(result):
            return copy_of(result)
    return result
