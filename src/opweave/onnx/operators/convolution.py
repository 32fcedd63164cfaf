"""ONNX convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...builder import MLGraphBuilder
from ...graph import MLOperand
from ...shapes import conv_transpose_size, window_extent
from ..registry import MICROSOFT, Tensor, converts
from .activation import activated
from .windows import PLAIN, WindowAttributes, Windows, halved, with_two_axes, without_added_axis


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
    windows = window.of_filter(X, W)
    y = b.conv2d(with_two_axes(b, X), with_two_axes(b, W), groups=group, bias=B, **windows.options)
    return without_added_axis(b, y, windows)


@converts("ConvTranspose")
def _(
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
    plain = replace(window, auto_pad="NOTSET").of_filter(X, W)
    auto_pad, sizes, taps = window.auto_pad, plain.sizes, plain.taps
    more = list(output_padding or [0] * plain.rank)
    if output_shape is None and auto_pad.startswith("SAME"):
        output_shape = [size * stride for size, stride in zip(sizes, plain.strides, strict=True)]
    before, after, results = [], [], []
    for axis in range(plain.rank):
        size, tap, stride, dilation = sizes[axis], taps[axis], plain.strides[axis], plain.dilations[axis]
        if output_shape is None:
            pair = (0, 0) if auto_pad == "VALID" else (plain.before[axis], plain.after[axis])
            result = conv_transpose_size(size, tap, *pair, stride, dilation) + more[axis]
        else:
            result = list(output_shape)[-plain.rank :][axis]
            total = (size - 1) * stride + more[axis] + window_extent(tap, dilation) - result
            pair = halved(max(total, 0), auto_pad)
        before.append(pair[0])
        after.append(pair[1])
        results.append(result)
    windows = Windows(plain.rank, sizes, taps, plain.strides, plain.dilations, before, after)
    y = b.conv_transpose2d(
        with_two_axes(b, X),
        with_two_axes(b, W),
        groups=group,
        bias=B,
        output_sizes=[1] * (2 - plain.rank) + results,
        **windows.options,
    )
    return without_added_axis(b, y, windows)


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
    return activated(b, y, activation, parameters)
