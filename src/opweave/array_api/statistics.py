"""Functions of the standard that combine elements along axes: sums, extremes, positions, products of matrices.

https://data-apis.org/array-api/latest/API_specification/statistical_functions.html
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan, prod as product
from typing import Any

from .. import ops
from ..dtypes import WIDE
from ..errors import ValidationError, require
from ..lazy.array import Array
from ..lazy.mask import as_mask
from .arguments import as_array, axes_of, axis_of, converted, require_kind, together, with_axis
from .creation import ones, zeros
from .manipulation import broadcast_arrays, concat, expand_dims, permute_dims, reshape, squeeze
from .types import DType, as_dtype, bool as bool_, int32, uint32

Axis = int | Sequence[int] | None


def _sum_type(x: Array, dtype: Any, what: str) -> DType:
    """The data type of sums: at least int32 or uint32 for integers."""
    if dtype is not None:
        return as_dtype(dtype, what)
    if x.dtype.kind == "f" or x.dtype.itemsize > 4:
        return x.dtype
    return uint32 if x.dtype.kind == "u" else int32


def _reduced(reduce: Callable[..., Array], x: Array, axis: Axis, keepdims: bool, what: str) -> Array:
    axes = axes_of(axis, x.rank, what)
    return reduce(x, axes=axes, keep_dimensions=bool(keepdims)) if axes else x


def _total(name: str, reduce: Callable[..., Array], x: Any, axis: Axis, dtype: Any, keepdims: bool) -> Array:
    x = as_array(x, name)
    require_kind(x, "numeric or bool", name)
    wanted = _sum_type(x, dtype, name)
    wide = converted(x, wanted)
    if wide.data_type not in WIDE:
        wide = ops.cast(wide, "int32")  # the last bits of the sum are the same
    return converted(_reduced(reduce, wide, axis, keepdims, name), wanted)


def sum(x: Array, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Array:
    """Add elements along axes.

    Args:
        x: integers, floats or bool.
        axis: the axes; default: all.
        dtype: data type of the result; default: that of `x`, but int32 or uint32 for smaller integers, and int32 for bool.
        keepdims: whether the axes stay, with size 1.

    Returns:
        An array without these axes.

    Raises:
        ValidationError: another data type, or an axis is out of range or occurs twice.

    >>> from opweave import array_api as xp
    >>> xp.sum(xp.asarray([[1, 2], [3, 4]]), axis=0).tolist()
    [4, 6]
    """
    return _total("sum", ops.reduce_sum, x, axis, dtype, keepdims)


def prod(x: Array, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Array:
    """Multiply elements along axes.

    Args:
        x: integers, floats or bool.
        axis: the axes; default: all.
        dtype: data type of the result; default: that of `x`, but int32 or uint32 for smaller integers, and int32 for bool.
        keepdims: whether the axes stay, with size 1.

    Returns:
        An array without these axes.

    Raises:
        ValidationError: another data type, or an axis is out of range or occurs twice.

    >>> from opweave import array_api as xp
    >>> xp.prod(xp.asarray([[1, 2], [3, 4]]), axis=0).tolist()
    [3, 8]
    """
    return _total("prod", ops.reduce_product, x, axis, dtype, keepdims)


def _extreme(name: str, reduce: Callable[..., Array], x: Any, axis: Axis, keepdims: bool) -> Array:
    x = as_array(x, name)
    require_kind(x, "numeric", name)
    made = _reduced(reduce, x, axis, keepdims, name)
    if x.dtype.kind != "f" or made is x:
        return made
    # The standard wants NaN where an element is NaN; engines ignore it.
    return ops.where(_reduced(ops.reduce_max, ops.is_nan(x), axis, keepdims, name), nan, made)


def max(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Find the largest element along axes; NaN if one of them is NaN.

    Args:
        x: integers or floats.
        axis: the axes; default: all.
        keepdims: whether the axes stay, with size 1.

    Returns:
        An array of the data type of `x`, without these axes.

    Raises:
        ValidationError: another data type, or an axis is out of range or occurs twice.

    >>> from opweave import array_api as xp
    >>> xp.max(xp.asarray([[1, 2], [3, 4]]), axis=0).tolist()
    [3, 4]
    """
    return _extreme("max", ops.reduce_max, x, axis, keepdims)


def min(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Find the smallest element along axes; NaN if one of them is NaN.

    Args:
        x: integers or floats.
        axis: the axes; default: all.
        keepdims: whether the axes stay, with size 1.

    Returns:
        An array of the data type of `x`, without these axes.

    Raises:
        ValidationError: another data type, or an axis is out of range or occurs twice.

    >>> from opweave import array_api as xp
    >>> xp.min(xp.asarray([[1, 2], [3, 4]]), axis=0).tolist()
    [1, 2]
    """
    return _extreme("min", ops.reduce_min, x, axis, keepdims)


def mean(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Compute the mean of elements along axes.

    Args:
        x: float32 or float16.
        axis: the axes; default: all.
        keepdims: whether the axes stay, with size 1.

    Returns:
        An array of the data type of `x`, without these axes.

    Raises:
        ValidationError: another data type, or an axis is out of range or occurs twice.

    >>> from opweave import array_api as xp
    >>> xp.mean(xp.asarray([[1.0, 2.0], [3.0, 4.0]]), axis=0).tolist()
    [2.0, 3.0]
    """
    x = as_array(x, "mean")
    require_kind(x, "real floating", "mean")
    return _reduced(ops.reduce_mean, x, axis, keepdims, "mean")


def var(x: Array, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """Compute the variance of elements along axes.

    Args:
        x: float32 or float16.
        axis: the axes; default: all.
        correction: the sum of squares is divided by the number of elements minus this.
        keepdims: whether the axes stay, with size 1.

    Returns:
        An array of the data type of `x`, without these axes.

    Raises:
        ValidationError: another data type, or an axis is out of range or occurs twice.

    >>> from opweave import array_api as xp
    >>> xp.var(xp.asarray([1.0, 3.0])).tolist()
    1.0
    """
    x = as_array(x, "var")
    require_kind(x, "real floating", "var")
    axes = axes_of(axis, x.rank, "var")
    count = product(x.shape[at] for at in axes)
    off = ops.sub(x, mean(x, axis=axes, keepdims=True))
    squares = sum(ops.mul(off, off), axis=axes, keepdims=keepdims)
    return ops.div(squares, float(count - correction if count > correction else 0))


def std(x: Array, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """Compute the standard deviation of elements along axes: the square root of `var`.

    Args:
        x: float32 or float16.
        axis: the axes; default: all.
        correction: the sum of squares is divided by the number of elements minus this.
        keepdims: whether the axes stay, with size 1.

    Returns:
        An array of the data type of `x`, without these axes.

    Raises:
        ValidationError: another data type, or an axis is out of range or occurs twice.

    >>> from opweave import array_api as xp
    >>> xp.std(xp.asarray([1.0, 3.0])).tolist()
    1.0
    """
    return ops.sqrt(var(x, axis=axis, correction=correction, keepdims=keepdims))


def cumulative_sum(x: Array, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """Compute the running sums along an axis.

    Args:
        x: integers or floats.
        axis: the axis; may be left out if `x` has one dimension.
        dtype: data type of the result; default: that of `x`, but int32 or uint32 for smaller integers.
        include_initial: whether a zero precedes the sums.

    Returns:
        An array of the shape of `x`; one longer along the axis with `include_initial`.

    Raises:
        ValidationError: another data type, or the axis is missing or out of range.

    >>> from opweave import array_api as xp
    >>> xp.cumulative_sum(xp.asarray([1, 2, 3])).tolist()
    [1, 3, 6]
    """
    x = as_array(x, "cumulative_sum")
    require_kind(x, "numeric", "cumulative_sum")
    require(axis is not None or x.rank == 1, f"cumulative_sum: axis must be given for {x.desc}")
    wanted, at = _sum_type(x, dtype, "cumulative_sum"), axis_of(axis or 0, x.rank, "cumulative_sum")
    wide = converted(x, wanted)
    if wide.data_type not in WIDE:
        wide = ops.cast(wide, "int32")
    made = converted(ops.cumulative_sum(wide, at), wanted)
    if not include_initial:
        return made
    return concat([zeros(with_axis(x.shape, at, 1), dtype=wanted, device=x.context), made], axis=at)


def cumulative_prod(x: Array, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """Compute the running products along an axis.

    Products of 1, 2, 4, … neighbours are multiplied, so floats are rounded in a different order than in a loop.

    Args:
        x: integers or floats.
        axis: the axis; may be left out if `x` has one dimension.
        dtype: data type of the result; default: that of `x`, but int32 or uint32 for smaller integers.
        include_initial: whether a one precedes the products.

    Returns:
        An array of the shape of `x`; one longer along the axis with `include_initial`.

    Raises:
        ValidationError: another data type, or the axis is missing or out of range.

    >>> from opweave import array_api as xp
    >>> xp.cumulative_prod(xp.asarray([1, 2, 3, 4])).tolist()
    [1, 2, 6, 24]
    """
    x = as_array(x, "cumulative_prod")
    require_kind(x, "numeric", "cumulative_prod")
    require(axis is not None or x.rank == 1, f"cumulative_prod: axis must be given for {x.desc}")
    wanted, at = _sum_type(x, dtype, "cumulative_prod"), axis_of(axis or 0, x.rank, "cumulative_prod")
    made, front, reach = converted(x, wanted), (slice(None),) * at, 1
    while reach < x.shape[at]:
        head, tail = made[(*front, slice(None, reach))], made[(*front, slice(reach, None))]
        made = concat([head, ops.mul(tail, made[(*front, slice(None, -reach))])], axis=at)
        reach *= 2
    if not include_initial:
        return made
    return concat([ones(with_axis(x.shape, at, 1), dtype=wanted, device=x.context), made], axis=at)


def diff(
    x: Array, /, *, axis: int = -1, n: int = 1, prepend: Array | None = None, append: Array | None = None
) -> Array:
    """Subtract from each element its predecessor along an axis, `n` times.

    Args:
        x: an array of any data type; for bool, whether the two differ.
        axis: the axis.
        n: how many times.
        prepend: put before `x` first, along the axis.
        append: put after `x` first, along the axis.

    Returns:
        An array of the data type of `x`, shorter by `n` along the axis.

    Raises:
        ValidationError: no elements are left, or the axis is out of range.

    >>> from opweave import array_api as xp
    >>> xp.diff(xp.asarray([1, 4, 9])).tolist()
    [3, 5]
    """
    x = as_array(x, "diff")
    at = axis_of(axis, x.rank, "diff")
    parts = [part for part in (prepend, x, append) if part is not None]
    made = concat(parts, axis=at) if len(parts) > 1 else x
    front: tuple[slice, ...] = (slice(None),) * at
    for _ in range(n):
        later, earlier = made[(*front, slice(1, None))], made[(*front, slice(None, -1))]
        made = as_mask(ops.not_equal(later, earlier)) if x.dtype == bool_ else ops.sub(later, earlier)
    return made


def _position(name: str, find: Callable[..., Array], x: Any, axis: int | None, keepdims: bool) -> Array:
    x = as_array(x, name)
    require_kind(x, "numeric", name)
    if axis is None:
        found = find(reshape(x, [-1]), 0)
        return reshape(found, [1] * x.rank) if keepdims else found
    return find(x, axis_of(axis, x.rank, name), keep_dimensions=bool(keepdims))


def argmax(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """Find the position of the largest element along an axis; of equal elements, the first one.

    Args:
        x: integers or floats.
        axis: the axis; default: the whole array, flattened.
        keepdims: whether the axis stays, with size 1.

    Returns:
        An int32 array without the axis.

    Raises:
        ValidationError: another data type, or the axis is out of range.

    >>> from opweave import array_api as xp
    >>> xp.argmax(xp.asarray([[1, 2], [3, 4]]), axis=1).tolist()
    [1, 1]
    """
    return _position("argmax", ops.arg_max, x, axis, keepdims)


def argmin(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """Find the position of the smallest element along an axis; of equal elements, the first one.

    Args:
        x: integers or floats.
        axis: the axis; default: the whole array, flattened.
        keepdims: whether the axis stays, with size 1.

    Returns:
        An int32 array without the axis.

    Raises:
        ValidationError: another data type, or the axis is out of range.

    >>> from opweave import array_api as xp
    >>> xp.argmin(xp.asarray([[1, 2], [3, 4]]), axis=1).tolist()
    [0, 0]
    """
    return _position("argmin", ops.arg_min, x, axis, keepdims)


def count_nonzero(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Count the elements that are not zero along axes.

    Args:
        x: an array of any data type.
        axis: the axes; default: all.
        keepdims: whether the axes stay, with size 1.

    Returns:
        An int32 array without these axes.

    Raises:
        ValidationError: an axis is out of range or occurs twice.

    >>> from opweave import array_api as xp
    >>> xp.count_nonzero(xp.asarray([0, 1, 2])).tolist()
    2
    """
    return sum(converted(as_array(x, "count_nonzero"), bool_), axis=axis, keepdims=keepdims)


def _test(name: str, reduce: Callable[..., Array], x: Any, axis: Axis, keepdims: bool) -> Array:
    x = as_array(x, name)
    return as_mask(_reduced(reduce, converted(x, bool_), axis, keepdims, name))


def all(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Whether all elements along axes are true (not zero).

    Args:
        x: an array of any data type.
        axis: the axes; default: all.
        keepdims: whether the axes stay, with size 1.

    Returns:
        A bool array without these axes.

    Raises:
        ValidationError: an axis is out of range or occurs twice.

    >>> from opweave import array_api as xp
    >>> xp.all(xp.asarray([[1, 2], [3, 4]])).tolist()
    True
    """
    return _test("all", ops.reduce_min, x, axis, keepdims)


def any(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Whether an element along axes is true (not zero).

    Args:
        x: an array of any data type.
        axis: the axes; default: all.
        keepdims: whether the axes stay, with size 1.

    Returns:
        A bool array without these axes.

    Raises:
        ValidationError: an axis is out of range or occurs twice.

    >>> from opweave import array_api as xp
    >>> xp.any(xp.asarray([[0, 1], [0, 0]]), axis=1).tolist()
    [True, False]
    """
    return _test("any", ops.reduce_max, x, axis, keepdims)


# ---------------------------------------------------------------------------------------------------------------------
# Products


def matmul(x1: Array, x2: Array, /) -> Array:
    """Multiply matrices, or vectors; leading dimensions broadcast.

    WebNN multiplies only matrices of floats. For integers, all products are computed element by element and then added, which
    takes memory for each product.

    Args:
        x1: integers or floats [..., rows, inner], or a vector [inner].
        x2: likewise [..., inner, columns], or a vector [inner].

    Returns:
        An array [..., rows, columns] in the promoted data type; without rows if `x1` is a vector, without columns if `x2` is.

    Raises:
        ValidationError: the shapes do not fit, an argument is a scalar, or there is no common data type.

    >>> from opweave import array_api as xp
    >>> xp.matmul(xp.asarray([[1.0, 2.0], [3.0, 4.0]]), xp.asarray([1.0, 10.0])).tolist()
    [21.0, 43.0]
    """
    (x1, x2), dtype = together("matmul", "numeric", x1, x2)
    require(x1.rank > 0 and x2.rank > 0, f"matmul: takes vectors and matrices, got {x1.desc} and {x2.desc}")
    left = expand_dims(x1, 0) if x1.rank == 1 else x1
    right = expand_dims(x2, 1) if x2.rank == 1 else x2
    if dtype.kind == "f":
        made = ops.matmul(left, right)
    else:
        fits = left.shape[-1] == right.shape[-2]
        require(fits, f"matmul: columns of {x1.desc} must be as many as rows of {x2.desc}")
        made = sum(ops.mul(expand_dims(left, -1), expand_dims(right, -3)), axis=-2, dtype=dtype)
    gone = [at for at, x in ((made.rank - 2, x1), (made.rank - 1, x2)) if x.rank == 1]
    return squeeze(made, gone) if gone else made


def vecdot(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """Compute the dot product of vectors along an axis; the other axes broadcast.

    Args:
        x1: integers or floats.
        x2: likewise, of the same size along the axis.
        axis: the axis.

    Returns:
        An array of the broadcast shape without the axis, in the promoted data type.

    Raises:
        ValidationError: the axis has different sizes, the shapes do not broadcast, or there is no common data type.

    >>> from opweave import array_api as xp
    >>> xp.vecdot(xp.asarray([1, 2]), xp.asarray([3, 4])).tolist()
    11
    """
    (x1, x2), _ = together("vecdot", "numeric", x1, x2)
    shortest = x1 if x1.rank < x2.rank else x2
    at = axis_of(axis, shortest.rank, "vecdot") - shortest.rank
    fits = x1.shape[at] == x2.shape[at]
    require(fits, f"vecdot: axis {axis} must have the same size in both, got {x1.desc} and {x2.desc}")
    return sum(ops.mul(x1, x2), axis=at, dtype=x1.dtype)


def tensordot(x1: Array, x2: Array, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Array:
    """Multiply arrays, and sum over axes of both.

    Args:
        x1: integers or floats.
        x2: likewise.
        axes: a number N, for the last N axes of `x1` and the first N of `x2`; or the axes of `x1` and those of `x2`.

    Returns:
        An array of the other axes of `x1`, followed by those of `x2`, in the promoted data type.

    Raises:
        ValidationError: the axes have different sizes or are out of range, or there is no common data type.

    >>> from opweave import array_api as xp
    >>> xp.tensordot(xp.asarray([[1.0, 2.0], [3.0, 4.0]]), xp.asarray([[1.0, 2.0], [3.0, 4.0]]), axes=2).tolist()
    30.0
    """
    (x1, x2), dtype = together("tensordot", "numeric", x1, x2)
    if isinstance(axes, int):
        require(0 <= axes <= x1.rank, f"tensordot: axes must be in [0, {x1.rank}], got {axes}")
        axes = (range(x1.rank - axes, x1.rank), range(axes))
    first, second = (axes_of(tuple(each), x.rank, "tensordot") for each, x in zip(axes, (x1, x2), strict=True))
    sizes = [x1.shape[at] for at in first]
    if sizes != [x2.shape[at] for at in second]:
        raise ValidationError(f"tensordot: axes {first} of {x1.desc} do not fit axes {second} of {x2.desc}")
    kept = [[at for at in range(x.rank) if at not in used] for x, used in ((x1, first), (x2, second))]
    shape = [x.shape[at] for x, left in zip((x1, x2), kept, strict=True) for at in left]
    left = reshape(permute_dims(x1, [*kept[0], *first]) if x1.rank else x1, [-1, product(sizes)])
    right = reshape(permute_dims(x2, [*second, *kept[1]]) if x2.rank else x2, [product(sizes), -1])
    if dtype.kind == "f":
        return reshape(ops.matmul(left, right), shape)
    a, b = broadcast_arrays(expand_dims(left, 2), expand_dims(right, 0))
    return reshape(sum(ops.mul(a, b), axis=1, dtype=dtype), shape)


__all__ = [
    "all",
    "any",
    "argmax",
    "argmin",
    "count_nonzero",
    "cumulative_prod",
    "cumulative_sum",
    "diff",
    "matmul",
    "max",
    "mean",
    "min",
    "prod",
    "std",
    "sum",
    "tensordot",
    "var",
    "vecdot",
]
