"""Operations that move elements: concat, expand, pad, reshape, reverse, slice, split, tile, transpose, triangular."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Literal

from ..core.conversion import Long, Number
from ..core.dtypes import ANY
from ..core.graph import Builder, Desc, Operand
from ..core.operation import Limits, N, op
from ..core.shapes import broadcasts_to, check_axes
from ..core.size_functions import choose, is_equal, is_less
from ..core.size_possibilities import may_equal_shape
from ..core.sizes import Dimension
from ..support.errors import require
from .constants import constant

if TYPE_CHECKING:
    from .operations import Operations

PaddingMode = Literal["constant", "edge", "reflection"]

MAX_TENSORS = 8192
"""Maximum number of operands or results of an operation (https://www.w3.org/TR/webnn/#valid-tensor-count)."""


def _check_length(name: str, values: Sequence[int], rank: int) -> None:
    require(len(values) == rank, f"{name} must have a value for each of {rank} dimensions, got {list(values)}")


def _along(input: Operand, axis: int, start: int, size: int) -> tuple[list[int], list[int]]:
    """Starts and sizes of a slice of `input`: `size` elements from `start` along `axis`, all along other axes."""
    starts, sizes = [0] * input.rank, list(input.shape)
    starts[axis], sizes[axis] = start, size
    return starts, sizes


@op(inputs=Limits(ANY, ranks=(1, N)))
def concat(self: Builder, inputs: Sequence[Operand], axis: int, *, label: str = "") -> Desc:
    """Join `inputs` along `axis`.

    Args:
        inputs: 1 to 8192 operands that differ in their size along `axis` only: any data type, rank 1 or more.

    Returns: An operand of the same data type; its size along `axis` is the sum of theirs.
    Raises: no inputs or too many, an axis out of range, or data types or shapes that differ.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-concat

    >>> ow.ops.concat([np.float32([[1, 2]]), np.float32([[3, 4]])], 0).tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    >>> ow.ops.concat([np.float32([[1, 2]]), np.float32([[3, 4]])], 1).tolist()
    [[1.0, 2.0, 3.0, 4.0]]
    """
    require(0 < len(inputs) <= MAX_TENSORS, f"takes 1 to {MAX_TENSORS} inputs, got {len(inputs)}")
    first = inputs[0]
    require(axis < first.rank, f"axis must be in [0, {first.rank}), got {axis}")
    rest = [size for i, size in enumerate(first.shape) if i != axis]
    for k, input in enumerate(inputs):
        fits = input.rank == first.rank and may_equal_shape(
            [size for i, size in enumerate(input.shape) if i != axis], rest
        )
        require(
            fits and input.data_type == first.data_type,
            f"inputs must differ in the size of axis {axis} only, got {first.desc} and inputs[{k}] {input.desc}",
        )
    shape = list(first.shape)
    shape[axis] = sum(input.shape[axis] for input in inputs)
    return Desc(first.data_type, tuple(shape))


@op(input=Limits(ANY), output=Limits("input"))
def expand(self: Builder, input: Operand, new_shape: Sequence[int], *, label: str = "") -> Desc:
    """Stretch dimensions of size 1, and add leading ones, by repeating the elements of `input`.

    Args:
        new_shape: the shape to broadcast to.

    Returns: An operand of the data type of `input` and the shape `new_shape`.
    Raises: `input` cannot be broadcast to `new_shape`.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-expand

    >>> ow.ops.expand(np.float32([[1], [2]]), [2, 3]).tolist()
    [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]
    """
    require(broadcasts_to(input.shape, new_shape), f"{input.desc} cannot be broadcast to new_shape {list(new_shape)}")
    return Desc(input.data_type, tuple(new_shape))


@op(input=Limits(ANY))
def pad(
    self: Builder,
    input: Operand,
    beginning_padding: Sequence[int],
    ending_padding: Sequence[int],
    *,
    mode: PaddingMode = "constant",
    value: Number = 0,
    label: str = "",
) -> Desc:
    """Add elements around `input`.

    Args:
        beginning_padding: number of elements to add at the beginning of each dimension.
        ending_padding: number of elements to add at the end of each dimension.
        mode: what to add: "constant" adds `value`, "edge" repeats the first and last element of the dimension,
            "reflection" mirrors the elements next to the first and last.
        value: the added elements in mode "constant", rounded and clamped to the data type of `input`.

    Returns: An operand of the data type of `input`, of size beginning padding + size + ending padding in each dimension.
    Raises: not one padding for each dimension, or a reflection of more elements than there are.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-pad

    >>> ow.ops.pad(np.float32([1, 2, 3]), [1], [2]).tolist()
    [0.0, 1.0, 2.0, 3.0, 0.0, 0.0]
    >>> ow.ops.pad(np.float32([1, 2, 3]), [1], [2], mode="reflection").tolist()
    [2.0, 1.0, 2.0, 3.0, 2.0, 1.0]
    """
    paddings = {"beginning_padding": beginning_padding, "ending_padding": ending_padding}
    for name, padding in paddings.items():
        _check_length(name, padding, input.rank)
        counts = list(zip(padding, input.shape, strict=True))
        require(
            mode != "reflection" or all(_is_inner(count, size) for count, size in counts),
            f"{name} of a reflection must be smaller than the dimensions, {list(input.shape)}, got {list(padding)}",
        )
        require(
            mode != "edge" or all(choose(is_equal(count, 0), 1, size) for count, size in counts),
            f"{name} must be 0 where a dimension has no edge to repeat, {list(input.shape)}, got {list(padding)}",
        )
    padded = zip(beginning_padding, input.shape, ending_padding, strict=True)
    return Desc(input.data_type, tuple(before + size + after for before, size, after in padded))


def _is_inner(count: int, size: int) -> Dimension:
    """Whether a dimension has enough elements for a reflection. One condition for each side: two would have 2**16 answers."""
    return choose(is_equal(count, 0), 1, is_less(count, size))


pad.cast("value", like="input")


@pad.decompose
def _(
    b: Operations,
    input: Operand,
    beginning_padding: Sequence[int],
    ending_padding: Sequence[int],
    mode: PaddingMode,
    value: Number,
) -> Operand:
    def border(part: Operand, axis: int, before: bool, count: int) -> Operand:
        """`count` elements before or after the elements of `part` along `axis`."""
        size = part.shape[axis]
        if mode == "constant":
            return b.expand(constant(b, value, part.data_type), _along(part, axis, 0, count)[1])
        if mode == "edge":
            edge = b.slice(part, *_along(part, axis, 0 if before else size - 1, 1))
            return b.expand(edge, _along(part, axis, 0, count)[1])
        inner = b.slice(part, *_along(part, axis, 1 if before else size - 1 - count, count))
        return b.reverse(inner, axes=[axis])

    result = input
    for axis, (before, after) in enumerate(zip(beginning_padding, ending_padding, strict=True)):
        head = [border(result, axis, True, before)] if before else []
        tail = [border(result, axis, False, after)] if after else []
        if head or tail:
            result = b.concat([*head, result, *tail], axis)
    return result


@op(input=Limits(ANY), output=Limits("input"))
def reshape(self: Builder, input: Operand, new_shape: Sequence[int], *, label: str = "") -> Desc:
    """Change the shape of `input`, keeping the order of its elements.

    Args:
        new_shape: a shape with the same number of elements; `[]` is a scalar.

    Returns: An operand of the data type of `input` and the shape `new_shape`.
    Raises: `new_shape` has a different number of elements.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reshape-method

    >>> ow.ops.reshape(np.float32([[1, 2, 3], [4, 5, 6]]), [3, 2]).tolist()
    [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    """
    wanted, count = input.desc.element_count, prod(new_shape)
    require(
        count == wanted, f"new_shape must have the {wanted} elements of {input.desc}, got {list(new_shape)}: {count}"
    )
    return Desc(input.data_type, tuple(new_shape))


@op(input=Limits(ANY))
def reverse(self: Builder, input: Operand, *, axes: Sequence[int] | None = None, label: str = "") -> Desc:
    """Reverse the order of the elements along `axes`.

    Args:
        axes: different axes in [0, rank); default: all of them. `[]` changes nothing.

    Raises: an axis out of range, or named twice.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reverse-method

    >>> ow.ops.reverse(np.float32([[1, 2], [3, 4]]), axes=[1]).tolist()
    [[2.0, 1.0], [4.0, 3.0]]
    """
    assert axes is not None
    check_axes(axes, input.rank)
    return input.desc


@reverse.default("axes")
def _(input: Operand) -> tuple[int, ...]:
    return tuple(range(input.rank))


@reverse.decompose
def _(b: Operations, input: Operand, axes: Sequence[int]) -> Operand:
    for axis in axes:
        backwards = constant(b, range(input.shape[axis])[::-1], "int64")
        input = b.gather(input, backwards, axis=axis)
    return input


@op(input=Limits(ANY))
def slice(
    self: Builder,
    input: Operand,
    starts: Sequence[int],
    sizes: Sequence[int],
    *,
    strides: Sequence[int] | None = None,
    label: str = "",
) -> Desc:
    """Extract a window of `input`, with strides.

    Args:
        starts: the first element of the window in each dimension.
        sizes: the size of the window in each dimension, before the stride is applied; start + size <= the dimension.
        strides: the step through the window in each dimension, from 1; default: all 1.

    Returns: An operand of the data type of `input`, of ceil(size / stride) elements in each dimension.
    Raises: not one value for each dimension, sizes (without `drafts=True`) or strides of 0, or a window that ends outside of
        `input`.

    `x[2:8:3, ..., 0]` is the same on an operand, in Python's syntax.
    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-slice

    >>> ow.ops.slice(np.float32([[1, 2, 3], [4, 5, 6]]), [0, 1], [2, 2]).tolist()
    [[2.0, 3.0], [5.0, 6.0]]
    >>> ow.ops.slice(np.float32([1, 2, 3, 4, 5]), [0], [5], strides=[2]).tolist()
    [1.0, 3.0, 5.0]
    """
    assert strides is not None
    for name, values in {"starts": starts, "sizes": sizes, "strides": strides}.items():
        _check_length(name, values, input.rank)
    require(self.takes_empty or 0 not in sizes, f"sizes must be greater than 0, got {list(sizes)}")
    require(0 not in strides, f"strides must be greater than 0, got {list(strides)}")
    require(
        all(start + size <= whole for start, size, whole in zip(starts, sizes, input.shape, strict=True)),
        f"starts {list(starts)} + sizes {list(sizes)} must be within {list(input.shape)}",
    )
    return Desc(input.data_type, tuple(-(-size // stride) for size, stride in zip(sizes, strides, strict=True)))


@slice.default("strides")
def _(input: Operand) -> tuple[int, ...]:
    return (1,) * input.rank


@op(input=Limits(ANY, ranks=(1, N)), outputs=Limits("input", ranks="input"))
def split(
    self: Builder, input: Operand, splits: int | Sequence[int], *, axis: int = 0, label: str = ""
) -> tuple[Desc, ...]:
    """Split `input` into parts along `axis`.

    Args:
        splits: the number of equal parts, which must divide the dimension, or the size of each part, whose sum must be
            the dimension; at most 8192 parts.

    Returns: The parts in order, in the data type and rank of `input`.
    Raises: an axis out of range, no parts or too many, empty parts, or parts that do not make up `input`.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-split

    >>> [part.tolist() for part in ow.ops.split(np.float32([1, 2, 3, 4]), 2)]
    [[1.0, 2.0], [3.0, 4.0]]
    >>> [part.tolist() for part in ow.ops.split(np.float32([1, 2, 3, 4]), [1, 3])]
    [[1.0], [2.0, 3.0, 4.0]]
    """
    require(axis < input.rank, f"axis must be in [0, {input.rank}), got {axis}")
    whole = input.shape[axis]
    count = len(splits) if isinstance(splits, Sequence) else int(splits)
    require(0 < count <= MAX_TENSORS, f"splits must make 1 to {MAX_TENSORS} parts, got {count}")
    if not isinstance(splits, Sequence):
        require(whole % splits == 0, f"splits must divide the {whole} elements of axis {axis}, got {splits}")
    else:
        require(self.takes_empty or 0 not in splits, f"splits must be sizes greater than 0, got {list(splits)}")
        require(sum(splits) == whole, f"splits must add up to the {whole} elements of axis {axis}, got {list(splits)}")
    return tuple(Desc(input.data_type, tuple(_along(input, axis, 0, size)[1])) for size in part_sizes(whole, splits))


def part_sizes(whole: int, splits: int | Sequence[int]) -> tuple[int, ...]:
    """The sizes of the parts of a split.

    >>> part_sizes(6, 3), part_sizes(6, [1, 5])
    ((2, 2, 2), (1, 5))
    """
    return tuple(splits) if isinstance(splits, Sequence) else (whole // splits,) * splits


@split.decompose
def _(b: Operations, input: Operand, splits: int | Sequence[int], axis: int) -> tuple[Operand, ...]:
    parts, start = [], 0
    for size in part_sizes(input.shape[axis], splits):
        parts.append(b.slice(input, *_along(input, axis, start, size)))
        start += size
    return tuple(parts)


@op(input=Limits(ANY))
def tile(self: Builder, input: Operand, repetitions: Sequence[int], *, label: str = "") -> Desc:
    """Repeat `input` along each dimension.

    Args:
        repetitions: number of repetitions of each dimension, at least 1.

    Returns: An operand of the data type of `input`, of size * repetitions elements in each dimension.
    Raises: not one repetition for each dimension, or one that is 0.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-tile

    >>> ow.ops.tile(np.float32([[1, 2]]), [2, 2]).tolist()
    [[1.0, 2.0, 1.0, 2.0], [1.0, 2.0, 1.0, 2.0]]
    """
    _check_length("repetitions", repetitions, input.rank)
    require(self.takes_empty or 0 not in repetitions, f"repetitions must be greater than 0, got {list(repetitions)}")
    return Desc(input.data_type, tuple(size * times for size, times in zip(input.shape, repetitions, strict=True)))


@tile.decompose
def _(b: Operations, input: Operand, repetitions: Sequence[int]) -> Operand:
    result = input
    for axis, times in enumerate(repetitions):
        shape = result.shape
        outer, inner = prod(shape[:axis]), prod(shape[axis:])
        stacked = b.expand(b.reshape(result, [outer, 1, inner]), [outer, times, inner])
        result = b.reshape(stacked, [*shape[:axis], times * shape[axis], *shape[axis + 1 :]])
    return result


@op(input=Limits(ANY))
def transpose(self: Builder, input: Operand, *, permutation: Sequence[int] | None = None, label: str = "") -> Desc:
    """Permute the dimensions of `input`.

    Args:
        permutation: for each dimension of the result, the dimension of `input`; default: the reverse order.

    Returns: An operand of the data type of `input`, with its dimensions permuted.
    Raises: `permutation` does not name each dimension once.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-transpose

    >>> ow.ops.transpose(np.float32([[1, 2, 3], [4, 5, 6]])).tolist()
    [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]
    >>> ow.ops.transpose(np.ones([2, 3, 4], "float32"), permutation=[0, 2, 1]).shape
    (2, 4, 3)
    """
    assert permutation is not None
    require(
        sorted(permutation) == list(range(input.rank)),
        f"permutation must name each axis in [0, {input.rank}) once, got {list(permutation)}",
    )
    return Desc(input.data_type, tuple(input.shape[axis] for axis in permutation))


@transpose.default("permutation")
def _(input: Operand) -> tuple[int, ...]:
    return tuple(reversed(range(input.rank)))


@op(input=Limits(ANY, ranks=(2, N)))
def triangular(self: Builder, input: Operand, *, upper: bool = True, diagonal: Long = 0, label: str = "") -> Desc:
    """Keep the upper or the lower triangle of each matrix in `input`, and set the rest to zero.

    Args:
        input: any data type, [..., rows, columns].
        upper: whether to keep the elements on the diagonal and to the right of it, or to the left of it.
        diagonal: the diagonal: 0 is the main one, positive ones are to the right of it, negative ones to the left.

    Raises: `input` has a rank below 2.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-triangular

    >>> ow.ops.triangular(np.float32([[1, 2], [3, 4]])).tolist()
    [[1.0, 2.0], [0.0, 4.0]]
    >>> ow.ops.triangular(np.float32([[1, 2], [3, 4]]), upper=False, diagonal=-1).tolist()
    [[0.0, 0.0], [3.0, 0.0]]
    """
    return input.desc


@triangular.decompose
def _(b: Operations, input: Operand, upper: bool, diagonal: int) -> Operand:
    *_, rows, columns = input.shape
    column = constant(b, [range(columns)], "int64")
    border = constant(b, [[row + diagonal] for row in range(rows)], "int64")
    kept = b.greater_or_equal(column, border) if upper else b.lesser_or_equal(column, border)
    return b.where(kept, input, constant(b, 0, input.data_type))


def move_axis(b: Operations, x: Operand, source: int, target: int) -> Operand:
    """Move an axis to another place; the others keep their order."""
    if source == target:
        return x
    order = [axis for axis in range(x.rank) if axis != source]
    order.insert(target, source)
    return b.transpose(x, permutation=order)
