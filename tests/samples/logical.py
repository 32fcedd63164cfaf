"""Calls of comparisons and logic."""

from __future__ import annotations

from opweave.ops import logical as ops

from . import Call, Make, sample
from .elementwise import one, two


@sample(ops.equal, ops.not_equal, ops.greater, ops.greater_or_equal, ops.lesser, ops.lesser_or_equal)
def _(make: Make) -> Call:
    return Call(*two(make, -1, 1))


@sample(ops.logical_and, ops.logical_or, ops.logical_xor)
def _(make: Make) -> Call:
    return Call(*two(make, 0, 2))


@sample(ops.logical_not)
def _(make: Make) -> Call:
    return Call(one(make, "a"))


@sample(ops.is_nan, ops.is_infinite)
def _(make: Make) -> Call:
    return Call(one(make, "a"))
