"""Pooling: one number per window of an image."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ....core.dtypes import FLOATS, INFO
from ....core.shapes import Window
from ....expr import Traced, clamp, max_over, sqrt, sum_over
from ....expr.ir import storage
from ....ops import pooling as ops
from ..table import gpu
from .positions import compute_by_letter, sizes_of
from .reduction import narrow, widen


class _PooledAxis(Window):
    """Windows along one axis, with positions as expressions."""

    @property
    def step(self) -> int:
        """The stride; 1 for a single window, whose stride is unused and may overflow int32."""
        return self.stride if self.count > 1 else 1

    def position(self, window: Traced, tap: Traced) -> Traced:
        """The position of a tap of a window; outside [0, size) in the padding."""
        return window * self.step + tap * self.dilation - self.before

    @property
    def covers_edges(self) -> bool:
        """Whether each window that crosses an edge contains the element at that edge."""
        return (
            self.dilation == 1 and self.before < self.taps and (self.count - 1) * self.stride - self.before < self.size
        )

    def elements(self, window: Traced) -> Traced | int:
        if self.before == self.after == 0:
            return self.taps
        start = window * self.step - self.before
        first = clamp((self.dilation - 1 - start) // self.dilation, 0)
        end = clamp((self.size - 1 - start) // self.dilation + 1, None, self.taps)
        return clamp(end - first, 0)


@dataclass(frozen=True, slots=True)
class _PoolProblem:
    """Windows over the height (`down`) and the width (`right`) of an image."""

    input: Traced
    layout: str
    down: _PooledAxis
    right: _PooledAxis

    @property
    def taps(self) -> tuple[int, int]:
        return self.down.taps, self.right.taps

    def key(self, p: Mapping[str, Traced], i: Traced, j: Traced) -> tuple[Traced, ...]:
        """The position in the image of a tap of the window at `p`."""
        there = {**p, "h": self.down.position(p["h"], i), "w": self.right.position(p["w"], j)}
        return tuple(there[letter] for letter in self.layout)


_Element = Callable[[dict[str, Traced]], Traced]
"""An element of the result, from its position by letter of the layout."""


def _average(pool: _PoolProblem) -> _Element:
    x = widen(pool.input)  # float16 cannot hold the counts of elements

    def element(p: dict[str, Traced]) -> Traced:
        total = sum_over(pool.taps, lambda i, j: x.padded(0)[pool.key(p, i, j)])
        return narrow(total / (pool.down.elements(p["h"]) * pool.right.elements(p["w"])), pool.input)

    return element


def _l2(pool: _PoolProblem) -> _Element:
    squares = pool.input * pool.input
    return lambda p: sqrt(sum_over(pool.taps, lambda i, j: squares.padded(0)[pool.key(p, i, j)]))


def _max(pool: _PoolProblem) -> _Element:
    data_type = storage(pool.input.data_type)
    lowest = -math.inf if data_type in FLOATS else INFO[data_type].lowest
    # Reading the edge's element in place of the padding needs no condition, if each window contains that element anyway.
    covers = pool.down.covers_edges and pool.right.covers_edges
    access = pool.input.clamped if covers else pool.input.padded(lowest)
    return lambda p: max_over(pool.taps, lambda i, j: access[pool.key(p, i, j)])


def _rule(element_of: Callable[[_PoolProblem], _Element]) -> Callable[..., Traced]:
    def rule(input: Traced, layout: str, **options: Any) -> Traced:
        sizes = sizes_of(input, layout)
        down, right = _PooledAxis.along([sizes["h"], sizes["w"]], options)
        element = element_of(_PoolProblem(input, layout, down, right))
        return compute_by_letter(layout, {**sizes, "h": down.count, "w": right.count}, element)

    return rule


gpu.lower(ops.average_pool2d)(_rule(_average))
gpu.lower(ops.l2_pool2d)(_rule(_l2))
gpu.lower(ops.max_pool2d)(_rule(_max))
