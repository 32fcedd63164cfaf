"""Products of dequantised operands, which ONNX Runtime's optimiser joins into kernels for some of them only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opweave as ow

Operand = ow.MLOperand
Builder = ow.MLGraphBuilder

ORT = ow.ml.create_context(device="cpu", backend="onnxruntime")
IEEE = ow.ml.create_context(device="cpu", backend="onnxruntime", precision="ieee")
REFERENCE = ow.ml.create_context(device="reference")
PRECISIONS = pytest.mark.parametrize("context", [ORT, IEEE], ids=["float32", "ieee"])

SIZE = 16
RANDOM = np.random.default_rng(7)
FLOATS = RANDOM.normal(0, 2, (SIZE, SIZE)).astype("float32")
BYTES = RANDOM.integers(-100, 100, (SIZE, SIZE)).astype("int8")
X = RANDOM.normal(0, 1, (SIZE, SIZE)).astype("float32")
COLUMNS = np.linspace(0.05, 0.1, SIZE, dtype="float32")[None]


def quantised(b: Builder, x: Operand, scale: Any = 0.0625, zero: int = 3, data_type: Any = "uint8") -> Operand:
    scale = np.broadcast_to(np.asarray(scale, x.data_type), np.shape(scale) or (1,) * x.rank)
    return b.quantize_linear(x, b.constant(scale.copy()), b.constant(np.full(scale.shape, zero, data_type)))


def dequantised(b: Builder, x: Operand, scale: Any = 0.0625, zero: int = 3) -> Operand:
    scale = np.broadcast_to(np.float32(scale), np.shape(scale) or (1,) * x.rank)
    return b.dequantize_linear(x, b.constant(scale.copy()), b.constant(np.full(scale.shape, zero, x.data_type)))


def computed(
    context: ow.MLContext, build: Callable[..., Operand], **arrays: np.ndarray
) -> tuple[np.ndarray, ow.MLGraph]:
    b = Builder(context)
    operands = [b.input(name, array.dtype.name, array.shape) for name, array in arrays.items()]  # type: ignore[arg-type]
    graph = b.build({"y": build(b, *operands)}, fuse=False)
    return context.compute(graph, {name: arrays[name] for name in graph.inputs})["y"], graph


def assert_near(got: np.ndarray, expected: np.ndarray, tolerance: float = 1e-5) -> None:
    assert abs(got - expected).max() <= tolerance * abs(expected).max()


# ---------------------------------------------------------------------------------------------------------------------
# Several scales, behind operations that the optimiser removes or moves

CHANGES_NOTHING: dict[str, Callable[[Builder, Operand], Operand]] = {
    "reverse": lambda b, x: b.reverse(x),
    "reverse of one axis": lambda b, x: b.reverse(x, axes=[0]),
    "cast": lambda b, x: b.cast(x, "float32"),
    "clamp": lambda b, x: b.clamp(x),
    "concat": lambda b, x: b.concat([x], 0),
    "split": lambda b, x: b.split(x, 1, axis=0)[0],
    "tile": lambda b, x: b.tile(x, [1] * x.rank),
    "pad": lambda b, x: b.pad(x, [0] * x.rank, [0] * x.rank),
    "linear": lambda b, x: b.linear(x, alpha=1, beta=0),
    "add of a computed 0": lambda b, x: b.add(x, b.sin(b.constant(np.zeros(1, "float32")))),
    "slice, reverse": lambda b, x: b.reverse(b.slice(x, [0] * x.rank, x.shape), axes=[0]),
    "clamp, transpose": lambda b, x: b.transpose(b.clamp(x), permutation=[1, 0, *range(2, x.rank)]),
    "resample2d": lambda b, x: b.reshape(b.resample2d(b.reshape(x, [1, 1, *x.shape[:2]]), scales=[1, 1]), x.shape),
}
SCALES = {"one": (1, 1), "columns": (1, 6), "rows": (6, 1), "elements": (6, 6), "blocks": (2, 6)}
PRODUCTS: dict[str, Callable[[Builder, Operand, Operand], Operand]] = {
    "matmul": lambda b, x, w: b.matmul(x, w),
    "gemm": lambda b, x, w: b.gemm(x, w),
    "gemm b_transpose": lambda b, x, w: b.gemm(x, w, b_transpose=True),
    "conv2d": lambda b, x, w: b.conv2d(x, w),
}


SCALED = [("elements", "one"), ("one", "rows"), ("rows", "one"), ("elements", "columns"), ("one", "blocks")]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("name", CHANGES_NOTHING)
def test_products_take_any_scales_behind_operations_that_change_nothing(name: str, product: str, side: str) -> None:
    """The optimiser removed the operation, and took scales for others, or made a kernel that refused them when it ran."""
    shape = (6, 6, 1, 1) if product == "conv2d" else (6, 6)
    x, w = (np.random.default_rng(k).integers(0, 256, shape).astype("uint8") for k in range(2))
    for parts in SCALED:

        def build(b: Builder, x: Operand, parts: tuple[str, str] = parts) -> Operand:
            operands = []
            for operand, part in zip((x, b.constant(w)), parts, strict=True):
                random, sizes = np.random.default_rng(len(part)), (*SCALES[part], *shape[2:])
                scales = b.constant(random.uniform(0.01, 0.1, sizes).astype("float32"))
                zeros = b.constant(random.integers(100, 140, sizes).astype("uint8"))
                operands.append(b.dequantize_linear(operand, scales, zeros))
            k = ("left", "right").index(side)
            operands[k] = CHANGES_NOTHING[name](b, operands[k])
            return PRODUCTS[product](b, *operands)

        got, expected = (computed(each, build, x=x)[0] for each in (ORT, REFERENCE))
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5 * abs(expected).max(), err_msg=str(parts))


# ---------------------------------------------------------------------------------------------------------------------
# Weights that only the engine's folding makes constants of 8 bits

COMPUTED: dict[str, Callable[[Builder], Operand]] = {
    "quantised": lambda b: dequantised(b, quantised(b, b.constant(FLOATS))),
    "quantised, int8": lambda b: dequantised(b, quantised(b, b.constant(FLOATS), data_type="int8")),
    "quantised with another scale": lambda b: dequantised(b, quantised(b, b.constant(FLOATS)), -0.25, 131),
    "quantised by columns": lambda b: dequantised(b, quantised(b, b.constant(FLOATS), COLUMNS), COLUMNS),
    "quantised twice": lambda b: dequantised(
        b, quantised(b, dequantised(b, quantised(b, b.constant(FLOATS))), 0.25, 0), 0.25, 0
    ),
    "cast, quantised": lambda b: dequantised(b, quantised(b, b.cast(b.constant(FLOATS.astype("float16")), "float32"))),
    "quantised, transposed": lambda b: dequantised(b, b.transpose(quantised(b, b.constant(FLOATS)))),
    "dequantised, transposed": lambda b: b.transpose(dequantised(b, quantised(b, b.constant(FLOATS)))),
    "quantised, reversed": lambda b: dequantised(b, b.reverse(quantised(b, b.constant(FLOATS)))),
    "cast": lambda b: dequantised(b, b.cast(b.constant(BYTES.astype("int32")), "int8")),
    "reshaped": lambda b: dequantised(b, b.reshape(b.constant(BYTES.reshape(-1)), BYTES.shape)),
    "concatenated": lambda b: dequantised(b, b.concat([b.constant(BYTES[:8]), b.constant(BYTES[8:])], 0)),
    "times 1": lambda b: b.mul(dequantised(b, b.constant(BYTES)), 1.0),
    "computed scale": lambda b: b.dequantize_linear(
        b.constant(BYTES), b.mul(b.constant(np.float32([[0.5]])), 0.125), b.constant(np.int8([[3]]))
    ),
    "computed zero point": lambda b: b.dequantize_linear(
        b.constant(BYTES), b.constant(np.float32([[0.5]])), b.cast(b.constant(np.int32([[3]])), "int8")
    ),
}
BY_WEIGHTS: dict[str, Callable[[Builder, Operand, Operand], Operand]] = {
    "matmul": lambda b, x, w: b.matmul(x, w),
    "matmul from the left": lambda b, x, w: b.matmul(w, x),
    "matmul of a stack": lambda b, x, w: b.matmul(b.reshape(x, [1, 2, 8, SIZE]), w),
    "matmul of a constant": lambda b, x, w: b.matmul(b.constant(X), w),
    "matmul of dequantised int32": lambda b, x, w: b.matmul(
        dequantised(b, b.constant((100 * X).astype("int32")), 0.01, 5), w
    ),
    "two products": lambda b, x, w: b.add(b.matmul(x, w), b.matmul(b.abs(x), w)),
    "gemm": lambda b, x, w: b.gemm(x, w),
    "gemm with c": lambda b, x, w: b.gemm(x, w, c=b.constant(np.ones(SIZE, "float32"))),
    "gemm b_transpose": lambda b, x, w: b.gemm(x, w, b_transpose=True),
}


@PRECISIONS
@pytest.mark.parametrize("product", BY_WEIGHTS)
@pytest.mark.parametrize("weight", COMPUTED)
def test_products_by_computed_weights_are_products_of_floats(weight: str, product: str, context: ow.MLContext) -> None:
    """The optimiser rounded the other operand to 8 bits, as it does for constants that are dequantised directly before."""

    def build(b: Builder, x: Operand) -> Operand:
        return BY_WEIGHTS[product](b, x, COMPUTED[weight](b))

    got, graph = computed(context, build, x=X)
    assert_near(got, computed(REFERENCE, build, x=X)[0])
    assert "rounded to 8 bits" not in graph.explain()


@pytest.mark.parametrize("move", ["", "transpose", "identity"])
def test_products_by_constants_of_8_bits_keep_their_kernel(move: str) -> None:
    def build(b: Builder, x: Operand) -> Operand:
        w = dequantised(b, b.constant(BYTES))
        return b.matmul(x, getattr(b, move)(w) if move else w)

    got, graph = computed(ORT, build, x=X)
    assert_near(got, computed(REFERENCE, build, x=X)[0], 0.02)
    assert "rounded to 8 bits" in graph.explain()
    assert "MatMulNBits" in str(graph.profile({"x": X}, detail=True).kernels)


@pytest.mark.parametrize("weight", ["quantised", "quantised by columns", "quantised, transposed", "cast, quantised"])
def test_products_of_quantised_values_by_computed_weights_keep_their_kernel(weight: str) -> None:
    def build(b: Builder, x: Operand) -> Operand:
        return b.matmul(dequantised(b, quantised(b, x)), COMPUTED[weight](b))

    got, graph = computed(ORT, build, x=X)
    assert_near(got, computed(REFERENCE, build, x=X)[0])
    assert "MatMulIntegerToFloat" in str(graph.profile({"x": X}, detail=True).kernels)
