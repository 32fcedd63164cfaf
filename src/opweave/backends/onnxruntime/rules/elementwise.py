"""ONNX Runtime rules: element-wise operations."""

from __future__ import annotations

import math
from typing import Any

from ....core import dtypes
from ....core.conversion import Number
from ....core.dtypes import INFO, DataType
from ....core.graph import Operand
from ....ops import elementwise as ops
from ..backend import ort
from ..barriers import MOVED_OR_REMOVED
from ..emit import Emitter, Value

ort.rename({ops.sub: "Sub", ops.mul: "Mul", ops.max: "Max", ops.min: "Min"})
ort.rename(
    {ops.ceil: "Ceil", ops.floor: "Floor", ops.round_even: "Round", ops.sqrt: "Sqrt", ops.reciprocal: "Reciprocal"}
)
ort.rename({ops.exp: "Exp", ops.log: "Log", ops.erf: "Erf", ops.sin: "Sin", ops.cos: "Cos", ops.tan: "Tan"})
ort.rename({ops.abs: "Abs", ops.neg: "Neg"})


@ort.lower(ops.add)
def _(ctx: Emitter, a: Value, b: Value) -> Any:
    """A sum, with a barrier behind a MatMul of dequantised operands if the other term is dequantised by another scale."""
    if not ctx.portable and ctx.precision != "ieee":
        if _is_other_scale(ctx, a, b):
            a = ctx.insert_barrier(a)
        if _is_other_scale(ctx, b, a):
            b = ctx.insert_barrier(b)
    return ctx.emit("Add", a, b)


def _is_other_scale(ctx: Emitter, product: Value, term: Value) -> bool:
    """Whether `product` comes from a MatMul of dequantised operands, and `term` is dequantised by another scale."""
    producers = list(ctx.producers(product.name, MOVED_OR_REMOVED))
    if not producers or producers[-1].op_type != "MatMul":
        return False
    from ..products import has_other_scale  # most sums do without what it imports

    return has_other_scale(ctx, [*producers[-1].inputs, term.name], 1)


def is_float(a: Operand) -> bool:
    return dtypes.is_float(a.data_type)


@ort.lower(ops.div, when=is_float)
def _(ctx: Emitter, a: Value, b: Value) -> Value:
    _keep_shape_of_ones(ctx, a)
    return ctx.emit("Div", a, b)


@ort.lower(ops.div)
def _(ctx: Emitter, a: Value, b: Value) -> Value:
    """Divide integers. In the engine, division by 0, or of the lowest integer by -1, ends the process."""
    _keep_shape_of_ones(ctx, a)
    divisors = ctx.array_of(b)
    if divisors is not None and not ((divisors == 0) | (divisors == -1)).any():
        return ctx.emit("Div", a, b)
    one = ctx.scalar(1, b)
    if INFO[ctx.output.data_type].kind == "u":
        return ctx.emit("Mul", ctx.emit("Div", a, ctx.emit("Max", b, one)), ctx.emit("Min", b, one))
    # Multiply by divisors of -1, 0 and 1 instead.
    small = _is_unit_or_zero(ctx, b)
    quotient = ctx.emit("Div", a, ctx.emit("Where", small, one, b))
    return ctx.emit("Mul", quotient, ctx.emit("Where", small, b, one))


def _is_unit_or_zero(ctx: Emitter, b: Value) -> Value:
    above = ctx.emit("Greater", b, ctx.scalar(-2, b), data_type="bool")
    return ctx.emit("And", above, ctx.emit("Less", b, ctx.scalar(2, b), data_type="bool"))


def _is_not_wide(a: Operand) -> bool:
    # The kernel for float64 raises an error where the remainder is NaN.
    return a.data_type != dtypes.FLOAT64


@ort.lower(ops.modulus_floor, when=_is_not_wide)
def _(ctx: Emitter, a: Value, b: Value) -> Value:
    if not dtypes.is_float(a.data_type):
        return ctx.emit("Mod", a, _safe_divisor(ctx, b))
    remainder = ctx.emit("Mod", a, b, fmod=1)  # with the sign of a
    return choose(ctx, _differ_in_sign(ctx, remainder, b, remainder), ctx.emit("Add", remainder, b), remainder)


@ort.lower(ops.modulus_truncate, when=_is_not_wide)
def _(ctx: Emitter, a: Value, b: Value) -> Value:
    if dtypes.is_float(a.data_type):
        return ctx.emit("Mod", a, b, fmod=1)
    divisor = _safe_divisor(ctx, b)
    remainder = ctx.emit("Mod", a, divisor)  # with the sign of b; fmod=1 would compute in float64
    if INFO[ctx.output.data_type].kind == "u":
        return remainder
    return choose(ctx, _differ_in_sign(ctx, a, divisor, remainder), ctx.emit("Sub", remainder, divisor), remainder)


def _safe_divisor(ctx: Emitter, b: Value) -> Value:
    """1 instead of -1 and 0, which also divide without a remainder. In the engine, they may end the process."""
    divisors, one = ctx.array_of(b), ctx.scalar(1, b)
    if divisors is not None and not ((divisors == 0) | (divisors == -1)).any():
        return b
    return (
        ctx.emit("Max", b, one)
        if INFO[ctx.output.data_type].kind == "u"
        else choose(ctx, _is_unit_or_zero(ctx, b), one, b)
    )


def _differ_in_sign(ctx: Emitter, a: Value, b: Value, remainder: Value) -> Value:
    """Whether `a` and `b` have different signs, and the remainder is not 0."""
    signs = [ctx.emit("Less", x, ctx.scalar(0, x), data_type="bool") for x in (a, b)]
    is_exact = ctx.emit("Equal", remainder, ctx.scalar(0, remainder), data_type="bool")
    return ctx.emit("And", ctx.emit("Xor", *signs), ctx.emit("Not", is_exact))


def _keep_shape_of_ones(ctx: Emitter, a: Value) -> None:
    """Disable an optimiser pass that rewrites 1 / b * c as c / b and drops axes that only the 1 has."""
    ones = ctx.array_of(a)
    if ones is None:
        may_be_one = ctx.is_foldable(a.name) and a.shape != ()
    else:
        may_be_one = ones.ndim > 0 and ones.size == 1 and ones.item() == 1
    if may_be_one:
        ctx.disabled_optimizers.add("DivMulFusion")


ort.rename({ops.pow: "Pow"}, when=is_float)


@ort.lower(ops.pow)
def _(ctx: Emitter, a: Value, b: Value) -> Value:
    """Compute integer powers by squaring. The engine computes them in float64, which cannot hold all 64-bit integers."""
    info = INFO[ctx.output.data_type]
    bits, has_negatives = info.bits - (info.kind == "i"), info.kind == "i"
    exponents = ctx.array_of(b)
    power = None  # the exponent, if it is a constant scalar
    if exponents is not None:
        bits, has_negatives = max(int(exponents.max()), 1).bit_length(), bool((exponents < 0).any())
        power = int(exponents) if exponents.ndim == 0 and exponents > 0 else None
    one, zero = ctx.scalar(1, a), ctx.scalar(0, a)
    result, square = None, a
    for bit in range(bits):
        square = ctx.emit("Mul", square, square) if bit > 0 else a
        if power is None:
            is_set = ctx.cast(ctx.emit("BitwiseAnd", b, ctx.scalar(1 << bit, b)), "bool")
            factor = choose(ctx, is_set, square, one)
        elif power >> bit & 1:
            factor = square
        else:
            continue
        result = factor if result is None else ctx.emit("Mul", result, factor)
    assert result is not None
    if not has_negatives:
        return result
    # Negative powers of 1 and -1 are correct, since only the lowest bit matters; other numbers have no integer inverse.
    is_unit = ctx.emit("Equal", ctx.emit("Abs", a), one, data_type="bool")
    is_fraction = ctx.emit("And", ctx.emit("Less", b, zero, data_type="bool"), ctx.emit("Not", is_unit))
    return choose(ctx, is_fraction, zero, result)


ort.rename({ops.sign: "Sign"}, when=lambda input: input.data_type not in ("float32", "float64", "int64"))


@ort.lower(ops.sign)
def _(ctx: Emitter, input: Value) -> Value:
    # The sign of NaN must be 0. The engine's float32 kernel returns NaN, unlike float16, and takes twice as long. The int64
    # kernel is wrong if numbers differ in bit 31: https://github.com/microsoft/onnxruntime/pull/32475
    zero = ctx.scalar(0, input)
    above, below = (ctx.emit(op_type, input, zero, data_type="bool") for op_type in ("Greater", "Less"))
    return ctx.emit("Sub", ctx.cast(above, input.data_type), ctx.cast(below, input.data_type))


@ort.lower(ops.identity)
def _(ctx: Emitter, input: Value) -> Value:
    return input


_CAST_WRONGLY: dict[str, tuple[float, float]] = {"float8_e4m3fn": (448, 480), "float8_e5m2": (57344, 61440)}
"""Types with their largest number, and from where on numbers would be infinite or NaN. The engine makes 448 of numbers from
480 to 496, and NaN instead of infinity of those from 61440 to 65536."""


def _beyond_range(ctx: Emitter, input: Value, largest: float, limit: float) -> Value:
    """`input` with twice the numbers from `limit` on, which the kernel casts as it should."""
    source = ctx.node.inputs["input"]
    assert isinstance(source, Operand)
    if source.node is not None and source.node.op is ops.clamp and source.node.attributes["max_value"] == largest:
        return input
    x = input if dtypes.is_float(input.data_type) else ctx.cast(input, "float32")
    is_beyond = ctx.emit("GreaterOrEqual", ctx.emit("Abs", x), ctx.scalar(limit, x), data_type="bool")
    return ctx.emit("Where", is_beyond, ctx.emit("Add", x, x), x, shape=input.shape)


@ort.lower(ops.cast)
def _(ctx: Emitter, input: Value, data_type: DataType) -> Value:
    if data_type in _CAST_WRONGLY:
        input = _beyond_range(ctx, input, *_CAST_WRONGLY[data_type])
    result = ctx.cast(input, data_type)
    ctx.round(result)
    return result


@ort.lower(ops.clamp)
def _(ctx: Emitter, input: Value, min_value: Number | None, max_value: Number | None) -> Value:
    if not ops.is_bound(min_value) and not ops.is_bound(max_value):
        return input
    info = INFO[ctx.output.data_type]
    # The engine's default bounds are finite; they must be infinite.
    lowest, highest = (-math.inf, math.inf) if info.kind == "f" else (info.lowest, info.highest)
    low = min_value if ops.is_bound(min_value) else lowest
    high = max_value if ops.is_bound(max_value) else highest
    return ctx.emit("Clip", input, ctx.scalar(low, input), ctx.scalar(high, input))


@ort.lower(ops.where)
def _(ctx: Emitter, condition: Value, true_value: Value, false_value: Value) -> Value:
    return choose(ctx, ctx.cast(condition, "bool"), true_value, false_value)


def choose(ctx: Emitter, condition: Value, true_value: Value, false_value: Value) -> Value:
    """Emit Where for any data type; uint64 has no kernel, and is cast to int64."""
    if true_value.data_type == "uint64":
        carried = (ctx.cast(value, "int64") for value in (true_value, false_value))
        return ctx.cast(ctx.emit("Where", condition, *carried), "uint64")
    return ctx.emit("Where", condition, true_value, false_value)
