"""Graphs with names on WebGPU: one program for all sizes where each kernel takes names, else one for each."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest
from support.gpu_sizes import (
    ATTENTION,
    CLOSE,
    CONVOLUTIONS,
    DIVIDED_SUMS,
    EXACT,
    FLOATS_ONLY,
    INTEGER_PRODUCTS,
    PRODUCT_SIZES,
    PRODUCTS,
    RECURRENCES,
    SIZES,
    STAGED,
    arrays_for,
    build,
    check,
    check_with_reference,
    weights,
)
from support.webgpu_device import gpu_context
from support.webgpu_kernels import engine_of, kernels_of

import opweave as ow
from opweave import composites as c
from opweave.backends.gpu.contraction import tiled, tiles
from opweave.context import dynamic_graph_state
from opweave.context.graph import program_of, state_of
from opweave.core.size_values import values_at
from opweave.support.background import background

pytest.importorskip("wgpu", reason="wgpu is not installed")


ALL = {**EXACT, **CLOSE, **PRODUCTS, **CONVOLUTIONS, **ATTENTION, **STAGED, **RECURRENCES}
LEVELS = "top_k of chunks"
"""A case whose number of kernels grows with its size."""
REFERENCE = ow.ml.create_context(device="reference", drafts=True)


@pytest.fixture(autouse=True)
def _no_variants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled in the background, so that tests count what new sizes need."""
    monkeypatch.setattr(dynamic_graph_state, "FAR", inf)


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


@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize("name", [*PRODUCTS, *CONVOLUTIONS, *ATTENTION, *STAGED, *RECURRENCES])
def test_products_are_those_of_the_reference(context: ow.MLContext, name: str, data_type: Any) -> None:
    check_with_reference(context, ALL[name], data_type, 1e-4 if data_type == "float32" else 2e-2, PRODUCT_SIZES)


@pytest.mark.parametrize("data_type", ["int8", "uint8"])
@pytest.mark.parametrize("name", INTEGER_PRODUCTS)
def test_integer_products_are_those_of_the_reference(context: ow.MLContext, name: str, data_type: Any) -> None:
    check_with_reference(context, INTEGER_PRODUCTS[name], data_type, 0, PRODUCT_SIZES)


@pytest.mark.parametrize("rows", [["n", "m"], [1, "m"], ["n", 1]])
def test_rows_that_gemm_adds_have_names_of_their_own(context: ow.MLContext, rows: list[Any]) -> None:
    def make(b: ow.MLGraphBuilder, x: Any, n: Any, m: Any) -> Any:
        of_product, added = ({"n": n, "m": m}.get(size, size) for size in rows)
        y = b.gemm(x(of_product, 40), weights(b, x(1, 1), 40, 6), c=x(added, 6), beta=2.0)
        return b.softmax(y, 1), b.add(y, x(n, 1) + x(m, 1))

    sizes = [{"n": n, "m": m} for n, m in ((1, 1), (5, 5), (4, 1)) if rows[0] == "n" or n == m == 1]
    check_with_reference(context, make, "float32", 1e-4, sizes)


@pytest.mark.parametrize("name", DIVIDED_SUMS)
def test_sums_with_names_are_divided(
    context: ow.MLContext, compiled: list[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(tiles, "choose", lambda *_: (tiled.Tile(32, 32, 8, 4, 4), 3))
    make, sizes = DIVIDED_SUMS[name]
    check_with_reference(context, make, "float32", 1e-4, sizes)
    assert len(compiled) == 2


@pytest.mark.parametrize("name", [name for name in ALL if name != LEVELS])
def test_new_sizes_compile_nothing(context: ow.MLContext, compiled: list[str], name: str) -> None:
    make = ALL[name]
    graph = build(context, make, "float32")
    counts = []
    for numbers in ({"n": 6, "m": 3}, {"n": 40, "m": 12}, {"n": 300, "m": 70}, {"n": 7, "m": 1000}):
        context.compute(graph, arrays_for(graph, numbers))
        counts.append(len(compiled))
    assert counts[0] > 0
    assert counts[1:] == counts[:1] * 3, (name, counts, compiled)


def _recurrent(builder: ow.MLGraphBuilder, x: Any) -> Any:
    """A network that needs the number of its features."""
    weight = builder.input("weight", "float32", [1, 9, "features"])
    recurrent_weight = builder.constant(np.ones((1, 9, 3), "float32"))
    return builder.gru(x, weight, recurrent_weight, 5, 3, label="network")[0]


def test_explain_names_what_needs_numbers(context: ow.MLContext, compiled: list[str]) -> None:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [5, 2, "features"])
    graph = builder.build({"y": builder.relu(_recurrent(builder, x))})
    assert "compiled when it first runs, for many sizes of features" in graph.explain()
    for features in 3, 4:
        arrays = {
            name: np.ones(values_at(desc.shape, {"features": features}), "float32")
            for name, desc in graph.inputs.items()
        }
        assert context.compute(graph, arrays)["y"].shape == (1, 2, 3)
    assert "compiled for each size of features: gru 'network' has kernels for numbers only" in graph.explain()


def test_other_names_stay_open(context: ow.MLContext, compiled: list[str]) -> None:
    """A network needs the number of one name; the other name has one program."""
    builder = ow.MLGraphBuilder(context)
    x, w = builder.input("x", "float32", ["rows", 8]), builder.input("w", "float32", [5, 2, "features"])
    graph = builder.build({"y": _recurrent(builder, w), "z": builder.softmax(x, 1)})
    counts = []
    for rows, features in (3, 5), (30, 5), (300, 5), (3, 6):
        shapes = {"x": (rows, 8), "w": (5, 2, features), "weight": (1, 9, features)}
        context.compute(graph, {name: np.ones(shape, "float32") for name, shape in shapes.items()})
        counts.append(len(compiled))
    assert counts[0] == counts[1] == counts[2] < counts[3]


def _compilations(context: ow.MLContext, compiled: list[str], make: Any, sizes: list[dict[str, int]]) -> list[int]:
    """Run a graph for some sizes, compare it with the reference, and return the compiled kernels after each run."""
    graph, counts = build(context, make, "float32"), []
    for numbers in sizes:
        arrays = arrays_for(graph, numbers)
        static = build(REFERENCE, make, "float32", numbers)
        expected = REFERENCE.compute(static, {name: arrays[name] for name in static.inputs})
        for name, array in context.compute(graph, arrays).items():
            np.testing.assert_allclose(array, expected[name], 1e-3, 1e-3, strict=True)
        counts.append(len(compiled))
    return counts


def test_perceptron_compiles_once(context: ow.MLContext, compiled: list[str]) -> None:
    """Three layers with biases, relu and softmax, with a named batch: one kernel for each layer, and one for softmax."""

    def make(b: ow.MLGraphBuilder, x: Any, n: Any, m: Any) -> Any:
        y = (b.matmul(x(n, 20), weights(b, x, 20, 64)) + weights(b, x, 64)).relu()
        y = b.gemm(y, weights(b, x, 48, 64), c=weights(b, x, 48), b_transpose=True).relu()
        return b.softmax(b.matmul(y, weights(b, x, 48, 10)) + weights(b, x, 10), 1)

    counts = _compilations(context, compiled, make, [{"n": n} for n in (4, 2, 7, 64, 131)])
    assert counts == [4] * 5, compiled


def test_single_rows_have_kernels_of_their_own(context: ow.MLContext, compiled: list[str]) -> None:
    make = lambda b, x, n, m: b.matmul(x(n, 64), weights(b, x, 64, 32)).relu()  # noqa: E731
    counts = _compilations(context, compiled, make, [{"n": n} for n in (4, 1, 9, 1, 40)])
    assert counts == [1, 2, 2, 2, 2], compiled
    graph = build(context, lambda b, x, n, m: b.matmul(x(n, 64), x(64, 32), label="projection"), "float32")
    context.compute(graph, arrays_for(graph, {"n": 1}))
    assert (
        "compiled for some sizes of n alone: matmul 'projection' has other kernels for these numbers" in graph.explain()
    )


def test_convolutions_compile_once(context: ow.MLContext, compiled: list[str]) -> None:
    """A small network with names for the batch and the height and width of images."""

    def make(b: ow.MLGraphBuilder, x: Any, n: Any, m: Any) -> Any:
        y = b.conv2d(x(n, 3, m, m), weights(b, x, 8, 3, 3, 3), padding=[1, 1, 1, 1], bias=weights(b, x, 8)).relu()
        y = b.conv2d(y, weights(b, x, 8, 1, 3, 3), padding=[1, 1, 1, 1], strides=[2, 2], groups=8).relu()
        y = b.conv2d(y, weights(b, x, 16, 8, 1, 1), bias=weights(b, x, 16)).relu()
        return b.softmax(b.matmul(b.reduce_mean(y, axes=[2, 3]), weights(b, x, 16, 10)), 1)

    counts = _compilations(context, compiled, make, [{"n": n, "m": m} for n, m in ((2, 8), (3, 9), (5, 17), (2, 30))])
    assert counts == counts[:1] * 4, compiled


def test_encoder_compiles_once(context: ow.MLContext, compiled: list[str]) -> None:
    """A block of a transformer, with names for the batch and the length."""

    def make(b: ow.MLGraphBuilder, x: Any, n: Any, m: Any) -> Any:
        tokens, heads, size = x(n, m, 32), 4, 8

        def of_heads(y: Any, axes: list[int]) -> Any:
            return b.transpose(b.reshape(y, [n, m, heads, size]), permutation=axes)

        q, k, v = (b.matmul(tokens, weights(b, x, 32, 32)) + weights(b, x, 32) for _ in range(3))
        scores = b.matmul(of_heads(q, [0, 2, 1, 3]), of_heads(k, [0, 2, 3, 1])) * size**-0.5
        mixed = b.matmul(b.softmax(scores, 3), of_heads(v, [0, 2, 1, 3]))
        joined = b.reshape(b.transpose(mixed, permutation=[0, 2, 1, 3]), [n, m, 32])
        y = b.layer_normalization(b.matmul(joined, weights(b, x, 32, 32)) + tokens, axes=[2])
        z = b.gelu(b.matmul(y, weights(b, x, 32, 64)) + weights(b, x, 64))
        return b.layer_normalization(b.matmul(z, weights(b, x, 64, 32)) + y, axes=[2])

    counts = _compilations(context, compiled, make, [{"n": n, "m": m} for n, m in ((2, 5), (3, 7), (2, 64), (9, 33))])
    assert counts == counts[:1] * 4, compiled


def _decode(b: ow.MLGraphBuilder, x: Any, n: Any, m: Any) -> Any:
    """Two blocks of a decoder that appends n tokens to caches of m tokens, which are outputs, too."""
    tokens, heads, size, caches = x(1, n, 32), 4, 8, list[Any]()

    def of_heads(y: Any) -> Any:
        return b.transpose(b.reshape(y, [1, n, heads, size]), permutation=[0, 2, 1, 3])

    for _ in range(2):
        q, *fresh = (of_heads(b.matmul(tokens, weights(b, x, 32, 32))) for _ in range(3))
        k, v = (b.concat([x(1, heads, m, size), part], 2) for part in fresh)
        scores = b.matmul(q, b.transpose(k, permutation=[0, 1, 3, 2])) * size**-0.5
        causal = b.triangular(b.expand(x(1, 1), [n, m + n]), upper=False, diagonal=m)
        mixed = b.transpose(b.matmul(b.softmax(scores + causal, 3), v), permutation=[0, 2, 1, 3])
        y = b.layer_normalization(b.matmul(b.reshape(mixed, [1, n, 32]), weights(b, x, 32, 32)) + tokens, axes=[2])
        z = b.matmul(b.gelu(b.matmul(y, weights(b, x, 32, 64))), weights(b, x, 64, 32))
        tokens = b.layer_normalization(z + y, axes=[2])
        caches += [k, v]
    return (tokens, *caches)


def test_decoder_with_growing_cache_compiles_twice(context: ow.MLContext, compiled: list[str]) -> None:
    """Once for prompts of all lengths, and once for single tokens, whatever is in the cache."""
    sizes = [{"n": n, "m": m} for n, m in ((6, 2), (1, 8), (1, 9), (4, 10), (1, 14), (1, 63), (70, 64), (1, 134))]
    counts = _compilations(context, compiled, _decode, sizes)
    assert counts == [counts[0], *[counts[1]] * 7], compiled


def test_images_are_resampled_by_one_program(context: ow.MLContext, compiled: list[str]) -> None:
    """A detector: the features of an image are enlarged twice, and joined with those before."""

    def make(b: ow.MLGraphBuilder, x: Any, n: Any, m: Any) -> Any:
        y = b.conv2d(x(1, 3, n, m), weights(b, x, 8, 3, 3, 3), padding=[1, 1, 1, 1], strides=[2, 2]).relu()
        z = b.max_pool2d(b.conv2d(y, weights(b, x, 8, 8, 3, 3), padding=[1, 1, 1, 1]), window_dimensions=[2, 2])
        z = b.resample2d(z, sizes=[y.shape[2], y.shape[3]], mode="linear")
        scores = b.sigmoid(b.conv2d(b.concat([y, z], 1), weights(b, x, 2, 16, 1, 1)))
        return scores, b.resample2d(scores, scales=[2, 2])

    sizes = [{"n": n, "m": m} for n, m in ((16, 16), (24, 40), (17, 33), (64, 9))]
    counts = _compilations(context, compiled, make, sizes)
    assert counts == counts[:1] * 4, compiled


def test_windows_of_odd_and_even_sizes_have_one_program(context: ow.MLContext) -> None:
    """Whether windows end beyond an image is asked in kernels."""
    for pool in "average_pool2d", "max_pool2d", "l2_pool2d":
        options = {"window_dimensions": [2, 3], "strides": [2, 2], "output_shape_rounding": "ceil"}
        make = lambda b, x, n, m, pool=pool, options=options: getattr(b, pool)(x(1, 2, n, m), **options)  # noqa: E731
        graph = check_with_reference(context, make, "float32", 1e-5, [{"n": n, "m": m} for n, m in ((4, 7), (5, 8))])
        assert len(state_of(graph)._open) == 1  # type: ignore[attr-defined]


def test_slices_without_elements(context: ow.MLContext) -> None:
    """Formulas of sizes may be 0."""
    for make in (
        lambda b, x, n, m: b.matmul(b.slice(x(n, 40), [1, 0], [n - 1, 40]), x(40, 3)),
        lambda b, x, n, m: b.matmul(x(4, n - 1 + 1) * 2, x(n, 3)) + b.matmul(x(4, 8), x(8, 3)) / n,
        lambda b, x, n, m: b.matmul(b.slice(x(4, n), [0, 1], [4, n - 1]), b.slice(x(n, 5), [1, 0], [n - 1, 5])) + 1,
    ):
        check(context, make, "float32", 1e-4, [{"n": n, "m": 1} for n in (5, 1, 2, 64)])


def test_many_tiles(context: ow.MLContext) -> None:
    """More stacks than a dimension of a dispatch has workgroups."""
    make = lambda b, x, n, m: b.matmul(x(n, 2, 3), x(n, 3, 2))  # noqa: E731
    check(context, make, "float32", 1e-5, [{"n": 3}, {"n": 70_001}, {"n": 5}])


def test_long_sums_of_products(context: ow.MLContext) -> None:
    """Software adapters leave long loops: long sums are divided, for their number."""
    make = lambda b, x, n, m: b.matmul(x(2, n), x(n, 3))  # noqa: E731
    check(context, make, "float32", 2e-2, [{"n": 3}, {"n": 700_001}, {"n": 50}])


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


def test_constants_beside_names(context: ow.MLContext) -> None:
    """Constants give some sizes numbers, while kernels have names for them."""

    def scan(b: ow.MLGraphBuilder, x: Any, n: Any, m: Any) -> Any:
        inputs = x(1, n, 1, 1)
        delta, rates, tokens = (b.constant(np.full(shape, 0.5, "float32")) for shape in [(1, 2, 1), (1,), (1, 2, 1, 2)])
        return b.add(*c.selective_scan(b, inputs, delta, b.neg(rates), tokens, tokens, None, x(1, 1, 1, n)))

    def attend(b: ow.MLGraphBuilder, x: Any, n: Any, m: Any) -> Any:
        query = x(n, m, 6)
        values, past = weights(b, query, 3, 1, 3), weights(b, query, 3, 1, 2, 3)
        return c.linear_attention(
            b, query, x(n, m, 2), values, past, x(n, m, 1), heads=n, groups=1, update_rule="gated"
        )[0]

    def correct(b: ow.MLGraphBuilder, x: Any, n: Any, m: Any) -> Any:
        key = x(1, n, m) * 0.1
        query, rates = weights(b, key, 1, 200, 4), b.constant(np.full((1, 200, 1), 0.5, "float32"))
        return c.linear_attention(b, query, key, x(1, n, 4), None, None, rates, heads=1, groups=1, update_rule="delta")[
            0
        ]

    check_with_reference(context, scan, "float32", 1e-5, [{"n": 2}])
    check_with_reference(context, attend, "float32", 1e-5, [{"n": 3, "m": 1}])
    check_with_reference(context, correct, "float32", 1e-5, [{"n": 200, "m": 4}])


@pytest.mark.parametrize("name", ["leaky_integrator", "selective_scan of tokens"])
def test_named_steps_run_in_chunks(context: ow.MLContext, name: str) -> None:
    """A few steps have a program without chunks."""
    sizes = [{"n": n, "m": 2} for n in (300, 167, 299, 301, 1000)]
    graph = check_with_reference(context, RECURRENCES[name], "float32", 1e-3, sizes)
    many = len(kernels_of(graph))
    assert len(state_of(graph)._open) == 1  # type: ignore[attr-defined]
    graph = check_with_reference(context, RECURRENCES[name], "float32", 1e-3, [*sizes, {"n": 5, "m": 2}])
    assert len(kernels_of(graph)) == many - 2


def test_steps_longer_than_a_loop(context: ow.MLContext) -> None:
    """Software adapters leave loops after 65,535 iterations: many steps take several kernels, for their number."""
    make = RECURRENCES["products in steps"]
    check_with_reference(context, make, "float32", 1e-3, [{"n": 9, "m": 2}, {"n": 20_001, "m": 2}, {"n": 8, "m": 2}])


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


def _arenas(graph: ow.MLGraph) -> Any:
    (step,) = program_of(graph).steps
    assert step.part is not None
    return step.part.runner.arenas  # type: ignore[attr-defined]


def test_sizes_share_memory(context: ow.MLContext) -> None:
    """Intermediates of all sizes are in one set of buffers, which grow by what is needed and a little more."""
    make = lambda b, x, n, m: b.softmax(b.transpose(b.softmax(b.softmax(x(n, 8), 1) + 1, 0)), 1)  # noqa: E731
    graph = build(context, make, "float32")
    peaks = []
    for n in 40, 10, 80, 81, 40, 3:
        check_run(context, graph, make, {"n": n, "m": 1})
        (arena,) = _arenas(graph).idle
        assert all(size >= needed for size, needed in zip(arena.sizes, _arenas(graph).in_use, strict=True))
        peaks.append(sum(arena.sizes))
    assert peaks[1] == peaks[0] == sum(_arenas(graph).in_use) // 81 * 40
    assert 2 * peaks[0] <= peaks[2] <= 2.25 * peaks[0]
    assert peaks[2:] == peaks[2:3] * 4


def test_memory_shrinks_with_the_sizes_in_use(context: ow.MLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opweave.context.dynamic_graph_state.MAX_VERSIONS", 3)
    make = lambda b, x, n, m: b.transpose(b.softmax(x(n, 8), 1))  # noqa: E731
    make_two = lambda b, x, n, m: b.softmax(make(b, x, n, m), 1) + make(b, x, n, m)  # noqa: E731
    graph = build(context, make_two, "float32")
    peaks = []
    for n in 4, 5000, 5, 6, 7, 4, 8:
        check_run(context, graph, make_two, {"n": n, "m": 1})
        (arena,) = _arenas(graph).idle
        peaks.append(sum(arena.sizes))
    assert max(peaks[:3]) >= 1000 * peaks[0]
    assert peaks[-1] < 3 * peaks[0]


def check_run(context: ow.MLContext, graph: ow.MLGraph, make: Any, numbers: dict[str, int]) -> None:
    """Compare a run of a graph with the reference."""
    static, arrays = build(REFERENCE, make, "float32", numbers), arrays_for(graph, numbers)
    expected = REFERENCE.compute(static, arrays)
    for name, array in context.compute(graph, arrays).items():
        np.testing.assert_allclose(array, expected[name], 1e-5, 1e-5, strict=True)


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


def test_variants_are_used_once_they_are_ready(context: ow.MLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes far from the first get kernels in the background; results stay those of the reference, in all tensors."""
    monkeypatch.setattr(dynamic_graph_state, "FAR", 4)
    make = lambda b, x, n, m: b.softmax(b.matmul(x(n, 40), weights(b, x, 40, 30)).relu(), 0)  # noqa: E731
    graph = build(context, make, "float32")
    state, variants = state_of(graph), []
    for n in (20, 50, 2000, 2000, 20, 1500, 5):
        arrays = arrays_for(graph, {"n": n})
        x = context.create_tensor("float32", [n, 40], writable=True)
        y = context.create_tensor("float32", [n, 30], readable=True)
        context.write_tensor(x, arrays["x0"])
        expected = REFERENCE.compute(build(REFERENCE, make, "float32", {"n": n}), arrays)["y0"]
        for _ in range(2):
            context.dispatch(graph, {"x0": x}, {"y0": y})
            np.testing.assert_allclose(context.read_tensor(y), expected, 1e-4, 1e-6)
            background.wait()
        variants.append(state.tailored)  # type: ignore[attr-defined]
    assert variants == [0, 0, 1, 1, 1, 1, 1]
    graph.destroy()
