"""Count the input elements of windows along an axis."""

from __future__ import annotations

import numpy as np

from ...core.shapes import Window


def count_inside(window: Window) -> np.ndarray:
    """Return the number of input elements in each window along an axis."""
    starts = np.arange(window.count) * window.stride - window.before
    positions = starts[:, None] + np.arange(window.taps) * window.dilation
    counts: np.ndarray = ((positions >= 0) & (positions < window.size)).sum(1)
    return counts
