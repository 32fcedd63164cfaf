"""Custom operations that `test_saved.py` saves: files name them by this module."""

from __future__ import annotations

from typing import Any

import numpy as np

import opweave as ow


@ow.expression
def scaled_square(x: Any, *, scale: float = 1.0) -> Any:
    return x * x * scale


@ow.composite
def centred(b: Any, x: Any, *, axis: int = 0) -> Any:
    return x - b.reduce_mean(x, axes=[axis], keep_dimensions=True)


@ow.op
def add_number(self: Any, x: ow.MLOperand, *, number: int = 1) -> ow.Desc:
    return x.desc


@add_number.kernel("cpu")
def _(x: np.ndarray, number: int, out: np.ndarray) -> None:
    np.add(x, number, out=out)


@ow.recurrence
def leaky_sum(total: Any, x: Any, *, rate: float = 0.5) -> Any:
    return total * rate + x
