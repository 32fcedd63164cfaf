"""Quantised constants, and how they are packed into the operands of `matmul_n_bits` and `gather_n_bits`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.dtypes import INFO, TypeInfo, numpy_type
from ..support.errors import require
from ..support.records import record

NARROW = ("uint2", "int2", "uint4", "int4", "uint8", "int8")
"""Data types of numbers that are packed; those of 2 bits as numbers of 4."""

_OF_FOUR_BITS = {"uint2": "uint4", "int2": "int4"}

ROUNDED_BLOCK = 32
"""A single block is padded to a multiple of this count of numbers, so that kernels can divide it into their blocks."""


@record(eq=True, slots=False)
class QuantizedConstant:
    """A quantised constant: `(numbers - zero_point) * scale`.

    Each row of a matrix becomes a column of a product, or is picked from a table. The properties and the packing are those
    of matrices.

    Attributes:
        numbers: uint4, int4, uint8 or int8.
        scale: float32 or float16; each dimension divides that of `numbers`.
        zero_point: numbers of the data type of `numbers`, in the shape of `scale`.
        cut: the shape of the constant, if the last blocks of `numbers` are padded.
    """

    numbers: np.ndarray
    scale: np.ndarray
    zero_point: np.ndarray
    cut: tuple[int, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.numbers.shape if self.cut is None else self.cut

    @classmethod
    def of(cls, numbers: np.ndarray, scale: np.ndarray, zero_point: np.ndarray) -> QuantizedConstant:
        """The constant with numbers of 4 or 8 bits, for numbers that may have 2."""
        wide = _OF_FOUR_BITS.get(numbers.dtype.name)
        if wide is None:
            return cls(numbers, scale, zero_point)
        dtype = numpy_type(wide)
        return cls(numbers.astype(dtype), scale, zero_point.astype(dtype))

    @property
    def is_usable(self) -> bool:
        """Whether the numbers can be packed; scales must be finite, since kernels do not handle infinities and NaN."""
        is_narrow = self.numbers.dtype.name in NARROW and self.scale.dtype.name in ("float32", "float16")
        return is_narrow and self.numbers.ndim > 1 and self.numbers.size > 0 and bool(np.isfinite(self.scale).all())

    def transpose(self, permutation: Sequence[int]) -> QuantizedConstant:
        numbers, scale, zero_point = (a.transpose(permutation) for a in (self.numbers, self.scale, self.zero_point))
        cut = None if self.cut is None else tuple(self.cut[axis] for axis in permutation)
        return QuantizedConstant(numbers, scale, zero_point, cut)

    def first(self, sizes: Sequence[int]) -> QuantizedConstant | None:
        """The first elements along each axis; None if no number of a block is left, or blocks are no whole bytes."""
        cut = tuple(sizes)
        for size, whole, count in zip(cut, self.numbers.shape, self.scale.shape, strict=True):
            block = whole // count
            if size < whole and (-(-size // block) != count or block * self.bits % 8):
                return None
        return QuantizedConstant(self.numbers, self.scale, self.zero_point, cut)

    def reshape(self, shape: Sequence[int]) -> QuantizedConstant | None:
        """The constant in another shape; None if scales then apply to no blocks of it."""
        if self.cut is not None:
            return self if tuple(shape) == self.cut else None
        part = merge_blocks(self.numbers.shape, self.scale.shape, shape)
        if part is None:
            return None
        return QuantizedConstant(self.numbers.reshape(shape), self.scale.reshape(part), self.zero_point.reshape(part))

    def widen(self) -> np.ndarray:
        """The real numbers, rounded as `dequantize_linear` rounds them: to float32, and then to the type of the scale."""
        numbers, scale = self.numbers.astype(np.float32), self.scale
        zero_point = self.zero_point.astype(np.float32)
        for axis, (whole, part) in enumerate(zip(numbers.shape, scale.shape, strict=True)):
            if part not in (1, whole):
                scale, zero_point = (np.repeat(array, whole // part, axis) for array in (scale, zero_point))
        real: np.ndarray = ((numbers - zero_point) * scale.astype(np.float32)).astype(scale.dtype)
        return np.ascontiguousarray(real[tuple(slice(size) for size in self.shape)])

    # Matrices ---------------------------------------------------------------------------------------------------------

    def rows(self, first: int, count: int) -> QuantizedConstant:
        """`count` adjacent rows of a constant with scales for each row."""
        place = slice(first, first + count)
        return QuantizedConstant(self.numbers[place], self.scale[place], self.zero_point[place])

    @property
    def bits(self) -> int:
        return _info(self.numbers).bits

    @property
    def block_size(self) -> int:
        """The count of numbers of a row that share a scale, which is rounded up for a single block."""
        width, blocks = self.numbers.shape[1], self.scale.shape[1]
        size: int = -(-width // ROUNDED_BLOCK) * ROUNDED_BLOCK if blocks == 1 else width // blocks
        return size

    @property
    def attributes(self) -> dict[str, Any]:
        return {"bits": self.bits, "block_size": self.block_size}

    @property
    def packed_shape(self) -> tuple[int, int, int]:
        """The shape of the packed numbers, of uint8."""
        (rows, width), blocks = self.numbers.shape, self.scale.shape[1]
        if self.block_size * self.bits % 8:
            return rows, 1, -(-width * self.bits // 8)
        return rows, blocks, self.block_size * self.bits // 8

    def pack(self) -> np.ndarray:
        """The packed numbers; without a copy if they are stored like that already."""
        missing = self.block_size - self.numbers.shape[1] if self.scale.shape[1] == 1 else 0
        codes = as_unsigned(self.numbers)
        if missing:
            codes = np.pad(codes, [(0, 0), (0, missing)])
        return np.ascontiguousarray(pack_codes(codes, self.bits)).reshape(self.packed_shape)

    def zero_points(self) -> np.ndarray | None:
        """The packed zero points; None if all are the default."""
        codes = as_unsigned(self.zero_point)
        return None if (codes == 1 << (self.bits - 1)).all() else np.ascontiguousarray(pack_codes(codes, self.bits))

    def scales(self) -> np.ndarray:
        return np.ascontiguousarray(self.scale)


def unpack_rows(
    packed: np.ndarray, scale: np.ndarray, zero_point: np.ndarray | None, bits: int, block_size: int
) -> QuantizedConstant:
    """Rows of numbers that are packed as com.microsoft's operators have them, with the lowest bits first.

    Args:
        packed: uint8 [..., rows, bytes]; the leading axes become rows.
        scale: the scale of each block of each row, or of each row if `block_size` is 0.
        zero_point: packed along the blocks of a row, or along the rows if `block_size` is 0. Default: 2 ** (bits - 1).
        bits: 2 to 8; numbers of less than 4 bits become numbers of 4.
        block_size: the count of numbers of a row that share a scale, or 0.

    Raises:
        ValidationError: other bits, or sizes that do not fit.
    """
    require(bits in range(2, 9), f"bits must be in [2, 8], got {bits}")
    rows, row_bytes = packed.shape[-2:]
    width = row_bytes * 8 // bits
    blocks = -(-width // block_size) if block_size > 0 else 1
    require(width > 0 and width % blocks == 0, f"blocks of {block_size} do not divide rows of {width} numbers")
    kind = np.dtype(numpy_type("uint4" if bits <= 4 else "uint8"))
    numbers = unpack_any(packed, width, bits).reshape(-1, width)
    scales = scale.reshape(-1)
    require(scales.size == len(numbers) * blocks, f"{len(numbers)} rows of {blocks} blocks have {scales.size} scales")
    zeros = np.full((len(numbers), blocks), 1 << (bits - 1), np.uint8)
    if zero_point is not None:
        # Each row begins with a whole byte, or each leading axis if a row has one scale.
        lines, count = (len(numbers), blocks) if block_size > 0 else (len(numbers) // rows, rows)
        size = -(-count * bits // 8)
        require(
            zero_point.size == lines * size, f"{lines} rows of {size} bytes have {zero_point.size} bytes of zero points"
        )
        zeros = unpack_any(zero_point.reshape(lines, size), count, bits).reshape(zeros.shape)
    return QuantizedConstant(numbers.astype(kind), scales.reshape(-1, blocks), zeros.astype(kind))


def pad_last_block(numbers: np.ndarray, axis: int, size: int) -> np.ndarray:
    """Append zeros along an axis, up to this size; return the numbers themselves if the axis has this size already.

    >>> pad_last_block(np.uint8([[1, 2, 3]]), 1, 4).tolist()
    [[1, 2, 3, 0]]
    """
    if numbers.shape[axis] == size:
        return numbers
    padded = np.zeros([size if k == axis else count for k, count in enumerate(numbers.shape)], numbers.dtype)
    padded[tuple(slice(count) for count in numbers.shape)] = numbers
    return padded


def merge_blocks(shape: Sequence[int], part: Sequence[int], target: Sequence[int]) -> list[int] | None:
    """The shape of scales for `target`, whose dimensions are products of adjacent ones of `shape`; None if there is none.

    >>> merge_blocks((6, 4, 32), (6, 4, 1), (6, 128)), merge_blocks((6, 4, 32), (1, 4, 1), (24, 32))
    ([6, 4], None)
    """
    blocks: list[int] = []
    axis = 0
    for size in target:
        whole, count = 1, 1
        while axis < len(shape) and (whole < size or shape[axis] == 1):
            # The scale of an element depends on its place within the merged axes so far, or on that along this axis.
            if part[axis] != 1 and count != whole:
                return None
            whole, count, axis = whole * shape[axis], count * part[axis], axis + 1
        if whole != size:
            return None
        blocks.append(count)
    return blocks if axis == len(shape) else None


def _info(numbers: np.ndarray) -> TypeInfo:
    return INFO[str(numbers.dtype.name)]


def as_unsigned(numbers: np.ndarray) -> np.ndarray:
    """Integers of 4 or 8 bits as uint8, from 0; signed ones are moved by half of their range.

    >>> as_unsigned(np.int8([-128, 0, 127])).tolist()
    [0, 128, 255]
    """
    info = _info(numbers)
    codes: np.ndarray = numbers.view(np.uint8)
    if info.bits < 8:
        codes = codes & ((1 << info.bits) - 1)
    return codes ^ (1 << (info.bits - 1)) if info.kind == "i" else codes


def pack_codes(codes: np.ndarray, bits: int) -> np.ndarray:
    """Pack numbers of uint8 below 2 ** bits along the last axis, without a check; see `pack_bits`. `bits` divides 8.

    >>> pack_codes(np.uint8([1, 2, 3, 0, 1]), bits=2).tolist()
    [57, 1]
    """
    if bits == 8:
        return codes
    in_byte = 8 // bits
    # In the order of the memory: the caller transposes some of the bytes.
    packed: np.ndarray = codes[..., ::in_byte].copy(order="K")
    for place in range(1, in_byte):
        part = codes[..., place::in_byte]
        packed[..., : part.shape[-1]] |= part << place * bits
    return packed


def unpack_any(packed: np.ndarray, count: int, bits: int) -> np.ndarray:
    """Unpack the first `count` numbers of 1 to 8 bits along the last axis, with the lowest bits first.

    >>> unpack_any(np.uint8([[0b11_10_01_00]]), 4, bits=2).tolist()
    [[0, 1, 2, 3]]
    """
    stream = np.unpackbits(packed.view(np.uint8), axis=-1, count=count * bits, bitorder="little")
    digits = stream.reshape(*packed.shape[:-1], count, bits)
    numbers: np.ndarray = np.packbits(digits, axis=-1, bitorder="little")[..., 0]
    return numbers


def unpack_codes(packed: np.ndarray, count: int, bits: int) -> np.ndarray:
    """Unpack the first `count` numbers along the last axis.

    >>> unpack_codes(np.uint8([[33, 15]]), 3, bits=4).tolist()
    [[1, 2, 15]]
    """
    if bits == 8:
        return packed[..., :count]
    in_byte, mask = 8 // bits, (1 << bits) - 1
    parts = np.stack([packed >> place * bits & mask for place in range(in_byte)], axis=-1)
    numbers: np.ndarray = parts.reshape(*packed.shape[:-1], in_byte * packed.shape[-1])[..., :count]
    return numbers
