"""Forms of narrow weights that the engine's kernels for 4 and 8 bits compute right, and fast.

The kernels take blocks of a power of two along the inner axis, with a scale for each block of each column. Other blocks are
divided into such ones, and their scales and zero points repeated, where blocks are a multiple of 16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ...composites.packing import pack_codes, unpack_codes
from ...core.sizes import is_static

SMALLEST_BLOCK, LARGEST_BLOCK = 16, 256
"""Block sizes of the kernels."""

DIVIDED_BLOCK = 128
"""Largest blocks into which others are divided. The engine rounds the other operand in such blocks."""


def kernel_block(block_size: int) -> int:
    """The size of blocks of a kernel into which blocks can be divided; 0 if there is none.

    >>> kernel_block(32), kernel_block(48), kernel_block(24), kernel_block(2048)
    (32, 16, 0, 128)
    """
    power = block_size & -block_size
    if power < SMALLEST_BLOCK:
        return 0
    return power if power == block_size <= LARGEST_BLOCK else min(power, DIVIDED_BLOCK)


LARGE_TABLE = 2**16
"""Fewest elements of a table for which a lookup of an unknown number of rows reads narrow numbers. An estimate."""


def gains_from_lookup(rows: int, width: int, indices: Sequence[int] | None) -> bool:
    """Whether a lookup dequantises less than the whole table; `indices` is the shape of the places, if it is known."""
    if indices is None or not is_static(indices):
        return rows * width >= LARGE_TABLE
    return prod(indices) <= rows


@dataclass(frozen=True)
class KernelWeight:
    """The operands of a kernel: packed numbers [rows, blocks, bytes], scales, and zero points or None."""

    weight: np.ndarray
    scale: np.ndarray
    zero_point: np.ndarray | None
    block_size: int


def kernel_weight(
    weight: np.ndarray, scale: np.ndarray, zero_point: np.ndarray | None, *, width: int, bits: int, block_size: int
) -> KernelWeight:
    """Divide blocks and repeat scales, so that the kernels take them; `width` is the count of numbers of a row.

    The operands are those of `matmul_n_bits`, with a block size for which `kernel_block` has one.
    """
    rows, (groups, blocks) = weight.shape[0], scale.shape
    size = kernel_block(block_size)
    count = -(-width // size)

    def repeat(values: np.ndarray) -> np.ndarray:
        along = np.repeat(values, block_size // size, axis=1)[:, :count]
        return np.ascontiguousarray(np.repeat(along, rows // groups, axis=0))

    if size != block_size or groups != rows:
        scale = repeat(scale)
        if zero_point is not None:
            zero_point = np.ascontiguousarray(pack_codes(repeat(unpack_codes(zero_point, blocks, bits)), bits))
    of_block = size * bits // 8
    numbers = weight.reshape(rows, -1)[:, : count * of_block]
    return KernelWeight(np.ascontiguousarray(numbers).reshape(rows, count, of_block), scale, zero_point, size)
