"""Reference rules: pooling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from ...graph import Operand
from ...operation import Op
from ...ops import pooling as ops
from ...shapes import window_extent
from .backend import Array, reference
from .convolution import relayout, windows

Windows: TypeAlias = Callable[[Array, float], Array]
"""Returns the windows over an image; positions outside of the image contain the given value."""


def _lower(op: Op[..., Operand]) -> Callable[[Callable[[Array, Windows], Array]], None]:
    """Register a rule that takes an nchw image, and the function that returns its windows."""

    def register(rule: Callable[[Array, Windows], Array]) -> None:
        @reference.lower(op)
        def _(
            input: Array,
            window_dimensions: Sequence[int],
            padding: Sequence[int],
            strides: Sequence[int],
            dilations: Sequence[int],
            layout: str,
            output_sizes: Sequence[int],
        ) -> Array:
            def view(x: Array, fill: float) -> Array:
                return _windows(x, fill, window_dimensions, padding, strides, dilations, output_sizes)

            return relayout(rule(relayout(input, layout, "nchw"), view), "nchw", layout)

    return register


def _windows(
    x: Array,
    fill: float,
    window: Sequence[int],
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    sizes: Sequence[int],
) -> Array:
    """The windows over `x`, [n, c, output h, output w, window h, window w]; positions outside of `x` contain `fill`."""
    pads = [(0, 0), (0, 0)]
    for size, taps, before, stride, dilation, count in zip(
        x.shape[2:], window, padding[::2], strides, dilations, sizes, strict=True
    ):
        needed = (count - 1) * stride + window_extent(taps, dilation)
        pads.append((before, max(needed - size - before, 0)))
    view = windows(np.pad(x, pads, constant_values=fill), window, strides, dilations)
    return view[:, :, : sizes[0], : sizes[1]]


@_lower(ops.average_pool2d)
def _(x: Array, view: Windows) -> Array:
    return view(x, 0).sum((4, 5)) / view(np.ones_like(x), 0).sum((4, 5))


@_lower(ops.l2_pool2d)
def _(x: Array, view: Windows) -> Array:
    return np.sqrt(view(x * x, 0).sum((4, 5)))


@_lower(ops.max_pool2d)
def _(x: Array, view: Windows) -> Array:
    return view(x, -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min).max((4, 5))
