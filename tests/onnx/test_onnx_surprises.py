"""Nodes that fall back and make other shapes than ONNX's inference says: everything after them follows what they made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from support.onnx_nodes import CONTEXT, check_agreement, model_of, node_model, randn, run_engine

import opweave as ow
from opweave import composites
from opweave.onnx.model.registry import Unsupported
from opweave.support.errors import OperationError

SAME: Mapping[str, Any] = {"kernel_shape": [2, 2], "dilations": [2, 2], "strides": [1, 1], "auto_pad": "SAME_UPPER"}
"""With dilations ONNX Runtime pads by less than what the same size needs."""


@pytest.fixture(autouse=True)
def no_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fall back for a MaxPool with Indices, which otherwise has ONNX's shape and not the engine's."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise Unsupported("it has indices")

    monkeypatch.setattr(composites, "max_pool_with_indices", refuse)


def pool_model(*after: onnx.NodeProto, outputs: list[str]) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A MaxPool with Indices, and nodes that take what it makes."""
    pool = helper.make_node("MaxPool", ["x"], ["y", "places"], **SAME)
    feed = {"x": randn(1, 2, 5, 6)}
    return model_of([pool, *after], feed, {}, outputs, opset=22), feed


def without_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """What the engine would warn of otherwise: the shapes of outputs that inference has found."""
    for output in model.graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    return model


def test_actual_shape_replaces_declared_shape() -> None:
    model, feed = pool_model(outputs=["y", "places"])
    declared = [dim.dim_value for dim in model.graph.output[0].type.tensor_type.shape.dim]
    (engine, _) = run_engine(without_shapes(model), feed)
    assert declared != list(engine.shape), "the engine does what ONNX says; this file tests nothing then"
    check_agreement(model, feed, fallback=True)


def test_actual_shape_reaches_later_sections() -> None:
    after = [helper.make_node("Relu", ["y"], ["r"]), helper.make_node("Neg", ["x"], ["s"])]
    model, feed = pool_model(*after, outputs=["r", "s", "places"])
    session = check_agreement(without_shapes(model), feed, fallback=True, rtol=1e-6)
    lines = session.explain().splitlines()
    assert "  Relu: its input 'y' has a shape that is known only when the graph runs" in lines
    assert "  Neg" in lines
    for _ in range(2):
        again = {"x": randn(1, 2, 5, 6)}
        for ours, theirs in zip(session.run(None, again), run_engine(model, again), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_actual_shape_of_results_beside_sequences() -> None:
    after = [helper.make_node("SplitToSequence", ["y"], ["parts"], axis=3), helper.make_node("Relu", ["y"], ["r"])]
    model, feed = pool_model(*after, outputs=["r", "parts"])
    session = ow.InferenceSession(without_shapes(model), CONTEXT)
    for ours, theirs in zip(session.run(None, feed), run_engine(model, feed), strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(a, b)


def test_out_must_have_actual_shape() -> None:
    model, feed = pool_model(outputs=["y", "places"])
    session = ow.InferenceSession(without_shapes(model), CONTEXT)
    with pytest.raises(ow.ValidationError, match=r"out\['y'\] must have shape \[1, 2, \d, \d\], got \[1, 2, 5, 6\]"):
        session.run(None, feed, out={"y": np.empty((1, 2, 5, 6), np.float32)})
    wanted = run_engine(model, feed)[0]
    out = np.empty(wanted.shape, np.float32)
    session.run(None, feed, out={"y": out})
    np.testing.assert_array_equal(out, wanted)


def test_fallback_engine_error_is_raised() -> None:
    feed = {"x": np.array([["a", "b"], ["c", "d"], ["e", "f"]], object), "i": np.int64([2])}
    model = model_of([helper.make_node("Gather", ["x", "i"], ["y"])], feed, {}, ["y"])
    session = check_agreement(model, feed, fallback=True)
    with pytest.raises(OperationError, match="ONNX Runtime failed to run Gather"):
        session.run(None, feed | {"i": np.int64([3])})
    np.testing.assert_array_equal(session.run(None, feed)[0], run_engine(model, feed)[0])


@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(
    ("sizes", "attributes", "wanted"), [((5, 6), SAME, (5, 6)), ((8, 8), {"strides": [5, 3]}, (2, 3))]
)
def test_auto_pad_same_equals_onnx(
    op_type: str, sizes: tuple[int, int], attributes: Mapping[str, Any], wanted: tuple[int, int]
) -> None:
    """ONNX: as many windows as strides fit, and as much padding around as they need, which is never less than none."""
    attributes = {"kernel_shape": [2, 2], "auto_pad": "SAME_UPPER"} | dict(attributes)
    model, feed = node_model(op_type, [np.ones((1, 1, *sizes), np.float32)], attributes, opset=22)
    (found,) = ow.InferenceSession(model, CONTEXT, fallback="error").run(None, feed)
    np.testing.assert_array_equal(found, np.ones((1, 1, *wanted)))
