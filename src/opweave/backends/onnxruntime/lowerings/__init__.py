"""Rules of ONNX Runtime: one file for each family of operations, the composites beside the built-in ones."""

from __future__ import annotations

from ....graph import Operand


def is_single(input: Operand) -> bool:
    """Whether `input` is float32: the only data type for which many kernels exist."""
    return input.data_type == "float32"
