"""Reference rules: convolutions and resampling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ...ops import convolution as ops
from ...shapes import nearest_positions, sample_positions, window_extent
from .backend import Array, reference


def relayout(array: Array, layout: str, wanted: str) -> Array:
    """Transpose an array from `layout` to the layout `wanted`; both name the axes by letters."""
    return array.transpose([layout.index(letter) for letter in wanted])


def windows(image: Array, window: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Array:
    """The windows of an image [n, c, h, w] as a view [n, c, output h, output w, window h, window w]."""
    extents = [window_extent(size, dilation) for size, dilation in zip(window, dilations, strict=True)]
    every = sliding_window_view(image, extents, (2, 3))
    (down, right), (dy, dx) = strides, dilations
    return every[:, :, ::down, ::right, ::dy, ::dx]


@reference.lower(ops.conv2d)
def _(
    input: Array,
    filter: Array,
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    groups: int,
    input_layout: str,
    filter_layout: str,
    bias: Array | None,
) -> Array:
    x, w = relayout(input, input_layout, "nchw"), relayout(filter, filter_layout, "oihw")
    top, bottom, left, right = padding
    x = np.pad(x, [(0, 0), (0, 0), (top, bottom), (left, right)])
    seen = windows(x, w.shape[2:], strides, dilations)  # [n, c, H, W, h, w]
    seen = seen.reshape(len(x), groups, -1, *seen.shape[2:])  # [n, g, c / g, H, W, h, w]
    w = w.reshape(groups, -1, *w.shape[1:])  # [g, o / g, c / g, h, w]
    y = np.einsum("ngiyxhw,goihw->ngoyx", seen, w, optimize=True)
    y = y.reshape(len(x), -1, *y.shape[3:])
    if bias is not None:
        y = y + bias[:, None, None]
    return relayout(y, "nchw", input_layout)


@reference.lower(ops.conv_transpose2d)
def _(
    input: Array,
    filter: Array,
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    output_sizes: Sequence[int],
    groups: int,
    input_layout: str,
    filter_layout: str,
    bias: Array | None,
) -> Array:
    x, w = relayout(input, input_layout, "nchw"), relayout(filter, filter_layout, "iohw")
    batches, _, rows, columns = x.shape
    x = x.reshape(batches, groups, -1, rows, columns)
    w = w.reshape(groups, -1, *w.shape[1:])  # [g, c / g, o / g, h, w]
    _, _, channels, height, width = w.shape
    (down, right), (dy, dx), (top, bottom, left, right_pad) = strides, dilations, padding
    # Each input element adds the scaled filter to the padded result, which is cropped at the end.
    y = np.zeros((batches, groups, channels, top + output_sizes[0] + bottom, left + output_sizes[1] + right_pad))
    for i in range(height):
        for j in range(width):
            part = np.einsum("ngiyx,gio->ngoyx", x, w[..., i, j], optimize=True)
            y[..., i * dy :: down, j * dx :: right][..., :rows, :columns] += part
    y = y[..., top : top + output_sizes[0], left : left + output_sizes[1]]
    y = y.reshape(batches, -1, *output_sizes)
    if bias is not None:
        y = y + bias[:, None, None]
    return relayout(y, "nchw", input_layout)


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
