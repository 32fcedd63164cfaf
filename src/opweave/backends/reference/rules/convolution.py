"""Reference rules: convolutions and resampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ....composites import convolve as composites
from ....core.graph import Operand
from ....core.operation import Op, call_with
from ....core.shapes import nearest_positions, sample_positions, window_extent
from ....custom import CustomOp
from ....ops import convolution as ops
from ..backend import Array, reference


def relayout(array: Array, layout: str, wanted: str) -> Array:
    return array.transpose([layout.index(letter) for letter in wanted])


def windows(image: Array, window: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Array:
    """Return the windows of an image [..., *axes] as a view [..., *axes of the output, *axes of the window]."""
    extents = [window_extent(size, dilation) for size, dilation in zip(window, dilations, strict=True)]
    every: Any = sliding_window_view(image, extents, tuple(range(-len(extents), 0)))
    windows: Array = every[(..., *(slice(None, None, step) for step in (*strides, *dilations)))]
    return windows


def _lower(
    op: Op[..., Operand], composite: CustomOp[Any], filter_layout: str
) -> Callable[[Callable[..., Array]], None]:
    """Return a decorator for a rule of images [n, groups, channels, *axes] and a filter [groups, …] in this layout."""

    def register(rule: Callable[..., Array]) -> None:
        @reference.lower(composite)
        def rule_of_composite(input: Array, filter: Array, bias: Array | None, groups: int, **attributes: Any) -> Array:
            x = input.reshape(len(input), groups, -1, *input.shape[2:])
            w = filter.reshape(groups, -1, *filter.shape[1:])
            y = call_with(rule, attributes, x, w)
            y = y.reshape(len(input), -1, *y.shape[3:])
            return y if bias is None else y + bias.reshape(-1, *[1] * (y.ndim - 2))

        @reference.lower(op)
        def _(input: Array, filter: Array, bias: Array | None, input_layout: str, **attributes: Any) -> Array:
            x, w = relayout(input, input_layout, "nchw"), relayout(filter, attributes["filter_layout"], filter_layout)
            return relayout(rule_of_composite(x, w, bias, **attributes), "nchw", input_layout)

    return register


def _pairs(padding: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(padding[::2], padding[1::2], strict=True))


@_lower(ops.conv2d, composites.convolution, "oihw")
def _(x: Array, w: Array, padding: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Array:
    x = np.pad(x, [*[(0, 0)] * 3, *_pairs(padding)])
    at, taps = "zyx"[-len(strides) :], "dhw"[-len(strides) :]
    formula = f"ngi{at}{taps},goi{taps}->ngo{at}"
    return np.asarray(np.einsum(formula, windows(x, w.shape[3:], strides, dilations), w, optimize=True))


@_lower(ops.conv_transpose2d, composites.conv_transpose, "iohw")
def _(
    x: Array,
    w: Array,
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    output_sizes: Sequence[int],
) -> Array:
    (batches, groups, _, *image), (_, _, channels, *taps) = x.shape, w.shape
    pairs = _pairs(padding)
    # Each input element adds the scaled filter to the padded result, which is cropped at the end.
    sizes = [before + size + after for (before, after), size in zip(pairs, output_sizes, strict=True)]
    y: Any = np.zeros((batches, groups, channels, *sizes))
    for tap in np.ndindex(*taps):
        part = np.einsum("ngi...,gio->ngo...", x, w[(..., *tap)], optimize=True)
        steps = zip(tap, dilations, strides, strict=True)
        places = y[(..., *(slice(at * dilation, None, stride) for at, dilation, stride in steps))]
        places[(..., *(slice(size) for size in image))] += part
    return y[(..., *(slice(before, before + size) for (before, _), size in zip(pairs, output_sizes, strict=True)))]


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
