"""ONNX Runtime rules: a predicate that several families use."""

from __future__ import annotations

from ....core.graph import Operand


def is_single(input: Operand) -> bool:
    """Whether `input` is float32, the only data type that many kernels support."""
    return input.data_type == "float32"
