"""ScatterND with a reduction in models that ONNX Runtime runs as they are: its threads must not lose updates."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.scatters import COMBINE, scatter_nd_in_numpy

import opweave as ow

TYPES = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}


def scatter(
    reduction: str, ranks: tuple[int, int, int], dtype: str = "float32", **constants: np.ndarray
) -> onnx.ModelProto:
    """A model of one node, with inputs of these ranks and of any size."""
    inputs = []
    for name, rank in zip(("data", "indices", "updates"), ranks, strict=True):
        if name not in constants:
            sizes = [f"{name}{axis}" for axis in range(rank)]
            type = TensorProto.INT64 if name == "indices" else TYPES[dtype]
            inputs.append(helper.make_tensor_value_info(name, type, sizes))
    node = helper.make_node("ScatterND", ["data", "indices", "updates"], ["y"], "scatter", reduction=reduction)
    output = helper.make_tensor_value_info("y", TYPES[dtype], [f"data{axis}" for axis in range(ranks[0])])
    made = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph([node], "scatter", inputs, [output], made)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def own_session(model: onnx.ModelProto) -> ow.InferenceSession:
    """A session that leaves the model to the engine."""
    return ow.InferenceSession(model, ow.ml.create_context(device="cpu", threads=4), specialise="never")


def test_scatter_nd_of_an_own_session_adds_all_updates() -> None:
    session, random = own_session(scatter("add", (2, 2, 2), "int64")), np.random.default_rng(2)
    data, updates = np.zeros((8, 1000), np.int64), np.ones((4000, 1000), np.int64)
    for _ in range(5):
        indices = random.integers(0, 2, (4000, 1))
        (found,) = session.run(None, {"data": data, "indices": indices, "updates": updates})
        np.testing.assert_array_equal(found[:, 0], np.bincount(indices[:, 0], minlength=8))
        np.testing.assert_array_equal(found, np.repeat(found[:, :1], 1000, 1))


@pytest.mark.parametrize("reduction", COMBINE)
@pytest.mark.parametrize(
    ("shape", "of"),
    [
        ((6,), (4, 1)),
        ((6,), (1,)),
        ((4, 5), (2,)),
        ((4, 5), (3, 2, 2)),
        ((4, 5, 3), (7, 1)),
        ((4, 5, 3), (2, 3, 3)),
        ((4, 5, 3), (6, 2)),
    ],
)
def test_scatter_nd_of_an_own_session_agrees_with_numpy(
    reduction: str, shape: tuple[int, ...], of: tuple[int, ...]
) -> None:
    random = np.random.default_rng(1)
    data, updates = (random.standard_normal(each).astype("float32") for each in (shape, (*of[:-1], *shape[of[-1] :])))
    indices = np.stack([random.integers(-size, size, of[:-1]) for size in shape[: of[-1]]], -1)
    session = own_session(scatter(reduction, (data.ndim, indices.ndim, updates.ndim)))
    (found,) = session.run(None, {"data": data, "indices": indices, "updates": updates})
    np.testing.assert_allclose(found, scatter_nd_in_numpy(data, indices, updates, reduction), rtol=1e-5)
    constant = own_session(scatter(reduction, (data.ndim, indices.ndim, updates.ndim), indices=indices))
    (found,) = constant.run(None, {"data": data, "updates": updates})
    np.testing.assert_allclose(found, scatter_nd_in_numpy(data, indices, updates, reduction), rtol=1e-5)


@pytest.mark.parametrize(("size", "count", "width"), [(3, 0, 2), (3, 2, 0), (0, 0, 2)])
def test_scatter_nd_of_an_own_session_takes_empty_tensors(size: int, count: int, width: int) -> None:
    data, updates = np.ones((size, width), np.float32), np.ones((count, width), np.float32)
    indices = np.zeros((count, 1), np.int64)
    (found,) = own_session(scatter("add", (2, 2, 2))).run(None, {"data": data, "indices": indices, "updates": updates})
    np.testing.assert_array_equal(found, scatter_nd_in_numpy(data, indices, updates, "add"))


def test_scatter_nd_in_a_branch_is_replaced() -> None:
    inner = scatter("add", (1, 2, 1)).graph
    branch = helper.make_graph(
        list(inner.node), "then", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["data"], ["z"])],
        "else",
        [],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
    )
    node = helper.make_node("If", ["c"], ["r"], then_branch=branch, else_branch=other)
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    result = helper.make_tensor_value_info("r", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", [condition, *inner.input], [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    feed = {"data": np.float32([1, 2]), "indices": np.int64([[0], [0], [-1]]), "updates": np.float32([1, 2, 4])}
    session = own_session(model)
    assert session.run(None, feed | {"c": np.array(True)})[0].tolist() == [4, 6]
    assert session.run(None, feed | {"c": np.array(False)})[0].tolist() == [1, 2]
