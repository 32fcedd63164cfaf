"""Reference rules: quantisation. Zero points are added and subtracted as integers, which are exact in float64."""

from __future__ import annotations

import numpy as np

from ....core.casts import compute_form
from ....core.dtypes import INFO
from ....ops import quantization as ops
from ..backend import Array, reference


def _repeat_blocks(operand: Array, shape: tuple[int, ...]) -> Array:
    for axis, (part, whole) in enumerate(zip(operand.shape, shape, strict=True)):
        operand = np.repeat(operand, whole // part, axis)
    return operand


@reference.lower(ops.dequantize_linear)
def _(input: Array, scale: Array, zero_point: Array) -> Array:
    x, s, z = (compute_form(operand).astype(np.float64) for operand in (input, scale, zero_point))
    return (x - _repeat_blocks(z, input.shape)) * _repeat_blocks(s, input.shape)


@reference.lower(ops.quantize_linear)
def _(input: Array, scale: Array, zero_point: Array) -> Array:
    x, s, z = (compute_form(operand).astype(np.float64) for operand in (input, scale, zero_point))
    steps = x / _repeat_blocks(s, input.shape)
    info = INFO[zero_point.dtype.name]
    if info.kind == "f":  # rounded to its numbers where it is stored
        return np.clip(steps + _repeat_blocks(z, input.shape), -info.largest, info.largest)
    return np.clip(np.rint(steps) + _repeat_blocks(z, input.shape), info.lowest, info.highest)
