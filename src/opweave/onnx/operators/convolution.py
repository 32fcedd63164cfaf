"""ONNX convolutions."""

from __future__ import annotations

from collections.abc import Sequence

from ...builder import MLGraphBuilder
from ...graph import MLOperand
from ...shapes import conv_transpose_size, window_extent
from ..registry import MICROSOFT, Tensor, Unsupported, converts, shape_of
from .windows import Windows, halved, with_two_axes


@converts("Conv")
def convolution(
    b: MLGraphBuilder,
    X: Tensor,
    W: Tensor,
    B: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> MLOperand:
    taps = shape_of(W)[2:]
    if kernel_shape is not None and tuple(kernel_shape) != taps:
        raise Unsupported(f"kernel_shape {list(kernel_shape)} is not that of the filter, {list(taps)}")
    windows = Windows.of(shape_of(X)[2:], taps, strides, dilations, pads, auto_pad)
    y = b.conv2d(with_two_axes(b, X), with_two_axes(b, W), groups=group, bias=B, **windows.options)
    return _with_axes(b, y, windows)


def _with_axes(b: MLGraphBuilder, y: MLOperand, windows: Windows) -> MLOperand:
    """The result with as many spatial axes as the input had."""
    return y if windows.rank == 2 else b.reshape(y, [*y.shape[:2], y.shape[3]])


@converts("ConvTranspose")
def _(
    b: MLGraphBuilder,
    X: Tensor,
    W: Tensor,
    B: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> MLOperand:
    sizes, taps = shape_of(X)[2:], shape_of(W)[2:]
    if kernel_shape is not None and tuple(kernel_shape) != taps:
        raise Unsupported(f"kernel_shape {list(kernel_shape)} is not that of the filter, {list(taps)}")
    plain = Windows.of(sizes, taps, strides, dilations, pads, "NOTSET")
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
    return _with_axes(b, y, windows)


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
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> MLOperand:
    y = convolution(
        b,
        X,
        W,
        B,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    y = y if Z is None else b.add(y, Z)
    match activation, [float(parameter) for parameter in activation_params or ()]:
        case "", _:
            return y
        case "Relu", _:
            return b.relu(y)
        case "Sigmoid", _:
            return b.sigmoid(y)
        case "Tanh", _:
            return b.tanh(y)
        case "LeakyRelu", [alpha]:
            return b.leaky_relu(y, alpha=alpha)
        case "Clip", [low, high]:
            return b.clamp(y, min_value=low, max_value=high)
        case "HardSigmoid", [alpha, beta]:
            return b.hard_sigmoid(y, alpha=alpha, beta=beta)
    raise Unsupported(f"its activation is {activation}")
