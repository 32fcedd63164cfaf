"""ONNX Runtime rules: convolutions and resampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ....core.shapes import nearest_positions, sample_positions, smallest_size
from ....core.sizes import Dimension, is_same_size, is_static
from ....ops import convolution as ops
from ..backend import ort
from ..barriers import keep_resized_axes
from ..emit import Emitter, Value
from ..products import emit_product
from .shared import row_of

POSITION_ERROR = 2.0**-21
"""Upper bound of the relative error of a position computed in float32."""


@ort.lower(ops.conv2d, ops.conv_transpose2d)
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
    is_transposed = ctx.node.op is ops.conv_transpose2d
    x = ctx.relayout(input, input_layout, "nchw")
    w = ctx.relayout(filter, filter_layout, "iohw" if is_transposed else "oihw")
    channel_axis = filter_layout.index("o")
    is_row = is_same_size(w.dims[2], 1) and list(padding[:2]) == [0, 0]
    is_row = is_row and (not is_transposed or is_same_size(attributes["output_sizes"][0], 1))
    if is_row and (row := row_of(ctx, x)) is not None:
        taps = ctx.reshape(w, (*w.dims[:2], w.dims[3]))
        if is_transposed:
            attributes["output_sizes"] = attributes["output_sizes"][1:]
        y = _convolve(ctx, row, taps, bias, channel_axis, padding[2:], strides[1:], dilations[1:], groups, attributes)
        batches, channels, _, width = (ctx.output.shape[input_layout.index(letter)] for letter in "nchw")
        y = ctx.reshape(Value(y.name, y.data_type, (batches, channels, width)), (batches, channels, 1, width))
    else:
        y = _convolve(ctx, x, w, bias, channel_axis, padding, strides, dilations, groups, attributes)
    return ctx.relayout(y, "nchw", input_layout)


@ort.lower("convolution", "conv_transpose")
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
    channel_axis = 1 if "output_sizes" in attributes else 0
    return _convolve(ctx, input, filter, bias, channel_axis, padding, strides, dilations, groups, attributes)


def _convolve(
    ctx: Emitter,
    x: Value,
    w: Value,
    bias: Value | None,
    channel_axis: int,
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    groups: int,
    attributes: Mapping[str, Any],
) -> Value:
    """Convolve an image [n, c, *axes].

    `channel_axis` is the axis of the output channels in the node's own filter, whose layout may differ from that of `w`.
    """
    is_transposed = "output_sizes" in attributes
    output_padding = None
    if is_transposed:
        windows = zip(x.dims[2:], w.dims[2:], padding[::2], padding[1::2], strides, dilations, strict=True)
        smallest = [smallest_size(*window) for window in windows]
        output_padding = [size - least for size, least in zip(attributes["output_sizes"], smallest, strict=True)]
    y: Value = emit_product(
        ctx,
        "ConvTranspose" if is_transposed else "Conv",
        *(x, w, bias),
        axis=channel_axis,
        kernel_shape=w.dims[2:] if is_static(w.dims[2:]) else None,
        pads=[*padding[::2], *padding[1::2]],
        strides=strides,
        dilations=dilations,
        output_padding=output_padding,
        group=groups,
    )
    return y


@ort.lower("deform_conv")
def _(
    ctx: Emitter,
    input: Value,
    filter: Value,
    offset: Value,
    mask: Value | None,
    bias: Value | None,
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    groups: int,
    offset_groups: int,
) -> Value:
    return ctx.emit(
        "DeformConv",
        *(input, filter, offset, bias, mask),
        kernel_shape=filter.dims[2:] if is_static(filter.dims[2:]) else None,
        pads=[*padding[::2], *padding[1::2]],
        strides=strides,
        dilations=dilations,
        group=groups,
        offset_group=offset_groups,
    )


def _col2im_is_right(image_sizes: Sequence[int], window_dimensions: Sequence[int], dilations: Sequence[int]) -> bool:
    """Whether the engine's Col2Im gives right results: it handles dilations over two axes only."""
    pairs = zip(window_dimensions, dilations, strict=True)
    return len(image_sizes) == 2 or all(taps == 1 or dilation == 1 for taps, dilation in pairs)


@ort.lower("col2im", when=_col2im_is_right)
def _(
    ctx: Emitter,
    input: Value,
    image_sizes: Sequence[int],
    window_dimensions: Sequence[int],
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> Value:
    return ctx.emit(
        "Col2Im",
        input,
        ctx.constant(list(image_sizes)),
        ctx.constant(list(window_dimensions)),
        pads=[*padding[::2], *padding[1::2]],
        strides=strides,
        dilations=dilations,
    )


def engine_agrees(input: int, output: int) -> bool:
    """Whether the engine, which computes positions in float32, chooses the same nearest elements as the specification.

    The choice may differ for positions close to half-way between two elements, unless the scale is a power of two.
    """
    input, output = int(input), int(output)
    numerators, denominator = sample_positions(input, output)
    # Distances from the tie below each position, in units of 1 / (2 * denominator).
    past_tie = (2 * np.array(numerators) - denominator) % (2 * denominator)
    margin = np.minimum(past_tie, 2 * denominator - past_tie).min() / (2 * denominator)
    ratio = input // output
    exact = input == ratio * output and ratio & (ratio - 1) == 0 and input < 2**22
    return exact or bool(margin > input * POSITION_ERROR) or _rounds_alike(input, output)


def _rounds_alike(input: int, output: int) -> bool:
    """Whether the engine's computation, repeated here in float32, chooses the same elements as the specification."""
    half = np.float32(0.5)
    positions = (np.arange(output, dtype=np.float32) + half) / (np.float32(output) / np.float32(input)) - half
    nearest = np.clip(np.ceil(positions - half), 0, input - 1).astype(np.int64)
    return nearest.tolist() == nearest_positions(input, output)


def _resize(ctx: Emitter, x: Value, shape: Sequence[int], **attributes: Any) -> Value:
    return ctx.emit("Resize", x, None, None, ctx.constant(list(shape)), shape=shape, **attributes)


@ort.lower(ops.resample2d)
def _(ctx: Emitter, input: Value, mode: str, sizes: Sequence[int], axes: Sequence[int]) -> Value:
    changed = [(axis, size) for axis, size in zip(axes, sizes, strict=True) if size != input.dims[axis]]
    if mode == "nearest-neighbor":
        return _nearest(ctx, input, changed)
    if input.data_type in ("int8", "uint8"):
        return _linear_of_integers(ctx, input, changed)
    # The engine interpolates over the last two axes only.
    order = [axis for axis in range(4) if axis not in axes] + sorted(axes)
    shape = [ctx.output.shape[axis] for axis in order]
    x = ctx.transpose(input, order)
    keep_resized_axes(ctx, x)
    y = _resize(ctx, x, shape, mode="linear", coordinate_transformation_mode="half_pixel")
    return ctx.transpose(y, [order.index(axis) for axis in range(4)])


def _nearest(ctx: Emitter, x: Value, changed: Sequence[tuple[int, int]]) -> Value:
    if not changed:
        return x
    shape = ctx.output.shape
    if all(is_same_size(size % x.dims[axis], 0) for axis, size in changed):
        # For integer scales, this mode lets the engine's optimiser keep its blocked layout between convolutions.
        return _resize(ctx, x, shape, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    has_numbers = all(is_static((x.dims[axis], size)) for axis, size in changed)
    if has_numbers and all(engine_agrees(x.dims[axis], size) for axis, size in changed):
        mode, nearest = "half_pixel", "round_prefer_floor"
        return _resize(ctx, x, shape, mode="nearest", coordinate_transformation_mode=mode, nearest_mode=nearest)
    y = x
    for axis, size in changed:
        y = ctx.emit("Gather", y, _nearest_positions(ctx, x.dims[axis], size), axis=axis)
    return y


def _nearest_positions(ctx: Emitter, old: Dimension, new: Dimension) -> Value:
    """Emit the index of the nearest of `old` elements for each of `new` elements.

    The indices are a constant for numbers; for sizes with names, the model computes them.
    """
    if isinstance(old, int) and isinstance(new, int):
        return ctx.constant(nearest_positions(old, new))
    # ceil(p - 1/2) for p = ((2 i + 1) old - new) / (2 new) = floor(((4 i + 2) old - 1) / (4 new)), as all terms are 0 or more.
    # No clamp is needed.
    numerators = ctx.emit("Add", ctx.emit("Mul", _range(ctx, new), ctx.constant(4 * old)), ctx.constant(2 * old - 1))
    positions: Value = ctx.emit("Div", numerators, ctx.constant(4 * new))
    return positions


def _range(ctx: Emitter, count: Dimension) -> Value:
    numbers: Value = ctx.emit("Range", ctx.constant(0), ctx.constant(count), ctx.constant(1))
    return numbers


def _linear_positions(ctx: Emitter, old: Dimension, new: Dimension) -> tuple[Value, Value, Value, Dimension]:
    """Emit the two old neighbours of each new element, of `old` and `new` elements.

    Return the index of the neighbour before each new element, the index of the one behind it, the weight of the latter (a
    whole float64 in [0, total)), and `total`, the sum of both weights.
    """
    if isinstance(old, int) and isinstance(new, int):
        numerators, total = sample_positions(old, new)
        before, remainder = np.divmod(numerators, total)
        return ctx.constant(before), ctx.constant(before + (remainder > 0)), ctx.constant(remainder, "float64"), total
    total = 2 * new
    numerator = ctx.emit("Add", ctx.emit("Mul", _range(ctx, new), ctx.constant(2 * old)), ctx.constant(old - new))
    numerator = ctx.emit("Min", ctx.emit("Max", numerator, ctx.constant(0)), ctx.constant(total * (old - 1)))
    first = ctx.emit("Div", numerator, ctx.constant(total))
    remainder = ctx.emit("Sub", numerator, ctx.emit("Mul", first, ctx.constant(total)))
    # The last element has no neighbour behind it; there, the remainder is 0.
    second = ctx.emit("Min", ctx.emit("Add", first, ctx.constant(1)), ctx.constant(old - 1))
    return first, second, ctx.cast(remainder, "float64"), total


def _linear_of_integers(ctx: Emitter, x: Value, changed: Sequence[tuple[int, int]]) -> Value:
    """Interpolate linearly and round to nearest, ties to even; the engine would truncate.

    Weights are integers, and the sum is divided last, so all steps are exact in float64.
    """
    result = ctx.cast(x, "float64")
    divisor: Dimension = 1
    for axis, size in changed:
        before, behind, weight, total = _linear_positions(ctx, x.dims[axis], size)
        weight = ctx.emit("Reshape", weight, ctx.constant([-1 if a == axis else 1 for a in range(4)]))
        low, high = (ctx.emit("Gather", result, indices, axis=axis) for indices in (before, behind))
        low = ctx.emit("Mul", low, ctx.emit("Sub", ctx.constant(total, "float64"), weight))
        result = ctx.emit("Add", low, ctx.emit("Mul", high, weight))
        divisor *= total
    quotient = ctx.emit("Div", result, ctx.constant(divisor, "float64"))
    return ctx.cast(ctx.emit("Round", quotient), x.data_type)
