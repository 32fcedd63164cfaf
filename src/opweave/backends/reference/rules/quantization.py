"""Reference rules: quantisation. Zero points are added and subtracted as integers, which are exact in float64."""

from __future__ import annotations

import numpy as np

from ....ops import quantization as ops
from ..backend import Array, reference


def _repeat_blocks(operand: Array, shape: tuple[int, ...]) -> Array:
    for axis, (part, whole) in enumerate(zip(operand.shape, shape, strict=True)):
        operand = np.repeat(operand, whole // part, axis)
    return operand


@reference.lower(ops.dequantize_linear)
def _(input: Array, scale: Array, zero_point: Array) -> Array:
    s, z = _repeat_blocks(scale, input.shape), _repeat_blocks(zero_point, input.shape)
    return (input.astype(np.float64) - z.astype(np.float64)) * s


@reference.lower(ops.quantize_linear)
def _(input: Array, scale: Array, zero_point: Array) -> Array:
    s, z = _repeat_blocks(scale, input.shape), _repeat_blocks(zero_point, input.shape)
    range_ = np.iinfo(zero_point.dtype)
    return np.clip(np.rint(input / s) + z.astype(np.float64), range_.min, range_.max)
