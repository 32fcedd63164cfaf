"""Reference rules: pooling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from ....core.shapes import Window
from ....ops import pooling as ops
from ..backend import Array, reference
from .convolution import relayout, windows

Windows: TypeAlias = Callable[[Array, float], Array]
"""Returns the windows over an image, [n, c, output h, output w, window h, window w]; the number fills the padding."""


def _on_windows(rule: Callable[[Array, Windows], Array]) -> Callable[..., Array]:
    """Wrap a rule, which takes an nchw image and the function that returns its windows, for images of any layout."""

    def rule_of_layout(input: Array, layout: str, **attributes: Any) -> Array:
        def view(x: Array, fill: float) -> Array:
            axes = Window.along(x.shape[2:], attributes)
            pads = [(0, 0), (0, 0), *((axis.before, axis.after) for axis in axes)]
            padded = np.pad(x, pads, constant_values=fill)
            every = windows(padded, attributes["window_dimensions"], attributes["strides"], attributes["dilations"])
            return every[:, :, : axes[0].count, : axes[1].count]

        return relayout(rule(relayout(input, layout, "nchw"), view), "nchw", layout)

    return rule_of_layout


@reference.lower(ops.average_pool2d)
@_on_windows
def _(x: Array, view: Windows) -> Array:
    return view(x, 0).sum((4, 5)) / view(np.ones_like(x), 0).sum((4, 5))


@reference.lower(ops.l2_pool2d)
@_on_windows
def _(x: Array, view: Windows) -> Array:
    return np.sqrt(view(x * x, 0).sum((4, 5)))


@reference.lower(ops.max_pool2d)
@_on_windows
def _(x: Array, view: Windows) -> Array:
    return view(x, -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min).max((4, 5))
