"""Graphs that passes of OpenVINO rewrite into others, or refuse, unless rules write them in another way."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from support.openvino_device import check_openvino, openvino_context

import opweave as ow

Build = Callable[..., Any]

RNG = np.random.default_rng(0)
MATRIX = RNG.uniform(0.1, 1, (4, 4)).astype(np.float32)
FILTER = RNG.uniform(0.1, 1, (4, 2, 3, 3)).astype(np.float32)


def constant(b: Any, array: Any, like: Any) -> Any:
    return b.constant(np.asarray(array).astype(like.data_type))


BEFORE: dict[str, tuple[tuple[int, ...], Build]] = {
    "matmul": ((3, 4), lambda b, x: b.matmul(x, constant(b, MATRIX, x))),
    "matmul of inputs": ((3, 4), lambda b, x: b.matmul(x, b.transpose(x))),
    "gemm": ((3, 4), lambda b, x: b.gemm(x, constant(b, MATRIX, x), c=constant(b, MATRIX[0], x))),
    "conv2d": ((1, 2, 6, 6), lambda b, x: b.conv2d(x, constant(b, FILTER, x))),
    "conv_transpose2d": ((1, 4, 3, 3), lambda b, x: b.conv_transpose2d(x, constant(b, FILTER, x))),
    "resample2d": ((1, 2, 4, 4), lambda b, x: b.resample2d(x, scales=(2.0, 2.0), mode="linear")),
    "layer_normalization": ((3, 4), lambda b, x: b.layer_normalization(x, axes=[1])),
    "instance_normalization": ((1, 2, 4, 4), lambda b, x: b.instance_normalization(x)),
    "reduce_sum": ((1, 2, 4, 4), lambda b, x: b.reduce_sum(x, axes=[2, 3], keep_dimensions=True)),
    "reduce_mean": ((3, 4), lambda b, x: b.reduce_mean(x, axes=[0], keep_dimensions=True)),
    "average_pool2d": ((1, 2, 4, 4), lambda b, x: b.average_pool2d(x, window_dimensions=[2, 2])),
    "softmax": ((3, 4), lambda b, x: b.softmax(x, 1)),
}

BETWEEN: dict[str, Build] = {
    "nothing": lambda b, y: y,
    "relu": lambda b, y: b.relu(y),
    "clamp": lambda b, y: b.clamp(y, min_value=-6, max_value=6),
    "sigmoid and abs": lambda b, y: b.abs(b.sigmoid(y)),
    "sqrt": lambda b, y: b.sqrt(b.abs(y)),
}

LEFT: dict[str, Build] = {
    "div": lambda b, c, y: b.div(c, y),
    "sub": lambda b, c, y: b.sub(c, y),
    "pow": lambda b, c, y: b.pow(c, y),
    "prelu": lambda b, c, y: b.prelu(b.sub(c, constant(b, 1.5, c)), y),
    "lesser": lambda b, c, y: b.cast(b.lesser(c, y), "float32"),
    "where": lambda b, c, y: b.where(b.greater(c, y), c, y),
    "max": lambda b, c, y: b.max(c, y),
    "reciprocal": lambda b, c, y: b.mul(b.reciprocal(y), c),
    "pow of -1": lambda b, c, y: b.mul(b.pow(y, -1.0), c),
}


def numerator(b: Any, kind: str, y: Any) -> Any:
    """A constant, one for each channel, of all shapes that broadcast, or computed from constants."""
    channel = 1 if y.rank > 2 else y.rank - 1
    shapes: dict[str, tuple[int, ...]] = {
        "scalar": (),
        "channels": tuple(size if axis == channel else 1 for axis, size in enumerate(y.shape)),
        "whole": tuple(y.shape),
        "more": (2, *y.shape),
        "computed": (1,) * y.rank,
    }
    c = constant(b, np.random.default_rng(1).uniform(0.5, 3, shapes[kind]), y)
    return b.add(c, constant(b, 0.25, y)) if kind == "computed" else c


@pytest.mark.long(rows=1)
@pytest.mark.parametrize("data_type", ["float32", "float16"])
@pytest.mark.parametrize("before", BEFORE)
def test_constants_stay_left_operands(before: str, data_type: str) -> None:
    """Of c / f(x), the kernel of f made f(x) / c."""
    shape, source = BEFORE[before]
    x = np.random.default_rng(3).uniform(0.5, 1.5, shape).astype(data_type)
    kinds = ["scalar", "channels", "whole", "more", "computed"]
    for number, (name, left) in enumerate(LEFT.items()):
        between = list(BETWEEN.values())[number % len(BETWEEN)]
        kind = kinds[(number + len(before)) % len(kinds)]

        def build(b: Any, x: Any, left: Any = left, between: Any = between, kind: str = kind) -> Any:
            y = between(b, source(b, x))
            return b.cast(left(b, numerator(b, kind, y), y), "float32")

        if data_type == "float32" or name not in ("lesser", "where", "pow"):  # rounding decides them
            check_openvino(build, 1e-5 if data_type == "float32" else 8e-3, fuse=bool(number % 2), x=x)


@pytest.mark.parametrize("kind", ["scalar", "channels", "whole", "more", "computed"])
@pytest.mark.parametrize("between", BETWEEN)
def test_quotients_of_constants_by_products(between: str, kind: str) -> None:
    for before in ("matmul", "conv2d", "reduce_mean"):
        shape, source = BEFORE[before]
        x = RNG.uniform(0.5, 1.5, shape).astype(np.float32)

        def build(b: Any, x: Any, source: Any = source) -> Any:
            y = BETWEEN[between](b, source(b, x))
            return b.div(numerator(b, kind, y), y)

        check_openvino(build, x=x)


@pytest.mark.parametrize("data_type", ["float32", "float16", "int32", "int8", "uint8"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (7,), (3, 4), (2, 3, 4)])
def test_constants_keep_their_values_from_run_to_run(shape: tuple[int, ...], data_type: str) -> None:
    """The engine computes operations in place of constants that it computes when it loads a graph."""
    for own_shape in {shape, ()}:
        check_constant(np.asarray(RNG.integers(1, 9, own_shape)).astype(data_type), shape, data_type)


def check_constant(own: np.ndarray, shape: tuple[int, ...], data_type: str) -> None:
    is_float = data_type.startswith("float")
    operations = (
        ("sub", "div", "pow", "add", "mul", "max", "min")
        if is_float
        else ("sub", "add", "mul", "max", "min", "equal", "lesser")
    )
    for name in operations:
        for on_left in (True, False):

            def build(b: Any, x: Any, name: str = name, on_left: bool = on_left) -> Any:
                operands = [b.constant(own), b.abs(x) if data_type != "uint8" else x]
                y = getattr(b, name)(*(operands if on_left else operands[::-1]))
                return y, b.add(b.cast(y, data_type), x), b.neg(x) if data_type != "uint8" else y

            x = np.asarray(RNG.integers(1, 5, shape)).astype(data_type)
            check_openvino(build, 1e-5 if data_type == "float32" else 4e-3 if is_float else 0, x=x)


def test_reciprocals_are_quotients() -> None:
    bits = np.random.default_rng(2).integers(0, 2**32, 100_000, dtype=np.uint32)
    x = np.concatenate([bits.view(np.float32), np.float32([0, -0.0, np.inf, -np.inf, 3, 1e-45])])
    context = openvino_context()
    b = ow.MLGraphBuilder(context)
    graph = b.build({"y": b.reciprocal(b.input("x", "float32", x.shape))})
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(context.compute(graph, {"x": x})["y"], 1 / x)


SOURCES: dict[str, Build] = {
    "split": lambda b, x: b.split(x, 2, axis=1)[1],
    "uneven split": lambda b, x: b.split(x, [1, 3, 2], axis=1)[1],
    "slice": lambda b, x: b.slice(x, [1, 1], [2, 3]),
    "gather": lambda b, x: b.gather(x, b.constant(np.int32([3, 0]))),
    "concat": lambda b, x: b.concat([x, x], 0),
    "reshape": lambda b, x: b.reshape(x, [3, 8]),
    "comparison": lambda b, x: b.equal(x, b.constant(np.uint8(1))),
    "split comparison": lambda b, x: b.split(b.greater(b.cast(x, "float32"), 1.0), 2, axis=1)[0],
    "logic": lambda b, x: b.logical_xor(x, b.logical_not(x)),
}

TRUTHS: dict[str, Build] = {
    "logical_not": lambda b, p: b.logical_not(p),
    "logical_and": lambda b, p: b.logical_and(p, p),
    "logical_or": lambda b, p: b.logical_or(p, b.constant(np.zeros(1, np.uint8))),
    "logical_xor": lambda b, p: b.logical_xor(p, b.constant(np.ones(1, np.uint8))),
    "where": lambda b, p: b.where(p, b.constant(np.float32(2)), b.constant(np.float32(-3))),
    "where of itself": lambda b, p: b.where(p, p, b.constant(np.uint8(7))),
    "cast": lambda b, p: b.cast(p, "float32"),
    "add": lambda b, p: b.add(p, p),
}


@pytest.mark.parametrize("truth", TRUTHS)
@pytest.mark.parametrize("source", SOURCES)
def test_truth_values_come_from_any_operation(source: str, truth: str) -> None:
    """A conversion to bool was refused after a split, one to uint8 in a condition and a value of `where`."""
    x = np.random.default_rng(3).integers(0, 3, (4, 6)).astype(np.uint8)
    check_openvino(lambda b, x: TRUTHS[truth](b, SOURCES[source](b, x)), x=x)


@pytest.mark.parametrize("truth", TRUTHS)
@pytest.mark.parametrize("shape", [(4, 6), (4,)])
def test_truth_values_come_from_slices(shape: tuple[int, ...], truth: str) -> None:
    """Slices that cover an axis became a split, and a reshape that changes nothing was dropped before the conversion."""
    x = np.random.default_rng(3).integers(0, 3, shape).astype(np.uint8)

    def build(b: Any, x: Any) -> Any:
        parts = [b.slice(x, [k, 0][: x.rank], [1, 6][: x.rank]) for k in range(4)]
        return b.concat([TRUTHS[truth](b, b.reshape(part, part.shape)) for part in parts], 0)

    check_openvino(build, x=x)


@pytest.mark.parametrize("data_type", ["float32", "float16", "int32", "int64", "uint8"])
@pytest.mark.parametrize("lookup", ["gather_elements", "of an input", "scatter_elements", "gather_nd", "after pad"])
def test_lookups_after_slices(lookup: str, data_type: str) -> None:
    """A slice from the first element was dropped before GatherElements, whose indices then had another shape."""
    x = np.arange(48).reshape(4, 4, 3).astype(data_type)
    indices = np.array([[[0, 1, 1], [2, 0, 5], [1, 1, 0]]], np.int32)

    def build(b: Any, x: Any, i: Any = None) -> Any:
        part = b.slice(b.pad(x, [1, 0, 0], [0, 1, 0]) if lookup == "after pad" else x, [0, 0, 0], [1, 3, 3])
        known = b.constant(indices) if i is None else i
        if lookup == "scatter_elements":
            return b.scatter_elements(part, b.constant(np.argsort(indices, 2, "stable").astype(np.int32)), part, axis=2)
        if lookup == "gather_nd":
            return b.gather_nd(part, b.constant(np.int32([[0, 1], [0, 2]])))
        return b.gather_elements(part, known, axis=2 if i is None else 1)

    check_openvino(build, 0, x=x, **({"i": indices} if lookup == "of an input" else {}))


@pytest.mark.parametrize("bias", [0.5, 1, 1.5, 3, 7.25, 0, -2, -2.5, 1e-3])
@pytest.mark.parametrize(("size", "alpha", "beta"), [(5, 1e-4, 0.75), (3, 0.5, 0.5), (1, 2, 0.75), (4, 0.1, 1.5)])
def test_local_response_normalization_has_any_bias(size: int, alpha: float, beta: float, bias: float) -> None:
    """The engine cuts the bias to an integer."""
    x = np.random.default_rng(4).standard_normal((1, 7, 3, 3)).astype(np.float32)
    options = {"size": size, "alpha": alpha, "beta": beta, "bias": bias}
    check_openvino(lambda b, x: ow.composites.local_response_normalization(x, **options), 1e-4, x=x)


CONDITIONS: dict[str, Build] = {
    "uint8": lambda b, x: b.cast(b.clamp(x, min_value=0, max_value=1), "uint8"),
    "lesser": lambda b, x: b.lesser(x, 1.0),
    "equal": lambda b, x: b.equal(x, 2.0),
    "is_nan": lambda b, x: b.is_nan(x),
    "equal integers": lambda b, x: b.equal(b.cast(b.greater(x, 1.0), "int32"), 1),
    "logic": lambda b, x: b.logical_and(b.greater(x, 0.0), b.logical_not(b.equal(x, 3.0))),
    "split": lambda b, x: b.concat(b.split(b.cast(b.greater(x, 0.0), "uint8"), 2), 0),
}


@pytest.mark.parametrize("data_type", ["int32", "uint32", "int64", "uint8"])
@pytest.mark.parametrize("condition", CONDITIONS)
def test_where_keeps_all_bits_of_integers(condition: str, data_type: str) -> None:
    """A comparison and a choice became one kernel, which computes with float32."""
    numbers = np.array([2**31 - 1, 2**24 + 1, 123456789, 7, 2**30 + 1, 99]).astype(data_type)
    x = np.float32([-1, 2, np.nan, 0, 3, 5])

    def build(b: Any, x: Any, n: Any) -> Any:
        chosen = CONDITIONS[condition](b, x)
        y = b.where(chosen, n, b.constant(numbers[::-1].copy()))
        return b.where(b.logical_not(chosen), b.reverse(y), y)

    check_openvino(build, 0, x=x, n=numbers)


def test_leaky_relu_without_a_slope_keeps_nan() -> None:
    x = np.float32([np.nan, -np.inf, np.inf, -1, 2, -0.0])
    check_openvino(lambda b, x: b.leaky_relu(b.add(x, 0.0), alpha=0), x=x)


def pixels(b: Any, x: Any, filter: Any, convolve: Any) -> Any:
    y = convolve(b.reshape(x, [5, 4, 1, 1]), b.reshape(filter, [4, 4, 1, 1]))
    return b.reshape(y, [5, 4])


USES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "columns": lambda b, x, w: b.matmul(x, w),
    "rows": lambda b, x, w: b.gemm(x, w, b_transpose=True),
    "convolution": lambda b, x, w: pixels(b, x, w, b.conv2d),
    "transposed convolution": lambda b, x, w: pixels(b, x, w, b.conv_transpose2d),
}

WEIGHTS: dict[str, Callable[[Any, np.ndarray], Any]] = {
    "float32": lambda b, w: b.constant(w.astype(np.float32)),
    "float16": lambda b, w: b.cast(b.constant(w.astype(np.float16)), "float32"),
    "dequantised": lambda b, w: b.dequantize_linear(
        *map(b.constant, (w.astype(np.int8), np.float32([[0.5]]), np.int8([[0]])))
    ),
}


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(("first", "second"), list(permutations(USES, 2)))
def test_weights_have_several_uses(first: str, second: str, weights: str) -> None:
    """The second one read weights that the engine had reordered for the first one."""
    rng = np.random.default_rng(5)
    x, w = rng.standard_normal((5, 4)).astype(np.float32), rng.integers(-9, 9, (4, 4))

    def build(b: Any, x: Any) -> Any:
        shared = WEIGHTS[weights](b, w)
        return b.concat([USES[use](b, x, shared) for use in (first, second)], 1)

    check_openvino(build, 1e-4, x=x)


def test_filters_are_shared_with_transposed_convolutions() -> None:
    x = np.random.default_rng(5).standard_normal((1, 4, 5, 6)).astype(np.float32)
    filter = np.random.default_rng(6).standard_normal((4, 4, 3, 3)).astype(np.float32)

    def build(b: Any, x: Any) -> Any:
        shared = b.constant(filter)
        return b.conv_transpose2d(b.conv2d(x, shared), shared)

    check_openvino(build, 1e-4, x=x)
