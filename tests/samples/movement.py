"""Calls of the operations in `opweave.ops.movement`: nothing is computed, so results must be equal."""

from __future__ import annotations

from math import inf, nan
from typing import Any, get_args

from opweave.core.operation import N
from opweave.ops import movement as ops

from . import Call, Make, sample


@sample(ops.concat, rtol=0, atol=0)
def _(make: Make) -> Call:
    shape = list(make.shape(1, N, 3))
    axis = make.integer(0, len(shape) - 1)
    inputs = []
    for _ in range(make.integer(1, 4)):
        shape[axis] = make.integer(1, 4)
        inputs.append(make.array("inputs", shape, special=True))
    return Call(inputs, axis)


@sample(ops.expand, rtol=0, atol=0)
def _(make: Make) -> Call:
    shape = make.shape(0, N, 3)
    return Call(make.array("input", make.broadcastable(shape), special=True), list(shape))


@sample(ops.pad, rtol=0, atol=0)
def _(make: Make) -> Call:
    shape = make.shape(0, 5, 4)
    mode = make.choice(get_args(ops.PaddingMode))
    most = [size - 1 if mode == "reflection" else 3 for size in shape]
    before, after = ([make.integer(0, high) for high in most] for _ in range(2))
    # Values are rounded to nearest, ties to even, and clamped to the data type, without detours through float64.
    values = [1, -1.5, 2.5, 300, -300, 2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1, 1e-7, 1e30, 10**400, inf, -inf, nan]
    value = {"value": make.choice(values)} if make.boolean() else {}
    return Call(make.array("input", shape, special=True), before, after, mode=mode, **value)


@sample(ops.reshape, rtol=0, atol=0)
def _(make: Make) -> Call:
    shape = make.shape(0, 5)
    regrouped: list[int] = []
    for place in make.permutation(len(shape)):
        if regrouped and make.boolean():
            regrouped[-1] *= shape[place]
        else:
            regrouped += [shape[place]]
        regrouped += [1] * (len(regrouped) < N and make.integer(0, 5) == 0)
    return Call(make.array("input", shape, special=True), regrouped)


@sample(ops.reverse, rtol=0, atol=0)
def _(make: Make) -> Call:
    x = make.array("input", make.shape(0, N, 3), special=True)
    return Call(x, axes=make.subset(range(x.ndim))) if make.boolean() else Call(x)


@sample(ops.slice, rtol=0, atol=0)
def _(make: Make) -> Call:
    shape = make.shape(0, N, 3) if make.boolean() else make.shape(0, 3, 9)
    starts = [make.integer(0, size - 1) for size in shape]
    sizes = [make.integer(1, size - start) for size, start in zip(shape, starts, strict=True)]
    strides: dict[str, Any] = {}
    if make.boolean():
        strides["strides"] = [make.choice([1, 2, 3, 2**32 - 1]) for _ in shape]
    return Call(make.array("input", shape, special=True), starts, sizes, **strides)


@sample(ops.split, rtol=0, atol=0)
def _(make: Make) -> Call:
    shape = list(make.shape(1, 5))
    axis = make.integer(0, len(shape) - 1)
    if make.boolean():
        splits: Any = make.integer(1, 4)
        shape[axis] *= splits
    else:
        splits = list(make.shape(1, 4))
        shape[axis] = sum(splits)
    option = {"axis": axis} if axis > 0 or make.boolean() else {}
    return Call(make.array("input", shape, special=True), splits, **option)


@sample(ops.tile, rtol=0, atol=0)
def _(make: Make) -> Call:
    shape = make.shape(0, N, 2) if make.boolean() else make.shape(0, 4, 4)
    return Call(make.array("input", shape, special=True), [make.integer(1, 3) for _ in shape])


@sample(ops.transpose, rtol=0, atol=0)
def _(make: Make) -> Call:
    x = make.array("input", make.shape(0, N, 3), special=True)
    return Call(x, permutation=make.permutation(x.ndim)) if make.boolean() else Call(x)


@sample(ops.triangular, rtol=0, atol=0)
def _(make: Make) -> Call:
    options: dict[str, Any] = {}
    if make.boolean():
        options["upper"] = make.boolean()
    if make.boolean():
        options["diagonal"] = make.choice([-(2**31), 2**31 - 1, *range(-6, 7)])
    return Call(make.array("input", make.shape(2, 5), special=True), **options)
