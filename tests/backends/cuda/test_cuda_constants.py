"""Constants on the device: graphs share what is made of an array, on a driver that runs on the processor (`cuda_driver`)."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any
from weakref import getweakrefcount

import numpy as np
import pytest
from support.cuda_driver import CpuDriver, context_on

import opweave as ow
from opweave.backends import Precision
from opweave.backends.cuda import compiler
from opweave.backends.cuda.engine import CudaDevice
from opweave.context.graph import program_of

RANDOM = np.random.default_rng(0)

Op = Callable[[ow.MLGraphBuilder, ow.MLOperand, ow.MLOperand], ow.MLOperand]

OPS: dict[str, tuple[Op, tuple[int, ...], tuple[int, ...]]] = {
    "matmul": (lambda b, x, w: b.matmul(x, w), (40, 44), (44, 45)),
    "transposed": (lambda b, x, w: b.gemm(x, w, b_transpose=True), (40, 44), (45, 44)),
    "thin": (lambda b, x, w: b.matmul(x, w), (1, 64), (64, 45)),
    "conv2d": (lambda b, x, w: b.conv2d(x, w, padding=[1, 1, 1, 1]), (1, 5, 9, 9), (6, 5, 3, 3)),
    "depthwise": (lambda b, x, w: b.conv2d(x, w, groups=6), (1, 6, 9, 9), (6, 1, 3, 3)),
    "upsampling": (lambda b, x, w: b.conv_transpose2d(x, w, strides=[2, 2]), (1, 4, 7, 7), (4, 5, 3, 3)),
}
"""Operations with the shapes of an input and a constant."""


needs_triton = pytest.mark.skipif(not compiler.triton_version(), reason="needs the extra cuda: make test-cuda")


def graph_of(context: ow.MLContext, op: Op, shape: tuple[int, ...], weights: np.ndarray) -> ow.MLGraph:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", str(weights.dtype), shape)  # type: ignore[arg-type]
    return builder.build({"y": op(builder, x, builder.constant(weights))})


def check_constant(graph: ow.MLGraph, op: Op, shape: tuple[int, ...], weights: np.ndarray, tolerance: float) -> None:
    feeds = {"x": RANDOM.uniform(-1, 1, shape).astype(weights.dtype)}
    reference = ow.ml.create_context(device="reference")
    wanted = reference.compute(graph_of(reference, op, shape, weights), feeds)["y"]
    found = graph.context.compute(graph, feeds)["y"]
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


def allocated(driver: CpuDriver) -> int:
    return sum(len(memory.array) for memory in driver.memory.values())


def buffers(graph: ow.MLGraph) -> set[Any]:
    """The memory of the constants of a graph."""
    steps: Any = program_of(graph).steps
    return {array.buffer for step in steps if step.part for array in step.part.runner._constants.values()}


@pytest.mark.long
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("precision", ["float32", "ieee", "tf32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", OPS)
def test_reordered_constant_is_shared_by_graphs(driver: CpuDriver, name: str, precision: Precision) -> None:
    op, shape, sizes = OPS[name]
    shapes = shape, (shape[0] + 1, *shape[1:])
    weights = RANDOM.uniform(-1, 1, sizes).astype(np.float32)
    context = context_on(driver, precision)
    graphs = [graph_of(context, op, shapes[0], weights)]
    before, uploads = allocated(driver), driver.calls["upload"]
    assert before >= weights.nbytes / 2
    assert uploads > 0
    graphs.append(graph_of(context, op, shapes[1], weights))
    assert (allocated(driver), driver.calls["upload"]) == (before, uploads)
    for graph, its in zip(graphs, shapes, strict=True):
        check_constant(graph, op, its, weights, 1e-5 if precision in ("float32", "ieee") else 0.1)
    graphs.append(graph_of(context, op, shapes[0], weights.copy()))
    assert buffers(graphs[2]).isdisjoint(buffers(graphs[0]))  # another array


def test_memory_is_freed_with_the_last_graph(driver: CpuDriver, context: ow.MLContext) -> None:
    op, shape, sizes = OPS["matmul"]
    weights = RANDOM.uniform(-1, 1, sizes).astype(np.float32)
    graphs = [graph_of(context, op, shape, weights) for _ in range(2)]
    graphs.pop()
    gc.collect()
    check_constant(graphs[0], op, shape, weights, 1e-5)
    graphs.pop()
    gc.collect()
    assert allocated(driver) == 0
    assert getweakrefcount(weights) == 0  # many graphs may use an array, one after the other


@pytest.mark.parametrize("way", ["destroy", "del"])
def test_constant_freed_with_last_graph(driver: CpuDriver, context: ow.MLContext, way: str) -> None:
    """Their memory is freed at once, so that later graphs do not share it."""
    op, shape, sizes = OPS["matmul"]
    weights = RANDOM.uniform(-1, 1, sizes).astype(np.float32)
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            weights += 1
            graph = graph_of(context, op, shape, weights)
            check_constant(graph, op, shape, weights, 1e-5)
            if way == "destroy":
                graph.destroy()
            else:
                del graph
            assert allocated(driver) == 0
    finally:
        gc.enable()


@needs_triton
@pytest.mark.usefixtures("small_tiles")
def test_reordered_constant_is_not_shared_across_precisions(driver: CpuDriver) -> None:
    op, shape, sizes = OPS["matmul"]
    weights, engine = RANDOM.uniform(-1, 1, sizes).astype(np.float32), CudaDevice(driver)
    precisions: tuple[Precision, ...] = ("float32", "tf32", "bfloat16", "float16")
    graphs = [graph_of(context_on(driver, precision, engine), op, shape, weights) for precision in precisions]
    assert (
        len(set.union(*map(buffers, graphs))) == sum(map(len, map(buffers, graphs))) == 5
    )  # what TF32 keeps, and a rest
    for graph, tolerance in zip(graphs, (1e-5, 0.01, 0.1, 0.01), strict=True):
        check_constant(graph, op, shape, weights, tolerance)


@needs_triton
@pytest.mark.usefixtures("small_tiles")
def test_products_of_one_and_of_many_vectors_share_a_matrix_of_halves(driver: CpuDriver, context: ow.MLContext) -> None:
    """The prompt of a chat model, and its tokens after that."""
    op, weights = OPS["matmul"][0], RANDOM.uniform(-1, 1, (64, 48)).astype(np.float16)
    graphs = [graph_of(context, op, shape, weights) for shape in ((40, 64), (1, 64))]
    assert len(buffers(graphs[0])) == 1
    assert buffers(graphs[0]) == buffers(graphs[1])
    for graph, rows in zip(graphs, (40, 1), strict=True):
        check_constant(graph, op, (rows, 64), weights, 0.01)


def test_ordered_constant_is_shared_by_graphs(context: ow.MLContext) -> None:
    weights = RANDOM.standard_normal((36, 64), np.float32)
    constant = context.create_constant_tensor("float32", weights.shape, weights)
    feeds = {name: np.ones((1, 64), np.float32) for name in ("a", "b")}
    graphs = []
    for _ in range(2):
        builder = ow.MLGraphBuilder(context)
        matrix = builder.constant(constant)
        inputs = {name: builder.input(name, "float32", [1, 64]) for name in feeds}
        graphs.append(builder.build({f"y_{n}": builder.gemm(x, matrix, b_transpose=True) for n, x in inputs.items()}))
    for graph in graphs:
        found = context.compute(graph, feeds)
        np.testing.assert_allclose(found["y_a"], weights.sum(1)[None], rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(found["y_a"], found["y_b"])
    assert len(set.union(*map(buffers, graphs))) == 1


def test_reordered_constant_is_separate(context: ow.MLContext) -> None:
    filter = RANDOM.uniform(-1, 1, (3, 8, 1, 1)).astype(np.float32)
    graphs = [
        graph_of(context, lambda b, x, w: b.conv2d(x, w), (1, 8, 400, 400), filter),
        graph_of(context, lambda b, x, w: b.add(x, w), filter.shape, filter),
    ]
    assert buffers(graphs[0]).isdisjoint(buffers(graphs[1]))
    found = context.compute(graphs[1], {"x": np.zeros(filter.shape, np.float32)})["y"]
    np.testing.assert_array_equal(found, filter)
