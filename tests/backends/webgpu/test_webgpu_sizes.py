"""Graphs with names on WebGPU: one program for all sizes where each kernel takes names, else one for each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.gpu_sizes import CLOSE, EXACT, FLOATS_ONLY, SIZES, arrays_for, build, check
from support.webgpu_device import gpu_context
from support.webgpu_kernels import engine_of, kernels_of

import opweave as ow
from opweave.context.graph import program_of

pytest.importorskip("wgpu", reason="wgpu is not installed")


@pytest.fixture
def context() -> ow.MLContext:
    """A context without compiled kernels."""
    return ow.ml.create_context(device=gpu_context().device.name, drafts=True)


@pytest.fixture
def compiled(context: ow.MLContext, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The titles of kernels that the device compiles."""
    engine, titles = engine_of(context), list[str]()
    compile_one = engine._compile

    def note(kernel: Any) -> Any:
        titles.append(kernel.title)
        return compile_one(kernel)

    monkeypatch.setattr(engine, "_compile", note)
    return titles


@pytest.mark.parametrize("data_type", ["float32", "float16", "int8"])
@pytest.mark.parametrize("name", EXACT)
def test_results_equal_those_of_static_graphs(context: ow.MLContext, name: str, data_type: Any) -> None:
    if data_type == "int8" and name in FLOATS_ONLY:
        pytest.skip("the operation takes floats")
    check(context, EXACT[name], data_type, 0)


@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize("name", CLOSE)
def test_sums_are_close_to_those_of_static_graphs(context: ow.MLContext, name: str, data_type: Any) -> None:
    check(context, CLOSE[name], data_type, 1e-5 if data_type == "float32" else 4e-3)


@pytest.mark.parametrize("name", [*EXACT, *CLOSE])
def test_new_sizes_compile_nothing(context: ow.MLContext, compiled: list[str], name: str) -> None:
    make = EXACT.get(name) or CLOSE[name]
    graph = build(context, make, "float32")
    counts = []
    for numbers in ({"n": 6, "m": 3}, {"n": 40, "m": 12}, {"n": 300, "m": 70}, {"n": 7, "m": 1000}):
        context.compute(graph, arrays_for(graph, numbers))
        counts.append(len(compiled))
    assert counts[0] > 0
    assert counts[1:] == counts[:1] * 3, (name, counts, compiled)


def test_explain_names_what_needs_numbers(context: ow.MLContext, compiled: list[str]) -> None:
    builder = ow.MLGraphBuilder(context)
    x, w = builder.input("x", "float32", ["rows", 8]), builder.input("w", "float32", [8, "columns"])
    graph = builder.build({"y": builder.relu(builder.matmul(x, w, label="projection"))})
    assert "compiled when it first runs, for many sizes of rows, columns" in graph.explain()
    for rows in 3, 4:
        arrays = {"x": np.ones((rows, 8), "float32"), "w": np.ones((8, 5), "float32")}
        np.testing.assert_array_equal(context.compute(graph, arrays)["y"], np.full((rows, 5), 8, "float32"))
    assert "compiled for each size of columns, rows: matmul 'projection'" in graph.explain()


def test_other_names_stay_open(context: ow.MLContext, compiled: list[str]) -> None:
    """A matrix product needs the number of one name; the other name has one program."""
    builder = ow.MLGraphBuilder(context)
    x, w = builder.input("x", "float32", ["batch", 8]), builder.input("w", "float32", [8, "columns"])
    product = builder.matmul(builder.input("a", "float32", [4, 8]), w)
    graph = builder.build({"y": builder.relu(product), "z": builder.softmax(x, 1)})
    counts = []
    for batch, columns in (3, 5), (30, 5), (300, 5), (3, 6):
        shapes = {"x": (batch, 8), "w": (8, columns), "a": (4, 8)}
        context.compute(graph, {name: np.ones(shape, "float32") for name, shape in shapes.items()})
        counts.append(len(compiled))
    assert counts[0] == counts[1] == counts[2] < counts[3]


def test_products_beside_names(context: ow.MLContext) -> None:
    """Static products whose operands or results are read by kernels with names."""
    last = lambda b, x, n: b.slice(x, [n - 4, 0], [4, 32])  # noqa: E731
    builds: list[Any] = [
        lambda b, x, n, m: b.matmul(x(4, 8), x(8, 6)) * 2 + x(n, 6),
        lambda b, x, n, m: b.matmul(x(4, 8), x(8, 32)) + last(b, x(n, 32), n),
        lambda b, x, n, m: b.matmul(last(b, x(n, 32), n) * 2, x(32, 64)).relu(),
        lambda b, x, n, m: b.matmul(b.slice(x(n, 32), [n - 1, 0], [1, 32]) * 2, x(32, 64)),
        lambda b, x, n, m: b.matmul(b.reduce_sum(x(n, 32), axes=[0], keep_dimensions=True), x(32, 64)) + x(n, 1),
    ]
    for make in builds:
        sizes = [4, 1] if make is builds[0] else [6, 9, 200]
        check(context, make, "float32", 1e-4, [{"n": n, "m": 1} for n in sizes])


def test_names_may_differ(context: ow.MLContext) -> None:
    """Kernels that differ only in names of sizes have equal text."""
    texts = []
    for name in "n", "a name\n*/ with \\":
        builder = ow.MLGraphBuilder(context)
        graph = builder.build({"y": builder.transpose(builder.input("x", "float32", [name, 5]).exp())})
        context.compute(graph, {"x": np.ones((3, 5), "float32")})
        texts.append([kernel.source for kernel in kernels_of(graph)])
    assert texts[0] == texts[1]


def test_empty_inputs(context: ow.MLContext) -> None:
    """A size of 0 has a program of its own; later sizes have that of all."""
    for name in "concat", "softmax", "reduce_sum of rows":
        make = EXACT.get(name) or CLOSE[name]
        check(context, make, "float32", 1e-6, [{"n": 0, "m": 2}, {"n": 4, "m": 2}, {"n": 0, "m": 3}, {"n": 5, "m": 1}])


def test_long_sums(context: ow.MLContext) -> None:
    """Software adapters leave loops after 65,535 iterations: the program of a short sum is not that of a long one."""
    for name in "reduce_sum of rows", "softmax of a name", "reduce_sum of columns", "reduce_mean":
        check(context, CLOSE[name], "float32", 1e-3, [{"n": 3, "m": 2}, {"n": 200_001, "m": 2}, {"n": 4, "m": 5}])
    check(context, lambda b, x, n, m: b.reduce_sum(x(3, n).abs(), axes=[1]), "int32", 0, [{"n": 3}, {"n": 3_000_000}])


@pytest.mark.long
def test_many_workgroups(context: ow.MLContext) -> None:
    """More workgroups than one dimension of a dispatch has."""
    check(context, lambda b, x, n, m: b.softmax(x(n, 2), 1), "float32", 1e-6, [{"n": 3}, {"n": 70_000}])
    check(context, lambda b, x, n, m: x(n, 256).neg(), "int8", 0, [{"n": 3}, {"n": 300_000}])


def test_intermediates_are_those_of_the_sizes(context: ow.MLContext) -> None:
    def make(b: ow.MLGraphBuilder, x: Any, n: Any, m: Any) -> Any:
        return b.transpose(b.softmax(b.softmax(x(n, 8), 1) + 1, 0)) * 2

    graph = build(context, make, "float32")
    peaks = []
    for n in 5, 50, 10:
        context.compute(graph, arrays_for(graph, {"n": n}))
        peaks.append(program_of(graph).plan.peak)
    assert peaks[0] > 0
    assert peaks[1:] == [10 * peaks[0], 2 * peaks[0]]


def test_tensors_and_several_versions(context: ow.MLContext) -> None:
    """Bindings of several sizes are used alternately."""
    make = EXACT["concat"]
    graph = build(context, make, "float32")
    bound = []
    for numbers in SIZES[:3]:
        static, arrays = build(context, make, "float32", numbers), arrays_for(graph, numbers)
        inputs = {name: context.create_tensor("float32", a.shape, writable=True) for name, a in arrays.items()}
        for name, array in arrays.items():
            context.write_tensor(inputs[name], array)
        output = context.create_tensor("float32", static.outputs["y0"].shape, readable=True)
        bound.append((inputs, output, context.compute(static, arrays)["y0"]))
    for _ in range(2):
        for inputs, output, expected in bound:
            context.dispatch(graph, inputs, {"y0": output})
            np.testing.assert_array_equal(context.read_tensor(output), expected)
