"""Carry bool through WebNN, which lacks that data type, as uint8 0 and 1 in the same memory."""

from __future__ import annotations

import numpy as np

from ...memory.spaces import Memory
from ...support.errors import MLError
from .protobuf import TensorProto


def bool_as_uint8(memory: Memory) -> Memory:
    """View a bool array as uint8; return anything else unchanged.

    >>> bool_as_uint8(np.array([True, False]))
    array([1, 0], dtype=uint8)
    """
    return memory.view(np.uint8) if isinstance(memory, np.ndarray) and memory.dtype == bool else memory


def as_declared(array: np.ndarray, element_type: int) -> np.ndarray:
    """View a uint8 array as bool if the ONNX type is bool; return anything else unchanged.

    >>> as_declared(np.uint8([1, 0]), TensorProto.BOOL)
    array([ True, False])
    """
    return array.view(bool) if element_type == TensorProto.BOOL and array.dtype == np.uint8 else array


def check_bool(array: np.ndarray, subject: str, error: type[MLError]) -> None:
    """Require 0 and 1 in a bool array. A view of arbitrary bytes may hold greater values, which engines misread."""
    if (largest := array.view(np.uint8).max(initial=0)) > 1:
        raise error(f"{subject} must hold 0 and 1 for bool, got {largest}")
