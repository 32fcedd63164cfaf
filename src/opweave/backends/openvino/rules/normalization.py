"""OpenVINO rules: normalisations and softmax.

log_softmax has no rule: for a slice with a NaN, the engine's kernel returns -inf for the other elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....composites import is_composite
from ....core.graph import Operand
from ....ops import normalization as ops
from ....ops.convolution import conv2d, conv_transpose2d
from ....ops.elementwise import add
from ..backend import openvino
from ..emit import Emitter, Value

_PARAMETERS = ("mean", "variance", "scale", "bias")


def _follows_conv(input: Operand, axis: int, **operands: Any) -> bool:
    """Whether the engine folds the normalisation into the weights of a preceding convolution, perhaps with a constant bias.

    Otherwise x k + (bias - mean k) would be inaccurate for large means.
    """
    before = input.node
    if before is not None and before.op is add:
        sums = [operand.node for operand in before.operands if not operand.is_constant]
        before = sums[0] if len(sums) == 1 else None
    if before is None:
        return False
    if before.op not in (conv2d, conv_transpose2d) and not is_composite(before.op, "convolution", "conv_transpose"):
        return False
    # Composites have no layout: channels are their second axis.
    if before.attributes.get("input_layout", "nc")[axis : axis + 1] != "c":
        return False
    return all(value is None or value.is_constant for value in (operands[name] for name in _PARAMETERS))


@openvino.lower(ops.batch_normalization, when=_follows_conv)
def _(
    ctx: Emitter,
    input: Value,
    mean: Value,
    variance: Value,
    scale: Value | None,
    bias: Value | None,
    axis: int,
    epsilon: float,
) -> Value:
    layout = "nchw" if axis == 1 else "nhwc"  # this transposition cancels that of the convolution's result
    x = ctx.relayout(input, layout, "nchw")
    k = scale or ctx.constant([1] * mean.shape[0], input.data_type)
    c = bias or ctx.constant([0] * mean.shape[0], input.data_type)
    y = ctx.emit("batch_norm_inference", x, k, c, mean, variance, epsilon)
    return ctx.relayout(y, "nchw", layout)


def _is_constant(input: Operand, **operands: Any) -> bool:
    """Whether the factor of each channel can be folded here, so that the engine runs one operation instead of four."""
    parameters = [value for value in (operands[name] for name in _PARAMETERS) if value is not None]
    return input.data_type == "float32" and all(value.is_constant for value in parameters)


@openvino.lower(ops.batch_normalization, when=_is_constant)
def _(
    ctx: Emitter,
    input: Value,
    mean: Value,
    variance: Value,
    scale: Value | None,
    bias: Value | None,
    axis: int,
    epsilon: float,
) -> Value:
    shape = [size if a == axis else 1 for a, size in enumerate(input.shape)]
    assert variance.array is not None
    k = None if scale is None else scale.array
    with np.errstate(all="ignore"):  # infinity and NaN by the formula
        factor = (1 if k is None else k) / np.sqrt(np.add(variance.array, epsilon, dtype=np.float64))
        factor = factor.astype(np.float32).reshape(shape)
    # Before the product, to avoid cancellation for large means.
    y = ctx.emit("subtract", input, ctx.reshape(mean, shape))
    y = ctx.emit("multiply", y, ctx.add_constant(factor))
    return y if bias is None else ctx.emit("add", y, ctx.reshape(bias, shape))


def _normalise(
    ctx: Emitter,
    input: Value,
    axes: Sequence[int],
    scale: Value | None,
    bias: Value | None,
    along: Sequence[int],
    epsilon: float,
) -> Value:
    """Normalise over `axes`; the axes of scale and bias are the input's axes `along`, in this order."""
    y = ctx.emit("mvn", input, ctx.constant(sorted(axes)), True, epsilon, "inside_sqrt")
    order = sorted(range(len(along)), key=lambda i: along[i])
    shape = [size if axis in along else 1 for axis, size in enumerate(input.shape)]
    for name, vector in (("multiply", scale), ("add", bias)):
        if vector is not None:
            y = ctx.emit(name, y, ctx.reshape(ctx.transpose(vector, order), shape))
    return y


@openvino.lower(ops.instance_normalization)
def _(ctx: Emitter, input: Value, scale: Value | None, bias: Value | None, epsilon: float, layout: str) -> Value:
    x = ctx.relayout(input, layout, "nchw")
    return ctx.relayout(_normalise(ctx, x, [2, 3], scale, bias, [1], epsilon), "nchw", layout)


def _has_kernel(axes: Sequence[int], epsilon: float) -> bool:
    """Whether the engine has a kernel: it decomposes MVN over other axes, with epsilon as a finite float16 constant."""
    return len(axes) > 0 and math.isfinite(epsilon)


@openvino.lower(ops.layer_normalization, when=_has_kernel)
def _(
    ctx: Emitter, input: Value, scale: Value | None, bias: Value | None, axes: Sequence[int], epsilon: float
) -> Value:
    return _normalise(ctx, input, axes, scale, bias, axes, epsilon)


# For a slice with a NaN, the kernel returns NaN there and numbers elsewhere; a test for NaN would take another pass.
@openvino.lower(ops.softmax)
def _(ctx: Emitter, input: Value, axis: int) -> Value:
    return ctx.emit("softmax", input, axis)


MAX_BIAS = 2.0**20
"""Division by a bias in [1 / MAX_BIAS, MAX_BIAS] is safe: neither quotients nor powers overflow."""


def _has_window(size: int, bias: float) -> bool:
    from ....composites.normalization import MAX_WINDOW  # other graphs do without that module

    return size % 2 == 1 and size <= MAX_WINDOW and 1 / MAX_BIAS <= bias <= MAX_BIAS


@openvino.lower("local_response_normalization", when=_has_window)
def _(ctx: Emitter, input: Value, size: int, alpha: float, beta: float, bias: float) -> Value:
    # (bias + alpha s)^beta = bias^beta (1 + alpha / bias s)^beta: the engine truncates the bias to an integer.
    y = ctx.emit("lrn", input, ctx.constant([1]), alpha / bias, beta, 1.0, size)
    return y if bias == 1 else ctx.emit("multiply", y, ctx.number(bias**-beta, y))
