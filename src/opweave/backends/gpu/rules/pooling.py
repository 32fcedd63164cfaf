"""Pooling: one number per window of an image."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import mul
from typing import Any

from ....composites import pool as composites
from ....core.dtypes import FLOATS, INFO
from ....core.shapes import Window
from ....core.size_bounds import is_always_less
from ....core.sizes import is_same_size
from ....expr import Traced, abs, clamp, max_over, pow, sqrt, sum_over
from ....expr.ir import storage
from ....ops import pooling as ops
from ..contraction.problem import spatial_axes
from ..table import gpu
from .positions import channels_first, compute_by_letter, sizes_of
from .reduction import narrow, widen


class _PooledAxis(Window):
    """Windows along one axis, with positions as expressions."""

    @property
    def step(self) -> int:
        """The stride; 1 for a single window, whose stride is unused and may overflow int32."""
        return self.stride if self.count > 1 else 1

    def position(self, window: Traced, tap: Traced | int) -> Traced:
        """The position of a tap of a window; outside [0, size) in the padding."""
        return window * self.step + tap * self.dilation - self.before

    def elements_with_padding(self, window: Traced) -> Traced | int:
        """The number of taps in the image and its padding, beyond which a partial last window may reach."""
        if is_always_less(self.after, self.ending + 1):
            return self.taps
        end = (self.size + self.ending - 1 - self.position(window, 0)) // self.dilation + 1
        return clamp(end, None, self.taps)

    def elements(self, window: Traced) -> Traced | int:
        if is_same_size(self.before, 0) and is_same_size(self.after, 0):
            return self.taps
        start = window * self.step - self.before
        first = clamp((self.dilation - 1 - start) // self.dilation, 0)
        end = clamp((self.size - 1 - start) // self.dilation + 1, None, self.taps)
        return clamp(end - first, 0)


@dataclass(frozen=True, slots=True)
class _PoolProblem:
    """Windows over the spatial axes of an image, by letter of the layout."""

    input: Traced
    layout: str
    axes: dict[str, _PooledAxis]

    @property
    def taps(self) -> tuple[int, ...]:
        return tuple(axis.taps for axis in self.axes.values())

    def key(self, p: Mapping[str, Traced], *taps: Traced) -> tuple[Traced, ...]:
        """The position in the image of a tap of the window at `p`."""
        places = zip(self.axes.items(), taps, strict=True)
        there = {**p, **{letter: axis.position(p[letter], tap) for (letter, axis), tap in places}}
        return tuple(there[letter] for letter in self.layout)


_Element = Callable[[dict[str, Traced]], Traced]
"""An element of the result, from its position by letter of the layout."""


def _average(pool: _PoolProblem) -> _Element:
    return _mean(pool, lambda axis, window: axis.elements(window))


def _average_with_padding(pool: _PoolProblem) -> _Element:
    return _mean(pool, lambda axis, window: axis.elements_with_padding(window))


def _mean(pool: _PoolProblem, count: Callable[[_PooledAxis, Traced], Traced | int]) -> _Element:
    x = widen(pool.input)  # float16 cannot hold the counts of elements

    def element(p: dict[str, Traced]) -> Traced:
        total = sum_over(pool.taps, lambda *taps: x.padded(0)[pool.key(p, *taps)])
        return narrow(total / reduce(mul, [count(axis, p[letter]) for letter, axis in pool.axes.items()]), pool.input)

    return element


def _l2(pool: _PoolProblem) -> _Element:
    squares = pool.input * pool.input
    return lambda p: sqrt(sum_over(pool.taps, lambda *taps: squares.padded(0)[pool.key(p, *taps)]))


def _norm(pool: _PoolProblem, p: int) -> _Element:
    x = abs(widen(pool.input))
    powers = x * x if p == 2 else x if p == 1 else pow(x, float(p))

    def element(at: dict[str, Traced]) -> Traced:
        total = sum_over(pool.taps, lambda *taps: powers.padded(0)[pool.key(at, *taps)])
        return narrow(sqrt(total) if p == 2 else total if p == 1 else pow(total, 1 / p), pool.input)

    return element


def _max(pool: _PoolProblem) -> _Element:
    data_type = storage(pool.input.data_type)
    lowest = -math.inf if data_type in FLOATS else INFO[data_type].lowest
    # Reading the edge's element in place of the padding needs no condition, if each window contains that element anyway.
    covers = all(axis.covers_edges for axis in pool.axes.values())
    access = pool.input.clamped if covers else pool.input.padded(lowest)
    return lambda p: max_over(pool.taps, lambda *taps: access[pool.key(p, *taps)])


def _rule(element_of: Callable[[_PoolProblem], _Element]) -> Callable[..., Traced]:
    def rule(input: Traced, layout: str = "", **options: Any) -> Traced:
        layout = layout or channels_first(input.rank - 2)
        sizes = sizes_of(input, layout)
        letters = spatial_axes(layout)
        windows = _PooledAxis.along([sizes[letter] for letter in letters], options)
        axes = dict(zip(letters, windows, strict=True))
        element = element_of(_PoolProblem(input, layout, axes))
        return compute_by_letter(layout, {**sizes, **{letter: axes[letter].count for letter in letters}}, element)

    return rule


gpu.lower(ops.average_pool2d)(_rule(_average))
gpu.lower(ops.l2_pool2d)(_rule(_l2))
gpu.lower(ops.max_pool2d, composites.max_pool)(_rule(_max))


@gpu.lower(composites.lp_pool)
def _(input: Traced, p: int, **options: Any) -> Traced:
    return _rule(lambda pool: _norm(pool, p))(input, **options)


@gpu.lower(composites.average_pool)
def _(input: Traced, include_padding: bool, **options: Any) -> Traced:
    return _rule(_average_with_padding if include_padding else _average)(input, **options)
