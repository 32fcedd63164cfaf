"""The difference between results of two engines."""

from __future__ import annotations

import numpy as np


def difference(actual: np.ndarray, expected: np.ndarray) -> float:
    """The difference between an array and the expected one.

    Returns:
        For floats, the largest difference relative to the largest finite expected number. For integers and truth values,
        which may be classes or positions, the share of elements that differ. Infinite if the arrays do not compare: their
        shapes or kinds of numbers differ, or NaN and infinities are not where they are expected.

    >>> difference(np.float32([1, 3.5, np.inf]), np.float32([1, 4, np.inf]))
    0.125
    >>> difference(np.array([1, 2]), np.array([1, 3]))
    0.5
    >>> difference(np.float32([np.nan]), np.float32([1])), difference(np.zeros(1), np.zeros(2))
    (inf, inf)
    """
    if actual.shape != expected.shape or actual.dtype.kind != expected.dtype.kind:
        return float("inf")
    if expected.dtype.kind != "f":
        return float(np.count_nonzero(actual != expected) / max(expected.size, 1))
    finite = np.isfinite(expected)
    is_alike = np.array_equal(actual[~finite], expected[~finite], equal_nan=True)
    if not is_alike or not np.isfinite(actual[finite]).all():
        return float("inf")
    a, b = actual[finite].astype(np.float64), expected[finite].astype(np.float64)
    largest = float(np.abs(b).max(initial=0)) or 1.0
    return float(np.abs(a - b).max(initial=0)) / largest
