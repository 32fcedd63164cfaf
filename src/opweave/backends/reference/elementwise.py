"""Reference rules of the element-wise operations."""

from __future__ import annotations

import numpy as np

from ...ops import elementwise as ops
from . import Array, reference


@reference.lower(ops.add)
def _(a: Array, b: Array) -> Array:
    return a + b


@reference.lower(ops.exp)
def _(input: Array) -> Array:
    return np.exp(input)
