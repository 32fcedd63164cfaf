"""Products of the same few vectors: how many kernels they take on WebGPU devices, and that their results are those of the
reference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from webgpu_device import gpu_context
from webgpu_kernels import kernel_count

import opweave as ow

pytest.importorskip("wgpu", reason="wgpu is not installed")

Make = Callable[[ow.MLGraphBuilder, ow.MLOperand, Callable[..., Any]], dict[str, Any]]


def three(b: Any, x: Any, weight: Any) -> dict[str, Any]:
    return {name: x @ weight(64, size) for name, size in (("q", 96), ("k", 32), ("v", 32))}


def with_biases(b: Any, x: Any, weight: Any) -> dict[str, Any]:
    q, k = b.gemm(x, weight(64, 96), c=weight(96)), b.relu(x @ weight(64, 40) + weight(40))
    return {"q": q, "k": k * weight(40)}


def of_lines(b: Any, x: Any, weight: Any) -> dict[str, Any]:
    """Inputs with contiguous terms, some of which no vector of four lines can hold."""
    names = {name: b.input(name, x.data_type, [size, 64]) for name, size in (("m", 30), ("n", 17))}
    return {f"y{name}": b.gemm(x, matrix, b_transpose=True) for name, matrix in names.items()}


def one_needs_another(b: Any, x: Any, weight: Any) -> dict[str, Any]:
    first = x @ weight(64, 32)
    return {"first": first, "second": x @ weight(64, 32) * first}


def of_different_forms(b: Any, x: Any, weight: Any) -> dict[str, Any]:
    return {"y": x @ weight(64, 32), "z": x @ b.input("m", x.data_type, [64, 30])}


def of_different_vectors(b: Any, x: Any, weight: Any) -> dict[str, Any]:
    return {"y": x @ weight(64, 32), "z": b.softmax(x, 1) @ weight(64, 32)}


GRAPHS: list[tuple[Make, int]] = [
    (three, 1),
    (with_biases, 1),
    (of_lines, 1),
    (one_needs_another, 2),
    (of_different_forms, 2),
    (of_different_vectors, 3),
]
"""Graphs, and how many kernels they take."""


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize(("make", "count"), GRAPHS)
def test_results_and_kernels(make: Make, count: int, data_type: Any, rows: int) -> None:
    found, wanted = (_computed(context, make, data_type, rows) for context in (gpu_context(), _reference()))
    assert kernel_count(found[0]) == count
    for name, value in wanted[1].items():
        np.testing.assert_allclose(found[1][name], value, rtol=2e-3 if data_type == "float16" else 1e-5, atol=2e-3)


def _reference() -> ow.MLContext:
    return ow.ml.create_context(device="reference")


def _computed(context: ow.MLContext, make: Make, data_type: Any, rows: int) -> tuple[ow.MLGraph, dict[str, np.ndarray]]:
    """The graph on a device, and its results."""
    random = np.random.default_rng(0)

    def numbers(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) / 8).astype(data_type)

    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", data_type, [rows, 64])
    graph = builder.build(make(builder, x, lambda *shape: builder.constant(numbers(*shape))))
    return graph, dict(context.compute(graph, {name: numbers(*o.shape) for name, o in graph.inputs.items()}))
