"""Conversion between arrays and `onnxruntime.OrtValue`s."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...support.errors import NotSupportedError

COLLECTION = "onnxruntime.capi.onnxruntime_inference_collection"


def is_ort_value(value: Any) -> bool:
    """Whether `value` is an `onnxruntime.OrtValue`; false if its module is not loaded."""
    module = sys.modules.get(COLLECTION)
    return module is not None and isinstance(value, module.OrtValue)


def array_of_value(value: Any, subject: str) -> Any:
    """An array over the memory of an OrtValue; `NotSupportedError` unless it is a tensor on the CPU."""
    if not value.is_tensor():
        raise NotSupportedError(f"{subject}: an OrtValue of {value.data_type()} cannot be read; pass the Python object")
    if value.device_name() != "cpu":
        raise NotSupportedError(f"{subject}: OrtValues must be on the CPU, got one on {value.device_name()}")
    from ...backends.onnxruntime.values import from_engine

    return from_engine(value._get_c_value())


def unwrap(values: Mapping[str, Any], subject: str = "input") -> Mapping[str, Any]:
    """The inputs or outputs of a call, with arrays in place of OrtValues."""
    if not any(is_ort_value(value) for value in values.values()):
        return values
    return {n: array_of_value(v, f"{subject} {n!r}") if is_ort_value(v) else v for n, v in values.items()}


def ort_value(array: Any, subject: str) -> Any:
    """An OrtValue over the memory of an array of numbers. The value, and arrays made of it, keep the memory alive."""
    import onnxruntime

    if not isinstance(array, np.ndarray) or array.dtype.kind in "OUS":
        kind = f"an array of {array.dtype}" if isinstance(array, np.ndarray) else f"a {type(array).__name__}"
        raise NotSupportedError(
            f"{subject}: ONNX Runtime makes OrtValues of arrays of numbers only, got {kind}; use `run`"
        )
    from ...backends.onnxruntime.constants import is_plain
    from ...backends.onnxruntime.values import to_engine

    if is_plain(array):
        # Not `ortvalue_from_numpy`: the `numpy()` of its values does not keep the memory alive.
        try:
            return onnxruntime.OrtValue.from_dlpack(array)
        except RuntimeError:  # before 1.32, bool had to come as uint8
            return onnxruntime.OrtValue.from_dlpack(_BoolAsBytes(array))
    return onnxruntime.OrtValue(to_engine(array), array)


class _BoolAsBytes:
    """A bool array that exports its memory as uint8; ONNX Runtime 1.31 recognises bool by `dtype`."""

    def __init__(self, array: np.ndarray) -> None:
        self.dtype, self._bytes = array.dtype, array.view(np.uint8)

    def __dlpack__(self) -> Any:
        return self._bytes.__dlpack__()
