"""Products by quantised weights, and rows of quantised tables, whose numbers of 4 or 8 bits are packed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..core.dtypes import FLOATS, INDICES
from ..core.graph import Builder, Desc, Operand, check_shape
from ..core.operation import Limits, N
from ..core.shapes import blockwise_broadcasts_to
from ..core.sizes import is_same_size, is_static
from ..ops.constants import constant
from ..ops.reduction import narrow, widen
from ..support.errors import require
from .declare import declare

if TYPE_CHECKING:
    from ..ops import Operations


@declare(
    input=Limits(FLOATS, ranks=(2, N)),
    weight=Limits(("uint8",), ranks=(3, 3)),
    scale=Limits("input", ranks=(2, 2)),
    zero_point=Limits(("uint8",), ranks=(2, 2)),
    bias=Limits("input", ranks=(1, 1)),
    minimum=Limits("input", ranks=(2, 2)),
)
def matmul_n_bits(
    self: Builder,
    input: Operand,
    weight: Operand,
    scale: Operand,
    zero_point: Operand | None = None,
    bias: Operand | None = None,
    minimum: Operand | None = None,
    *,
    bits: int = 4,
    block_size: int = 32,
    accuracy: Literal["float32", "int8"] = "float32",
    label: str = "",
) -> Desc:
    """Multiply by a block-quantized weight of 4 or 8 bits per number.

    Args:
        input: float32 or float16 [..., rows, inner].
        weight: uint8 [columns, blocks, block_size * bits / 8], where the blocks cover `inner`; of two numbers in a byte the
            first is in the lower half. `pack_bits` packs numbers like this. If a block is no whole number of bytes, the
            numbers of a column follow one another: [columns, 1, ceil(inner * bits / 8)].
        scale: multiplied with the numbers of each block [columns, blocks]. With fewer rows, which divide `columns`, adjacent
            columns share a scale.
        zero_point: uint8, subtracted from the numbers of each block first, in the rows of `scale`, and packed:
            [columns, blocks] for 8 bits, [columns, ceil(blocks / 2)] for 4. Default: 2 ** (bits - 1).
        bias: added to the product [columns].
        minimum: instead of a zero point, the value of the number 0 in each block: `weight * scale + minimum`, in the shape of
            `scale`. Formats that store a minimum for each block need it (GGUF's Q4_1, Q4_K).
        bits: 4 or 8.
        block_size: the count of numbers of a column that share a scale.
        accuracy: "float32"; or the faster "int8", which allows the engine to quantise blocks of `input` to 8 bits, too.

    Returns: `input @ ((weight - zero_point) * scale).T + bias`, in the data type of `input` [..., rows, columns].
    Raises: shapes, bits or a block size that do not fit; a zero point and a minimum.

    ONNX Runtime's MatMulNBits.

    >>> weight = pack_bits(np.tile(np.uint8([8, 9]), 8)[None, None], bits=4)  # eight times 0, 1
    >>> matmul_n_bits(np.ones((1, 16), "float32"), weight, np.float32([[0.5]]), block_size=16).tolist()
    [[4.0]]
    """
    columns, inner = weight.shape[0], input.shape[-1]
    _check_packed(weight, inner, "the last axis of input", scale, zero_point, minimum, bits, block_size)
    check_shape([columns], "the number of columns", bias=bias)
    require(zero_point is None or minimum is None, "zero_point and minimum must not be given together")
    return Desc(input.data_type, (*input.shape[:-1], columns))


def _check_packed(
    weight: Operand,
    width: int,
    subject: str,
    scale: Operand,
    zero_point: Operand | None,
    minimum: Operand | None,
    bits: int,
    block_size: int,
) -> None:
    """Check packed rows of `width` numbers, and the scales of their blocks."""
    require(bits in (4, 8), f"bits must be 4 or 8, got {bits}")
    require(block_size > 0, f"block_size must be greater than 0, got {block_size}")
    rows, blocks = weight.shape[0], -(-width // block_size)
    if block_size * bits % 8:
        check_shape([rows, 1, -(-width * bits // 8)], f"numbers of {bits} bits for {subject}", weight=weight)
    else:
        packed = [rows, blocks, block_size * bits // 8]
        check_shape(packed, f"blocks of {block_size} numbers of {bits} bits for {subject}", weight=weight)
    groups = scale.shape[0]
    if not blockwise_broadcasts_to([groups], [rows]):
        groups = rows
    check_shape([groups, blocks], "one for each block", scale=scale)
    check_shape([groups, -(-blocks * bits // 8)], f"{bits} bits for each block", zero_point=zero_point)
    check_shape([groups, blocks], "one for each block", minimum=minimum)


@declare(
    weight=Limits(("uint8",), ranks=(3, 3)),
    scale=Limits(FLOATS, ranks=(2, 2)),
    indices=Limits(INDICES),
    zero_point=Limits(("uint8",), ranks=(2, 2)),
    output=Limits("scale"),
)
def gather_n_bits(
    self: Builder,
    weight: Operand,
    scale: Operand,
    indices: Operand,
    zero_point: Operand | None = None,
    *,
    width: int,
    bits: int = 4,
    block_size: int = 32,
    label: str = "",
) -> Desc:
    """Pick rows of a block-quantized table of 4 or 8 bits per number, one for each index.

    Args:
        weight: uint8, the packed rows of the table, in the form of `matmul_n_bits`: [rows, blocks, block_size * bits / 8].
        scale: float32 or float16, multiplied with the numbers of each block [rows, blocks]. With fewer rows, which divide
            those of the table, adjacent rows share a scale.
        indices: int32, uint32 or int64, any rank; negative ones count from the end, others out of range are clamped.
        zero_point: uint8, subtracted from the numbers of each block first, in the rows of `scale`, and packed:
            [rows, blocks] for 8 bits, [rows, ceil(blocks / 2)] for 4. Default: 2 ** (bits - 1).
        width: the count of numbers of a row.
        bits: 4 or 8.
        block_size: the count of numbers of a row that share a scale.

    Returns: `((weight - zero_point) * scale)[indices]`, in the data type of `scale` [..., width], with the axes of `indices`
        first.
    Raises: shapes, bits or a block size that do not fit.

    ONNX Runtime's GatherBlockQuantized.

    >>> table = pack_bits(np.uint8([[[8, 9, 10, 11]], [[12, 13, 14, 15]]]), bits=4)
    >>> gather_n_bits(table, np.float32([[1], [0.5]]), np.int32([1, 0]), width=4, block_size=4).tolist()
    [[2.0, 2.5, 3.0, 3.5], [0.0, 1.0, 2.0, 3.0]]
    """
    _check_packed(weight, width, "width", scale, zero_point, None, bits, block_size)
    require(width > 0, f"width must be greater than 0, got {width}")
    is_filled = 0 not in weight.shape[:1] or 0 in indices.shape
    require(is_filled, f"indices must be empty where a table has no rows, got {indices.desc} for {weight.desc}")
    return Desc(scale.data_type, (*indices.shape, width))


def pack_bits(numbers: np.ndarray, *, bits: int = 4) -> np.ndarray:
    """Pack numbers of `bits` bits into bytes along the last axis; of two in a byte the first is in the lower half.

    Args:
        numbers: integers from 0 to 2 ** bits - 1.
        bits: 4 or 8.

    Returns:
        A uint8 array; for 4 bits with half as many elements along the last axis, rounded up.

    Raises:
        ValidationError: other bits, or numbers out of range.

    >>> pack_bits(np.array([[1, 2, 15]])).tolist()
    [[33, 15]]
    """
    require(bits in (4, 8), f"pack_bits: bits must be 4 or 8, got {bits}")
    array = np.asarray(numbers)
    fits = (
        array.dtype.kind in "iu" and array.ndim > 0 and (not array.size or (array.min() >= 0 and array.max() < 2**bits))
    )
    require(
        bool(fits),
        f"pack_bits: numbers must be integers in [0, {2**bits}) along an axis, got {array.dtype} {array.shape}",
    )
    if bits == 8:
        return array.astype(np.uint8)
    even = np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, array.shape[-1] % 2)]).astype(np.uint8)
    packed: np.ndarray = even[..., ::2] | even[..., 1::2] << 4
    return packed


def pack_blocks(
    numbers: np.ndarray, scale: np.ndarray, minimum: np.ndarray | None = None, *, bits: int = 4
) -> tuple[dict[str, Any], int]:
    """Make the arguments of `matmul_n_bits` for a weight in blocks with minima: one product instead of two.

    Each minimum becomes `remainder - zero_point * scale`. The remainders become additional weights, which multiply the means
    of the input's blocks; the caller appends these means to the input. Each remainder is the sum of two weights, one with a
    large and one with a small scale, so the means must be appended several times.

    Args:
        numbers: integers from 0 to 2 ** bits - 1 [columns, blocks, block_size].
        scale: of each block [columns, blocks].
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
    folded = None if minimum is None else _fold_minima(numbers, scale, minimum, 2 ** (bits - 1))
    sizes = {"bits": bits, "block_size": numbers.shape[2]}
    if folded is None:
        return {"weight": pack_bits(numbers, bits=bits), "scale": scale, "minimum": minimum, **sizes}, 0
    numbers, scale, zeros, copies = folded
    packed, zeros = (pack_bits(array, bits=bits) for array in (numbers, zeros))
    return {"weight": packed, "scale": scale, "zero_point": zeros, **sizes}, copies


def _fold_minima(
    numbers: np.ndarray, scale: np.ndarray, minimum: np.ndarray, half: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int] | None:
    """Return numbers, scales and zero points, including the remainders of the minima, and the number of copies of the means.

    Return None if a remainder is larger than half a scale.
    """
    columns, blocks, size = numbers.shape
    # A scale may be 0.
    with np.errstate(divide="ignore", invalid="ignore"):
        zeros = np.clip(np.nan_to_num(np.rint(-minimum / scale)), 0, 2 * half - 1)
    rests = minimum + zeros * scale
    if (np.abs(rests) > 0.51 * np.abs(scale)).any():
        return None
    large = np.maximum(np.abs(rests).max(axis=1, keepdims=True) / (half - 1), np.finfo(np.float32).tiny)
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
        np.concatenate([numbers, more.reshape(columns, -1, size)], axis=1),
        np.concatenate(scales, axis=1).astype(scale.dtype),
        np.concatenate([zeros, np.full((columns, of_large + of_small), half)], axis=1).astype(np.uint8),
        copies,
    )


def _unpack(b: Operations, packed: Operand, bits: int) -> Operand:
    numbers = b.cast(packed, "float32")
    if bits == 8:
        return numbers
    high = b.floor(numbers / 16)
    pair = (b.reshape(half, [*packed.shape, 1]) for half in (numbers - high * 16, high))
    return b.reshape(b.concat(list(pair), packed.rank), [*packed.shape[:-1], 2 * packed.shape[-1]])


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
    bits: int,
    block_size: int,
    accuracy: Literal["float32", "int8"],
) -> Operand:
    columns = weight.shape[0]
    scale = _repeat_rows(b, scale, columns)
    if minimum is not None:
        minimum = _repeat_rows(b, minimum, columns)
        product = matmul_n_bits(
            b, input, weight, scale, None, bias, bits=bits, block_size=block_size, accuracy=accuracy
        )
        # The product subtracts the default zero point from the numbers. A kernel that rounds the input makes an error
        # proportional to the numbers: with zero points of 0, the error would be twice as large.
        offset = _plus_multiple(b, minimum, scale, 2 ** (bits - 1))
        sums = _block_sums(b, widen(b, input), block_size)
        return narrow(b, widen(b, product) + b.matmul(sums, offset), input)
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
    width: int,
    bits: int,
    block_size: int,
) -> Operand:
    rows = weight.shape[0]

    def pick(operand: Operand) -> Operand:
        if is_same_size(operand.shape[0], 1):
            return b.reshape(operand, operand.shape[1:])
        return b.gather(_repeat_rows(b, operand, rows), indices)

    zeros = None if zero_point is None else pick(zero_point)
    return narrow(b, _dequantise(b, b.gather(weight, indices), pick(scale), zeros, width, bits, block_size), scale)
