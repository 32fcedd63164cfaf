"""Models whose small inputs determine shapes or branches are compiled for the values of these inputs."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support.onnx_nodes import CONTEXT, check_agreement, ints, model_of, node_model, reasons, run_engine

from opweave.onnx.session import calls
from opweave.onnx.session.session import InferenceSession
from opweave.onnx.session.shape_cache import VALUES
from opweave.support.errors import NotSupportedError

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def reshaping() -> onnx.ModelProto:
    return node_model("Reshape", [X, ints(4, 3)], dynamic=(0, 1))[0]


def test_reshape_by_input() -> None:
    model, feed = node_model("Reshape", [X, ints(4, 3)], dynamic=(0, 1))
    session = check_agreement(model, feed)
    assert reasons(session) == []


def test_session_compiles_once_for_each_deciding_value() -> None:
    session = InferenceSession(reshaping(), CONTEXT, fallback="error")
    shape = ints(4, 3)
    for sizes in ((4, 3), (2, 6), (4, 3), (12, 1)):
        shape[:] = sizes  # in place: the session must not read the caller's array again
        (y,) = session.run(None, {"x0": X, "x1": shape})
        assert y.shape == sizes
        np.testing.assert_array_equal(y, X.reshape(sizes))
    assert list(session.shapes().values()) == ["compiled"] * 3


@pytest.mark.parametrize("has_out", [False, True])
def test_run_with_recurring_values_takes_short_way(monkeypatch: pytest.MonkeyPatch, has_out: bool) -> None:
    session = InferenceSession(reshaping(), CONTEXT, fallback="error")
    shape, run = ints(4, 3), Mock(wraps=calls.run_call)
    monkeypatch.setattr("opweave.onnx.session.session.run_call", run)  # the long way
    outs = {sizes: np.empty(sizes, np.float32) for sizes in ((4, 3), (2, 6), (6, 2))}
    for sizes in ((4, 3), (2, 6), (6, 2), (2, 6)):
        shape[:] = sizes  # in place: the array is the same, and its address, too
        for _ in range(4):
            (y,) = session.run(None, {"x0": X, "x1": shape}, out={"y0": outs[sizes]} if has_out else None)
            np.testing.assert_array_equal(y, X.reshape(sizes))
    assert run.call_count == 4


def test_session_compiles_limited_number_of_values() -> None:
    """A value that is new in each call must not have the model compiled each time."""
    session = InferenceSession(reshaping(), CONTEXT, specialise="always")
    shapes = [(4, 3), (2, 6), (12, 1), (1, 12), (6, 2), (3, 4), (4, 3)]
    assert len(set(shapes)) > VALUES
    for sizes in shapes:
        (y,) = session.run(None, {"x0": X, "x1": ints(*sizes)})
        np.testing.assert_array_equal(y, X.reshape(sizes))
    assert list(session.shapes().values()).count("compiled") == VALUES + 1
    assert reasons(session) == [], "the first values keep what was compiled for them"
    session.run(None, {"x0": X, "x1": ints(3, 4)})
    assert reasons(session) == ["Reshape: the shape is not constant"]


def test_reshape_by_shape_arithmetic_on_input() -> None:
    nodes = [
        helper.make_node("Mul", ["n", "two"], ["m"]),
        helper.make_node("Concat", ["m", "minus"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
    ]
    feed = {"x": X, "n": ints(3)}
    check_agreement(model_of(nodes, feed, {"two": ints(2), "minus": ints(-1)}, ["y"]), feed)


@pytest.mark.parametrize("condition", [True, False])
def test_if_on_input(condition: bool) -> None:
    branch = {
        name: helper.make_graph(
            [helper.make_node(op, ["x"], ["r"])],
            "b",
            [],
            [helper.make_tensor_value_info("r", TensorProto.FLOAT, (3, 4))],
        )
        for name, op in (("then_branch", "Neg"), ("else_branch", "Exp"))
    }
    feed = {"x": X, "c": np.array(condition)}
    model = model_of([helper.make_node("If", ["c"], ["y"], **branch)], feed, {}, ["y"])
    session = check_agreement(model, feed, rtol=1e-6)
    assert "runs whole on cpu" in session.explain()


def test_loop_count_from_input() -> None:
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "x"], ["t"]), helper.make_node("Identity", ["go"], ["on"])],
        "b",
        [info("k", TensorProto.INT64, ()), info("go", TensorProto.BOOL, ()), info("s", TensorProto.FLOAT, (3, 4))],
        [info("on", TensorProto.BOOL, ()), info("t", TensorProto.FLOAT, (3, 4))],
    )
    feed = {"x": X, "n": np.array(3)}
    check_agreement(model_of([helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)], feed, {}, ["y"]), feed)


def test_session_does_not_compile_for_values_of_data() -> None:
    """A model is not compiled for what has more than one dimension, or many elements, or was computed by fallback."""
    matrix = np.array([[3, 4]], np.int64)
    nodes = [helper.make_node("Squeeze", ["n", "axis"], ["s"]), helper.make_node("Reshape", ["x", "s"], ["y"])]
    feed = {"x": X, "n": matrix}
    session = check_agreement(model_of(nodes, feed, {"axis": ints(0)}, ["y"]), feed, fallback=True)
    assert reasons(session) == ["Reshape: the shape is not constant"]
    many = np.arange(20)
    nodes = [
        helper.make_node("Slice", ["n", "three", "five"], ["s"]),
        helper.make_node("Reshape", ["x", "s"], ["y"]),
    ]
    feed = {"x": X, "n": many}
    session = check_agreement(model_of(nodes, feed, {"three": ints(3), "five": ints(5)}, ["y"]), feed, fallback=True)
    assert reasons(session) == ["Reshape: the shape is not constant"]


def test_session_fallback_error_waits_for_deciding_values() -> None:
    session = InferenceSession(reshaping(), CONTEXT, fallback="error")
    with pytest.raises(NotSupportedError, match="the shape is not constant"):
        session.explain({})  # compiles without values
    (y,) = session.run(None, {"x0": X, "x1": ints(2, 6)})
    assert y.shape == (2, 6)
    assert reasons(session) == []


def test_concat_with_empty_input() -> None:
    empty = np.zeros((0, 4), np.float32)
    model, feed = node_model("Concat", [X, empty], {"axis": 0}, dynamic=(0, 1))
    session = InferenceSession(model, CONTEXT, fallback="error")
    np.testing.assert_array_equal(session.run(None, feed)[0], run_engine(model, feed)[0])
    model, feed = node_model("ReduceSum", [empty, ints(0)], dynamic=(0,))
    check_agreement(model, feed)


def test_run_copies_passed_through_sequences() -> None:
    sequence = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    graph = helper.make_graph(
        [helper.make_node("SequenceLength", ["s"], ["n"])],
        "test",
        [helper.make_value_info("s", sequence)],
        [helper.make_value_info("s", sequence), helper.make_tensor_value_info("n", TensorProto.INT64, [])],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = InferenceSession(proto, CONTEXT)
    given = [np.float32([1, 2]), np.float32([[3]])]
    first, length, second = session.run(["s", "n", "s"], {"s": given})
    assert length == 2
    for found in (first, second):
        assert [array.tolist() for array in found] == [[1, 2], [[3]]]
        found[0][0] = 9
        found.pop()
    assert [array.tolist() for array in given] == [[1, 2], [[3]]]
    assert first is not second
