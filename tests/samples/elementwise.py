"""Calls of the element-wise operations. Signs of zeros are not compared: the two back ends may differ there."""

from __future__ import annotations

from typing import Any

import numpy as np

from opweave.core.dtypes import ANY, INFO, DataType
from opweave.ops import elementwise as ops

from . import Call, Make, sample


def edges(data_type: DataType) -> np.ndarray:
    """Values at which functions, kernels and instruction sets go wrong, those that all of the type can hold."""
    if INFO[data_type].kind == "f":
        top, small = np.finfo(data_type).max, np.finfo(data_type).smallest_subnormal
        halves = np.arange(-5, 6) / 2
        return np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, top, -top, small, 1e-7, *halves], data_type)
    info = INFO[data_type]
    middle = 1 << (info.bits // 2 - 1)
    values = (info.lowest, info.highest, info.highest - 1, middle, middle - 1, 1 - middle, -2, -1, 0, 1, 2, 3, 5)
    return np.array([value for value in values if value >= info.lowest], data_type)


def one(make: Make, name: str = "input") -> np.ndarray:
    """An operand, in half of the cases all the edges."""
    return edges(make.types[name]) if make.boolean() else make.array(name, make.shape(), special=True)


def two(make: Make, low: float = -4, high: float = 4) -> list[np.ndarray]:
    """Two operands `a` and `b`, in half of the cases all pairs of edges."""
    if make.boolean():
        return [edges(make.types["a"])[:, None], edges(make.types["b"])]
    shape = make.shape()
    return [make.array(name, make.broadcastable(shape), low, high, special=True) for name in "ab"]


@sample(ops.add, ops.sub, ops.mul, ops.div, ops.max, ops.min)
def _(make: Make) -> Call:
    return Call(*two(make))


@sample(ops.pow)
def _(make: Make) -> Call:
    return Call(*two(make, -3, 9))


@sample(
    ops.abs,
    ops.ceil,
    ops.cos,
    ops.erf,
    ops.exp,
    ops.floor,
    ops.log,
    ops.neg,
    ops.reciprocal,
    ops.round_even,
    ops.sign,
    ops.sin,
    ops.sqrt,
    ops.tan,
    ops.identity,
)
def _(make: Make) -> Call:
    return Call(one(make))


@sample(ops.cast)
def _(make: Make) -> Call:
    source, target = make.types["input"], make.choice(ANY)
    # A float that the integer type cannot hold becomes whatever the back end likes.
    is_defined = INFO[source].kind != "f" or INFO[target].kind == "f"
    low = 0 if INFO[target].kind == "u" and not is_defined else -100
    return Call(one(make) if is_defined else make.array("input", make.shape(), low, 100), target)


@sample(ops.clamp)
def _(make: Make) -> Call:
    info = INFO[make.types["input"]]
    extremes = (
        [np.inf, -np.inf, np.nan] if info.kind == "f" else [info.lowest, info.highest, info.highest - 1, 2**53 + 1]
    )
    bounds = [make.choice([make.integer(-4, 4), *extremes]) for _ in range(2)]
    given: dict[str, Any] = dict(zip(("min_value", "max_value"), sorted(bounds), strict=True))
    for name in make.subset(list(given)):
        given.pop(name)
    return Call(one(make), **given)


@sample(ops.where)
def _(make: Make) -> Call:
    shape = make.shape()
    condition = make.array("condition", make.broadcastable(shape), 0, 2, special=True)
    return Call(
        condition,
        *(make.array(name, make.broadcastable(shape), special=True) for name in ("true_value", "false_value")),
    )
