"""The messages that ONNX models are made of, and what is asked of them most, without the rest of the `onnx` package.

`import onnx` loads the definitions of all operators, shape inference and more: ten megabytes, which most models need
nothing of. Its messages are a module of their own, made by protoc; protobuf has one class for each kind of message,
however often that module is run, so these are the classes that `import onnx` gives, before or after.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..dtypes import ONNX_TYPES

if TYPE_CHECKING:
    from onnx import (
        AttributeProto as AttributeProto,
        FunctionProto as FunctionProto,
        GraphProto as GraphProto,
        ModelProto as ModelProto,
        NodeProto as NodeProto,
        SparseTensorProto as SparseTensorProto,
        TensorProto as TensorProto,
        TypeProto as TypeProto,
        ValueInfoProto as ValueInfoProto,
    )
else:

    def _messages() -> ModuleType:
        """The module with the messages, by itself; the package, where that is loaded already, or laid out otherwise."""
        package = None if "onnx" in sys.modules else find_spec("onnx")
        places = package and package.submodule_search_locations
        spec = PathFinder.find_spec("onnx.onnx_ml_pb2", places) if places else None
        if spec is None or spec.loader is None:
            return import_module("onnx")
        module = module_from_spec(spec)  # not in sys.modules: a package that is imported later has its own
        spec.loader.exec_module(module)
        return module

    _found = _messages()
    AttributeProto, FunctionProto, GraphProto = _found.AttributeProto, _found.FunctionProto, _found.GraphProto
    ModelProto, NodeProto, SparseTensorProto = _found.ModelProto, _found.NodeProto, _found.SparseTensorProto
    TensorProto, TypeProto, ValueInfoProto = _found.TensorProto, _found.TypeProto, _found.ValueInfoProto

PLAIN: dict[int, str] = {element_type: name for name, element_type in ONNX_TYPES.items()}
"""Element types that NumPy has itself, under these names. It reads their raw bytes as they are."""

_DTYPES = {element_type: np.dtype(name) for element_type, name in PLAIN.items()}
_ELEMENT_TYPES = {dtype: element_type for element_type, dtype in _DTYPES.items()}

# The field of a tensor that holds its elements where they are not raw, and the type that they have there.
_FIELDS: dict[int, tuple[str, str]] = {
    TensorProto.FLOAT: ("float_data", "float32"),
    TensorProto.DOUBLE: ("double_data", "float64"),
    TensorProto.INT64: ("int64_data", "int64"),
    TensorProto.UINT32: ("uint64_data", "uint64"),
    TensorProto.UINT64: ("uint64_data", "uint64"),
}
_INT32_DATA = ("int32_data", "int32")  # of all others

# The field of an attribute for each of its types, and for lists of these.
_VALUES: dict[int, str] = {
    AttributeProto.FLOAT: "f",
    AttributeProto.INT: "i",
    AttributeProto.STRING: "s",
    AttributeProto.TENSOR: "t",
    AttributeProto.GRAPH: "g",
    AttributeProto.SPARSE_TENSOR: "sparse_tensor",
    AttributeProto.TYPE_PROTO: "tp",
}
_LISTS: dict[int, str] = {
    AttributeProto.FLOATS: "floats",
    AttributeProto.INTS: "ints",
    AttributeProto.STRINGS: "strings",
    AttributeProto.TENSORS: "tensors",
    AttributeProto.GRAPHS: "graphs",
    AttributeProto.SPARSE_TENSORS: "sparse_tensors",
    AttributeProto.TYPE_PROTOS: "type_protos",
}


def dtype_of(element_type: int) -> np.dtype[Any]:
    """NumPy's data type for an ONNX element type; that of ml_dtypes where NumPy has none.

    >>> dtype_of(TensorProto.INT64), dtype_of(TensorProto.BFLOAT16)
    (dtype('int64'), dtype(bfloat16))
    """
    if element_type in _DTYPES:
        return _DTYPES[element_type]
    from onnx import helper

    dtype: np.dtype[Any] = helper.tensor_dtype_to_np_dtype(element_type)
    return dtype


def element_type_of(dtype: np.dtype[Any]) -> int:
    """The ONNX element type of NumPy's data type.

    >>> element_type_of(np.dtype("float16")) == TensorProto.FLOAT16
    True
    """
    if dtype in _ELEMENT_TYPES:
        return _ELEMENT_TYPES[dtype]
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(dtype))


def array_of(tensor: TensorProto) -> np.ndarray:
    """The elements of a tensor that holds them itself, in any of ONNX's ways.

    Raises:
        Exception: of many classes, where elements and shape do not fit.

    >>> array_of(TensorProto(data_type=TensorProto.FLOAT16, dims=[2], int32_data=[15360, 16384]))
    array([1., 2.], dtype=float16)
    """
    dtype = _DTYPES.get(tensor.data_type)
    if dtype is None or tensor.HasField("segment") or tensor.data_location == TensorProto.EXTERNAL:
        from onnx import numpy_helper

        array: np.ndarray = numpy_helper.to_array(tensor)
        return array
    if tensor.HasField("raw_data"):
        return np.frombuffer(tensor.raw_data, dtype).reshape(tensor.dims)
    field, name = _FIELDS.get(tensor.data_type, _INT32_DATA)
    elements = np.array(getattr(tensor, field), name)
    if tensor.data_type == TensorProto.FLOAT16:  # their bits
        return elements.astype(np.uint16).view(dtype).reshape(tensor.dims)
    return elements.astype(dtype, copy=False).reshape(tensor.dims)


def tensor_type(element_type: int, shape: Sequence[int] | None = None) -> TypeProto:
    """The type of tensors with these elements; without a shape where that is not known."""
    type = TypeProto()
    type.tensor_type.elem_type = element_type
    if shape is not None:
        type.tensor_type.shape.SetInParent()  # a scalar has a shape, and no dimensions
        for size in shape:
            type.tensor_type.shape.dim.add(dim_value=size)
    return type


def attribute_value(attribute: AttributeProto) -> Any:
    """What an attribute says: a number, bytes, a message, or a list of such; None where it says nothing.

    Raises:
        ValueError: it stands for an attribute of a function, or has a type that is not known.
    """
    if attribute.ref_attr_name:
        raise ValueError(f"the attribute {attribute.name!r} stands for {attribute.ref_attr_name!r} of a function")
    if attribute.type == AttributeProto.UNDEFINED:
        return None
    if attribute.type in _LISTS:
        return list(getattr(attribute, _LISTS[attribute.type]))
    if attribute.type not in _VALUES:
        raise ValueError(f"the attribute {attribute.name!r} has the type {attribute.type}, which is not known")
    return getattr(attribute, _VALUES[attribute.type])


def sub_graphs(node: NodeProto) -> list[GraphProto]:
    """The graphs among the attributes of a node: branches, and bodies of loops."""
    found: list[GraphProto] = []
    for attribute in node.attribute:
        found += [attribute.g] if attribute.type == AttributeProto.GRAPH else attribute.graphs
    return found


def node(op_type: str, inputs: Sequence[str], outputs: Sequence[str], **integers: int) -> NodeProto:
    """A node of one of ONNX's own operators, with attributes that are integers."""
    attributes = [AttributeProto(name=name, type=AttributeProto.INT, i=i) for name, i in integers.items()]
    return NodeProto(op_type=op_type, input=inputs, output=outputs, attribute=attributes)
