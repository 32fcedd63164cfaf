"""Reference rules: pooling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ....composites import pool as composites
from ....core.shapes import Window
from ....ops import pooling as ops
from ..backend import Array, reference
from .convolution import relayout, windows

Windows: TypeAlias = Callable[[Array, float], Array]
"""Returns the windows over an image, [n, c, *axes of the output, *axes of the window]; the number fills the padding."""


def _on_windows(rule: Callable[[Array, Windows], Array]) -> Callable[..., Array]:
    """Wrap a rule, which takes an nchw image and the function that returns its windows, for images of any layout.

    Images of composites have no layout, and up to three spatial axes.
    """

    def rule_of_layout(input: Array, layout: str = "", **attributes: Any) -> Array:
        def view(x: Array, fill: float) -> Array:
            axes = Window.along(x.shape[2:], attributes)
            pads = [(0, 0), (0, 0), *((axis.before, axis.after) for axis in axes)]
            padded = np.pad(x, pads, constant_values=fill)
            # The dilation of a single tap is unused, and may be huge.
            every = windows(padded, [a.taps for a in axes], attributes["strides"], [a.dilation for a in axes])
            return every[(slice(None), slice(None), *(slice(axis.count) for axis in axes))]

        if not layout:
            return rule(input, view)
        return relayout(rule(relayout(input, layout, "nchw"), view), "nchw", layout)

    return rule_of_layout


def _taps(x: Array) -> tuple[int, ...]:
    """The last axes, those of the windows of an image."""
    return tuple(range(x.ndim, 2 * x.ndim - 2))


@reference.lower(ops.average_pool2d)
@_on_windows
def _mean(x: Array, view: Windows) -> Array:
    return view(x, 0).sum(_taps(x)) / view(np.ones_like(x), 0).sum(_taps(x))


@reference.lower(composites.average_pool)
def _(input: Array, padding: Sequence[int], include_padding: bool, **attributes: Any) -> Array:
    if include_padding:
        input = np.pad(input, [(0, 0), (0, 0), *zip(padding[::2], padding[1::2], strict=True)])
        padding = [0] * len(padding)
    return _mean(input, padding=padding, **attributes)


@reference.lower(ops.l2_pool2d)
@_on_windows
def _(x: Array, view: Windows) -> Array:
    return np.sqrt(view(x * x, 0).sum(_taps(x)))


@reference.lower(composites.lp_pool)
def _(input: Array, p: int, **attributes: Any) -> Array:
    @_on_windows
    def norm(x: Array, view: Windows) -> Array:
        return np.asarray((view(np.abs(x) ** p, 0).sum(_taps(x))) ** (1 / p))

    return norm(input, **attributes)


@reference.lower(ops.max_pool2d, composites.max_pool)
@_on_windows
def _(x: Array, view: Windows) -> Array:
    return view(x, -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min).max(_taps(x))
