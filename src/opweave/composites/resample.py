"""Resampling of an axis: positions in the input and weights for each element of the result, as tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from .. import expr
from ..core.dtypes import ANY, is_float
from ..core.graph import Builder, Desc, Operand
from ..core.operation import Limits, N
from ..expr.array import Traced
from ..ops.constants import constant
from ..support.errors import require
from ..support.records import record
from .declare import column, declare

if TYPE_CHECKING:
    from ..ops import Operations

Coordinates: TypeAlias = Literal[
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
    "tf_half_pixel_for_nn",
]
Rounding: TypeAlias = Literal["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]

MAX_LOADS = 16
"""Maximum number of elements that one pass reads for an element of its result; more taps are a pass for each axis. Cubic
interpolation over two axes has 16."""

UNROLLED = 4
"""Maximum number of taps along an axis that become separate loads; more are a loop."""

_ZERO, _ONE, _HALF = np.float32(0), np.float32(1), np.float32(0.5)


@record(eq=True, slots=False)
class ResizedAxis:
    """An axis that may be resized.

    Attributes:
        scale: the factor between positions, which may differ a little from `new / old`.
        width: `old * scale`, of which `new` is the whole part.
        start, end: the part of the axis that is resized, for "tf_crop_and_resize": 0 is the first element, 1 the last.
    """

    axis: int
    old: int
    new: int
    scale: np.float32
    width: float
    start: np.float32 = _ZERO
    end: np.float32 = _ONE

    @property
    def is_changed(self) -> bool:
        """Whether the elements may change."""
        return self.new != self.old or self.scale != 1 or self.start != 0 or self.end != 1

    def coordinates(self, mode: Coordinates) -> np.ndarray:
        """The position in the input of each element of the result.

        Computed in float32 as ONNX Runtime does. Where `width` is not whole, ONNX Runtime takes `new` instead of it; ONNX's
        reference evaluator and its tests of operators do not.
        """
        at, old, width = np.arange(self.new, dtype=np.float32), np.float32(self.old), np.float32(self.width)
        half_pixel = (at + _HALF) / self.scale - _HALF
        if mode == "half_pixel":
            return half_pixel
        if mode == "half_pixel_symmetric":
            return old / np.float32(2) * (_ONE - np.float32(self.new) / (self.scale * old)) + half_pixel
        if mode == "pytorch_half_pixel":
            return half_pixel if self.width != 1 else np.full_like(at, -_HALF)
        if mode == "tf_half_pixel_for_nn":
            return (at + _HALF) / self.scale
        if mode == "asymmetric":
            return at / self.scale
        if mode == "align_corners":
            return at * (old - _ONE) / (width - _ONE) if self.width != 1 else np.zeros_like(at)
        if self.width == 1:
            return np.full_like(at, _HALF * (self.start + self.end) * (old - _ONE))
        return self.start * (old - _ONE) + at * (self.end - self.start) * (old - _ONE) / (width - _ONE)

    def outside(self, mode: Coordinates) -> np.ndarray | None:
        """Whether each element of the result is outside the input, so that it is extrapolated; None if none is."""
        if mode != "tf_crop_and_resize":
            return None
        places = self.coordinates(mode)
        is_inside = (places >= 0) & (places <= np.float32(self.old - 1))
        return None if is_inside.all() else ~is_inside


@record(eq=True, slots=False)
class Taps:
    """The elements of an axis that each element of the result is a weighted sum of.

    Attributes:
        positions: int32 [size of the result, taps].
        weights: float32 of the same shape; None for a copy of one element.
    """

    axis: int
    positions: np.ndarray
    weights: np.ndarray | None = None

    @property
    def count(self) -> int:
        return int(self.positions.shape[1])


_ROUNDINGS: dict[Rounding, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.ceil(x - _HALF),
    "round_prefer_ceil": lambda x: np.floor(x + _HALF),
    "floor": np.floor,
    "ceil": np.ceil,
}


def nearest_taps(axis: ResizedAxis, mode: Coordinates, rounding: Rounding) -> Taps:
    """Choose one element for each element of the result."""
    nearest = _whole(_ROUNDINGS[rounding](axis.coordinates(mode)), axis.old)
    return Taps(axis.axis, np.clip(nearest, 0, axis.old - 1).astype(np.int32)[:, None])


def linear_taps(axis: ResizedAxis, mode: Coordinates) -> Taps:
    """Interpolate between two neighbours."""
    places = np.clip(axis.coordinates(mode), 0, np.float32(axis.old - 1))
    low = np.minimum(_whole(places, axis.old), axis.old - 1)
    high = np.minimum(low + 1, axis.old - 1)
    part = places - low.astype(np.float32)
    part[low == high] = _HALF
    weights = np.stack([_ONE - part, part], axis=1)
    return Taps(axis.axis, np.stack([low, high], axis=1).astype(np.int32), weights.astype(np.float32))


def cubic_taps(axis: ResizedAxis, mode: Coordinates, coefficient: float, exclude_outside: bool) -> Taps:
    """Weigh four neighbours with a piecewise cubic function (Keys, 1981). Some may have no weight in any element."""
    places = axis.coordinates(mode).astype(np.float64)
    low = _whole(np.floor(places), axis.old)
    distances = (np.arange(-1, 3) - (places - low)[:, None]) * np.ones((axis.new, 1))
    return _handle_outside(axis, low[:, None] + np.arange(-1, 3), cubic(distances, coefficient), exclude_outside)


def antialiased_taps(
    axis: ResizedAxis, mode: Coordinates, kernel: Callable[[np.ndarray], np.ndarray], reach: int, exclude_outside: bool
) -> Taps:
    """Weigh all elements that an element of a smaller result covers: the filter, of width `reach` each way, is stretched.

    ONNX's reference evaluator has the same formula, also for the neighbours at equal distances.
    """
    scale = min(float(axis.scale), 1.0)
    places = axis.coordinates(mode).astype(np.float64)
    low = _whole(np.ceil(places) - 1, axis.old)
    first = int(np.floor(-reach / scale)) + 1
    around = np.arange(first, 2 - first)
    weights = kernel((around - (places - low)[:, None]) * scale)
    weights /= weights.sum(axis=1, keepdims=True)
    return _handle_outside(axis, low[:, None] + around, weights, exclude_outside)


def triangle(x: np.ndarray) -> np.ndarray:
    weights: np.ndarray = np.clip(1 - np.abs(x), 0, 1)
    return weights


def cubic(x: np.ndarray, coefficient: float) -> np.ndarray:
    """The cubic function of Keys at distances `x`."""
    x, a = np.abs(x), coefficient
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def _whole(places: np.ndarray, size: int) -> np.ndarray:
    """Convert positions to integers; those far outside, or NaN, become positions just outside."""
    bounded: np.ndarray = np.nan_to_num(np.clip(places, -4.0 * size - 4, 5.0 * size + 4), nan=0)
    return bounded.astype(np.int64)


def _handle_outside(axis: ResizedAxis, positions: np.ndarray, weights: np.ndarray, exclude_outside: bool) -> Taps:
    """Repeat the first and last element outside, or exclude elements outside and normalise the other weights."""
    if exclude_outside:
        weights = np.where((positions >= 0) & (positions < axis.old), weights, 0)
        total = weights.sum(axis=1, keepdims=True)
        # If all are outside, the last or first element counts, as without exclusion.
        weights = np.where(total == 0, 1 / positions.shape[1], weights / np.where(total == 0, 1, total))
    clipped = np.clip(positions, 0, axis.old - 1).astype(np.int32)
    return Taps(axis.axis, clipped, weights.astype(np.float32))


def trim(taps: Taps) -> Taps:
    """Omit taps whose weight is 0 for all elements of the result."""
    assert taps.weights is not None
    used = np.flatnonzero((taps.weights != 0).any(axis=0))
    if not len(used):
        used = np.arange(1)
    return Taps(taps.axis, taps.positions[:, used[0] : used[-1] + 1], taps.weights[:, used[0] : used[-1] + 1])


def is_identity(taps: Taps, size: int) -> bool:
    """Whether the axis stays as it is."""
    is_copy = taps.weights is None or bool((taps.weights == 1).all())
    return taps.count == 1 and is_copy and taps.positions[:, 0].tolist() == list(range(size))


def resample(b: Operations, input: Operand, all_taps: Sequence[Taps]) -> Operand:
    """Resample several axes, in one pass if an element needs few others, else in one pass for each axis."""
    passes = [list(all_taps)]
    if prod(taps.count for taps in all_taps) > MAX_LOADS:
        # The axis that shrinks most comes first, so that later passes have less to do.
        ordered = sorted(all_taps, key=lambda taps: len(taps.positions) / max(input.shape[taps.axis], 1))
        passes = [[taps] for taps in ordered]
    result = input
    for group in passes:
        if group:
            positions = [constant(b, taps.positions, "int32") for taps in group]
            weights = [constant(b, taps.weights, "float32") for taps in group if taps.weights is not None]
            axes = tuple(taps.axis for taps in group)
            result = resample_axes(b, result, positions, weights, axes=axes)
    return result


@declare(
    input=Limits(ANY, ranks=(1, N)),
    positions=Limits(("int32",), ranks=(2, 2)),
    weights=Limits(("float32",), ranks=(2, 2)),
)
def resample_axes(
    self: Builder,
    input: Operand,
    positions: Sequence[Operand],
    weights: Sequence[Operand],
    *,
    axes: tuple[int, ...],
    label: str = "",
) -> Desc:
    """Make each element of the result a weighted sum of elements along some axes, at the positions of tables.

    For one axis, `output[i] = sum over t of weights[i, t] * input[positions[i, t]]`.

    Args:
        input: any data type, rank 1 or more.
        positions: for each of `axes`, a table [size of the result, taps] of positions; those out of range are clamped.
        weights: as many tables of the same shapes; with none, the result is a copy of the first elements.
        axes: different axes of `input`.

    Returns: An operand of the data type of `input`; its sizes along `axes` are those of the tables.
    Raises: the tables do not fit.
    """
    fits = len(positions) == len(axes) and len(weights) in (0, len(axes))
    require(fits, f"{len(axes)} axes need as many positions, got {len(positions)} and {len(weights)} weights")
    shape = list(input.shape)
    for axis, table in zip(axes, positions, strict=True):
        shape[axis] = table.shape[0]
    return Desc(input.data_type, tuple(shape))


@resample_axes.expression
def _(input: Traced, positions: Sequence[Traced], weights: Sequence[Traced], axes: tuple[int, ...]) -> Traced:
    shape = list(input.shape)
    for axis, table in zip(axes, positions, strict=True):
        shape[axis] = table.shape[0]
    if not weights:
        tables = dict(zip(axes, positions, strict=True))

        def read(*place: Traced) -> Traced:
            return input.clamped[tuple(tables[k][i, 0] if k in tables else i for k, i in enumerate(place))]

        return expr.compute(shape, read)
    is_half = input.data_type == "float16"
    x = expr.cast(input, "float32") if is_half else input

    def weighted_sum(place: tuple[Any, ...], target: tuple[Traced, ...], level: int) -> Any:
        """The sum over the taps of the axes from `level` on, at a position of the input in the axes before."""
        if level == len(axes):
            return x.clamped[place]
        axis, at, weight = axes[level], positions[level], weights[level]
        i = target[axis]

        def tap(t: Any) -> Any:
            inner = (*place[:axis], at[i, t], *place[axis + 1 :])
            return weighted_sum(inner, target, level + 1) * weight[i, t]

        taps = at.shape[1]
        if taps > UNROLLED:
            return expr.sum_over(taps, tap)
        total = tap(0)
        for t in range(1, taps):
            total = total + tap(t)
        return total

    def element(*place: Traced) -> Any:
        total = weighted_sum(place, place, 0)
        return expr.cast(total, "float16") if is_half else total

    return expr.compute(shape, element)


@resample_axes.decompose
def _(
    b: Operations, input: Operand, positions: Sequence[Operand], weights: Sequence[Operand], axes: tuple[int, ...]
) -> Operand:
    x = b.cast(input, "float32") if weights and is_float(input.data_type) else input
    for level, (axis, table) in enumerate(zip(axes, positions, strict=True)):
        count, taps = table.shape
        if not weights:
            x = b.gather(x, _column_of(b, table, 0), axis=axis)
            continue
        weight, total = weights[level], None
        if taps > UNROLLED:
            x = _by_product(b, x, axis, table.value, weight.value)
            continue
        for t in range(taps):
            part = b.gather(x, _column_of(b, table, t), axis=axis)
            factor = b.reshape(_column_of(b, weight, t), column(axis, count, x.rank))
            total = part * factor if total is None else total + part * factor
        assert total is not None
        x = total
    return b.cast(x, input.data_type)


def _column_of(b: Operations, table: Operand, t: int) -> Operand:
    if table.is_constant:
        return constant(b, table.value[:, t], table.data_type)
    return b.reshape(b.slice(table, [0, t], [table.shape[0], 1]), [table.shape[0]])


def _by_product(b: Operations, x: Operand, axis: int, positions: np.ndarray, weights: np.ndarray) -> Operand:
    """Resample an axis by a product with a matrix of weights."""
    size, count = x.shape[axis], len(positions)
    matrix = np.zeros((size, count), np.float32)
    np.add.at(matrix, (positions, np.arange(count)[:, None]), weights)
    outer, inner = x.shape[:axis], x.shape[axis + 1 :]
    lines = b.reshape(x, [prod(outer), size, prod(inner)])
    product = b.matmul(constant(b, np.ascontiguousarray(matrix.T), "float32"), lines)
    return b.reshape(product, [*outer, count, *inner])
