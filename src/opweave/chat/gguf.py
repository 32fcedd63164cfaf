"""GGUF files, mapped into memory: the metadata and the weights of a language model.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Supported types of weights: F32, F16, Q4_0, Q4_1, Q8_0,
Q4_K, Q6_K.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ..composites.packing import unpack_codes
from ..support.errors import DataError, NotSupportedError
from ..support.names import short_repr

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

MAX_SIZE = 2**31 - 1
"""Maximum dimension of a tensor in WebNN."""


@dataclass(frozen=True)
class Blocks:
    """A quantized matrix, in the form of `composites.matmul_n_bits`.

    Elements are `(numbers - 2 ** (bits - 1)) * scale`, or `numbers * scale + minimum` if there is a minimum. `packed` is uint8
    [rows, blocks, block size * bits / 8]; `scale` and `minimum` are float32 [rows, blocks].
    """

    bits: int
    packed: Array
    scale: Array
    minimum: Array | None = None

    @property
    def size(self) -> int:
        """Numbers of a block."""
        size: int = self.packed.shape[2] * 8 // self.bits
        return size

    @property
    def numbers(self) -> Array:
        """The numbers, uint8 [rows, blocks, block size]."""
        return unpack_codes(self.packed, self.size, self.bits)

    def real(self) -> Array:
        """The elements as float32 [rows, columns]."""
        scale, numbers = self.scale[..., None], self.numbers.astype(np.float32)
        if self.minimum is None:
            values: Array = (numbers - np.float32(2 ** (self.bits - 1))) * scale
        else:
            values = numbers * scale + self.minimum[..., None]
        return values.reshape(len(values), -1)


def _in_pairs(packed: Array) -> Array:
    """Pack numbers along the last axis in order. In `packed`, the lower halves of bytes come first, then the upper halves.

    Two bytes at a time: unpacking the numbers, and packing them again, takes almost three times as long.
    """
    words, half = np.array(packed, order="C").view("<u2"), packed.shape[-1] // 2
    pairs = np.empty(packed.shape, np.uint8)
    pairs[..., :half] = words & 0x0F | words >> 4 & 0xF0
    pairs[..., half:] = words >> 4 & 0x0F | words >> 8 & 0xF0
    return pairs


def _q4_0(block: Array) -> Blocks:
    return Blocks(4, _in_pairs(block["numbers"]), block["scale"].astype(np.float32))


def _q4_1(block: Array) -> Blocks:
    return Blocks(4, _in_pairs(block["numbers"]), *(block[name].astype(np.float32) for name in ("scale", "minimum")))


def _q8_0(block: Array) -> Blocks:
    return Blocks(8, block["numbers"] ^ 128, block["scale"].astype(np.float32))


def _q4_k(block: Array) -> Blocks:
    """Eight blocks of 32. Scales and minima are 6-bit integers, times a scale that all eight blocks share."""
    rows, fields = len(block), block["scales"]
    first, second, third = (fields[..., k : k + 4] for k in (0, 4, 8))
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=-1)
    minima = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=-1)
    scale = block["scale"].astype(np.float32)[..., None] * scales
    minimum = -block["minimum"].astype(np.float32)[..., None] * minima
    packed = _in_pairs(block["numbers"].reshape(rows, -1, 4, 32))
    return Blocks(4, packed.reshape(rows, -1, 16), scale.reshape(rows, -1), minimum.reshape(rows, -1))


def _q6_k(block: Array) -> Blocks:
    """Sixteen blocks of 16 6-bit numbers. `low` has the lower 4 bits, two numbers a byte, `high` the upper 2 bits."""
    rows = len(block)
    low, high = block["low"].reshape(rows, -1, 2, 2, 32), block["high"].reshape(rows, -1, 2, 1, 32)
    low = np.concatenate([low & 15, low >> 4], axis=-2)
    high = high >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    numbers = (low | high << 4) + np.uint8(128 - 32)
    scale = block["scale"].astype(np.float32)[..., None] * block["scales"]
    return Blocks(8, numbers.reshape(rows, -1, 16), scale.reshape(rows, -1))


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


_SCALE, _MINIMUM = ("scale", "<f2"), ("minimum", "<f2")

FORMATS = {
    0: Format("F32", 1, np.dtype("<f4")),
    1: Format("F16", 1, np.dtype("<f2")),
    2: Format("Q4_0", 32, np.dtype([_SCALE, ("numbers", "u1", 16)]), _q4_0),
    3: Format("Q4_1", 32, np.dtype([_SCALE, _MINIMUM, ("numbers", "u1", 16)]), _q4_1),
    8: Format("Q8_0", 32, np.dtype([_SCALE, ("numbers", "u1", 32)]), _q8_0),
    12: Format("Q4_K", 256, np.dtype([_SCALE, _MINIMUM, ("scales", "u1", 12), ("numbers", "u1", 128)]), _q4_k),
    14: Format("Q6_K", 256, np.dtype([("low", "u1", 128), ("high", "u1", 64), ("scales", "i1", 16), _SCALE]), _q6_k),
}

UNREAD = {6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 13: "Q5_K", 15: "Q8_K", 30: "BF16"}
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
        buffer, position, strings = self._bytes.data, self._position, []
        for _ in range(count):
            (length,) = struct.unpack_from("<Q", buffer, position)
            position += 8 + length
            if position > len(buffer):
                raise ValueError(f"a string of {length} bytes ends at byte {position}, and the file has {len(buffer)}")
            strings.append(str(buffer[position - length : position], "utf-8", "replace"))
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
