"""Recurrent networks over sequences of different lengths: `sequence_lens`, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from support.every_device import DEVICES, context_on
from support.onnx import model
from support.onnx_nodes import CONTEXT, check_agreement, model_of, node_model, randn, reasons, run_engine

import opweave as ow

STEPS, BATCHES, INPUT, HIDDEN = 5, 3, 2, 4
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
DIRECTIONS = ("forward", "reverse", "bidirectional")
X, LENGTHS = 0, 4
"""Positions of inputs."""


def operands(
    op_type: str, lengths: Any, direction: str = "forward", *, bias: bool = True, states: bool = True
) -> list[Any]:
    """The inputs of a node; padding holds NaN, which nothing may read."""
    gates, directions = GATES[op_type], 1 + (direction == "bidirectional")
    x = randn(STEPS, BATCHES, INPUT)
    x[np.arange(STEPS)[:, None] >= np.array(lengths)] = np.nan
    inputs = [x, randn(directions, gates * HIDDEN, INPUT), randn(directions, gates * HIDDEN, HIDDEN)]
    inputs += [randn(directions, 2 * gates * HIDDEN) if bias else None, np.int32(lengths)]
    if states:
        inputs += [randn(directions, BATCHES, HIDDEN) for _ in range(1 + (op_type == "LSTM"))]
    return inputs


def check_lengths(
    op_type: str, inputs: list[Any], *, constant: bool = False, context: ow.MLContext = CONTEXT, **attributes: Any
) -> list[np.ndarray]:
    """Require that WebNN computes a node, and finds the engine's results."""
    dynamic = [k for k in (0, 4, 5, 6) if k < len(inputs) and inputs[k] is not None and not (constant and k == LENGTHS)]
    outputs = 3 if op_type == "LSTM" else 2
    attributes["hidden_size"] = HIDDEN
    model, feed = node_model(op_type, inputs, attributes, outputs=outputs, dynamic=dynamic)
    found: list[np.ndarray] = ow.InferenceSession(model, context, fallback="error").run(None, feed)
    for ours, theirs in zip(found, run_engine(model, feed), strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    return found


@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("lengths", [[5, 0, 2], [1, 5, 4], [3, 3, 3], [5, 5, 5], [0, 0, 0]])
def test_sequence_lens(op_type: str, direction: str, constant: bool, lengths: list[int]) -> None:
    inputs = operands(op_type, lengths, direction)
    sequence, *states = check_lengths(op_type, inputs, constant=constant, direction=direction)
    for row, length in enumerate(lengths):
        assert not sequence[length:, :, row].any()
        assert all(state[:, row].any() == (length > 0) for state in states)
    check_lengths(
        op_type, operands(op_type, lengths, direction, bias=False, states=False), constant=constant, direction=direction
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op_type", GATES)
def test_sequence_lens_on_every_device(device: str, op_type: str) -> None:
    inputs = operands(op_type, [5, 0, 2], "bidirectional")
    for constant in (True, False):
        check_lengths(op_type, inputs, constant=constant, context=context_on(device), direction="bidirectional")


@pytest.mark.parametrize("after", [0, 1])
def test_gru_with_sequence_lens_and_options(after: int) -> None:
    inputs = operands("GRU", [5, 1, 3])
    check_lengths("GRU", inputs, linear_before_reset=after, activations=["Tanh", "Relu"])
    check_lengths("GRU", inputs, linear_before_reset=after, activations=["Tanh", "Relu"], constant=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("attributes", [{}, {"clip": 0.4}, {"input_forget": 1}], ids=["plain", "clip", "coupled"])
def test_lstm_with_sequence_lens_and_peepholes(attributes: dict[str, Any], direction: str, device: str) -> None:
    peepholes = randn(1 + (direction == "bidirectional"), 3 * HIDDEN)
    for values in (peepholes, np.where(np.arange(3 * HIDDEN) // HIDDEN == 1, np.float32(0), peepholes)):
        inputs = [*operands("LSTM", [5, 1, 0], direction), values]
        check_lengths("LSTM", inputs, context=context_on(device), direction=direction, **attributes)


def test_lstm_with_sequence_lens_and_other_gates_falls_back() -> None:
    inputs = operands("LSTM", [5, 1, 3])
    attributes = {"hidden_size": HIDDEN, "activations": ["Tanh", "Tanh", "Tanh"]}
    model, feed = node_model("LSTM", inputs, attributes, outputs=3, dynamic=(0, 4))
    (reason,) = reasons(check_agreement(model, feed, fallback=True))
    assert "the activation of gates must be 'sigmoid', got 'tanh'" in reason


@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("constant", [True, False])
def test_sequence_lens_with_batches_first(op_type: str, direction: str, constant: bool) -> None:
    """ONNX Runtime has no such kernels; the network must be that of the other layout, transposed."""
    inputs = operands(op_type, [5, 0, 2], direction)
    sequence, *states = check_lengths(op_type, inputs, direction=direction)
    moved = [value.swapaxes(0, 1).copy() if k in (0, 5, 6) else value for k, value in enumerate(inputs)]
    attributes = {"hidden_size": HIDDEN, "direction": direction, "layout": 1}
    dynamic = [k for k in range(len(inputs)) if k in (0, 5, 6) or (k == LENGTHS and not constant)]
    model, feed = node_model(op_type, moved, attributes, outputs=len(states) + 1, dynamic=dynamic)
    found = ow.InferenceSession(model, CONTEXT, fallback="error").run(None, feed)
    np.testing.assert_allclose(found[0], sequence.transpose(2, 0, 1, 3), rtol=1e-5)
    for ours, theirs in zip(found[1:], states, strict=True):
        np.testing.assert_allclose(ours, theirs.swapaxes(0, 1), rtol=1e-5)


@pytest.mark.parametrize("op_type", GATES)
def test_sequence_lens_equal_constants_become_a_slice(op_type: str) -> None:
    outputs = 3 if op_type == "LSTM" else 2
    model, _ = node_model(op_type, operands(op_type, [2, 2, 2]), {"hidden_size": HIDDEN}, outputs=outputs, dynamic=(0,))
    listing = ow.onnx.load(model, CONTEXT).explain()
    assert "slice" in listing
    assert f"ragged_{op_type.lower()}" not in listing


@pytest.mark.parametrize("op_type", ["LSTM", "GRU"])
def test_sequence_lens_use_one_kernel(op_type: str) -> None:
    outputs = 3 if op_type == "LSTM" else 2
    attributes = {"hidden_size": HIDDEN, "direction": "bidirectional"}
    inputs = operands(op_type, [5, 0, 2], "bidirectional")
    model, _ = node_model(op_type, inputs, attributes, outputs=outputs, dynamic=(0, 4))
    (placement,) = ow.onnx.load(model, CONTEXT).placements()
    assert (placement.node.split()[0], placement.how) == (f"ragged_{op_type.lower()}", "native")


@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize("lengths", [[5, 6, 1], [5, -1, 1]])
def test_constant_sequence_lens_out_of_range(op_type: str, lengths: list[int]) -> None:
    outputs = 3 if op_type == "LSTM" else 2
    model, feed = node_model(op_type, operands(op_type, lengths), {"hidden_size": HIDDEN}, outputs=outputs)
    with pytest.raises(ow.NotSupportedError, match=r"sequence_lens has values that are not in \[0, 5\]"):
        ow.InferenceSession(model, CONTEXT, fallback="error")
    with pytest.raises(ow.MLError, match="All values must be >= 0 and <= seq_length"):
        ow.InferenceSession(model, CONTEXT, specialise="always").run(None, feed)


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize("specialise", ["recurring", "always", "never"])
@pytest.mark.parametrize("wrong", [6, -1, 2**31 - 1])
def test_run_rejects_sequence_lens_out_of_range(op_type: str, device: str, specialise: Any, wrong: int) -> None:
    outputs, inputs = 3 if op_type == "LSTM" else 2, operands(op_type, [5, 4, 1])
    model, feed = node_model(op_type, inputs, {"hidden_size": HIDDEN}, outputs=outputs, dynamic=(0, 4))
    model.graph.node[0].name = "encode"
    session = ow.InferenceSession(model, ow.ml.create_context(device=device), specialise=specialise)
    session.run(None, feed)
    with pytest.raises(ow.ValidationError) as raised:
        session.run(None, feed | {"x4": np.int32([5, wrong, 1])})
    assert str(raised.value) == (
        f"{op_type} 'encode': sequence_lens must be in [0, 5], as there are 5 steps, got {wrong} in the input 'x4'"
    )


def test_computed_sequence_lens_out_of_range() -> None:
    inputs = operands("LSTM", [5, 4, 1])
    node = helper.make_node("LSTM", ["x", "w", "r", "", "lengths"], ["", "h"], hidden_size=HIDDEN)
    nodes = [helper.make_node("Add", ["given", "given"], ["lengths"]), node]
    feed = {"x": np.nan_to_num(inputs[0]), "given": np.int32([2, 1, 0])}
    model = model_of(nodes, feed, {"w": inputs[1], "r": inputs[2]}, ["h"])
    session = ow.InferenceSession(model, CONTEXT, fallback="error")
    np.testing.assert_allclose(session.run(None, feed)[0], run_engine(model, feed)[0], rtol=1e-4, atol=1e-5)
    (result,) = session.run(None, feed | {"given": np.int32([3, 1, -2])})  # 5 steps: 6 and -4 are clamped
    feed = {"x": feed["x"], "lengths": np.int32([5, 2, 0])}
    (witness,) = run_engine(model_of([node], feed, {"w": inputs[1], "r": inputs[2]}, ["h"]), feed)
    np.testing.assert_allclose(result, witness, rtol=1e-4, atol=1e-5)


def test_sequence_lens_of_another_shape_are_refused() -> None:
    inputs = operands("LSTM", [5, 4, 1])
    inputs[LENGTHS] = np.int32([5, 4])
    model, feed = node_model("LSTM", inputs, {"hidden_size": HIDDEN}, outputs=3, dynamic=(0, 4))
    with pytest.raises(ow.NotSupportedError, match=r"sequence_lens has the shape \[2\]"):
        ow.InferenceSession(model, CONTEXT, fallback="error")
    with pytest.raises(ow.MLError, match="sequence_lens must have shape"):
        ow.InferenceSession(model, CONTEXT, specialise="always").run(None, feed)


@pytest.mark.parametrize("op_type", GATES)
def test_sequence_lens_with_dynamic_batch_stay_on_webnn(op_type: str) -> None:
    """The last states become rows by a Reshape, and a MatMul follows."""
    _, weight, recurrent, bias, *_ = operands(op_type, [5, 4, 1], "bidirectional")
    nodes = [
        helper.make_node(
            op_type, ["x", "w", "r", "b", "n"], ["", "last"], hidden_size=HIDDEN, direction="bidirectional"
        ),
        helper.make_node("Transpose", ["last"], ["t"], perm=[1, 0, 2]),
        helper.make_node("Reshape", ["t", "shape"], ["rows"]),
        helper.make_node("MatMul", ["rows", "m"], ["y"]),
    ]
    constants = {"w": weight, "r": recurrent, "b": bias, "shape": np.int64([0, -1]), "m": randn(2 * HIDDEN, 3)}
    inputs = {"x": f"float32[{STEPS}, batch, {INPUT}]", "n": "int32[batch]"}
    proto = model(nodes, inputs, {"y": "float32[batch, 3]"}, constants)
    onnx.checker.check_model(proto)
    session = ow.InferenceSession(proto, CONTEXT, specialise="always")
    for lengths in ([3], [5, 1, 2, 4]):
        feed = {"x": randn(STEPS, len(lengths), INPUT), "n": np.int32(lengths)}
        np.testing.assert_allclose(session.run(None, feed)[0], run_engine(proto, feed)[0], rtol=1e-4, atol=1e-5)
    assert list(session.shapes().values()) == ["compiled", "compiled"]
    assert "fallback" not in session.explain()
    assert "section 1" not in session.explain()
