"""Reference rules: comparisons and logic. The back end converts the bool results to uint8."""

from __future__ import annotations

import numpy as np

from ...ops import logical as ops
from .backend import Array, reference
from .elementwise import register_binary

for _op, _function in {
    ops.equal: np.equal,
    ops.not_equal: np.not_equal,
    ops.greater: np.greater,
    ops.greater_or_equal: np.greater_equal,
    ops.lesser: np.less,
    ops.lesser_or_equal: np.less_equal,
    ops.logical_and: np.logical_and,
    ops.logical_or: np.logical_or,
    ops.logical_xor: np.logical_xor,
}.items():
    register_binary(_op, _function)


@reference.lower(ops.logical_not)
def _(a: Array) -> Array:
    return np.logical_not(a)


@reference.lower(ops.is_nan)
def _(a: Array) -> Array:
    return np.isnan(a)


@reference.lower(ops.is_infinite)
def _(a: Array) -> Array:
    return np.isinf(a)
