"""PyTorch's tensors beside Opweave's: memory is shared both ways, and what cannot be shared is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from support.arrays import address_of

import opweave as ow

torch = pytest.importorskip("torch", reason="PyTorch is not installed; `make test-torch` installs it")

CONTEXT = ow.ml.create_context(device="cpu")
X, Y = np.float32([[1, -2, 3], [4, 5, -6]]), np.float32([[0.5, 1, -1], [2, -9, 1]])


# Tensors -------------------------------------------------------------------------------------------------------------


def test_tensors_share_memory_both_ways() -> None:
    source = torch.arange(6, dtype=torch.float32)
    tensor = CONTEXT.tensor_from(source)
    assert address_of(tensor.numpy()) == source.data_ptr()
    assert torch.utils.dlpack.from_dlpack(tensor).data_ptr() == source.data_ptr()
    own = CONTEXT.create_tensor("float16", [4], readable=True, writable=True)
    assert torch.utils.dlpack.from_dlpack(own).data_ptr() == address_of(own.numpy())


def test_dispatch_writes_into_torch_memory() -> None:
    builder = ow.MLGraphBuilder(CONTEXT)
    x = builder.input("x", "float32", [3])
    graph = builder.build({"y": builder.add(x, x)})
    source, target = torch.tensor([1.0, 2.0, 3.0]), torch.zeros(3)
    a, b = CONTEXT.tensor_from(source), CONTEXT.tensor_from(target)
    ow.memory.copies.reset()
    CONTEXT.dispatch(graph, {"x": a}, {"y": b})
    assert target.tolist() == [2, 4, 6]
    source += 1
    CONTEXT.dispatch(graph, {"x": a}, {"y": b})
    assert target.tolist() == [4, 6, 8]
    assert ow.memory.copies.count == 0


def test_bfloat16_cannot_be_adopted() -> None:
    with pytest.raises(ow.ValidationError, match="tensor_from: bfloat16 is not a data type of WebNN"):
        CONTEXT.tensor_from(torch.zeros(2, dtype=torch.bfloat16))


def test_tensors_are_written_and_read() -> None:
    row = CONTEXT.create_tensor("float32", [2], readable=True, writable=True)
    CONTEXT.write_tensor(row, torch.tensor([1.0, 2.0]))
    assert row.numpy().tolist() == [1, 2]
    tensor = CONTEXT.tensor_from(np.arange(4, dtype="float32").reshape(2, 2))
    with pytest.raises(ow.ValidationError, match="out must be C-contiguous"):
        CONTEXT.read_tensor(tensor, out=torch.zeros(2, 2).T.contiguous().T)


# Constants and numbers -----------------------------------------------------------------------------------------------


def test_constants() -> None:
    builder = ow.MLGraphBuilder(CONTEXT)
    x = builder.input("x", "float32", [2, 1])
    graph = builder.build({"y": builder.add(x, builder.constant(torch.tensor([[1.0], [2.0]])))})
    assert CONTEXT.compute(graph, {"x": np.zeros((2, 1), "float32")})["y"].tolist() == [[1], [2]]


def test_numbers() -> None:
    builder = ow.MLGraphBuilder(CONTEXT)
    x = builder.input("x", "float32", [2])
    value: Any = torch.tensor(0.5)
    assert builder.elu(x, alpha=value).node.attributes["alpha"] == 0.5  # type: ignore[union-attr]
    assert builder.clamp(x, min_value=value).node.attributes["min_value"] == 0.5  # type: ignore[union-attr]


# Arrays --------------------------------------------------------------------------------------------------------------


def test_arrays_both_ways() -> None:
    x = ow.array([[1, -2, 3], [-4, 5, -6]], "float32")
    assert torch.from_dlpack(x + 1).tolist() == (x.numpy() + 1).tolist()
    assert ow.ops.relu(torch.tensor([-1.0, 2.0])).tolist() == [0, 2]
    kept = np.ones(3, "float32")
    adopted = ow.array(kept, copy=False)
    assert torch.from_dlpack(adopted).data_ptr() == kept.ctypes.data


# Sessions ------------------------------------------------------------------------------------------------------------


def node_session(op: str, kind: int, names: str) -> ow.InferenceSession:
    """A session for one node between values of shape [batch, 3]."""
    inputs = [helper.make_tensor_value_info(name, kind, ["batch", 3]) for name in names]
    output = helper.make_tensor_value_info("z", kind, ["batch", 3])
    graph = helper.make_graph([helper.make_node(op, list(names), ["z"])], "test", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    return ow.InferenceSession(model.SerializeToString(), fallback="error")


def test_sessions_read_in_place_and_results_can_be_of_pytorch() -> None:
    s = node_session("Add", TensorProto.FLOAT, "xy")
    x, y = torch.tensor(X), torch.tensor(Y)
    ow.memory.copies.reset()
    (z,) = s.run(None, {"x": x, "y": y})
    assert torch.equal(torch.utils.dlpack.from_dlpack(z), x + y)
    assert ow.memory.copies.count == 0
    z = torch.empty(2, 3)
    s.run(None, {"x": x, "y": y}, out={"z": z.numpy()})
    assert torch.equal(z, x + y)


def test_sessions_take_booleans() -> None:
    s = node_session("Not", TensorProto.BOOL, "x")
    assert s.run(None, {"x": torch.tensor([[True, False, True]])})[0].tolist() == [[False, True, False]]


def test_sessions_refuse_bfloat16() -> None:
    s = node_session("Add", TensorProto.FLOAT, "xy")
    with pytest.raises(ow.ValidationError, match=r"input 'y' must be tensor\(float\), got an array of bfloat16"):
        s.run(None, {"x": X, "y": torch.zeros(2, 3, dtype=torch.bfloat16)})
