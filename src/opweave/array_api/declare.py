"""Declaration of element-wise functions of the standard: checks of data types, promotion, signatures."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

from .. import ops
from ..core.dtypes import INFO
from ..lazy.array import Array
from ..lazy.from_memory import make_array
from ..lazy.mask import as_mask
from ..ops.docs import fill
from .arguments import as_array, of_type, promote_operands, require_kind
from .docs import IMPORTS

PAGE = "https://data-apis.org/array-api/latest/API_specification/generated/array_api.{}.html"

TYPES = {
    "numeric": "integers or floats",
    "real floating": "floats",
    "complex floating": "complex numbers",
    "integral": "integers",
    "bool": "bool",
    "numeric or bool": "any data type",
    "integral or bool": "integers or bool",
}
"""Description of each kind of data types of the standard."""

Function = Callable[..., Array]


def _describe(
    name: str,
    function: Function,
    takes: dict[str, str],
    doc: str,
    returns: str,
    errors: str,
    operands: Sequence[Any],
    result: str,
) -> Function:
    """Give a function its name, a signature with positional-only parameters, and a docstring with an example."""
    function.__name__ = function.__qualname__ = name
    function.__module__ = "opweave.array_api"
    shown = ", ".join(f"xp.asarray({value})" if isinstance(value, list) else repr(value) for value in operands)
    example = f">>> xp.{name}({shown.replace('nan', 'xp.nan').replace('inf', 'xp.inf')}).tolist()\n{result}\n"
    doc = f"{doc}\n\n{PAGE.format(name)}\n\n{example}"
    function.__doc__ = fill(doc, takes, takes.__getitem__, f"An array {returns}.", errors, IMPORTS)
    kind = inspect.Parameter.POSITIONAL_ONLY
    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(parameter, kind, annotation=Array) for parameter in takes], return_annotation=Array
    )
    return function


def unary(
    name: str,
    kind: str,
    compute: Callable[[Array], Array],
    doc: str,
    operand: list[Any],
    result: str,
    to_mask: bool = False,
) -> Function:
    """Declare a function of one array; the example shows `result` for `operand`, and `to_mask` makes truth values."""

    def function(x: Any, /) -> Array:
        x = as_array(x, name)
        require_kind(x, kind, name)
        output = compute(x)
        return as_mask(output) if to_mask else output

    returns = f"of the shape {'of `x`, bool' if to_mask else 'and data type of `x`'}"
    return _describe(
        name, function, {"x": f"{TYPES[kind]}."}, doc, returns, "`x` has another data type", [operand], result
    )


def binary(
    name: str,
    kind: str,
    compute: Callable[[Any, Any], Array],
    doc: str,
    operands: tuple[Any, Any],
    result: str,
    to_mask: bool = False,
) -> Function:
    """Declare a function of two arrays, or of an array and a Python number; arguments as for `unary`."""

    def function(x1: Any, x2: Any, /) -> Array:
        if to_mask and (result := _compare_with_number(name, kind, compute, x1, x2)) is not None:
            return as_mask(result)
        (x1, x2), dtype = promote_operands(name, kind, x1, x2)
        output = compute(x1, x2)
        return as_mask(output) if to_mask else of_type(output, dtype)

    takes = {
        "x1": f"{TYPES[kind]}.",
        "x2": f"{TYPES[kind]}; broadcasts with `x1`. One of the two may be a Python number",
    }
    takes["x2"] += ", also one that the data type does not hold." if to_mask else "."
    returns = f"of the broadcast shape, {'bool' if to_mask else 'in the promoted data type'}"
    errors = "an argument has another data type, the two have no common one, or the shapes do not broadcast"
    return _describe(name, function, takes, doc, returns, errors, operands, result)


def _compare_with_number(name: str, kind: str, compute: Callable[[Any, Any], Array], x1: Any, x2: Any) -> Array | None:
    """Compare an array with a Python number as Python does, whether its data type holds the number or not.

    Return None for other operands. Truth values equal numbers, but have no order.
    """
    is_swapped = not isinstance(x1, Array)
    x, number = (x2, x1) if is_swapped else (x1, x2)
    if not isinstance(x, Array) or not isinstance(number, (int, float)):
        return None
    require_kind(x, kind, name)
    if x.dtype.kind == "f":
        try:
            value: float = float(number)
        except OverflowError:
            value = math.inf if number > 0 else -math.inf
        return compute(value, x) if is_swapped else compute(x, value)
    x = ops.identity(x) if x.dtype.kind == "b" else x
    info = INFO[x.data_type]
    is_finite = isinstance(number, int) or math.isfinite(number)
    if is_finite and number == int(number) and info.lowest <= number <= info.highest:
        return compute(int(number), x) if is_swapped else compute(x, int(number))
    if name in ("equal", "not_equal") or number != number:
        return ops.not_equal(x, x) if name != "not_equal" else ops.equal(x, x)
    # No element equals the number, which is out of range or between two integers: < and <= are the same.
    if not info.lowest <= number <= info.highest:
        is_below = ops.equal(x, x) if number > 0 else ops.not_equal(x, x)
    else:
        is_below = ops.lesser_or_equal(x, math.floor(number))
    return is_below if name.startswith("less") != is_swapped else ops.logical_not(is_below)


def is_float(x: Array) -> bool:
    """Whether the elements are floats."""
    return x.dtype.kind == "f"


def as_operands(x1: Any, x2: Any) -> tuple[Array, Array]:
    """Return two arrays; one of the arguments may be a Python number."""
    like = x1 if isinstance(x1, Array) else x2
    a, b = (x if isinstance(x, Array) else _scalar(x, like) for x in (x1, x2))
    return a, b


def _scalar(value: float, like: Array) -> Array:
    with like.context:
        return make_array(value, like.data_type)
