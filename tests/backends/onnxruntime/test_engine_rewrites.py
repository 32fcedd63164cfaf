"""Graphs that ONNX Runtime's optimiser would compute in another way, or refuse, after it has rewritten them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import opweave as ow

Operands = Sequence[ow.MLOperand]
Build = Callable[[ow.MLGraphBuilder, Operands], ow.MLOperand]

ORT = ow.ml.create_context(device="cpu", backend="onnxruntime")
IEEE = ow.ml.create_context(device="cpu", backend="onnxruntime", precision="ieee")
REFERENCE = ow.ml.create_context(device="reference")
PRECISIONS = pytest.mark.parametrize("context", [ORT, IEEE], ids=["float32", "ieee"])


def computed(context: ow.MLContext, build: Build, *arrays: np.ndarray) -> tuple[np.ndarray, ow.MLGraph]:
    b = ow.MLGraphBuilder(context)
    operands = [b.input(f"x{k}", a.dtype.name, a.shape) for k, a in enumerate(arrays)]  # type: ignore[arg-type]
    graph = b.build({"y": build(b, operands)})
    return context.compute(graph, {name: arrays[int(name[1:])] for name in graph.inputs})["y"], graph


@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize("is_difference", [False, True], ids=["add", "sub"])
def test_negative_zero_plus_zero_is_zero(data_type: str, is_difference: bool) -> None:
    """The optimiser removes x + 0 and x - -0 between other operations."""
    zero = np.full([1], -0.0 if is_difference else 0.0, data_type)

    def build(b: Any, operands: Operands) -> Any:
        x = b.neg(operands[0])
        return b.neg(x - b.constant(zero) if is_difference else x + b.constant(zero))

    y, _ = computed(ORT, build, np.array([0.0, -0.0, 2.0], data_type))
    assert (y.tolist(), np.signbit(y).tolist()) == ([0.0, 0.0, 2.0], [True, True, False])


# ---------------------------------------------------------------------------------------------------------------------
# Kernels of quantised operands that round after they add the zero point

SHAPE = (1, 4, 4, 4)


QUANTISED: dict[str, Build] = {
    "add": lambda b, d: b.add(d[0], d[1]),
    "add of itself": lambda b, d: b.add(d[0], d[0]),
    "add, relu": lambda b, d: b.relu(b.add(d[0], d[1])),
    "add, clamp": lambda b, d: b.clamp(b.add(d[0], d[1]), min_value=-1000, max_value=1000),
    "add, reshape": lambda b, d: b.reshape(b.add(d[0], d[1]), [4, 16]),
    "add, transpose": lambda b, d: b.transpose(b.add(d[0], d[1])),
    "mul": lambda b, d: b.mul(d[0], d[1]),
    "mul, max_pool2d": lambda b, d: b.max_pool2d(b.mul(d[0], d[1]), window_dimensions=[2, 2]),
    "sub": lambda b, d: b.sub(d[0], d[1]),
    "average_pool2d": lambda b, d: b.average_pool2d(d[0], window_dimensions=[2, 2]),
    "average_pool2d, nhwc": lambda b, d: b.average_pool2d(d[0], window_dimensions=[2, 2], layout="nhwc"),
    "global average_pool2d": lambda b, d: b.average_pool2d(d[0]),
    "reduce_mean": lambda b, d: b.reduce_mean(d[0], axes=[2, 3], keep_dimensions=True),
    "max_pool2d": lambda b, d: b.max_pool2d(d[0], window_dimensions=[2, 2]),
    "concat": lambda b, d: b.concat(list(d[:2]), 1),
    "leaky_relu": lambda b, d: b.leaky_relu(d[0], alpha=0.25),
    "relu": lambda b, d: b.relu(d[0]),
    "where": lambda b, d: b.where(b.greater(d[0], 0.0), d[0], d[1]),
    "nothing": lambda b, d: d[0],
}


@PRECISIONS
@pytest.mark.parametrize("data_type", ["int8", "uint8"])
@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_operations_round_halves_before_the_zero_point_is_added(
    name: str, data_type: str, context: ow.MLContext
) -> None:
    """Scales are powers of 2, so that sums, products and averages are exact and halves are frequent."""
    random = np.random.default_rng(1)
    info = np.iinfo(data_type)
    a, c = (random.integers(info.min, info.max + 1, SHAPE).astype(data_type) for _ in range(2))
    middle = int(info.min) + 128
    for zeros in [
        (middle, middle, middle + 1),
        (3, 4, info.max),
        (info.min, middle, info.min + 1),
        (7, 7, 7),
        (0, 2, 4),
    ]:
        for scales in [(1.0, 1.0, 8.0), (0.5, 0.25, 2.0), (2.0, 2.0, 4.0)]:

            def build(b: ow.MLGraphBuilder, x: Operands, zeros: Any = zeros, scales: Any = scales) -> ow.MLOperand:
                def parameters(k: int, rank: int) -> list[ow.MLOperand]:
                    shape = (1,) * rank
                    return [
                        b.constant(np.full(shape, scales[k], "float32")),
                        b.constant(np.full(shape, zeros[k], data_type)),
                    ]

                y = QUANTISED[name](b, [b.dequantize_linear(o, *parameters(k, 4)) for k, o in enumerate(x)])
                return b.quantize_linear(y, *parameters(2, y.rank))

            got, expected = (computed(each, build, a, c)[0] for each in (context, REFERENCE))
            np.testing.assert_array_equal(got, expected, err_msg=f"{zeros} {scales}")


@pytest.mark.parametrize("data_type", ["int8", "uint8"])
@pytest.mark.parametrize("axis", [1, 3])
def test_quantised_softmax_is_rounded_once(data_type: str, axis: int) -> None:
    """The engine's kernel of integers was a step off for a quarter of the elements. Others are off where float32 is."""
    info = np.iinfo(data_type)
    x = np.random.default_rng(2).integers(info.min, info.max + 1, SHAPE).astype(data_type)

    def build(b: ow.MLGraphBuilder, operands: Operands) -> ow.MLOperand:
        def one(value: float, type: str) -> ow.MLOperand:
            return b.constant(np.full((1, 1, 1, 1), value, type))

        y = b.softmax(b.dequantize_linear(operands[0], one(0.013, "float32"), one(info.min + 128, data_type)), axis)
        return b.quantize_linear(y, one(1 / 256, "float32"), one(info.min, data_type))

    got, expected = (computed(context, build, x)[0] for context in (ORT, REFERENCE))
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("zero", [128, 129])
@pytest.mark.parametrize("name", ["conv2d", "matmul", "add"])
def test_integer_kernels_are_kept_if_rounding_agrees(name: str, zero: int) -> None:
    """Products do with any zero point, sums with an even one."""

    def build(b: ow.MLGraphBuilder, x: Operands) -> ow.MLOperand:
        def dequantised(o: ow.MLOperand, scale: float, zero: int, type: str = "uint8") -> ow.MLOperand:
            shape = (1,) * o.rank
            return b.dequantize_linear(
                o, b.constant(np.full(shape, scale, "float32")), b.constant(np.full(shape, zero, type))
            )

        d = dequantised(x[0], 0.5, 128)
        weights = (
            np.random.default_rng(3).integers(0, 256, (4, 4, 1, 1) if name == "conv2d" else (4, 4)).astype("uint8")
        )
        if name == "add":
            y = b.add(d, d)
        else:
            y = getattr(b, name)(d, dequantised(b.constant(weights), 0.25, 128))
        scale, zeros = np.full((1,) * 4, 4, "float32"), np.full((1,) * 4, zero, "uint8")
        return b.quantize_linear(y, b.constant(scale), b.constant(zeros))

    x = np.random.default_rng(4).integers(0, 256, SHAPE).astype("uint8")
    got, graph = computed(ORT, build, x)
    np.testing.assert_array_equal(got, computed(REFERENCE, build, x)[0])
    ran = " ".join(str(row) for row in graph.profile({"x0": x}, detail=True).kernels)
    assert ("QLinear" in ran) == (name != "add" or zero == 128), ran


# ---------------------------------------------------------------------------------------------------------------------
# Quantisations that the optimiser merges, moves or adds


def part_of(b: ow.MLGraphBuilder, value: float, data_type: Any, shape: Sequence[int], axis: int | None) -> ow.MLOperand:
    """A constant with a number for all, or different ones along an axis: scales, unless they are of integers."""
    part = [size if axis == k else 1 for k, size in enumerate(shape)]
    steps = np.arange(np.prod(part)).reshape(part)
    grows = steps.astype(data_type) if np.dtype(data_type).kind in "iu" else 2.0 ** (steps % 3)
    return b.constant(
        (value + steps * 0 + grows).astype(data_type) if axis is not None else np.full(part, value, data_type)
    )


def dequantised(
    b: ow.MLGraphBuilder, x: ow.MLOperand, scale: float, zero: int, axis: int | None = None
) -> ow.MLOperand:
    parameters = (part_of(b, scale, "float32", x.shape, axis), part_of(b, zero, x.data_type, x.shape, axis))
    return b.dequantize_linear(x, *parameters)


def quantised(
    b: ow.MLGraphBuilder, x: ow.MLOperand, scale: float, zero: int, data_type: Any, axis: int | None = None
) -> ow.MLOperand:
    return b.quantize_linear(x, part_of(b, scale, "float32", x.shape, axis), part_of(b, zero, data_type, x.shape, axis))


BETWEEN: dict[str, Callable[[ow.MLGraphBuilder, ow.MLOperand], ow.MLOperand]] = {
    "nothing": lambda b, x: x,
    "identity": lambda b, x: b.identity(x),
    "transpose": lambda b, x: b.transpose(x),
    "reshape": lambda b, x: b.reshape(x, [x.shape[0], 1, x.desc.element_count // x.shape[0]]),
    "slice": lambda b, x: b.slice(x, [0] * x.rank, [*x.shape[:-1], 2]),
    "split": lambda b, x: b.split(x, [1, x.shape[-1] - 1], axis=x.rank - 1)[1],
    "reshape, transpose": lambda b, x: b.transpose(b.reshape(x, [1, *x.shape])),
    "relu": lambda b, x: b.relu(x),
    "clamp": lambda b, x: b.clamp(x, min_value=-2, max_value=3),
    "mul": lambda b, x: b.mul(x, 1.0),
    "mul from the left": lambda b, x: b.mul(1.0, x),
    "add": lambda b, x: b.add(x, 0.0),
    "sub, transpose": lambda b, x: b.transpose(b.sub(x, 0.0)),
    "div": lambda b, x: b.div(x, 1.0),
    "add of a computed 0": lambda b, x: b.add(x, b.sin(b.constant(np.zeros(1, "float32")))),
    "mul by a computed 1": lambda b, x: b.mul(x, dequantised(b, b.constant(np.full([1] * x.rank, 2, "int8")), 0.5, 0)),
}


@PRECISIONS
@pytest.mark.parametrize("data_type", ["int8", "uint8"])
@pytest.mark.parametrize("shape", [(7,), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("name", BETWEEN)
def test_consecutive_quantize_linear_are_not_merged(
    name: str, shape: tuple[int, ...], data_type: str, context: ow.MLContext
) -> None:
    """The optimiser made one of them, with a scale for the numbers that both can hold."""
    info = np.iinfo(data_type)
    x = np.random.default_rng(5).normal(0, 3, shape).astype("float32")
    for one, other in [((0.5, 128), (0.0625, 255)), ((0.5, 128), (0.5, 129))]:

        def build(b: ow.MLGraphBuilder, operands: Operands, one: Any = one, other: Any = other) -> ow.MLOperand:
            y = operands[0]
            for between, (scale, zero) in (("nothing", one), (name, other)):
                y = BETWEEN[between](b, y)
                y = dequantised(b, quantised(b, y, scale, zero + int(info.min), data_type), scale, zero + int(info.min))
            return y

        got, expected = (computed(each, build, x)[0] for each in (context, REFERENCE))
        np.testing.assert_allclose(got, expected, rtol=1e-6, err_msg=f"{one} {other}")


@PRECISIONS
@pytest.mark.parametrize("data_type", ["int8", "uint8"])
@pytest.mark.parametrize("before", ["sin", "conv2d"])
@pytest.mark.parametrize("name", ["transpose", "reshape", "slice", "reshape, transpose", "sub, transpose"])
def test_outputs_before_a_moved_quantisation_are_not_quantised(
    name: str, before: str, data_type: Any, context: ow.MLContext
) -> None:
    x = np.random.default_rng(6).standard_normal((1, 2, 4, 4)).astype("float32")
    results = []
    for each in (context, REFERENCE):
        b = ow.MLGraphBuilder(each)
        operand = b.input("x", "float32", x.shape)
        made = {
            "sin": lambda b, x: b.sin(x),
            "conv2d": lambda b, x: b.conv2d(x, b.constant(np.ones((3, 2, 2, 2), "float32"))),
        }[before](b, operand)
        y = quantised(b, BETWEEN[name](b, made), 0.5, 7, data_type)
        graph = b.build({"y": dequantised(b, y, 0.5, 7), "z": made}, fuse=False)
        results.append(each.compute(graph, {"x": x}))
    for name in ("y", "z"):
        np.testing.assert_allclose(results[0][name], results[1][name], rtol=1e-5, atol=1e-5)


@PRECISIONS
@pytest.mark.parametrize("data_type", ["int8", "uint8"])
@pytest.mark.parametrize("is_cast", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d", "gemm", "matmul"])
def test_float_weights_between_quantised_values_stay_float(
    name: str, has_bias: bool, is_cast: bool, data_type: Any, context: ow.MLContext
) -> None:
    """The optimiser rounded weights to 8 bits, and biases to steps of the product of two scales."""
    random = np.random.default_rng(8)
    info = np.iinfo(data_type)
    shape = (5, 16) if name in ("gemm", "matmul") else (2, 4, 5, 5)
    x = random.integers(info.min, info.max + 1, shape).astype(data_type)
    weights = random.standard_normal((16, 8) if len(shape) == 2 else (4, 4, 2, 2)).astype("float16")
    weights.reshape(-1)[0] = 100
    bias = random.standard_normal(8 if len(shape) == 2 else 4).astype("float32")

    def build(b: ow.MLGraphBuilder, operands: Operands) -> ow.MLOperand:
        d = dequantised(b, operands[0], 2.0, int(info.max))
        w = b.cast(b.constant(weights), "float32") if is_cast else b.constant(weights.astype("float32"))
        c = {"c" if name == "gemm" else "bias": b.constant(bias)} if has_bias and name != "matmul" else {}
        return quantised(b, getattr(b, name)(d, w, **c), 50.0, int(info.max), data_type)

    got, expected = (computed(each, build, x)[0] for each in (context, REFERENCE))
    np.testing.assert_array_equal(got, expected)


def test_float_bias_between_quantised_values_is_not_rounded() -> None:
    x = np.full((2, 1, 2, 4), 127, "int8")

    def build(b: ow.MLGraphBuilder, operands: Operands) -> ow.MLOperand:
        w = dequantised(b, b.constant(np.array([[[[30, -77]]], [[[-45, -39]]]], "int8")), 0.09, 0, axis=0)
        y = b.conv2d(dequantised(b, operands[0], 2.0, 127), w, bias=b.constant(np.array([-0.7, -0.4], "float32")))
        return quantised(b, y, 0.5, -126, "int8")

    got, expected = (computed(each, build, x)[0] for each in (ORT, REFERENCE))
    np.testing.assert_array_equal(got, expected)


SHARED: dict[str, Callable[[ow.MLGraphBuilder, ow.MLOperand, ow.MLOperand], dict[str, ow.MLOperand]]] = {
    "an output that is read": lambda b, x, d: {"y": b.sub(x, d), "z": d},
    "two sums": lambda b, x, d: {"y": b.sub(x, d), "z": b.mul(x, d)},
    "two products": lambda b, x, d: {"y": b.matmul(x, d), "z": b.matmul(b.abs(x), d)},
    "twice in one": lambda b, x, d: {"y": b.matmul(b.add(x, d), d)},
    "a convolution and an output": lambda b, x, d: {
        "y": b.conv2d(b.reshape(x, [1, 4, 2, 2]), b.reshape(d, [4, 4, 1, 1])),
        "z": d,
    },
}


@PRECISIONS
@pytest.mark.parametrize("data_type", ["float16", "float32"])
@pytest.mark.parametrize("zero_type", ["int8", "uint8"])
@pytest.mark.parametrize("is_twice", [False, True])
@pytest.mark.parametrize("source", ["constant", "quantised", "cast, quantised", "quantised, transposed"])
@pytest.mark.parametrize("name", SHARED)
def test_dequantised_constants_may_be_read_repeatedly(
    name: str, source: str, is_twice: bool, zero_type: Any, data_type: str, context: ow.MLContext
) -> None:
    """On processors without VNNI, the optimiser converted a constant of int8 twice, and refused the second."""
    random = np.random.default_rng(11)
    x, k = random.standard_normal((4, 4)).astype(data_type), random.integers(-100, 100, (4, 4)).astype("int8")
    results = []
    for each in (context, REFERENCE):
        b = ow.MLGraphBuilder(each)
        scale, zero = b.constant(np.full((1, 1), 0.0625, data_type)), b.constant(np.full((1, 1), 3, zero_type))
        if source == "constant":
            integers = b.constant(k.astype(zero_type))
        else:
            floats = b.constant((k / 16).astype(data_type))
            floats = b.cast(b.constant(k), data_type) if source.startswith("cast") else floats
            integers = b.quantize_linear(floats, scale, zero)
            integers = b.transpose(integers) if "transposed" in source else integers
        d = b.dequantize_linear(integers, scale, zero)
        outputs = SHARED[name](b, b.input("x", data_type, x.shape), d)  # type: ignore[arg-type]
        if is_twice:
            outputs["w"] = b.abs(b.dequantize_linear(integers, b.constant(np.full((1, 1), 0.5, data_type)), zero))
        results.append(each.compute(b.build(outputs, fuse=False), {"x": x}))
    # A product of dequantised constants rounds its other operand to 8 bits.
    size = {output: float(abs(array).max()) for output, array in results[1].items()}
    for output, got in results[0].items():
        np.testing.assert_allclose(got, results[1][output], atol=0.02 * size[output])


TAKES_ONE_SCALE: dict[str, Build] = {
    **QUANTISED,
    "sigmoid": lambda b, d: b.sigmoid(d[0]),
    "softmax": lambda b, d: b.softmax(d[0], 1),
    "where a number": lambda b, d: b.where(b.greater(d[0], 0.0), 1.0, d[0]),
    "leaky_relu, transpose": lambda b, d: b.transpose(b.leaky_relu(d[0], alpha=0.25)),
    "transpose, leaky_relu": lambda b, d: b.leaky_relu(b.transpose(d[0]), alpha=0.25),
    "mul, average_pool2d": lambda b, d: b.average_pool2d(b.mul(d[0], 1.0), window_dimensions=[2, 2]),
    "conv2d": lambda b, d: b.conv2d(d[0], dequantised(b, b.constant(np.ones((4, 4, 2, 2), "int8")), 0.5, 0)),
    "matmul": lambda b, d: b.matmul(d[0], dequantised(b, b.constant(np.ones((4, 4), "int8")), 0.5, 0)),
    "conv_transpose2d": lambda b, d: b.conv_transpose2d(d[0], b.constant(np.ones((4, 2, 2, 2), "float32"))),
}


@PRECISIONS
@pytest.mark.parametrize("data_type", ["int8", "uint8"])
@pytest.mark.parametrize("axes", [(None, 3), (1, None), (0, 3)], ids=str)
@pytest.mark.parametrize("name", TAKES_ONE_SCALE)
def test_quantised_operations_take_scales_along_any_axis(
    name: str, axes: tuple[int | None, int | None], data_type: Any, context: ow.MLContext
) -> None:
    """Many kernels for quantised operands take one scale only, and the optimiser made them for others, too."""
    info = np.iinfo(data_type)
    arrays = [np.random.default_rng(k).integers(info.min, info.max + 1, SHAPE).astype(data_type) for k in range(2)]
    middle = int(info.min) + 128

    def build(b: ow.MLGraphBuilder, x: Operands) -> ow.MLOperand:
        y = TAKES_ONE_SCALE[name](b, [dequantised(b, o, 0.0117, middle, axes[0]) for o in x])
        return quantised(b, y, 0.2591, middle, data_type, None if axes[1] is None else min(axes[1], y.rank - 1))

    got, expected = (computed(each, build, *arrays)[0] for each in (context, REFERENCE))
    # A quotient next to a tie may go to the other step.
    difference = abs(got.astype(int) - expected.astype(int))
    assert difference.max() <= 1
    assert (difference > 0).mean() < 0.02


BEFORE_PRODUCT: dict[str, Callable[[ow.MLGraphBuilder, ow.MLOperand], ow.MLOperand]] = {
    "nothing": lambda b, x: x,
    "mul": lambda b, x: b.mul(x, 1.0),
    "reshape": lambda b, x: b.reshape(b.reshape(x, [x.desc.element_count]), x.shape),
    "transpose": lambda b, x: b.transpose(b.transpose(x)),
    "identity": lambda b, x: b.identity(x),
}
SCALED: dict[str, tuple[Any, Any]] = {
    "columns": ((1, 1), (1, 6)),
    "rows": ((1, 1), (8, 1)),
    "blocks of columns": ((1, 1), (1, 3)),
    "blocks of rows": ((1, 1), (2, 6)),
    "elements": ((1, 1), (8, 6)),
    "rows of the first": ((4, 1), (1, 1)),
    "columns of the first": ((1, 8), (1, 6)),
    "elements of the first": ((4, 8), (1, 1)),
}


@pytest.mark.parametrize("is_constant", [False, True])
@pytest.mark.parametrize("stack", [((), ()), ((2,), ()), ((1, 3), (1, 3))], ids=str)
@pytest.mark.parametrize("before", BEFORE_PRODUCT)
@pytest.mark.parametrize("name", SCALED)
def test_products_of_dequantised_operands_take_any_scales(
    name: str, before: str, stack: Any, is_constant: bool
) -> None:
    random = np.random.default_rng(9)
    arrays = [
        random.integers(0, 256, (*rows, *sizes)).astype("uint8")
        for rows, sizes in zip(stack, ((4, 8), (8, 6)), strict=True)
    ]

    def build(b: ow.MLGraphBuilder, x: Operands) -> ow.MLOperand:
        made = []
        operands = [x[0], b.constant(arrays[1]) if is_constant else x[1]]
        for operand, part in zip(operands, SCALED[name], strict=True):
            shape = (*(1,) * (operand.rank - 2), *part)
            scales = np.random.default_rng(3).uniform(0.01, 0.1, shape).astype("float32")
            zeros = np.random.default_rng(4).integers(100, 140, shape).astype("uint8")
            made.append(BEFORE_PRODUCT[before](b, b.dequantize_linear(operand, b.constant(scales), b.constant(zeros))))
        return b.matmul(*made)

    got, expected = (computed(each, build, *arrays)[0] for each in (ORT, REFERENCE))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-3)


# ---------------------------------------------------------------------------------------------------------------------
# Patterns that end the process

TURNED = """
import sys
import numpy as np
import opweave as ow

context = ow.ml.create_context(device="cpu", backend="onnxruntime", precision=sys.argv[1])
SCALED = {
    "mul": lambda b, v, two: b.mul(v, two),
    "mul from the left": lambda b, v, two: b.mul(two, v),
    "mul twice": lambda b, v, two: b.mul(b.div(b.mul(v, two), two), two),
    "mul by [1, 1]": lambda b, v, two: b.mul(v, b.constant(np.full((1, 1), 2, v.data_type))),
    "mul by a computed number": lambda b, v, two: b.mul(v, b.sqrt(b.mul(two, two))),
    "div": lambda b, v, two: b.div(v, b.constant(np.array(0.5, v.data_type))),
    "add of 0, mul": lambda b, v, two: b.mul(b.add(v, b.sub(two, two)), two),
    "reverse, mul": lambda b, v, two: b.mul(b.reverse(b.reverse(v)), two),
    "abs, mul": lambda b, v, two: b.mul(b.max(v, b.neg(b.abs(v))), two),
    "linear": lambda b, v, two: b.linear(v, alpha=2, beta=0),
}
for data_type in ("float16", "int8", "float32"):
    for permutation in ((1, 0, 2), (1, 2, 0), (2, 1, 0), (0, 2, 1), (2, 0, 1), (1, 2, 3, 0), (1, 2, 0, 3), (0, 2, 1, 3)):
        for side in ("left", "right", "both"):
            scaled = SCALED if permutation in ((1, 0, 2), (1, 2, 0, 3)) and data_type != "float32" else ()
            for after in ("nothing", "abs", "reshape", *scaled):
                x = np.random.default_rng(1).integers(-4, 5, (2, 3, 4, 5)[: len(permutation)]).astype(data_type)
                b = ow.MLGraphBuilder(context)
                v = b.transpose(b.input("x", data_type, x.shape), permutation=permutation)
                expected = x.transpose(permutation).astype("float32")
                if after == "abs":
                    v, expected = b.abs(v), abs(expected)
                elif after == "reshape":
                    v, expected = b.reshape(v, [1, *v.shape]), expected[None]
                v = v if data_type == "float16" else b.cast(v, "float32")
                if after in SCALED:
                    v, expected = SCALED[after](b, v, b.constant(np.array(2, v.data_type))), expected * 2
                outputs = {"v": v} if after == "div" else {}  # so that one of the forms has several readers
                left, right = np.ones((2, v.shape[-2]), v.data_type), np.ones((v.shape[-1], 2), v.data_type)
                if side == "left":
                    y, expected = b.matmul(v, b.constant(right)), expected @ right
                elif side == "right":
                    y, expected = b.matmul(b.constant(left), v), left @ expected
                else:
                    turned = [*range(v.rank - 2), v.rank - 1, v.rank - 2]
                    y, expected = b.matmul(v, b.transpose(v, permutation=turned)), expected @ expected.swapaxes(-1, -2)
                got = context.compute(b.build({"y": y, **outputs}, fuse=False), {"x": x})["y"]
                np.testing.assert_array_equal(got, expected)
x = np.ones((3, 4), "float16")
b = ow.MLGraphBuilder(context)
v = b.reshape(b.transpose(b.input("x", "float16", x.shape)), [1, 4, 3])
y = b.matmul(v, b.constant(np.ones((3, 16), "float16")))
np.testing.assert_array_equal(context.compute(b.build({"y": y}), {"x": x})["y"], np.full((1, 4, 16), 3))
b = ow.MLGraphBuilder(context)
x = np.random.default_rng(2).integers(-4, 5, (2, 3, 4)).astype("float16")
v = b.layer_normalization(b.input("x", "float16", x.shape), axes=[0, 2])
graph = b.build({"y": b.matmul(v, b.constant(np.eye(4, dtype="float16"))), "v": v})
results = context.compute(graph, {"x": x})
np.testing.assert_allclose(results["y"], results["v"], atol=1e-2)
print("computed")
"""


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("precision", ["float32", "ieee"])
def test_matmul_of_transposed_casts(precision: str) -> None:
    """The optimiser changed the order of a transposition and a cast, and left the graph in between without its edges."""
    done = subprocess.run([sys.executable, "-c", TURNED, precision], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "computed\n"), done.stderr[-2000:]


# ---------------------------------------------------------------------------------------------------------------------
# Patterns that become a kernel which refuses the operands


def gelu(b: ow.MLGraphBuilder, x: ow.MLOperand, form: int) -> ow.MLOperand:
    """GELU with tanh, as models spell it out."""
    if form == 0:
        inner = b.mul(b.add(x, b.mul(b.pow(x, 3.0), 0.044715)), 0.7978845608)
        return b.mul(b.mul(x, 0.5), b.add(b.tanh(inner), 1.0))
    inner = b.mul(b.mul(x, 0.7978845608), b.add(b.mul(b.mul(x, x), 0.044715), 1.0))
    return b.mul(x, b.mul(b.add(b.tanh(inner), 1.0), 0.5))


GELUS: dict[str, Build] = {
    "by hand": lambda b, x: gelu(b, x[0], 0),
    "by hand, other form": lambda b, x: gelu(b, x[0], 1),
    "fast_gelu": lambda b, x: ow.composites.fast_gelu(x[0]),
    "fast_gelu of a sum": lambda b, x: ow.composites.fast_gelu(b.add(x[0], x[1])),
    "geglu": lambda b, x: ow.composites.geglu(x[0], x[1], approximate="tanh"),
    "geglu of one": lambda b, x: ow.composites.geglu(x[0], x[0], approximate="tanh"),
    "quick_gelu": lambda b, x: ow.composites.quick_gelu(x[0]),
    "gelu": lambda b, x: b.gelu(x[0]),
    "x * sigmoid(1.702 x)": lambda b, x: b.mul(x[0], b.sigmoid(b.mul(x[0], 1.702))),
    "gelu by erf": lambda b, x: b.mul(b.mul(x[0], 0.5), b.add(b.erf(b.div(x[0], 2.0**0.5)), 1.0)),
}


@PRECISIONS
@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (3,), (2, 1, 3)], ids=str)
@pytest.mark.parametrize("name", GELUS)
def test_gelu_in_any_form_takes_any_rank(
    name: str, shape: tuple[int, ...], data_type: str, context: ow.MLContext
) -> None:
    arrays = [np.random.default_rng(k).standard_normal(shape).astype(data_type) for k in range(2)]
    got, expected = (computed(each, GELUS[name], *arrays)[0] for each in (context, REFERENCE))
    tolerance = 1e-5 if data_type == "float32" else 4e-3
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


@PRECISIONS
@pytest.mark.parametrize("back", [None, "float16", "float32"])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("is_centred", [False, True])
@pytest.mark.parametrize("data_type", ["float16", "float32", "int32", "uint8"])
def test_normalisations_by_hand_may_follow_a_cast(
    data_type: str, is_centred: bool, power: bool, has_bias: bool, back: Any, context: ow.MLContext
) -> None:
    """The optimiser made a layer normalisation of it without the cast, with operands of different types."""

    def build(b: ow.MLGraphBuilder, operands: Operands) -> ow.MLOperand:
        x = b.cast(operands[0], "float32")
        x = b.sub(x, b.reduce_mean(x, axes=[1], keep_dimensions=True)) if is_centred else x
        square = b.pow(x, 2.0) if power else b.mul(x, x)
        y = b.div(x, b.sqrt(b.add(b.reduce_mean(square, axes=[1], keep_dimensions=True), 1e-5)))
        y = y if back is None else b.cast(y, back)
        y = b.mul(y, b.constant(np.linspace(0.5, 1.5, 3).astype(y.data_type)))
        return b.add(y, b.constant(np.linspace(-1, 1, 3).astype(y.data_type))) if has_bias else y

    x = np.array([[1, 2, 5], [3, 2, 7]], data_type)
    got, expected = (computed(each, build, x)[0] for each in (context, REFERENCE))
    np.testing.assert_allclose(got, expected, rtol=2e-3, atol=2e-3)


# ---------------------------------------------------------------------------------------------------------------------
# Models that the engine runs as they are


@pytest.mark.parametrize("rows", [1, "rows"])
@pytest.mark.parametrize(("data_type", "values", "expected"), [(6, [2049, -2048], 0), (1, [70000, -70000], np.nan)])
@pytest.mark.parametrize("in_branch", [False, True])
def test_casts_to_float16_in_models_round(
    rows: Any, data_type: int, values: list[int], expected: float, in_branch: bool
) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
        helper.make_node("ReduceSum", ["h"], ["y"], keepdims=0),
    ]
    x = helper.make_tensor_value_info("x", data_type, [rows, 2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT16, [])
    inputs = [x]
    if in_branch:
        branches = [helper.make_graph(nodes, name, [], [y]) for name in ("then", "else")]
        nodes = [helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])]
        inputs.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    graph = helper.make_graph(nodes, "cast", inputs, [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = ow.InferenceSession(model, context=ORT)
    feed: dict[str, Any] = {"x": np.array([values], helper.tensor_dtype_to_np_dtype(data_type))}
    if in_branch:
        feed["c"] = np.array(True)
    np.testing.assert_array_equal(session.run(None, feed)[0], np.float16(expected))


TURNED_MODEL = """
from itertools import product

import numpy as np
from onnx import TensorProto, helper
from opweave.backends.onnxruntime.model import ModelSession

FACTORS = {"": 1, "Mul": 0.5, "left": 0.5, "Div": 2, "Mul Div Mul": 0.5, "Identity": 1, "Dropout": 1, "Identity Mul": 0.5}
for data_type in (TensorProto.FLOAT16, TensorProto.INT8):
    for permutation in ((1, 0, 2), (1, 2, 0), (0, 2, 1)):
        for in_branch, steps in product((False, True), FACTORS):
            wide = TensorProto.FLOAT16 if data_type == TensorProto.FLOAT16 else TensorProto.FLOAT
            shape = [(2, 3, 4)[axis] for axis in permutation]
            nodes = [helper.make_node("Transpose", ["x"], ["t"], perm=permutation)]
            if wide != data_type:
                nodes.append(helper.make_node("Cast", ["t"], ["v"], to=wide))
            half = helper.make_tensor("half", wide, [1], [0.5])
            for number, step in enumerate(steps.split()):
                one, other = (nodes[-1].output[0], "half") if step != "left" else ("half", nodes[-1].output[0])
                operands = [one, other] if step in ("left", "Mul", "Div") else [one]
                nodes.append(helper.make_node("Mul" if step == "left" else step, operands, [f"s{number}"]))
            nodes.append(helper.make_node("MatMul", [nodes[-1].output[0], "w"], ["y"]))
            w = helper.make_tensor("w", wide, [shape[-1], 2], [1.0] * (2 * shape[-1]))
            x = helper.make_tensor_value_info("x", data_type, [2, 3, 4])
            y = helper.make_tensor_value_info("y", wide, [*shape[:-1], 2])
            inputs, constants = [x], [w, half]
            if in_branch:
                branches = [helper.make_graph(nodes, name, [], [y], constants) for name in ("then", "else")]
                nodes = [helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])]
                inputs, constants = [x, helper.make_tensor_value_info("c", TensorProto.BOOL, [])], []
            graph = helper.make_graph(nodes, "product", inputs, [y], constants)
            model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
            session = ModelSession(model, {}, "default")
            a = np.arange(24).reshape(2, 3, 4).astype(helper.tensor_dtype_to_np_dtype(data_type))
            feed = {"x": a, "c": np.array(True)}
            (got,) = session.returning(range(1))([feed[name] for name in session.inputs])
            expected = a.transpose(permutation).sum(-1, keepdims=True).repeat(2, -1) * FACTORS[steps]
            np.testing.assert_array_equal(got, expected)
print("computed")
"""


@pytest.mark.long
def test_matmul_of_transposed_casts_in_models() -> None:
    done = subprocess.run([sys.executable, "-c", TURNED_MODEL], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "computed\n"), done.stderr[-2000:]
