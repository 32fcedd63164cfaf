"""Convert arrays to tensors of ONNX Runtime, and back."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as engine

from ... import memory
from ...core.dtypes import INFO, ONNX_TYPES
from .constants import is_plain
from .native import CPU

_NAMES = {"float32": "float", "float64": "double"}  # other types have NumPy's names

PLAIN_TYPES = frozenset(
    f"tensor({_NAMES.get(name, name)})" for name in ONNX_TYPES if name == "bool" or INFO[name].is_numpys
)


def to_engine(array: np.ndarray) -> Any:
    """Return the engine's tensor for an array. It shares the memory, unless elements have less than 8 bits: the engine packs
    these, so that they are copied, and counted.
    """
    if is_plain(array):
        return engine.OrtValue.ortvalue_from_numpy(array, CPU)
    info = INFO[array.dtype.name]
    if info.is_numpys:  # the text states the byte order
        return engine.OrtValue.ortvalue_from_numpy(array.view(info.name), CPU)
    if info.bits >= 8:
        stored = array.view(np.uint16 if info.bits == 16 else np.uint8)
        return engine.OrtValue.ortvalue_from_numpy_with_onnx_type(stored, info.onnx)
    from .records import packed_bytes

    packed = packed_bytes(array)
    value = engine.OrtValue.ortvalue_from_shape_and_onnx_type(array.shape, info.onnx, CPU)
    ctypes.memmove(value.data_ptr(), packed, len(packed))
    memory.copies.add(len(packed), "elements of less than 8 bits")
    return value


def from_engine(value: Any) -> np.ndarray:
    """Return a view of the engine's tensor, which the wrapper keeps alive; a copy for types that are not NumPy's own."""
    wrapper = onnxruntime.OrtValue(value)
    if wrapper.data_type() in PLAIN_TYPES:
        array: np.ndarray = wrapper.numpy()
        return array
    from onnx import TensorProto, numpy_helper

    data = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    memory.copies.add(len(data), "data types that NumPy does not have")
    tensor = TensorProto(dims=value.shape(), data_type=value.element_type(), raw_data=data)
    return numpy_helper.to_array(tensor)


def type_proto(name: str) -> Any:
    """Parse the engine's name of a type into an `onnx.TypeProto` without a shape.

    >>> type_proto("seq(tensor(int64))").sequence_type.elem_type.tensor_type.elem_type
    7
    """
    from onnx import TensorProto, TypeProto, helper

    outer, _, rest = name.partition("(")
    inner = rest[:-1]
    match outer:
        case "seq":
            return helper.make_sequence_type_proto(type_proto(inner))
        case "optional":
            return helper.make_optional_type_proto(type_proto(inner))
        case "tensor":
            if inner.upper() in dict(TensorProto.DataType.items()):  # other types exist in the engine only
                return helper.make_tensor_type_proto(TensorProto.DataType.Value(inner.upper()), None)
    return TypeProto()
