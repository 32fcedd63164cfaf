"""OpenVINO rules: quantisation to 8 bits, with a scale per tensor or per index of some axes.

Before products by 8-bit weights, a pair that quantises and dequantises becomes the engine's `fake_quantize`, from which it
makes 8-bit kernels. There, x (1 / scale) replaces x / scale, so a quotient close to a tie may be rounded to the other step.
The engine computes round(x / scale + zero), WebNN round(x / scale) + zero: for odd zero points, ties to even differ. Odd zero
points, other pairs, and all pairs with the precision "ieee" are emitted as exact quotients.
"""

from __future__ import annotations

from ....core.dtypes import INFO
from ....core.graph import Operand
from ....ops import quantization as ops
from ..backend import openvino
from ..emit import Emitter, Value

_BYTES = ("int8", "uint8")

_MERGED = ("Multiply", "Divide", "Subtract")
"""Operations that the engine merges with a following quantisation, and thereby treats per-column constants as per-row."""


def _broadcasts(input: Operand, scale: Operand) -> bool:
    return all(part in (1, whole) for part, whole in zip(scale.shape, input.shape, strict=True))


def _is_plain(input: Operand, scale: Operand) -> bool:
    return input.data_type in _BYTES and scale.data_type == "float32" and _broadcasts(input, scale)


def _is_constant(input: Operand, scale: Operand, zero_point: Operand) -> bool:
    return (
        scale.data_type == "float32"
        and _broadcasts(input, scale)
        and all(operand.is_constant for operand in (input, scale, zero_point))
    )


@openvino.lower(ops.dequantize_linear, when=_is_constant)
def _(ctx: Emitter, input: Value, scale: Value, zero_point: Value) -> Value:
    if ctx.node in ctx.dequantised.weights:
        return _dequantise(ctx, ctx.emit("convert", input, "f32", data_type="float32"), scale, zero_point)
    if ctx.node in ctx.dequantised.tables:
        ctx.tables[ctx.node] = [input, scale, zero_point]
        return Value(None, "float32", None, input.shape, varies=False)  # a placeholder: lookups read `ctx.tables`
    assert input.array is not None
    assert scale.array is not None
    assert zero_point.array is not None
    difference = input.array.astype("int64") - zero_point.array
    return ctx.add_constant(difference.astype("float32") * scale.array)


@openvino.lower(ops.dequantize_linear, when=_is_plain)
def _(ctx: Emitter, input: Value, scale: Value, zero_point: Value) -> Value:
    number = ctx.cast(input, "float32")
    if ctx.node not in ctx.dequantised.factors:
        return dequantise_hidden(ctx, number, scale, zero_point)
    output = ctx.node.outputs[0]
    ctx.factors[output] = result = _dequantise(ctx, number, scale, zero_point)
    if all(reader in ctx.dequantised.products for reader in ctx.readers[output]):
        return result
    return ctx.emit("multiply", result, ctx.factor(1.0))


def dequantise_hidden(ctx: Emitter, number: Value, scale: Value, zero_point: Value) -> Value:
    """Dequantise converted integers with a scale that is hidden from the engine's passes.

    The passes would multiply other terms by the scale, or move the scale behind readers of integers.
    """
    return _dequantise(ctx, number, ctx.hide(scale) if scale.array is not None else scale, zero_point)


def _dequantise(ctx: Emitter, number: Value, scale: Value, zero_point: Value) -> Value:
    if zero_point.array is None:
        number = ctx.emit("subtract", number, ctx.cast(zero_point, "float32"))
    elif zero_point.array.any():
        number = ctx.emit("subtract", number, ctx.add_constant(zero_point.array.astype("float32")))
    return ctx.emit("multiply", number, scale)


def _is_fake(input: Operand, scale: Operand, zero_point: Operand) -> bool:
    is_byte = zero_point.data_type in _BYTES and scale.data_type == "float32"
    return is_byte and _broadcasts(input, scale) and scale.is_constant and zero_point.is_constant


@openvino.lower(ops.quantize_linear, when=_is_fake)
def _(ctx: Emitter, input: Value, scale: Value, zero_point: Value) -> Value:
    info = INFO[ctx.output.data_type]
    assert scale.array is not None
    assert zero_point.array is not None
    zero = zero_point.array.astype("float32")
    is_odd = bool((zero_point.array & 1).any())
    readers = ctx.readers.get(ctx.node.outputs[0], ())
    if readers and all(node in ctx.dequantised.factors for node in readers) and scale.array.size == 1 and not is_odd:
        if input.rank < 4 and input.output.get_node().get_type_name() in _MERGED:
            input = ctx.emit("multiply", input, ctx.factor(1.0))
        ends = ((end - zero) * scale.array for end in (info.lowest, info.highest))
        steps = (ctx.scalar(end, input) for end in (info.lowest, info.highest))
        y = ctx.emit("fake_quantize", input, *map(ctx.add_constant, ends), *steps, 256)
    else:
        y = ctx.emit("round", ctx.quotient(input, scale), "half_to_even")
        y = ctx.emit("add", y, ctx.add_constant(zero)) if zero.any() else y
        y = ctx.emit("clamp", y, float(info.lowest), float(info.highest))
    return ctx.cast(y, ctx.output.data_type)
