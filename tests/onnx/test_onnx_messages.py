"""Models are read, and run, without the `onnx` package: its messages are loaded by themselves, and are the same ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from support.processes import run_python

from opweave.onnx.model import protobuf

MODEL = """
import sys
import numpy as np
import opweave as ow

session = ow.InferenceSession(sys.argv[1], fallback="error")
y, square = session.run(None, {"x": np.float32([[-1, 2]]), "n": np.int64([3])})
assert (y.tolist(), square.tolist()) == ([[0, 7]], [9])
print("onnx" in sys.modules)
"""

ORDER = """
import pickle, sys
if sys.argv[1] == "before":
    import onnx
from opweave.onnx.model import protobuf
assert ("onnx" in sys.modules) == (sys.argv[1] == "before")
tensor = protobuf.TensorProto(name="t", dims=[1], data_type=1, float_data=[2])
packed = pickle.dumps(tensor)
import onnx
for name in ("AttributeProto", "FunctionProto", "GraphProto", "ModelProto", "NodeProto", "SparseTensorProto",
             "TensorProto", "TypeProto", "ValueInfoProto"):
    assert getattr(protobuf, name) is getattr(onnx, name) is getattr(onnx.onnx_ml_pb2, name), name
assert type(pickle.loads(packed)) is type(tensor) is onnx.TensorProto
assert onnx.numpy_helper.to_array(tensor).tolist() == [2]
graph = onnx.helper.make_graph([], "g", [], [], initializer=[tensor])
graph.initializer.append(onnx.TensorProto())
import numpy as np, opweave as ow
x = onnx.helper.make_tensor_value_info("x", 1, [2])
y = onnx.helper.make_tensor_value_info("y", 1, [2])
model = onnx.helper.make_model(onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y]))
model.opset_import[0].version = 17
print(ow.InferenceSession(model).run(None, {"x": np.float32([-1, 1])})[0].tolist())
"""


ELSEWHERE = """
import sys
from importlib.machinery import PathFinder

found = PathFinder.find_spec

def missing(name, *rest):
    if name != "onnx.onnx_ml_pb2":
        return found(name, *rest)
    PathFinder.find_spec = found

PathFinder.find_spec = missing
from opweave.onnx.model import protobuf
assert PathFinder.find_spec is found and "onnx" in sys.modules
import onnx
assert protobuf.ModelProto is onnx.ModelProto
print("the package")
"""


@pytest.mark.long
def test_session_without_onnx_package(tmp_path: Path) -> None:
    constants = [
        helper.make_tensor("w", TensorProto.FLOAT, [2, 2], [1.0, 0.0, 0.0, 3.0]),
        numpy_helper.from_array(np.float32([1, 1]), "b"),
        helper.make_tensor("shape", TensorProto.INT64, [2], [1, -1]),
    ]
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["g"], alpha=1.0),
        helper.make_node("Relu", ["g"], ["r"]),
        helper.make_node("Reshape", ["r", "shape"], ["y"]),
        helper.make_node("Mul", ["n", "n"], ["square"]),
    ]
    n = helper.make_tensor_value_info("n", TensorProto.INT64, [1])
    square = helper.make_tensor_value_info("square", TensorProto.INT64, [1])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x, n], [y, square], constants),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.save(model, tmp_path / "model.onnx")
    assert run_python(MODEL, str(tmp_path / "model.onnx")) == "False\n"


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("implementation", ["upb", "python"])
@pytest.mark.parametrize("order", ["before", "after"])
def test_messages_interoperate_with_onnx_package(order: str, implementation: str) -> None:
    assert run_python(ORDER, order, PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=implementation) == "[0.0, 1.0]\n"


def test_messages_import_onnx_package_without_its_module() -> None:
    assert run_python(ELSEWHERE) == "the package\n"


TENSORS: dict[str, list[Any]] = {
    "float32": [1.5, -2.0],
    "float16": [1.5, -2.0],
    "float64": [1.5, -2.0],
    "int8": [-128, 127],
    "int16": [-32768, 32767],
    "int32": [-(2**31), 2**31 - 1],
    "int64": [-(2**63), 2**63 - 1],
    "uint8": [0, 255],
    "uint16": [0, 65535],
    "uint32": [0, 2**32 - 1],
    "uint64": [0, 2**64 - 1],
    "bool": [True, False],
}


@pytest.mark.parametrize("raw", [True, False], ids=["raw", "fields"])
@pytest.mark.parametrize("name", TENSORS)
def test_arrays_agree_with_numpy_helper(name: str, raw: bool) -> None:
    wanted = np.array(TENSORS[name], name)[None]
    element_type = helper.np_dtype_to_tensor_dtype(wanted.dtype)
    values = wanted.tobytes() if raw else wanted
    tensor = helper.make_tensor("t", element_type, wanted.shape, values, raw=raw)
    found = protobuf.array_of(tensor)
    assert found.dtype == wanted.dtype == numpy_helper.to_array(tensor).dtype
    assert found.tolist() == wanted.tolist() == numpy_helper.to_array(tensor).tolist()
    assert protobuf.dtype_of(element_type) == wanted.dtype
    assert protobuf.element_type_of(wanted.dtype) == element_type


def test_element_types_equal_onnx_package() -> None:
    assert set(map(protobuf.dtype_of, protobuf.PLAIN)) == {np.dtype(name) for name in TENSORS}
    for element_type in TensorProto.DataType.values():
        if element_type != TensorProto.UNDEFINED:
            dtype = helper.tensor_dtype_to_np_dtype(element_type)
            assert protobuf.dtype_of(element_type) == dtype
            assert protobuf.element_type_of(dtype) == helper.np_dtype_to_tensor_dtype(dtype)


@pytest.mark.parametrize("shape", [None, [], [0], [2, 3]])
def test_types_agree_with_helper(shape: list[int] | None) -> None:
    assert protobuf.tensor_type(TensorProto.INT8, shape) == helper.make_tensor_type_proto(TensorProto.INT8, shape)


ATTRIBUTES: list[Any] = [
    1.5,
    2,
    "text",
    [1.5, 2.5],
    [1, 2],
    ["a", "b"],
    TensorProto(name="t"),
    [TensorProto(name="t")],
    onnx.GraphProto(name="g"),
    [onnx.GraphProto(name="g")],
    onnx.TypeProto(denotation="d"),
    [onnx.TypeProto(denotation="d")],
    onnx.SparseTensorProto(dims=[1]),
    [onnx.SparseTensorProto(dims=[1])],
]


@pytest.mark.parametrize("value", ATTRIBUTES, ids=lambda value: repr(value)[:12])
def test_values_of_attributes_agree_with_helper(value: Any) -> None:
    attribute = helper.make_attribute("a", value)
    found = protobuf.attribute_value(attribute)
    assert found == helper.get_attribute_value(attribute)
    assert type(found) is type(helper.get_attribute_value(attribute))


def test_attributes_of_every_type_have_a_value() -> None:
    for number in AttributeProto.AttributeType.values():
        attribute = AttributeProto(name="a", type=number)
        assert protobuf.attribute_value(attribute) == helper.get_attribute_value(attribute)


def test_attribute_value_rejects_reference() -> None:
    with pytest.raises(ValueError, match="the attribute 'a' stands for 'b' of a function"):
        protobuf.attribute_value(AttributeProto(name="a", ref_attr_name="b", type=AttributeProto.INT))


def test_nodes_agree_with_helper() -> None:
    assert protobuf.node("Concat", ["a", "b"], ["c"], axis=-1) == helper.make_node("Concat", ["a", "b"], ["c"], axis=-1)
