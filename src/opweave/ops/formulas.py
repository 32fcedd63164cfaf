"""Formulas of operations that move, select, multiply or reduce elements: the source of each element of the result.

The kernels of engines are faster than loops over these formulas, so that no operation has one by itself. They are for programs
that several operations become: kernels of GPUs, and steps of recurrences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod
from typing import Any, TypeVar

from .. import expr
from ..core.operation import Op
from ..core.shapes import broadcast as broadcast_shapes
from ..core.sizes import Size, is_same_size, is_static
from ..expr import Traced, clamp, compute, where
from ..expr.array import element_inside, stretch
from ..expr.ir import Cast
from . import indexing, matrix, movement, reduction
from .movement import PaddingMode

F = TypeVar("F", bound=Callable[..., Any])

FORMULAS: dict[Op[..., Any], Callable[..., Any]] = {}
"""Operation -> its formula, which takes arrays and attributes by name, as those of expressions."""


def _formula(op: Op[..., Any]) -> Callable[[F], F]:
    """Add the formula of an operation."""

    def add(function: F) -> F:
        FORMULAS[op] = function
        return function

    return add


# ---------------------------------------------------------------------------------------------------------------------
# Positions


def position_from(index: Traced, size: int) -> Traced:
    """Convert an index read from data to a position in [0, size): negative ones count from the end, then clamp."""
    is_signed = not index.data_type.startswith("u")
    if is_signed:
        index = where(index < 0, index + size, index)
    index = clamp(index, 0 if is_signed else None, size - 1)
    return Traced((), Cast(index.body, "index"))


def broadcast(array: Traced) -> Callable[..., Traced]:
    """A function from a position in a larger shape to the element of `array`, by NumPy's broadcasting."""

    def element(*position: Traced) -> Traced:
        key = position[len(position) - array.rank :]
        return array[tuple(k if size > 1 else 0 for k, size in zip(key, array.shape, strict=True))]

    return element


def reshape_array(input: Traced, new_shape: Sequence[int]) -> Traced:
    """Reshape an array, keeping the order of its elements."""
    groups = [_without_ones(old, input.shape, new, new_shape) for old, new in _groups(input.shape, new_shape)]

    def element(*p: Traced) -> Traced:
        key: list[Traced | int] = [0] * input.rank
        for old, new in groups:
            flat: Traced | int = 0  # the position in the group, as one number
            for axis in new:
                flat = p[axis] if axis == new[0] else flat * new_shape[axis] + p[axis]
            for axis in reversed(old[1:]):
                key[axis] = flat % input.shape[axis]
                flat = flat // input.shape[axis]
            if old:
                key[old[0]] = flat
        return element_inside(input, tuple(key))

    return compute(new_shape, element)


def _without_ones(
    old: Sequence[int], old_shape: Sequence[int], new: Sequence[int], new_shape: Sequence[int]
) -> tuple[list[int], list[int]]:
    """The axes of a group of `_groups` whose sizes are not 1, since positions along the others are 0.

    If the counts are equal only for the sizes of this run, sizes are compared with 1, which guards record.
    """
    are_equal = is_same_size(prod(old_shape[axis] for axis in old), prod(new_shape[axis] for axis in new))

    def is_longer(size: int) -> bool:
        return not is_same_size(size, 1) if are_equal else size != 1

    return [axis for axis in old if is_longer(old_shape[axis])], [axis for axis in new if is_longer(new_shape[axis])]


def only_splits(old: Sequence[int], new: Sequence[int]) -> bool:
    """Whether a reshape joins no axes, so that positions in the old shape take no division.

    >>> only_splits([2, 12], [2, 3, 4]), only_splits([2, 12], [6, 4])
    (True, False)
    """
    return all(len(before) <= 1 for before, _ in _groups(old, new))


def _groups(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Split the axes of two shapes with equal element counts into the smallest groups with equal counts.

    >>> _groups([2, 3, 4], [6, 2, 2])
    [([0, 1], [0]), ([2], [1, 2])]
    """
    if not (is_static(old) and is_static(new)):
        return _groups_with_names(old, new)
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        before: list[int] = []
        after: list[int] = []
        left = right = 1
        while not (before or after) or left != right:
            if left <= right and i < len(old):
                before.append(i)
                left, i = left * old[i], i + 1
            else:
                after.append(j)
                right, j = right * new[j], j + 1
        groups.append((before, after))
    return groups


def _groups_with_names(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Compute `_groups` of sizes with names. Counts are equal if equal for all sizes; the last group has what remains."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        ends = [(a, b) for a in range(i, len(old) + 1) for b in range(j, len(new) + 1) if (a, b) != (i, j)]
        equal = (end for end in sorted(ends, key=sum) if is_same_size(prod(old[i : end[0]]), prod(new[j : end[1]])))
        a, b = next(equal, (len(old), len(new)))
        groups.append((list(range(i, a)), list(range(j, b))))
        i, j = a, b
    return groups


# ---------------------------------------------------------------------------------------------------------------------
# Movement


@_formula(movement.concat)
def _(inputs: Sequence[Traced], axis: int) -> Traced:
    sizes = [input.shape[axis] for input in inputs]
    starts = list(accumulate(sizes[:-1], initial=0))
    shape = (*inputs[0].shape[:axis], sum(sizes), *inputs[0].shape[axis + 1 :])

    def element(*p: Traced) -> Traced:
        def read_input(k: int) -> Traced:
            return inputs[k].clamped[(*p[:axis], p[axis] - starts[k], *p[axis + 1 :])]

        result = read_input(len(inputs) - 1)
        for k in reversed(range(len(inputs) - 1)):
            result = where(p[axis] < starts[k + 1], read_input(k), result)
        return result

    return compute(shape, element)


@_formula(movement.expand)
def _(input: Traced, new_shape: Sequence[int]) -> Traced:
    # `stretch` matches axes from the last one, as broadcasting does, and reads axes of size 1 at 0.
    shape = tuple(new_shape)
    return Traced(shape, stretch(input, shape))


@_formula(movement.pad)
def _(
    input: Traced, beginning_padding: Sequence[int], ending_padding: Sequence[int], mode: PaddingMode, value: float
) -> Traced:
    padded = list(zip(beginning_padding, input.shape, ending_padding, strict=True))

    def element(*p: Traced) -> Traced:
        source = tuple(position - before for position, before in zip(p, beginning_padding, strict=True))
        if mode == "constant":
            return input.padded(value)[source]
        if mode == "edge":
            return input.clamped[source]
        return input[tuple(_mirror(k, *sizes) for k, sizes in zip(source, padded, strict=True))]

    return compute([before + size + after for before, size, after in padded], element)


def _mirror(position: Traced, before: int, size: int, after: int) -> Traced:
    """Reflect a position in [-before, size + after) into [0, size)."""
    last = size - 1
    if before:
        position = abs(position)
    return last - abs(last - position) if after else position


_formula(movement.reshape)(reshape_array)


@_formula(movement.reverse)
def _(input: Traced, axes: Sequence[int]) -> Traced:
    def element(*p: Traced) -> Traced:
        source = list(p)
        for axis in axes:
            source[axis] = input.shape[axis] - 1 - p[axis]
        return input[tuple(source)]

    return compute(input.shape, element)


@_formula(movement.slice)
def _(input: Traced, starts: Sequence[int], sizes: Sequence[int], strides: Sequence[int]) -> Traced:
    shape = [-(-size // stride) for size, stride in zip(sizes, strides, strict=True)]
    # The stride of a single element is unused, and may overflow int32.
    pairs = zip(strides, shape, strict=True)
    steps = [stride if isinstance(size, Size) or size > 1 else 1 for stride, size in pairs]

    def element(*p: Traced) -> Traced:
        return input[tuple(position * step + start for position, step, start in zip(p, steps, starts, strict=True))]

    return compute(shape, element)


@_formula(movement.split)
def _(input: Traced, splits: int | Sequence[int], axis: int) -> tuple[Traced, ...]:
    sizes = movement.part_sizes(input.shape[axis], splits)

    def part(start: int, size: int) -> Traced:
        shape = (*input.shape[:axis], size, *input.shape[axis + 1 :])
        return compute(shape, lambda *p: input[(*p[:axis], p[axis] + start, *p[axis + 1 :])])

    return tuple(part(start, size) for start, size in zip(accumulate(sizes[:-1], initial=0), sizes, strict=True))


@_formula(movement.tile)
def _(input: Traced, repetitions: Sequence[int]) -> Traced:
    shape = [size * times for size, times in zip(input.shape, repetitions, strict=True)]
    return compute(shape, lambda *p: input[tuple(k % size for k, size in zip(p, input.shape, strict=True))])


@_formula(movement.transpose)
def _(input: Traced, permutation: Sequence[int]) -> Traced:
    shape = [input.shape[axis] for axis in permutation]
    return compute(shape, lambda *p: input[tuple(p[permutation.index(axis)] for axis in range(input.rank))])


@_formula(movement.triangular)
def _(input: Traced, upper: bool, diagonal: int) -> Traced:
    rows, columns = input.shape[-2:]
    # Diagonals beyond the corners keep the same elements as those at the corners, but may overflow int32.
    border = min(max(diagonal, -rows), columns)

    def element(*p: Traced) -> Traced:
        row, column = p[-2:]
        kept = column >= row + border if upper else column <= row + border
        return where(kept, input[p], 0)

    return compute(input.shape, element)


# ---------------------------------------------------------------------------------------------------------------------
# Selection


@_formula(indexing.gather)
def _(input: Traced, indices: Traced, axis: int) -> Traced:
    shape = (*input.shape[:axis], *indices.shape, *input.shape[axis + 1 :])

    def element(*p: Traced) -> Traced:
        end = axis + indices.rank
        return input[(*p[:axis], position_from(indices[p[axis:end]], input.shape[axis]), *p[end:])]

    return compute(shape, element)


@_formula(indexing.gather_elements)
def _(input: Traced, indices: Traced, axis: int) -> Traced:
    def element(*p: Traced) -> Traced:
        return input[(*p[:axis], position_from(indices[p], input.shape[axis]), *p[axis + 1 :])]

    return compute(indices.shape, element)


@_formula(indexing.gather_nd)
def _(input: Traced, indices: Traced) -> Traced:
    *outer, indexed_axes = indices.shape
    shape = (*outer, *input.shape[indexed_axes:])

    def element(*p: Traced) -> Traced:
        places = (indices[(*p[: len(outer)], axis)] for axis in range(indexed_axes))
        return input[(*map(position_from, places, input.shape), *p[len(outer) :])]

    return compute(shape, element)


# ---------------------------------------------------------------------------------------------------------------------
# Products and reductions


@_formula(matrix.matmul)
def _(a: Traced, b: Traced) -> Traced:
    shape = (*broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    left, right = _widen(a), _widen(b)

    def at(array: Traced, batch: Sequence[Traced], *place: Traced) -> Traced:
        sizes = array.shape[:-2]
        own = batch[len(batch) - len(sizes) :]
        return array[(*(0 if is_same_size(size, 1) else k for k, size in zip(own, sizes, strict=True)), *place)]

    def element(*p: Traced) -> Traced:
        *batch, row, column = p
        return expr.sum_over(a.shape[-1], lambda k: at(left, batch, row, k) * at(right, batch, k, column))

    return _narrow(compute(shape, element), a)


def _widen(x: Traced) -> Traced:
    """Cast float16 to float32, in which sums are computed."""
    return expr.cast(x, "float32") if x.data_type == "float16" else x


def _narrow(result: Traced, like: Traced) -> Traced:
    return expr.cast(result, "float16") if like.data_type == "float16" else result


def _add_reduction(op: Op[..., Any], reduce: Callable[..., Traced]) -> None:
    @_formula(op)
    def _(input: Traced, axes: Sequence[int], keep_dimensions: bool) -> Traced:
        return _narrow(reduce(_widen(input), axes, keep_dimensions=keep_dimensions), input)


_add_reduction(reduction.reduce_max, expr.reduce_max)
_add_reduction(reduction.reduce_mean, expr.reduce_mean)
_add_reduction(reduction.reduce_min, expr.reduce_min)
_add_reduction(reduction.reduce_sum, expr.reduce_sum)
