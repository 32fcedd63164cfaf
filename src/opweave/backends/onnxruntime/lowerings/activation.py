"""ONNX Runtime rules of the activation functions."""

from __future__ import annotations

import math

import numpy as np

from ....dtypes import FLOATS, INFO
from ....graph import Operand
from ....ops import activation as ops
from ....shapes import broadcasts_to
from .. import ort
from ..emit import Emitter, Value

ort.rename({ops.gelu: "Gelu", ops.hard_swish: "HardSwish"})
ort.rename({ops.softplus: "Softplus", ops.softsign: "Softsign", ops.tanh: "Tanh"})


@ort.lower(ops.elu)
def _(ctx: Emitter, input: Value, alpha: float) -> Value:
    return ctx.emit("Elu", input, alpha=alpha)


@ort.lower(ops.hard_sigmoid)
def _(ctx: Emitter, input: Value, alpha: float, beta: float) -> Value:
    return ctx.emit("HardSigmoid", input, alpha=alpha, beta=beta)


@ort.lower(ops.leaky_relu)
def _(ctx: Emitter, input: Value, alpha: float) -> Value:
    return ctx.emit("LeakyRelu", input, alpha=alpha)


@ort.lower(ops.linear)
def _(ctx: Emitter, input: Value, alpha: float, beta: float) -> Value:
    scaled = input if alpha == 1 else ctx.emit("Mul", input, ctx.scalar(alpha, input))
    return scaled if beta == 0 else ctx.emit("Add", scaled, ctx.scalar(beta, input))


def _slope_fits(input: Operand, slope: Operand) -> bool:
    """Whether the kernel is right: where the input is positive, it ignores a slope of NaN or infinity, and 0 * inf is NaN."""
    if not broadcasts_to(slope.shape, input.shape):
        return False
    return input.data_type in FLOATS and slope.is_constant and bool(np.isfinite(slope.value).all())


@ort.lower(ops.prelu, when=_slope_fits)
def _(ctx: Emitter, input: Value, slope: Value) -> Value:
    return ctx.emit("PRelu", input, slope)


@ort.lower(ops.prelu)
def _(ctx: Emitter, input: Value, slope: Value) -> Value:
    zero = ctx.scalar(0, input)
    return ctx.emit("Add", ctx.emit("Max", input, zero), ctx.emit("Mul", slope, ctx.emit("Min", input, zero)))


@ort.lower(ops.relu, when=lambda input: input.data_type in FLOATS)
def _(ctx: Emitter, input: Value) -> Value:
    return ctx.emit("Relu", input)


@ort.lower(ops.relu, when=lambda input: input.data_type == "int64")
def _(ctx: Emitter, input: Value) -> Value:
    return ctx.emit("Max", input, ctx.scalar(0, input))


@ort.lower(ops.relu)
def _(ctx: Emitter, input: Value) -> Value:
    # Not Relu: the engine's optimiser fails when a Clip of integers follows it.
    # https://github.com/microsoft/onnxruntime/issues/23116
    return ctx.emit("Clip", input, ctx.scalar(0, input), ctx.scalar(INFO[ctx.output.data_type].highest, input))


@ort.lower(ops.sigmoid)
def _(ctx: Emitter, input: Value) -> Value:
    """With y = exp(x), 1 / (exp(-x) + 1) = y / (1 + |y|), a softsign.

    The engine's own Sigmoid is wrong by 2% at -14 and is 0 from -18 on. Above 80 the result is 1 anyway; the bound keeps y
    finite, in float32 in any case.
    """
    x = ctx.cast(input, "float32")
    bounded = ctx.emit("Clip", x, ctx.scalar(-math.inf, x), ctx.scalar(80, x))
    return ctx.cast(ctx.emit("Softsign", ctx.emit("Exp", bounded)), input.data_type)
