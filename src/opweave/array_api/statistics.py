"""Functions of the standard that combine elements along axes: sums, extremes, positions.

https://data-apis.org/array-api/latest/API_specification/statistical_functions.html
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan, prod as product
from typing import Any

from .. import ops
from ..core.dtypes import WIDE
from ..lazy.array import Array
from ..lazy.mask import as_mask
from ..support.errors import require
from .arguments import as_array, axes_of, axis_by_name, axis_of, convert, require_kind, with_axis
from .creation import ones, zeros
from .manipulation import concat, reshape
from .types import DType, as_dtype, bool as bool_, int32, uint32

Axis = int | Sequence[int] | None


def _sum_type(x: Array, dtype: Any, name: str) -> DType:
    """Return the data type of sums: at least int32 or uint32 for integers."""
    if dtype is not None:
        return as_dtype(dtype, name)
    if x.dtype.kind == "f" or x.dtype.itemsize > 4:
        return x.dtype
    return uint32 if x.dtype.kind == "u" else int32


def _reduce(reduce: Callable[..., Array], x: Array, axis: Axis, keepdims: bool, name: str) -> Array:
    axes = axes_of(axis, x.rank, name)
    return reduce(x, axes=axes, keep_dimensions=bool(keepdims)) if axes else x


def _accumulate(name: str, reduce: Callable[..., Array], x: Any, axis: Axis, dtype: Any, keepdims: bool) -> Array:
    x = as_array(x, name)
    require_kind(x, "numeric or bool", name)
    target = _sum_type(x, dtype, name)
    wide = convert(x, target)
    if wide.dtype.kind != "f" and wide.data_type not in WIDE:
        # Sums of int32 have the same low bits.
        wide = ops.cast(wide, "int32")
    return convert(_reduce(reduce, wide, axis, keepdims, name), target)


@axis_by_name
def sum(x: Array, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Array:
    """Add elements along axes.

    >>> xp.sum(xp.asarray([[1, 2], [3, 4]]), axis=0).tolist()
    [4, 6]
    """
    return _accumulate("sum", ops.reduce_sum, x, axis, dtype, keepdims)


@axis_by_name
def prod(x: Array, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Array:
    """Multiply elements along axes.

    >>> xp.prod(xp.asarray([[1, 2], [3, 4]]), axis=0).tolist()
    [3, 8]
    """
    return _accumulate("prod", ops.reduce_product, x, axis, dtype, keepdims)


def _extreme(name: str, reduce: Callable[..., Array], x: Any, axis: Axis, keepdims: bool) -> Array:
    x = as_array(x, name)
    require_kind(x, "numeric", name)
    result = _reduce(reduce, x, axis, keepdims, name)
    if x.dtype.kind != "f" or result is x:
        return result
    # The standard requires NaN if an element is NaN; engines ignore NaN.
    return ops.where(_reduce(ops.reduce_max, ops.is_nan(x), axis, keepdims, name), nan, result)


@axis_by_name
def max(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Find the largest element along axes; NaN if one of them is NaN.

    >>> xp.max(xp.asarray([[1, 2], [3, 4]]), axis=0).tolist()
    [3, 4]
    """
    return _extreme("max", ops.reduce_max, x, axis, keepdims)


@axis_by_name
def min(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Find the smallest element along axes; NaN if one of them is NaN.

    >>> xp.min(xp.asarray([[1, 2], [3, 4]]), axis=0).tolist()
    [1, 2]
    """
    return _extreme("min", ops.reduce_min, x, axis, keepdims)


@axis_by_name
def mean(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Compute the mean of elements along axes.

    >>> xp.mean(xp.asarray([[1.0, 2.0], [3.0, 4.0]]), axis=0).tolist()
    [2.0, 3.0]
    """
    x = as_array(x, "mean")
    require_kind(x, "real floating", "mean")
    return _reduce(ops.reduce_mean, x, axis, keepdims, "mean")


@axis_by_name
def var(x: Array, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """Compute the variance of elements along axes.

    >>> xp.var(xp.asarray([1.0, 3.0])).tolist()
    1.0
    """
    x = as_array(x, "var")
    return convert(_variance(x, axis, correction, keepdims, "var"), x.dtype)


def _variance(x: Array, axis: Axis, correction: float, keepdims: bool, name: str) -> Array:
    """Return the variance in float32: in float16, squares overflow before their mean or its square root does."""
    require_kind(x, "real floating", name)
    axes = axes_of(axis, x.rank, name)
    count = product(x.shape[at] for at in axes)
    wide = ops.cast(x, "float32") if x.data_type == "float16" else x
    off = ops.sub(wide, mean(wide, axis=axes, keepdims=True))
    squares = sum(ops.mul(off, off), axis=axes, keepdims=keepdims)
    return ops.div(squares, float(count - correction if count > correction else 0))


@axis_by_name
def std(x: Array, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """Compute the standard deviation of elements along axes: the square root of `var`.

    >>> xp.std(xp.asarray([1.0, 3.0])).tolist()
    1.0
    """
    x = as_array(x, "std")
    return convert(ops.sqrt(_variance(x, axis, correction, keepdims, "std")), x.dtype)


@axis_by_name
def cumulative_sum(x: Array, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """Compute the running sums along an axis.

    Args:
        include_initial: whether a zero precedes the sums.

    >>> xp.cumulative_sum(xp.asarray([1, 2, 3])).tolist()
    [1, 3, 6]
    """
    x = as_array(x, "cumulative_sum")
    require_kind(x, "numeric", "cumulative_sum")
    require(axis is not None or x.rank == 1, f"cumulative_sum: axis must be given for {x.desc}")
    target, at = _sum_type(x, dtype, "cumulative_sum"), axis_of(axis or 0, x.rank, "cumulative_sum")
    wide = convert(x, target)
    if wide.dtype.kind != "f" and wide.data_type not in WIDE:
        wide = ops.cast(wide, "int32")
    result = convert(ops.cumulative_sum(wide, at), target)
    if not include_initial:
        return result
    return concat([zeros(with_axis(x.shape, at, 1), dtype=target, device=x.context), result], axis=at)


@axis_by_name
def cumulative_prod(x: Array, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """Compute the running products along an axis.

    Products of 1, 2, 4, … neighbours are multiplied, so floats are rounded in a different order than in a loop.

    Args:
        include_initial: whether a one precedes the products.

    >>> xp.cumulative_prod(xp.asarray([1, 2, 3, 4])).tolist()
    [1, 2, 6, 24]
    """
    x = as_array(x, "cumulative_prod")
    require_kind(x, "numeric", "cumulative_prod")
    require(axis is not None or x.rank == 1, f"cumulative_prod: axis must be given for {x.desc}")
    target, at = _sum_type(x, dtype, "cumulative_prod"), axis_of(axis or 0, x.rank, "cumulative_prod")
    result, front, reach = convert(x, target), (slice(None),) * at, 1
    while reach < x.shape[at]:
        head, tail = result[(*front, slice(None, reach))], result[(*front, slice(reach, None))]
        result = concat([head, ops.mul(tail, result[(*front, slice(None, -reach))])], axis=at)
        reach *= 2
    if not include_initial:
        return result
    return concat([ones(with_axis(x.shape, at, 1), dtype=target, device=x.context), result], axis=at)


def diff(
    x: Array, /, *, axis: int = -1, n: int = 1, prepend: Array | None = None, append: Array | None = None
) -> Array:
    """Subtract from each element its predecessor along an axis, `n` times.

    Args:
        x: an array of any data type; for bool, whether the two differ.
        n: how many times.
        prepend: put before `x` first, along the axis.
        append: put after `x` first, along the axis.

    Returns: An array of the data type of `x`, shorter by `n` along the axis.
    Raises: the axis is out of range.

    >>> xp.diff(xp.asarray([1, 4, 9])).tolist()
    [3, 5]
    """
    x = as_array(x, "diff")
    at = axis_of(axis, x.rank, "diff")
    parts = [part for part in (prepend, x, append) if part is not None]
    result = concat(parts, axis=at) if len(parts) > 1 else x
    front: tuple[slice, ...] = (slice(None),) * at
    for _ in range(n):
        later, earlier = result[(*front, slice(1, None))], result[(*front, slice(None, -1))]
        result = as_mask(ops.not_equal(later, earlier)) if x.dtype == bool_ else ops.sub(later, earlier)
    return result


def _find_position(name: str, find: Callable[..., Array], x: Any, axis: int | None, keepdims: bool) -> Array:
    x = as_array(x, name)
    require_kind(x, "numeric", name)
    if axis is None:
        position = find(reshape(x, [-1]), 0)
        return reshape(position, [1] * x.rank) if keepdims else position
    return find(x, axis_of(axis, x.rank, name), keep_dimensions=bool(keepdims))


@axis_by_name
def argmax(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """Find the position of the largest element along an axis; of equal elements, the first one.

    >>> xp.argmax(xp.asarray([[1, 2], [3, 4]]), axis=1).tolist()
    [1, 1]
    """
    return _find_position("argmax", ops.arg_max, x, axis, keepdims)


@axis_by_name
def argmin(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """Find the position of the smallest element along an axis; of equal elements, the first one.

    >>> xp.argmin(xp.asarray([[1, 2], [3, 4]]), axis=1).tolist()
    [0, 0]
    """
    return _find_position("argmin", ops.arg_min, x, axis, keepdims)


@axis_by_name
def count_nonzero(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Count the elements that are not zero along axes.

    >>> xp.count_nonzero(xp.asarray([0, 1, 2])).tolist()
    2
    """
    return sum(convert(as_array(x, "count_nonzero"), bool_), axis=axis, keepdims=keepdims)


def _test(name: str, reduce: Callable[..., Array], x: Any, axis: Axis, keepdims: bool) -> Array:
    x = as_array(x, name)
    return as_mask(_reduce(reduce, convert(x, bool_), axis, keepdims, name))


@axis_by_name
def all(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Test whether all elements along axes are true (not zero).

    >>> xp.all(xp.asarray([[1, 2], [3, 4]])).tolist()
    True
    """
    return _test("all", ops.reduce_min, x, axis, keepdims)


@axis_by_name
def any(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Test whether any element along axes is true (not zero).

    >>> xp.any(xp.asarray([[0, 1], [0, 0]]), axis=1).tolist()
    [True, False]
    """
    return _test("any", ops.reduce_max, x, axis, keepdims)


__all__ = [
    "all", "any", "argmax", "argmin", "count_nonzero", "cumulative_prod", "cumulative_sum", "diff", "max", "mean",
    "min", "prod", "std", "sum", "var",
]  # fmt: skip
