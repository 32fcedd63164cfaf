"""Expand the numbers of quantized matrices to floats in registers, in WGSL and CUDA C++."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ....core.graph import Desc
from ....expr.gpu import Buffer, Features
from ....expr.gpu.dialect import DialectFunction
from ....expr.gpu.types import layout, unpack
from ....expr.ir import Input
from ..constants import GpuConstant
from . import terms
from .elements import ElementReader
from .problem import Matrix, ProblemWindow
from .quantized import WORD_BITS, words_of
from .text import function, part, plus

BIAS = 1 << 23
"""A number n below this is the fraction of the float32 BIAS + n, whose bits are `BIAS_BITS | n`: no conversion of integers is
needed, which many devices have few units for."""
BIAS_BITS = "0x4b000000u"


def reader_of(name: str, side: Matrix | ProblemWindow, features: Features, width: int = 1) -> ElementReader:
    """The reader of an operand; `width` is as in `ElementReader`, or 0 for the words of a quantized matrix."""
    if isinstance(side, Matrix) and side.quantized is not None:
        return QuantizedReader(name, side, features, width)
    return ElementReader(name, side.source, features, width)


class ByteReader(ElementReader):
    """Loads bytes as u32, one at a time."""

    def __init__(self, name: str, source: Buffer, features: Features) -> None:
        super().__init__(name, source, features)
        self._layout = layout("uint8", features)

    @property
    def element(self) -> str:
        return self._layout.element

    def load(self, at: str, width: int) -> str:
        if self._layout.lanes == 1:
            return f"u32({self.name}[{at}])"
        return unpack(self.name, f"({at})", "uint8", self._layout.lanes)


class QuantizedReader(ElementReader):
    """Loads elements of a quantized matrix: 1 or 4 at a time, or its words.

    Attributes:
        deep: numbers of a word.
        by_word: whether all numbers of a word are in one block.
    """

    def __init__(self, name: str, matrix: Matrix, features: Features, width: int = 1) -> None:
        super().__init__(name, matrix.source, features, width)
        assert matrix.quantized is not None
        self.quantized, self.stride = matrix.quantized, matrix.stride
        self.deep = self.quantized.in_word
        self.by_word = self.quantized.is_whole(self.deep)
        # Reading words beyond the end of an array is an error in CUDA.
        is_whole = matrix.source.desc.byte_length * 8 % WORD_BITS == 0
        self._in_words = is_whole or not features.dialect.has_bytes
        self._bytes = ByteReader(name, matrix.source, features)
        self._scale = ElementReader(f"{name}_scale", self.quantized.scale, features)
        self._zero: ByteReader | None = None
        self._minimum: ElementReader | None = None
        if self.quantized.zero_point is not None:
            self._zero = ByteReader(f"{name}_zero", self.quantized.zero_point, features)
        if self.quantized.minimum is not None:
            self._minimum = ElementReader(f"{name}_minimum", self.quantized.minimum, features)

    @property
    def element(self) -> str:
        return "u32" if self._in_words else self._bytes.element

    @property
    def parts(self) -> list[ElementReader]:
        blocks = (self._scale, self._zero, self._minimum)
        return [*(reader for reader in blocks if reader is not None), self]

    def load(self, at: str, width: int) -> str:
        """Element `at`, or the four elements from 4 * `at`, as float32."""
        return f"elements_{self.name}({at})"

    @property
    def names(self) -> list[str]:
        """The keys of `block_values`."""
        others = {"zero": self._zero, "minimum": self._minimum}
        return ["scale", *(name for name, reader in others.items() if reader is not None)]

    def word(self, at: str) -> str:
        """A word of packed numbers."""
        return f"{self.name}[{at}]"

    @property
    def helpers(self) -> list[DialectFunction]:
        if not self.width:
            return []
        bits, stride = self.quantized.bits, self.stride
        first = "at * 4u" if self.width == 4 else "at"
        lines = [f"let bits = {self._bits_of(self.width)};"]
        if self.quantized.rows > 1:
            lines.append(f"let line = {part(first)} / {stride}u;")
        if self.quantized.blocks > 1:
            lines.append(f"let term = {part(first)} % {stride}u;")
        if self.width == 1:
            value = self._element("bits", self.block_values("line", "term"))
            return [function(f"elements_{self.name}", ["at: u32"], [*lines, f"return {value};"], "f32")]
        values, mask = list[str](), (1 << bits) - 1
        whole = self.block_values("line", "term")
        if self.quantized.is_whole(4):
            lines += [f"let {name} = {text};" for name, text in whole.items()]
            whole = {name: name for name in whole}
        for k in range(4):
            block = whole if self.quantized.is_whole(4) else self.block_values("line", plus("term", k))
            number = f"((bits >> {k * bits}u) & {mask}u)" if k < 3 or bits == 4 else f"(bits >> {k * bits}u)"
            values.append(self._element(number, block))
        lines.append(f"return vec4<f32>({', '.join(values)});")
        return [function(f"elements_{self.name}", ["at: u32"], lines, "vec4<f32>")]

    def _bits_of(self, width: int) -> str:
        """The bits of number `at`, or of the four numbers from 4 * `at` (with others above them, if these have 4 bits)."""
        name, bits = self.name, self.quantized.bits
        if self._in_words and width == 4:
            return f"{name}[at]" if bits == 8 else f"{name}[at / 2u] >> (at % 2u * 16u)"
        if self._in_words:
            numbers = self.quantized.in_word
            return f"extractBits({name}[at / {numbers}u], at % {numbers}u * {bits}u, {bits}u)"
        if width == 4:
            count = bits // 2
            texts = (f"u32({name}[{plus(f'at * {count}u', k)}])" for k in range(count))
            return " | ".join(f"({text} << {8 * k}u)" if k else text for k, text in enumerate(texts))
        return f"u32({name}[at])" if bits == 8 else f"extractBits(u32({name}[at / 2u]), at % 2u * 4u, 4u)"

    def _element(self, number: str, block: dict[str, str]) -> str:
        """An element as text, from the value of a number as u32."""
        if "minimum" in block:
            return f"fma(f32({number}), {block['scale']}, {block['minimum']})"
        return f"(f32({number}) - {block.get('zero', f'{self.quantized.middle}.0f')}) * {block['scale']}"

    def block_values(self, line: str, term: str, step: int = 1) -> dict[str, str]:
        """The scale, and the zero point or the minimum, of the block of an element; `term` is in groups of `step` terms."""
        q = self.quantized
        row = "" if q.rows == 1 else part(line) if q.block_lines == 1 else f"{part(line)} / {q.block_lines}u"
        size = q.block_terms // step
        block = "" if q.blocks == 1 else part(term) if size == 1 else f"{part(term)} / {size}u"
        place = _place(row, block, q.blocks)
        values = {"scale": self._scale.load(place, 1)}
        if self._minimum is not None:
            values["minimum"] = self._minimum.load(place, 1)
        elif self._zero is not None and q.bits == 8:
            values["zero"] = f"f32({self._zero.load(place, 1)})"
        elif self._zero is not None:
            byte = self._zero.load(_place(row, block and f"{part(block)} / 2u", -(-q.blocks // 2)), 1)
            values["zero"] = f"f32({byte} & 15u)"
            if block:
                values["zero"] = f"f32(({byte} >> ({part(block)} % 2u * 4u)) & 15u)"
        return values

    def biased(self, word: str, name: str, block: dict[str, str]) -> Iterator[str]:
        """Define the vectors `{name}_{h}` of four numbers each, minus their zero point, times `powers`.

        The numbers of half a word stay at their places in the word, which saves shifting each.
        """
        bits, zero = self.quantized.bits, block.get("zero")
        half = WORD_BITS // 2 // bits
        for k in range(half if zero is not None else 0):
            yield f"let {name}_zero_{k} = fma({zero}, {1 << k * bits}.0f, {BIAS}.0f);"
        yield f"let {name}_high = {word} >> 16u;"
        values = []
        for number in range(2 * half):
            k = number % half
            mask = ((1 << bits) - 1) << k * bits
            of = word if number < half else f"{name}_high"
            subtracted = f"{BIAS + (self.quantized.middle << k * bits)}.0f" if zero is None else f"{name}_zero_{k}"
            values.append(f"bitcast<f32>(({of} & {mask}u) | {BIAS_BITS}) - {subtracted}")
        for h in range(self.deep // 4):
            yield f"let {name}_{h} = vec4<f32>({', '.join(values[4 * h : 4 * h + 4])});"

    @property
    def powers(self) -> tuple[float, ...]:
        """The factors of four adjacent numbers in the vectors of `biased`."""
        bits = self.quantized.bits
        half = WORD_BITS // 2 // bits
        return tuple(float(1 << k % half * bits) for k in range(4))

    def real(self, word: str, name: str, line: str, term: str, last: int | None) -> Iterator[str]:
        """Define the vectors `{name}_{h}` of four elements each, whose blocks may differ.

        `last` is the last term of a line, unless lines are whole words.
        """
        bits = self.quantized.bits
        for h in range(self.deep // 4):
            values = []
            for e in range(4):
                number = f"extractBits({word}, {(4 * h + e) * bits}u, {bits}u)"
                at = plus(term, 4 * h + e)
                at = at if last is None else f"min({at}, {last}u)"
                values.append(self._element(number, self.block_values(line, at)))
            yield f"let {name}_{h} = vec4<f32>({', '.join(values)});"


def _place(row: str, block: str, blocks: int) -> str:
    """The index of a block, from the texts of its row and its position in the row, which are empty for 0."""
    if not row:
        return block or "0u"
    text = row if blocks == 1 else f"{row} * {blocks}u"
    return f"{text} + {block}" if block else text


def in_words(
    matrix: Matrix, constants: dict[Input, GpuConstant], features: Features
) -> tuple[Matrix, dict[Input, GpuConstant]]:
    """A constant quantized matrix whose lines are whole words, and all its constants."""
    q = matrix.quantized
    assert q is not None
    numbers = -(-matrix.stride // q.in_word) * q.in_word
    source = words_of(matrix.source, matrix.lines, numbers, q.bits)
    constant, words = constants[matrix.source], source.desc.shape[1]
    if not constant.how and constant.source.nbytes == source.desc.byte_length:
        # Lookups in the same table share the device memory.
        constant = GpuConstant.of(_in_words(constant.source, matrix.lines, words))
    else:
        constant = constant.then(_in_words, matrix.lines, words)
    arranged = {source: constant, **{buffer: constants[buffer] for buffer in q.buffers}}
    if features.float16:
        scale, minimum = (buffer and _halved(buffer, arranged) for buffer in (q.scale, q.minimum))
        assert scale is not None
        q = replace(q, scale=scale, minimum=minimum)
    return replace(matrix, source=source, stride=numbers, quantized=q), arranged


def _halved(buffer: Input, arranged: dict[Input, GpuConstant]) -> Input:
    """Store a constant as float16 if that changes no element: the scales of many files were float16 before."""
    if buffer.desc.data_type != "float32":
        return buffer
    array = arranged[buffer].make()
    # Devices may flush smaller ones to zero.
    is_normal = (np.abs(array) >= np.finfo(np.float16).tiny) | (array == 0)
    if not is_normal.all() or not np.array_equal(terms.in_float16(array), array):
        return buffer
    half = Input(buffer.number, Desc("float16", buffer.desc.shape))
    arranged[half] = arranged[buffer].then(terms.in_float16)
    return half


def _in_words(array: np.ndarray, lines: int, words: int) -> np.ndarray:
    """Packed numbers as words, with the lines padded to whole words."""
    rows = np.ascontiguousarray(array).view(np.uint8).reshape(lines, -1)
    if rows.shape[1] < 4 * words:
        rows = np.pad(rows, [(0, 0), (0, 4 * words - rows.shape[1])])
    return rows.view(np.int32)
