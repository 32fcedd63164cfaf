"""How far results of one engine are from those of another."""

from __future__ import annotations

import numpy as np


def difference(given: np.ndarray, wanted: np.ndarray) -> float:
    """How far an array is from what is wanted.

    Args:
        given: numbers or truth values, of any shape.
        wanted: likewise.

    Returns:
        For floats, the largest difference relative to the largest finite number that is wanted. For integers and truth values,
        which may be classes or positions, the share of elements that differ. Infinite where two do not compare: their shapes
        or kinds of numbers differ, or there are NaN or infinities where others are wanted.

    >>> difference(np.float32([1, 3.5, np.inf]), np.float32([1, 4, np.inf]))
    0.125
    >>> difference(np.array([1, 2]), np.array([1, 3]))
    0.5
    >>> difference(np.float32([np.nan]), np.float32([1])), difference(np.zeros(1), np.zeros(2))
    (inf, inf)
    """
    if given.shape != wanted.shape or given.dtype.kind != wanted.dtype.kind:
        return float("inf")
    if wanted.dtype.kind != "f":
        return float(np.count_nonzero(given != wanted) / max(wanted.size, 1))
    finite = np.isfinite(wanted)
    is_alike = np.array_equal(given[~finite], wanted[~finite], equal_nan=True)
    if not is_alike or not np.isfinite(given[finite]).all():
        return float("inf")
    a, b = given[finite].astype(np.float64), wanted[finite].astype(np.float64)
    largest = float(np.abs(b).max(initial=0)) or 1.0
    return float(np.abs(a - b).max(initial=0)) / largest
