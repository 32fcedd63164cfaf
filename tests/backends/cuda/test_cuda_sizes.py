"""Graphs with names on CUDA, on the processor: sizes are arguments of kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

import numpy as np
import pytest
from row_sample import examples
from support.cuda_driver import CpuDriver, context_on
from support.gpu_sizes import (
    ATTENTION,
    CLOSE,
    CONVOLUTIONS,
    DIVIDED_SUMS,
    EXACT,
    INTEGER_PRODUCTS,
    PRODUCT_SIZES,
    PRODUCTS,
    RECURRENCES,
    SIZES,
    STAGED,
    Build,
    arrays_for,
    build,
    check,
    check_with_reference,
    weights,
)
from support.webgpu_kernels import kernels_of
from triton_cases import SMALL

import opweave as ow
from opweave import composites
from opweave.backends.cuda import compiler
from opweave.backends.cuda.executable import MAX_CHAINS, MAX_FORMS
from opweave.backends.gpu.contraction import sharing, tensor_tiles
from opweave.backends.gpu.rules import flash_tensor
from opweave.context import dynamic_graph_state
from opweave.context.graph import state_of
from opweave.support.background import background

PARTS = {**PRODUCTS, **CONVOLUTIONS, **ATTENTION, **STAGED, **RECURRENCES}


@pytest.fixture(autouse=True)
def _no_variants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled in the background, so that tests count what new sizes need."""
    monkeypatch.setattr(dynamic_graph_state, "FAR", inf)


@pytest.fixture
def context(driver: CpuDriver) -> ow.MLContext:
    made = context_on(driver)
    made._state.drafts = True
    return made


def sizes() -> Sequence[Mapping[str, int]]:
    """The sizes to compare: the static graph of each is compiled as C++."""
    return SIZES[: examples(len(SIZES), in_sample=2)]


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("name", EXACT)
def test_results_equal_those_of_static_graphs(context: ow.MLContext, name: str) -> None:
    check(context, EXACT[name], "float32", 0, sizes())


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("name", CLOSE)
def test_sums_are_close_to_those_of_static_graphs(context: ow.MLContext, name: str) -> None:
    check(context, CLOSE[name], "float16", 4e-3, sizes())
    check(context, CLOSE[name], "float32", 1e-5, sizes())


@pytest.mark.parametrize("name", PARTS)
def test_products_are_those_of_the_reference(context: ow.MLContext, name: str) -> None:
    check_with_reference(context, PARTS[name], "float32", 1e-4, PRODUCT_SIZES[:3])


@pytest.mark.parametrize("name", INTEGER_PRODUCTS)
def test_integer_products_are_those_of_the_reference(context: ow.MLContext, name: str) -> None:
    check_with_reference(context, INTEGER_PRODUCTS[name], "int8", 0, PRODUCT_SIZES[:3])


@pytest.mark.parametrize("name", DIVIDED_SUMS)
def test_sums_with_names_are_divided(context: ow.MLContext, name: str) -> None:
    make, sizes = DIVIDED_SUMS[name]
    graph = check_with_reference(context, make, "float32", 1e-4, sizes)
    assert len(kernels_of(graph)) == 2


def test_tables_of_sizes_are_computed_once(context: ow.MLContext) -> None:
    """A kernel would compute them in each run."""

    def make(b: ow.MLGraphBuilder, x: Any, n: Any, m: Any) -> Any:
        ramp = b.cumulative_sum(b.expand(weights(b, x, 1, 8), [n, 8]), axis=1)
        return b.matmul(x(4, n), b.expand(weights(b, x, 1, 8), [n, 8]) / n), b.matmul(x(4, n), ramp)

    graph = check_with_reference(context, make, "float32", 1e-4, [{"n": 6}, {"n": 33}])
    titles = [kernel.title.split(" ")[0] for kernel in kernels_of(graph)]
    assert titles == ["expand", "matmul", "matmul"], "sums of a table stay on the device"


def test_cuda_graphs_are_updated_for_new_sizes(context: ow.MLContext, driver: CpuDriver) -> None:
    """A graph keeps few CUDA graphs. Sizes that recur are launched as they are."""
    make = lambda b, x, n, m: b.softmax(b.transpose(b.softmax(x(n, 8), 1)), 1)  # noqa: E731
    graph = build(context, make, "float32")
    counts = []
    for n in (40, 41, 42, 43, 44, 45, 40, 45):
        arrays = arrays_for(graph, {"n": n})
        x = context.create_tensor("float32", [n, 8], writable=True)
        y = context.create_tensor("float32", [8, n], readable=True)
        context.write_tensor(x, arrays["x0"])
        context.dispatch(graph, {"x0": x}, {"y0": y})
        exponential = np.exp(arrays["x0"])
        columns = np.exp((exponential / exponential.sum(1, keepdims=True)).T)
        np.testing.assert_allclose(context.read_tensor(y), columns / columns.sum(1, keepdims=True), 1e-5)
        counts.append(driver.calls["graph"])
        before = driver.calls["update"]
        context.dispatch(graph, {"x0": x}, {"y0": y})
        assert driver.calls["update"] == before
    assert counts == [1, 2, 3, MAX_CHAINS, *[MAX_CHAINS] * 4] == [1, 2, 3, *[4] * 5]
    assert driver.calls["functions"] == 1
    assert driver.calls["allocate"] == 2 * 8 + 2 * 2  # two tensors for each run, and two buffers that grow once


def test_sizes_share_memory_of_inputs_and_outputs(context: ow.MLContext, driver: CpuDriver) -> None:
    graph, counts = build(context, lambda b, x, n, m: x(n, 8).neg(), "float32"), []
    for n in (40, 10, 41, 42, 40, 10):
        arrays = arrays_for(graph, {"n": n})
        np.testing.assert_array_equal(context.compute(graph, arrays)["y0"], -arrays["x0"])
        counts.append(driver.calls["allocate"])
    assert counts == [2, 2, 4, 4, 4, 4]


def test_pixels_of_aligned_images_are_vectors(context: ow.MLContext) -> None:
    """Images with a size that is a multiple of 32 have a program, if they come first; others have a program for all sizes."""

    def make(b: ow.MLGraphBuilder, x: Any, n: Any, m: Any) -> Any:
        halves = b.conv2d(x(1, 8, n, m), weights(b, x, 16, 8, 3, 3), padding=[1, 1, 1, 1], strides=[2, 2]).relu()
        return b.conv2d(halves, weights(b, x, 12, 16, 1, 1))

    aligned, others = [(32, 64), (64, 32), (33, 31), (64, 64)], [(33, 31), (64, 64)]
    for pairs, programs in ((aligned, 2), (others, 1), ([(48, 64), (33, 31)], 2), ([(64, 48), (33, 32)], 2)):
        sizes = [{"n": n, "m": m} for n, m in pairs]
        graph = check_with_reference(context, make, "float32", 1e-4, sizes)
        assert len(state_of(graph)._open) == programs  # type: ignore[attr-defined]
        stores = "\n".join(kernel.source for kernel in kernels_of(graph)).count("result[at / 4u] = value;")
        assert stores == (2 if pairs[-1][1] % 32 == 0 and programs == 2 else 0)


def test_cuda_graphs_of_other_steps_are_dropped(context: ow.MLContext, driver: CpuDriver) -> None:
    """Each number of steps has a CUDA graph; those that were used least recently are released."""
    graph = build(context, STAGED["gru of many units and steps"], "float32")
    for n in (*range(1, MAX_FORMS + 3), MAX_FORMS + 2, 1):
        context.compute(graph, arrays_for(graph, {"n": n}))
    assert (driver.calls["graph"], driver.calls["release"]) == (MAX_FORMS + 3, 3)
    assert driver.calls["functions"] == 1


PACKED = np.random.default_rng(0).integers(0, 256, (40, 3, 8)).astype("uint8")

ON_TENSOR_CORES: dict[str, Build] = {
    "rows": lambda b, x, n, m: (b.matmul(x(n, 48), weights(b, x, 48, 40)) + x(40)).relu(),
    "rows and columns": lambda b, x, n, m: b.matmul(x(n, 40), x(40, m)),
    "stacks": lambda b, x, n, m: b.matmul(x(n, 20, 40), x(n, 40, 17)),
    "stacks that broadcast": lambda b, x, n, m: b.matmul(x(2, 1, n, 16), x(3, 16, 20)),
    "one right matrix": lambda b, x, n, m: b.matmul(x(2, n, 48), weights(b, x, 48, 64)) + x(2, n, 64),
    "a gemm": lambda b, x, n, m: b.gemm(x(n, 48), x(64, 48), c=x(n, 1), b_transpose=True),
    "a transposed gemm": lambda b, x, n, m: b.gemm(x(48, n), x(48, m), a_transpose=True).neg(),
    "a transpose": lambda b, x, n, m: b.matmul(x(m, 32), b.transpose(x(n, 32))),
    "a number": lambda b, x, n, m: b.matmul(x(n, 48), x(48, 64)) / n,
    "terms": lambda b, x, n, m: b.matmul(x(40, n), x(n, 48)),
    "all sizes": lambda b, x, n, m: b.matmul(x(n, m), x(m, n)) * 2,
    "terms of stacks": lambda b, x, n, m: b.matmul(x(m, 20, n), x(m, n, 32)),
    "terms of a transpose": lambda b, x, n, m: b.gemm(x(n, 48), x(64, n), c=x(64), a_transpose=True, b_transpose=True),
    "a packed weight": lambda b, x, n, m: composites.matmul_n_bits(
        x(2, n, 48), b.constant(PACKED), weights(b, x, 40, 3), block_size=16
    ),
    "images": lambda b, x, n, m: b.conv2d(
        x(2, 16, n, 9), weights(b, x, 32, 16, 3, 3), padding=[1, 1, 1, 1], bias=x(32)
    ),
    "images in nhwc": lambda b, x, n, m: b.conv2d(
        x(3, n, 9, 16), x(32, 3, 3, 16), strides=[2, 2], input_layout="nhwc", filter_layout="ohwi"
    ).relu(),
}


def test_sequences_of_as_many_kernels_have_own_cuda_graphs(context: ow.MLContext, driver: CpuDriver) -> None:
    """Updates keep the edges of a CUDA graph, which depend on the kernels."""

    def networks(b: ow.MLGraphBuilder, x: Any, n: Any, m: Any) -> Any:
        make = STAGED["gru of many units and steps"]
        return *make(b, x, n, m), *make(b, x, m, n)

    graph = build(context, networks, "float32")
    sizes = [{"n": n, "m": MAX_CHAINS + 2 - n} for n in range(1, MAX_CHAINS + 2)]
    for each in sizes:
        context.compute(graph, arrays_for(graph, each))
    assert driver.calls["graph"] == len(sizes) > MAX_CHAINS


@pytest.mark.skipif(not compiler.triton_version(), reason="needs the extra cuda: make test-cuda")
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize("name", ON_TENSOR_CORES)
def test_tensor_cores_take_sizes(
    context: ow.MLContext, driver: CpuDriver, monkeypatch: pytest.MonkeyPatch, name: str, data_type: Any
) -> None:
    """One program runs all sizes, on tensor cores."""
    monkeypatch.setattr(tensor_tiles, "rank_tiles", lambda *_: iter([(SMALL, 1)]))
    tolerance = 1e-4 if data_type == "float32" else 2e-2
    sizes = [{"n": n, "m": m} for n, m in ((17, 20), (33, 16))]
    graph = check_with_reference(context, ON_TENSOR_CORES[name], data_type, tolerance, sizes)
    assert "triton" in [kernel.compiler for kernel in kernels_of(graph)]
    assert driver.calls["functions"] == 1


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize(("sizes", "copies"), [((40, 14, 1), 2), ((14, 40, 1), 1), ((1, 14, 40), 1), ((1, 40, 14), 1)])
def test_programs_share_weights(
    context: ow.MLContext, monkeypatch: pytest.MonkeyPatch, sizes: Sequence[int], copies: int, data_type: Any
) -> None:
    """GEMV kernels, tiles and tensor cores read the order of the first program: TF32 and remainders, or whole elements."""
    monkeypatch.setattr(sharing, "MAX_LOSS", inf)
    monkeypatch.setattr(dynamic_graph_state, "FAR", 2)
    graph = build(context, lambda b, x, n, m: b.matmul(x(n, 48), weights(b, x, 48, 40)), data_type)
    weight = np.random.default_rng(1).standard_normal((48, 40)).astype(data_type).astype("float32")
    for n in (*sizes, *sizes):
        (x,) = arrays_for(graph, {"n": n}).values()
        for _ in range(2):  # before and after a program for this size is compiled in the background
            close = 1e-5 if data_type == "float32" else 2e-2
            np.testing.assert_allclose(context.compute(graph, {"x0": x})["y0"], x @ weight, close, close)
            background.wait()
    has_tensor_cores = bool(compiler.triton_version())
    uploaded = context.backend.space.uploaded  # type: ignore[attr-defined]
    assert len(uploaded) == (copies if data_type == "float32" and has_tensor_cores else 1)
    assert state_of(graph).tailored == has_tensor_cores  # type: ignore[attr-defined]


@pytest.mark.skipif(not compiler.triton_version(), reason="needs the extra cuda: make test-cuda")
@pytest.mark.usefixtures("small_tiles")
def test_channels_of_windows_need_numbers_on_tensor_cores(context: ow.MLContext) -> None:
    make = lambda b, x, n, m: b.conv2d(x(1, n, 9, 9), x(32, n, 3, 3), label="features")  # noqa: E731
    graph = check_with_reference(context, make, "float32", 1e-4, [{"n": 17}, {"n": 40}])
    assert "compiled for each size of n: conv2d 'features' has kernels for numbers only" in graph.explain()


ATTENTION_ON_TENSOR_CORES = [
    "attention of queries and keys",
    "causal attention",
    "attention of groups",
    "multi_head_attention",
    "group_query_attention",
    "group_query_attention with room",
]


@pytest.mark.skipif(not compiler.triton_version(), reason="needs the extra cuda: make test-cuda")
@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize("name", ATTENTION_ON_TENSOR_CORES)
def test_attention_on_tensor_cores_takes_sizes(
    context: ow.MLContext, monkeypatch: pytest.MonkeyPatch, name: str, data_type: Any
) -> None:
    monkeypatch.setattr(flash_tensor, "MIN_PRODUCTS", 1)
    tolerance = 1e-4 if data_type == "float32" else 2e-2
    sizes = [{"n": n, "m": m} for n, m in ((17, 20), (33, 64), (70, 16))]
    graph = check_with_reference(context, ATTENTION[name], data_type, tolerance, sizes)
    assert "triton" in [kernel.compiler for kernel in kernels_of(graph)]
    assert len(state_of(graph)._open) == 1  # type: ignore[attr-defined]


CONSTANT_TERMS: dict[str, Callable[[ow.MLGraphBuilder, Any, Any], Any]] = {
    "quantized_matmul": lambda b, x, w: composites.quantized_matmul(
        b, x("int8", "n", "k"), *_scaled(b), w("int8", 5, 3), *_scaled(b), *_scaled(b)
    ),
    "integer_matmul": lambda b, x, w: composites.integer_matmul(b, x("int8", "n", "k"), w("int8", 5, 3)),
    "integer_matmul from the right": lambda b, x, w: composites.integer_matmul(b, w("int8", 3, 5), x("int8", "k", "n")),
    "matmul": lambda b, x, w: b.matmul(x("float32", "n", "k"), w("float32", 5, 3)),
    "gemm": lambda b, x, w: b.gemm(x("float32", "k", "n"), w("float32", 3, 5), a_transpose=True, b_transpose=True),
    "conv2d": lambda b, x, w: b.conv2d(x("float32", 1, "k", "n", 4), w("float32", 3, 5, 1, 2)),
    "quantized_conv2d": lambda b, x, w: composites.quantized_conv2d(
        b, x("uint8", 1, "k", "n", 4), *_scaled(b, "uint8"), w("int8", 3, 5, 1, 2), *_scaled(b), *_scaled(b, "uint8")
    ),
    "integer_conv2d": lambda b, x, w: composites.integer_conv2d(b, x("int8", 1, "k", "n", 4), w("int8", 4, 5, 1, 2)),
    "conv_transpose2d": lambda b, x, w: b.conv_transpose2d(x("float32", 1, "k", "n", 4), w("float32", 5, 3, 1, 2)),
}
"""Products with a constant, which has a number of terms where the other operand has a name."""


def _scaled(builder: ow.MLGraphBuilder, data_type: Any = "int8") -> tuple[Any, Any]:
    return builder.constant("float32", 0.5), builder.constant(data_type, 1)


@pytest.mark.parametrize("name", CONSTANT_TERMS)
def test_constants_have_numbers_where_the_other_operand_has_names(context: ow.MLContext, name: str) -> None:
    def build_on(context: ow.MLContext, **sizes: int) -> ow.MLGraph:
        builder, rng = ow.MLGraphBuilder(context), np.random.default_rng(0)

        def input(data_type: Any, *shape: Any) -> Any:
            return builder.input("x", data_type, [sizes.get(n, n) for n in shape])

        def constant(data_type: Any, *shape: int) -> Any:
            return builder.constant(rng.integers(-3, 4, shape).astype(data_type))

        return builder.build({"y": CONSTANT_TERMS[name](builder, input, constant)})

    graph, reference = build_on(context), ow.ml.create_context(device="reference")
    for n in (7, 1, 20):
        arrays = arrays_for(graph, {"n": n, "k": 5})
        expected = reference.compute(build_on(reference, n=n, k=5), arrays)["y"]
        np.testing.assert_allclose(context.compute(graph, arrays)["y"], expected, 1e-5)
        with pytest.raises(ow.ValidationError):
            context.compute(graph, arrays_for(graph, {"n": n, "k": 4}))
