"""Custom operations and contexts that the tests in this folder share."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import opweave as ow
from opweave.support.errors import require

CPU = ow.ml.create_context(device="cpu")
REFERENCE = ow.ml.create_context(device="reference")
BOTH = pytest.mark.parametrize("context", [CPU, REFERENCE], ids=["cpu", "reference"])
rng = np.random.default_rng(0)


@ow.op
def top_k(self: Any, x: ow.MLOperand, k: int) -> tuple[ow.Desc, ow.Desc]:
    """The k greatest elements of each row, and where they are."""
    require(0 < k <= x.shape[-1], f"k must be in [1, {x.shape[-1]}], got {k}")
    shape = (*x.shape[:-1], k)
    return ow.Desc(x.data_type, shape), ow.Desc("int32", shape)


@top_k.kernel("cpu")
def _(x: np.ndarray, k: int, *, out: tuple[np.ndarray, np.ndarray]) -> None:
    values, indices = out
    order = np.argsort(-x, axis=-1, kind="stable")[..., :k]
    indices[...] = order
    values[...] = np.take_along_axis(x, order, -1)


@ow.composite
def rms_norm(b: Any, x: Any, weight: Any, *, epsilon: float = 1e-6) -> Any:
    mean = b.reduce_mean(x * x, axes=[x.rank - 1], keep_dimensions=True)
    return x / b.sqrt(mean + epsilon) * weight


@ow.op
def add_one(self, x):  # type: ignore[no-untyped-def]
    return x.desc


@add_one.kernel("cpu")
def _(x: np.ndarray, out: np.ndarray) -> None:
    np.add(x, 1, out=out)


def message(error: BaseException) -> str:
    return re.sub(r"line \d+", "line N", str(error))
