"""ONNX comparisons and logic, and what tells elements of one kind."""

from __future__ import annotations

from math import inf

import numpy as np

from ...builder import MLGraphBuilder
from ..registry import Tensor, converts, operand, shape_of
from .elementwise import register_binary, register_unary

register_binary(
    {
        "Equal": MLGraphBuilder.equal,
        "Greater": MLGraphBuilder.greater,
        "GreaterOrEqual": MLGraphBuilder.greater_or_equal,
        "Less": MLGraphBuilder.lesser,
        "LessOrEqual": MLGraphBuilder.lesser_or_equal,
        "And": MLGraphBuilder.logical_and,
        "Or": MLGraphBuilder.logical_or,
        "Xor": MLGraphBuilder.logical_xor,
    }
)
register_unary({"Not": MLGraphBuilder.logical_not, "IsNaN": MLGraphBuilder.is_nan})


@converts("IsInf")
def _(b: MLGraphBuilder, X: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    if detect_negative and detect_positive:
        return b.is_infinite(operand(b, X))
    if not detect_negative and not detect_positive:
        return np.zeros(shape_of(X), bool)
    return b.equal(operand(b, X), inf if detect_positive else -inf)
