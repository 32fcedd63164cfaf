"""GGUF files, mapped into memory: the metadata and the weights of a language model.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. `FORMATS` has the supported types of
weights.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ..composites.packing import pack_codes, unpack_codes
from ..core.dtypes import numpy_type
from ..support.errors import DataError, NotSupportedError
from ..support.names import short_repr
from ..support.processors import processors

Array = np.ndarray

SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
"""NumPy data types of metadata, except for strings and arrays."""

STRING, ARRAY = 8, 9

MAX_RANK = 4

PAIRED_BYTES, MAX_PAIRING = 2**18, 8
"""Bytes that a thread rearranges at once, and the largest number of these threads. Estimates."""

THREADED_BYTES = 2**22
"""Smallest matrix that several threads rearrange. Starting threads for each of the 120 matrices of SmolLM2, which have 160 to
900 KB, took 1.2 s on two cores, and the work itself less than 0.1 s."""

MAX_SIZE = 2**31 - 1
"""Maximum dimension of a tensor in WebNN."""


@dataclass(frozen=True)
class Blocks:
    """A quantized matrix, in the form of `composites.matmul_n_bits`.

    Elements are `(numbers - 2 ** (all_bits - 1)) * scales`, or `numbers * scales + minima` if there are minima.

    Attributes:
        bits: the bits of the numbers in `packed`: 2, 4 or 8.
        packed: uint8 [rows, blocks, block size * bits / 8].
        scale: float32 [rows, blocks]; int8 or uint8 if there is a unit.
        minimum: like `scale`.
        upper: the upper bits of the numbers, `upper_bits` of each, uint8 [rows, blocks, block size * upper_bits / 8].
        upper_bits: 0 without `upper`.
        scale_unit: multiplied with the scales of adjacent blocks, float32 [rows, units].
        minimum_unit: multiplied with the minima of adjacent blocks, float32 [rows, units].
    """

    bits: int
    packed: Array
    scale: Array
    minimum: Array | None = None
    upper: Array | None = None
    upper_bits: int = 0
    scale_unit: Array | None = None
    minimum_unit: Array | None = None

    @property
    def size(self) -> int:
        """Numbers of a block."""
        size: int = self.packed.shape[2] * 8 // self.bits
        return size

    @property
    def all_bits(self) -> int:
        """Bits of a number."""
        return self.bits + self.upper_bits

    @property
    def numbers(self) -> Array:
        """The numbers, uint8 [rows, blocks, block size]."""
        numbers = unpack_codes(self.packed, self.size, self.bits)
        if self.upper is not None:
            numbers = numbers | unpack_codes(self.upper, self.size, self.upper_bits) << self.bits
        return numbers

    @property
    def scales(self) -> Array:
        """The scales as float32 [rows, blocks]."""
        return _in_units(self.scale, self.scale_unit)

    @property
    def minima(self) -> Array | None:
        """The values of the number 0 as float32 [rows, blocks]."""
        return None if self.minimum is None else _in_units(self.minimum, self.minimum_unit)

    def real(self) -> Array:
        """The elements as float32 [rows, columns]."""
        scale, numbers, minima = self.scales[..., None], self.numbers.astype(np.float32), self.minima
        if minima is None:
            values: Array = (numbers - np.float32(2 ** (self.all_bits - 1))) * scale
        else:
            values = numbers * scale + minima[..., None]
        return values.reshape(len(values), -1)

    @property
    def operands(self) -> dict[str, Any]:
        """The arguments of `composites.matmul_n_bits` and `composites.gather_n_bits` for these blocks."""
        return {
            "weight": self.packed,
            "scale": self.scale,
            "minimum": self.minimum,
            "upper": self.upper,
            "scale_unit": self.scale_unit,
            "minimum_unit": self.minimum_unit,
            "bits": self.bits,
            "upper_bits": self.upper_bits,
            "block_size": self.size,
        }

    def for_cpu(self) -> Blocks:
        """The same elements with numbers of 4 or 8 bits, and one scale a block: the form of CPU kernels.

        The middle of the numbers stays in the middle of their range, since kernels that round the input make an error
        proportional to the distance from it.
        """
        bits = 4 if self.all_bits <= 4 else 8
        if bits == self.bits and self.scale_unit is None:
            return self
        middle, scale, minima = 2 ** (bits - 1) - 2 ** (self.all_bits - 1), self.scales, self.minima
        packed = self.packed if bits == self.bits else pack_codes(self.numbers + np.uint8(middle), bits)
        return Blocks(bits, packed, scale, None if minima is None else minima - np.float32(middle) * scale)


def _in_units(values: Array, unit: Array | None) -> Array:
    """Values as float32 [rows, blocks], multiplied with the units of adjacent blocks."""
    if unit is None:
        return values
    real: Array = values.astype(np.float32) * np.repeat(unit, values.shape[1] // unit.shape[1], axis=1)
    return real


def _in_pairs(packed: Array) -> Array:
    """Pack numbers along the last axis in order. In `packed`, the lower halves of bytes come first, then the upper halves.

    Two bytes at a time: unpacking the numbers, and packing them again, takes almost three times as long.
    """
    pairs, size = np.empty(packed.shape, np.uint8), packed.shape[-1]
    # NumPy copies an element of 16 bytes many times faster than a row of 16 elements.
    blocks, halves = packed.view(f"V{size}"), pairs.view(f"V{size // 2}")

    def pair(rows: slice) -> None:
        words = np.ascontiguousarray(blocks[rows]).view("<u2")
        lower, upper = words & 0x0F | words >> 4 & 0xF0, words >> 4 & 0x0F | words >> 8 & 0xF0
        halves[rows, ..., :1] = lower.astype(np.uint8).view(halves.dtype)
        halves[rows, ..., 1:] = upper.astype(np.uint8).view(halves.dtype)

    # Parts stay in the cache; NumPy computes them without the GIL.
    count = max(1, len(packed) * PAIRED_BYTES // max(1, packed.nbytes))
    parts = [slice(start, start + count) for start in range(0, len(packed), count)]
    if packed.nbytes < THREADED_BYTES:
        for part in parts:
            pair(part)
    else:
        with ThreadPoolExecutor(min(len(parts), processors(), MAX_PAIRING)) as pool:
            list(pool.map(pair, parts))
    return pairs


def _wide(field: Array) -> Array:
    return field.astype(np.float32)


def _q4_0(block: Array) -> Blocks:
    return Blocks(4, _in_pairs(block["numbers"]), _wide(block["scale"]))


def _q4_1(block: Array) -> Blocks:
    return Blocks(4, _in_pairs(block["numbers"]), _wide(block["scale"]), _wide(block["minimum"]))


def _q8_0(block: Array) -> Blocks:
    return Blocks(8, block["numbers"] ^ 128, _wide(block["scale"]))


def _q5(block: Array, minimum: Array | None = None) -> Blocks:
    """Numbers of 4 bits, whose upper bits are 32 contiguous bits."""
    return Blocks(4, _in_pairs(block["numbers"]), _wide(block["scale"]), minimum, upper=block["upper"], upper_bits=1)


def _q5_0(block: Array) -> Blocks:
    return _q5(block)


def _q5_1(block: Array) -> Blocks:
    return _q5(block, _wide(block["minimum"]))


_NONLINEAR = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
"""The levels of IQ4_NL."""


def _iq4_nl(block: Array) -> Blocks:
    """Indices into a table of bytes, which become numbers of 8 bits."""
    levels = _NONLINEAR.view(np.uint8) ^ np.uint8(128)
    indices = np.concatenate([block["numbers"] & 15, block["numbers"] >> 4], axis=-1)
    return Blocks(8, levels[indices], _wide(block["scale"]))


def _k_units(block: Array) -> dict[str, Any]:
    return {"scale_unit": _wide(block["scale"]), "minimum_unit": -_wide(block["minimum"])}


def _k_scales(block: Array) -> tuple[Array, Array]:
    """The scales and minima of eight blocks of 32: 6-bit integers, times units that all eight blocks share."""
    fields = block["scales"]
    first, second, third = (fields[..., k : k + 4] for k in (0, 4, 8))
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=-1)
    minima = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=-1)
    return scales.reshape(len(block), -1), minima.reshape(len(block), -1)


def _q4_k(block: Array) -> Blocks:
    rows = len(block)
    packed = _in_pairs(block["numbers"].reshape(rows, -1, 4, 32)).reshape(rows, -1, 16)
    return Blocks(4, packed, *_k_scales(block), **_k_units(block))


def _bits_of_bytes(field: Array, bits: int, size: int) -> Array:
    """Numbers of `bits` bits in blocks: of each 32 bytes, the lowest bits first, then the next ones."""
    rows, shifts = len(field), np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    numbers = field.reshape(rows, -1, 1, 32) >> shifts & np.uint8(2**bits - 1)
    return numbers.reshape(rows, -1, size)


def _q5_k(block: Array) -> Blocks:
    rows = len(block)
    packed = _in_pairs(block["numbers"].reshape(rows, -1, 4, 32)).reshape(rows, -1, 16)
    upper = pack_codes(_bits_of_bytes(block["upper"], 1, 32), 1)
    return Blocks(4, packed, *_k_scales(block), upper=upper, upper_bits=1, **_k_units(block))


def _q6_k(block: Array) -> Blocks:
    """Sixteen blocks of 16 6-bit numbers. `low` has the lower 4 bits, two numbers a byte, `high` the upper 2 bits."""
    rows = len(block)
    low = block["low"].reshape(rows, -1, 2, 2, 32)
    low = np.concatenate([low & 15, low >> 4], axis=-2).reshape(rows, -1, 16)
    upper = pack_codes(_bits_of_bytes(block["high"], 2, 16), 2)
    scale, unit = block["scales"].reshape(rows, -1), _wide(block["scale"])
    return Blocks(4, pack_codes(low, 4), scale, upper=upper, upper_bits=2, scale_unit=unit)


def _q2_k(block: Array) -> Blocks:
    """Sixteen blocks of 16 2-bit numbers, with 4-bit scales and minima."""
    rows, fields = len(block), block["scales"]
    packed = pack_codes(_bits_of_bytes(block["numbers"], 2, 16), 2)
    return Blocks(2, packed, (fields & 15).reshape(rows, -1), (fields >> 4).reshape(rows, -1), **_k_units(block))


def _q3_k(block: Array) -> Blocks:
    """Sixteen blocks of 16 3-bit numbers, with 6-bit scales from -32. `upper` has the upper bits."""
    rows, fields = len(block), block["scales"]
    packed = pack_codes(_bits_of_bytes(block["numbers"], 2, 16), 2)
    upper = pack_codes(_bits_of_bytes(block["upper"], 1, 16), 1)
    low, high = fields[..., :8], fields[..., 8:]
    scale = (
        np.concatenate([low & 15, low >> 4], axis=-1)
        | np.concatenate([high >> k & 3 for k in (0, 2, 4, 6)], axis=-1) << 4
    )
    scale = (scale - np.uint8(32)).view(np.int8).reshape(rows, -1)
    return Blocks(2, packed, scale, upper=upper, upper_bits=1, scale_unit=_wide(block["scale"]))


@dataclass(frozen=True)
class Format:
    """A type of weights.

    Attributes:
        elements: number of elements in a block.
        layout: the fields of a block.
        blocks: converts the fields to `Blocks`; None for floats.
    """

    name: str
    elements: int
    layout: np.dtype[Any]
    blocks: Callable[[Array], Blocks] | None = None


_SCALE, _MINIMUM, _UPPER, _SCALES = ("scale", "<f2"), ("minimum", "<f2"), ("upper", "u1", 4), ("scales", "u1", 12)
_HALVES, _UPPER_K, _NUMBERS_K = ("numbers", "u1", 16), ("upper", "u1", 32), ("numbers", "u1", 128)
_QUARTERS_K = ("numbers", "u1", 64)


def _format(name: str, elements: int, fields: list[Any], blocks: Callable[[Array], Blocks]) -> Format:
    return Format(name, elements, np.dtype(fields), blocks)


FORMATS = {
    0: Format("F32", 1, np.dtype("<f4")),
    1: Format("F16", 1, np.dtype("<f2")),
    2: _format("Q4_0", 32, [_SCALE, _HALVES], _q4_0),
    3: _format("Q4_1", 32, [_SCALE, _MINIMUM, _HALVES], _q4_1),
    6: _format("Q5_0", 32, [_SCALE, _UPPER, _HALVES], _q5_0),
    7: _format("Q5_1", 32, [_SCALE, _MINIMUM, _UPPER, _HALVES], _q5_1),
    8: _format("Q8_0", 32, [_SCALE, ("numbers", "u1", 32)], _q8_0),
    10: _format("Q2_K", 256, [("scales", "u1", 16), _QUARTERS_K, _SCALE, _MINIMUM], _q2_k),
    11: _format("Q3_K", 256, [_UPPER_K, _QUARTERS_K, _SCALES, _SCALE], _q3_k),
    12: _format("Q4_K", 256, [_SCALE, _MINIMUM, _SCALES, _NUMBERS_K], _q4_k),
    13: _format("Q5_K", 256, [_SCALE, _MINIMUM, _SCALES, _UPPER_K, _NUMBERS_K], _q5_k),
    14: _format("Q6_K", 256, [("low", "u1", 128), ("high", "u1", 64), ("scales", "i1", 16), _SCALE], _q6_k),
    20: _format("IQ4_NL", 32, [_SCALE, _HALVES], _iq4_nl),
    30: Format("BF16", 1, numpy_type("bfloat16")),
}

UNREAD = {9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S"}
UNREAD |= {23: "IQ4_XS", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4"}
"""Names of unsupported formats, for messages."""


@dataclass(frozen=True)
class Weight:
    """A tensor of a file. The last dimension is contiguous; `data` is mapped, in the format's layout [..., blocks]."""

    format: Format
    shape: tuple[int, ...]
    data: Array

    def blocks(self) -> Blocks | None:
        """The rows as quantized blocks; None for a matrix of floats."""
        return None if self.format.blocks is None else self.format.blocks(self.data)

    def real(self, rows: Any = slice(None)) -> Array:
        """Some rows as float32; for F32, a view of the file."""
        data = self.data[rows]
        return data.astype(np.float32, copy=False) if self.format.blocks is None else self.format.blocks(data).real()


class GGUF:
    """A file of a language model.

    Args:
        path: the file, which must not change while the model is in use.

    Raises:
        DataError: the file cannot be read, is no GGUF file, or is damaged.
        NotSupportedError: an unsupported version of the format, or an unsupported type of weights.

    Attributes:
        metadata: properties of the model by name; arrays of numbers are NumPy arrays.
        weights: the tensors, by name.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            if self.path.stat().st_size < 24:
                raise DataError(f"{path} is no GGUF file: it has {self.path.stat().st_size} bytes")
            self._bytes: Array = np.memmap(self.path, np.uint8, "r")
        except OSError as error:
            hint = "; the path of a .gguf file is needed" if self.path.suffix != ".gguf" else ""
            raise DataError(f"{path}: {error.strerror}{hint}") from error
        self._position = 0
        try:
            self._read()
        except (ValueError, struct.error, OverflowError) as error:
            raise DataError(f"{path} is damaged or ends too early, at byte {self._position}: {error}") from None

    def release(self) -> None:
        """Free the pages that were read; later accesses read them from the file again."""
        mapping = self._bytes.base
        if isinstance(mapping, mmap.mmap) and hasattr(mapping, "madvise"):  # not on Windows
            mapping.madvise(mmap.MADV_DONTNEED)

    def _read(self) -> None:
        magic, version = bytes(self._bytes[:4]), int(self._bytes[4:8].view("<u4")[0])
        if magic != b"GGUF":
            raise DataError(f"{self.path} is no GGUF file: it begins with {magic!r}")
        if version not in (2, 3):
            raise NotSupportedError(f"{self.path} is GGUF of version {version}; 2 and 3 are read")
        self._position = 8
        tensors, entries = self._number("<u8"), self._number("<u8")
        self.metadata: dict[str, Any] = {}
        for _ in range(entries):
            name = self._string()
            if name in self.metadata:
                raise ValueError(f"two entries of the metadata have the name {short_repr(name)}")
            self.metadata[name] = self._value(self._number("<u4"))
        infos = [self._tensor_info() for _ in range(tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        is_number = isinstance(alignment, int) and not isinstance(alignment, bool)
        if not is_number or alignment < 8 or alignment % 8:
            raise ValueError(f"general.alignment must be a positive multiple of 8, got {short_repr(alignment)}")
        start = -(-self._position // alignment) * alignment
        self.weights: dict[str, Weight] = {}
        for name, shape, kind, offset in infos:
            if name in self.weights:
                raise ValueError(f"two tensors have the name {short_repr(name)}")
            self.weights[name] = self._weight(name, shape, kind, start + offset)

    def _take(self, count: int) -> Array:
        end = self._position + count
        if end > len(self._bytes):
            raise ValueError(f"{count} bytes are wanted, and {len(self._bytes) - self._position} are left")
        part = self._bytes[self._position : end]
        self._position = end
        return part

    def _number(self, data_type: str) -> Any:
        return self._take(np.dtype(data_type).itemsize).view(data_type)[0].item()

    def _string(self) -> str:
        return self._take(self._number("<u8")).tobytes().decode("utf-8", "replace")

    def _strings(self, count: int) -> list[str]:
        """Read strings, faster than with `_string`: a vocabulary has a hundred thousand tokens."""
        # Slices of the mapping are bytes, which become texts faster than views do.
        buffer: Any = self._bytes.base
        position, strings = self._position, []
        size, length_at = len(buffer), struct.Struct("<Q").unpack_from
        for _ in range(count):
            (length,) = length_at(buffer, position)
            start = position + 8
            position = start + length
            if position > size:
                raise ValueError(f"a string of {length} bytes ends at byte {position}, and the file has {size}")
            strings.append(buffer[start:position].decode("utf-8", "replace"))
        self._position = position
        return strings

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind != ARRAY:
            return self._number(self._scalar(kind))
        kind, count = self._number("<u4"), self._number("<u8")
        if kind == STRING:
            return self._strings(count)
        if kind == ARRAY:
            raise ValueError("arrays of arrays are not read")
        data_type = np.dtype(self._scalar(kind))
        return self._take(count * data_type.itemsize).view(data_type)

    def _scalar(self, kind: int) -> str:
        if kind not in SCALARS:
            raise ValueError(f"there is no type {kind} of metadata")
        return SCALARS[kind]

    def _tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name, rank = self._string(), self._number("<u4")
        if not 0 < rank <= MAX_RANK:
            raise ValueError(f"{short_repr(name)} must have a rank in [1, {MAX_RANK}], got {rank}")
        sizes = self._take(8 * rank).view("<u8").tolist()
        if not all(0 < size <= MAX_SIZE for size in sizes):
            raise ValueError(f"{short_repr(name)} must have dimensions in [1, {MAX_SIZE}], got {sizes[::-1]}")
        return name, tuple(reversed(sizes)), self._number("<u4"), self._number("<u8")

    def _weight(self, name: str, shape: tuple[int, ...], kind: int, start: int) -> Weight:
        if kind not in FORMATS:
            label = UNREAD.get(kind, f"of type {kind}")
            names = ", ".join(form.name for form in FORMATS.values())
            raise NotSupportedError(f"{self.path}: {name} is {label}; {names} are read")
        form, columns = FORMATS[kind], shape[-1]
        if form.blocks is not None and len(shape) != 2:
            raise ValueError(f"{short_repr(name)} must have a rank of 2, since it is {form.name}, got {list(shape)}")
        if columns % form.elements:
            raise ValueError(f"rows of {short_repr(name)} have {columns} elements, not a multiple of {form.elements}")
        blocks = (*shape[:-1], columns // form.elements)
        self._position = start
        return Weight(form, shape, self._take(prod(blocks) * form.layout.itemsize).view(form.layout).reshape(blocks))
