"""Quantisation. Integers of 32 bits are added and subtracted without 64 bits, which few devices have, and without rounding."""

from __future__ import annotations

from ....dtypes import INFO
from ....expr import Array, cast, clamp, compute, round_even, where
from ....expr.ir import storage
from ....ops import quantization as ops
from ..table import gpu
from .reduction import narrowed, widened


def _repeat_blocks(operand: Array, shape: tuple[int, ...]) -> Array:
    """`operand` with each element repeated to the block of `shape` that it stands for."""
    blocks = [whole // part for part, whole in zip(operand.shape, shape, strict=True)]
    return compute(shape, lambda *p: operand[tuple(k // size for k, size in zip(p, blocks, strict=True))])


@gpu.lower(ops.dequantize_linear)
def _(input: Array, scale: Array, zero_point: Array) -> Array:
    s, z = (_repeat_blocks(operand, input.shape) for operand in (scale, zero_point))
    if INFO[storage(input.data_type)].bits == 8:
        difference = cast(cast(input, "int32") - cast(z, "int32"), "float32")
    else:
        # A difference of two integers of 32 bits has 33: a sign, and a magnitude that unsigned ones hold.
        x, y = cast(input, "uint32"), cast(z, "uint32")
        difference = where(input >= z, cast(x - y, "float32"), -cast(y - x, "float32"))
    return narrowed(difference * widened(s), scale)


@gpu.lower(ops.quantize_linear)
def _(input: Array, scale: Array, zero_point: Array) -> Array:
    s, z = (_repeat_blocks(operand, input.shape) for operand in (scale, zero_point))
    data_type = storage(zero_point.data_type)
    info = INFO[data_type]
    steps = round_even(widened(input) / widened(s))
    if info.bits == 8:
        return cast(clamp(steps + cast(z, "float32"), info.lowest, info.highest), data_type)
    # Counted from the lowest value, all are unsigned; the magnitude of the steps saturates when it is cast.
    offset = cast(z, "uint32") - info.lowest % 2**32
    magnitude = cast(abs(steps), "uint32")
    more, less = offset + magnitude, offset - magnitude
    moved = where(steps < 0, where(magnitude > offset, 0, less), where(more < offset, 2**32 - 1, more))
    return cast(moved + info.lowest % 2**32, data_type)
