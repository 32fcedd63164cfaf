"""Composites that return operands, constants, or one operand twice, as whole graphs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import opweave as ow
from opweave.backends import discover

K = np.arange(4, dtype="float32")
X = K + 10


@ow.composite
def unchanged(b: Any, x: Any) -> Any:
    return x


@ow.composite
def constant(b: Any, x: Any) -> Any:
    return b.constant(K)


@ow.composite
def twice(b: Any, x: Any) -> Any:
    return x, x


@ow.composite
def nested(b: Any, x: Any) -> Any:
    return unchanged(unchanged(x))


@ow.composite
def several(b: Any, x: Any) -> Any:
    return x, b.constant(K), b.relu(x), x


@ow.composite
def swapped(b: Any, x: Any, y: Any) -> Any:
    return y, x


CASES: dict[str, tuple[Callable[..., Any], list[np.ndarray]]] = {
    "unchanged": (unchanged, [X]),
    "constant": (constant, [K]),
    "twice": (twice, [X, X]),
    "nested": (nested, [X]),
    "several": (several, [X, K, X, X]),
}


def built(context: ow.MLContext, function: Callable[..., Any], *, beside: bool = False) -> ow.MLGraph:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [4])
    results = function(x)
    outputs = {f"y{k}": each for k, each in enumerate(results if isinstance(results, tuple) else (results,))}
    return builder.build({**outputs, **({"z": x + 1} if beside else {})})


CONTEXTS = [("cpu", name) for name, backend in discover().items() if backend.device_named("cpu") is not None]


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("device", "backend"), [("cpu", None), *CONTEXTS, ("reference", None)])
def test_compute_copies_passed_through_values(device: str, backend: str | None, name: str, beside: bool) -> None:
    function, expected = CASES[name]
    try:
        context = ow.ml.create_context(device=device, backend=backend)
    except ow.NotSupportedError as error:
        pytest.skip(str(error))
    graph = built(context, function, beside=beside)
    feeds = {"x": X} if graph.inputs else {}
    for _ in range(2):
        results = context.compute(graph, feeds)
        for k, array in enumerate(expected):
            np.testing.assert_array_equal(results[f"y{k}"], array)
    tensors = {n: context.create_tensor("float32", [4], writable=True) for n in graph.inputs}
    for tensor in tensors.values():
        context.write_tensor(tensor, X)
    outputs = {n: context.create_tensor("float32", [4], readable=True) for n in graph.outputs}
    context.dispatch(graph, tensors, outputs)
    for k, array in enumerate(expected):
        np.testing.assert_array_equal(context.read_tensor(outputs[f"y{k}"]), array)
    assert f"{name}" in graph.explain()
    assert graph.profile({"x": X} if graph.inputs else {}) is not None
    assert graph.devices


def test_compute_exchanges_inputs() -> None:
    context = ow.ml.create_context(device="cpu")
    builder = ow.MLGraphBuilder(context)
    x, y = builder.input("x", "float32", [4]), builder.input("y", "float32", [4])
    first, second = swapped(x, y)
    graph = builder.build({"first": first, "second": second})
    results = context.compute(graph, {"x": X, "y": K})
    np.testing.assert_array_equal(results["first"], K)
    np.testing.assert_array_equal(results["second"], X)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("wrapper", [lambda function: function, lambda function: ow.jit(lambda x: function(x))])
def test_arrays_of_passed_through_values(wrapper: Callable[..., Any], name: str) -> None:
    function, expected = CASES[name]
    results = wrapper(function)(X)
    for each, array in zip(results if isinstance(results, tuple) else (results,), expected, strict=True):
        np.testing.assert_array_equal(np.asarray(each), array)


@pytest.mark.parametrize("name", CASES)
def test_save_writes_passed_through_values(name: str, tmp_path: Path) -> None:
    function, expected = CASES[name]
    graph = built(ow.ml.create_context(device="cpu"), function)
    path = tmp_path / "model.onnx"
    ow.onnx.save(graph, path)
    feeds = {"x": X} if graph.inputs else {}
    for session in (onnxruntime.InferenceSession(path), ow.InferenceSession(path)):
        for each, array in zip(session.run(None, feeds), expected, strict=True):
            np.testing.assert_array_equal(each, array)


@pytest.mark.parametrize("name", CASES)
def test_diff_compares_passed_through_values(name: str) -> None:
    graph = built(ow.ml.create_context(device="cpu"), CASES[name][0])
    assert "all within their tolerances" in str(ow.diff(graph))
