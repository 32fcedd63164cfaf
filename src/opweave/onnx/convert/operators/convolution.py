"""ONNX convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .... import composites
from ....context.builder import MLGraphBuilder
from ....core.graph import MLOperand
from ....core.shapes import smallest_size
from ....core.size_functions import larger
from ...model.registry import MICROSOFT, Tensor, converts, integers, shape_of, unsupported_if
from .activation import activate
from .windows import PLAIN, WindowAttributes, halve, options, with_two_axes, without_added_axis


@converts("Conv")
def convolution(
    b: MLGraphBuilder,
    X: Tensor,
    W: Tensor,
    B: Tensor | None = None,
    *,
    group: int = 1,
    window: WindowAttributes = PLAIN,
) -> MLOperand:
    axes = window.of_filter(X, W)
    if len(axes) > 2:
        return composites.convolution(b, X, W, B, groups=group, **options(axes))
    y = b.conv2d(with_two_axes(b, X), with_two_axes(b, W), groups=group, bias=B, **options(axes))
    return without_added_axis(b, y, X)


@converts("ConvTranspose")
def transposed_convolution(
    b: MLGraphBuilder,
    X: Tensor,
    W: Tensor,
    B: Tensor | None = None,
    *,
    group: int = 1,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    window: WindowAttributes = PLAIN,
) -> MLOperand:
    auto_pad = window.auto_pad
    plain = replace(window, auto_pad="VALID" if auto_pad == "VALID" else "NOTSET").of_filter(X, W)
    rank = len(shape_of(X)) - 2
    extra = [0] * (2 - rank) + list(output_padding or [0] * rank)
    result_sizes = None if output_shape is None else [1] * (2 - rank) + list(output_shape)[-rank:]
    if result_sizes is None and auto_pad.startswith("SAME"):
        result_sizes = [axis.size * axis.stride for axis in plain]
    axes, sizes = [], []
    for position, (axis, more) in enumerate(zip(plain, extra, strict=True)):
        smallest = smallest_size(axis.size, axis.taps, 0, 0, axis.stride, axis.dilation) + more
        if result_sizes is not None:  # the padding cuts off the rest
            before, after = halve(larger(smallest - result_sizes[position], 0), auto_pad)
            axis = replace(axis, before=before, after=after)
        axes.append(axis)
        sizes.append(smallest - axis.before - axis.after if result_sizes is None else result_sizes[position])
    if len(axes) > 2:
        return composites.conv_transpose(b, X, W, B, groups=group, output_sizes=sizes, **options(axes))
    y = b.conv_transpose2d(
        with_two_axes(b, X), with_two_axes(b, W), groups=group, bias=B, output_sizes=sizes, **options(axes)
    )
    return without_added_axis(b, y, X)


@converts("FusedConv", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    X: Tensor,
    W: Tensor,
    B: Tensor | None = None,
    Z: Tensor | None = None,
    *,
    activation: str = "",
    activation_params: Sequence[float] | None = None,
    group: int = 1,
    window: WindowAttributes = PLAIN,
) -> MLOperand:
    y = convolution(b, X, W, B, group=group, window=window)
    y = y if Z is None else b.add(y, Z)
    parameters = activation_params or ()
    if activation == "Clip" and len(parameters) == 2:
        return b.clamp(y, min_value=float(parameters[0]), max_value=float(parameters[1]))
    return activate(b, y, activation, parameters)


@converts("DeformConv")
def _(
    b: MLGraphBuilder,
    X: Tensor,
    W: Tensor,
    offset: Tensor,
    B: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    group: int = 1,
    offset_group: int = 1,
    window: WindowAttributes = PLAIN,
) -> MLOperand:
    rank = len(shape_of(X)) - 2
    unsupported_if(rank != 2, f"Opweave has deformable convolutions over two axes, not over {rank}")
    axes = replace(window, auto_pad="NOTSET").of_filter(X, W)
    return composites.deform_conv(b, X, W, offset, mask, B, groups=group, offset_groups=offset_group, **options(axes))


@converts("Col2Im")
def _(
    b: MLGraphBuilder,
    input: Tensor,
    image_shape: Tensor,
    block_shape: Tensor,
    *,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> MLOperand:
    image, block = integers(image_shape, "image_shape"), integers(block_shape, "block_shape")
    axes = len(image)
    padding = None if pads is None else [pad for pair in zip(pads[:axes], pads[axes:], strict=True) for pad in pair]
    return composites.col2im(b, input, image, block, padding=padding, strides=strides, dilations=dilations)
