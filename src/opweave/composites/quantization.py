"""Products by block-quantized weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..core.dtypes import FLOATS
from ..core.graph import Builder, Desc, Operand, check_shape
from ..core.operation import Limits, N
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
            first is in the lower half. `pack_bits` packs numbers like this.
        scale: multiplied with the numbers of each block [columns, blocks].
        zero_point: uint8, subtracted from the numbers of each block first, packed like them: [columns, blocks] for 8 bits,
            [columns, ceil(blocks / 2)] for 4. Default: 2 ** (bits - 1).
        bias: added to the product [columns].
        minimum: instead of a zero point, the value of the number 0 in each block: `weight * scale + minimum`
            [columns, blocks]. Formats that store a minimum for each block need it (GGUF's Q4_1, Q4_K).
        bits: 4 or 8.
        block_size: the count of numbers that share a scale: a power of two, 16 or more.
        accuracy: "float32"; or the faster "int8", which allows the engine to quantise blocks of `input` to 8 bits, too.

    Returns: `input @ ((weight - zero_point) * scale).T + bias`, in the data type of `input` [..., rows, columns].
    Raises: shapes, bits or a block size that do not fit; a zero point and a minimum.

    ONNX Runtime's MatMulNBits.

    >>> weight = pack_bits(np.tile(np.uint8([8, 9]), 8)[None, None], bits=4)  # eight times 0, 1
    >>> matmul_n_bits(np.ones((1, 16), "float32"), weight, np.float32([[0.5]]), block_size=16).tolist()
    [[4.0]]
    """
    require(bits in (4, 8), f"bits must be 4 or 8, got {bits}")
    is_power = block_size >= 16 and not block_size & (block_size - 1)
    require(is_power, f"block_size must be a power of two, 16 or more, got {block_size}")
    columns, inner = weight.shape[0], input.shape[-1]
    blocks = -(-inner // block_size)
    packed = [columns, blocks, block_size * bits // 8]
    check_shape(packed, f"blocks of {block_size} numbers of {bits} bits for the last axis of input", weight=weight)
    check_shape([columns, blocks], "one for each block", scale=scale)
    check_shape([columns, -(-blocks * bits // 8)], f"{bits} bits for each block", zero_point=zero_point)
    check_shape([columns], "the number of columns", bias=bias)
    check_shape([columns, blocks], "one for each block", minimum=minimum)
    require(zero_point is None or minimum is None, "zero_point and minimum must not be given together")
    return Desc(input.data_type, (*input.shape[:-1], columns))


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
    if minimum is not None:
        product = matmul_n_bits(
            b, input, weight, scale, None, bias, bits=bits, block_size=block_size, accuracy=accuracy
        )
        # The product subtracts the default zero point from the numbers. A kernel that rounds the input makes an error
        # proportional to the numbers: with zero points of 0, the error would be twice as large.
        offset = _plus_multiple(b, minimum, scale, 2 ** (bits - 1))
        sums = _block_sums(b, widen(b, input), block_size)
        return narrow(b, widen(b, product) + b.matmul(sums, offset), input)
    (columns, blocks), inner = scale.shape, input.shape[-1]
    numbers = _unpack(b, weight, bits)
    if zero_point is None:
        zeros = constant(b, 2 ** (bits - 1), "float32")
    else:
        zeros = b.slice(_unpack(b, zero_point, bits), [0, 0], [columns, blocks])
        zeros = b.reshape(zeros, [columns, blocks, 1])
    factors = widen(b, b.reshape(scale, [columns, blocks, 1]))
    whole = numbers - zeros
    real = (whole if factors.data_type == whole.data_type else b.cast(whole, factors.data_type)) * factors
    matrix = b.slice(b.reshape(real, [columns, blocks * block_size]), [0, 0], [columns, inner])
    y = b.matmul(widen(b, input), b.transpose(matrix, permutation=[1, 0]))
    return narrow(b, y if bias is None else y + widen(b, bias), input)
