"""Functions of the standard that rearrange, repeat and join elements.

https://data-apis.org/array-api/latest/API_specification/manipulation_functions.html
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from .. import ops
from ..core.shapes import broadcast
from ..lazy.array import Array
from ..support.errors import require
from ..support.names import short_repr
from .arguments import INTEGERS, as_array, axes_of, axis_of, of_type, promote_operands, require_kind, with_axis


def broadcast_to(x: Array, /, shape: Sequence[int]) -> Array:
    """Broadcast an array to a shape: repeat it along axes of size 1, and along new axes in front.

    Raises: the shape of `x` does not broadcast to `shape`.

    >>> xp.broadcast_to(xp.asarray([1, 2]), [2, 2]).tolist()
    [[1, 2], [1, 2]]
    """
    x = as_array(x, "broadcast_to")
    return x if x.shape == tuple(shape) else of_type(ops.expand(x, list(shape)), x.dtype)


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Compute the shape to which several shapes broadcast.

    Args:
        shapes: the shapes.

    Returns: Their common shape.
    Raises: they do not broadcast to each other.

    >>> xp.broadcast_shapes([2, 1], [3])
    (2, 3)
    """
    common: tuple[int, ...] = ()
    for shape in shapes:
        common = broadcast(common, tuple(shape))
    return common


def broadcast_arrays(*arrays: Array) -> list[Array]:
    """Broadcast arrays to their common shape.

    Args:
        arrays: arrays of any data types.

    Returns: The arrays in that shape, each in its own data type.
    Raises: the shapes do not broadcast to each other.

    >>> [x.shape for x in xp.broadcast_arrays(xp.ones([2, 1]), xp.ones([3]))]
    [(2, 3), (2, 3)]
    """
    shape = broadcast_shapes(*(x.shape for x in arrays))
    return [broadcast_to(x, shape) for x in arrays]


def reshape(x: Array, /, shape: Sequence[int], *, copy: bool | None = None) -> Array:
    """Change the shape of an array; its elements keep their order.

    Args:
        shape: the new shape. One size may be -1: it is computed from the number of elements.

    Raises: the shape has a different number of elements.

    >>> xp.reshape(xp.asarray([1, 2, 3, 4]), [2, -1]).tolist()
    [[1, 2], [3, 4]]
    """
    x = as_array(x, "reshape")
    sizes = [int(size) for size in ((shape,) if isinstance(shape, INTEGERS) else shape)]
    if sizes.count(-1) == 1:
        others = -prod(sizes)
        fits = others > 0 and x.size % others == 0
        require(fits, f"reshape: {x.desc} with {x.size} elements does not fit {sizes}")
        sizes[sizes.index(-1)] = x.size // others
    return of_type(ops.reshape(x, sizes), x.dtype)


def expand_dims(x: Array, /, axis: int | Sequence[int] = 0) -> Array:
    """Insert axes of size 1.

    Args:
        axis: the positions of the new axes in the result; negative numbers count from the end.

    Returns: An array with these axes, in the data type of `x`.
    Raises: a position is out of range, or occurs twice.

    >>> xp.expand_dims(xp.asarray([1, 2]), axis=1).tolist()
    [[1], [2]]
    """
    x = as_array(x, "expand_dims")
    rank = x.rank + (len(axis) if isinstance(axis, (tuple, list)) else 1)
    axes = axes_of(axis, rank, "expand_dims")
    sizes = iter(x.shape)
    return reshape(x, [1 if at in axes else next(sizes) for at in range(rank)])


def squeeze(x: Array, /, axis: int | Sequence[int]) -> Array:
    """Remove axes of size 1.

    Args:
        axis: the axes to remove; negative numbers count from the end.

    Returns: An array without these axes, in the data type of `x`.

    Raises:
        ValidationError: an axis is out of range, or occurs twice.
        ValueError: the size of an axis is not 1.

    >>> xp.squeeze(xp.ones([2, 1, 3]), 1).shape
    (2, 3)
    """
    x = as_array(x, "squeeze")
    axes = axes_of(axis, x.rank, "squeeze")
    for at in axes:
        if x.shape[at] != 1:
            raise ValueError(f"squeeze: axis {at} of {x.desc} has size {x.shape[at]}, not 1")
    return reshape(x, [size for at, size in enumerate(x.shape) if at not in axes])


def permute_dims(x: Array, /, axes: Sequence[int]) -> Array:
    """Reorder the axes of an array.

    Args:
        axes: for each axis of the result, the axis of `x`.

    Raises: `axes` does not list each axis once.

    >>> xp.permute_dims(xp.ones([2, 3, 4]), [0, 2, 1]).shape
    (2, 4, 3)
    """
    x = as_array(x, "permute_dims")
    order = axes_of(tuple(axes), x.rank, "permute_dims")
    require(len(order) == x.rank, f"permute_dims: axes must list {x.rank} axes, got {list(axes)}")
    return of_type(ops.transpose(x, permutation=order), x.dtype)


def moveaxis(x: Array, source: int | Sequence[int], destination: int | Sequence[int], /) -> Array:
    """Move axes to other positions; the other axes keep their order.

    Args:
        source: the axes to move.
        destination: the new position of each.

    Raises: `source` and `destination` have different lengths, or an axis is out of range.

    >>> xp.moveaxis(xp.ones([2, 3, 4]), 0, 2).shape
    (3, 4, 2)
    """
    x = as_array(x, "moveaxis")
    start, end = axes_of(source, x.rank, "moveaxis"), axes_of(destination, x.rank, "moveaxis")
    require(len(start) == len(end), f"moveaxis: source {start} and destination {end} have different lengths")
    order = [at for at in range(x.rank) if at not in start]
    for to, at in sorted(zip(end, start, strict=True)):
        order.insert(to, at)
    return permute_dims(x, order)


def matrix_transpose(x: Array, /) -> Array:
    """Transpose each matrix: swap the last two axes.

    Returns: An array [..., columns, rows], in the data type of `x`.

    >>> xp.matrix_transpose(xp.asarray([[1, 2], [3, 4]])).tolist()
    [[1, 3], [2, 4]]
    """
    x = as_array(x, "matrix_transpose")
    require(x.rank >= 2, f"matrix_transpose: takes matrices, got {x.desc}")
    return permute_dims(x, [*range(x.rank - 2), x.rank - 1, x.rank - 2])


def flip(x: Array, /, *, axis: int | Sequence[int] | None = None) -> Array:
    """Reverse the order of elements along axes.

    Args:
        axis: the axes; default: all.

    >>> xp.flip(xp.asarray([1, 2, 3])).tolist()
    [3, 2, 1]
    """
    x = as_array(x, "flip")
    axes = axes_of(axis, x.rank, "flip")
    return of_type(ops.reverse(x, axes=axes), x.dtype) if axes else x


def roll(x: Array, /, shift: int | Sequence[int], *, axis: int | Sequence[int] | None = None) -> Array:
    """Shift elements along axes; elements that move past the end are inserted at the start.

    Args:
        shift: number of positions, for all axes or for each of them; negative numbers shift towards the start.
        axis: the axes. By default, the array is flattened, shifted, and reshaped again.

    Raises: `shift` and `axis` have different lengths, or an axis is out of range.

    >>> xp.roll(xp.asarray([1, 2, 3, 4]), 1).tolist()
    [4, 1, 2, 3]
    """
    x = as_array(x, "roll")
    if axis is None:
        require(isinstance(shift, INTEGERS), f"roll: shift must be an integer without axis, got {short_repr(shift)}")
        return reshape(roll(reshape(x, [-1]), shift, axis=0), x.shape)
    axes = [axis_of(item, x.rank, "roll") for item in ((axis,) if isinstance(axis, INTEGERS) else axis)]
    shifts = [int(by) for by in ([shift] * len(axes) if isinstance(shift, INTEGERS) else shift)]
    require(len(shifts) == len(axes), f"roll: shift {short_repr(shifts)} and axis {axes} have different lengths")
    result = x
    for at, by in zip(axes, shifts, strict=True):
        size = x.shape[at]
        if size and by % size:
            head, tail = ops.split(result, [size - by % size, by % size], axis=at)
            result = ops.concat([tail, head], at)
    return of_type(result, x.dtype) if result is not x else x


def repeat(x: Array, repeats: int | Array, /, *, axis: int | None = None) -> Array:
    """Repeat each element.

    Args:
        repeats: how many times. An array of integers has a number for each position along the axis, or one for all. It is
            computed at once, since it determines the shape.
        axis: the axis; by default, the array is flattened first.

    Returns: An array of the data type of `x`, `repeats` times as long along the axis.
    Raises: `repeats` is not an integer or negative, its length does not fit the axis, or the axis is out of range.

    >>> xp.repeat(xp.asarray([1, 2]), 2).tolist()
    [1, 1, 2, 2]
    """
    x = as_array(x, "repeat")
    if isinstance(repeats, (Array, np.ndarray)):
        return _repeat_by(x, as_array(repeats, "repeat"), axis)
    is_number = isinstance(repeats, INTEGERS) and repeats >= 0
    require(is_number, f"repeat: repeats must be an integer that is not negative, got {short_repr(repeats)}")
    repeats = int(repeats)
    if axis is None:
        return repeat(reshape(x, [-1]), repeats, axis=0)
    at = axis_of(axis, x.rank, "repeat")
    wide = broadcast_to(expand_dims(x, at + 1), [*x.shape[: at + 1], repeats, *x.shape[at + 1 :]])
    return reshape(wide, with_axis(x.shape, at, x.shape[at] * repeats))


def _repeat_by(x: Array, repeats: Array, axis: int | None) -> Array:
    if axis is None:
        return _repeat_by(reshape(x, [-1]), repeats, 0)
    at = axis_of(axis, x.rank, "repeat")
    require_kind(repeats, "integral", "repeat")
    counts = repeats.numpy().reshape(-1)
    fits = repeats.rank <= 1 and counts.size in (1, x.shape[at])
    require(
        fits, f"repeat: repeats must have 1 or {x.shape[at]} elements for axis {at} of {x.desc}, got {repeats.desc}"
    )
    require(not (counts < 0).any(), f"repeat: repeats must not be negative, got {short_repr(counts.tolist())}")
    positions = np.repeat(np.arange(x.shape[at], dtype=np.int32), counts.astype(np.int64))
    return of_type(ops.gather(x, positions, axis=at), x.dtype)


def tile(x: Array, repetitions: Sequence[int], /) -> Array:
    """Repeat the whole array.

    Args:
        repetitions: how many times along each axis; the last number belongs to the last axis. If it has more numbers than `x`
            has axes, axes of size 1 are inserted in front.

    Returns: An array of the data type of `x`, each of whose sizes is multiplied by a number of `repetitions`.
    Raises: a number is not positive.

    >>> xp.tile(xp.asarray([1, 2]), [2]).tolist()
    [1, 2, 1, 2]
    """
    x = as_array(x, "tile")
    rank = max(x.rank, len(repetitions))
    wide = reshape(x, [*[1] * (rank - x.rank), *x.shape])
    counts = [*[1] * (rank - len(repetitions)), *repetitions]
    return of_type(ops.tile(wide, counts), x.dtype) if rank else x


def concat(arrays: Sequence[Array], /, *, axis: int | None = 0) -> Array:
    """Join arrays along an existing axis.

    Args:
        arrays: arrays that agree in all other dimensions.
        axis: the axis; None flattens the arrays first.

    Returns: An array of their promoted data type.
    Raises: the other dimensions differ, there is no common data type, or the axis is out of range.

    >>> xp.concat([xp.asarray([[1, 2]]), xp.asarray([[3, 4]])], axis=1).tolist()
    [[1, 2, 3, 4]]
    """
    operands, dtype = promote_operands("concat", "numeric or bool", *arrays)
    if axis is None:
        operands, axis = [reshape(x, [-1]) for x in operands], 0
    return of_type(ops.concat(operands, axis_of(axis, operands[0].rank, "concat")), dtype)


def stack(arrays: Sequence[Array], /, *, axis: int = 0) -> Array:
    """Join arrays along a new axis.

    Args:
        arrays: arrays of the same shape.
        axis: the position of the new axis in the result.

    Returns: An array of their promoted data type; the size of the new axis is the number of arrays.
    Raises: the shapes differ, there is no common data type, or the axis is out of range.

    >>> xp.stack([xp.asarray([1, 2]), xp.asarray([3, 4])]).tolist()
    [[1, 2], [3, 4]]
    """
    at = axis_of(axis, as_array(arrays[0], "stack").rank + 1, "stack")
    return concat([expand_dims(x, at) for x in arrays], axis=at)


def unstack(x: Array, /, *, axis: int = 0) -> tuple[Array, ...]:
    """Split an array along an axis into arrays without this axis.

    Args:
        x: an array of any data type, of one dimension or more.

    Returns: An array for each position along the axis, in the data type of `x`.
    Raises: `x` is a scalar, or the axis is out of range.

    >>> [row.tolist() for row in xp.unstack(xp.asarray([[1, 2], [3, 4]]))]
    [[1, 2], [3, 4]]
    """
    x = as_array(x, "unstack")
    require(x.rank > 0, f"unstack: takes arrays of at least one dimension, got {x.desc}")
    front: tuple[slice, ...] = (slice(None),) * axis_of(axis, x.rank, "unstack")
    return tuple(x[(*front, at)] for at in range(x.shape[len(front)]))


__all__ = [
    "broadcast_arrays", "broadcast_shapes", "broadcast_to", "concat", "expand_dims", "flip", "matrix_transpose",
    "moveaxis", "permute_dims", "repeat", "reshape", "roll", "squeeze", "stack", "tile", "unstack",
]  # fmt: skip
