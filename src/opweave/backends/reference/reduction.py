"""Reference rules: reductions. Integers are summed and multiplied in their own data type, so that they wrap around."""

from __future__ import annotations

import numpy as np

from ...ops import reduction as ops
from .backend import Array, reference

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
    if exclusive:  # shift the input; subtracting it from the sums would fail for infinities
        first, rest = np.split(x, [1], axis)[0], np.split(x, [x.shape[axis] - 1], axis)[0]
        x = np.concatenate([np.zeros_like(first), rest], axis)
    sums = np.cumsum(x, axis, dtype=x.dtype)
    return np.flip(sums, axis) if reversed else sums


def _sum(x: Array, axes: Axes, keep_dimensions: bool) -> Array:
    return np.asarray(np.sum(x, axes, dtype=x.dtype, keepdims=keep_dimensions))


@reference.lower(ops.reduce_sum)
def _(input: Array, axes: Axes, keep_dimensions: bool) -> Array:
    return _sum(input, axes, keep_dimensions)


@reference.lower(ops.reduce_l1)
def _(input: Array, axes: Axes, keep_dimensions: bool) -> Array:
    return _sum(np.abs(input), axes, keep_dimensions)


@reference.lower(ops.reduce_sum_square)
def _(input: Array, axes: Axes, keep_dimensions: bool) -> Array:
    return _sum(input * input, axes, keep_dimensions)


@reference.lower(ops.reduce_l2)
def _(input: Array, axes: Axes, keep_dimensions: bool) -> Array:
    return np.sqrt(_sum(input * input, axes, keep_dimensions))


@reference.lower(ops.reduce_log_sum)
def _(input: Array, axes: Axes, keep_dimensions: bool) -> Array:
    return np.log(_sum(input, axes, keep_dimensions))


@reference.lower(ops.reduce_log_sum_exp)
def _(input: Array, axes: Axes, keep_dimensions: bool) -> Array:
    # log Σ eˣ = m + log Σ eˣ⁻ᵐ: with m = max(x) no exponential overflows. An infinite m would give ∞ - ∞.
    largest = np.max(input, axes, keepdims=True)
    m = np.where(np.isinf(largest), 0, largest)
    total = m + np.log(_sum(np.exp(input - m), axes, keep_dimensions=True))
    return total if keep_dimensions else np.squeeze(total, axes)


@reference.lower(ops.reduce_mean)
def _(input: Array, axes: Axes, keep_dimensions: bool) -> Array:
    return np.asarray(np.mean(input, axes, keepdims=keep_dimensions))


@reference.lower(ops.reduce_max)
def _(input: Array, axes: Axes, keep_dimensions: bool) -> Array:
    return np.asarray(np.max(input, axes, keepdims=keep_dimensions))


@reference.lower(ops.reduce_min)
def _(input: Array, axes: Axes, keep_dimensions: bool) -> Array:
    return np.asarray(np.min(input, axes, keepdims=keep_dimensions))


@reference.lower(ops.reduce_product)
def _(input: Array, axes: Axes, keep_dimensions: bool) -> Array:
    return np.asarray(np.prod(input, axes, dtype=input.dtype, keepdims=keep_dimensions))
