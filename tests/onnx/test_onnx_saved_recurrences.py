"""Recurrences in saved models: ONNX's Scan, which ONNX Runtime and ONNX's reference evaluator run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator
from support.recurrences import CASES, assert_close, loop

import opweave as ow
from opweave import composites

CPU = ow.ml.create_context(device="cpu")


@pytest.mark.parametrize("operators", ["onnx", "onnxruntime"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name", CASES)
def test_saved_recurrence_is_a_scan(tmp_path: Path, name: str, direction: str, operators: str) -> None:
    op, step, states, constants, operands_of = CASES[name]
    operands = operands_of(300 if name == "smooth" else 13)
    builder = ow.MLGraphBuilder(CPU)
    inputs = [builder.input(f"x{k}", o.dtype.name, list(o.shape)) for k, o in enumerate(operands)]
    results = op(*inputs, direction=direction)
    graph = builder.build({f"y{k}": result for k, result in enumerate(results)})
    ow.onnx.save(graph, tmp_path / "model.onnx", operators=operators)  # type: ignore[arg-type]
    model = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert {node.op_type for node in model.graph.node} in ({"Scan"}, {"Scan", "Transpose"})
    feed = {f"x{k}": o for k, o in enumerate(operands)}
    expected = loop(step, states, constants, operands, direction=direction)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    assert_close(session.run(None, feed), expected)
    if direction == "forward":  # the evaluator knows no other
        assert_close(ReferenceEvaluator(model).run(None, feed), expected)


def test_saved_composite_has_a_scan(tmp_path: Path) -> None:
    """Large constants that a step reads are in its body, or outside of it."""
    rng = np.random.default_rng(0)
    x, delta = rng.standard_normal((1, 9, 20), np.float32), rng.random((1, 9, 20), np.float32)
    b, c = (rng.standard_normal((1, 9, 16), np.float32) for _ in range(2))
    rates = -rng.random((20, 16), np.float32)
    builder = ow.MLGraphBuilder(CPU)
    inputs = [
        builder.input(name, "float32", list(value.shape))
        for name, value in {"x": x, "delta": delta, "b": b, "c": c}.items()
    ]
    y, state = composites.selective_scan(inputs[0], inputs[1], builder.constant(rates), inputs[2], inputs[3])
    graph = builder.build({"y": y, "state": state})
    feed = {"x": x, "delta": delta, "b": b, "c": c}
    ow.onnx.save(graph, tmp_path / "model.onnx")
    assert "Scan" in [node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node]
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    assert_close(session.run(None, feed), list(CPU.compute(graph, feed).values()), 1e-4)
