"""Reference rules: operations that move elements without computing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....ops import movement as ops
from ..backend import Array, reference


@reference.lower(ops.concat)
def _(inputs: Sequence[Array], axis: int) -> Array:
    return np.concatenate(inputs, axis)


@reference.lower(ops.expand)
def _(input: Array, new_shape: Sequence[int]) -> Array:
    return np.broadcast_to(input, new_shape)


@reference.lower(ops.pad)
def _(
    input: Array, beginning_padding: Sequence[int], ending_padding: Sequence[int], mode: ops.PaddingMode, value: float
) -> Array:
    inside, positions = [], []
    for before, size, after in zip(beginning_padding, input.shape, ending_padding, strict=True):
        inside.append(slice(before, before + size))
        position = np.arange(-before, size + after)
        last = size - 1
        positions.append(last - abs(last - abs(position)) if mode == "reflection" else np.clip(position, 0, last))
    output = input[np.ix_(*positions)]
    if mode == "constant":
        output = np.full_like(output, value)
        output[tuple(inside)] = input
    return output


@reference.lower(ops.reshape)
def _(input: Array, new_shape: Sequence[int]) -> Array:
    return input.reshape(new_shape)


@reference.lower(ops.reverse)
def _(input: Array, axes: Sequence[int]) -> Array:
    return np.flip(input, tuple(axes))


@reference.lower(ops.slice)
def _(input: Array, starts: Sequence[int], sizes: Sequence[int], strides: Sequence[int]) -> Array:
    window = zip(starts, sizes, strides, strict=True)
    return input[tuple(slice(start, start + size, stride) for start, size, stride in window)]


@reference.lower(ops.split)
def _(input: Array, splits: int | Sequence[int], axis: int) -> tuple[Array, ...]:
    borders = np.cumsum(ops.part_sizes(input.shape[axis], splits))[:-1]
    return tuple(np.split(input, borders, axis))


@reference.lower(ops.tile)
def _(input: Array, repetitions: Sequence[int]) -> Array:
    return np.tile(input, repetitions)


@reference.lower(ops.transpose)
def _(input: Array, permutation: Sequence[int]) -> Array:
    return input.transpose(permutation)


@reference.lower(ops.triangular)
def _(input: Array, upper: bool, diagonal: int) -> Array:
    row, column = np.ogrid[: input.shape[-2], : input.shape[-1]]
    kept = column >= row + diagonal if upper else column <= row + diagonal
    return np.where(kept, input, np.zeros((), input.dtype))
