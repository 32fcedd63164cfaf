"""Tiles of quantized matrices in Triton: words are loaded, and expanded to numbers in registers before the product."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil

from ....expr.gpu import Buffer
from ..triton_kernel import mask_argument
from .expansion import BIAS, BIAS_BITS
from .problem import Matrix
from .terms import CUT


class QuantizedTile:
    """Loads tiles of the right operand as `b_tile` [terms, lines], from a matrix in words with contiguous lines.

    The elements of a tile are computed as [lines, terms], since `tl.interleave` repeats along the last axis.

    Args:
        matrix: the operand.
        is_ragged: whether the last tile has surplus lines.
        terms: terms of a sum.
        step: terms of a step.
        form: "tf32" rounds elements to that type, as constants are; other forms keep float32.
    """

    def __init__(self, matrix: Matrix, *, is_ragged: bool, terms: int, step: int, form: str) -> None:
        assert matrix.quantized is not None
        self.matrix, self.quantized, self.is_ragged = matrix, matrix.quantized, is_ragged
        self.terms, self.step, self.form = terms, step, form
        self.per_word = self.quantized.in_word
        self.words = ceil(terms / self.per_word)

    @property
    def arguments(self) -> Mapping[str, Buffer]:
        """The arrays of the blocks, by the names of their pointers."""
        return {f"b_{name}": buffer for name, buffer in self.quantized.arrays.items()}

    def start(self) -> Iterator[str]:
        q = self.quantized
        yield "b_line = tl.trans(column)"
        yield f"b_start = b_line * {self.matrix.stride // self.per_word}"
        yield f"b_shift = (tl.arange(0, {self.step}) % {self.per_word} * {q.bits})[None, :]"
        if q.upper is not None:
            yield f"b_upper_shift = (tl.arange(0, {self.step}) % {self.per_word} * {q.upper_bits})[None, :]"
        if q.rows > 1:
            yield f"b_row = b_line{f' // {q.block_lines}' if q.block_lines > 1 else ''}"

    def load(self) -> Iterator[str]:
        """Yield statements that define `b_tile`, given the first term `begin` of a step."""
        q = self.quantized
        yield f"b_word = begin // {self.per_word} + tl.arange(0, {self.step // self.per_word})[None, :]"
        mask = self._mask(self._words_exist, has_lines=self.is_ragged)
        yield f"b_packed = tl.load(b + (b_start + b_word){mask})"
        yield from self._spread("b_packed")
        yield f"b_numbers = (b_packed >> b_shift) & {(1 << q.bits) - 1}"
        if q.upper is not None:
            bits = q.upper_in_word
            parts = 32 // bits
            yield f"b_bits = tl.load(b_upper + (b_start + b_word) // {parts}{mask})"
            yield f"b_bits = b_bits >> ((b_start + b_word) % {parts} * {bits})"
            yield from self._spread("b_bits")
            yield f"b_numbers |= ((b_bits >> b_upper_shift) & {(1 << q.upper_bits) - 1}) << {q.bits}"
        for name in self.arguments:
            if name != "b_upper":
                yield from self._block(name)
        for name in ("b_scale", "b_minimum"):
            if f"{name}_unit" in self.arguments:
                yield f"{name}_tile *= {name}_unit_tile"
        numbers = f"tl.cast(b_numbers | {BIAS_BITS.removesuffix('u')}, tl.float32, bitcast=True)"
        if q.minimum is not None:
            value = f"({numbers} - {BIAS}.0) * b_scale_tile + b_minimum_tile"
        elif q.zero_point is not None:
            value = f"({numbers} - ({BIAS}.0 + b_zero_point_tile)) * b_scale_tile"
        else:
            value = f"({numbers} - {BIAS + q.middle}.0) * b_scale_tile"
        if self.form == "tf32":
            value = f"rounded(({value}) * {1 + CUT})"
        elif q.data_type == "float16":
            value = f"tl.cast({value}, tl.float16)"
        yield f"b_tile = tl.trans({value})"

    @property
    def _words_exist(self) -> str:
        """The condition that a word has terms; empty if all have."""
        return f"b_word < {self.words}" if self.words % (self.step // self.per_word) else ""

    def _mask(self, exists: str, *, has_lines: bool) -> str:
        """The arguments of a load of elements that may not exist: beyond the last term (`exists`), or the last line."""
        mask = mask_argument([f"b_line < {self.matrix.lines}" if has_lines else "", exists])
        return f"{mask}, other=0" if mask else ""

    def _spread(self, name: str) -> Iterator[str]:
        """Repeat each element for all numbers of its word."""
        for _ in range(self.per_word.bit_length() - 1):
            yield f"{name} = tl.interleave({name}, {name})"

    def _block(self, name: str) -> Iterator[str]:
        """Define a value of the blocks for all elements of a tile: one for each line, word or element."""
        q, tile = self.quantized, f"{name}_tile"
        # Packed zero points have fewer elements than blocks.
        blocks = q.blocks if name == "b_zero_point" else self.arguments[name].desc.shape[1]
        terms = q.block_terms * (q.blocks // blocks)
        exists, spreads = "", False
        if blocks == 1 or terms % self.step == 0:
            block = f"begin // {terms}"
        elif terms % self.per_word == 0:
            size = terms // self.per_word
            block = f"b_word // {size}" if size > 1 else "b_word"
            exists, spreads = self._words_exist, True
        else:
            yield f"b_term = begin + tl.arange(0, {self.step})[None, :]"
            block = f"b_term // {terms}" if terms > 1 else "b_term"
            exists = f"b_term < {self.terms}" if self.terms % self.step else ""
        row = "b_row * {} + " if q.rows > 1 else ""
        block = block if blocks > 1 else "0"
        mask = self._mask(exists, has_lines=self.is_ragged and q.rows > 1)
        if name == "b_zero_point" and q.bits < 8:
            in_byte = 8 // q.bits
            yield f"{tile} = tl.load({name} + ({row.format(-(-blocks // in_byte))}({block}) // {in_byte}){mask})"
            yield f"{tile} = ({tile}.to(tl.int32) >> (({block}) % {in_byte} * {q.bits})) & {(1 << q.bits) - 1}"
        else:
            yield f"{tile} = tl.load({name} + ({row.format(blocks)}{block}){mask})"
        yield f"{tile} = tl.cast({tile}, tl.float32)"
        if spreads:
            yield from self._spread(tile)
