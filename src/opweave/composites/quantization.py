"""Products by quantised weights, and rows of quantised tables, whose numbers of 2 to 8 bits are packed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..core.dtypes import FLOATS, INDICES, INFO, DataType
from ..core.graph import Builder, Desc, Operand, check_shape
from ..core.operation import Limits, N
from ..core.shapes import blockwise_broadcasts_to
from ..core.size_possibilities import may_equal
from ..core.size_values import values_in_scope
from ..core.sizes import is_same_size, is_static
from ..ops.constants import constant
from ..ops.reduction import narrow, widen
from ..support.errors import require
from .declare import declare
from .integers import BYTES
from .packing import pack_codes, unpack_codes

if TYPE_CHECKING:
    from ..ops import Operations


SCALES: tuple[DataType, ...] = (*FLOATS, *BYTES)
"""Data types of scales and minima: those of results, or integers beside units."""


@dataclass(frozen=True, eq=False)
class Packed:
    """The operands and attributes of `matmul_n_bits` that describe the weight, or those of `gather_n_bits`."""

    weight: Operand
    scale: Operand
    zero_point: Operand | None
    minimum: Operand | None
    upper: Operand | None
    scale_unit: Operand | None
    minimum_unit: Operand | None
    bits: int
    upper_bits: int
    block_size: int

    @property
    def is_plain(self) -> bool:
        """Whether numbers have 4 or 8 bits in one operand, and scales are floats."""
        return self.bits != 2 and self.upper is None and self.scale_unit is None and self.minimum_unit is None

    def check(self, width: int, subject: str, data_type: DataType) -> None:
        """Check packed rows of `width` numbers, and the scales of their blocks, for results of a data type."""
        bits, upper_bits, block_size, weight = self.bits, self.upper_bits, self.block_size, self.weight
        require(bits in (2, 4, 8), f"bits must be 2, 4 or 8, got {bits}")
        require(block_size > 0, f"block_size must be greater than 0, got {block_size}")
        rows, blocks = weight.shape[0], -(-width // block_size)
        if block_size * bits % 8:
            check_shape([rows, 1, -(-width * bits // 8)], f"numbers of {bits} bits for {subject}", weight=weight)
        else:
            packed = [rows, blocks, block_size * bits // 8]
            check_shape(packed, f"blocks of {block_size} numbers of {bits} bits for {subject}", weight=weight)
        if self.upper is None:
            require(upper_bits == 0, f"upper_bits must be 0 without upper, got {upper_bits}")
        else:
            rule = f"upper_bits must be 1 or 2, and fewer than the {bits} bits of weight, which must be 2 or 4"
            require(upper_bits in (1, 2) and upper_bits < bits < 8, f"{rule}, got {upper_bits}")
            require(block_size % 8 == 0, f"block_size must be a multiple of 8 with upper, got {block_size}")
            packed = [rows, blocks, block_size * upper_bits // 8]
            check_shape(packed, f"blocks of {block_size} numbers of {upper_bits} bits", upper=self.upper)
            require(self.zero_point is None, "zero_point and upper must not be given together")
        require(self.zero_point is None or self.minimum is None, "zero_point and minimum must not be given together")
        groups = self.scale.shape[0]
        if not blockwise_broadcasts_to([groups], [rows]):
            groups = rows
        check_shape([groups, blocks], "one for each block", scale=self.scale)
        check_shape([groups, -(-blocks * bits // 8)], f"{bits} bits for each block", zero_point=self.zero_point)
        check_shape([groups, blocks], "one for each block", minimum=self.minimum)
        _check_unit("scale", self.scale, self.scale_unit, data_type)
        _check_unit("minimum", self.minimum, self.minimum_unit, data_type)


def _check_unit(name: str, values: Operand | None, unit: Operand | None, data_type: DataType) -> None:
    """Check that values are floats of a data type, or integers with a unit for adjacent blocks."""
    if values is None:
        require(unit is None, f"{name}_unit must come with {name}")
        return
    if unit is None:
        require(values.data_type == data_type, f"{name} must be {data_type} without {name}_unit, got {values.desc}")
        return
    require(values.data_type in BYTES, f"{name} must be int8 or uint8 with {name}_unit, got {values.desc}")
    groups, blocks = values.shape
    fits = may_equal(unit.shape[0], groups) and blockwise_broadcasts_to(unit.shape, values.shape)
    rule = f"{name}_unit must have the {groups} rows of {name} and a divisor of its {blocks} blocks"
    require(fits, f"{rule}, got {unit.desc}")


@declare(
    input=Limits(FLOATS, ranks=(2, N)),
    weight=Limits(("uint8",), ranks=(3, 3)),
    scale=Limits(SCALES, ranks=(2, 2)),
    zero_point=Limits(("uint8",), ranks=(2, 2)),
    bias=Limits("input", ranks=(1, 1)),
    minimum=Limits(SCALES, ranks=(2, 2)),
    upper=Limits(("uint8",), ranks=(3, 3)),
    scale_unit=Limits("input", ranks=(2, 2)),
    minimum_unit=Limits("input", ranks=(2, 2)),
)
def matmul_n_bits(
    self: Builder,
    input: Operand,
    weight: Operand,
    scale: Operand,
    zero_point: Operand | None = None,
    bias: Operand | None = None,
    minimum: Operand | None = None,
    upper: Operand | None = None,
    scale_unit: Operand | None = None,
    minimum_unit: Operand | None = None,
    *,
    bits: int = 4,
    block_size: int = 32,
    accuracy: Literal["float32", "int8"] = "float32",
    upper_bits: int = 0,
    label: str = "",
) -> Desc:
    """Multiply by a block-quantized weight of 2 to 8 bits per number.

    Args:
        input: float32 or float16 [..., rows, inner].
        weight: uint8 [columns, blocks, block_size * bits / 8], where the blocks cover `inner`; of the numbers in a byte the
            first is in the lowest bits. `pack_bits` packs numbers like this. If a block is no whole number of bytes, the
            numbers of a column follow one another: [columns, 1, ceil(inner * bits / 8)].
        scale: multiplied with the numbers of each block [columns, blocks], in the data type of `input`; int8 or uint8 if there
            is a `scale_unit`. With fewer rows, which divide `columns`, adjacent columns share a scale.
        zero_point: uint8, subtracted from the numbers of each block first, in the rows of `scale`, and packed:
            [columns, ceil(blocks * bits / 8)]. Default: 2 ** (bits + upper_bits - 1).
        bias: added to the product [columns].
        minimum: instead of a zero point, the value of the number 0 in each block: `weight * scale + minimum`, in the shape of
            `scale` and the data type of `input`; int8 or uint8 if there is a `minimum_unit`. GGUF's Q4_1 has minima.
        upper: uint8, the upper bits of the numbers, of which `weight` then has the lower ones; packed like `weight`
            [columns, blocks, block_size * upper_bits / 8]. Numbers of 3, 5 and 6 bits waste no memory (GGUF's Q6_K).
        scale_unit: multiplied with the scales [columns, units], in the rows of `scale`; adjacent blocks share a unit, so
            `units` divides `blocks`. GGUF's Q4_K and its like have such units.
        minimum_unit: multiplied with the minima, like `scale_unit` with the scales.
        bits: the bits of the numbers in `weight`: 2, 4 or 8.
        block_size: the count of numbers of a column that share a scale; a multiple of 8 with `upper`.
        accuracy: "float32"; or the faster "int8", which allows the engine to quantise blocks of `input` to 8 bits, too.
        upper_bits: 1 or 2 with `upper`, and fewer than `bits`; otherwise 0.

    Returns: `input @ ((weight - zero_point) * scale).T + bias`, in the data type of `input` [..., rows, columns].
    Raises: shapes, bits or a block size that do not fit; a zero point with a minimum or with upper bits; integers as scales
        without a unit, or the reverse.

    ONNX Runtime's MatMulNBits; units and upper bits are those of ggml (https://github.com/ggml-org/ggml).

    >>> weight = pack_bits(np.tile(np.uint8([8, 9]), 8)[None, None], bits=4)  # eight times 0, 1
    >>> matmul_n_bits(np.ones((1, 16), "float32"), weight, np.float32([[0.5]]), block_size=16).tolist()
    [[4.0]]
    """
    columns, inner = weight.shape[0], input.shape[-1]
    packed = Packed(weight, scale, zero_point, minimum, upper, scale_unit, minimum_unit, bits, upper_bits, block_size)
    packed.check(inner, "the last axis of input", input.data_type)
    check_shape([columns], "the number of columns", bias=bias)
    return Desc(input.data_type, (*input.shape[:-1], columns))


@declare(
    weight=Limits(("uint8",), ranks=(3, 3)),
    scale=Limits(SCALES, ranks=(2, 2)),
    indices=Limits(INDICES),
    zero_point=Limits(("uint8",), ranks=(2, 2)),
    minimum=Limits(SCALES, ranks=(2, 2)),
    upper=Limits(("uint8",), ranks=(3, 3)),
    scale_unit=Limits(FLOATS, ranks=(2, 2)),
    minimum_unit=Limits(FLOATS, ranks=(2, 2)),
    output=Limits(FLOATS),
)
def gather_n_bits(
    self: Builder,
    weight: Operand,
    scale: Operand,
    indices: Operand,
    zero_point: Operand | None = None,
    minimum: Operand | None = None,
    upper: Operand | None = None,
    scale_unit: Operand | None = None,
    minimum_unit: Operand | None = None,
    *,
    width: int,
    bits: int = 4,
    block_size: int = 32,
    upper_bits: int = 0,
    label: str = "",
) -> Desc:
    """Pick rows of a block-quantized table of 2 to 8 bits per number, one for each index.

    Args:
        weight: uint8, the packed rows of the table, in the form of `matmul_n_bits`: [rows, blocks, block_size * bits / 8].
        scale: multiplied with the numbers of each block [rows, blocks]: float32 or float16; int8 or uint8 if there is a
            `scale_unit`. With fewer rows, which divide those of the table, adjacent rows share a scale.
        indices: int32, uint32 or int64, any rank; negative ones count from the end, others out of range are clamped.
        zero_point: uint8, subtracted from the numbers of each block first, in the rows of `scale`, and packed:
            [rows, ceil(blocks * bits / 8)]. Default: 2 ** (bits + upper_bits - 1).
        minimum: instead of a zero point, the value of the number 0 in each block, as in `matmul_n_bits`: float32 or float16;
            int8 or uint8 if there is a `minimum_unit`.
        upper: uint8, the upper bits of the numbers, as in `matmul_n_bits` [rows, blocks, block_size * upper_bits / 8].
        scale_unit: float32 or float16, multiplied with the scales of adjacent blocks [rows, units], as in `matmul_n_bits`.
        minimum_unit: float32 or float16, multiplied with the minima, like `scale_unit` with the scales.
        width: the count of numbers of a row.
        bits: the bits of the numbers in `weight`: 2, 4 or 8.
        block_size: the count of numbers of a row that share a scale; a multiple of 8 with `upper`.
        upper_bits: 1 or 2 with `upper`, and fewer than `bits`; otherwise 0.

    Returns: `((weight - zero_point) * scale)[indices]`, in the data type of `scale`, or of its unit [..., width], with the
        axes of `indices` first.
    Raises: shapes, bits or a block size that do not fit, as in `matmul_n_bits`.

    ONNX Runtime's GatherBlockQuantized.

    >>> table = pack_bits(np.uint8([[[8, 9, 10, 11]], [[12, 13, 14, 15]]]), bits=4)
    >>> gather_n_bits(table, np.float32([[1], [0.5]]), np.int32([1, 0]), width=4, block_size=4).tolist()
    [[2.0, 2.5, 3.0, 3.5], [0.0, 1.0, 2.0, 3.0]]
    """
    data_type = scale.data_type if scale_unit is None else scale_unit.data_type
    packed = Packed(weight, scale, zero_point, minimum, upper, scale_unit, minimum_unit, bits, upper_bits, block_size)
    packed.check(width, "width", data_type)
    require(width > 0, f"width must be greater than 0, got {width}")
    is_filled = 0 not in weight.shape[:1] or 0 in indices.shape
    require(is_filled, f"indices must be empty where a table has no rows, got {indices.desc} for {weight.desc}")
    return Desc(data_type, (*indices.shape, width))


def pack_bits(numbers: np.ndarray, *, bits: int = 4) -> np.ndarray:
    """Pack numbers of `bits` bits into bytes along the last axis; of those in a byte the first is in the lowest bits.

    Args:
        numbers: integers from 0 to 2 ** bits - 1.
        bits: 1, 2, 4 or 8.

    Returns:
        A uint8 array with `bits / 8` times as many elements along the last axis, rounded up.

    Raises:
        ValidationError: other bits, or numbers out of range.

    >>> pack_bits(np.array([[1, 2, 15]])).tolist()
    [[33, 15]]
    """
    require(bits in (1, 2, 4, 8), f"pack_bits: bits must be 1, 2, 4 or 8, got {bits}")
    array = np.asarray(numbers)
    fits = (
        array.dtype.kind in "iu" and array.ndim > 0 and (not array.size or (array.min() >= 0 and array.max() < 2**bits))
    )
    require(
        bool(fits),
        f"pack_bits: numbers must be integers in [0, {2**bits}) along an axis, got {array.dtype} {array.shape}",
    )
    return pack_codes(array.astype(np.uint8), bits)


def pack_blocks(
    numbers: np.ndarray, scale: np.ndarray, minimum: np.ndarray | None = None, *, bits: int = 4
) -> tuple[dict[str, Any], int]:
    """Make the arguments of `matmul_n_bits` for a weight in blocks with minima: one product instead of two.

    Each minimum becomes `remainder - zero_point * scale`. The remainders become additional weights, which multiply the means
    of the input's blocks; the caller appends these means to the input. Each remainder is the sum of two weights, one with a
    large and one with a small scale, so the means must be appended several times.

    Args:
        numbers: integers from 0 to 2 ** bits - 1 [columns, blocks, block_size].
        scale: the scale of each block [columns, blocks].
        minimum: the value of the number 0 in each block [columns, blocks]. Default: -scale * 2 ** (bits - 1).
        bits: 4 or 8.

    Returns:
        The arguments by name, and the number of times that the means must follow the input. This is 0 without minima, and if
        the minima stay an operand, because all weights of a block have the same sign. With 4 bits, a minimum changes by less
        than a 390th of the largest scale in its column.

    >>> numbers = np.arange(32).reshape(1, 2, 16) % 16
    >>> weight, copies = pack_blocks(numbers, np.float32([[1, 2]]), np.float32([[-7.5, -15]]))
    >>> x = np.float32([range(32)])
    >>> means = x.reshape(1, 2, 16).mean(axis=2)
    >>> matmul_n_bits(np.concatenate([x, *[means] * copies], axis=1), **weight).tolist()
    [[1020.0]]
    """
    return fold_minima(pack_bits(numbers, bits=bits), scale, minimum, bits)


def fold_minima(
    packed: np.ndarray, scale: np.ndarray, minimum: np.ndarray | None, bits: int
) -> tuple[dict[str, Any], int]:
    """`pack_blocks` for numbers that are packed already, with `bits` bits each."""
    size = packed.shape[2] * 8 // bits
    folded = None if minimum is None else _fold_minima(scale, minimum, size, 2 ** (bits - 1))
    sizes = {"bits": bits, "block_size": size}
    if folded is None:
        return {"weight": packed, "scale": scale, "minimum": minimum, **sizes}, 0
    more, scale, zeros, copies = folded
    weight = np.concatenate([packed, pack_codes(more, bits)], axis=1)
    return {"weight": weight, "scale": scale, "zero_point": pack_codes(zeros, bits), **sizes}, copies


def _fold_minima(
    scale: np.ndarray, minimum: np.ndarray, size: int, half: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int] | None:
    """Return more blocks of `size` numbers for the remainders of the minima, all scales and zero points, and the number of
    copies of the means.

    Return None if a remainder is larger than half a scale.
    """
    columns, blocks = scale.shape
    # A scale may be 0.
    with np.errstate(divide="ignore", invalid="ignore"):
        zeros = np.fmin(np.fmax(np.rint(-minimum / scale), 0), 2 * half - 1)  # NaN becomes 0
    rests = minimum + zeros * scale
    sizes = np.abs(rests)
    if (sizes > 0.51 * np.abs(scale)).any():
        return None
    large = np.maximum(sizes.max(axis=1, keepdims=True) / (half - 1), np.finfo(np.float32).tiny)
    small = large / (2 * half - 2)
    first = np.rint(rests / large)
    # The first blocks have the large scale. The last copy of the means begins after these blocks.
    of_large = -(-blocks // size)
    copies = 1 - (-of_large * size // blocks)
    of_small = -(-copies * blocks // size) - of_large
    more = np.full((columns, (of_large + of_small) * size), half, np.uint8)
    more[:, :blocks] = half + first
    more[:, (copies - 1) * blocks : copies * blocks] = half + np.rint((rests - first * large) / small)
    scales = [scale, np.repeat(large * size, of_large, axis=1), np.repeat(small * size, of_small, axis=1)]
    return (
        more.reshape(columns, -1, size),
        np.concatenate(scales, axis=1).astype(scale.dtype),
        np.concatenate([zeros, np.full((columns, of_large + of_small), half)], axis=1).astype(np.uint8),
        copies,
    )


def _unpack(b: Operations, packed: Operand, bits: int) -> Operand:
    numbers = b.cast(packed, "float32")
    if bits == 8:
        return numbers
    parts, rest = list[Operand](), numbers
    for _ in range(8 // bits - 1):
        upper = b.floor(rest / 2**bits)
        parts.append(rest - upper * 2**bits)
        rest = upper
    in_byte = [b.reshape(part, [*packed.shape, 1]) for part in (*parts, rest)]
    joined = b.concat(in_byte, packed.rank)
    return b.reshape(joined, [*packed.shape[:-1], 8 // bits * packed.shape[-1]])


def _plain(b: Operations, p: Packed, width: int) -> Packed:
    """The same weight with numbers of 4 or 8 bits in one operand, and floats as scales; constants stay constants."""
    scale, minimum = _in_units(b, p.scale, p.scale_unit), p.minimum
    if minimum is not None:
        minimum = _in_units(b, minimum, p.minimum_unit)
    if p.upper is None and p.bits != 2:
        return Packed(p.weight, scale, p.zero_point, minimum, None, None, None, p.bits, 0, p.block_size)
    parts = [(p.weight, p.bits, 0)]
    if p.upper is not None:
        parts.append((p.upper, p.upper_bits, p.bits))
    is_constant = all(part.is_constant for part, _, _ in parts) and (p.zero_point is None or p.zero_point.is_constant)
    bits = 4 if is_constant and p.bits + p.upper_bits <= 4 and p.block_size % 2 == 0 else 8
    # The default zero point stays the middle of the numbers.
    more = 0 if minimum is not None else 2 ** (bits - 1) - 2 ** (p.bits + p.upper_bits - 1)
    rows, blocks = p.weight.shape[0], -(-width // p.block_size)

    def convert(parts: Sequence[tuple[Operand, int, int]], count: int, ends: int, shape: Sequence[int]) -> Operand:
        """Numbers of the new width, from the first `count` numbers of rows, padded by `ends` and in a new shape."""
        if all(part.is_constant for part, _, _ in parts):
            count, ends = values_in_scope((count, ends))
            codes = np.full((parts[0][0].value.shape[0], count), more, np.uint8)
            for part, width, place in parts:
                codes += unpack_codes(part.value.reshape(len(part.value), -1), count, width) << place
            codes = np.pad(codes, [(0, 0), (0, ends)])
            whole = codes.reshape(*shape[:-1], -1) if len(shape) > 2 else codes
            return constant(b, np.ascontiguousarray(pack_codes(whole, bits)), "uint8")
        total: Operand | float = float(more)
        for part, width, place in parts:
            flat = b.reshape(part, [part.shape[0], *_join_axes(part.shape[1:])])
            total = _first(b, _unpack(b, flat, width), count) * 2**place + total
        assert not isinstance(total, float)
        return b.reshape(b.cast(b.pad(total, [0, 0], [0, ends]) if ends else total, "uint8"), shape)

    of_block = p.block_size * bits // 8
    count = blocks * p.block_size if p.block_size * p.bits % 8 == 0 else width
    weight = convert(parts, count, blocks * p.block_size - count, [rows, blocks, of_block])
    zero_point = p.zero_point
    if zero_point is not None:
        zero_point = convert([(zero_point, p.bits, 0)], blocks, 0, [p.scale.shape[0], -(-blocks * bits // 8)])
    return Packed(weight, scale, zero_point, minimum, None, None, None, bits, 0, p.block_size)


def _join_axes(shape: Sequence[int]) -> list[int]:
    """A shape with all axes joined."""
    total = shape[0]
    for size in shape[1:]:
        total = total * size
    return [total]


def _in_units(b: Operations, values: Operand, unit: Operand | None) -> Operand:
    """Scales or minima of blocks, multiplied with the unit of adjacent blocks, in the data type of the unit."""
    if unit is None:
        return values
    (rows, blocks), units = values.shape, unit.shape[1]
    if values.is_constant and unit.is_constant:
        repeated = np.repeat(unit.value.astype(np.float32), blocks // units, axis=1)
        product = values.value.astype(np.float32) * repeated
        return constant(b, product.astype(unit.value.dtype), unit.data_type)
    factors = widen(b, b.reshape(unit, [rows, units, 1]))
    product = b.reshape(b.cast(values, factors.data_type), [rows, units, blocks // units]) * factors
    return narrow(b, b.reshape(product, [rows, blocks]), unit)


def _first(b: Operations, x: Operand, count: int) -> Operand:
    """Return the first `count` elements along the last axis."""
    if is_same_size(x.shape[-1], count):
        return x
    return b.slice(x, [0] * x.rank, [*x.shape[:-1], count])


def _dequantise(
    b: Operations,
    weight: Operand,
    scale: Operand,
    zero_point: Operand | None,
    width: int,
    bits: int,
    block_size: int,
) -> Operand:
    """Compute rows of `width` numbers from packed ones, in the data type of `scale`, widened.

    The last axes of `weight` are those of packed rows, and the last one of `scale` and `zero_point` is that of blocks. The
    leading axes of the three broadcast.
    """
    outer, blocks = weight.shape[:-2], scale.shape[-1]
    numbers = _unpack(b, weight, bits)
    numbers = b.reshape(numbers, [*outer, numbers.shape[-2] * numbers.shape[-1]])
    if block_size * bits % 8:
        numbers = _first(b, numbers, width)
        if not is_same_size(width, blocks * block_size):
            ends = [*[0] * len(outer), blocks * block_size - width]
            numbers = b.pad(numbers, [0] * numbers.rank, ends)
    numbers = b.reshape(numbers, [*outer, blocks, block_size])
    if zero_point is None:
        zeros = constant(b, 2 ** (bits - 1), "float32")
    else:
        zeros = _first(b, _unpack(b, zero_point, bits), blocks)
        zeros = b.reshape(zeros, [*zeros.shape, 1])
    factors = widen(b, b.reshape(scale, [*scale.shape, 1]))
    whole = numbers - zeros
    real = (whole if factors.data_type == whole.data_type else b.cast(whole, factors.data_type)) * factors
    return _first(b, b.reshape(real, [*outer, blocks * block_size]), width)


def _repeat_rows(b: Operations, operand: Operand, rows: int) -> Operand:
    """Repeat each row of a matrix, so that there are `rows` of them."""
    groups, length = operand.shape
    if is_same_size(groups, rows):
        return operand
    if operand.is_constant and is_static([rows]):
        return constant(b, np.repeat(operand.value, rows // groups, axis=0), operand.data_type)
    repeated = b.expand(b.reshape(operand, [groups, 1, length]), [groups, rows // groups, length])
    return b.reshape(repeated, [rows, length])


def _widen(b: Operations, operand: Operand) -> Operand:
    """Convert 16-bit floats to float32; a constant stays a constant."""
    if operand.is_constant and INFO[operand.data_type].bits == 16:
        return constant(b, operand.value.astype(np.float32), "float32")
    return widen(b, operand)


def _plus_multiple(b: Operations, minimum: Operand, scale: Operand, factor: int) -> Operand:
    """Compute `(minimum + factor * scale).T` as float32; a constant if both operands are constants."""
    if minimum.is_constant and scale.is_constant:
        matrix = (minimum.value.astype(np.float32) + factor * scale.value.astype(np.float32)).T
        return constant(b, np.ascontiguousarray(matrix), "float32")
    return b.transpose(widen(b, minimum) + widen(b, scale) * factor, permutation=[1, 0])


def _block_sums(b: Operations, x: Operand, block_size: int) -> Operand:
    *rows, inner = x.shape
    blocks = -(-inner // block_size)
    if inner % block_size:
        x = b.pad(x, [0] * x.rank, [*[0] * len(rows), blocks * block_size - inner])
    return b.reduce_sum(b.reshape(x, [*rows, blocks, block_size]), axes=[x.rank])


@matmul_n_bits.decompose
def _(
    b: Operations,
    input: Operand,
    weight: Operand,
    scale: Operand,
    zero_point: Operand | None,
    bias: Operand | None,
    minimum: Operand | None,
    upper: Operand | None,
    scale_unit: Operand | None,
    minimum_unit: Operand | None,
    bits: int,
    block_size: int,
    accuracy: Literal["float32", "int8"],
    upper_bits: int,
) -> Operand:
    packed = Packed(weight, scale, zero_point, minimum, upper, scale_unit, minimum_unit, bits, upper_bits, block_size)
    if not packed.is_plain:
        p = _plain(b, packed, input.shape[-1])
        operands = (input, p.weight, p.scale, p.zero_point, bias, p.minimum)
        plain: Operand = matmul_n_bits(b, *operands, bits=p.bits, block_size=block_size, accuracy=accuracy)
        return plain
    columns = weight.shape[0]
    scale = _repeat_rows(b, scale, columns)
    if minimum is not None:
        minimum = _repeat_rows(b, minimum, columns)
        # In float32, since the two parts may be much larger than their sum.
        x, factors, added = widen(b, input), _widen(b, scale), None if bias is None else _widen(b, bias)
        product = matmul_n_bits(b, x, weight, factors, None, added, bits=bits, block_size=block_size, accuracy=accuracy)
        # The product subtracts the default zero point from the numbers. A kernel that rounds the input makes an error
        # proportional to the numbers: with zero points of 0, the error would be twice as large.
        offset = _plus_multiple(b, minimum, scale, 2 ** (bits - 1))
        sums = _block_sums(b, widen(b, input), block_size)
        return narrow(b, product + b.matmul(sums, offset), input)
    zeros = None if zero_point is None else _repeat_rows(b, zero_point, columns)
    matrix = _dequantise(b, weight, scale, zeros, input.shape[-1], bits, block_size)
    y = b.matmul(widen(b, input), b.transpose(matrix, permutation=[1, 0]))
    return narrow(b, y if bias is None else y + widen(b, bias), input)


@gather_n_bits.decompose
def _(
    b: Operations,
    weight: Operand,
    scale: Operand,
    indices: Operand,
    zero_point: Operand | None,
    minimum: Operand | None,
    upper: Operand | None,
    scale_unit: Operand | None,
    minimum_unit: Operand | None,
    width: int,
    bits: int,
    block_size: int,
    upper_bits: int,
) -> Operand:
    packed = Packed(weight, scale, zero_point, minimum, upper, scale_unit, minimum_unit, bits, upper_bits, block_size)
    if not packed.is_plain:
        p = _plain(b, packed, width)
        options = {"width": width, "bits": p.bits, "block_size": block_size}
        plain: Operand = gather_n_bits(b, p.weight, p.scale, indices, p.zero_point, p.minimum, **options)
        return plain
    rows = weight.shape[0]

    def pick(operand: Operand) -> Operand:
        if is_same_size(operand.shape[0], 1):
            return b.reshape(operand, operand.shape[1:])
        return b.gather(_repeat_rows(b, operand, rows), indices)

    if minimum is not None:
        # In float32, since the two parts may be much larger than their sum.
        wide = _widen(b, scale)
        picked = gather_n_bits(b, weight, wide, indices, width=width, bits=bits, block_size=block_size)
        offsets = pick(b.transpose(_plus_multiple(b, minimum, scale, 2 ** (bits - 1)), permutation=[1, 0]))
        blocks = scale.shape[1]
        whole = [*offsets.shape[:-1], blocks, block_size]
        repeated = b.expand(b.reshape(offsets, [*offsets.shape, 1]), whole)
        repeated = _first(b, b.reshape(repeated, [*whole[:-2], blocks * block_size]), width)
        return narrow(b, picked + repeated, scale)
    zeros = None if zero_point is None else pick(zero_point)
    return narrow(b, _dequantise(b, b.gather(weight, indices), pick(scale), zeros, width, bits, block_size), scale)
