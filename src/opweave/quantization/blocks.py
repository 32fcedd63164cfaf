"""Round arrays of weights to integers of 8 or 4 bits, with a scale for each channel or block."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from ..support.records import record

BITS_8, BITS_4 = 8, 4

SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7)
"""Factors for the range of a block in 4 bits; the one with the least sum of squared errors is chosen. Of normally distributed
weights in blocks of 32, this takes 4% off the error of the full range; further factors take less than 0.5% off."""

PIECE_ELEMENTS = 1 << 22
"""Elements that are rounded at a time: several temporary arrays in float32 have this size."""


@record
class NarrowWeights:
    """Weights as integers: `(values - zero_point) * scale`.

    Attributes:
        values: int8, or numbers of 4 bits as uint8, in the shape of the weights.
        scale: one for each index of `axis`; with blocks, of the rank of the weights.
        zero_point: like `scale`, in the type of `values`; None for 0.
        axis: the axis of the channels, or along which the blocks are.
        block_size: the elements of a block; 0 without blocks.
    """

    values: np.ndarray
    scale: np.ndarray
    zero_point: np.ndarray | None
    axis: int
    block_size: int

    @property
    def bits(self) -> int:
        """The bits of an element."""
        return BITS_8 if self.zero_point is None else BITS_4

    @property
    def nbytes(self) -> int:
        """The bytes in a file, without names."""
        zeros = 0 if self.zero_point is None else -(-self.zero_point.size // 2)
        return -(-self.values.size * self.bits // 8) + self.scale.nbytes + zeros

    def widen(self) -> np.ndarray:
        """The weights that a model computes with, in float32."""
        whole = self.values.shape
        scale = _spread(self.scale, whole, self.axis, self.block_size)
        values = self.values.astype(np.float32)
        if self.zero_point is not None:
            values -= _spread(self.zero_point, whole, self.axis, self.block_size).astype(np.float32)
        widened: np.ndarray = values * scale.astype(np.float32)
        return widened


def narrow_channels(weights: np.ndarray, axis: int) -> NarrowWeights:
    """Round weights to int8, symmetrically, with a scale for each index of `axis`.

    >>> narrow = narrow_channels(np.float32([[1, -127], [0.5, 254]]), axis=1)
    >>> narrow.values.tolist(), narrow.scale[1].tolist()
    ([[127, -64], [64, 127]], 2.0)
    """
    others = tuple(k for k in range(weights.ndim) if k != axis)
    largest = np.abs(weights).max(axis=others, initial=0).astype(np.float32)
    scale = _as_scale(largest / 127, weights.dtype)
    values = _round(weights, _spread(scale, weights.shape, axis, 0), -127, 127).astype(np.int8)
    return NarrowWeights(values, scale, None, axis, 0)


def narrow_blocks(
    weights: np.ndarray, axis: int, block_size: int, bits: int, scale_type: np.dtype | None = None
) -> NarrowWeights:
    """Round weights to 8 bits (symmetrically) or 4 (with zero points), with a scale for each block along `axis`.

    `block_size` divides the size of the axis. Scales have the data type of the weights, unless `scale_type` says otherwise.

    >>> narrow = narrow_blocks(np.float32([[0, 1, 2, 3], [-8, -8, 7, 7]]), axis=1, block_size=4, bits=4)
    >>> narrow.widen().tolist()
    [[0.0, 1.0, 2.0, 3.0], [-8.0, -8.0, 7.0, 7.0]]
    """
    shape, scale_type = weights.shape, weights.dtype if scale_type is None else scale_type
    before, blocks, after = prod(shape[:axis]), shape[axis] // block_size, prod(shape[axis + 1 :])
    blocked = weights.reshape(before, blocks, block_size, after)
    values = np.empty(blocked.shape, np.int8 if bits == BITS_8 else np.uint8)
    scale = np.empty((before, blocks, 1, after), scale_type)
    zeros = np.zeros(scale.shape, values.dtype)
    for piece in _pieces(blocked.shape):
        part = blocked[piece].astype(np.float32)
        if bits == BITS_8:
            scale[piece] = _as_scale(np.abs(part).max(axis=2, keepdims=True) / 127, scale_type)
            values[piece] = _round(part, scale[piece], -127, 127)
        else:
            values[piece], scale[piece], zeros[piece] = _narrow_to_4(part, scale_type)
    of_blocks = (*shape[:axis], blocks, *shape[axis + 1 :])
    zero_point = None if bits == BITS_8 else zeros.reshape(of_blocks)
    return NarrowWeights(values.reshape(shape), scale.reshape(of_blocks), zero_point, axis, block_size)


def _narrow_to_4(part: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The values, scales and zero points of blocks along axis 2, for the best of the ranges `SHRINKS`."""
    low = np.minimum(part.min(axis=2, keepdims=True), 0)
    high = np.maximum(part.max(axis=2, keepdims=True), 0)
    span = high / 15 - low / 15  # the difference itself may exceed float32
    unit = np.where(span > 0, span, 1)
    least = np.full(low.shape, np.inf, np.float32)
    best_scale, best_zero = np.ones(low.shape, dtype), np.zeros(low.shape, np.uint8)
    for shrink in SHRINKS:
        scale = _as_scale(span * np.float32(shrink), dtype)
        wide = scale.astype(np.float32)
        zero = np.clip(np.rint(-low * np.float32(shrink) / wide), 0, 15)
        values = np.clip(np.rint(part / wide) + zero, 0, 15)
        loss = np.square(((values - zero) * wide - part) / unit).sum(axis=2, keepdims=True)
        better = loss < least
        least = np.where(better, loss, least)
        best_scale, best_zero = np.where(better, scale, best_scale), np.where(better, zero, best_zero).astype(np.uint8)
    values = np.clip(np.rint(part / best_scale.astype(np.float32)) + best_zero, 0, 15)
    return values.astype(np.uint8), best_scale, best_zero


def block_size_for(size: int, requested: int, any_size: bool = False) -> int:
    """The size of blocks that divide an axis evenly, from 12 to twice the request; 0 if there is none.

    A power of 2 comes first, unless `any_size`: engines have kernels for products with these alone.

    >>> [block_size_for(size, 32) for size in (384, 80, 120, 27, 37, 9, 8)]
    [32, 16, 30, 27, 37, 0, 0]
    """
    divisors = [number for number in range(12, 2 * requested + 1) if size % number == 0]
    powers = [number for number in divisors if number & (number - 1) == 0 and number <= requested]
    if powers and not any_size:
        return powers[-1]
    return min(divisors, key=lambda number: abs(np.log2(number / requested)), default=0)


def _as_scale(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Scales in the data type of the weights; 1 for channels of zeros, and never a number that rounds to 0."""
    tiny = float(np.finfo(dtype).tiny)
    return np.where(values > 0, np.maximum(values, tiny), 1).astype(dtype)


def _round(weights: np.ndarray, scale: np.ndarray, low: int, high: int) -> np.ndarray:
    steps = weights.astype(np.float32) / scale.astype(np.float32)
    rounded: np.ndarray = np.clip(np.rint(steps), low, high)
    return rounded


def _spread(part: np.ndarray, whole: tuple[int, ...], axis: int, block_size: int) -> np.ndarray:
    """Scales or zero points in a shape that broadcasts to that of the weights."""
    if block_size:
        return np.repeat(part, block_size, axis)
    return part.reshape([whole[k] if k == axis else 1 for k in range(len(whole))])


def _pieces(shape: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """Slices of blocks [before, blocks, block, after] with about `PIECE_ELEMENTS`, along the longest axis but the third."""
    longest = max((0, 1, 3), key=lambda axis: shape[axis])
    step = max(1, PIECE_ELEMENTS * shape[longest] // max(prod(shape), 1))
    for start in range(0, shape[longest], step):
        yield tuple(slice(start, start + step) if axis == longest else slice(None) for axis in range(4))
