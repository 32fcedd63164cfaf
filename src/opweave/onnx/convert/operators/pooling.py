"""ONNX poolings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .... import composites, ops
from ....context.builder import MLGraphBuilder
from ....core.graph import MLOperand
from ....core.shapes import conv_transpose_size
from ...model.registry import Tensor, Unsupported, converts, integers, operand, unsupported_if
from .windows import PLAIN, WindowAttributes, WindowAxis, options, with_two_axes, without_added_axis


def _pool(op: Callable[..., Any], x: Tensor, axes: Sequence[WindowAxis], **more: Any) -> Any:
    return op(x, window_dimensions=[axis.taps for axis in axes], **options(axes), **more)


@converts("MaxPool")
def max_pool(
    b: MLGraphBuilder,
    X: MLOperand,
    *,
    ceil_mode: int = 0,
    storage_order: int = 0,
    window: WindowAttributes = PLAIN,
    outputs: int,
) -> MLOperand | tuple[MLOperand, ...]:
    axes = [axis.pad_for(axis.count(bool(ceil_mode))) for axis in window.of_pooling(X)]
    if outputs > 1:
        order = "column-major" if storage_order else "row-major"
        results: tuple[MLOperand, ...] = _pool(composites.max_pool_with_indices, X, axes[2 - X.rank :], order=order)
        return results
    y: MLOperand
    if len(axes) > 2:
        y = _pool(composites.max_pool, X, axes)
        return y
    return without_added_axis(b, _pool(b.max_pool2d, with_two_axes(b, X), axes), X)


@converts("AveragePool")
def average_pool(
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
    if len(axes) > 2:
        includes = bool(count_include_pad)
        y: MLOperand = _pool(composites.average_pool, x, axes, output_sizes=counts, include_padding=includes)
        return y
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
    x = operand(b, X)
    if p == 2 and len(axes) == 2:
        return without_added_axis(b, _pool(b.l2_pool2d, operand(b, with_two_axes(b, x)), axes), X)
    result: MLOperand = _pool(composites.lp_pool, x, axes[2 - x.rank :], p=p)
    return result


@converts("MaxUnpool")
def _(
    b: MLGraphBuilder,
    X: MLOperand,
    I: MLOperand,  # noqa: E741  (ONNX's name)
    output_shape: Tensor | None = None,
    *,
    window: WindowAttributes = PLAIN,
) -> MLOperand:
    if window.kernel_shape is None:
        raise Unsupported("it has no kernel_shape")
    axes = window.over(X, window.kernel_shape)[2 - X.rank :]
    sizes = [conv_transpose_size(axis.size, axis.taps, axis.before, axis.after, axis.stride, 1) for axis in axes]
    y: MLOperand = composites.max_unpool(b, X, I, sizes)
    if output_shape is None:
        return y
    # Positions count the elements of the smaller result, which the larger one surrounds.
    shape = integers(output_shape, "output_shape")
    unsupported_if(shape[:2] != list(X.shape[:2]), f"output_shape {shape} has other batches or channels than the input")
    more = [size - small for size, small in zip(shape[2:], sizes, strict=True)]
    unsupported_if(min(more) < 0, f"output_shape {shape} is smaller than the windows, {sizes}")
    return b.pad(y, [0] * X.rank, [0, 0, *more]) if any(more) else y


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
