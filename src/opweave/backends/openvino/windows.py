"""The elements of the input that windows along an axis have."""

from __future__ import annotations

import numpy as np

from ...core.shapes import Window


def inside(window: Window) -> np.ndarray:
    """How many elements of the input each of the windows along an axis has."""
    starts = np.arange(window.count) * window.stride - window.before
    positions = starts[:, None] + np.arange(window.taps) * window.dilation
    counts: np.ndarray = ((positions >= 0) & (positions < window.size)).sum(1)
    return counts
