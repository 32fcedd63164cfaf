"""Reference rules: pooling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...ops import pooling as ops
from ...shapes import window_extent
from . import Array, reference
from .convolution import relayout, windows


def _windows(
    x: Array,
    fill: float,
    window: Sequence[int],
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    sizes: Sequence[int],
) -> Array:
    """The windows [n, c, output h, output w, window h, window w] over `x`, with `fill` wherever they lie outside of it."""
    pads = [(0, 0), (0, 0)]
    for size, taps, before, stride, dilation, count in zip(
        x.shape[2:], window, padding[::2], strides, dilations, sizes, strict=True
    ):
        needed = (count - 1) * stride + window_extent(taps, dilation)
        pads.append((before, max(needed - size - before, 0)))
    view = windows(np.pad(x, pads, constant_values=fill), window, strides, dilations)
    return view[:, :, : sizes[0], : sizes[1]]


@reference.lower(ops.average_pool2d)
def _(
    input: Array,
    window_dimensions: Sequence[int],
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    layout: str,
    output_sizes: Sequence[int],
) -> Array:
    x, place = relayout(input, layout, "nchw"), (window_dimensions, padding, strides, dilations, output_sizes)
    total = _windows(x, 0, *place).sum((4, 5))
    count = _windows(np.ones_like(x), 0, *place).sum((4, 5))
    return relayout(total / count, "nchw", layout)


@reference.lower(ops.l2_pool2d)
def _(
    input: Array,
    window_dimensions: Sequence[int],
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    layout: str,
    output_sizes: Sequence[int],
) -> Array:
    x, place = relayout(input, layout, "nchw"), (window_dimensions, padding, strides, dilations, output_sizes)
    return relayout(np.sqrt(_windows(x * x, 0, *place).sum((4, 5))), "nchw", layout)


@reference.lower(ops.max_pool2d)
def _(
    input: Array,
    window_dimensions: Sequence[int],
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    layout: str,
    output_sizes: Sequence[int],
) -> Array:
    x, place = relayout(input, layout, "nchw"), (window_dimensions, padding, strides, dilations, output_sizes)
    lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    return relayout(_windows(x, lowest, *place).max((4, 5)), "nchw", layout)
