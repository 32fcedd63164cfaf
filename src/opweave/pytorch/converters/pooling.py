"""Poolings, by windows and adaptive."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ... import composites
from ...context.builder import MLGraphBuilder
from ...core.graph import MLOperand
from ...core.sizes import is_static
from ..registry import BFLOAT16, as_type, converts, refuse_if
from .windows import both_sides, pooled_size, values_of, with_batches

MAX_TABLE = 2**22
"""The largest number of positions in a table of windows that differ in size: 32 MiB of int64, an estimate."""


def _window(
    x: MLOperand,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> dict[str, Any]:
    """The options of Opweave's poolings for PyTorch's arguments."""
    axes = x.rank - 2
    window = values_of(kernel_size, axes)
    before, steps = values_of(padding, axes), values_of(stride, axes, window)
    dilations = values_of(dilation, axes)
    options: dict[str, Any] = {
        "window_dimensions": window,
        "padding": both_sides(before),
        "strides": steps,
        "dilations": dilations,
    }
    if ceil_mode:
        refuse_if(not is_static(x.shape[2:]), "it rounds sizes up, and the size of its input is not known")
        along = zip(x.shape[2:], window, before, steps, dilations, strict=True)
        options["output_sizes"] = [pooled_size(*axis, is_rounded_up=True) for axis in along]
    return options


def _with_row(b: MLGraphBuilder, x: MLOperand, options: dict[str, Any]) -> tuple[MLOperand, dict[str, Any]]:
    """A sequence as an image of one row, and its window."""
    wide = {
        "window_dimensions": [1, *options["window_dimensions"]],
        "padding": [0, 0, *options["padding"]],
        "strides": [1, *options["strides"]],
        "dilations": [1, *options["dilations"]],
    }
    if "output_sizes" in options:
        wide["output_sizes"] = [1, *options["output_sizes"]]
    return b.reshape(x, [*x.shape[:2], 1, x.shape[2]]), wide


def _maxima(b: MLGraphBuilder, x: MLOperand, options: dict[str, Any]) -> MLOperand:
    if x.rank == 4:
        return b.max_pool2d(x, **options)
    if x.rank == 3:
        row, wide = _with_row(b, x, options)
        y = b.max_pool2d(row, **wide)
        return b.reshape(y, [*y.shape[:2], y.shape[3]])
    result: MLOperand = composites.max_pool(b, x, **options)
    return result


@converts("aten.max_pool1d.default", "aten.max_pool2d.default", "aten.max_pool3d.default")
def _(
    b: MLGraphBuilder,
    self: MLOperand,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
    *,
    call: Any,
) -> MLOperand:
    def pool(x: MLOperand) -> MLOperand:
        return _maxima(b, x, _window(x, kernel_size, stride, padding, dilation, ceil_mode))

    result: MLOperand = with_batches(b, self, _rank_of(call.name), pool)
    return result


def _rank_of(name: str) -> int:
    """The rank of images with batches, from the number of axes in an operator's name."""
    return 2 + _axes_in(name)


def _axes_in(name: str) -> int:
    return next(axes for axes in (1, 2, 3) if f"{axes}d" in name)


@converts(
    "aten.max_pool1d_with_indices.default", "aten.max_pool2d_with_indices.default",
    "aten.max_pool3d_with_indices.default",
)  # fmt: skip
def _(
    b: MLGraphBuilder,
    self: MLOperand,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
    *,
    call: Any,
) -> tuple[MLOperand, ...]:
    def pool(x: MLOperand) -> tuple[MLOperand, ...]:
        options = _window(x, kernel_size, stride, padding, dilation, ceil_mode)
        refuse_if(not is_static(x.shape[2:]), "its positions need a known size of the input")
        _, positions = composites.max_pool_with_indices(b, x, **options)
        # In PyTorch, positions begin at 0 in each channel.
        size = b.constant(np.array(prod(x.shape[2:]), "int64"))
        return _maxima(b, x, options), b.sub(positions, b.mul(b.div(positions, size), size))

    result: tuple[MLOperand, ...] = with_batches(b, self, _rank_of(call.name), pool)
    return result


@converts("aten.max_unpool2d.default")
def _(b: MLGraphBuilder, self: MLOperand, indices: MLOperand, output_size: Sequence[int]) -> MLOperand:
    refuse_if(self.rank != 4, f"its input has rank {self.rank}")
    batches, channels = self.shape[:2]
    refuse_if(not is_static([batches, channels]), "the number of its channels is not known")
    first = np.arange(batches * channels, dtype=np.int64).reshape(batches, channels, 1, 1) * prod(output_size)
    result: MLOperand = composites.max_unpool(b, self, b.add(indices, b.constant(first)), list(output_size))
    return result


@converts("aten.avg_pool1d.default", "aten.avg_pool2d.default", "aten.avg_pool3d.default")
def _(
    b: MLGraphBuilder,
    self: MLOperand,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    call: Any,
) -> MLOperand:
    def pool(x: MLOperand) -> MLOperand:
        options = _window(x, kernel_size, stride, padding, [1], ceil_mode)
        if divisor_override is None:
            return _means(b, x, options, count_include_pad)
        # All windows are full, and zeros add nothing, so that the means are sums over the number of elements.
        before = options["padding"][::2]
        counts = options.pop("output_sizes", None)
        after = list(before)
        if counts is not None:
            along = zip(x.shape[2:], counts, options["window_dimensions"], options["strides"], before, strict=True)
            after = [max((count - 1) * step + window - size - pad, 0) for size, count, window, step, pad in along]
        x = b.pad(x, [0, 0, *before], [0, 0, *after]) if any((*before, *after)) else x
        options["padding"] = [0] * len(options["padding"])
        means = _means(b, x, options, False)
        factor = prod(options["window_dimensions"]) / divisor_override
        return b.mul(means, b.constant(np.array(factor, "float32" if x.data_type == "float32" else "float16")))

    refuse_if(self.data_type not in ("float32", "float16", "bfloat16"), f"its input is {self.data_type}")
    # PyTorch adds elements of bfloat16 in float32, too.
    x = as_type(b, self, "float32") if self.data_type == BFLOAT16 else self
    return as_type(b, with_batches(b, x, _rank_of(call.name), pool), self.data_type)


def _means(b: MLGraphBuilder, x: MLOperand, options: dict[str, Any], has_padding: bool) -> MLOperand:
    """Averages of windows; `has_padding` says whether elements of the padding count as zeros."""
    if has_padding and any(options["padding"]):
        padded: MLOperand = composites.average_pool(b, x, include_padding=True, **options)
        return padded
    if x.rank == 4:
        return b.average_pool2d(x, **options)
    if x.rank == 3:
        row, wide = _with_row(b, x, options)
        y = b.average_pool2d(row, **wide)
        return b.reshape(y, [*y.shape[:2], y.shape[3]])
    result: MLOperand = composites.average_pool(b, x, **options)
    return result


# Adaptive: a fixed number of windows, whose sizes may differ ---------------------------------------------------------


@converts(
    "aten.adaptive_avg_pool1d.default", "aten.adaptive_avg_pool2d.default", "aten.adaptive_avg_pool3d.default",
    "aten._adaptive_avg_pool2d.default", "aten._adaptive_avg_pool3d.default",
)  # fmt: skip
def _(b: MLGraphBuilder, self: MLOperand, output_size: Sequence[int], *, call: Any) -> MLOperand:
    axes = _axes_in(call.name)
    counts = values_of(output_size, axes)

    def pool(x: MLOperand) -> MLOperand:
        if all(isinstance(count, int) and count == 1 for count in counts):
            return b.reduce_mean(x, axes=list(range(2, x.rank)), keep_dimensions=True)
        window = _even_window(x, counts)
        if window is not None:
            return _means(b, x, window, False)
        refuse_if(not is_static([*x.shape[2:], *counts]), "its sizes are not known")
        for axis, count in enumerate(counts, 2):
            x = _average(b, x, axis, count)
        return x

    result: MLOperand = with_batches(b, self, axes + 2, pool)
    return result


def _even_window(x: MLOperand, counts: Sequence[int]) -> dict[str, Any] | None:
    """The options of a pooling with windows of one size; None if the sizes of windows differ."""
    sizes = x.shape[2:]
    if not is_static([*sizes, *counts]) or any(size % count for size, count in zip(sizes, counts, strict=True)):
        return None
    window = [size // count for size, count in zip(sizes, counts, strict=True)]
    return {
        "window_dimensions": window,
        "padding": [0] * 2 * len(window),
        "strides": window,
        "dilations": [1] * len(window),
    }


def _bounds(size: int, count: int) -> list[tuple[int, int]]:
    """The begin and end of each window along an axis."""
    return [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


def _average(b: MLGraphBuilder, x: MLOperand, axis: int, count: int) -> MLOperand:
    """Average windows along one axis, as a product with a matrix."""
    size = x.shape[axis]
    if size == count:
        return x
    weights = np.zeros([size, count], np.float32)
    for column, (begin, end) in enumerate(_bounds(size, count)):
        weights[begin:end, column] = 1 / (end - begin)
    matrix = b.constant(weights.astype(x.data_type))
    if axis == x.rank - 1:
        return b.matmul(x, matrix)
    order = [*(a for a in range(x.rank) if a != axis), axis]
    y = b.matmul(b.transpose(x, permutation=order), matrix)
    return b.transpose(y, permutation=[order.index(a) for a in range(x.rank)])


@converts(
    "aten.adaptive_max_pool1d.default", "aten.adaptive_max_pool2d.default", "aten.adaptive_max_pool3d.default"
)  # fmt: skip
def _(b: MLGraphBuilder, self: MLOperand, output_size: Sequence[int], *, call: Any) -> tuple[MLOperand, ...]:
    axes = _axes_in(call.name)
    counts = values_of(output_size, axes)

    def pool(x: MLOperand) -> tuple[MLOperand, ...]:
        sizes, leading = x.shape[2:], x.shape[:2]
        refuse_if(not is_static([*sizes, *counts]), "its sizes are not known")
        table = _positions(sizes, counts)
        flat = b.reshape(x, [*leading, prod(sizes)])
        rows, width = table.shape
        elements = b.reshape(b.gather(flat, b.constant(table.ravel()), axis=2), [*leading, rows, width])
        window = _even_window(x, counts)
        maxima = _maxima(b, x, window) if window is not None else b.reduce_max(elements, axes=[3])
        chosen = b.arg_max(elements, 3, output_data_type="int64")
        # The position of the chosen element of each window, in the flat table.
        first = b.constant(np.arange(rows, dtype=np.int64) * width)
        positions = b.gather(b.constant(table.ravel()), b.add(chosen, first))
        shape = [*leading, *counts]
        return b.reshape(maxima, shape), b.reshape(positions, shape)

    result: tuple[MLOperand, ...] = with_batches(b, self, axes + 2, pool)
    return result


def _positions(sizes: Sequence[int], counts: Sequence[int]) -> np.ndarray:
    """Positions in the flat image of each window's elements, the first one repeated where a window is smaller than others."""
    table = np.zeros([1, 1], np.int64)
    for size, count in zip(sizes, counts, strict=True):
        bounds = _bounds(size, count)
        width = max(end - begin for begin, end in bounds)
        along = np.array([[*range(begin, end), *[begin] * (width - end + begin)] for begin, end in bounds], np.int64)
        # [rows, 1, width, 1] and [1, count, 1, width]
        table = (table[:, None, :, None] * size + along[None, :, None, :]).reshape(len(table) * count, -1)
    refuse_if(table.size > MAX_TABLE, f"the windows have {table.size} elements in all")
    return table
