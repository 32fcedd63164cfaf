"""Subgraphs with a name, a draft: definitions that kernels may replace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.webgpu_device import adapter

import opweave as ow

X = np.float32([[1, -2, 3], [4, 5, -6]])


def new_builder(device: str = "cpu", **options: Any) -> tuple[ow.MLGraphBuilder, ow.MLOperand]:
    builder = ow.MLGraphBuilder(ow.ml.create_context(device=device, drafts=True, **options))
    return builder, builder.input("x", "float32", X.shape)


def affine(b: Any, x: Any, y: Any, *, factor: float = 1.0, parts: Any = None) -> Any:
    return x * factor + y, b.neg(x)


def log_softmax(b: Any, x: Any) -> Any:
    return b.log(b.softmax(x, 1))


def scaled_log_softmax(b: Any, x: Any, *, scale: float) -> Any:
    return log_softmax(b, x * scale)


def witness(x: np.ndarray) -> np.ndarray:
    wide = x.astype("float64")
    return np.asarray(wide - np.log(np.exp(wide).sum(1, keepdims=True)))


@pytest.mark.parametrize("device", ["reference", "cpu", "gpu-software"])
def test_subgraph_computes_its_definition(device: str) -> None:
    if device == "gpu-software":
        adapter()
    builder, x = new_builder(device)
    total, opposite = builder.subgraph("acme.affine", affine, [x, 2.0], config={"factor": 3.0}, label="first")
    again = builder.subgraph("acme.affine", affine, [total, opposite])
    graph = builder.build({"total": total, "again": again[0]})
    results = builder_results(graph, X)
    np.testing.assert_array_equal(results["total"], X * 3 + 2)
    np.testing.assert_array_equal(results["again"], (X * 3 + 2) - X)
    assert "acme.affine 'first'" in graph.explain()
    assert "acme.affine" in str(graph.draw())


def builder_results(graph: ow.MLGraph, x: np.ndarray) -> dict[str, np.ndarray]:
    return graph.context.compute(graph, {"x": x})


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_kernel_of_its_name_replaces_a_subgraph(device: str) -> None:
    """ONNX Runtime has a kernel of this name; the reference back end has none, and runs the definition."""
    builder, x = new_builder(device)
    results = {
        "same": builder.subgraph("log_softmax", log_softmax, [x]),
        "other name": builder.subgraph("my_log_softmax", log_softmax, [x]),
        "other results": builder.subgraph("log_softmax", lambda b, x: b.reduce_sum(x, axes=[1]), [x]),
        "other parameters": builder.subgraph("log_softmax", scaled_log_softmax, [x], config={"scale": 1.0}),
    }
    graph = builder.build(results)
    ways = [placement.how for placement in graph.placements()]
    assert ways == ["native" if device == "cpu" else "decomposed", *["decomposed"] * 3]
    values = builder_results(graph, X)
    for name in ("same", "other name", "other parameters"):
        np.testing.assert_allclose(values[name], witness(X), rtol=1e-5)
    np.testing.assert_array_equal(values["other results"], X.sum(1))


def test_config_is_copied() -> None:
    builder, x = new_builder()
    config: dict[str, Any] = {"parts": [1, {"a": [2.5, None, True, "b"]}]}
    node = builder.subgraph("affine", affine, [x, x], config=config)[0].node
    assert node is not None
    config["parts"][1]["a"].append(3)
    config["factor"] = 9.0
    assert dict(node.attributes) == {"factor": 1.0, "parts": (1, {"a": (2.5, None, True, "b")})}


def test_subgraph_of_sizes_with_names_and_of_nothing() -> None:
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="cpu", drafts=True))
    x = builder.input("x", "float32", ["n", 3])
    graph = builder.build(
        {"y": builder.subgraph("log_softmax", log_softmax, [x]), "z": builder.subgraph("a", affine, [x, x])[0]}
    )
    for count in (2, 0, 1):
        results = builder_results(graph, X[:count])
        np.testing.assert_allclose(results["y"], witness(X[:count]), rtol=1e-5)
        np.testing.assert_array_equal(results["z"], X[:count] * 2)


def test_subgraphs_are_saved(tmp_path: Path) -> None:
    builder, x = new_builder()
    total, opposite = builder.subgraph("acme:affine", affine, [x, x], config={"factor": 3.0}, label="first")
    graph = builder.build({"total": total, "softened": builder.subgraph("log_softmax", log_softmax, [opposite])})
    ow.onnx.save(graph, tmp_path / "m.onnx")
    total_again, softened = ow.InferenceSession(tmp_path / "m.onnx").run(["total", "softened"], {"x": X})
    np.testing.assert_array_equal(total_again, X * 4)
    np.testing.assert_allclose(softened, witness(-X), rtol=1e-5, atol=1e-7)
    ow.js.save(graph, tmp_path / "m.js")
    text = (tmp_path / "m.js").read_text()
    assert "builder.mul(" in text
    assert "subgraph" not in text


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda b, x: b.subgraph("", affine, [x, x]), "subgraph: name must consist of letters, digits, .* got ''"),
        (lambda b, x: b.subgraph("a b", affine, [x, x]), "subgraph: name must consist of .* got 'a b'"),
        (lambda b, x: b.subgraph(3, affine, [x, x]), "subgraph: name must consist of .* got 3"),
        (lambda b, x: b.subgraph("a", 3, [x, x]), "subgraph: function must be a function, got 3"),
        (lambda b, x: b.subgraph("a", affine, x), "subgraph: operands must be a sequence of operands, got <MLOperand"),
        (lambda b, x: b.subgraph("a", affine, [x]), "a: the argument 'y' is missing"),
        (lambda b, x: b.subgraph("a", affine, [x, x, x]), "a: takes 2 positional arguments, got 3"),
        (lambda b, x: b.subgraph("a", affine, [x, "x"]), "a: y must be an operand, got 'x'"),
        (lambda b, x: b.subgraph("a", affine, [x, new_builder()[1]]), "a: y is an operand of another builder"),
        (lambda b, x: b.subgraph("a", affine, [x, x], config=[]), r"subgraph: config must be a dictionary, got \[\]"),
        (lambda b, x: b.subgraph("a", affine, [x, x], config={1: 2}), "config must have names of parameters, got 1"),
        (lambda b, x: b.subgraph("a", affine, [x, x], config={"label": ""}), "names of parameters, got 'label'"),
        (lambda b, x: b.subgraph("a", affine, [x, x], config={"q": 1}), "takes factor, parts by keyword, got 'q'"),
        (lambda b, x: b.subgraph("a", affine, [x, x], config={"parts": X}), r"config\['parts'\] must be a value of JSON: "),
        (lambda b, x: b.subgraph("a", affine, [x, x], config={"parts": [{1: 2}]}), r"config\['parts'\]\[0\] must be"),
        (lambda b, x: b.subgraph("a", lambda b, x: 3, [x]), "a: a composite must return operands that it built, got 3"),
        (lambda b, x: b.subgraph("a", lambda b, y: x, [x]), "a: a composite must return operands that it built"),
        (lambda b, x: b.subgraph("a", lambda b, x: b.matmul(x, x), [x], label="l"), "a 'l': matmul: the last dimension of a"),
        (lambda b, x: b.subgraph("a", lambda b, *x: x[0], [x]), "parameters must be named, got .x"),
        (lambda b, x: b.subgraph("a", affine, [x, x], label=3), "a: label must be a string, got 3"),
    ],
)  # fmt: skip
def test_bad_subgraphs(call: Callable[..., Any], message: str) -> None:
    with pytest.raises(ow.ValidationError, match=message):
        call(*new_builder())


def test_subgraph_is_a_draft() -> None:
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
    with pytest.raises(
        ow.ValidationError, match=r"^subgraph is a draft, which opweave.ml.create_context\(drafts=True\)"
    ):
        builder.subgraph("a", affine, [])


def test_subgraph_after_build() -> None:
    builder, x = new_builder()
    builder.build({"y": x.neg()})
    with pytest.raises(ow.InvalidStateError, match="the builder has built its graph"):
        builder.subgraph("a", affine, [x, x])
