"""ONNX poolings."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ...builder import MLGraphBuilder
from ...graph import MLOperand
from ..registry import Tensor, Unsupported, converts, operand, shape_of
from .windows import Windows, with_two_axes


def _operand(b: MLGraphBuilder, value: Tensor) -> MLOperand:
    return value if isinstance(value, MLOperand) else b.constant(value)


def _restored(b: MLGraphBuilder, y: MLOperand, windows: Windows) -> MLOperand:
    """The result with as many spatial axes as the input had."""
    return y if windows.rank == 2 else b.reshape(y, [*y.shape[:2], y.shape[3]])


@converts("MaxPool")
def _(
    b: MLGraphBuilder,
    X: Tensor,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    storage_order: int = 0,  # of the indices, which WebNN does not give
    strides: Sequence[int] | None = None,
) -> MLOperand:
    windows = Windows.of(shape_of(X)[2:], kernel_shape, strides, dilations, pads, auto_pad)
    windows = windows.reaching(windows.counts(bool(ceil_mode)))
    y = b.max_pool2d(operand(b, with_two_axes(b, X)), window_dimensions=windows.window_dimensions, **windows.options)
    return _restored(b, y, windows)


def _mean(
    b: MLGraphBuilder, x: MLOperand, windows: Windows, counts: Sequence[int], *, padding_counts: bool
) -> MLOperand:
    """The means of windows over an image with two axes."""
    if padding_counts:
        x, windows = windows.pad(b, x), windows.padded()
    windows = windows.reaching(counts)
    return b.average_pool2d(x, window_dimensions=windows.window_dimensions, **windows.options)


@converts("AveragePool")
def _(
    b: MLGraphBuilder,
    X: Tensor,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> MLOperand:
    windows = Windows.of(shape_of(X)[2:], kernel_shape, strides, dilations, pads, auto_pad)
    counts = windows.counts(bool(ceil_mode))
    x = operand(b, with_two_axes(b, X))
    return _restored(b, _mean(b, x, windows, counts, padding_counts=bool(count_include_pad)), windows)


@converts("LpPool")
def _(
    b: MLGraphBuilder,
    X: Tensor,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int],
    p: int = 2,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> MLOperand:
    windows = Windows.of(shape_of(X)[2:], kernel_shape, strides, dilations, pads, auto_pad)
    windows = windows.reaching(windows.counts(bool(ceil_mode)))  # zeros add nothing to a norm
    x = operand(b, with_two_axes(b, X))
    if p == 2:
        y = b.l2_pool2d(x, window_dimensions=windows.window_dimensions, **windows.options)
        return _restored(b, y, windows)
    powers = b.abs(x) if p == 1 else b.pow(b.abs(x), float(p))
    mean = _mean(b, powers, windows, windows.counts(False), padding_counts=True)
    total = b.mul(mean, float(prod(windows.taps)))
    return _restored(b, total if p == 1 else b.pow(total, 1 / p), windows)


def _spatial(x: MLOperand) -> list[int]:
    if x.rank < 3:
        raise Unsupported(f"it has no spatial axes, for its input has rank {x.rank}")
    return list(range(2, x.rank))


@converts("GlobalAveragePool")
def _(b: MLGraphBuilder, X: Tensor) -> MLOperand:
    x = operand(b, X)
    if x.rank == 4:
        return b.average_pool2d(x)
    return b.reduce_mean(x, axes=_spatial(x), keep_dimensions=True)


@converts("GlobalMaxPool")
def _(b: MLGraphBuilder, X: Tensor) -> MLOperand:
    x = operand(b, X)
    if x.rank == 4:
        return b.max_pool2d(x)
    return b.reduce_max(x, axes=_spatial(x), keep_dimensions=True)


@converts("GlobalLpPool")
def _(b: MLGraphBuilder, X: Tensor, *, p: int = 2) -> MLOperand:
    x = operand(b, X)
    axes = _spatial(x)
    if p == 1:
        return b.reduce_l1(x, axes=axes, keep_dimensions=True)
    if p == 2:
        return b.reduce_l2(x, axes=axes, keep_dimensions=True)
    total = b.reduce_sum(b.pow(b.abs(x), float(p)), axes=axes, keep_dimensions=True)
    return b.pow(total, 1 / p)
