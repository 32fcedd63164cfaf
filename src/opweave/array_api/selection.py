"""Functions of the standard that select elements by positions or conditions, and sort them.

https://data-apis.org/array-api/latest/API_specification/searching_functions.html
"""

from __future__ import annotations

from typing import Any, Literal

from .. import ops
from ..composites import top_k
from ..core.dtypes import INDICES
from ..core.shapes import broadcast
from ..lazy.array import Array
from ..support.errors import require
from ..support.names import short_repr
from .arguments import as_array, axis_of, of_type, promote_operands, require_kind, with_axis
from .creation import zeros_like
from .manipulation import broadcast_to


def positions_of(x: Any, name: str = "an index") -> Array:
    """Return an array of positions in a data type that WebNN's operations take as such."""
    positions = as_array(x, name)
    require_kind(positions, "integral", name)
    if positions.data_type in INDICES:
        return positions
    return ops.cast(positions, "int64" if positions.data_type == "uint64" else "int32")


def take(x: Array, indices: Array, /, *, axis: int | None = None) -> Array:
    """Select elements by their positions along an axis.

    Args:
        indices: integers; negative ones count from the end.

    Returns: An array of the data type of `x`, in which the dimensions of `indices` replace the axis.
    Raises: `axis` is missing or out of range, or `indices` are not integers.

    >>> xp.take(xp.asarray([10, 20, 30]), xp.asarray([2, 0])).tolist()
    [30, 10]
    """
    x = as_array(x, "take")
    require(axis is not None or x.rank == 1, f"take: axis must be given for {x.desc}")
    at = axis_of(0 if axis is None else axis, x.rank, "take")
    return of_type(ops.gather(x, positions_of(indices, "take"), axis=at), x.dtype)


def take_along_axis(x: Array, indices: Array, /, *, axis: int = -1) -> Array:
    """Select an element for each position in `indices`, along an axis.

    Args:
        indices: integers, with as many dimensions as `x`; all axes but `axis` broadcast.

    Returns: An array of the data type of `x` and the broadcast shape of `indices`.
    Raises: the numbers of dimensions differ, the shapes do not broadcast, or `indices` are not integers.

    >>> xp.take_along_axis(xp.asarray([[1, 2], [3, 4]]), xp.asarray([[1], [0]])).tolist()
    [[2], [3]]
    """
    x = as_array(x, "take_along_axis")
    at = axis_of(axis, x.rank, "take_along_axis")
    positions = positions_of(indices, "take_along_axis")
    require(positions.rank == x.rank, f"take_along_axis: indices must have {x.rank} dimensions, got {positions.desc}")
    shape = broadcast(with_axis(x.shape, at, 1), with_axis(positions.shape, at, 1))
    wide = broadcast_to(x, with_axis(shape, at, x.shape[at]))
    positions = broadcast_to(positions, with_axis(shape, at, positions.shape[at]))
    return of_type(ops.gather_elements(wide, positions, axis=at), x.dtype)


def where(condition: Array, x1: Any, x2: Any, /) -> Array:
    """Select elements from two arrays by a condition.

    Args:
        condition: bool.
        x1: values where the condition is true: an array of any data type, or a Python number if `x2` is an array.
        x2: values elsewhere: an array of any data type, or a Python number if `x1` is an array. All arguments broadcast.

    Returns: An array of the broadcast shape, in the promoted data type of `x1` and `x2`.
    Raises: `condition` is not bool, `x1` and `x2` have no common data type, or the shapes do not broadcast.

    >>> xp.where(xp.asarray([True, False]), xp.asarray([1.0, 2.0]), 0.0).tolist()
    [1.0, 0.0]
    """
    condition = as_array(condition, "where")
    require_kind(condition, "bool", "where")
    (x1, x2), dtype = promote_operands("where", "numeric or bool", x1, x2)
    return of_type(ops.where(condition, x1, x2), dtype)


def searchsorted(
    x1: Array, x2: Array, /, *, side: Literal["left", "right"] = "left", sorter: Array | None = None
) -> Array:
    """Find the positions at which elements can be inserted into a sorted array to keep it sorted.

    Args:
        x1: the sorted array, integers or floats of one dimension.
        x2: the elements. NaN is sorted after all numbers, as in `sort`.
        side: "left" for the first possible position, "right" for the last one.
        sorter: integers: the result of `argsort` for an `x1` that is not sorted.

    Returns: An int32 array of the shape of `x2`.
    Raises: `x1` has several dimensions, there is no common data type, or `side` is neither "left" nor "right".

    >>> xp.searchsorted(xp.asarray([10, 20, 30]), xp.asarray([5, 20, 40])).tolist()
    [0, 1, 3]
    """
    require(side in ("left", "right"), f"searchsorted: side must be 'left' or 'right', got {short_repr(side)}")
    (x1, x2), _ = promote_operands(
        "searchsorted", "numeric", as_array(x1, "searchsorted"), as_array(x2, "searchsorted")
    )
    require(x1.rank == 1, f"searchsorted: x1 must have one dimension, got {x1.desc}")
    line = x1 if sorter is None else take(x1, sorter)
    is_before = ops.lesser if side == "left" else ops.lesser_or_equal
    is_float = x2.dtype.kind == "f"
    # Comparisons with NaN are not defined on GPUs.
    if is_float:
        is_number = ops.logical_not(ops.is_nan(line))
    positions = zeros_like(x2, dtype="int32")
    # A binary search for all elements at once.
    for bit in reversed(range(x1.size.bit_length())):
        ahead = ops.add(positions, 1 << bit)
        last = ops.sub(ops.min(ahead, x1.size), 1)
        fits = ops.logical_and(ops.lesser_or_equal(ahead, x1.size), is_before(ops.gather(line, last), x2))
        if is_float:
            fits = ops.logical_and(fits, ops.gather(is_number, last))
        positions = ops.where(fits, ahead, positions)
    if not is_float:
        return positions
    numbers = ops.reduce_sum(ops.cast(is_number, "int32")) if side == "left" else x1.size
    return ops.where(ops.is_nan(x2), numbers, positions)


def _sort(x: Any, axis: int, descending: bool, name: str) -> tuple[Array, Array]:
    x = as_array(x, name)
    require_kind(x, "numeric", name)
    at = axis_of(axis, x.rank, name)
    values, positions = top_k(x, x.shape[at], at, largest=descending, index_type="int32")
    return values, positions


def sort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """Sort elements along an axis. NaN is larger than infinity: last, or first if `descending`.

    >>> xp.sort(xp.asarray([3, 1, 2]), descending=True).tolist()
    [3, 2, 1]
    """
    return _sort(x, axis, descending, "sort")[0]


def argsort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """Find the positions of the elements in sorted order. NaN is larger than infinity: last, or first if `descending`.

    Returns: An int32 array of the shape of `x`.

    >>> xp.argsort(xp.asarray([3, 1, 2])).tolist()
    [1, 2, 0]
    """
    return _sort(x, axis, descending, "argsort")[1]


__all__ = [
    "argsort", "searchsorted", "sort", "take", "take_along_axis", "where",
]  # fmt: skip
