"""ONNX's quantisation; `quantized` has operators on quantised tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ....composites.packing import pad_last_block, unpack_any, unpack_rows
from ....composites.quantization import gather_n_bits, matmul_n_bits
from ....context.builder import MLGraphBuilder
from ....core.dtypes import INFO, is_float, numpy_type
from ....core.graph import MLOperand
from ...model.registry import (
    DATA_TYPES,
    MICROSOFT,
    Tensor,
    Unsupported,
    constant_of,
    constant_or_same,
    converts,
    data_type_of,
    normalize_axis,
    operand,
    shape_of,
    unsupported_if,
)
from .windows import reshape


def align(b: MLGraphBuilder, part: Tensor, whole: Sequence[int], axis: int) -> Tensor:
    """Reshape a scale or zero point to the rank of its tensor, of shape `whole`.

    `part` has one value, one for each index of `axis`, or one for each block.
    """
    shape, rank = shape_of(part), len(whole)
    if len(shape) == rank and rank != 1:
        return part
    if not shape or shape == (1,):
        return reshape(b, part, [1] * rank)
    unsupported_if(len(shape) != 1, f"its scale has the shape {list(shape)}")
    return reshape(b, part, [shape[0] if a == normalize_axis(axis, rank) else 1 for a in range(rank)])


@dataclass(frozen=True)
class QuantizedBlocks:
    """Granularity of scales and zero points: per tensor, per index of `axis`, or per block; without blocks, size 0."""

    axis: int = 1
    block_size: int = 0

    def quantize(
        self, b: MLGraphBuilder, x: MLOperand, scale: Tensor, zero_point: Tensor | None, data_type: str = "uint8"
    ) -> MLOperand:
        """Quantise `x`; the result has `data_type` if there is no zero point."""
        return b.quantize_linear(x, *self.align(b, x.shape, scale, zero_point, data_type))

    def dequantize(self, b: MLGraphBuilder, x: Tensor, scale: Tensor, zero_point: Tensor | None) -> MLOperand:
        """Dequantise the integers `x`."""
        y, block = operand(b, x), self.block_size
        axis = normalize_axis(self.axis, y.rank) if block > 0 else 0
        if block > 0 and y.is_constant and len(shape_of(scale)) == y.rank:
            size, count = y.shape[axis], shape_of(scale)[axis]
            if count > 1 and size % block and -(-size // block) == count:
                # The last block is smaller: it is padded, and the padding cut off.
                padded = pad_last_block(y.value, axis, count * block)
                return b.slice(self.dequantize(b, padded, scale, zero_point), [0] * y.rank, y.shape)
        return b.dequantize_linear(y, *self.align(b, y.shape, scale, zero_point, y.data_type))

    def align(
        self, b: MLGraphBuilder, whole: Sequence[int], scale: Tensor, zero_point: Tensor | None, data_type: str
    ) -> tuple[MLOperand, MLOperand]:
        """Scale and zero point as WebNN takes them, for a tensor of shape `whole`."""
        s, block = align(b, scale, whole, self.axis), self.block_size
        for part, size in zip(shape_of(s), whole, strict=True):
            if part not in (1, size) and (not block or part * block != size):
                raise Unsupported(f"blocks of {block} do not divide an axis of {size} into {part}")
        z = (
            np.zeros(shape_of(s), numpy_type(data_type))
            if zero_point is None
            else align(b, zero_point, whole, self.axis)
        )
        return operand(b, s), operand(b, z)


WHOLE = QuantizedBlocks()


@converts("QuantizeLinear")
@converts("QuantizeLinear", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    x: MLOperand,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    blocks: QuantizedBlocks = WHOLE,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,  # for 8-bit floats
) -> MLOperand:
    result_type = DATA_TYPES.get(output_dtype, "uint8") if y_zero_point is None else data_type_of(y_zero_point)
    computed_type = DATA_TYPES.get(precision) if precision else "float32"
    unsupported_if(computed_type is None or not is_float(computed_type), "it divides in a type that is no float")
    x = b.cast(x, "float32") if INFO[x.data_type].kind != "f" else x
    if INFO[result_type].kind == "f" and not saturate:
        scale, zero = blocks.align(b, x.shape, y_scale, y_zero_point, result_type)
        unsupported_if(blocks.block_size, "its blocks are divided without saturation")
        steps = b.div(b.cast(x, "float32"), b.cast(scale, "float32"))
        return b.cast(b.add(steps, b.cast(zero, "float32")), result_type)
    return blocks.quantize(b, x, y_scale, y_zero_point, result_type)


@converts("DequantizeLinear")
@converts("DequantizeLinear", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None = None,
    *,
    blocks: QuantizedBlocks = WHOLE,
    output_dtype: int = 0,
) -> MLOperand:
    y = blocks.dequantize(b, x, x_scale, x_zero_point)
    result_type = DATA_TYPES.get(output_dtype) if output_dtype else y.data_type
    unsupported_if(result_type is None or not is_float(result_type), "its result is no float")
    return y if result_type == y.data_type else b.cast(y, result_type)


def _minimum(b: MLGraphBuilder, zero_point: Tensor, scale: Tensor) -> Tensor:
    """The real value of a stored 0, -zero_point * scale; a constant if both factors are."""
    zero_point, scale = constant_or_same(zero_point), constant_or_same(scale)
    if isinstance(zero_point, np.ndarray) and isinstance(scale, np.ndarray):
        product: np.ndarray = -zero_point * scale
        return product
    return b.neg(b.mul(operand(b, zero_point), operand(b, scale)))


@converts("MatMulNBits", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    A: MLOperand,
    B: Tensor,
    scales: Tensor,
    zero_points: Tensor | None = None,
    g_idx: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    K: int,
    N: int,
    accuracy_level: int = 0,  # the least precision of the product; 4 allows int8
    bits: int = 4,
    block_size: int,
    weight_prepacked: int = 0,
) -> MLOperand:
    unsupported_if(weight_prepacked, "its weights are in another order")
    blocks = -(-K // block_size)
    scale = reshape(b, scales, [N, blocks])
    zeros, minimum = None, None
    if zero_points is not None and data_type_of(zero_points) == "uint8":
        zeros = reshape(b, zero_points, [N, -(-blocks * bits // 8)])
    elif zero_points is not None:
        minimum = _minimum(b, reshape(b, zero_points, [N, blocks]), scale)
    weight, x = reshape(b, B, [N, blocks, block_size * bits // 8]), A
    if g_idx is not None or bits not in (4, 8):
        numbers = unpack_rows(
            constant_of(weight, "B").reshape(N, -1),
            constant_of(scale, "scales"),
            None if zeros is None else constant_of(zeros, "zero_points"),
            bits,
            block_size,
        )
        if g_idx is not None:
            order = _in_blocks(constant_of(g_idx, "g_idx").reshape(-1), K, blocks, block_size)
            x = b.gather(A, b.constant(order), axis=A.rank - 1)
            sorted_numbers = np.take(numbers.numbers, order, axis=1)
            numbers = replace(numbers, numbers=np.pad(sorted_numbers, [(0, 0), (0, blocks * block_size - K)]))
        weight, zeros = numbers.pack(), numbers.zero_points()
        bits, block_size = numbers.bits, numbers.block_size
    return matmul_n_bits(
        b,
        x,
        operand(b, weight),
        operand(b, scale),
        *(None if value is None else operand(b, value) for value in (zeros, bias, minimum)),
        bits=bits,
        block_size=block_size,
        accuracy="int8" if accuracy_level == 4 else "float32",
    )


def _in_blocks(groups: np.ndarray, count: int, blocks: int, block_size: int) -> np.ndarray:
    """The order in which the numbers of a column are those of one block after another; `groups` has the block of each."""
    unsupported_if(groups.shape != (count,), f"g_idx has {groups.size} elements for {count} numbers")
    sizes = [min(block_size, count - block_size * k) for k in range(blocks)]
    unsupported_if(
        sorted(groups.tolist()) != np.repeat(np.arange(blocks), sizes).tolist(), "g_idx has blocks of several sizes"
    )
    return np.argsort(groups, kind="stable").astype(np.int32)


@converts("GatherBlockQuantized", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    data: Tensor,
    indices: Tensor,
    scales: Tensor,
    zero_points: Tensor | None = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> MLOperand:
    shape = shape_of(data)
    rank = len(shape)
    picked, blocked = normalize_axis(gather_axis, rank), normalize_axis(quantize_axis, rank)
    if data_type_of(data) != "uint8":
        table = QuantizedBlocks(blocked, block_size).dequantize(b, data, scales, zero_points)
        return b.gather(table, operand(b, indices), axis=picked)
    unsupported_if(bits not in (2, 4, 8), f"its numbers have {bits} bits")
    if bits == 2 or (rank, picked, blocked) != (2, 0, 1):
        kind, part = numpy_type("uint8" if bits == 8 else "uint4"), shape_of(scales)
        numbers = unpack_any(constant_of(data, "data"), shape[-1] * 8 // bits, bits).astype(kind)
        middle = np.full(part, 1 << (bits - 1), np.uint8)
        zeros = middle if zero_points is None else unpack_any(constant_of(zero_points, "zero_points"), part[-1], bits)
        table = QuantizedBlocks(blocked, block_size).dequantize(b, numbers, scales, zeros.astype(kind))
        return b.gather(table, operand(b, indices), axis=picked)
    width = shape[1] * 8 // bits
    unsupported_if(width % block_size, f"blocks of {block_size} do not divide rows of {width}")
    packed = reshape(b, data, [shape[0], width // block_size, block_size * bits // 8])
    operands = (operand(b, value) for value in (packed, scales, indices))
    point = None if zero_points is None else operand(b, zero_points)
    return gather_n_bits(b, *operands, point, width=width, bits=bits, block_size=block_size)
