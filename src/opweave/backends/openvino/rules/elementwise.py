"""OpenVINO rules: element-wise operations.

Integers are computed as int32, whose sums and products wrap around. Quotients and powers of integers have no rules: the engine
computes them as float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ....core.conversion import Number
from ....core.dtypes import FLOATS, DataType
from ....core.graph import Operand
from ....ops import elementwise as ops
from ... import Precision
from ..backend import openvino
from ..emit import WIDE, Emitter, Value, source_type
from .shared import follows_sum, is_float, keep_nan

openvino.rename(
    {ops.ceil: "ceiling", ops.floor: "floor", ops.sqrt: "sqrt", ops.log: "log", ops.erf: "erf"}, when=is_float
)
openvino.rename({ops.sin: "sin", ops.cos: "cos", ops.tan: "tan"}, when=is_float)


def _is_narrow(a: Operand) -> bool:
    return a.data_type not in WIDE


def _is_float(a: Operand) -> bool:
    return a.data_type in FLOATS


def as_int32(ctx: Emitter, value: Value) -> Value:
    return value if value.data_type in FLOATS else ctx.cast(value, "int32")


def _wrapping_rule(name: str) -> Callable[[Emitter, Value, Value], Value]:
    def rule(ctx: Emitter, a: Value, b: Value) -> Value:
        if name == "add" and _is_zero(a):
            a, b = b, a
        if name != "multiply" and a.varies and b.array is not None and _is_zero(b):
            # The engine removes sums and differences with zeros of both signs, but x + 0 is 0 where x is -0.
            zero = b.array if name == "add" else -b.array
            return ctx.cast(ctx.emit("add", a, ctx.hide(ctx.constant(zero, b.data_type))), ctx.output.data_type)
        emit = ctx.beside_constant if name == "subtract" else ctx.emit
        return ctx.cast(emit(name, as_int32(ctx, a), as_int32(ctx, b)), ctx.output.data_type)

    return rule


def _is_zero(value: Value) -> bool:
    return value.array is not None and value.data_type in FLOATS and not value.array.any()


for _op, _name in {ops.add: "add", ops.sub: "subtract", ops.mul: "multiply"}.items():
    openvino.lower(_op, when=_is_narrow)(_wrapping_rule(_name))


@openvino.lower(ops.div, when=_is_float)
def _(ctx: Emitter, a: Value, b: Value) -> Value:
    return ctx.quotient(a, b)


@openvino.lower(ops.pow, when=_is_float)
def _(ctx: Emitter, a: Value, b: Value) -> Value:
    return ctx.beside_constant("power", a, b)


def _minimum(ctx: Emitter, a: Value, b: Value) -> Value:
    """Return min(a, b) of int32 as ~max(~a, ~b): the engine fuses a maximum and a minimum to a clamp in float32."""
    if not a.varies:
        a, b = b, a  # the result is computed in place of the first operand, see `Emitter.hide`
    return ctx.emit("bitwise_not", ctx.emit("maximum", ctx.emit("bitwise_not", a), ctx.emit("bitwise_not", b)))


def _extreme(name: str) -> Callable[[Emitter, Value, Value], Value]:
    def rule(ctx: Emitter, a: Value, b: Value) -> Value:
        if a.data_type not in FLOATS:
            x, y = as_int32(ctx, a), as_int32(ctx, b)
            return ctx.cast(ctx.emit(name, x, y) if name == "maximum" else _minimum(ctx, x, y), ctx.output.data_type)
        result = ctx.emit(name, a, b)
        for value in (a, b):
            if value.array is None or bool((value.array != value.array).any()):
                result = keep_nan(ctx, value, result)
        return result

    return rule


def _is_signed(a: Operand) -> bool:
    return a.data_type not in (*WIDE, "uint32")


for _op, _name in {ops.max: "maximum", ops.min: "minimum"}.items():
    openvino.lower(_op, when=_is_signed)(_extreme(_name))


@openvino.lower(ops.abs, when=lambda input: input.data_type not in WIDE)
def _(ctx: Emitter, input: Value) -> Value:
    x = as_int32(ctx, input)
    if source_type(x) == "Concat":
        # There the engine's kernel overwrites x with |x|, even if x has other readers.
        x = ctx.emit("multiply", x, ctx.hide(ctx.scalar(1, x)))
    return ctx.cast(ctx.emit("abs", x), input.data_type)


@openvino.lower(ops.neg, when=is_float)
def _(ctx: Emitter, input: Value) -> Value:
    return ctx.emit("multiply", input, ctx.factor(-1))  # the engine's own operation is 0 - x, which is 0 for 0, not -0


@openvino.lower(ops.neg, when=lambda input: input.data_type not in WIDE)
def _(ctx: Emitter, input: Value) -> Value:
    x = as_int32(ctx, input)
    return ctx.cast(ctx.beside_constant("subtract", ctx.scalar(0, x), x), input.data_type)


@openvino.lower(ops.exp, when=is_float)
def _(ctx: Emitter, input: Value) -> Value:
    return keep_nan(ctx, input, ctx.emit("exp", input))


@openvino.lower(ops.reciprocal, when=is_float)
def _(ctx: Emitter, input: Value) -> Value:
    return ctx.emit("power", input, ctx.scalar(-1, input))  # an exact quotient, which may become an epilogue


@openvino.lower(ops.round_even, when=is_float)
def _(ctx: Emitter, input: Value) -> Value:
    return ctx.emit("round", input, "half_to_even")


@openvino.lower(ops.sign, when=is_float)
def _(ctx: Emitter, input: Value) -> Value:
    # The sign of NaN must be 0. The engine's `less` is correct for NaN, unlike `greater`.
    zero = ctx.scalar(0, input)
    above, below = ctx.emit("less", zero, input, data_type="bool"), ctx.emit("less", input, zero, data_type="bool")
    return ctx.emit("subtract", ctx.cast(above, input.data_type), ctx.cast(below, input.data_type))


@openvino.lower(ops.identity)
def _(ctx: Emitter, input: Value) -> Value:
    return input


def _rounds(input: Operand, data_type: DataType, precision: Precision) -> bool:
    """Whether the rule can round, if the cast is to float16: emulated rounding requires a precision of float32."""
    return data_type != "float16" or precision in ("float32", "ieee") or input.data_type in ("int8", "uint8")


def _keeps_value(input: Operand, data_type: DataType, precision: Precision) -> bool:
    """Whether the engine converts as WebNN does: all but casts between floats and the integers that it lacks."""
    source, carried = input.data_type, (*WIDE, "uint32")
    if not _rounds(input, data_type, precision):
        return False
    if source in FLOATS:
        # In lower precisions, the engine rounds to integers instead of truncating.
        cuts = data_type in FLOATS or precision in ("float32", "ieee")
        return cuts and data_type not in carried
    return not (source in carried and data_type in FLOATS)


@openvino.lower(ops.cast, when=_keeps_value)
def _(ctx: Emitter, input: Value, data_type: DataType) -> Value:
    if ctx.node in ctx.dequantised.weights:
        return ctx.emit("convert", input, "f32", data_type=data_type)
    result = ctx.cast(input, data_type)
    if input.data_type in ("int8", "uint8") and data_type in FLOATS and input.varies and ctx.dequantised.products:
        # The passes for 8 bits treat this conversion as a dequantisation, and drop it together with a preceding conversion
        # from floats, so that 4.5 would not be truncated to 4.
        result = ctx.emit("multiply", result, ctx.factor(1.0))
    return result


def _is_wide(input: Operand, data_type: DataType, precision: Precision) -> bool:
    return input.data_type == "int64" and data_type in FLOATS and _rounds(input, data_type, precision)


@openvino.lower(ops.cast, when=_is_wide)
def _(ctx: Emitter, input: Value, data_type: DataType) -> Value:
    # (high - (low >> 31)) 2^32 + low, since low is signed. Exact for 32-bit numbers, else to one unit in the last place.
    # Exporters of transformers cast masks this way.
    low, high = (ctx.lane(input, half) for half in (0, 1))
    carry = ctx.emit("bitwise_right_shift", low, ctx.constant(31))
    high = ctx.emit("subtract", ctx.cast(high, "float32"), ctx.cast(carry, "float32"))
    high = ctx.emit("multiply", high, ctx.scalar(2**32, high))
    return ctx.cast(ctx.emit("add", high, ctx.cast(low, "float32")), data_type)


@openvino.lower(ops.clamp, when=is_float)
def _(ctx: Emitter, input: Value, min_value: Number | None, max_value: Number | None) -> Value:
    if not ops.is_bound(min_value) and not ops.is_bound(max_value):
        return input
    low = min_value if ops.is_bound(min_value) else -math.inf
    high = max_value if ops.is_bound(max_value) else math.inf
    return emit_clamp(ctx, input, float(low), float(high))


@openvino.lower(ops.clamp, when=lambda input: _is_signed(input))
def _(ctx: Emitter, input: Value, min_value: Number | None, max_value: Number | None) -> Value:
    x = as_int32(ctx, input)
    if ops.is_bound(min_value):
        x = ctx.emit("maximum", x, ctx.constant(min_value))
    if ops.is_bound(max_value):
        x = _minimum(ctx, x, ctx.constant(max_value))
    return ctx.cast(x, input.data_type)


def emit_clamp(ctx: Emitter, input: Value, low: float, high: float) -> Value:
    """Clamp `input`, the node's operand `input` or a function of it, to [low, high]; NaN stays."""
    operand = ctx.node.inputs.get("input")
    if isinstance(operand, Operand) and follows_sum(operand) and low < high:
        return ctx.emit("clamp", input, low, high)
    result = input
    if low > -math.inf:
        result = ctx.emit("maximum", result, ctx.scalar(low, input))
    if high < math.inf:
        result = ctx.emit("minimum", result, ctx.scalar(high, input))
    return keep_nan(ctx, input, result)


@openvino.lower(ops.where)
def _(ctx: Emitter, condition: Value, true_value: Value, false_value: Value) -> Value:
    chosen = ctx.cast(condition, "bool")
    if true_value.data_type in WIDE:
        chosen = ctx.reshape(chosen, [*chosen.shape, 1])  # the axis of the halves
    return ctx.choice(chosen, true_value, false_value)
