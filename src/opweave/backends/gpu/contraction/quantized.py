"""Matrices of 4 or 8 bits per number, which stay packed in device memory: kernels expand them as they load them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from ....core.dtypes import DataType
from ....core.graph import Desc
from ....expr.ir import Input

WORD_BITS = 32


@dataclass(frozen=True, slots=True)
class Quantized:
    """The meaning of the numbers of a matrix: an element is `(number - zero point) * scale`, or `number * scale + minimum`.

    The numbers of a line are contiguous, the first of a byte in its lower half. Number (line, term) is number
    `line * stride + term` of the source; `stride` is that of the `Matrix`. Its block has the indices
    (line // block_lines, term // block_terms).

    Attributes:
        bits: 4 or 8.
        data_type: the type of the elements in the graph: float32 or float16.
        block_terms, block_lines: size of a block.
        scale: [rows of blocks, blocks in a row].
        zero_point: numbers of the same width, packed along the last axis [rows of blocks, bytes]; None for 2 ** (bits - 1).
        minimum: like `scale`, instead of a zero point.
    """

    bits: int
    data_type: DataType
    block_terms: int
    block_lines: int
    scale: Input
    zero_point: Input | None = None
    minimum: Input | None = None

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
        return 0 if self.minimum is not None else 1 << (self.bits - 1)

    @property
    def buffers(self) -> tuple[Input, ...]:
        """The arrays of the blocks, in the order of a kernel's arguments."""
        return tuple(buffer for buffer in (self.scale, self.zero_point, self.minimum) if buffer is not None)

    @property
    def form(self) -> Hashable:
        """A key that is equal for matrices that differ only in their arrays."""
        descs = tuple(buffer and buffer.desc for buffer in (self.scale, self.zero_point, self.minimum))
        return self.bits, self.data_type, self.block_terms, self.block_lines, descs

    @property
    def without_numbers(self) -> Quantized:
        """The same with inputs of number 0: the numbers depend on the place in a graph."""
        scale, zero_point, minimum = (
            buffer and Input(0, buffer.desc) for buffer in (self.scale, self.zero_point, self.minimum)
        )
        assert scale is not None
        return replace(self, scale=scale, zero_point=zero_point, minimum=minimum)

    def is_whole(self, terms: int) -> bool:
        """Whether each aligned group of `terms` terms of a line is in one block."""
        return self.blocks == 1 or self.block_terms % terms == 0


def words_of(source: Input, lines: int, numbers: int, bits: int) -> Input:
    """A matrix of packed numbers as 32-bit words [lines, words]."""
    return Input(source.number, Desc("int32", (lines, numbers * bits // WORD_BITS)))
