"""`matmul_n_bits` on WebGPU devices: all kernels read the packed weights, and nothing is expanded in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.packed_products import Form, kernels_of, product_of, random_form, random_k_form
from support.webgpu_device import gpu_context
from support.webgpu_kernels import kernel_count
from support.wgsl_runner import PACKED, Runner

import opweave as ow
from opweave import composites
from opweave.context.graph import program_of
from opweave.expr.gpu import Features

pytest.importorskip("wgpu", reason="wgpu is not installed")

Shape = tuple[int, ...]

FLOAT16 = Features(float16=True, max_buffers=16)


def check_packed_product(
    shape: Shape, columns: int, given: str = "", *, kernels: int = 1, data_type: Any = "float32", **options: Any
) -> None:
    """Compare a product with the reference's; `given` names its optional operands."""
    generator, bits, block_size = np.random.default_rng(0), options.get("bits", 4), options.get("block_size", 32)
    blocks = -(-shape[-1] // block_size)
    arrays: dict[str, np.ndarray] = {
        "weight": generator.integers(0, 256, (columns, blocks, block_size * bits // 8)).astype("uint8"),
        "scale": generator.random((columns, blocks)).astype(data_type) / 8,
        "zero_point": generator.integers(0, 256, (columns, -(-blocks * bits // 8))).astype("uint8"),
        "minimum": generator.standard_normal((columns, blocks)).astype(data_type),
        "bias": generator.standard_normal(columns).astype(data_type),
    }
    arrays = {name: arrays[name] for name in ["weight", "scale", *given.split()]}
    x = generator.standard_normal(shape).astype(data_type)
    for constant in (True, False):
        results = []
        for context in (gpu_context(), ow.ml.create_context(device="reference")):
            builder = ow.MLGraphBuilder(context)
            operands = {
                name: builder.constant(a) if constant else builder.input(name, a.dtype.name, a.shape)  # type: ignore[arg-type]
                for name, a in arrays.items()
            }
            y = composites.matmul_n_bits(builder.input("x", data_type, x.shape), **operands, **options)
            graph = builder.build({"y": y})
            results.append(context.compute(graph, {"x": x} if constant else {"x": x, **arrays})["y"])
            if len(results) == 1:
                assert kernel_count(graph) == kernels, graph.explain()
        found, expected = (result.astype("float64") for result in results)
        tolerance = 1e-2 if data_type == "float16" else 2e-5
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize("given", ["", "zero_point", "minimum bias"])
@pytest.mark.parametrize("bits", [4, 8])
def test_packed_weights_are_read_for_one_row(bits: int, given: str) -> None:
    check_packed_product((1, 256), 40, given, bits=bits)
    check_packed_product((1, 200), 37, given, bits=bits, block_size=16)


def test_rows_of_stacks() -> None:
    check_packed_product((2, 1, 3, 96), 9, "bias zero_point", data_type="float16")
    check_packed_product((8, 33), 3, "bias", block_size=64)


def test_packed_weights_are_read_for_more_rows() -> None:
    check_packed_product((9, 100), 20, "bias")
    check_packed_product((2, 7, 64), 20, "zero_point", bits=8, data_type="float16")
    check_packed_product((40, 96), 24, "minimum")


FORMS = (
    Form(1, 2048, 64),
    Form(1, 2048, 64, others="minimum"),
    Form(3, 512, 36, others="zero_point bias", block_terms=128, data_type="float16"),
    Form(1, 96, 33, bits=8, block_terms=1, block_lines=3, others="zero_point"),  # blocks along the columns
    Form(2, 60, 10, block_terms=20, others="zero_point"),
    Form(1, 37, 5, padding=2, block_terms=5),
    Form(1, 64, 24, block_terms=64, block_lines=24, others="zero_point"),  # one scale
    Form(70, 45, 37, bits=8, block_terms=8),
    Form(33, 64, 64, block_terms=1, block_lines=8, others="zero_point"),
    Form(1, 512, 40, upper_bits=2, block_terms=16, others="scale_unit", units=2),  # Q6_K
    Form(1, 512, 64, upper_bits=1, others="minimum scale_unit minimum_unit", units=2),  # Q5_K
    Form(2, 512, 33, bits=2, block_terms=16, others="minimum scale_unit minimum_unit", units=2),  # Q2_K
    Form(1, 256, 12, bits=2, upper_bits=1, block_terms=16, others="scale_unit"),  # Q3_K
    Form(20, 256, 24, bits=2, upper_bits=1, block_terms=16, others="scale_unit"),
    Form(1, 64, 24, bits=2, block_terms=8, others="zero_point"),  # words of two blocks
)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("features", [FLOAT16, PACKED], ids=["float16", "packed"])
@pytest.mark.parametrize("is_constant", [True, False], ids=["constant", "input"])
def test_forms(form: Form, features: Features, is_constant: bool) -> None:
    product = product_of(form)
    kernels = kernels_of(product, features, is_constant=is_constant)
    runner = Runner(features)
    for source, array in kernels.arrays(product).items():
        runner.fill(source, array)
    runner.run(kernels.kernels)
    product.check(runner.result(kernels.kernels[-1].bindings[-1]))


@pytest.mark.parametrize("seed", range(24))
def test_random_forms(seed: int) -> None:
    test_forms(random_form(np.random.default_rng(seed)), (FLOAT16, PACKED)[seed % 2], seed % 3 > 0)


@pytest.mark.parametrize("seed", range(24))
def test_random_forms_of_2_to_6_bits(seed: int) -> None:
    test_forms(random_k_form(np.random.default_rng(seed)), (FLOAT16, PACKED)[seed % 2], seed % 3 > 0)


# Graphs ---------------------------------------------------------------------------------------------------------------


def weights_of(columns: int, inner: int, bits: int = 4) -> dict[str, Any]:
    random = np.random.default_rng(columns)
    weight = random.integers(0, 256, (columns, inner // 32, 4 * bits)).astype("uint8")
    scale = (random.random((columns, inner // 32)) / 2**bits).astype("float32")
    return {"weight": weight, "scale": scale, "bits": bits}


def check_graph(build: Callable[..., Any], kernels: int, rows: int = 1) -> ow.MLGraph:
    """Compare a graph of an input [rows, 64] with the reference's."""
    x, results = np.random.default_rng(0).standard_normal((rows, 64)).astype("float32"), []
    for context in (ow.ml.create_context(device="reference"), gpu_context()):
        builder = ow.MLGraphBuilder(context)
        graph = builder.build(build(builder, builder.input("x", "float32", x.shape)))
        results.append(context.compute(graph, {"x": x}))
    for name, expected in results[0].items():
        largest = float(np.abs(expected).max())
        np.testing.assert_allclose(results[1][name], expected, rtol=1e-5, atol=1e-5 * largest, err_msg=name)
    assert kernel_count(graph) == kernels, graph.explain()
    return graph


@pytest.mark.parametrize("rows", [1, 4, 40])
def test_product_fuses_with_its_readers(rows: int) -> None:
    def build(b: Any, x: Any) -> dict[str, Any]:
        y = composites.matmul_n_bits(x, bias=np.float32(range(64)) / 64, **weights_of(64, 64))
        return {"y": b.tanh(y) + x}

    check_graph(build, 1, rows)


def test_products_share_an_epilogue() -> None:
    def build(b: Any, x: Any) -> dict[str, Any]:
        gate, up = (composites.matmul_n_bits(x, **weights_of(40, 64, bits)) for bits in (4, 4))
        return {"y": composites.swiglu(gate, up)}

    check_graph(build, 1)


@pytest.mark.parametrize("bits", [(4, 4), (4, 8)])
def test_products_of_the_same_vectors(bits: tuple[int, int]) -> None:
    def build(b: Any, x: Any) -> dict[str, Any]:
        first, second = bits
        return {
            "y": composites.matmul_n_bits(x, **weights_of(40, 64, first)),
            "z": b.relu(composites.matmul_n_bits(x, **weights_of(24, 64, second))),
        }

    check_graph(build, 1 if bits[0] == bits[1] else 2)


def test_product_computes_the_normalization_before_it() -> None:
    def build(b: Any, x: Any) -> dict[str, Any]:
        y = composites.rms_norm(x, np.float32(range(64)) / 64)
        return {"y": composites.matmul_n_bits(y, **weights_of(40, 64))}

    check_graph(build, 1)


@pytest.mark.parametrize("rows", [1, 40])
def test_weights_stay_packed_in_device_memory(rows: int) -> None:
    weights = weights_of(96, 64)
    graph = check_graph(lambda b, x: {"y": composites.matmul_n_bits(x, **weights)}, 1, rows)
    steps = [step for part in program_of(graph).steps if part.part for step in part.part.runner.steps]  # type: ignore[attr-defined]
    places = {place for step in steps for place in step.places}
    constants = sum(place.array.nbytes for place in places if place.kind == "constant")
    assert constants <= weights["weight"].nbytes + weights["scale"].nbytes
    assert not [place for place in places if place.kind == "between"]


# Narrow constants of a user's graph -----------------------------------------------------------------------------------


@pytest.mark.parametrize("data_type", ["uint4", "int4", "uint8", "int8"])
@pytest.mark.parametrize("part", [(6, 8), (3, 32), (24, 1), (1, 1)], ids=str)
@pytest.mark.parametrize("float_type", ["float32", "float16"])
def test_lookups_read_packed_rows(data_type: str, part: tuple[int, int], float_type: Any) -> None:
    """A table [24, 32] with blocks along either axis; negative indices count from the end, others are clamped."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    random, bits = np.random.default_rng(0), 4 if data_type.endswith("4") else 8
    low = -(2 ** (bits - 1)) if data_type.startswith("i") else 0
    dtype = getattr(ml_dtypes, data_type) if bits == 4 else np.dtype(data_type)
    numbers, zeros = (random.integers(low, low + 2**bits, shape).astype(dtype) for shape in ((24, 32), part))
    scale = (random.random(part) / 8 + 0.1).astype(float_type)
    indices, results = np.int32([[0, 23, 5], [-1, -24, 40]]), []
    for device in ("reference", gpu_context().device.name):
        context = ow.ml.create_context(device=device, drafts=True)
        builder = ow.MLGraphBuilder(context)
        table = builder.dequantize_linear(*(builder.constant(array) for array in (numbers, scale, zeros)))
        graph = builder.build({"y": builder.gather(table, builder.input("i", "int32", [2, 3]))})
        results.append(context.compute(graph, {"i": indices})["y"])
    np.testing.assert_allclose(results[1], results[0], rtol=1e-6 if float_type == "float32" else 1e-3)
    assert kernel_count(graph) == 1
    runners: list[Any] = [step.part.runner for step in program_of(graph).steps if step.part]
    places = {place for step in runners[0].steps for place in step.places if place.kind == "constant"}
    assert sum(place.desc.byte_length for place in places) <= 24 * 32 * bits // 8 + scale.nbytes + zeros.size


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("axis", [0, 1])
def test_products_with_dequantised_constants_read_packed_numbers(rows: int, axis: int) -> None:
    """Blocks along either axis of the matrix."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    random, part = np.random.default_rng(0), ((2, 48), (64, 6))[axis]
    arrays = random.integers(0, 16, (64, 48)).astype(ml_dtypes.uint4), (random.random(part) / 8).astype("float32")
    zeros = random.integers(0, 16, part).astype(ml_dtypes.uint4)
    x, results = random.standard_normal((rows, 64)).astype("float32"), []
    for device in ("reference", gpu_context().device.name):
        context = ow.ml.create_context(device=device, drafts=True)
        builder = ow.MLGraphBuilder(context)
        matrix = builder.dequantize_linear(*(builder.constant(array) for array in (*arrays, zeros)))
        graph = builder.build({"y": builder.relu(builder.input("x", "float32", x.shape) @ matrix)})
        results.append(context.compute(graph, {"x": x})["y"])
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-5 * float(results[0].max()))
    assert kernel_count(graph) == 1
    runners: list[Any] = [step.part.runner for step in program_of(graph).steps if step.part]
    places = {place for step in runners[0].steps for place in step.places}
    assert sum(p.desc.byte_length for p in places if p.kind == "constant") <= 64 * 48 // 2 + 5 * zeros.size
    assert not [place for place in places if place.kind == "between"]


def test_lookups_and_products_share_device_memory() -> None:
    """As in language models whose embeddings are the last matrix, too."""
    weights = weights_of(48, 64)
    options = {name: weights[name] for name in ("weight", "scale", "bits")}

    def build(b: Any, x: Any) -> dict[str, Any]:
        table = {name: b.constant(options[name]) for name in ("weight", "scale")}
        rows = composites.gather_n_bits(indices=b.constant(np.int32([3, 40])), **table, bits=4, width=64)
        return {"y": composites.matmul_n_bits(x, **table, bits=4), "z": rows + x}

    graph = check_graph(build, 2)
    runners: list[Any] = [step.part.runner for step in program_of(graph).steps if step.part]
    buffers = {id(array.buffer): place.desc.byte_length for place, array in runners[0]._constants.items()}
    assert list(buffers.values()).count(weights["weight"].nbytes) == 1


@pytest.mark.parametrize("data_type", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("rows", "inner", "columns"), [(1, 64, 40), (1, 37, 21), (3, 64, 40), (40, 61, 33), (70, 64, 48)]
)
@pytest.mark.parametrize("b_transpose", [False, True])
def test_products_read_constants_of_16_bits(
    b_transpose: bool, rows: int, inner: int, columns: int, data_type: Any
) -> None:
    """A cast to float32 in front of a product is part of its kernel, on either side, and changes no element."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    random = np.random.default_rng(0)
    x = random.standard_normal((rows, inner)).astype("float32")
    shape = (columns, inner) if b_transpose else (inner, columns)
    matrix = random.standard_normal(shape).astype(getattr(ml_dtypes, data_type, data_type))
    results = []
    for device in ("reference", gpu_context().device.name):
        context = ow.ml.create_context(device=device, drafts=True)
        builder = ow.MLGraphBuilder(context)
        b = builder.constant(matrix).cast("float32")
        y = builder.relu(builder.gemm(builder.input("x", "float32", x.shape), b, b_transpose=b_transpose))
        swapped = builder.gemm(b, builder.input("z", "float32", x.shape), a_transpose=not b_transpose, b_transpose=True)
        graph = builder.build({"y": y, "t": swapped})
        results.append(context.compute(graph, {"x": x, "z": x}))
    for name, expected in results[0].items():
        np.testing.assert_allclose(results[1][name], expected, rtol=1e-5, atol=1e-5 * float(np.abs(expected).max()))
    runners: list[Any] = [step.part.runner for step in program_of(graph).steps if step.part]
    places = {place for step in runners[0].steps for place in step.places}
    assert all(p.desc.data_type == data_type for p in places if p.kind == "constant")
    assert sum(p.kind == "between" and p.desc.element_count == matrix.size for p in places) == 0
