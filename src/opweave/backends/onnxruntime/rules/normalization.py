"""ONNX Runtime rules: normalisations and softmax.

`group_normalization` has no rule because the engine has no kernel. `skip_layer_norm` has none because the engine's
SkipLayerNormalization takes five times as long as Add and LayerNormalization.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ....composites import is_composite
from ....core.graph import Node, Operand, iter_operands
from ....ops import normalization as ops
from ....ops.convolution import conv2d
from ..backend import ort
from ..emit import Emitter, Value
from .shared import is_single


def _scale_and_bias(
    ctx: Emitter, shape: Sequence[int], like: Value, scale: Value | None, bias: Value | None
) -> tuple[Value, Value]:
    return scale or ctx.full(shape, 1, like.data_type), bias or ctx.full(shape, 0, like.data_type)


LARGE_MEAN = 16.0
"""Largest |mean| / deviation for the engine's kernel; beyond, subtract the mean first, to avoid cancellation."""


def _is_native(node: Node) -> bool:
    """Whether the engine folds the normalisation into the weights of a preceding convolution, or computes it accurately."""
    input, mean, variance, axis = (node.arguments[name] for name in ("input", "mean", "variance", "axis"))
    # By name: the input may be the mean, too.
    others = list(iter_operands({name: operand for name, operand in node.inputs.items() if name != "input"}))
    if not all(operand.is_constant for operand in others):
        return False
    before = input.node
    if before is not None and (before.op is conv2d or is_composite(before.op, "convolution")):
        # The composite has no layout: channels are its second axis.
        layout = before.attributes.get("input_layout", "nc")
        if layout[axis : axis + 1] == "c":
            return True
    deviation = np.sqrt(variance.value.astype(np.float64) + node.attributes["epsilon"])
    has_small_means = bool((np.abs(mean.value) <= LARGE_MEAN * deviation).all())
    return axis == 1 and input.data_type == "float32" and has_small_means


@ort.lower(ops.batch_normalization)
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
    k, c = _scale_and_bias(ctx, mean.dims, input, scale, bias)
    if _is_native(ctx.node):
        # Between convolutions, the engine's optimiser converts this form to a convolution, and fuses it with later nodes.
        layout = "nchw" if axis == 1 else "nhwc"  # this transposition cancels that of the convolution's result
        x = ctx.relayout(input, layout, "nchw")
        y = ctx.emit("BatchNormalization", x, k, c, mean, variance, epsilon=epsilon, shape=x.dims)
        return ctx.relayout(y, "nchw", layout)
    # The kernel computes x k + (bias - mean k), which is inaccurate for large means, so subtract the mean first. Merge the
    # dimensions before and after the axis.
    channels, zeros = input.dims[axis], ctx.full(mean.dims, 0, input.data_type)
    shape = (prod(input.dims[:axis]), channels, prod(input.dims[axis + 1 :]))
    x = ctx.emit("Sub", ctx.reshape(input, shape), ctx.reshape(mean, [channels, 1]), shape=shape)
    y = ctx.emit("BatchNormalization", x, k, c, zeros, variance, epsilon=epsilon, shape=shape)
    return ctx.reshape(y, input.dims)


@ort.lower(ops.instance_normalization)
def _(ctx: Emitter, input: Value, scale: Value | None, bias: Value | None, epsilon: float, layout: str) -> Value:
    channels = [input.dims[layout.index("c")]]
    x = ctx.relayout(input, layout, "nchw")
    k, c = _scale_and_bias(ctx, channels, input, scale, bias)
    y = ctx.emit("InstanceNormalization", x, k, c, epsilon=epsilon, shape=x.dims)
    return ctx.relayout(y, "nchw", layout)


@ort.lower(ops.layer_normalization)
def _(
    ctx: Emitter, input: Value, scale: Value | None, bias: Value | None, axes: Sequence[int], epsilon: float
) -> Value:
    # The engine normalises over the last axes, in order; scale and bias, mostly constants, are transposed to match.
    order = sorted(range(len(axes)), key=lambda i: axes[i])
    k, c = (None if o is None else ctx.transpose(o, order) for o in (scale, bias))
    last = sorted(axes)
    others = [axis for axis in range(input.rank) if axis not in axes]
    permutation = [*others, *last]
    x = ctx.transpose(input, permutation)
    sizes = [input.dims[axis] for axis in last]
    if not axes:  # each value is its own mean: add an axis of size 1
        x, sizes = ctx.reshape(x, [*x.dims, 1]), [1]
        k, c = (None if o is None else ctx.reshape(o, [1]) for o in (k, c))
    k = k or ctx.full(sizes, 1, input.data_type)
    y = ctx.emit("LayerNormalization", x, k, c, axis=len(others), epsilon=epsilon, shape=x.dims)
    y = ctx.reshape(y, [input.dims[axis] for axis in permutation])
    return ctx.transpose(y, [permutation.index(axis) for axis in range(input.rank)])


ort.rename({ops.softmax: "Softmax"})


def _has_window(input: Operand, size: int, alpha: float, beta: float) -> bool:
    """Whether the kernel takes the size, which must be odd, and alpha and beta, which must be positive."""
    from ....composites.normalization import MAX_WINDOW  # other graphs do without that module

    return is_single(input) and size % 2 == 1 and size <= MAX_WINDOW and alpha > 0 and beta > 0


ort.rename({"local_response_normalization": "LRN"}, when=_has_window)


@ort.lower_contrib("rms_normalization")
def _(ctx: Emitter, input: Value, scale: Value, axis: int, epsilon: float) -> Value:
    # The engine adds this operator to ONNX's own domain, and its optimiser fuses it.
    return ctx.emit("SimplifiedLayerNormalization", input, scale, axis=axis, epsilon=epsilon, shape=input.dims)


# For other axes, the engine transposes before and after, which is slower than the decomposition.
ort.rename({"log_softmax": "LogSoftmax"}, when=lambda input, axis: is_single(input) and axis == input.rank - 1)
