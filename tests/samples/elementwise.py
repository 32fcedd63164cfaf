"""Calls of the element-wise operations."""

from __future__ import annotations

from opweave.ops import elementwise as ops

from . import Call, Make, sample


@sample(ops.add)
def _(make: Make) -> Call:
    shape = make.shape()
    a, b = make.array("a", shape, special=True), make.array("b", make.broadcastable(shape), special=True)
    return Call(b, a) if make.boolean() else Call(a, b)


@sample(ops.exp)
def _(make: Make) -> Call:
    return Call(make.array("input", make.shape(), special=True))
