"""Functions of the standard that multiply matrices and vectors.

https://data-apis.org/array-api/latest/API_specification/linear_algebra_functions.html
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod as product

from .. import ops
from ..lazy.array import Array
from ..support.errors import ValidationError, require
from .arguments import INTEGERS, axes_of, axis_of, promote_operands
from .manipulation import broadcast_arrays, expand_dims, permute_dims, reshape, squeeze
from .statistics import sum


def matmul(x1: Array, x2: Array, /) -> Array:
    """Multiply matrices, or vectors; leading dimensions broadcast.

    WebNN multiplies only matrices of floats. For integers, all products are computed element by element and then added, which
    takes memory for each product.

    Args:
        x1: integers or floats [..., rows, inner], or a vector [inner].
        x2: integers or floats [..., inner, columns], or a vector [inner].

    Returns: An array [..., rows, columns] in the promoted data type; without rows if `x1` is a vector, without columns
        if `x2` is.
    Raises: the shapes do not fit, an argument is a scalar, or there is no common data type.

    >>> xp.matmul(xp.asarray([[1.0, 2.0], [3.0, 4.0]]), xp.asarray([1.0, 10.0])).tolist()
    [21.0, 43.0]
    """
    (x1, x2), dtype = promote_operands("matmul", "numeric", x1, x2)
    require(x1.rank > 0 and x2.rank > 0, f"matmul: takes vectors and matrices, got {x1.desc} and {x2.desc}")
    left = expand_dims(x1, 0) if x1.rank == 1 else x1
    right = expand_dims(x2, 1) if x2.rank == 1 else x2
    if dtype.kind == "f":
        result = ops.matmul(left, right)
    else:
        fits = left.shape[-1] == right.shape[-2]
        require(fits, f"matmul: columns of {x1.desc} must be as many as rows of {x2.desc}")
        result = sum(ops.mul(expand_dims(left, -1), expand_dims(right, -3)), axis=-2, dtype=dtype)
    vector_axes = [at for at, x in ((result.rank - 2, x1), (result.rank - 1, x2)) if x.rank == 1]
    return squeeze(result, vector_axes) if vector_axes else result


def vecdot(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """Compute the dot product of vectors along an axis; the other axes broadcast.

    Args:
        x2: integers or floats, with the size of `x1` along the axis.

    Returns: An array of the broadcast shape without the axis, in the promoted data type.
    Raises: the axis has different sizes, the shapes do not broadcast, or there is no common data type.

    >>> xp.vecdot(xp.asarray([1, 2]), xp.asarray([3, 4])).tolist()
    11
    """
    (x1, x2), _ = promote_operands("vecdot", "numeric", x1, x2)
    shortest = x1 if x1.rank < x2.rank else x2
    at = axis_of(axis, shortest.rank, "vecdot") - shortest.rank
    fits = x1.shape[at] == x2.shape[at]
    require(fits, f"vecdot: axis {axis} must have the same size in both, got {x1.desc} and {x2.desc}")
    return sum(ops.mul(x1, x2), axis=at, dtype=x1.dtype)


def tensordot(x1: Array, x2: Array, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Array:
    """Multiply arrays, and sum over axes of both.

    Args:
        axes: a number N, for the last N axes of `x1` and the first N of `x2`; or the axes of `x1` and those of `x2`.

    Returns: An array of the other axes of `x1`, followed by those of `x2`, in the promoted data type.
    Raises: the axes have different sizes or are out of range, or there is no common data type.

    >>> xp.tensordot(xp.asarray([[1.0, 2.0], [3.0, 4.0]]), xp.asarray([[1.0, 2.0], [3.0, 4.0]]), axes=2).tolist()
    30.0
    """
    (x1, x2), dtype = promote_operands("tensordot", "numeric", x1, x2)
    if isinstance(axes, INTEGERS):
        require(0 <= axes <= x1.rank, f"tensordot: axes must be in [0, {x1.rank}], got {axes}")
        axes = (range(x1.rank - axes, x1.rank), range(axes))
    first, second = (axes_of(tuple(item), x.rank, "tensordot") for item, x in zip(axes, (x1, x2), strict=True))
    sizes = [x1.shape[at] for at in first]
    if sizes != [x2.shape[at] for at in second]:
        raise ValidationError(f"tensordot: axes {first} of {x1.desc} do not fit axes {second} of {x2.desc}")
    kept = [[at for at in range(x.rank) if at not in used] for x, used in ((x1, first), (x2, second))]
    rows, columns = ([x.shape[at] for at in left] for x, left in zip((x1, x2), kept, strict=True))
    shape = [*rows, *columns]
    left = reshape(permute_dims(x1, [*kept[0], *first]) if x1.rank else x1, [product(rows), product(sizes)])
    right = reshape(permute_dims(x2, [*second, *kept[1]]) if x2.rank else x2, [product(sizes), product(columns)])
    if dtype.kind == "f":
        return reshape(ops.matmul(left, right), shape)
    a, b = broadcast_arrays(expand_dims(left, 2), expand_dims(right, 0))
    return reshape(sum(ops.mul(a, b), axis=1, dtype=dtype), shape)


__all__ = [
    "matmul",
    "tensordot",
    "vecdot",
]
