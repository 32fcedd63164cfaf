"""Declaration of element-wise functions of the standard: checks of data types, promotion, signatures."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..lazy.array import Array
from ..lazy.borrowed import array
from ..lazy.mask import as_mask
from .arguments import as_array, of_type, require_kind, together

PAGE = "https://data-apis.org/array-api/latest/API_specification/generated/array_api.{}.html"

Function = Callable[..., Array]


def _listed(name: str, function: Function, doc: str, takes: str) -> Function:
    """Give a function its name, and a signature with positional-only parameters."""
    function.__name__ = function.__qualname__ = name
    function.__module__ = "opweave.array_api"
    function.__doc__ = f"{doc}\n\nSee {PAGE.format(name)}"
    kind = inspect.Parameter.POSITIONAL_ONLY
    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(each, kind, annotation=Array) for each in takes.split()], return_annotation=Array
    )
    return function


def unary(name: str, kind: str, compute: Callable[[Array], Array], doc: str, to_mask: bool = False) -> Function:
    """A function of one array.

    Args:
        name: the standard's name.
        kind: the kind of data types that it takes.
        compute: how it is computed.
        doc: what it is.
        to_mask: whether the results are truth values.
    """

    def function(x: Any, /) -> Array:
        x = as_array(x, name)
        require_kind(x, kind, name)
        made = compute(x)
        return as_mask(made) if to_mask else made

    return _listed(name, function, doc, "x")


def binary(name: str, kind: str, compute: Callable[[Any, Any], Array], doc: str, to_mask: bool = False) -> Function:
    """A function of two arrays, or of an array and a Python number; arguments as for `unary`."""

    def function(x1: Any, x2: Any, /) -> Array:
        (x1, x2), dtype = together(name, kind, x1, x2)
        made = compute(x1, x2)
        return as_mask(made) if to_mask else of_type(made, dtype)

    return _listed(name, function, doc, "x1 x2")


def is_float(x: Array) -> bool:
    """Whether an array is of floats."""
    return x.dtype.kind == "f"


def as_operands(x1: Any, x2: Any) -> tuple[Array, Array]:
    """Two arrays, of which one may be a Python number."""
    like = x1 if isinstance(x1, Array) else x2
    a, b = (x if isinstance(x, Array) else _scalar(x, like) for x in (x1, x2))
    return a, b


def _scalar(value: float, like: Array) -> Array:
    with like.context:
        return array(value, like.data_type)
