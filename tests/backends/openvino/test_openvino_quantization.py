"""Products of dequantised operands on OpenVINO, whose passes for 8 bits run if a graph quantises anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
from support.openvino_device import openvino_context

import opweave as ow
from opweave.backends.openvino import openvino
from opweave.backends.openvino.saturation import saturates
from opweave.backends.openvino.sessions import compile
from opweave.core.graph import Graph

Source = Literal["quantised", "input", "constant"]
"""Where an operand comes from: floats that the graph quantises, integers that it gets, or a constant."""

Shape = tuple[int, ...]
Product = tuple[Shape, Shape, Callable[[Any, Any, Any], Any]]

PRODUCTS: dict[str, Product] = {
    "matmul": ((16, 32), (32, 16), lambda b, x, w: b.matmul(x, w)),
    "square": ((32, 32), (32, 32), lambda b, x, w: b.matmul(x, w)),
    "batches": ((1, 4, 16, 16), (1, 4, 16, 16), lambda b, x, w: b.matmul(x, w)),
    "turned": ((16, 32), (16, 32), lambda b, x, w: b.matmul(x, b.transpose(w))),
    "gemm": ((16, 32), (32, 16), lambda b, x, w: b.gemm(x, w)),
    "gemm of transposed": ((32, 16), (16, 32), lambda b, x, w: b.gemm(x, w, a_transpose=True, b_transpose=True)),
    "conv2d": ((1, 8, 6, 6), (8, 8, 3, 3), lambda b, x, w: b.conv2d(x, w, padding=[1, 1, 1, 1])),
    "conv2d in groups": ((1, 8, 6, 6), (8, 1, 3, 3), lambda b, x, w: b.conv2d(x, w, groups=8)),
    "conv_transpose2d": ((1, 8, 6, 6), (8, 12, 3, 3), lambda b, x, w: b.conv_transpose2d(x, w)),
}

SOURCES: list[tuple[Source, Source]] = [
    ("quantised", "constant"),
    ("quantised", "quantised"),
    ("quantised", "input"),
    ("input", "quantised"),
    ("constant", "quantised"),
]

TYPES = ("int8", "uint8")

# What the engine gets wrong or refuses: product; sources, types and scales of its operands; whether they have zero points.
FAULTS = [
    ("square", ("quantised", "quantised"), TYPES[::-1], ((1, 1), (1, 32)), (False, False)),
    ("square", ("quantised", "input"), TYPES[::-1], ((1, 1), (1, 32)), (False, False)),
    ("square", ("input", "quantised"), TYPES[::-1], ((1, 1), (1, 32)), (False, False)),
    ("turned", ("quantised", "input"), ("int8", "int8"), ((1, 1), (16, 1)), (False, False)),
    ("batches", ("quantised", "quantised"), TYPES[::-1], ((1, 1, 1, 1), (1, 1, 1, 16)), (False, False)),
    ("square", ("quantised", "constant"), ("int8", "int8"), ((32, 1), (1, 1)), (True, False)),
    ("batches", ("quantised", "constant"), TYPES[::-1], ((1, 4, 1, 1), (1, 1, 1, 16)), (True, False)),
    ("conv2d", ("constant", "quantised"), ("int8", "int8"), ((1, 1, 1, 1), (1, 1, 1, 1)), (True, False)),
    ("conv2d in groups", ("constant", "quantised"), TYPES[::-1], ((1, 8, 1, 1), (8, 1, 1, 1)), (True, True)),
    ("conv_transpose2d", ("quantised", "constant"), TYPES, ((1, 1, 1, 1), (1, 12, 1, 1)), (False, True)),
    ("conv_transpose2d", ("quantised", "constant"), TYPES[::-1], ((1, 1, 1, 1), (1, 1, 1, 1)), (False, True)),
]


@pytest.mark.parametrize(("name", "sources", "types", "scales", "zeros"), FAULTS)
def test_quantization_patterns_misread_by_engine(
    name: str,
    sources: tuple[Source, Source],
    types: tuple[str, str],
    scales: tuple[Shape, Shape],
    zeros: tuple[bool, bool],
) -> None:
    check_product(name, sources, types, scales, zeros)


@pytest.mark.parametrize("sources", SOURCES, ids="-".join)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_dequantised_operands(name: str, sources: tuple[Source, Source]) -> None:
    """Some of all combinations of data types, scales for a tensor, axis or block, and zero points."""
    rng = np.random.default_rng([*name.encode(), *map(len, sources)])
    for _ in range(3):
        one, other = (shapes[rng.integers(len(shapes))] for shapes in map(scale_shapes, PRODUCTS[name][:2]))
        zeros = bool(rng.integers(2)), bool(rng.integers(2))
        check_product(name, sources, (TYPES[rng.integers(2)], TYPES[rng.integers(2)]), (one, other), zeros)


def scale_shapes(shape: Shape) -> list[Shape]:
    """The shapes of a scale for the tensor, of one for each index of an axis, and of one for each block of a row."""
    axes = [axis for axis, size in enumerate(shape) if size > 1]
    found = [tuple(size if axis == one else 1 for axis, size in enumerate(shape)) for one in axes]
    blocks = [(shape[0], shape[1] // 4)] if len(shape) == 2 else []
    return [(1,) * len(shape), *found, *blocks]


def check_product(
    name: str,
    sources: tuple[Source, Source],
    types: tuple[str, str],
    scales: tuple[Shape, Shape],
    zeros: tuple[bool, bool],
) -> None:
    """Compare a product on OpenVINO with that of the reference."""
    *shapes, product = PRODUCTS[name]
    rng = np.random.default_rng(0)
    operands = []
    for data_type, shape, part, has_zero in zip(types, shapes, scales, zeros, strict=True):
        info = np.iinfo(data_type)  # type: ignore[type-var]
        array = rng.integers(info.min, info.max, shape, data_type, endpoint=True)
        middle = (info.min + info.max + 1) // 2 + 9 if has_zero else 0
        operands.append((array, rng.uniform(0.002, 0.02, part).astype("float32"), np.full(part, middle, data_type)))

    def run(context: ow.MLContext) -> np.ndarray:
        b, feed = ow.MLGraphBuilder(context), {}

        def dequantised(
            key: str, source: Source, array: np.ndarray, scale: np.ndarray, zero: np.ndarray
        ) -> ow.MLOperand:
            known = b.constant(scale), b.constant(zero)
            if source == "constant":
                return b.dequantize_linear(b.constant(array), *known)
            if source == "quantised":
                feed[key] = floats(array, scale, zero)
                return b.dequantize_linear(b.quantize_linear(b.input(key, "float32", array.shape), *known), *known)
            feed[key] = array
            return b.dequantize_linear(b.input(key, array.dtype.name, array.shape), *known)  # type: ignore[arg-type]

        left, right = (dequantised(k, s, *o) for k, s, o in zip("xw", sources, operands, strict=True))
        return context.compute(b.build({"y": product(b, left, right)}), feed)["y"]

    found, wanted = run(openvino_context()), run(ow.ml.create_context(device="reference"))
    assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max(), (types, scales, zeros)


def floats(array: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
    """The floats that an array stands for."""
    for axis, size in enumerate(array.shape):
        scale, zero = (np.repeat(part, size // part.shape[axis], axis) for part in (scale, zero))
    return ((array.astype("float64") - zero) * scale).astype("float32")


@pytest.mark.parametrize("name", ["matmul", "gemm", "conv2d", "conv2d in groups"])
def test_usual_quantised_products_stay_in_8_bits(name: str) -> None:
    """A computed operand with one scale by a constant with one for each column or filter: the engine multiplies integers."""
    left, right, product = PRODUCTS[name]
    columns = 0 if name.startswith("conv2d") else 1
    part = tuple(size if axis == columns else 1 for axis, size in enumerate(right))
    b = ow.MLGraphBuilder(openvino_context())
    one = b.constant(np.full((1,) * len(left), 0.1, "float32")), b.constant(np.full((1,) * len(left), 120, "uint8"))
    x = b.dequantize_linear(b.quantize_linear(b.input("x", "float32", left), *one), *one)
    scale, zero = b.constant(np.full(part, 0.1, "float32")), b.constant(np.full(part, 0, "int8"))
    y = product(b, x, b.dequantize_linear(b.constant(np.ones(right, "int8")), scale, zero))
    compiled = compile(openvino, Graph.reaching({"y": b.relu(y)}), "cpu")._compiled
    kernels = [
        {key: node.get_rt_info()[key].astype(str) for key in ("layerType", "runtimePrecision")}
        for node in compiled.get_runtime_model().get_ordered_ops()
    ]
    precisions = {kernel["layerType"]: kernel["runtimePrecision"] for kernel in kernels}
    (precision,) = (precisions[kind] for kind in ("MatMul", "FullyConnected", "Convolution") if kind in precisions)
    if not saturates() or "Convolution" not in precisions:  # where products of 8 bits are wrong, there are none
        assert precision in ("i8", "u8"), precisions


@pytest.mark.parametrize("context", ["float32", "ieee"])
@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("zero", [0, 1, 2, 3, 100, 127])
@pytest.mark.parametrize("data_type", TYPES)
def test_ties_are_rounded_to_even_before_the_zero_point_is_added(
    data_type: str, zero: int, parts: int, context: Any
) -> None:
    openvino_context()
    contexts = (
        ow.ml.create_context(backend="openvino", device="cpu", precision=context),
        ow.ml.create_context(device="reference"),
    )
    x = np.broadcast_to(np.arange(-300, 300, dtype=np.float32)[:, None, None] / 2, (600, 4, 1)).copy()
    zeros = np.full((1, parts, 1), zero, data_type)
    results = []
    for each in contexts:
        b = ow.MLGraphBuilder(each)
        known = b.constant(np.full((1, parts, 1), 0.5, np.float32)), b.constant(zeros)
        value = b.input("x", "float32", x.shape)
        pair = b.dequantize_linear(b.quantize_linear(value, *known), *known)
        eighth = b.constant(np.full((1, 1, 1), 8, np.float32)), b.constant(np.full((1, 1, 1), zero, data_type))
        after = b.dequantize_linear(b.quantize_linear(b.mul(pair, pair), *eighth), *eighth)
        halves = b.dequantize_linear(b.quantize_linear(b.mul(value, 0.5), *known), *known)
        results.append(each.compute(b.build({"pair": pair, "after": after, "halves": halves}), {"x": x}))
    for name, wanted in results[1].items():
        np.testing.assert_array_equal(results[0][name], wanted, name)


def test_products_of_the_largest_bytes_do_not_saturate() -> None:
    """On processors without VNNI, sums of two products have 16 bits in the engine's kernels of 8 bits."""
    results = []
    for context in (openvino_context(), ow.ml.create_context(device="reference")):
        b = ow.MLGraphBuilder(context)
        one = b.constant(np.ones((1, 1), np.float32))
        zero = {data_type: b.constant(np.zeros((1, 1), data_type)) for data_type in TYPES}
        x = b.dequantize_linear(
            b.quantize_linear(b.input("x", "float32", [8, 64]), one, zero["uint8"]), one, zero["uint8"]
        )
        known = b.dequantize_linear(b.constant(np.full((64, 8), 127, np.int8)), one, zero["int8"])
        given = b.dequantize_linear(b.input("w", "int8", [64, 8]), one, zero["int8"])
        graph = b.build({"known": b.matmul(x, known), "given": b.matmul(x, given)})
        feed = {"x": np.full((8, 64), 255, np.float32), "w": np.full((64, 8), 127, np.int8)}
        results.append(context.compute(graph, feed))
    for name, wanted in results[1].items():
        np.testing.assert_array_equal(results[0][name], wanted, name)
