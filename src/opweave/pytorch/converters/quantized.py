"""Quantised tensors, as `torchao` and PyTorch's exported quantisation (`quantized_decomposed`) have them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import composites
from ...context.builder import MLGraphBuilder
from ...core.dtypes import DataType
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
    scale = _vector(b, scales, "float32", input.rank, axis)
    if zero_points is None:
        zero_point = b.constant(np.zeros(scale.shape, input.data_type))
    else:
        zero_point = _vector(b, zero_points, input.data_type, input.rank, axis)
    return as_type(b, b.dequantize_linear(input, scale, zero_point), call.data_type)


@converts("aten._int_mm.default")
def _(b: MLGraphBuilder, self: MLOperand, mat2: MLOperand) -> MLOperand:
    result: MLOperand = composites.integer_matmul(b, self, mat2)
    return result
