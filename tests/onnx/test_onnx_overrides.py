"""Initializers that are declared as inputs, too: a call may override them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.onnx_nodes import CONTEXT, run_engine

import opweave as ow
from opweave.onnx.session.session import InferenceSession

X = np.arange(12, dtype=np.float32).reshape(3, 4)
W = np.full(4, 2, np.float32)


def scaling() -> onnx.ModelProto:
    """The model z = reshape(x * w, s), with values for w and s."""
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["p"]), helper.make_node("Reshape", ["p", "s"], ["z"])],
        "test",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 4]),
            helper.make_tensor_value_info("w", TensorProto.FLOAT, [4]),
            helper.make_tensor_value_info("s", TensorProto.INT64, [2]),
        ],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(W, "w"), numpy_helper.from_array(np.int64([4, 3]), "s")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_overridable_initializers_are_listed() -> None:
    session = InferenceSession(scaling(), CONTEXT)
    assert [argument.name for argument in session.get_inputs()] == ["x"]
    listed = session.get_overridable_initializers()
    assert [(a.name, a.type, a.shape) for a in listed] == [("w", "tensor(float)", [4]), ("s", "tensor(int64)", [2])]


def test_overridable_initializers_with_and_without_values_alternate() -> None:
    model = scaling()
    session = InferenceSession(model, CONTEXT, fallback="error")
    feeds: list[dict[str, np.ndarray]] = [
        {"x": X},
        {"x": X, "w": W * 3},
        {"x": X, "s": np.int64([2, 6])},
        {"x": X, "w": W + 1, "s": np.int64([1, 12])},
    ]
    for feed in [*feeds, *reversed(feeds), *feeds]:
        np.testing.assert_array_equal(session.run(None, feed)[0], run_engine(model, feed)[0])
    assert list(session.shapes().values()) == ["compiled"] * len(feeds)


@pytest.mark.parametrize("shape", [(), (4,)])
def test_models_compiled_with_a_value_do_not_run_calls_without_it(shape: tuple[int, ...]) -> None:
    """Calls with a new number of rows may not run a model that takes `w` as an input, unless they have a value for it."""
    model = scaling()
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.full(shape, 2, np.float32), "w"))
    model.graph.input[1].CopyFrom(helper.make_tensor_value_info("w", TensorProto.FLOAT, shape))
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.int64([4, -1]), "s"))
    session = InferenceSession(model, CONTEXT, fallback="error")
    for rows, factor in ((3, 5), (3, None), (2, 7), (1, None)):
        feed = {"x": X[:rows]} if factor is None else {"x": X[:rows], "w": np.full(shape, factor, np.float32)}
        np.testing.assert_array_equal(session.run(None, feed)[0], run_engine(model, feed)[0])


def test_overridden_initializer_is_a_program_input() -> None:
    session = InferenceSession(scaling(), CONTEXT)
    for factor in range(5):
        (z,) = session.run(None, {"x": X, "w": W * factor})
        np.testing.assert_array_equal(z.reshape(3, 4), X * W * factor)
    assert list(session.shapes().values()) == ["compiled"], "its values do not determine shapes"


@pytest.mark.parametrize(
    ("feed", "message"),
    [
        ({"x": X, "w": W[:3]}, "input 'w' must have shape [4], got [3]"),
        ({"x": X, "w": W.astype("float64")}, "input 'w' must be tensor(float), got an array of float64"),
        ({"x": X, "v": W}, "unknown: ['v']"),
        ({"w": W}, "missing: ['x']"),
    ],
)
def test_messages(feed: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(ow.ValidationError) as raised:
        InferenceSession(scaling(), CONTEXT).run(None, feed)
    assert message in str(raised.value)
