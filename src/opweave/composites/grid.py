"""Sampling at positions that are data: `grid_sample`, and the grids of affine transformations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from .. import expr
from ..core.dtypes import FLOATS
from ..core.graph import Builder, Desc, Operand
from ..core.operation import Limits
from ..core.size_possibilities import may_equal
from ..core.sizes import Size
from ..expr.array import Traced, as_array
from ..ops.constants import constant
from ..support.errors import require
from .declare import column, declare

if TYPE_CHECKING:
    from ..ops import Operations

GridMode: TypeAlias = Literal["linear", "nearest", "cubic"]
GridPadding: TypeAlias = Literal["zeros", "border", "reflection"]

CUBIC_COEFFICIENT = -0.75

FAR = 2.0**62
"""Positions from here on, and NaN, count as the edge before the first element, as in ONNX Runtime."""


@declare(input=Limits(FLOATS, ranks=(4, 5)), grid=Limits(FLOATS, ranks=(4, 5)))
def grid_sample(
    self: Builder,
    input: Operand,
    grid: Operand,
    *,
    mode: GridMode = "linear",
    padding_mode: GridPadding = "zeros",
    align_corners: bool = False,
    label: str = "",
) -> Desc:
    """Sample images or volumes at the positions of a grid.

    Positions are relative: -1 is the first edge of an axis and 1 the last, or with `align_corners` the centres of the first
    and last element. They are computed in float32. One that is NaN, infinite or beyond 2**62 elements counts as the first
    edge.

    An element whose coefficient is 0 may be left out or multiplied by 0, so that NaN and infinity may or may not spread to
    results at the positions of their neighbours.

    Args:
        input: float32 or float16 [batches, channels, height, width], or [batches, channels, depth, height, width].
        grid: float32 or float16 [batches, new height, new width, 2] with x and y along the last axis, or for volumes
            [batches, new depth, new height, new width, 3] with x, y and z.
        mode: "linear" interpolates between the nearest 4 elements (8 of a volume), "cubic" between 16 (64), "nearest" copies
            one; ties are rounded to even.
        padding_mode: elements outside are "zeros", those of the "border", or the "reflection" of those inside.
        align_corners: whether -1 and 1 are the centres of elements rather than edges.

    Returns: An operand of the data type of `input`, [batches, channels, new height, new width], or with a depth.
    Raises: `grid` does not fit, or `input` has no elements.

    ONNX's GridSample, PyTorch's `grid_sample`; in PyTorch, "cubic" repeats the border in another way.

    >>> image = np.float32([[[[1, 2], [3, 4]]]])
    >>> grid_sample(image, np.float32([[[[0, 0], [-0.5, -0.5]]]])).tolist()
    [[[[2.5, 1.0]]]]
    """
    batches, channels, *spatial = input.shape
    fits = grid.rank == input.rank and may_equal(grid.shape[0], batches) and may_equal(grid.shape[-1], len(spatial))
    expected = f"[{batches}, {'new depth, ' if len(spatial) == 3 else ''}new height, new width, {len(spatial)}]"
    require(fits, f"grid must have shape {expected}, got {grid.desc}")
    require(all(size >= 1 for size in spatial), f"input must have elements to sample, got {input.desc}")
    return Desc(input.data_type, (batches, channels, *grid.shape[1:-1]))


@grid_sample.expression
def _(input: Traced, grid: Traced, mode: str, padding_mode: str, align_corners: bool) -> Traced:
    batches, channels, *spatial = input.shape
    is_half = input.data_type == "float16"
    x = expr.cast(input, "float32") if is_half else input
    axes = [_SampledAxis(size, mode, padding_mode, bool(align_corners)) for size in spatial]
    read = x.padded(0) if padding_mode == "zeros" else x.clamped

    def element(n: Traced, c: Traced, *place: Traced) -> Any:
        # The grid has x first, which is the last axis of the input.
        places = [grid[(n, *place, len(axes) - 1 - k)] for k in range(len(axes))]
        taps = [axis.taps(expr.cast(p, "float32")) for axis, p in zip(axes, places, strict=True)]

        def weighted_sum(level: int, index: tuple[Any, ...]) -> Any:
            """The sum over the taps of the axes from `level` on."""
            if level == len(taps):
                return read[(n, c, *index)]
            positions, weights = taps[level]
            parts = [weighted_sum(level + 1, (*index, position)) for position in positions]
            if weights is None:
                return parts[0]
            total = parts[0] * weights[0]
            for part, weight in zip(parts[1:], weights[1:], strict=True):
                total = total + part * weight
            return total

        total = weighted_sum(0, ())
        return expr.cast(total, "float16") if is_half else total

    return expr.compute((batches, channels, *grid.shape[1:-1]), element)


class _SampledAxis:
    """Formulas of positions along one axis of the input, in the order of ONNX Runtime's steps."""

    def __init__(self, size: Any, mode: str, padding_mode: str, align_corners: bool) -> None:
        self.mode, self.padding_mode, self.align_corners = mode, padding_mode, align_corners
        self.size: Traced = as_array(size, "float32")
        self.count: Traced = as_array(size, "int32")
        self.low = 0.0 if align_corners else -0.5
        self.high = self.size - (1.0 if align_corners else 0.5)

    def taps(self, relative: Traced) -> tuple[list[Traced], list[Traced] | None]:
        """Positions of elements and their weights; no weights for a copy."""
        place = self._move_inside(self._absolute(relative))
        if self.mode == "nearest":
            return [self._inside(expr.cast(place, "int32"))], None
        low = expr.floor(place)
        part, first = place - low, expr.cast(low, "int32")
        if self.mode == "linear":
            return [self._inside(first + t) for t in range(2)], [1 - part, part]
        return [self._inside(first + t) for t in range(-1, 3)], _cubic_weights(part)

    def _absolute(self, relative: Traced) -> Traced:
        """The position in elements; nearest positions are rounded."""
        if self.align_corners:
            place = (relative + 1) * 0.5 * (self.size - 1)
        else:
            place = ((relative + 1) * self.size - 1) * 0.5
        # Shaders may assume that nothing they compare is NaN.
        is_near = (expr.abs(place) < FAR) & expr.logical_not(expr.is_nan(place))
        place = expr.where(is_near, place, self.low)
        return expr.round_even(place) if self.mode == "nearest" else place

    def _move_inside(self, place: Traced) -> Traced:
        """Move positions beyond the edges: to the border, or reflected; with zeros, not farther than any element counts."""
        if self.padding_mode == "zeros":
            return expr.max(expr.min(place, self.size + 2), -3.0)
        is_outside = (place < self.low) | (place > self.high)
        if self.padding_mode == "border":
            return expr.where(is_outside, expr.max(expr.min(place, self.size - 1), 0.0), place)
        return expr.where(is_outside, self._reflect(place), place)

    def _reflect(self, place: Traced) -> Traced:
        span = self.high - self.low
        beyond = expr.max(self.low - place, place - self.high)
        # A single element with aligned corners has a span of 0, and only one position.
        times = expr.floor(beyond / expr.max(span, 1e-30))
        remainder = expr.max(expr.min(beyond - times * span, span), 0.0)
        is_even = times - 2 * expr.floor(times * 0.5) == 0
        comes_from_low = expr.logical_xor(place < self.low, expr.logical_not(is_even))
        return expr.where(comes_from_low, self.low + remainder, self.high - remainder)

    def _inside(self, position: Traced) -> Traced:
        """The position of an element. With zeros and borders, reads may be outside."""
        if self.padding_mode != "reflection":
            return position
        if self.align_corners:
            period = expr.max(2 * self.count - 2, 1)
            remainder = position % period
            return expr.where(remainder >= self.count, period - remainder, remainder)
        remainder = position % (2 * self.count)
        return expr.where(remainder >= self.count, 2 * self.count - 1 - remainder, remainder)


def _cubic_weights(part: Traced) -> list[Traced]:
    """The weights of the elements at -1, 0, 1 and 2, for a position `part` behind 0."""
    a = CUBIC_COEFFICIENT

    def near(x: Traced) -> Traced:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: Traced) -> Traced:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return [far(part + 1), near(part), near(1 - part), far(2 - part)]


@declare(theta=Limits(FLOATS, ranks=(3, 3)))
def affine_grid(
    self: Builder, theta: Operand, sizes: Sequence[int], *, align_corners: bool = False, label: str = ""
) -> Desc:
    """Make the grid of an affine transformation, for `grid_sample`.

    Args:
        theta: float32 or float16 [batches, 2, 3], or [batches, 3, 4] for volumes: matrices that map (x, y, 1) or (x, y, z, 1)
            in the result to x, y (and z) in the input.
        sizes: the new height and width, or the new depth, height and width.
        align_corners: whether -1 and 1 are the centres of the first and last element rather than edges; the centre of a single
            element is 0.

    Returns: An operand of the data type of `theta`, [batches, *sizes, 2], or 3 for volumes.
    Raises: `theta` does not fit, or sizes are not positive.

    ONNX's AffineGrid, PyTorch's `affine_grid`.

    >>> affine_grid(np.float32([[[2, 0, 0], [0, 1, 0.25]]]), [1, 2]).tolist()
    [[[[-1.0, 0.25], [1.0, 0.25]]]]
    """
    is_list = isinstance(sizes, tuple) and all(isinstance(size, (int, np.integer, Size)) for size in sizes)
    fits = is_list and len(sizes) in (2, 3) and all(size >= 1 for size in sizes)
    require(fits, f"sizes must be 2 or 3 positive integers, got {sizes}")
    rows = len(sizes)
    fits = may_equal(theta.shape[1], rows) and may_equal(theta.shape[2], rows + 1)
    require(fits, f"theta must have shape [batches, {rows}, {rows + 1}] for {rows} sizes, got {theta.desc}")
    return Desc(theta.data_type, (theta.shape[0], *sizes, rows))


@affine_grid.expression
def _(theta: Traced, sizes: Sequence[int], align_corners: bool) -> Traced:
    matrix = expr.cast(theta, "float32")
    last = len(sizes)

    def element(n: Traced, *place: Traced) -> Any:
        *position, row = place
        total = matrix[n, row, last]
        for k, (at, size) in enumerate(zip(reversed(position), reversed(sizes), strict=True)):
            total = total + matrix[n, row, k] * _centre(at, size, bool(align_corners))
        return expr.cast(total, "float16") if theta.data_type == "float16" else total

    return expr.compute((theta.shape[0], *sizes, last), element)


def _centre(at: Traced, size: Any, align_corners: bool) -> Traced:
    """The centre of an element, relative to the axis."""
    twice, count = 2 * expr.cast(at, "float32"), as_array(size, "float32")
    if not align_corners:
        return (twice + 1 - count) / count
    # A single element is at 0.
    return (twice - (count - 1)) / expr.max(count - 1, 1.0)


@affine_grid.decompose
def _(b: Operations, theta: Operand, sizes: Sequence[int], align_corners: bool) -> Operand:
    matrix, rows = b.cast(theta, "float32"), len(sizes)
    ones = [1] * rows

    def column_of(k: int) -> Operand:
        part = b.slice(matrix, [0, 0, k], [theta.shape[0], rows, 1])
        return b.reshape(part, [theta.shape[0], *ones, rows])

    total = b.expand(column_of(rows), [theta.shape[0], *sizes, rows])
    for k, size in enumerate(reversed(sizes)):
        count = int(size)
        twice = 2 * np.arange(count, dtype=np.float32)
        centres = (twice - np.float32(count - 1)) / np.float32(max(count - 1, 1) if align_corners else count)
        line = constant(b, centres.reshape(column(rows - k, count, rows + 2)), "float32")
        total = total + column_of(k) * line
    return b.cast(total, theta.data_type)
