"""ONNX Runtime rules: compositions that the engine has kernels for."""

from __future__ import annotations

from math import prod

from ....graph import Operand
from ....ops import composite as ops
from .. import ort
from ..emit import Emitter, Value


def _is_single(input: Operand) -> bool:
    return input.data_type == "float32"


# The engine wants as many neighbours before as after the element.
@ort.lower(ops.local_response_normalization, when=lambda input, size: _is_single(input) and size % 2 == 1)
def _(ctx: Emitter, input: Value, size: int, alpha: float, beta: float, bias: float) -> Value:
    y: Value = ctx.emit("LRN", input, size=size, alpha=alpha, beta=beta, bias=bias, shape=input.dims)
    return y


@ort.lower(ops.rms_normalization)
def _(ctx: Emitter, input: Value, scale: Value, axis: int, epsilon: float) -> Value:
    # The engine's own operator of ONNX's domain, known to the engine's optimiser.
    y: Value = ctx.emit("SimplifiedLayerNormalization", input, scale, axis=axis, epsilon=epsilon, shape=input.dims)
    return y


# Along other axes the engine transposes before and after, which takes longer than the steps of the decomposition.
@ort.lower(ops.log_softmax, when=lambda input, axis: _is_single(input) and axis == input.rank - 1)
def _(ctx: Emitter, input: Value, axis: int) -> Value:
    y: Value = ctx.emit("LogSoftmax", input, axis=axis, shape=input.dims)
    return y


@ort.lower(ops.thresholded_relu, when=_is_single)
def _(ctx: Emitter, input: Value, alpha: float) -> Value:
    y: Value = ctx.emit("ThresholdedRelu", input, alpha=alpha, shape=input.dims)
    return y


def _per_column(a_zero_point: Operand, b_zero_point: Operand) -> bool:
    """Whether the zero points are such as the engine takes: one of `a`, and one of `b` or one for each of its columns."""
    one, columns = prod(a_zero_point.shape) == 1, prod(b_zero_point.shape)
    return one and (columns == 1 or (columns == b_zero_point.shape[-1]))


@ort.lower(ops.integer_matmul, when=_per_column)
def _(ctx: Emitter, a: Value, b: Value, a_zero_point: Value, b_zero_point: Value) -> Value:
    columns = prod(b_zero_point.dims)
    zeros = ctx.reshape(a_zero_point, ()), ctx.reshape(b_zero_point, () if columns == 1 else (columns,))
    product: Value = ctx.emit("MatMulInteger", a, b, *zeros, data_type="int32", shape=ctx.output.shape)
    return product
