"""Arguments of the functions of the standard: arrays, numbers, axes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np

from .. import ops
from ..context.context import current_context
from ..lazy.array import Array
from ..lazy.from_memory import array, make_array
from ..lazy.mask import ArrayMask, as_mask
from ..support.errors import ValidationError, require
from ..support.names import short_repr
from .types import KINDS, DType, bool as bool_, check_context, check_number, data_type_of, promote

INTEGERS = (int, np.integer)
"""Classes of integers: those of NumPy are what its functions of shapes return."""

P = ParamSpec("P")
R = TypeVar("R")


def as_array(value: Any, name: str) -> Array:
    """Return an array of Opweave; one of NumPy shares its memory. Any other value is an error."""
    if isinstance(value, Array):
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        if value.dtype == bool_:
            return as_mask(array(np.asarray(value).view(np.uint8)))
        values = np.asarray(value)
        check_context(values.dtype, current_context(), name)
        return make_array(values, copy=False, takes_float64=True)
    raise ValidationError(f"{name}: takes arrays of opweave, got {short_repr(value)}; asarray makes them")


def require_kind(x: Array, kind: str, name: str) -> None:
    """Require an array of a kind of data type, such as "numeric", or of one of two, such as "integral or bool"."""
    if not any(x.dtype.kind in KINDS[part] for part in kind.split(" or ")):
        raise ValidationError(f"{name}: takes arrays of kind {kind}, got {x.dtype}{list(x.shape)}")


def convert(x: Array, dtype: DType) -> Array:
    """Convert an array to a data type; an array of this type is returned itself."""
    if x.dtype == dtype:
        return x
    if dtype == bool_:
        return as_mask(ops.not_equal(x, 0))
    if isinstance(x, ArrayMask) and dtype.name == "uint8":
        return ops.identity(x)
    check_context(dtype, x.context, "astype")
    return ops.cast(x, data_type_of(dtype))


def of_type(result: Array, dtype: DType) -> Array:
    """Return a result of operations in `dtype`: as truth values for bool, else itself."""
    return as_mask(result) if dtype == bool_ else result


def number_of(value: float) -> float:
    """Return a number as one of Python's own classes: NumPy's float64 is a kind of float."""
    return float(value) if isinstance(value, float) else value


def promote_operands(name: str, kind: str, *values: Any) -> tuple[list[Any], DType]:
    """Promote operands to a common data type; return the operands and the type.

    Python numbers stay numbers, but become arrays beside truth values.
    """
    arrays: list[Any] = [number_of(v) if isinstance(v, (int, float)) else as_array(v, name) for v in values]
    array_operands = [v for v in arrays if isinstance(v, Array)]
    require(bool(array_operands), f"{name}: takes at least one array, got {short_repr(values)}")
    for x in array_operands:
        require_kind(x, kind, name)
    dtype = array_operands[0].dtype
    for x in array_operands[1:]:
        common = promote(dtype, x.dtype)
        if common is None:
            raise ValidationError(
                f"{name}: {dtype} and {x.dtype} have no common data type; astype converts one of them"
            )
        dtype = common
    for position, value in enumerate(arrays):
        if isinstance(value, Array):
            arrays[position] = convert(value, dtype)
        else:
            check_number(value, dtype, name)
            if dtype == bool_:
                arrays[position] = as_mask(array(value, "uint8"))
    return arrays, dtype


def axis_of(axis: Any, rank: int, name: str) -> int:
    """Return an axis counted from the start; it must be in [-rank, rank)."""
    if isinstance(axis, bool) or not isinstance(axis, INTEGERS) or not -rank <= axis < rank:
        raise ValidationError(f"{name}: axis must be an integer in [{-rank}, {rank}), got {short_repr(axis)}")
    return int(axis) % rank


def axes_of(axis: int | Sequence[int] | None, rank: int, name: str) -> list[int]:
    """Return different axes counted from the start; all axes for None."""
    if axis is None:
        return list(range(rank))
    axes = [axis_of(item, rank, name) for item in (axis if isinstance(axis, (tuple, list)) else (axis,))]
    require(len({*axes}) == len(axes), f"{name}: axis must not name an axis twice, got {short_repr(axis)}")
    return axes


def axis_by_name(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that takes the axis by name only, as the standard requires: NumPy's calls by position are errors."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        if len(args) > 1:
            name = function.__name__
            raise ValidationError(f"{name}: the axis is given by name: {name}(x, axis={short_repr(args[1])})")
        return function(*args, **kwargs)

    return wrapper


def with_axis(shape: Sequence[int], axis: int, size: int) -> list[int]:
    """Return a shape with another size along an axis."""
    return [*shape[:axis], size, *shape[axis + 1 :]]


__all__ = [
    "INTEGERS", "as_array", "axes_of", "axis_by_name", "axis_of", "convert", "of_type", "promote_operands", "require_kind",
    "with_axis",
]  # fmt: skip
