"""Windows of convolutions and poolings, as PyTorch's arguments give them, and images without an axis of batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...context.builder import MLGraphBuilder
from ...core.graph import MLOperand
from ...core.sizes import Dimension
from ..registry import refuse_if


def values_of(value: int | Sequence[int] | None, axes: int, default: Sequence[int] = ()) -> list[int]:
    """One value for each spatial axis; PyTorch takes a number or a list of one for all axes, and none for the default."""
    values = [value] if isinstance(value, int) else list(value or default)
    values = values * axes if len(values) == 1 else values
    refuse_if(len(values) != axes, f"it has {len(values)} values for {axes} spatial axes")
    return values


def both_sides(padding: Sequence[int]) -> list[int]:
    """The same padding before and after each axis: [before, after, before, after, …]."""
    return [size for size in padding for _ in range(2)]


def with_batches(b: MLGraphBuilder, x: MLOperand, rank: int, convert: Callable[[MLOperand], Any]) -> Any:
    """Convert for an image [batches, channels, *axes] of `rank`; one without batches gets an axis that is removed again."""
    if x.rank == rank:
        return convert(x)
    refuse_if(x.rank != rank - 1, f"its input has rank {x.rank}")
    results = convert(b.reshape(x, [1, *x.shape]))
    if isinstance(results, tuple):
        return tuple(None if y is None else b.reshape(y, y.shape[1:]) for y in results)
    return b.reshape(results, results.shape[1:])


def pooled_size(
    size: Dimension, window: int, before: int, stride: int, dilation: int, is_rounded_up: bool
) -> Dimension:
    """The number of windows along an axis.

    If the number is rounded up, the last window must begin inside the input, or in the padding before it.
    """
    room = size + 2 * before - (window - 1) * dilation - 1
    count = (-(-room // stride) if is_rounded_up else room // stride) + 1
    if is_rounded_up and isinstance(size, int) and (count - 1) * stride >= size + before:
        return count - 1
    return count
