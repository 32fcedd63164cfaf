"""ONNX poolings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from .... import ops
from ....context.builder import MLGraphBuilder
from ....core.graph import MLOperand
from ...model.registry import Tensor, converts, operand, unsupported_if
from .windows import PLAIN, WindowAttributes, WindowAxis, options, with_two_axes, without_added_axis


def _pool(op: Callable[..., MLOperand], x: Tensor, axes: Sequence[WindowAxis]) -> MLOperand:
    return op(x, window_dimensions=[axis.taps for axis in axes], **options(axes))


@converts("MaxPool")
def _(
    b: MLGraphBuilder,
    X: Tensor,
    *,
    ceil_mode: int = 0,
    storage_order: int = 0,  # for the indices, which WebNN does not return
    window: WindowAttributes = PLAIN,
) -> MLOperand:
    axes = [axis.pad_for(axis.count(bool(ceil_mode))) for axis in window.of_pooling(X)]
    return without_added_axis(b, _pool(b.max_pool2d, with_two_axes(b, X), axes), X)


@converts("AveragePool")
def _(
    b: MLGraphBuilder,
    X: Tensor,
    *,
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    window: WindowAttributes = PLAIN,
) -> MLOperand:
    axes = window.of_pooling(X)
    counts = [axis.count(bool(ceil_mode)) for axis in axes]
    x = operand(b, with_two_axes(b, X))
    if count_include_pad:
        x, axes = _with_zeros(b, x, axes), [axis.include_padding() for axis in axes]
    axes = [axis.pad_for(count) for axis, count in zip(axes, counts, strict=True)]
    return without_added_axis(b, _pool(b.average_pool2d, x, axes), X)


def _with_zeros(b: MLGraphBuilder, x: MLOperand, axes: Sequence[WindowAxis]) -> MLOperand:
    """Pad an image with zeros."""
    before, after = [axis.before for axis in axes], [axis.after for axis in axes]
    return b.pad(x, [0, 0, *before], [0, 0, *after]) if any(before + after) else x


@converts("LpPool")
def _(b: MLGraphBuilder, X: Tensor, *, ceil_mode: int = 0, p: int = 2, window: WindowAttributes = PLAIN) -> MLOperand:
    axes = [axis.pad_for(axis.count(bool(ceil_mode))) for axis in window.of_pooling(X)]
    x = operand(b, with_two_axes(b, X))
    if p == 2:
        return without_added_axis(b, _pool(b.l2_pool2d, x, axes), X)
    # sum = mean * taps, because the zeros of the padding count.
    powers = _with_zeros(b, b.abs(x) if p == 1 else b.pow(b.abs(x), float(p)), axes)
    mean = _pool(b.average_pool2d, powers, [axis.include_padding() for axis in axes])
    total = b.mul(mean, float(prod(axis.taps for axis in axes)))
    return without_added_axis(b, total if p == 1 else b.pow(total, 1 / p), X)


# Over all elements of an image ----------------------------------------------------------------------------------------


def _spatial(x: MLOperand) -> list[int]:
    unsupported_if(x.rank < 3, f"it has no spatial axes, for its input has rank {x.rank}")
    return list(range(2, x.rank))


def _global(pool: Callable[..., Any], reduce: Callable[..., Any]) -> Callable[..., Any]:
    """Make the converter of a global pooling; images without exactly two spatial axes use `reduce`."""

    def convert(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
        result: MLOperand = pool(b, x) if x.rank == 4 else reduce(b, x, axes=_spatial(x), keep_dimensions=True)
        return result

    return convert


converts("GlobalAveragePool")(_global(ops.average_pool2d, ops.reduce_mean))
converts("GlobalMaxPool")(_global(ops.max_pool2d, ops.reduce_max))


@converts("GlobalLpPool")
def _(b: MLGraphBuilder, x: MLOperand, *, p: int = 2) -> MLOperand:
    axes = _spatial(x)
    if p in (1, 2):
        return (b.reduce_l1 if p == 1 else b.reduce_l2)(x, axes=axes, keep_dimensions=True)
    total = b.reduce_sum(b.pow(b.abs(x), float(p)), axes=axes, keep_dimensions=True)
    return b.pow(total, 1 / p)
