"""How the recurrent networks run with weights that are constants, as in practice, and what takes the engine's kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from row_sample import examples
from samples import (
    SAMPLES,
    Make,
    recurrent as _samples,  # noqa: F401  (registers them)
)

import opweave as ow
from opweave.core.operation import Op
from opweave.ops.recurrent import gru, gru_cell, lstm, lstm_cell

ORT = ow.ml.create_context(device="cpu")
REFERENCE = ow.ml.create_context(device="reference")


def compute_recurrent(
    context: ow.MLContext, op: Op[..., Any], args: tuple[Any, ...], options: dict[str, Any]
) -> list[np.ndarray]:
    """Call `op` with its first argument as a graph input and all other arrays as constants."""
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", args[0].dtype.name, args[0].shape)
    result = op(builder, x, *args[1:], **options)
    results = result if isinstance(result, tuple) else (result,)
    graph = builder.build({str(k): operand for k, operand in enumerate(results)})
    return list(context.compute(graph, {"x": args[0]}).values())


@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize("op", [gru, gru_cell, lstm, lstm_cell], ids=lambda op: op.name)
def test_constant_weights_agree_with_reference(op: Op[..., Any], data_type: str) -> None:
    @settings(max_examples=examples(25, in_sample=8))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        call = SAMPLES[op].make(Make(data.draw, dict.fromkeys(op.operands, data_type)))
        wanted = compute_recurrent(REFERENCE, op, call.args, call.kwargs)
        tolerance = 1e-5 if data_type == "float32" else 1e-2
        for got, expected in zip(compute_recurrent(ORT, op, call.args, call.kwargs), wanted, strict=True):
            np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance / 10, err_msg=repr(call))

    check()


def lstm_arguments(hidden: int = 3) -> tuple[Any, ...]:
    random = np.random.default_rng(0)
    shapes = [(4, 2, 2), (1, 4 * hidden, 2), (1, 4 * hidden, hidden)]
    return (*(random.standard_normal(shape).astype("float32") for shape in shapes), 4, hidden)


def how(peepholes: np.ndarray | None) -> str:
    builder = ow.MLGraphBuilder(ORT)
    x, *others = lstm_arguments()
    options: dict[str, Any] = {} if peepholes is None else {"peephole_weight": builder.constant(peepholes)}
    hidden, _ = builder.lstm(builder.input("x", "float32", x.shape), *others, layout="ifgo", **options)
    (placement,) = builder.build({"y": hidden}).placements()
    return placement.how


def test_lstm_is_one_kernel_unless_its_output_gate_has_peepholes() -> None:
    """ONNX's output gate sees the new cell state, the specification's the old one."""
    peepholes = np.ones((1, 9), "float32")
    assert how(None) == "native"
    assert how(peepholes) == "decomposed"
    peepholes[:, 3:6] = 0  # input, output, forget gate
    assert how(peepholes) == "native"


@pytest.mark.parametrize("output_gate", [0, 1])
def test_peepholes_of_all_gates_see_the_old_cell_state(output_gate: int) -> None:
    """By hand: one step, one unit, no weights but the peepholes, so that each gate is the sigmoid of old cell x peephole."""
    zeros = np.zeros((1, 4, 1), "float32")
    options = {
        "peephole_weight": np.array([[1, 2 * output_gate, 3]], "float32"),
        "initial_cell_state": np.array([[[0.5]]], "float32"),
        "bias": np.array([[0, 0, 0, 0.25]], "float32"),  # of the cell gate, in the order of "iofg"
    }

    def sigmoid(x: float) -> float:
        return float(1 / (1 + np.exp(-x)))

    new = sigmoid(1.5) * 0.5 + sigmoid(0.5) * np.tanh(0.25)
    for context in (ORT, REFERENCE):
        hidden, got = compute_recurrent(context, lstm, (np.zeros((1, 1, 1), "float32"), zeros, zeros, 1, 1), options)
        np.testing.assert_allclose(got.item(), new, rtol=1e-6)
        np.testing.assert_allclose(hidden.item(), sigmoid(output_gate) * np.tanh(new), rtol=1e-6)
