"""OpenVINO rules: convolutions and resampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ....core.graph import Operand
from ....core.shapes import conv_transpose_size, nearest_positions
from ....ops import convolution as ops
from ..backend import openvino
from ..emit import Emitter, Value
from .shared import is_float


@openvino.lower(ops.conv2d, ops.conv_transpose2d)
def _(
    ctx: Emitter,
    input: Value,
    filter: Value,
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    groups: int,
    input_layout: str,
    filter_layout: str,
    bias: Value | None,
    **attributes: Any,
) -> Value:
    x = ctx.relayout(input, input_layout, "nchw")
    w = ctx.relayout(filter, filter_layout, "iohw" if ctx.node.op is ops.conv_transpose2d else "oihw")
    y = _convolve(ctx, x, w, bias, padding, strides, dilations, groups, attributes)
    return ctx.relayout(y, "nchw", input_layout)


@openvino.lower("convolution", "conv_transpose")
def _(
    ctx: Emitter,
    input: Value,
    filter: Value,
    bias: Value | None,
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    groups: int,
    **attributes: Any,
) -> Value:
    return _convolve(ctx, input, filter, bias, padding, strides, dilations, groups, attributes)


def _convolve(
    ctx: Emitter,
    x: Value,
    w: Value,
    bias: Value | None,
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    groups: int,
    attributes: Mapping[str, Any],
) -> Value:
    """Convolve an image [n, c, *axes]."""
    is_transposed = "output_sizes" in attributes
    is_grouped = groups > 1
    if not is_transposed and max(w.shape[2:]) == 1 and max(strides) > 1 and any(padding):
        # The engine moves strides of a 1x1 convolution into the convolution before, which is wrong if there is padding. It
        # leaves grouped convolutions alone, so emit one with a single group.
        is_grouped = True
    if not is_transposed and (ctx.precision == "bfloat16" or ctx.node in ctx.dequantised.products):
        x, padding, strides = _crop(ctx, x, w.shape[2:], padding, strides, dilations)
    window: dict[str, Any] = {
        "strides": list(strides),
        "pads_begin": list(padding[::2]),
        "pads_end": list(padding[1::2]),
        "dilations": list(dilations),
    }
    name = "convolution_backprop_data" if is_transposed else "convolution"
    if is_transposed:
        axes = zip(x.shape[2:], w.shape[2:], padding[::2], padding[1::2], strides, dilations, strict=True)
        smallest = [conv_transpose_size(*axis) for axis in axes]
        added = [size - least for size, least in zip(attributes["output_sizes"], smallest, strict=True)]
        window |= {"output_padding": added}
    w = ctx.weights(w, name)
    if is_grouped:
        name = f"group_{name}"
        w = ctx.reshape(w, [groups, w.shape[0] // groups, *w.shape[1:]])
    y = ctx.emit(name, x, w, **window)
    if bias is not None:
        y = ctx.emit("add", y, ctx.reshape(bias, [1, *bias.shape, *[1] * (w.rank - 2 - is_grouped)]))
    return y


def _crop(
    ctx: Emitter,
    x: Value,
    taps: Sequence[int],
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> tuple[Value, list[int], list[int]]:
    """Crop the input to the window along each axis that has one output; return the crop, its padding and its strides.

    The stride along such an axis becomes 1: AMX kernels of bfloat16 and of 8 bits are wrong for an output width of 1 with
    a stride (https://github.com/pytorch/pytorch/pull/188426).
    """
    before, after, steps, sizes = list(padding[::2]), list(padding[1::2]), list(strides), list(x.shape[2:])
    axes = range(len(steps))
    for axis in axes:
        extent = (taps[axis] - 1) * dilations[axis] + 1
        unread = before[axis] + sizes[axis] + after[axis] - extent
        if steps[axis] == 1 or unread >= steps[axis]:
            continue
        steps[axis] = 1
        sizes[axis] -= max(0, unread - after[axis])
        after[axis] = max(0, after[axis] - unread)
    cropped = [axis for axis in axes if sizes[axis] < x.shape[2 + axis]]
    if cropped:
        ends, ones = [sizes[axis] for axis in cropped], [1] * len(cropped)
        slice_axes = [2 + axis for axis in cropped]
        x = ctx.emit("slice", x, *map(ctx.constant, ([0] * len(cropped), ends, ones, slice_axes)))
    return x, [pad for pair in zip(before, after, strict=True) for pad in pair], steps


def _interpolate(ctx: Emitter, input: Value, axes: Sequence[int], mode: str, **attributes: Any) -> Value:
    """Resample `input` along `axes`; the engine's kernel resamples the last two axes."""
    order = [axis for axis in range(4) if axis not in axes] + sorted(axes)
    x = ctx.transpose(input, order)
    shape = ctx.constant([ctx.output.shape[axis] for axis in sorted(axes)])
    y = ctx.emit("interpolate", x, shape, mode, "sizes", axes=ctx.constant([2, 3]), **attributes)
    return ctx.transpose(y, [order.index(axis) for axis in range(4)])


def _is_repeated(input: Operand, mode: str, sizes: Sequence[int], axes: Sequence[int]) -> bool:
    """Whether all scales are integers: the engine then divides positions by an integer, which is exact."""
    is_whole = all(size % input.shape[axis] == 0 for size, axis in zip(sizes, axes, strict=True))
    return mode == "nearest-neighbor" and is_float(input) and is_whole


@openvino.lower(ops.resample2d, when=_is_repeated)
def _(ctx: Emitter, input: Value, axes: Sequence[int]) -> Value:
    transformation = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return _interpolate(ctx, input, axes, "nearest", **transformation)


@openvino.lower(ops.resample2d, when=lambda mode: mode == "nearest-neighbor")
def _(ctx: Emitter, input: Value, sizes: Sequence[int], axes: Sequence[int]) -> Value:
    # Gather, not interpolate: the engine computes positions in float32, and chooses other neighbours near ties.
    y = input
    for axis, size in zip(axes, sizes, strict=True):
        if size != input.shape[axis]:
            positions = ctx.constant(nearest_positions(input.shape[axis], size))
            y = ctx.emit("gather", y, positions, ctx.constant(axis))
    return y


@openvino.lower(ops.resample2d, when=is_float)
def _(ctx: Emitter, input: Value, axes: Sequence[int]) -> Value:
    return _interpolate(ctx, input, axes, "linear_onnx")
