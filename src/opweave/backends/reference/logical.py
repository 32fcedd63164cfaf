"""Reference rules of comparisons and logic. The back end converts the truth values to uint8."""

from __future__ import annotations

import numpy as np

from ...ops import logical as ops
from . import Array, reference


@reference.lower(ops.equal)
def _(a: Array, b: Array) -> Array:
    return a == b


@reference.lower(ops.not_equal)
def _(a: Array, b: Array) -> Array:
    return a != b


@reference.lower(ops.greater)
def _(a: Array, b: Array) -> Array:
    return a > b


@reference.lower(ops.greater_or_equal)
def _(a: Array, b: Array) -> Array:
    return a >= b


@reference.lower(ops.lesser)
def _(a: Array, b: Array) -> Array:
    return a < b


@reference.lower(ops.lesser_or_equal)
def _(a: Array, b: Array) -> Array:
    return a <= b


@reference.lower(ops.logical_and)
def _(a: Array, b: Array) -> Array:
    return np.logical_and(a, b)


@reference.lower(ops.logical_or)
def _(a: Array, b: Array) -> Array:
    return np.logical_or(a, b)


@reference.lower(ops.logical_xor)
def _(a: Array, b: Array) -> Array:
    return np.logical_xor(a, b)


@reference.lower(ops.logical_not)
def _(a: Array) -> Array:
    return np.logical_not(a)


@reference.lower(ops.is_nan)
def _(a: Array) -> Array:
    return np.isnan(a)


@reference.lower(ops.is_infinite)
def _(a: Array) -> Array:
    return np.isinf(a)
