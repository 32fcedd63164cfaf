"""Errors of an array: the largest error and its position, NaN and infinities, a histogram."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .tolerance import Tolerance

BINS = tuple(range(-9, 2))
"""Powers of ten between the bins of a histogram of relative errors; errors beyond count in the first and in the last bin."""

PIECE = 1 << 20
"""Number of elements that are compared at a time: differences in float64 take twice the memory of a float32 tensor."""


@dataclass(frozen=True, slots=True)
class Values:
    """Statistics of the elements of an array.

    Attributes:
        minimum: the least finite element; NaN if there is none.
        maximum: the largest finite element; NaN if there is none.
        size: the root mean square of the finite elements.
        nans: the number of NaN.
        infinities: the number of infinite elements.
    """

    minimum: float
    maximum: float
    size: float
    nans: int = 0
    infinities: int = 0

    @classmethod
    def of(cls, array: np.ndarray) -> Values:
        """Compute the statistics of an array."""
        least, most, squares, count, nans, infinities = np.inf, -np.inf, 0.0, 0, 0, 0
        for piece in _pieces(array):
            wide = piece.astype(np.float64)
            finite = wide[np.isfinite(wide)] if piece.dtype.kind == "f" else wide
            if finite.size < wide.size:
                nan_count = int(np.isnan(wide).sum())
                nans, infinities = nans + nan_count, infinities + wide.size - finite.size - nan_count
            if finite.size:
                least, most = min(least, float(finite.min())), max(most, float(finite.max()))
                squares, count = squares + float(np.square(finite).sum()), count + finite.size
        if not count:
            return cls(np.nan, np.nan, 0.0, nans, infinities)
        return cls(least, most, float(np.sqrt(squares / count)), nans, infinities)

    def __str__(self) -> str:
        parts = [f"[{self.minimum:.4g}, {self.maximum:.4g}]"] if self.minimum == self.minimum else []
        parts += [f"{self.nans:,} NaN"] if self.nans else []
        parts += [f"{self.infinities:,} infinite"] if self.infinities else []
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Error:
    """Errors of an array against the expected one.

    Attributes:
        largest: the largest difference; infinite if only one of the two elements is NaN or infinite.
        relative: rms(differences) / rms(expected elements).
        ulp: the largest difference in units in the last place of the larger one of the element and the typical element.
        ratio: the largest ratio of a difference to the allowed difference of the element; 0 without a tolerance.
        beyond: the number of elements that differ by more than allowed.
        where: the position of the element with the largest ratio.
        got: this element.
        expected: the expected element.
        equal: the number of elements without any difference.
        histogram: the number of other elements by size of the error, relative to the larger one of the element and the
            typical element; between powers of ten, `BINS`.
    """

    largest: float
    relative: float
    ulp: float
    ratio: float
    beyond: int
    where: tuple[int, ...]
    got: float
    expected: float
    equal: int
    histogram: tuple[int, ...]

    @property
    def texts(self) -> tuple[str, str]:
        """`got` and `expected` as texts, with as many digits as tell them apart; integers are written in full."""
        for digits in (7, 9, 17):  # briefly, float32, float64
            got, expected = (
                str(value) if isinstance(value, int) else f"{value:.{digits}g}" for value in (self.got, self.expected)
            )
            if got != expected:
                break
        return got, expected


def error(
    got: np.ndarray,
    expected: np.ndarray,
    values: Values,
    scale: float = 0.0,
    tolerance: Tolerance | None = None,
    magnitudes: np.ndarray | None = None,
) -> Error:
    """Compare arrays of the same shape; of two floating-point types, the less precise one counts.

    Args:
        got: the array.
        expected: the expected array.
        values: statistics of the expected array.
        scale: the size of a typical element, if it is larger than in the expected array.
        tolerance: the allowed differences; None to measure only.
        magnitudes: for each element, the sum of the magnitudes of its terms, if known.
    """
    unit_type = _coarser(got, expected)
    typical = max(values.size, scale)
    largest = squares = ulp = ratio = 0.0
    beyond = equal = start = 0
    worst = -1
    histogram = np.zeros(len(BINS) + 1, np.int64)
    sums = [None] * len(_pieces(got)) if magnitudes is None else _pieces(magnitudes)
    for a, e, sum_ in zip(_pieces(got), _pieces(expected), sums, strict=True):
        wide, want = a.astype(np.float64), e.astype(np.float64)
        if unit_type is not None and e.dtype != unit_type:
            with np.errstate(over="ignore"):
                want = e.astype(unit_type).astype(np.float64)
        with np.errstate(invalid="ignore"):
            off = np.abs(wide - want)
        if a.dtype.kind in "iu" and a.itemsize == 8:  # float64 cannot hold all of them
            off = np.where(a == e, 0.0, np.maximum(off, 1.0))
        same = (a == e) if a.dtype == e.dtype else (wide == want)
        same |= np.isnan(wide) & np.isnan(want)
        off[same] = 0.0
        off[np.isnan(off)] = np.inf
        count = int(same.sum())
        equal += count
        if count < off.size:
            largest = max(largest, float(off.max()))
            squares += float(np.square(off[np.isfinite(off)]).sum())
            size = np.maximum(np.abs(want), typical)
            with np.errstate(divide="ignore", invalid="ignore"):
                parts = np.log10((off / size)[~same])
            parts[np.isnan(parts)] = np.inf
            histogram += np.bincount(np.searchsorted(BINS, parts), minlength=len(histogram))
            if unit_type is not None:
                ulp = max(ulp, _ulp(off, size, unit_type))
            allowed = None if tolerance is None else tolerance.limits(want, typical, unit_type, sum_)
            with np.errstate(divide="ignore", invalid="ignore"):
                # An infinite difference is beyond all limits, also where the limit of an infinite number is infinite.
                ratios = off if allowed is None else np.where(same, 0.0, np.where(np.isinf(off), np.inf, off / allowed))
            index = int(np.argmax(ratios))
            if worst < 0 or ratios.flat[index] > ratio:
                ratio, worst = float(ratios.flat[index]), start + index
            beyond += int((ratios > 1).sum()) if allowed is not None else 0
        start += a.size
    if not got.size:
        return Error(0.0, 0.0, 0.0, 0.0, 0, (), 0.0, 0.0, 0, (0,) * len(histogram))
    shown = max(worst, 0)
    first, second = (array.reshape(-1)[shown].item() for array in (got, expected))
    where = tuple(int(k) for k in np.unravel_index(shown, got.shape)) if got.ndim else ()
    relative = 0.0 if not squares else float(np.sqrt(squares / got.size)) / (values.size or np.inf)
    relative = np.inf if np.isinf(largest) else relative
    counts = tuple(int(k) for k in histogram)
    return Error(
        largest, relative, ulp, 0.0 if tolerance is None else ratio, beyond, where, first, second, equal, counts
    )


def _coarser(a: np.ndarray, b: np.ndarray) -> np.dtype[np.floating] | None:
    """The less precise of two floating-point types; None for integers."""
    return min((a.dtype, b.dtype), key=lambda dtype: dtype.itemsize) if a.dtype.kind == "f" else None


def _ulp(off: np.ndarray, size: np.ndarray, unit_type: np.dtype[np.floating]) -> float:
    with np.errstate(all="ignore"):
        unit = np.spacing(np.minimum(size, float(np.finfo(unit_type).max)).astype(unit_type)).astype(np.float64)
        return float(np.max(off / unit, initial=0.0, where=np.isfinite(unit)))


def _pieces(array: np.ndarray) -> Sequence[np.ndarray]:
    elements = np.ascontiguousarray(array).reshape(-1)
    return [elements[start : start + PIECE] for start in range(0, max(elements.size, 1), PIECE)]
