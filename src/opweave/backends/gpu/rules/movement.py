"""Operations that move elements: the source of each element of the result."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from ....core.sizes import Size
from ....expr import Traced, compute, where
from ....expr.array import stretch
from ....ops import movement as ops
from ..table import gpu
from .positions import reshape_array


@gpu.lower(ops.concat)
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


@gpu.lower(ops.expand)
def _(input: Traced, new_shape: Sequence[int]) -> Traced:
    # `stretch` matches axes from the last one, as broadcasting does, and reads axes of size 1 at 0.
    shape = tuple(new_shape)
    return Traced(shape, stretch(input, shape))


@gpu.lower(ops.pad)
def _(
    input: Traced, beginning_padding: Sequence[int], ending_padding: Sequence[int], mode: ops.PaddingMode, value: float
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


gpu.lower(ops.reshape)(reshape_array)


@gpu.lower(ops.reverse)
def _(input: Traced, axes: Sequence[int]) -> Traced:
    def element(*p: Traced) -> Traced:
        source = list(p)
        for axis in axes:
            source[axis] = input.shape[axis] - 1 - p[axis]
        return input[tuple(source)]

    return compute(input.shape, element)


@gpu.lower(ops.slice)
def _(input: Traced, starts: Sequence[int], sizes: Sequence[int], strides: Sequence[int]) -> Traced:
    shape = [-(-size // stride) for size, stride in zip(sizes, strides, strict=True)]
    # The stride of a single element is unused, and may overflow int32.
    pairs = zip(strides, shape, strict=True)
    steps = [stride if isinstance(size, Size) or size > 1 else 1 for stride, size in pairs]

    def element(*p: Traced) -> Traced:
        return input[tuple(position * step + start for position, step, start in zip(p, steps, starts, strict=True))]

    return compute(shape, element)


@gpu.lower(ops.split)
def _(input: Traced, splits: int | Sequence[int], axis: int) -> tuple[Traced, ...]:
    sizes = ops.part_sizes(input.shape[axis], splits)

    def part(start: int, size: int) -> Traced:
        shape = (*input.shape[:axis], size, *input.shape[axis + 1 :])
        return compute(shape, lambda *p: input[(*p[:axis], p[axis] + start, *p[axis + 1 :])])

    return tuple(part(start, size) for start, size in zip(accumulate(sizes[:-1], initial=0), sizes, strict=True))


@gpu.lower(ops.tile)
def _(input: Traced, repetitions: Sequence[int]) -> Traced:
    shape = [size * times for size, times in zip(input.shape, repetitions, strict=True)]
    return compute(shape, lambda *p: input[tuple(k % size for k, size in zip(p, input.shape, strict=True))])


@gpu.lower(ops.transpose)
def _(input: Traced, permutation: Sequence[int]) -> Traced:
    shape = [input.shape[axis] for axis in permutation]
    return compute(shape, lambda *p: input[tuple(p[permutation.index(axis)] for axis in range(input.rank))])


@gpu.lower(ops.triangular)
def _(input: Traced, upper: bool, diagonal: int) -> Traced:
    rows, columns = input.shape[-2:]
    # Diagonals beyond the corners keep the same elements as those at the corners, but may overflow int32.
    border = min(max(diagonal, -rows), columns)

    def element(*p: Traced) -> Traced:
        row, column = p[-2:]
        kept = column >= row + border if upper else column <= row + border
        return where(kept, input[p], 0)

    return compute(input.shape, element)
