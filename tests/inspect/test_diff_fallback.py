"""`opweave.diff` of ONNX models with nodes that WebNN cannot express, which ONNX Runtime runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx.parser import parse_model

import opweave as ow
from opweave.inspect.diff.fallback import FALLBACK_RUNS, FallbackNode

NODES = """
    a = Relu(x)
    found = NonZero(a)
    places = Transpose<perm=[1,0]>(found)
    values = GatherND(a, places)
    z = ReduceSum<keepdims=0>(values)
    t = Transpose(x)
    square = MatMul(x, t)
    kinds = Unique<sorted=1>(square)
    total = ReduceSum<keepdims=0>(kinds)
    y = Mul(a, total)
    w = Identity(found)
"""

SVM = 'ai.onnx.ml.SVMRegressor<coefficients=[1.0, 2.0], kernel_params=[1.0, 0.0, 3.0], kernel_type="LINEAR", rho=[0.5]>'
"""A node that only the engine computes: neither WebNN nor ONNX's reference has it."""


def model(nodes: str, inputs: str = "float[3,8] x", outputs: str = "float[3,8] y, int64[2,N] w, float z") -> Any:
    domains = '"": 17, "com.microsoft": 1, "ai.onnx.ml": 3'
    return parse_model(f"<ir_version: 8, opset_import: [{domains}]> g ({inputs}) => ({outputs}) {{ {nodes} }}")


def diff(nodes: str, outputs: str, inputs: str = "float[3,8] x", against: str = "reference") -> ow.Difference:
    return ow.diff(model(nodes, inputs, outputs), on="cpu:onnxruntime", against=against)


@pytest.mark.parametrize("against", ["reference", "cpu:onnxruntime"])
def test_nodes_beside_webnn_are_compared(against: str) -> None:
    feed = np.random.default_rng(1).standard_normal((3, 8), np.float32)
    found = ow.diff(model(NODES), inputs={"x": feed}, on="cpu:onnxruntime", against=against)
    assert found.first is None, str(found)
    rows = {row.title: row for row in found.rows}
    assert len(rows) == 10
    assert {title for title, row in rows.items() if row.runs == FALLBACK_RUNS} == {
        "onnx_node 'NonZero'",
        "onnx_node 'Unique'",
    }
    # A size that depends on values is that of the run, and operations of WebNN go on with it.
    count = int((feed > 0).sum())
    assert rows["onnx_node 'NonZero'"].result == f"int64[2, {count}]"
    assert rows["gather_nd 'values'"].result == f"float32[{count}]"
    assert [output.name for output in found.outputs] == ["y", "w", "z"]
    assert all(output.total.relative < 1e-5 for output in found.outputs)


def test_diff_compares_fallback_with_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    run = FallbackNode.run

    def wrong(node: FallbackNode, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        run(node, inputs, outputs)
        if node.model.graph.node[0].op_type == "Unique":
            outputs[0][...] *= 1.01

    monkeypatch.setattr(FallbackNode, "run", wrong)
    found = ow.diff(model(NODES), on="cpu:onnxruntime")
    assert [(row.title, row.verdict) for row in found.found] == [("onnx_node 'Unique'", "differs")]
    assert found.found[0].own.relative == pytest.approx(0.01, rel=1e-3)
    assert ow.diff(model(NODES), on="cpu:onnxruntime", against="cpu:onnxruntime").first is None


def test_diff_fallback_bool_values() -> None:
    nodes = """
        zero = Constant<value = float {0}>()
        c = Greater(x, zero)
        i = NonZero(c)
        r = ReduceMax<axes=[1], keepdims=0>(x)
        big = Greater(r, zero)
        y = Compress<axis=0>(x, big)
        s = Unique<sorted=1>(x)
        n = Shape(i)
    """
    found = diff(nodes, "float[M,8] y, int64[2,N] i, float[K] s, bool[3] big")
    assert found.first is None, str(found)
    titles = [row.title for row in found.rows]
    assert {"onnx_node 'NonZero'", "onnx_node 'Compress'", "onnx_node 'Unique'"} <= set(titles)


def test_diff_runs_unevaluable_operators_in_engine() -> None:
    found = diff(f"y = {SVM}(x)", "float[3,1] y", "float[3,2] x")
    assert found.first is None
    assert [(row.title, row.own.largest) for row in found.rows] == [("onnx_node 'SVMRegressor'", 0)]


def test_branches_that_use_values_from_around_them() -> None:
    nodes = """
        sum = ReduceSum<keepdims=0>(x)
        zero = Constant<value = float {0}>()
        c = Greater(sum, zero)
        a = Sin(x)
        y = If(c) <
            then_branch = then () => (float[3,8] p) { p = Add(a, x) },
            else_branch = other () => (float[3,8] q) { q = Sub(a, x) }
        >
    """
    found = diff(nodes, "float[3,8] y")
    assert found.first is None, str(found)
    assert found.outputs[0].total.relative < 1e-6


def test_diff_finds_changed_fallback_node() -> None:
    first, second = (model(f"s = Unique<sorted={k}>(x)", outputs="float[N] s") for k in (1, 0))
    found = ow.diff(first, second, on="cpu:onnxruntime").first
    assert found is not None
    assert (found.title, found.verdict) == ("onnx_node 'Unique'", "differs")
    assert found.changes[0].startswith("node is <Unique ")
    assert ow.diff(first, first, on="cpu:onnxruntime").first is None


@pytest.mark.parametrize(
    ("nodes", "outputs", "message"),
    [
        ("r = RandomNormalLike(x)\n y = Add(x, r)", "float[3,8] y", "random_key 'r' is random"),
        ("s = SequenceConstruct(x, x)\n y = Identity(x)", "float[3,8] y, seq(float[3,8]) s", "SequenceConstruct"),
    ],
    ids=["random", "sequence"],
)
def test_diff_names_incomparable_nodes(nodes: str, outputs: str, message: str) -> None:
    with pytest.raises(ow.NotSupportedError, match=message):
        diff(nodes, outputs)


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [("y = NonZero(p)", "int64[2,N] y"), ("i = NonZero(p)\n y = Size(i)", "int64 y")],
)
def test_diff_compares_empty_results(nodes: str, outputs: str) -> None:
    found = diff(f"n = Abs(x)\n m = Neg(n)\n p = Relu(m)\n {nodes}", outputs)
    assert found.first is None, str(found)
