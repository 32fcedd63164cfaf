"""Matrices of 2 to 8 bits per number, which stay packed in device memory: kernels expand them as they load them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

from ....core.dtypes import DataType
from ....core.graph import Desc
from ....expr.gpu import Buffer, Features
from ....expr.ir import Input

WORD_BITS = 32

ARRAYS = ("scale", "scale_unit", "zero_point", "minimum", "minimum_unit", "upper")


@dataclass(frozen=True, slots=True)
class Quantized:
    """The meaning of the numbers of a matrix: an element is `(number - zero point) * scale`, or `number * scale + minimum`.

    The numbers of a line are contiguous, the first of a byte in its lower half. Number (line, term) is number
    `line * stride + term` of the source; `stride` is that of the `Matrix`. Its block has the indices
    (line // block_lines, term // block_terms).

    A scale is multiplied with the unit of adjacent blocks if there are units, and so is a minimum.

    Attributes:
        bits: the bits of the numbers in the source: 2, 4 or 8.
        data_type: the type of the elements in the graph: float32 or float16.
        block_terms, block_lines: size of a block.
        scale: [rows of blocks, blocks in a row].
        zero_point: numbers of the same width, packed along the last axis [rows of blocks, bytes]; None for 2 ** (bits - 1).
        minimum: like `scale`, instead of a zero point.
        upper: the upper bits of the numbers, packed like the numbers of the source, which are the lower bits.
        upper_bits: 1 or 2; 0 without `upper`.
        scale_unit: [rows of blocks, units in a row].
        minimum_unit: [rows of blocks, units in a row].
    """

    bits: int
    data_type: DataType
    block_terms: int
    block_lines: int
    scale: Input
    zero_point: Input | None = None
    minimum: Input | None = None
    upper: Input | None = None
    upper_bits: int = 0
    scale_unit: Input | None = None
    minimum_unit: Input | None = None

    @property
    def rows(self) -> int:
        return self.scale.desc.shape[0]

    @property
    def blocks(self) -> int:
        return self.scale.desc.shape[1]

    @property
    def in_word(self) -> int:
        """Numbers of a 32-bit word."""
        return WORD_BITS // self.bits

    @property
    def middle(self) -> int:
        """The zero point, if there is no operand for it."""
        return 0 if self.minimum is not None else 1 << (self.bits + self.upper_bits - 1)

    @property
    def upper_in_word(self) -> int:
        """Bits of `upper` for the numbers of a word of the source: 8 or 16."""
        return self.in_word * self.upper_bits

    @property
    def arrays(self) -> dict[str, Input]:
        """The arrays besides the source by name, in the order of a kernel's arguments."""
        named = {name: getattr(self, name) for name in ARRAYS}
        return {name: buffer for name, buffer in named.items() if buffer is not None}

    @property
    def buffers(self) -> tuple[Input, ...]:
        return tuple(self.arrays.values())

    @property
    def form(self) -> Hashable:
        """A key that is equal for matrices that differ only in their arrays."""
        descs = tuple((name, buffer.desc) for name, buffer in self.arrays.items())
        return self.bits, self.upper_bits, self.data_type, self.block_terms, self.block_lines, descs

    @property
    def without_numbers(self) -> Quantized:
        """The same with inputs of number 0: the numbers depend on the place in a graph."""
        arrays: dict[str, Any] = {name: Input(0, buffer.desc) for name, buffer in self.arrays.items()}
        return replace(self, **arrays)

    def is_whole(self, terms: int) -> bool:
        """Whether each aligned group of `terms` terms of a line is in one block."""
        return self.blocks == 1 or self.block_terms % terms == 0


def words_of(source: Input, lines: int, numbers: int, bits: int) -> Input:
    """A matrix of packed numbers as 32-bit words [lines, words]."""
    return Input(source.number, Desc("int32", (lines, numbers * bits // WORD_BITS)))


def is_in_words(source: Buffer, features: Features) -> bool:
    """Whether kernels read packed numbers as words: reading words beyond the end of an array is an error in CUDA."""
    return source.desc.byte_length * 8 % WORD_BITS == 0 or not features.dialect.has_bytes
