"""Element-wise ONNX operators."""

from __future__ import annotations

from ...builder import MLGraphBuilder
from ..registry import Tensor, converts


@converts("Relu")
def _(b: MLGraphBuilder, X: Tensor) -> Tensor:
    return b.relu(X)


@converts("Add")
def _(b: MLGraphBuilder, A: Tensor, B: Tensor) -> Tensor:
    return b.add(A, B)
