"""Products of the same few vectors: how many kernels they take on WebGPU devices, and that their results are those of the
reference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.webgpu_device import gpu_context
from support.webgpu_kernels import kernel_count

import opweave as ow
from opweave import composites as c

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


def of_lines_and_a_column(b: Any, x: Any, weight: Any) -> dict[str, Any]:
    """Terms that are contiguous in both matrices, of which those of a column are no vectors of four lines."""
    lines, column = b.input("m", x.data_type, [6, 64]), b.input("n", x.data_type, [64, 1])
    return {"y": b.gemm(x, lines, b_transpose=True), "z": x @ column}


def one_needs_another(b: Any, x: Any, weight: Any) -> dict[str, Any]:
    first = x @ weight(64, 32)
    return {"first": first, "second": x @ weight(64, 32) * first}


def of_different_forms(b: Any, x: Any, weight: Any) -> dict[str, Any]:
    return {"y": x @ weight(64, 32), "z": x @ b.input("m", x.data_type, [64, 30])}


def of_different_vectors(b: Any, x: Any, weight: Any) -> dict[str, Any]:
    return {"y": x @ weight(64, 32), "z": b.softmax(x, 1) @ weight(64, 32)}


def gated(b: Any, x: Any, weight: Any) -> dict[str, Any]:
    gate, up = x @ weight(64, 40), x @ weight(64, 40)
    return {"y": gate * b.sigmoid(gate) * up}


def of_four(b: Any, x: Any, weight: Any) -> dict[str, Any]:
    """More than one epilogue takes, in columns that no vector of four can hold."""
    first, *others = (x @ weight(64, 30) for _ in range(5))
    for other in others:
        first = b.tanh(first) + other
    return {"y": first}


def with_a_truth(b: Any, x: Any, weight: Any) -> dict[str, Any]:
    """A result that the kernel of the products cannot store, because bytes share a word."""
    return {"y": b.cast(b.greater(x @ weight(64, 40), x @ weight(64, 40)), "float32").cast("uint8")}


def normalised(b: Any, x: Any, weight: Any) -> dict[str, Any]:
    """Each workgroup computes the normalised row, if there is one row."""
    y = c.rms_normalization(b, x, weight(64))
    return {"q": y @ weight(64, 96), "k": b.relu(y @ weight(64, 40))}


def activated(b: Any, x: Any, weight: Any) -> dict[str, Any]:
    return {"y": b.tanh(x * 2) @ weight(64, 40)}


def read_elsewhere_too(b: Any, x: Any, weight: Any) -> dict[str, Any]:
    y = b.softmax(x, 1)
    return {"y": y @ weight(64, 40), "z": b.transpose(y)}


GRAPHS: list[tuple[Make, int, int]] = [
    (three, 1, 1),
    (with_biases, 1, 1),
    (of_lines, 1, 1),
    (of_lines_and_a_column, 2, 2),
    (one_needs_another, 2, 2),
    (of_different_forms, 2, 2),
    (of_different_vectors, 2, 3),
    (gated, 1, 1),
    (of_four, 2, 2),
    (with_a_truth, 2, 2),
    (normalised, 1, 2),
    (activated, 1, 1),
    (read_elsewhere_too, 3, 3),
]
"""Graphs, and how many kernels they take for one row, and for three."""


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize(("make", "one", "more"), GRAPHS)
def test_diamond_results_and_kernel_count(make: Make, one: int, more: int, data_type: Any, rows: int) -> None:
    found, wanted = (_computed(context, make, data_type, rows) for context in (gpu_context(), _reference()))
    assert kernel_count(found[0]) == (one if rows == 1 else more)
    for name, value in wanted[1].items():
        np.testing.assert_allclose(found[1][name], value, rtol=2e-3 if data_type == "float16" else 1e-5, atol=2e-3)


def silu(b: Any, x: Any) -> Any:
    return x * b.sigmoid(x)


def gelu(b: Any, x: Any) -> Any:
    return x * 0.5 * (b.erf(x * 0.70710678) + 1)


def mish_of_both(b: Any, x: Any) -> Any:
    """Each of two values that meet is read twice."""
    y = x * b.tanh(b.softplus(x))
    return y * b.sigmoid(y)


def read_by_a_sum(b: Any, x: Any) -> Any:
    return x * b.reduce_sum(x, axes=[1], keep_dimensions=True)


def read_elsewhere(b: Any, x: Any) -> Any:
    return x * b.transpose(x, permutation=[0, 2, 1] if x.rank == 3 else [0, 1, 3, 2])


@pytest.mark.parametrize("activation", [silu, gelu, mish_of_both, read_by_a_sum, read_elsewhere])
@pytest.mark.parametrize("kind", ["conv2d", "matmul", "one row"])
def test_diamond_of_products_is_one_kernel(kind: str, activation: Any) -> None:
    meets = activation not in (read_by_a_sum, read_elsewhere)
    assert (_kernels_with(activation, kind, 1) == 1) is meets
    if meets and kind == "matmul":
        assert _kernels_with(activation, kind, 2) == 2


def _kernels_with(activation: Any, kind: str, products: int) -> int:
    """The kernels of a graph of products, one of which has an activation; its results are compared with the reference."""
    random = np.random.default_rng(0)
    shape = {"conv2d": [1, 8, 6, 6], "one row": [1, 64, 1], "matmul": [2, 20, 20]}[kind]
    value = random.standard_normal(shape, "float32") / 4
    filter = random.standard_normal((8, 8, 3, 3), "float32") / 8
    matrix = random.standard_normal((1, 64, 64), "float32") / 8
    results, counts = [], []
    for context in (_reference(), gpu_context()):
        builder = ow.MLGraphBuilder(context)
        x = builder.input("x", "float32", shape)
        if kind == "conv2d":
            made = builder.conv2d(x, builder.constant(filter), padding=[1, 1, 1, 1])
        else:
            made = x @ x if kind == "matmul" else builder.constant(matrix) @ x
        y = activation(builder, made)
        graph = builder.build({"y": y * (x @ x) if products > 1 else y})
        results.append(context.compute(graph, {"x": value})["y"])
        counts.append(kernel_count(graph) if context.device.name != "reference" else 0)
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-5)
    return counts[-1]


def test_diamond_value_may_be_an_output() -> None:
    builder = ow.MLGraphBuilder(gpu_context())
    x = builder.input("x", "float32", [1, 64])
    y = x @ builder.constant(np.eye(64, dtype="float32"))
    graph = builder.build({"y": y, "z": y * builder.sigmoid(y)})
    assert kernel_count(graph) == 2


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
