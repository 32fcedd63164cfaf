"""OpenVINO rules: quantisation to 8 bits, with a scale for each tensor or for each index of some axes.

A pair that quantises and dequantises becomes the engine's `fake_quantize`, from which it makes kernels of 8 bits. (There it
multiplies by the reciprocal of the scale: a quotient next to the middle between two steps may get the other step.) With the
precision "ieee" it is a quotient, and all kernels are those of float32. Blocks have no rule, nor have integers of 32 bits that
are computed.
"""

from __future__ import annotations

from ....dtypes import INFO
from ....graph import Operand
from ....ops import quantization as ops
from ..backend import openvino
from ..emit import Emitter, Value

_BYTES = ("int8", "uint8")


def _broadcasts(input: Operand, scale: Operand) -> bool:
    """Whether each dimension of the scale is that of the input, or 1."""
    return all(part in (1, whole) for part, whole in zip(scale.shape, input.shape, strict=True))


def _is_plain(input: Operand, scale: Operand) -> bool:
    return input.data_type in _BYTES and scale.data_type == "float32" and _broadcasts(input, scale)


@openvino.lower(ops.dequantize_linear, when=_is_plain)
def _(ctx: Emitter, input: Value, scale: Value, zero_point: Value) -> Value:
    if ctx.node in ctx.misread:
        return _dequantised(ctx, input, scale, zero_point)
    y = ctx.cast(input, "float32")
    if zero_point.array is None:
        y = ctx.emit("subtract", y, ctx.cast(zero_point, "float32"))
    elif zero_point.array.any():
        y = ctx.emit("subtract", y, ctx.add_constant(zero_point.array.astype("float32")))
    return ctx.emit("multiply", y, scale)


def _is_constant(input: Operand, scale: Operand, zero_point: Operand) -> bool:
    return (
        scale.data_type == "float32"
        and _broadcasts(input, scale)
        and all(operand.is_constant for operand in (input, scale, zero_point))
    )


@openvino.lower(ops.dequantize_linear, when=_is_constant)
def _dequantised(ctx: Emitter, input: Value, scale: Value, zero_point: Value) -> Value:
    """A constant of floats."""
    assert input.array is not None
    assert scale.array is not None
    assert zero_point.array is not None
    difference = input.array.astype("int64") - zero_point.array
    return ctx.add_constant(difference.astype("float32") * scale.array)


def _is_fake(input: Operand, scale: Operand, zero_point: Operand) -> bool:
    is_byte = zero_point.data_type in _BYTES and scale.data_type == "float32"
    return is_byte and _broadcasts(input, scale) and scale.is_constant and zero_point.is_constant


@openvino.lower(ops.quantize_linear, when=_is_fake)
def _(ctx: Emitter, input: Value, scale: Value, zero_point: Value) -> Value:
    info = INFO[ctx.output.data_type]
    assert scale.array is not None
    assert zero_point.array is not None
    zero = zero_point.array.astype("float32")
    if ctx.is_read_by(ops.dequantize_linear) and ctx.precision != "ieee":
        ends = ((end - zero) * scale.array for end in (info.lowest, info.highest))
        steps = (ctx.scalar(end, input) for end in (info.lowest, info.highest))
        y = ctx.emit("fake_quantize", input, *map(ctx.add_constant, ends), *steps, 256)
    else:
        y = ctx.emit("round", ctx.quotient(input, scale), "half_to_even")
        y = ctx.emit("add", y, ctx.add_constant(zero)) if zero.any() else y
        y = ctx.emit("clamp", y, float(info.lowest), float(info.highest))
    return ctx.cast(y, ctx.output.data_type)
