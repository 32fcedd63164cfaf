"""ONNX comparisons, logic, and tests of elements."""

from __future__ import annotations

from math import inf

import numpy as np

from .... import ops
from ....context.builder import MLGraphBuilder
from ....core.graph import MLOperand
from ...model.registry import Tensor, by_name, converts, register

_COMPARISONS = by_name(ops.equal, ops.greater, ops.greater_or_equal, Less=ops.lesser, LessOrEqual=ops.lesser_or_equal)
_LOGIC = by_name(And=ops.logical_and, Or=ops.logical_or, Xor=ops.logical_xor, Not=ops.logical_not, IsNaN=ops.is_nan)
register(_COMPARISONS | _LOGIC)

BOOLEAN = {*_COMPARISONS, *_LOGIC, "IsInf"}
"""The operators whose results are bool for all types of inputs."""


@converts("IsInf")
def _(b: MLGraphBuilder, X: MLOperand, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    if detect_negative and detect_positive:
        return b.is_infinite(X)
    if not detect_negative and not detect_positive:
        return np.zeros(X.shape, bool)
    return b.equal(X, inf if detect_positive else -inf)
