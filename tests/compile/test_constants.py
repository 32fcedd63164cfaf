"""Operations on constants alone are computed once, when a graph is built for a device whose engine does not do so."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import opweave as ow
from opweave.compile.constants import fold_constants, share
from opweave.core.graph import Graph

REFERENCE = ow.ml.create_context(device="reference")
RNG = np.random.default_rng(0)


def standardised(b: Any, weights: np.ndarray) -> Any:
    """A filter with mean 0 and variance 1 in each of its channels, as networks without normalised activations have."""
    filter = b.reshape(b.constant(weights), [weights.shape[0], weights[0].size])
    centred = filter - b.reduce_mean(filter, axes=[1], keep_dimensions=True)
    variance = b.reduce_mean(centred * centred, axes=[1], keep_dimensions=True)
    return b.reshape(centred / b.sqrt(variance + 1e-5), weights.shape)


def folded(build: Any) -> tuple[Graph, Graph]:
    """A graph, and what is left of it."""
    builder = ow.MLGraphBuilder(REFERENCE)
    made = build(builder)
    graph = Graph.reaching({f"y{k}": one for k, one in enumerate(made if isinstance(made, tuple) else (made,))})
    return graph, fold_constants(graph, {node: node for node in graph.nodes})[0]


def names(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


WEIGHTS = RNG.standard_normal((4, 3, 3, 3)).astype("float32")


def test_a_standardised_filter_is_a_constant() -> None:
    def build(b: Any) -> Any:
        return b.conv2d(b.input("x", "float32", [1, 3, 8, 8]), standardised(b, WEIGHTS))

    graph, left = folded(build)
    assert names(left) == ["conv2d"]
    (filter,) = left.constants
    flat = WEIGHTS.reshape(4, -1).astype("float64")
    centred = flat - flat.mean(1, keepdims=True)
    wanted = (centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)).reshape(WEIGHTS.shape)
    np.testing.assert_allclose(filter.value, wanted, rtol=1e-6)
    assert len(graph.nodes) > 5


def test_values_are_shared_by_equal_attributes_alone() -> None:
    """Texts of large arrays leave out most elements."""

    @ow.recurrence
    def scaled_sum(total: Any, x: Any, *, scales: Any) -> Any:
        return total + x * float(scales[1000])

    state, x, held = np.zeros(4, np.float32), np.ones((3, 4), np.float32), []
    for scale in (1, 2):
        scales = np.zeros(2000)
        scales[1000] = scale
        made, left = folded(lambda b, s=scales: b.relu(scaled_sum(b.constant(state), b.constant(x), scales=s)))
        held.append(left)
        assert "scaled_sum" in str(made)
        assert [c.value.tolist() for c in left.constants] == [[3 * scale] * 4]


def test_a_part_of_an_operation_with_several_results_is_a_constant() -> None:
    def build(b: Any) -> Any:
        halves = b.split(b.exp(b.constant(WEIGHTS.reshape(-1)[:8])), 2)
        return b.add(b.input("x", "float32", [4]), halves[1])

    left = folded(build)[1]
    assert names(left) == ["add"]
    np.testing.assert_allclose(left.constants[0].value, np.exp(WEIGHTS.reshape(-1)[4:8]), rtol=1e-6)


@pytest.mark.parametrize(
    ("build", "left"),
    [
        (lambda b: b.matmul(b.input("x", "float32", [2, 4]), b.transpose(b.constant(WEIGHTS.reshape(27, 4)))), 2),
        (lambda b: b.exp(b.constant(WEIGHTS)), 1),
        (lambda b: b.add(b.input("x", "float32", [2**19]), b.expand(b.exp(b.constant(np.float32([1]))), [2**19])), 2),
        (
            lambda b: b.mul(
                b.input("x", "float32", [2**20]),
                b.dequantize_linear(
                    b.constant(np.ones(2**20, "int8")),
                    b.constant(np.ones(1, "float32")),
                    b.constant(np.zeros(1, "int8")),
                ),
            ),
            2,
        ),
    ],
    ids=["a transposed constant", "an output", "a large table of one number", "narrow weights"],
)
def test_what_kernels_read_better_stays(build: Any, left: int) -> None:
    assert len(folded(build)[1].nodes) == left


def test_graphs_share_what_is_computed() -> None:
    b = ow.MLGraphBuilder(REFERENCE)
    filter = standardised(b, WEIGHTS)
    graphs = [Graph.reaching({"y": b.conv2d(b.input(f"x{k}", "float32", [k, 3, 8, 8]), filter)}) for k in (1, 2)]
    values = [fold_constants(g, {n: n for n in g.nodes})[0].constants[0].value for g in graphs]
    assert values[0] is values[1]


@pytest.mark.parametrize("count", [64, 2000])
def test_long_chains_of_constants_are_computed_once_for_each_node(count: int) -> None:
    """Each sum reads the one before twice; 64 of them have 2**64 paths, and 2,000 are deeper than Python's stack."""

    def build(b: Any) -> Any:
        y = b.constant(np.zeros(4, "float32"))
        for _ in range(count):
            y = y + y
        return b.add(b.input("x", "float32", [4]), y + b.constant(np.float32([1, 2, 3, 4])))

    left = folded(build)[1]
    assert names(left) == ["add"]
    np.testing.assert_array_equal(left.constants[0].value, [1, 2, 3, 4])


def test_an_address_that_is_used_again_has_its_own_values() -> None:
    for k in range(20):
        b = ow.MLGraphBuilder(REFERENCE)
        y = b.add(b.input("x", "float32", [1000]), b.exp(b.constant(np.full(1000, k / 10, "float32"))))
        graph = Graph.reaching({"y": y})
        value = fold_constants(graph, {n: n for n in graph.nodes})[0].constants[0].value
        np.testing.assert_allclose(value, np.exp(np.float32(k / 10)), rtol=1e-6)
        del b, y, graph, value
        gc.collect()


def test_array_that_changed_has_new_values() -> None:
    """What was computed for a destroyed graph exists until a garbage collection, and users may change the weights before."""
    weights, held = np.ones(8, "float32"), []
    for number in (1, 2):
        weights[...] = number
        left = folded(lambda b: b.add(b.input("x", "float32", [8]), b.neg(b.constant(weights))))[1]
        doubled = share("doubled", [weights], lambda: weights * 2)
        held.append((left, doubled))
        assert left.constants[0].value.tolist() == [-number] * 8
        assert doubled.tolist() == [2 * number] * 8


def test_results_and_explanation_on_a_gpu() -> None:
    pytest.importorskip("wgpu", reason="wgpu is not installed")
    from support.webgpu_device import gpu_context
    from support.webgpu_kernels import kernel_count

    x = RNG.standard_normal((1, 3, 8, 8)).astype("float32")
    results = []
    for context in (REFERENCE, gpu_context()):
        b = ow.MLGraphBuilder(context)
        graph = b.build({"y": b.conv2d(b.input("x", "float32", x.shape), standardised(b, WEIGHTS))})
        results.append(context.compute(graph, {"x": x})["y"])
    assert kernel_count(graph) == 1
    assert "a constant, computed when the graph was built" in str(graph.explain())
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-5)
