"""A back end on the host that has few rules: another one runs what it cannot run in any way."""

from __future__ import annotations

import numpy as np
import pytest

import opweave as ow
from opweave.backends.reference import Reference
from opweave.ops import elementwise, matrix, normalization


def context_of(stand_in: str | None) -> ow.MLContext:
    backend = Reference()
    backend.name, backend.stand_in = "small", stand_in
    backend.apply({elementwise.neg: np.negative, elementwise.exp: np.exp})
    return ow.MLContext(backend, ow.Device("small", "cpu", "small", "NumPy"), "default")


def build_program(context: ow.MLContext) -> ow.MLGraph:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [2, 2])
    return builder.build({"y": builder.neg(builder.matmul(builder.neg(x), x)), "z": builder.softmax(x, 1)})


def test_stand_in_runs_nodes_without_other_form() -> None:
    """A product has neither an expression nor a decomposition; softmax is decomposed, and a sum in it is a primitive, too."""
    context = context_of("onnxruntime")
    graph = build_program(context)
    x = np.array([[1, 2], [3, 4]], "float32")
    results = context.compute(graph, {"x": x})
    np.testing.assert_array_equal(results["y"], x @ x)
    np.testing.assert_allclose(results["z"], np.exp(x) / np.exp(x).sum(1, keepdims=True), rtol=1e-6)
    found = {placement.node: placement.detail for placement in graph.placements()}
    assert found[matrix.matmul.name] == "ONNX Runtime"
    assert found[elementwise.neg.name] == "NumPy"
    assert "reduce_sum" in found[normalization.softmax.name]


def test_build_without_stand_in_is_an_error() -> None:
    with pytest.raises(ow.NotSupportedError, match=r"matmul: the back end small has no rule for float32\["):
        build_program(context_of(None))
