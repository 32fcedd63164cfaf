"""OpenVINO rules: activation functions.

There is none for softplus: the engine's kernel returns -2e-6 for -20.
"""

from __future__ import annotations

from math import isfinite

from ....core.dtypes import FLOATS
from ....ops import activation as ops
from ..backend import openvino
from ..emit import WIDE, Emitter, Value
from . import follows_sum
from .elementwise import as_int32, clamped

HALF = {"float32": 1e38, "float16": 3e4}
"""A number from which on the function is its operand, and whose double is finite."""

openvino.rename({ops.sigmoid: "sigmoid", ops.tanh: "tanh", ops.softsign: "softsign", ops.hard_swish: "hswish"})


@openvino.lower(ops.relu, when=lambda input: follows_sum(input) and input.data_type in FLOATS)
def _(ctx: Emitter, input: Value) -> Value:
    return ctx.emit("relu", input)


@openvino.lower(ops.relu, when=lambda input: input.data_type in FLOATS)
def _(ctx: Emitter, input: Value) -> Value:
    # Of a maximum, the kernel before may take the operands in the order in which x86's instruction loses NaN.
    zero = ctx.scalar(0, input)
    is_negative = ctx.emit("less", input, zero, data_type="bool")
    return ctx.emit("select", is_negative, zero, input, data_type=input.data_type)


@openvino.lower(ops.relu, when=lambda input: input.data_type not in WIDE)
def _(ctx: Emitter, input: Value) -> Value:
    x = as_int32(ctx, input)
    return ctx.cast(ctx.emit("maximum", x, ctx.scalar(0, x)), input.data_type)


# With a factor that is infinite in the data type, these kernels return NaN for 0.


@openvino.lower(ops.elu, when=lambda alpha: isfinite(alpha))
def _(ctx: Emitter, input: Value, alpha: float) -> Value:
    return ctx.emit("elu", input, alpha)


@openvino.lower(ops.gelu)
def _(ctx: Emitter, input: Value) -> Value:
    # The engine doubles its operand, which overflows: large numbers are their own result.
    is_large = ctx.emit("less", ctx.scalar(HALF[input.data_type], input), input, data_type="bool")
    return ctx.emit("select", is_large, input, ctx.emit("gelu", input, "erf"), data_type=input.data_type)


@openvino.lower(ops.hard_sigmoid)
def _(ctx: Emitter, input: Value, alpha: float, beta: float) -> Value:
    return clamped(ctx, _scaled(ctx, input, alpha, beta), 0, 1)


@openvino.lower(ops.leaky_relu, when=lambda alpha: isfinite(alpha))
def _(ctx: Emitter, input: Value, alpha: float) -> Value:
    if alpha == 0:  # the engine makes it its own `relu`, which loses NaN
        is_negative = ctx.emit("less", input, ctx.scalar(0, input), data_type="bool")
        zero = ctx.emit("multiply", input, ctx.factor(0))  # NaN for -inf
        return ctx.emit("select", is_negative, zero, input, data_type=input.data_type)
    return ctx.emit("prelu", input, ctx.number([alpha], input))


@openvino.lower(ops.linear)
def _(ctx: Emitter, input: Value, alpha: float, beta: float) -> Value:
    return _scaled(ctx, input, alpha, beta)


def _scaled(ctx: Emitter, input: Value, alpha: float, beta: float) -> Value:
    scaled = input if alpha == 1 else ctx.emit("multiply", input, ctx.number(alpha, input))
    return scaled if beta == 0 else ctx.emit("add", scaled, ctx.number(beta, input))
