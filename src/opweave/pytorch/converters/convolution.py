"""Convolutions, and the rearrangement of windows as columns."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ... import composites
from ...context.builder import MLGraphBuilder
from ...core.graph import MLOperand
from ..registry import converts, refuse_if
from .windows import both_sides, values_of, with_batches

MAX_TAPS = 1024
"""The largest number of elements of a window whose columns are made by slices, one for each: an estimate."""


def _convolve(
    b: MLGraphBuilder, x: MLOperand, weight: MLOperand, bias: MLOperand | None, *, groups: int, **window: Any
) -> MLOperand:
    if x.rank == 4:
        return b.conv2d(x, weight, bias=bias, groups=groups, **window)
    if x.rank == 3:
        # One row: engines have more kernels for two axes.
        y = b.conv2d(
            _with_row(b, x), _with_row(b, weight), bias=bias, groups=groups, padding=[0, 0, *window["padding"]],
            strides=[1, *window["strides"]], dilations=[1, *window["dilations"]],
        )  # fmt: skip
        return _without_row(b, y)
    result: MLOperand = composites.convolution(b, x, weight, bias, groups=groups, **window)
    return result


def _convolve_transposed(
    b: MLGraphBuilder,
    x: MLOperand,
    weight: MLOperand,
    bias: MLOperand | None,
    *,
    groups: int,
    output_padding: Sequence[int],
    **window: Any,
) -> MLOperand:
    # PyTorch allows an output padding that is less than the dilation, where the stride is not greater.
    over = [more >= stride for more, stride in zip(output_padding, window["strides"], strict=True)]
    refuse_if(any(over), f"output_padding {list(output_padding)} is not less than the stride")
    if x.rank == 4:
        return b.conv_transpose2d(x, weight, bias=bias, groups=groups, output_padding=output_padding, **window)
    if x.rank == 3:
        y = b.conv_transpose2d(
            _with_row(b, x), _with_row(b, weight), bias=bias, groups=groups, output_padding=[0, *output_padding],
            padding=[0, 0, *window["padding"]], strides=[1, *window["strides"]], dilations=[1, *window["dilations"]],
        )  # fmt: skip
        return _without_row(b, y)
    result: MLOperand = composites.conv_transpose(
        b, x, weight, bias, groups=groups, output_padding=output_padding, **window
    )
    return result


def _with_row(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    return b.reshape(x, [*x.shape[:2], 1, x.shape[2]])


def _without_row(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    return b.reshape(x, [*x.shape[:2], x.shape[3]])


@converts("aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default")
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    weight: MLOperand,
    bias: MLOperand | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> MLOperand:
    return convolution(b, input, weight, bias, stride, padding, dilation, False, [0], groups)


@converts("aten.conv1d.padding", "aten.conv2d.padding", "aten.conv3d.padding")
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    weight: MLOperand,
    bias: MLOperand | None = None,
    stride: Sequence[int] = (1,),
    padding: str = "valid",
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> MLOperand:
    axes = weight.rank - 2
    strides, dilations = values_of(stride, axes), values_of(dilation, axes)
    totals = [(taps - 1) * dilation for taps, dilation in zip(weight.shape[2:], dilations, strict=True)]
    # Of an odd number, the larger half is after the input.
    same = [side for total in totals for side in (total // 2, total - total // 2)]
    window = {"padding": same if padding == "same" else [0] * 2 * axes, "strides": strides, "dilations": dilations}
    return with_batches(b, input, axes + 2, lambda x: _convolve(b, x, weight, bias, groups=groups, **window))


@converts("aten.convolution.default", "aten._convolution.default")
def convolution(
    b: MLGraphBuilder,
    input: MLOperand,
    weight: MLOperand,
    bias: MLOperand | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    *_flags: bool,
) -> MLOperand:
    """Convolve, or compute the gradient of a convolution, over one to three axes; flags choose PyTorch's own kernels."""
    axes = weight.rank - 2
    window: dict[str, Any] = {
        "padding": both_sides(values_of(padding, axes)),
        "strides": values_of(stride, axes),
        "dilations": values_of(dilation, axes),
        "groups": groups,
    }
    if transposed:
        window["output_padding"] = values_of(output_padding, axes)
    run = _convolve_transposed if transposed else _convolve
    return with_batches(b, input, axes + 2, lambda x: run(b, x, weight, bias, **window))


@converts("aten.conv_transpose1d.default", "aten.conv_transpose2d.input", "aten.conv_transpose3d.input")
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    weight: MLOperand,
    bias: MLOperand | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    output_padding: Sequence[int] = (0,),
    groups: int = 1,
    dilation: Sequence[int] = (1,),
) -> MLOperand:
    return convolution(b, input, weight, bias, stride, padding, dilation, True, output_padding, groups)


@converts("aten.im2col.default")
def _(
    b: MLGraphBuilder,
    self: MLOperand,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> MLOperand:
    """The taps of a window as channels, by slices: [batches, channels * taps, windows]."""
    windows = list(zip(*(values_of(value, 2) for value in (kernel_size, padding, stride, dilation)), strict=True))

    def columns(x: MLOperand) -> MLOperand:
        before = [pad for _, pad, _, _ in windows]
        x = b.pad(x, [0, 0, *before], [0, 0, *before]) if any(before) else x
        counts = [
            (size - (taps - 1) * spacing - 1) // step + 1
            for size, (taps, _, step, spacing) in zip(x.shape[2:], windows, strict=True)
        ]
        (rows, _, down, tall), (across, _, right, wide) = windows
        reach = [(counts[0] - 1) * down + 1, (counts[1] - 1) * right + 1]
        taps = [
            b.slice(x, [0, 0, i * tall, j * wide], [*x.shape[:2], *reach], strides=[1, 1, down, right])
            for i in range(rows)
            for j in range(across)
        ]
        batches, channels = x.shape[:2]
        parts = [b.reshape(tap, [batches, channels, 1, counts[0] * counts[1]]) for tap in taps]
        joined = parts[0] if len(parts) == 1 else b.concat(parts, 2)
        return b.reshape(joined, [batches, channels * len(parts), counts[0] * counts[1]])

    refuse_if(
        prod(taps for taps, *_ in windows) > MAX_TAPS,
        f"its windows have {list(kernel_size)} elements, more than {MAX_TAPS:,}",
    )
    result: MLOperand = with_batches(b, self, 4, columns)
    return result


@converts("aten.col2im.default")
def _(
    b: MLGraphBuilder,
    self: MLOperand,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> MLOperand:
    options = {
        "padding": both_sides(values_of(padding, 2)),
        "strides": values_of(stride, 2),
        "dilations": values_of(dilation, 2),
    }
    result: MLOperand = with_batches(
        b, self, 3, lambda x: composites.col2im(b, x, list(output_size), values_of(kernel_size, 2), **options)
    )
    return result
