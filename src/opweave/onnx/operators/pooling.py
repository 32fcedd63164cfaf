"""ONNX poolings."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ...builder import MLGraphBuilder
from ...graph import MLOperand
from ..registry import Tensor, Unsupported, converts, operand
from .windows import PLAIN, WindowAttributes, Windows, with_two_axes, without_added_axis


@converts("MaxPool")
def _(
    b: MLGraphBuilder,
    X: Tensor,
    *,
    ceil_mode: int = 0,
    storage_order: int = 0,  # of the indices, which WebNN does not give
    window: WindowAttributes = PLAIN,
) -> MLOperand:
    windows = window.of_pooling(X)
    windows = windows.reaching(windows.counts(bool(ceil_mode)))
    y = b.max_pool2d(operand(b, with_two_axes(b, X)), window_dimensions=windows.window_dimensions, **windows.options)
    return without_added_axis(b, y, windows)


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
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    window: WindowAttributes = PLAIN,
) -> MLOperand:
    windows = window.of_pooling(X)
    counts = windows.counts(bool(ceil_mode))
    x = operand(b, with_two_axes(b, X))
    return without_added_axis(b, _mean(b, x, windows, counts, padding_counts=bool(count_include_pad)), windows)


@converts("LpPool")
def _(
    b: MLGraphBuilder,
    X: Tensor,
    *,
    ceil_mode: int = 0,
    p: int = 2,
    window: WindowAttributes = PLAIN,
) -> MLOperand:
    windows = window.of_pooling(X)
    windows = windows.reaching(windows.counts(bool(ceil_mode)))  # zeros add nothing to a norm
    x = operand(b, with_two_axes(b, X))
    if p == 2:
        y = b.l2_pool2d(x, window_dimensions=windows.window_dimensions, **windows.options)
        return without_added_axis(b, y, windows)
    powers = b.abs(x) if p == 1 else b.pow(b.abs(x), float(p))
    mean = _mean(b, powers, windows, windows.counts(False), padding_counts=True)
    total = b.mul(mean, float(prod(windows.taps)))
    return without_added_axis(b, total if p == 1 else b.pow(total, 1 / p), windows)


def _spatial(x: MLOperand) -> list[int]:
    if x.rank < 3:
        raise Unsupported(f"it has no spatial axes, for its input has rank {x.rank}")
    return list(range(2, x.rank))


@converts("GlobalAveragePool")
def _(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    if x.rank == 4:
        return b.average_pool2d(x)
    return b.reduce_mean(x, axes=_spatial(x), keep_dimensions=True)


@converts("GlobalMaxPool")
def _(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    if x.rank == 4:
        return b.max_pool2d(x)
    return b.reduce_max(x, axes=_spatial(x), keep_dimensions=True)


@converts("GlobalLpPool")
def _(b: MLGraphBuilder, x: MLOperand, *, p: int = 2) -> MLOperand:
    axes = _spatial(x)
    if p == 1:
        return b.reduce_l1(x, axes=axes, keep_dimensions=True)
    if p == 2:
        return b.reduce_l2(x, axes=axes, keep_dimensions=True)
    total = b.reduce_sum(b.pow(b.abs(x), float(p)), axes=axes, keep_dimensions=True)
    return b.pow(total, 1 / p)
