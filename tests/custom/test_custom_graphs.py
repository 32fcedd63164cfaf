"""Custom operations in graphs, between built-in ones, and in composites."""

from __future__ import annotations

import gc
import re
import weakref
from functools import partial
from typing import Any

import numpy as np
import pytest
from custom_operations import CPU, REFERENCE, add_one, rms_norm, rng, top_k
from support.threads import together

import opweave as ow
from opweave.context.tensor import memory_of


def test_custom_operation_between_built_in_ones_copies_nothing() -> None:
    pointers: dict[str, int] = {}

    @ow.op
    def spy(self, x):  # type: ignore[no-untyped-def]
        return x.desc

    @spy.kernel("cpu")
    def _(x: np.ndarray, out: np.ndarray) -> None:
        pointers["in"], pointers["out"] = x.ctypes.data, out.ctypes.data
        assert not x.flags.writeable
        np.negative(x, out=out)

    weight = CPU.create_constant_tensor("float32", [8, 8, 3, 3], rng.standard_normal((8, 8, 3, 3)).astype("float32"))
    builder = ow.MLGraphBuilder(CPU)
    x = builder.input("x", "float32", [1, 8, 16, 16])
    middle = builder.conv2d(x, builder.constant(weight), padding=[1, 1, 1, 1])
    after = spy(middle)
    y = builder.conv2d(after, builder.constant(weight), padding=[1, 1, 1, 1])
    graph = builder.build({"y": y, "middle": middle, "after": after})
    image = CPU.create_tensor("float32", [1, 8, 16, 16], writable=True)
    results = {name: CPU.create_tensor("float32", [1, 8, 16, 16], readable=True) for name in graph.outputs}
    data = rng.standard_normal((1, 8, 16, 16)).astype("float32")
    CPU.write_tensor(image, data)
    ow.memory.copies.reset()
    CPU.dispatch(graph, {"x": image}, results)
    assert ow.memory.copies.count == 0
    assert pointers == {
        "in": results["middle"].numpy().ctypes.data,
        "out": results["after"].numpy().ctypes.data,
    }
    np.testing.assert_array_equal(results["after"].numpy(), -results["middle"].numpy())
    np.testing.assert_allclose(
        results["y"].numpy(), REFERENCE.compute(_rebuilt(graph, weight), {"x": data})["y"], rtol=1e-3, atol=1e-3
    )


def _rebuilt(graph: ow.MLGraph, weight: ow.MLTensor) -> ow.MLGraph:
    """The same network on the reference back end."""
    builder = ow.MLGraphBuilder(REFERENCE)
    x = builder.input("x", "float32", graph.inputs["x"].shape)
    w = builder.constant(memory_of(weight))
    y = builder.conv2d(-builder.conv2d(x, w, padding=[1, 1, 1, 1]), w, padding=[1, 1, 1, 1])
    return builder.build({"y": y})


def test_explain_and_placements_of_custom_operations() -> None:
    builder = ow.MLGraphBuilder(CPU)
    x = builder.input("x", "float32", [2, 4])
    values, _ = top_k(rms_norm(x.relu(), np.ones(4, "float32"), label="norm"), 2, label="best")
    graph = builder.build({"v": values})
    assert [(p.node, p.how, p.segment) for p in graph.placements()] == [
        ("relu", "native", 0),
        ("rms_norm 'norm'", "decomposed", 0),
        ("top_k 'best'", "kernel", 1),
    ]
    assert re.fullmatch(r"Python kernel, custom_operations\.py:\d+", graph.placements()[-1].detail)
    assert "%1 = rms_norm(%0, const float32[4])  # 'norm'" in str(graph.explain())


def test_custom_graph_in_two_threads() -> None:
    builder = ow.MLGraphBuilder(CPU)
    x = builder.input("x", "float32", [64])
    graph = builder.build({"y": add_one(add_one(x * 2) * 3)})

    def work(seed: int) -> None:
        data = np.full(64, seed, "float32")
        for _ in range(200):
            y = CPU.compute(graph, {"x": data})["y"]
            assert (y == (seed * 2 + 1) * 3 + 1).all()

    together(*(partial(work, seed) for seed in range(4)))


def test_composites_hold_constants() -> None:
    @ow.composite
    def weighted(b, x):  # type: ignore[no-untyped-def]
        return b.mul(x, b.constant(np.float32([2, 3]))) + b.constant("float32", 1)

    assert weighted(np.float32([1, 1])).tolist() == [3, 4]

    @ow.composite
    def wrong(b, x):  # type: ignore[no-untyped-def]
        return x + b.constant([1, 2])

    with pytest.raises(
        ow.ValidationError,
        match=r"wrong 'w': constant: takes \(array\) or .* got \(list\); builder.constant.* \(test_custom",
    ):
        wrong(np.float32([1, 1]), label="w")


def test_contexts_are_kept_for_a_few_calls_only() -> None:
    @ow.composite
    def plain(b, x):  # type: ignore[no-untyped-def]
        return x + 1

    def used() -> weakref.ref[Any]:
        context = ow.ml.create_context(device="reference")
        assert plain(context.tensor_from(np.float32([1]))).numpy().tolist() == [2]
        return weakref.ref(context)

    contexts = [used() for _ in range(8)]
    gc.collect()
    assert sum(context() is not None for context in contexts) <= 4


def test_composites_hold_composites_and_kernels() -> None:
    @ow.composite
    def outer(b, x):  # type: ignore[no-untyped-def]
        values, _ = top_k(rms_norm(x, np.ones(4, "float32")), 1)
        return add_one(values), b.relu(x)

    first, second = outer(np.float32([[3, 4, 0, 0]]), label="o")
    assert first.shape == (1, 1)
    np.testing.assert_allclose(first, [[4 / 2.5 + 1]], rtol=1e-6)
    assert second.tolist() == [[3, 4, 0, 0]]


@pytest.mark.long
def test_numba_kernel() -> None:
    numba = pytest.importorskip("numba", reason="the extra numba is not installed")

    @ow.op
    def clipped_sum(self, x, *, limit: float = 1.0):  # type: ignore[no-untyped-def]
        return ow.Desc("float32", x.shape[:1])

    @clipped_sum.kernel("cpu")
    @numba.njit(nogil=True)  # type: ignore[untyped-decorator]
    def _(x: np.ndarray, limit: float, out: np.ndarray) -> None:
        for i in range(x.shape[0]):
            total = np.float32(0)
            for j in range(x.shape[1]):
                total += min(x[i, j], limit)
            out[i] = total

    assert clipped_sum(np.float32([[0.5, 3], [2, 2]])).tolist() == [1.5, 2]
    builder = ow.MLGraphBuilder(CPU)
    graph = builder.build({"y": clipped_sum(builder.input("x", "float32", [2, 2]))})
    assert graph.placements()[0].detail.startswith("Numba kernel")
