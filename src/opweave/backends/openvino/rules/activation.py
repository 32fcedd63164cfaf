"""OpenVINO rules: activation functions.

softplus has no rule: the engine's kernel returns -2e-6 for -20.
"""

from __future__ import annotations

from math import isfinite

from ....core.dtypes import FLOATS
from ....ops import activation as ops
from ..backend import openvino
from ..emit import WIDE, Emitter, Value
from .elementwise import as_int32, emit_clamp
from .shared import follows_sum

HALF = {"float32": 1e38, "float16": 3e4}
"""Threshold above which gelu(x) = x; twice the threshold is finite."""

openvino.rename({ops.sigmoid: "sigmoid", ops.tanh: "tanh", ops.softsign: "softsign", ops.hard_swish: "hswish"})


@openvino.lower(ops.relu, when=lambda input: follows_sum(input) and input.data_type in FLOATS)
def _(ctx: Emitter, input: Value) -> Value:
    return ctx.emit("relu", input)


@openvino.lower(ops.relu, when=lambda input: input.data_type in FLOATS)
def _(ctx: Emitter, input: Value) -> Value:
    # Not a maximum: the preceding kernel may fuse it with the operands in the order in which x86's instruction loses NaN.
    zero = ctx.scalar(0, input)
    is_negative = ctx.emit("less", input, zero, data_type="bool")
    return ctx.emit("select", is_negative, zero, input, data_type=input.data_type)


@openvino.lower(ops.relu, when=lambda input: input.data_type not in WIDE)
def _(ctx: Emitter, input: Value) -> Value:
    x = as_int32(ctx, input)
    return ctx.cast(ctx.emit("maximum", x, ctx.scalar(0, x)), input.data_type)


# These kernels return NaN for 0 if the factor is infinite in the data type.


@openvino.lower(ops.elu, when=lambda alpha: isfinite(alpha))
def _(ctx: Emitter, input: Value, alpha: float) -> Value:
    return ctx.emit("elu", input, alpha)


@openvino.lower(ops.gelu)
def _(ctx: Emitter, input: Value) -> Value:
    # The engine doubles its operand, which overflows; for large x, the result is x.
    is_large = ctx.emit("less", ctx.scalar(HALF[input.data_type], input), input, data_type="bool")
    return ctx.emit("select", is_large, input, ctx.emit("gelu", input, "erf"), data_type=input.data_type)


@openvino.lower(ops.hard_sigmoid)
def _(ctx: Emitter, input: Value, alpha: float, beta: float) -> Value:
    return emit_clamp(ctx, _emit_linear(ctx, input, alpha, beta), 0, 1)


@openvino.lower(ops.leaky_relu, when=lambda alpha: isfinite(alpha))
def _(ctx: Emitter, input: Value, alpha: float) -> Value:
    if alpha == 0:  # the engine would replace it by `relu`, which loses NaN
        is_negative = ctx.emit("less", input, ctx.scalar(0, input), data_type="bool")
        zero = ctx.emit("multiply", input, ctx.factor(0))  # NaN for -inf
        return ctx.emit("select", is_negative, zero, input, data_type=input.data_type)
    return ctx.emit("prelu", input, ctx.number([alpha], input))


@openvino.lower(ops.linear)
def _(ctx: Emitter, input: Value, alpha: float, beta: float) -> Value:
    return _emit_linear(ctx, input, alpha, beta)


def _emit_linear(ctx: Emitter, input: Value, alpha: float, beta: float) -> Value:
    scaled = input if alpha == 1 else ctx.emit("multiply", input, ctx.number(alpha, input))
    return scaled if beta == 0 else ctx.emit("add", scaled, ctx.number(beta, input))
