"""Calls of the activation functions."""

from __future__ import annotations

from opweave.ops import activation as ops

from . import Call, Make, sample
from .elementwise import one


def numbers(make: Make, *names: str) -> dict[str, float]:
    """Some of the options, with numbers that float16 holds, too."""
    return {name: make.number(-2, 2) for name in make.subset(names)}


@sample(ops.gelu, ops.hard_swish, ops.relu, ops.sigmoid, ops.softplus, ops.softsign, ops.tanh)
def _(make: Make) -> Call:
    return Call(one(make))


@sample(ops.elu, ops.leaky_relu)
def _(make: Make) -> Call:
    return Call(one(make), **numbers(make, "alpha"))


@sample(ops.hard_sigmoid, ops.linear)
def _(make: Make) -> Call:
    return Call(one(make), **numbers(make, "alpha", "beta"))


@sample(ops.prelu)
def _(make: Make) -> Call:
    shape = make.shape()
    input = make.array("input", make.broadcastable(shape), special=True)
    return Call(input, make.array("slope", make.broadcastable(shape), special=True))
