"""Reference rules: reductions. Integers are summed and multiplied in their own data type, so that they wrap around."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ....core.graph import Operand
from ....core.operation import Op
from ....ops import reduction as ops
from ..backend import Array, reference

Axes = tuple[int, ...]


@reference.lower(ops.arg_min)
def _(input: Array, axis: int, keep_dimensions: bool) -> Array:
    return np.argmin(input, axis, keepdims=keep_dimensions)


@reference.lower(ops.arg_max)
def _(input: Array, axis: int, keep_dimensions: bool) -> Array:
    return np.argmax(input, axis, keepdims=keep_dimensions)


@reference.lower(ops.cumulative_sum)
def _(input: Array, axis: int, exclusive: bool, reversed: bool) -> Array:
    x = np.flip(input, axis) if reversed else input
    if exclusive:
        # Shift the input by one: subtracting it from the sums would give ∞ - ∞ = NaN.
        first, all_but_last = np.split(x, [1], axis)[0], np.split(x, [x.shape[axis] - 1], axis)[0]
        x = np.concatenate([np.zeros_like(first), all_but_last], axis)
    sums = np.cumsum(x, axis, dtype=x.dtype)
    return np.flip(sums, axis) if reversed else sums


def _sum(x: Array, **how: Any) -> Array:
    return np.sum(x, dtype=x.dtype, **how)


_REDUCTIONS: dict[Op[..., Operand], Callable[..., Any]] = {
    ops.reduce_l1: lambda x, **how: _sum(np.abs(x), **how),
    ops.reduce_l2: lambda x, **how: np.sqrt(_sum(x * x, **how)),
    ops.reduce_log_sum: lambda x, **how: np.log(_sum(x, **how)),
    ops.reduce_max: np.max,
    ops.reduce_mean: np.mean,
    ops.reduce_min: np.min,
    ops.reduce_product: lambda x, **how: np.prod(x, dtype=x.dtype, **how),
    ops.reduce_sum: _sum,
    ops.reduce_sum_square: lambda x, **how: _sum(x * x, **how),
}
"""Functions that take NumPy's `axis` and `keepdims`."""


def _register(op: Op[..., Operand], function: Callable[..., Any]) -> None:
    @reference.lower(op)
    def _(input: Array, axes: Axes, keep_dimensions: bool) -> Array:
        return np.asarray(function(input, axis=axes, keepdims=keep_dimensions))


for _op, _function in _REDUCTIONS.items():
    _register(_op, _function)


@reference.lower(ops.reduce_log_sum_exp)
def _(input: Array, axes: Axes, keep_dimensions: bool) -> Array:
    # log Σ eˣ = m + log Σ eˣ⁻ᵐ: with m = max(x) no exponential overflows. An infinite m would give ∞ - ∞.
    largest = np.max(input, axes, keepdims=True)
    m = np.where(np.isinf(largest), 0, largest)
    total = m + np.log(_sum(np.exp(input - m), axis=axes, keepdims=True))
    return total if keep_dimensions else np.squeeze(total, axes)
