"""ONNX Runtime rules, one file for each family of operations, including composites."""

from __future__ import annotations

from ....core.graph import Operand


def is_single(input: Operand) -> bool:
    """Whether `input` is float32, the only data type that many kernels support."""
    return input.data_type == "float32"
