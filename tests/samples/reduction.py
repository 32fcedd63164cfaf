"""Calls of the reductions."""

from __future__ import annotations

from typing import Any

import numpy as np

from opweave.ops import reduction as ops

from . import Call, Make, sample

# Small numbers; numbers that differ in the lower 32 bits only, which are beyond what a float32 tells apart; all numbers.
INTEGERS = ((-4, 4), (0, 2**33), (-(2**63), 2**64))


def replace(x: np.ndarray, where: Any, value: float) -> np.ndarray:
    return np.asarray(np.where(where, np.array(value, x.dtype), x))


def ordered(make: Make, shape: tuple[int, ...]) -> np.ndarray:
    """Values without NaN, whose place in the order is not defined."""
    if np.dtype(make.types["input"]).kind == "f":
        x = make.array("input", shape, special=True)
        return replace(x, np.isnan(x), 0)
    return make.array("input", shape, *make.choice(INTEGERS), special=True)


def summable(make: Make, shape: tuple[int, ...]) -> np.ndarray:
    """Values without the largest float: whether intermediate sums and squares overflow depends on the order."""
    if np.dtype(make.types["input"]).kind == "f":
        x = make.array("input", shape, special=True)
        return replace(x, np.isfinite(x) & (np.abs(x) > 4), 4)
    return make.array("input", shape, *make.choice(INTEGERS), special=True)


def call(make: Make, x: np.ndarray) -> Call:
    options: dict[str, Any] = {}
    if make.boolean():
        options["axes"] = make.subset(range(x.ndim))
    if make.boolean():
        options["keep_dimensions"] = make.boolean()
    return Call(x, **options)


@sample(ops.arg_min, ops.arg_max)
def _(make: Make) -> Call:
    x = ordered(make, make.shape(1))
    options: dict[str, Any] = {}
    if make.boolean():
        options["keep_dimensions"] = make.boolean()
    if make.boolean():
        options["output_data_type"] = make.choice(("int32", "int64"))
    return Call(x, make.integer(0, x.ndim - 1), **options)


@sample(ops.cumulative_sum)
def _(make: Make) -> Call:
    x = summable(make, make.shape(1))
    return Call(x, make.integer(0, x.ndim - 1), exclusive=make.boolean(), reversed=make.boolean())


@sample(ops.reduce_max, ops.reduce_min)
def _(make: Make) -> Call:
    return call(make, ordered(make, make.shape()))


@sample(ops.reduce_l1, ops.reduce_l2, ops.reduce_mean, ops.reduce_sum, ops.reduce_sum_square)
def _(make: Make) -> Call:
    return call(make, summable(make, make.shape()))


@sample(ops.reduce_log_sum)
def _(make: Make) -> Call:
    x = summable(make, make.shape())
    # Beside tiny numbers, a sum that should cancel out would be 0 or not, depending on the order.
    return call(make, replace(x, np.abs(x) < 1e-3, 0))


@sample(ops.reduce_log_sum_exp)
def _(make: Make) -> Call:
    return call(make, make.array("input", make.shape(), special=True))


@sample(ops.reduce_product, rtol=1e-5)  # up to 81 factors, each product rounded
def _(make: Make) -> Call:
    x = summable(make, make.shape(0, 4, 3))
    if x.dtype.kind == "f":
        # Zero or magnitudes in [1/2, 2], or else intermediate products overflow or vanish, depending on the order.
        x = replace(x, (x != 0) & (np.abs(x) < 0.5), 0.5)
        x = replace(x, np.isfinite(x) & (np.abs(x) > 2), -2)
    return call(make, x)
