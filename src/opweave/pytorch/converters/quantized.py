"""Quantised tensors, as `torchao` and PyTorch's exported quantisation (`quantized_decomposed`) have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import composites, memory
from ...context.builder import MLGraphBuilder
from ...core.dtypes import DataType, is_float, numpy_type
from ...core.graph import MLOperand
from ..registry import AtenCall, as_type, converts, refuse_if
from ..tensors import data_type_of

_RANGES = {"int8": (-128, 127), "uint8": (0, 255)}
"""The values of the types that `quantize_linear` writes."""


def _scalar(b: MLGraphBuilder, value: Any, data_type: DataType, rank: int) -> MLOperand:
    """One number as an operand of a rank."""
    if isinstance(value, MLOperand):
        return b.reshape(as_type(b, value, data_type), [1] * rank)
    return b.constant(np.full([1] * rank, value, data_type))


def _vector(b: MLGraphBuilder, value: MLOperand, data_type: DataType, rank: int, axis: int) -> MLOperand:
    """A number for each element of an axis."""
    shape = [1] * rank
    shape[axis] = value.shape[0]
    return b.reshape(as_type(b, value, data_type), shape)


def _quantize(
    b: MLGraphBuilder, x: MLOperand, scale: MLOperand, zero_point: MLOperand, low: int, high: int, data_type: DataType
) -> MLOperand:
    """Quantise as PyTorch does, with the reciprocal of the scale.

    `quantize_linear` divides, and engines merge it with the operations before it, whose bias they round to integers: other
    elements are then rounded up, and their differences grow with each layer.
    """
    y = b.round_even(b.mul(as_type(b, x, "float32"), b.reciprocal(scale)))
    y = b.clamp(b.add(y, as_type(b, zero_point, "float32")), min_value=low, max_value=high)
    return b.cast(y, data_type)


@converts(
    "quantized_decomposed.quantize_per_tensor.default", "quantized_decomposed.quantize_per_tensor.tensor",
    "quantized_decomposed.quantize_per_tensor.tensor2",
)  # fmt: skip
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    scale: Any,
    zero_point: Any,
    quant_min: Any,
    quant_max: Any,
    dtype: Any,
) -> MLOperand:
    refuse_if(isinstance(quant_min, MLOperand), "its range is computed")
    data_type = data_type_of(dtype, "the quantised tensor")
    refuse_if(data_type not in ("int8", "uint8"), f"its result is {data_type}")
    scale, zero_point = _scalar(b, scale, "float32", input.rank), _scalar(b, zero_point, data_type, input.rank)
    return _quantize(b, input, scale, zero_point, quant_min, quant_max, data_type)


@converts(
    "quantized_decomposed.dequantize_per_tensor.default", "quantized_decomposed.dequantize_per_tensor.tensor",
    "quantized_decomposed.dequantize_per_tensor.tensor2",
)  # fmt: skip
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    scale: Any,
    zero_point: Any,
    quant_min: Any,
    quant_max: Any,
    dtype: Any,
    *,
    out_dtype: Any = None,
    call: AtenCall,
) -> MLOperand:
    rank = input.rank
    if call.keeps_narrow:
        factor = scale if isinstance(scale, MLOperand) else _scalar(b, scale, "float32", rank)
        zero = zero_point if isinstance(zero_point, MLOperand) else _scalar(b, zero_point, input.data_type, rank)
        return weight(b, input, factor, zero, [1] * rank, (quant_min, quant_max), call.data_type)
    y = b.dequantize_linear(
        input, _scalar(b, scale, "float32", rank), _scalar(b, zero_point, input.data_type, rank)
    )  # fmt: skip
    return as_type(b, y, call.data_type)


@converts("quantized_decomposed.quantize_per_channel.default")
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    scales: MLOperand,
    zero_points: MLOperand,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: Any,
) -> MLOperand:
    data_type = data_type_of(dtype, "the quantised tensor")
    refuse_if(data_type not in ("int8", "uint8"), f"its result is {data_type}")
    scale = _vector(b, scales, "float32", input.rank, axis)
    zero_point = _vector(b, zero_points, data_type, input.rank, axis)
    return _quantize(b, input, scale, zero_point, quant_min, quant_max, data_type)


@converts("quantized_decomposed.dequantize_per_channel.default")
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    scales: MLOperand,
    zero_points: MLOperand | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: Any,
    *,
    out_dtype: Any = None,
    call: AtenCall,
) -> MLOperand:
    if call.keeps_narrow:
        parts = [size if k == axis % input.rank else 1 for k, size in enumerate(input.shape)]
        return weight(b, input, scales, zero_points, parts, (quant_min, quant_max), call.data_type)
    scale = _vector(b, scales, "float32", input.rank, axis)
    if zero_points is None:
        zero_point = b.constant(np.zeros(scale.shape, input.data_type))
    else:
        zero_point = _vector(b, zero_points, input.data_type, input.rank, axis)
    return as_type(b, b.dequantize_linear(input, scale, zero_point), call.data_type)


# Weights of few bits in front of products ------------------------------------------------------------------------------


@converts("torchao.dequantize_affine.default")
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    block_size: Sequence[Any],
    scale: MLOperand,
    zero_point: MLOperand | None,
    input_dtype: Any,
    quant_min: Any = None,
    quant_max: Any = None,
    output_dtype: Any = None,
    *,
    call: AtenCall,
) -> MLOperand:
    refuse_if(not call.keeps_narrow, "it is no weight of a product")
    parts = [size // block for size, block in zip(input.shape, block_size, strict=True)]
    refuse_if(
        [part * block for part, block in zip(parts, block_size, strict=True)] != list(input.shape), "its blocks differ"
    )
    return weight(b, input, scale, zero_point, parts, (quant_min, quant_max), call.data_type)


@converts("quantized_decomposed.dequantize_per_channel_group.default")
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    scales: MLOperand,
    zero_points: MLOperand | None,
    quant_min: int,
    quant_max: int,
    dtype: Any,
    group_size: int,
    output_dtype: Any,
    *,
    call: AtenCall,
) -> MLOperand:
    refuse_if(not call.keeps_narrow, "it is no weight of a product")
    refuse_if(input.shape[1] % group_size != 0, "its last group is not whole")
    parts = [input.shape[0], input.shape[1] // group_size]
    return weight(b, input, scales, zero_points, parts, (quant_min, quant_max), call.data_type)


def weight(
    b: MLGraphBuilder,
    numbers: MLOperand,
    scale: MLOperand,
    zero_point: MLOperand | None,
    parts: Sequence[int],
    bounds: tuple[Any, Any],
    data_type: DataType,
) -> MLOperand:
    """A matrix of integers times the scale of each block, of which `parts` are along each axis.

    Numbers that PyTorch stores as int8 or uint8 become those of 4 bits if their bounds allow it.
    """
    plain, inverse = _without_transposition(numbers)
    parts = [parts[axis] for axis in inverse] if inverse else list(parts)
    refuse_if(not (plain.is_constant and scale.is_constant), "its numbers or scales are computed")
    refuse_if(zero_point is not None and not zero_point.is_constant, "its zero points are computed")
    refuse_if(zero_point is not None and is_float(zero_point.data_type), "its zero points are real numbers")
    values = plain.value
    zeros = np.zeros(parts, values.dtype) if zero_point is None else _in_parts(zero_point.value, parts, inverse)
    kind = _narrowest(values, zeros, bounds)
    if kind != plain.data_type:
        memory.copies.add(values.nbytes, "weights of 4 bits, which PyTorch keeps in 8")
        plain = b.constant(values.astype(numpy_type(kind)))
    real = "float16" if data_type == "float16" else "float32"
    factors = np.ascontiguousarray(_in_parts(scale.value, parts, inverse).astype(real))
    y = b.dequantize_linear(
        plain, b.constant(factors), b.constant(np.ascontiguousarray(zeros.astype(numpy_type(kind))))
    )
    y = b.transpose(y, permutation=inverse) if inverse else y
    return as_type(b, y, data_type)


def float_matrix(b: MLGraphBuilder, numbers: MLOperand, data_type: DataType) -> MLOperand:
    """A matrix of integers as one of floats, whose products read the integers."""
    scale = b.constant(np.ones((1, 1), "float32"))
    return weight(b, numbers, scale, None, [1, 1], (None, None), data_type)


def _without_transposition(x: MLOperand) -> tuple[MLOperand, list[int]]:
    """The constant that is transposed, and the permutation; an empty one if it is not."""
    if x.node is not None and x.node.op.name == "transpose":
        return x.node.operands[0], list(x.node.attributes["permutation"])
    return x, []


def _in_parts(values: Any, parts: Sequence[int], inverse: Sequence[int]) -> Any:
    """Numbers of blocks in their shape, before the transposition of the matrix."""
    if values.size == 1:
        return np.broadcast_to(values.reshape([1] * len(parts)), parts)
    return (
        values.reshape(parts) if not inverse else values.reshape([parts[axis] for axis in inverse]).transpose(inverse)
    )


def _narrowest(values: Any, zeros: Any, bounds: tuple[Any, Any]) -> DataType:
    """The narrowest data type for quantised numbers and zero points within bounds."""
    low, high = bounds
    name: DataType = "int8" if values.dtype == np.int8 else "uint8"
    for narrow, first, last in (("int4", -8, 7), ("uint4", 0, 15)):
        if narrow.startswith("u") == (name == "uint8") and low is not None and first <= low and high <= last:
            is_inside = all(array.min() >= first and array.max() <= last for array in (values, zeros))
            return narrow if is_inside else name  # type: ignore[return-value]
    return name


@converts("aten._int_mm.default")
def _(b: MLGraphBuilder, self: MLOperand, mat2: MLOperand) -> MLOperand:
    result: MLOperand = composites.integer_matmul(b, self, mat2)
    return result
