"""What PyTorch has, wherever arrays are taken: parameters, bfloat16, and memory for results."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

import opweave as ow
from opweave.memory.arrays import as_array

torch = pytest.importorskip("torch", reason="PyTorch is not installed; `make test-torch` installs it")

CONTEXT = ow.ml.create_context(device="cpu")
X = np.array([[1, -2], [3, -4]], "float32")


def scaled() -> ow.MLGraph:
    builder = ow.MLGraphBuilder(CONTEXT)
    return builder.build({"y": builder.input("x", "float32", [2, 2]) * 2})


def magnitude_session(element_type: int) -> ow.InferenceSession:
    """The magnitudes of an input, as float32."""
    nodes = [helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT), helper.make_node("Abs", ["f"], ["y"])]
    x = helper.make_tensor_value_info("x", element_type, [2, 2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 2])
    graph = helper.make_graph(nodes, "g", [x], [y])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return ow.InferenceSession(proto, CONTEXT)


def test_parameters_are_arrays() -> None:
    parameter = torch.nn.Parameter(torch.from_numpy(X.copy()))
    builder = ow.MLGraphBuilder(CONTEXT)
    constant = builder.constant(parameter)
    assert constant.value.ctypes.data == parameter.data_ptr()
    graph = builder.build({"y": builder.add(builder.input("x", "float32", [2, 2]), parameter)})
    np.testing.assert_array_equal(CONTEXT.compute(graph, {"x": parameter})["y"], X * 2)
    np.testing.assert_array_equal(ow.array(parameter).numpy(), X)
    np.testing.assert_array_equal(ow.ops.relu(parameter).numpy(), np.maximum(X, 0))
    np.testing.assert_array_equal(CONTEXT.tensor_from(parameter).numpy(), X)
    np.testing.assert_array_equal(magnitude_session(TensorProto.FLOAT).run(None, {"x": parameter})[0], np.abs(X))


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int64"])
def test_read_only_memory_is_a_tensor_of_the_same_type(name: str) -> None:
    from opweave.pytorch import fallback, tensors

    array = X.astype(name)
    array.flags.writeable = False
    tensor = tensors.tensor_of(fallback._writable(array), dtype := getattr(torch, name))
    assert (tensor.dtype, tensor.data_ptr()) == (dtype, array.ctypes.data)
    assert tensor.to(torch.float32).tolist() == X.tolist()


def test_bfloat16_is_named_with_what_to_do() -> None:
    tensor = torch.from_numpy(X).to(torch.bfloat16)
    array = as_array(tensor, "it")
    assert array.dtype == ml_dtypes.bfloat16
    assert array.ctypes.data == tensor.data_ptr()
    with pytest.raises(ow.ValidationError, match=r"bfloat16 is not a data type of WebNN .*astype\('float32'\)"):
        ow.MLGraphBuilder(CONTEXT).constant(tensor)
    assert ow.array(tensor, "float32").tolist() == X.tolist()


def test_models_of_bfloat16_take_such_tensors() -> None:
    tensor = torch.from_numpy(X).to(torch.bfloat16)
    np.testing.assert_array_equal(magnitude_session(TensorProto.BFLOAT16).run(None, {"x": tensor})[0], np.abs(X))


def test_results_are_written_into_tensors() -> None:
    target = torch.zeros(2, 2)
    results = CONTEXT.compute(scaled(), {"x": X}, {"y": target})
    np.testing.assert_array_equal(target.numpy(), X * 2)
    assert results["y"].ctypes.data == target.data_ptr()
    target = torch.zeros(2, 2)
    magnitude_session(TensorProto.FLOAT).run(None, {"x": X}, out={"y": target})
    np.testing.assert_array_equal(target.numpy(), np.abs(X))
    tensor = CONTEXT.tensor_from(X.copy())
    target = torch.zeros(2, 2)
    CONTEXT.read_tensor(tensor, out=target)
    np.testing.assert_array_equal(target.numpy(), X)
    with pytest.raises(ow.ValidationError, match=r"output 'y' must be an array float32\[2, 2\], got float64\[2, 2\]"):
        CONTEXT.compute(scaled(), {"x": X}, {"y": torch.zeros(2, 2, dtype=torch.float64)})
