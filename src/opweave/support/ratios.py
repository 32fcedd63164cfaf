"""Compare two ways to do the same, measured alternately, by the ratios of their times in each round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

NOISE = 1.03
"""Ratios up to this, and down to its inverse, are no difference. A difference must also exceed the distance of the quartiles:
then, of pairs of equal ways, the second counts as faster in at most 0.9% with 7 rounds, and in 4.3% with 5, if rounds vary by
2 to 40% (simulated, normal logarithms; in 32 to 46% if medians of 7 rounds are compared and rounds vary by 10 to 40%). It
counts as slower as often."""


Quartiles = tuple[float, float, float]
"""The lower quartile, the median and the upper quartile of some values."""


def quartiles(values: Sequence[float]) -> Quartiles:
    """The quartiles of values.

    >>> quartiles([1, 2, 3, 4, 5])
    (2.0, 3.0, 4.0)
    """
    lower, middle, upper = np.percentile(values, [25, 50, 75])
    return float(lower), float(middle), float(upper)


def factor(ratios: Quartiles, noise: float = NOISE) -> float:
    """The median of the ratios of rounds; 1 if it is noise.

    It is noise unless the quartile that is nearer to 1 differs from 1 by more than the factor `noise`, and by more than the
    quartiles differ from each other.

    >>> factor((0.5, 0.5, 0.6)), factor((0.7, 0.9, 1.1)), factor((0.98, 0.98, 0.98)), factor((2.0, 2.0, 2.0))
    (0.5, 1.0, 1.0, 2.0)
    """
    low, middle, high = ratios
    gap, spread = max(low, 1 / high), high / low  # from 1 to the nearer quartile
    return middle if gap > max(noise, spread) else 1.0
