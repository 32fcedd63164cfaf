"""Reference rules: convolutions and resampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ....core.graph import Operand
from ....core.operation import Op, call_with
from ....core.shapes import nearest_positions, sample_positions, window_extent
from ....ops import convolution as ops
from ..backend import Array, reference


def relayout(array: Array, layout: str, wanted: str) -> Array:
    return array.transpose([layout.index(letter) for letter in wanted])


def windows(image: Array, window: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Array:
    """Return the windows of an image [..., h, w] as a view [..., output h, output w, window h, window w]."""
    extents = [window_extent(size, dilation) for size, dilation in zip(window, dilations, strict=True)]
    every = sliding_window_view(image, extents, (-2, -1))
    (down, right), (dy, dx) = strides, dilations
    return every[..., ::down, ::right, ::dy, ::dx]


def _lower(op: Op[..., Operand], filter_layout: str) -> Callable[[Callable[..., Array]], None]:
    """Return a decorator for a rule of images [n, groups, channels, h, w] and a filter [groups, …] in this layout."""

    def register(rule: Callable[..., Array]) -> None:
        @reference.lower(op)
        def _(
            input: Array, filter: Array, bias: Array | None, groups: int, input_layout: str, **attributes: Any
        ) -> Array:
            x, w = relayout(input, input_layout, "nchw"), relayout(filter, attributes["filter_layout"], filter_layout)
            x, w = x.reshape(len(x), groups, -1, *x.shape[2:]), w.reshape(groups, -1, *w.shape[1:])
            y = call_with(rule, attributes, x, w)
            y = y.reshape(len(x), -1, *y.shape[3:])
            return relayout(y if bias is None else y + bias[:, None, None], "nchw", input_layout)

    return register


@_lower(ops.conv2d, "oihw")
def _(x: Array, w: Array, padding: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Array:
    top, bottom, left, right = padding
    x = np.pad(x, [*[(0, 0)] * 3, (top, bottom), (left, right)])
    return np.einsum("ngiyxhw,goihw->ngoyx", windows(x, w.shape[3:], strides, dilations), w, optimize=True)


@_lower(ops.conv_transpose2d, "iohw")
def _(
    x: Array,
    w: Array,
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    output_sizes: Sequence[int],
) -> Array:
    (batches, groups, _, rows, columns), (_, _, channels, height, width) = x.shape, w.shape
    (down, right), (dy, dx), (top, bottom, left, right_pad) = strides, dilations, padding
    # Each input element adds the scaled filter to the padded result, which is cropped at the end.
    y = np.zeros((batches, groups, channels, top + output_sizes[0] + bottom, left + output_sizes[1] + right_pad))
    for i in range(height):
        for j in range(width):
            part = np.einsum("ngiyx,gio->ngoyx", x, w[..., i, j], optimize=True)
            y[..., i * dy :: down, j * dx :: right][..., :rows, :columns] += part
    return y[..., top : top + output_sizes[0], left : left + output_sizes[1]]


@reference.lower(ops.resample2d)
def _(input: Array, mode: str, sizes: Sequence[int], axes: Sequence[int]) -> Array:
    shape = input.shape
    if mode == "nearest-neighbor":
        for axis, size in zip(axes, sizes, strict=True):
            input = input.take(nearest_positions(shape[axis], size), axis)
        return input
    # Use integer weights and divide at the end, so that ties are exact when integers are rounded.
    total, divisor = input.astype(np.float64), 1
    for axis, size in zip(axes, sizes, strict=True):
        numerators, denominator = sample_positions(shape[axis], size)
        before, part = np.divmod(numerators, denominator)
        after = before + (part > 0)
        part = part.reshape([-1 if a == axis else 1 for a in range(4)])
        total = total.take(before, axis) * (denominator - part) + total.take(after, axis) * part
        divisor *= denominator
    mean = total / divisor
    return mean if input.dtype.kind == "f" else np.round(mean)
