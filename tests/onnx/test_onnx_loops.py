"""Scan, Loop and If that keep their bodies, on all devices: against ONNX Runtime; states that stay on a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.every_device import DEVICES, context_on

import opweave as ow

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
RNG = np.random.default_rng(11)
WEIGHT = RNG.normal(size=(4, 4)).astype("float32") / 3


def info(name: str, shape: Any, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(node: onnx.NodeProto, inputs: Any, outputs: Any, **constants: Any) -> onnx.ModelProto:
    initializers = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph([node], "loops", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def cell(length: int | str, batch: int | str = 2) -> onnx.ModelProto:
    """A recurrent cell over `length` inputs: state' = tanh(state @ w + x), and the sum of its rows at each step."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["state", "w"], ["product"]),
            helper.make_node("Add", ["product", "x"], ["sum"]),
            helper.make_node("Tanh", ["sum"], ["next"]),
            helper.make_node("ReduceSum", ["next", "axes"], ["rows"], keepdims=0),
        ],
        "cell",
        [info("state", [batch, 4]), info("x", [batch, 4])],
        [info("next", [batch, 4]), info("rows", [batch])],
    )
    node = helper.make_node("Scan", ["first", "xs"], ["last", "all"], body=body, num_scan_inputs=1)
    inputs = [info("first", [batch, 4]), info("xs", [length, batch, 4])]
    return model_of(
        node, inputs, [info("last", [batch, 4]), info("all", [length, batch])], w=WEIGHT, axes=np.int64([1])
    )


def check(model: onnx.ModelProto, feed: dict[str, np.ndarray], session: ow.InferenceSession) -> None:
    engine = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for ours, wanted in zip(session.run(None, feed), engine.run(None, feed), strict=True):
        assert ours.shape == wanted.shape
        np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_scan_of_named_sizes(device: str) -> None:
    model = cell("steps", "batch")
    session = ow.InferenceSession(model, context_on(device), specialise="always", fallback="error")
    for steps, batch in ((40, 2), (7, 3), (1, 1), (300, 2)):
        feed = {"first": RNG.normal(size=(batch, 4)), "xs": RNG.normal(size=(steps, batch, 4))}
        check(model, {name: array.astype("float32") for name, array in feed.items()}, session)


def counted(condition: bool) -> onnx.ModelProto:
    """A Loop of `n` iterations, an input, which ends once the state exceeds 50; it stacks nothing."""
    nodes = [
        helper.make_node("Mul", ["state", "factor"], ["scaled"]),
        helper.make_node("Add", ["scaled", "outer"], ["next"]),
        helper.make_node("ReduceMax", ["next"], ["most"], keepdims=0),
        helper.make_node("Less", ["most", "limit"], ["small"]),
        helper.make_node("Identity", ["small" if condition else "go"], ["goes on"]),
    ]
    body = helper.make_graph(
        nodes,
        "step",
        [info("number", [], INT64), info("go", [], BOOL), info("state", [3])],
        [info("goes on", [], BOOL), info("next", [3])],
    )
    node = helper.make_node("Loop", ["n", "", "first"], ["last"], body=body)
    inputs = [info("n", [], INT64), info("first", [3]), info("outer", [3])]
    return model_of(node, inputs, [info("last", [3])], factor=np.float32(1.25), limit=np.float32(50))


@pytest.mark.parametrize("condition", [False, True])
@pytest.mark.parametrize("device", DEVICES)
def test_loop_whose_count_is_an_input_is_compiled_once(device: str, condition: bool) -> None:
    model = counted(condition)
    session = ow.InferenceSession(model, context_on(device), specialise="always", fallback="error")
    for n in (0, 1, 2, 3, 10, 20, 9):
        feed = {"n": np.array(n), "first": np.float32([1, 2, 3]), "outer": np.float32([0.5, 0, -0.5])}
        check(model, feed, session)
    assert len(session.shapes()) == 1


@pytest.mark.parametrize("device", [name for name in DEVICES if not name.startswith(("cpu", "reference"))])
@pytest.mark.parametrize("steps", [4, 20])
def test_stream_of_chunks_copies_no_state(device: str, steps: int) -> None:
    """Chunks one after the other give what one long call gives; states alternate between two tensors on the device."""
    context = context_on(device)
    chunks = 100
    session = ow.InferenceSession(
        cell(steps), context, specialise="always", fallback="error", preferred_output_location="ml-tensor"
    )
    xs = RNG.normal(size=(steps * chunks, 2, 4)).astype("float32")
    state = context.create_tensor("float32", (2, 4), writable=True)
    context.write_tensor(state, np.zeros((2, 4), "float32"))
    other = context.create_tensor("float32", (2, 4), readable=True)
    chunk = context.create_tensor("float32", (steps, 2, 4), writable=True)
    rows = context.create_tensor("float32", (steps, 2), readable=True)
    results = []
    for number in range(chunks):
        context.write_tensor(chunk, xs[number * steps : (number + 1) * steps])
        ow.memory.copies.reset()
        session.run(None, {"first": state, "xs": chunk}, out={"last": other, "all": rows})
        assert ow.memory.copies.count == 0
        state, other = other, state
        results.append(context.read_tensor(rows))
    whole = ow.InferenceSession(cell(steps * chunks), context_on("reference (reference)"), specialise="always")
    _, wanted = whole.run(None, {"first": np.zeros((2, 4), "float32"), "xs": xs})
    np.testing.assert_allclose(np.concatenate(results), wanted, rtol=1e-3, atol=1e-4)
