"""Expand the numbers of quantized matrices to floats in registers, in WGSL and CUDA C++."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from ....core.dtypes import INFO
from ....core.graph import Desc
from ....expr.gpu import Buffer, Features
from ....expr.gpu.dialect import DialectFunction
from ....expr.gpu.types import layout, unpack
from ....expr.ir import Input
from ....support.identity import ByIdentity
from ..constants import GpuConstant
from . import terms
from .elements import ElementReader
from .problem import Matrix, ProblemWindow
from .quantized import WORD_BITS, is_in_words, words_of
from .text import function, part, plus

BIAS = 1 << 23
"""A number n below this is the fraction of the float32 BIAS + n, whose bits are `BIAS_BITS | n`: no conversion of integers is
needed, which many devices have few units for."""
BIAS_BITS = "0x4b000000u"


def reader_of(name: str, side: Matrix | ProblemWindow, features: Features, width: int = 1) -> ElementReader:
    """The reader of an operand; `width` is as in `ElementReader`, or 0 for the words of a quantized matrix."""
    if isinstance(side, Matrix) and side.quantized is not None:
        return QuantizedReader(name, side, features, width)
    if isinstance(side, Matrix) and side.rest is not None:
        return DividedReader(name, side.source, side.rest, features, width)
    return ElementReader(name, side.source, features, width)


class DividedReader(ElementReader):
    """Loads elements that are split for TF32x3: the sum of the TF32 part and the remainder is the element, exactly."""

    def __init__(self, name: str, source: Buffer, rest: Buffer, features: Features, width: int = 1) -> None:
        super().__init__(name, source, features, width)
        self._rest, self._features = rest, features

    @property
    def parts(self) -> list[ElementReader]:
        return [ElementReader(f"{self.name}_rest", self._rest, self._features, self.width), self]

    def load(self, at: str, width: int) -> str:
        return f"({self.name}[{at}] + {self.name}_rest[{at}])"


class ByteReader(ElementReader):
    """Loads bytes as u32 or i32, one at a time."""

    def __init__(self, name: str, source: Buffer, features: Features) -> None:
        super().__init__(name, source, features)
        self.type = "i32" if source.desc.data_type == "int8" else "u32"
        self._layout = layout(source.desc.data_type, features)

    @property
    def element(self) -> str:
        return self._layout.element

    def load(self, at: str, width: int) -> str:
        if self._layout.lanes == 1:
            return f"{self.type}({self.name}[{at}])"
        return unpack(self.name, f"({at})", self.buffer.desc.data_type, self._layout.lanes)


class BlockReader:
    """Loads a value of blocks as f32: a scale or a minimum.

    Attributes:
        blocks: blocks of a row.
        of_unit: blocks of a unit; 0 without units.
    """

    def __init__(self, name: str, source: Input, unit: Input | None, features: Features) -> None:
        is_integer = INFO[source.desc.data_type].kind != "f"
        self._values = (ByteReader if is_integer else ElementReader)(name, source, features)
        self._unit = None if unit is None else ElementReader(f"{name}_unit", unit, features)
        self.blocks = source.desc.shape[1]
        self.of_unit = 0 if unit is None else self.blocks // unit.desc.shape[1]

    @property
    def readers(self) -> list[ElementReader]:
        return [self._values] if self._unit is None else [self._values, self._unit]

    def load(self, row: str, block: str, place: Callable[[str, str, int], str]) -> str:
        """The value of a block; the texts of its row and its position in the row are empty for 0.

        `place` is `_place`, or adds a constant to its result.
        """
        value = self._values.load(place(row, block, self.blocks), 1)
        if self._unit is None:
            return value
        units = self.blocks // self.of_unit
        unit = "" if units == 1 or not block else block if self.of_unit == 1 else f"{part(block)} / {self.of_unit}u"
        return f"f32({value}) * {self._unit.load(place(row, unit, units), 1)}"


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
        self._in_words = is_in_words(matrix.source, features)
        self._bytes = ByteReader(name, matrix.source, features)
        self._wide = features.dialect.wide
        q = self.quantized
        self._scale = BlockReader(f"{name}_scale", q.scale, q.scale_unit, features)
        self._zero: ByteReader | None = None
        self._minimum: BlockReader | None = None
        self._upper: UpperReader | None = None
        if q.zero_point is not None:
            self._zero = ByteReader(f"{name}_zero", q.zero_point, features)
        if q.minimum is not None:
            self._minimum = BlockReader(f"{name}_minimum", q.minimum, q.minimum_unit, features)
        if q.upper is not None:
            self._upper = UpperReader(f"{name}_upper", q.upper, features)

    @property
    def element(self) -> str:
        return "u32" if self._in_words else self._bytes.element

    @property
    def parts(self) -> list[ElementReader]:
        zero = [] if self._zero is None else [self._zero]
        minimum = [] if self._minimum is None else self._minimum.readers
        upper = [] if self._upper is None else [self._upper]
        return [*self._scale.readers, *zero, *minimum, *upper, self]

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

    def upper_of_word(self, at: str) -> str:
        """The upper bits of the numbers of a word, above which there are others; empty if there are none."""
        if self._upper is None:
            return ""
        return _part_of_word(self._upper.name, part(at), self.quantized.upper_in_word)

    @property
    def helpers(self) -> list[DialectFunction]:
        if not self.width:
            return []
        q, stride = self.quantized, self.stride
        first = "at * 4u" if self.width == 4 else "at"
        lines = [f"let bits = {self._bits_of(self.width)};"]
        if self._upper is not None:
            lines.append(f"let upper = {self._upper.bits_of('at', self.width, q.upper_bits)};")
        if q.rows > 1:
            lines.append(f"let line = {part(first)} / {stride}u;")
        if q.blocks > 1:
            lines.append(f"let term = {part(first)} % {stride}u;")
        if self.width == 1:
            value = self._element(self._join_bits("bits", "upper"), self.block_values("line", "term"))
            return [function(f"elements_{self.name}", ["at: u32"], [*lines, f"return {value};"], "f32")]
        values, is_word = list[str](), q.bits == 8
        whole = self.block_values("line", "term")
        if q.is_whole(4):
            lines += [f"let {name} = {text};" for name, text in whole.items()]
            whole = {name: name for name in whole}
        for k in range(4):
            block = whole if q.is_whole(4) else self.block_values("line", plus("term", k))
            number = f"(bits >> {k * q.bits}u)" if k == 3 and is_word else _number("bits", k, q.bits)
            values.append(self._element(self._join_bits(number, _number("upper", k, q.upper_bits)), block))
        lines.append(f"return vec4<f32>({', '.join(values)});")
        return [function(f"elements_{self.name}", ["at: u32"], lines, "vec4<f32>")]

    def _join_bits(self, number: str, upper: str) -> str:
        """A number as u32, from its lower and its upper bits."""
        return number if self._upper is None else f"({number} | ({upper} << {self.quantized.bits}u))"

    def _bits_of(self, width: int) -> str:
        """The bits of number `at`, or of the four numbers from 4 * `at` (with others above them, if these have few bits)."""
        return _bits_of(self.name, "at", width, self.quantized.bits, in_words=self._in_words)

    def _element(self, number: str, block: dict[str, str]) -> str:
        """An element as text, from the value of a number as u32."""
        if "minimum" in block:
            return f"fma(f32({number}), {block['scale']}, {block['minimum']})"
        return f"(f32({number}) - {block.get('zero', f'{self.quantized.middle}.0f')}) * {block['scale']}"

    def block_values(self, line: str, term: str, step: int = 1, after: int | None = None) -> dict[str, str]:
        """The scale, and the zero point or the minimum, of the block of an element; `term` is in groups of `step` terms.

        If each line has blocks of its own, the block may be that of the line `after` lines behind `line`.
        """
        q = self.quantized

        def place(row: str, block: str, blocks: int) -> str:
            text = _place(row, block, blocks)
            return text if after is None or not row else plus(self._wide(text), after * blocks)

        row = "" if q.rows == 1 else part(line) if q.block_lines == 1 else f"{part(line)} / {q.block_lines}u"
        size = q.block_terms // step
        block = "" if q.blocks == 1 else part(term) if size == 1 else f"{part(term)} / {size}u"
        values = {"scale": self._scale.load(row, block, place)}
        if self._minimum is not None:
            values["minimum"] = self._minimum.load(row, block, place)
        elif self._zero is not None and q.bits == 8:
            values["zero"] = f"f32({self._zero.load(place(row, block, q.blocks), 1)})"
        elif self._zero is not None:
            in_byte, mask = 8 // q.bits, (1 << q.bits) - 1
            byte = self._zero.load(place(row, block and f"{part(block)} / {in_byte}u", -(-q.blocks // in_byte)), 1)
            values["zero"] = f"f32({byte} & {mask}u)"
            if block:
                values["zero"] = f"f32(({byte} >> ({part(block)} % {in_byte}u * {q.bits}u)) & {mask}u)"
        return values

    def biased(self, word: str, name: str, block: dict[str, str], bias_bits: str) -> Iterator[str]:
        """Define the vectors `{name}_{h}` of four numbers each, minus their zero point, times `powers`.

        `bias_bits` is the text of `BIAS_BITS`.

        The numbers of half a word stay at their places in the word, which saves shifting each. Numbers with upper bits, which
        are in the variable `{word}_upper`, do not.
        """
        bits, zero = self.quantized.bits, block.get("zero")
        half = WORD_BITS // 2 // bits
        values = []
        if self._upper is not None:
            for number in range(self.deep):
                code = self._join_bits(
                    _number(word, number, bits), _number(f"{word}_upper", number, self.quantized.upper_bits)
                )
                values.append(f"bitcast<f32>({code} | {bias_bits}) - {BIAS + self.quantized.middle}.0f")
        else:
            for k in range(half if zero is not None else 0):
                yield f"let {name}_zero_{k} = fma({zero}, {1 << k * bits}.0f, {BIAS}.0f);"
            yield f"let {name}_high = {word} >> 16u;"
            for number in range(2 * half):
                k = number % half
                mask = ((1 << bits) - 1) << k * bits
                of = word if number < half else f"{name}_high"
                subtracted = f"{BIAS + (self.quantized.middle << k * bits)}.0f" if zero is None else f"{name}_zero_{k}"
                values.append(f"bitcast<f32>(({of} & {mask}u) | {bias_bits}) - {subtracted}")
        for h in range(self.deep // 4):
            yield f"let {name}_{h} = vec4<f32>({', '.join(values[4 * h : 4 * h + 4])});"

    def powers(self, h: int) -> tuple[float, ...]:
        """The factors of four adjacent numbers in vector `h` of `biased`."""
        if self._upper is not None:
            return (1.0,) * 4
        bits = self.quantized.bits
        half = WORD_BITS // 2 // bits
        return tuple(float(1 << (4 * h + k) % half * bits) for k in range(4))

    def real(self, word: str, name: str, line: str, term: str, last: int | None) -> Iterator[str]:
        """Define the vectors `{name}_{h}` of four elements each, whose blocks may differ.

        `last` is the last term of a line, unless lines are whole words.
        """
        bits = self.quantized.bits
        for h in range(self.deep // 4):
            values = []
            for e in range(4):
                k = 4 * h + e
                number = self._join_bits(_number(word, k, bits), _number(f"{word}_upper", k, self.quantized.upper_bits))
                at = plus(term, 4 * h + e)
                at = at if last is None else f"min({at}, {last}u)"
                values.append(self._element(number, self.block_values(line, at)))
            yield f"let {name}_{h} = vec4<f32>({', '.join(values)});"


class UpperReader(ElementReader):
    """Loads the upper bits of numbers."""

    def __init__(self, name: str, source: Input, features: Features) -> None:
        super().__init__(name, source, features)
        self._in_words = is_in_words(source, features)
        self._bytes = ByteReader(name, source, features)

    @property
    def element(self) -> str:
        return "u32" if self._in_words else self._bytes.element

    def bits_of(self, at: str, width: int, bits: int) -> str:
        """The upper bits of number `at`, or of the four numbers from 4 * `at`, with further numbers above them."""
        return _bits_of(self.name, at, width, bits, in_words=self._in_words)


def _bits_of(name: str, at: str, width: int, bits: int, *, in_words: bool) -> str:
    """The bits of number `at`, or of four from 4 * `at` with further numbers above them, in an array of words or bytes."""
    if in_words and width == 4:
        return _part_of_word(name, at, 4 * bits)
    if in_words:
        numbers = WORD_BITS // bits
        return f"extractBits({name}[{at} / {numbers}u], {at} % {numbers}u * {bits}u, {bits}u)"
    if width == 4 and bits > 1:
        count = bits // 2
        texts = (f"u32({name}[{plus(at if count == 1 else f'{at} * {count}u', k)}])" for k in range(count))
        return " | ".join(f"({text} << {8 * k}u)" if k else text for k, text in enumerate(texts))
    if width == 4:
        return f"u32({name}[{at} / 2u]) >> ({at} % 2u * 4u)"
    if bits == 8:
        return f"u32({name}[{at}])"
    return f"extractBits(u32({name}[{at} / {8 // bits}u]), {at} % {8 // bits}u * {bits}u, {bits}u)"


def _part_of_word(name: str, at: str, bits: int) -> str:
    """Part `at` of an array of words, of `bits` bits, with further parts above it."""
    parts = WORD_BITS // bits
    return f"{name}[{at}]" if parts == 1 else f"{name}[{at} / {parts}u] >> ({at} % {parts}u * {bits}u)"


def _number(word: str, k: int, bits: int) -> str:
    """Number `k` of a word, of `bits` bits."""
    shifted = f"({word} >> {k * bits}u)" if k else word
    return f"({shifted} & {(1 << bits) - 1}u)"


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
    changed: dict[str, Input] = {}
    if q.upper is not None:
        count = matrix.lines * numbers * q.upper_bits
        upper = Input(q.upper.number, Desc("int32", (-(-count // WORD_BITS),)))
        of_line, constant = numbers * q.upper_bits // 8, arranged.pop(q.upper)
        if not constant.how and constant.source.nbytes == upper.desc.byte_length:
            arranged[upper] = GpuConstant.of(_upper_in_words(constant.source, matrix.lines, of_line))
        else:
            arranged[upper] = constant.then(_upper_in_words, matrix.lines, of_line)
        changed["upper"] = upper
    if features.float16:
        for name in ("scale", "scale_unit", "minimum", "minimum_unit"):
            buffer = getattr(q, name)
            if buffer is not None:
                changed[name] = _to_halves(buffer, arranged)
    q = replace(q, **changed)  # type: ignore[arg-type]
    return replace(matrix, source=source, stride=numbers, quantized=q), arranged


def _upper_in_words(array: np.ndarray, lines: int, width: int) -> np.ndarray:
    """Upper bits as words, with the lines padded to `width` bytes."""
    rows = np.ascontiguousarray(array).view(np.uint8).reshape(lines, -1)
    if rows.shape[1] < width:
        rows = np.pad(rows, [(0, 0), (0, width - rows.shape[1])])
    flat = rows.reshape(-1)
    return (np.pad(flat, (0, -flat.size % 4)) if flat.size % 4 else flat).view(np.int32)


BEYOND_HALF = 0x1FFF
"""The fraction bits of float32 that float16 does not have."""

LEAST_HALF, LARGEST_HALF, INFINITY = 0x38800000, 0x477FE000, 0x7F800000
"""The bits, as float32, of the least normal number of float16, its largest number, and infinity."""


def _are_halves(array: np.ndarray) -> bool:
    """Whether float16 has all elements; devices may flush those below its normal range to zero."""
    answer = _ARE_HALVES.peek(id(array))
    if answer is None:
        # Bits are compared: a conversion to float16 and back takes eight times as long.
        bits = array.reshape(-1).view(np.uint32)
        answer = all(_have_halves(bits[start : start + PART]) for start in range(0, bits.size, PART))
        _ARE_HALVES.put(array, answer)
    return answer


PART = 2**16
"""Elements that are compared at once. Larger temporaries are new pages each time: page faults take longer than comparing."""


def _have_halves(bits: np.ndarray) -> bool:
    if np.bitwise_or.reduce(bits) & BEYOND_HALF:
        return False
    size = bits & np.uint32(0x7FFFFFFF)
    if size.max() > LARGEST_HALF and np.any((size > LARGEST_HALF) & (size != INFINITY)):
        return False
    # Zero wraps around to the largest number, and passes.
    size -= np.uint32(1)
    return bool(size.min() >= LEAST_HALF - 1)


_ARE_HALVES: ByIdentity[np.ndarray, bool] = ByIdentity()
"""The results of `_are_halves`, which graphs of several sizes ask of the same constants."""


def _to_halves(buffer: Input, arranged: dict[Input, GpuConstant]) -> Input:
    """Store a constant as float16 if that changes no element: the scales of many files were float16 before."""
    if buffer.desc.data_type != "float32":
        return buffer
    constant = arranged[buffer]
    if not constant.holds(_are_halves):
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
