"""Constants, quantised values, strides and reshapes, which passes of OpenVINO compute otherwise, or refuse."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.openvino_device import check_openvino, openvino_context

import opweave as ow
from opweave.backends.openvino import backend, openvino
from opweave.backends.openvino.sessions import compile
from opweave.core.graph import Graph

Build = Callable[..., Any]
Shape = tuple[int, ...]

RNG = np.random.default_rng(0)

check_unfused = partial(check_openvino, fuse=False)


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


@pytest.fixture(params=["8 bits", pytest.param("float32", marks=pytest.mark.covers())])
def products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How quantised products are computed: also in 8 bits on processors where large ones are wrong."""
    monkeypatch.setattr(backend, "saturates", lambda: request.param == "float32", raising=False)
    return str(request.param)


@pytest.mark.parametrize("data_type", ["int8", "uint8", "int32", "uint32", "int64", "uint64", "float32"])
def test_constants_are_cast_as_the_reference_does(data_type: str) -> None:
    """The engine lost signs, since it rounded constants where they lay."""
    low = 0 if data_type.startswith("u") else -100 if data_type == "int8" else -1911
    numbers = np.linspace(low, 120 if data_type.endswith("int8") else 2049, 7).astype(data_type)

    def build(b: Any, x: Any) -> dict[str, Any]:
        half = b.cast(b.constant(numbers), "float16")
        whole = b.cast(half, "float32")
        again = b.cast(b.mul(whole, b.constant(np.float32(0.0625))), "float16")
        return {"half": half, "whole": whole, "again": again, "sum": b.add(whole, x)}

    check_unfused(build, 0, x=np.zeros(7, np.float32))


@pytest.mark.parametrize("scale_type", ["float16", "float32"])
@pytest.mark.parametrize(("data_type", "zero"), [("int8", 0), ("int8", -128), ("uint8", 3), ("uint8", 255)])
def test_constants_are_dequantised_as_the_reference_does(data_type: str, zero: int, scale_type: str) -> None:
    numbers = np.random.default_rng(1).integers(*{"int8": (-128, 128), "uint8": (0, 256)}[data_type], (3, 4), data_type)

    def build(b: Any, x: Any) -> dict[str, Any]:
        made = {}
        for name, shape in (("one", (1, 1)), ("columns", (1, 4)), ("all", (3, 4))):
            scale = b.constant((np.abs(floats(*shape)) / 9).astype(scale_type))
            zeros = b.constant(np.full(shape, zero, data_type))
            made[name] = b.dequantize_linear(b.constant(numbers), scale, zeros)
            made[f"{name} sum"] = b.add(b.cast(made[name], "float32"), x)
            made[f"{name} again"] = b.dequantize_linear(b.quantize_linear(made[name], scale, zeros), scale, zeros)
        return made

    check_unfused(build, 1e-3 if scale_type == "float16" else 1e-6, x=floats(1, 4))


@pytest.mark.parametrize("shape", [(), (6,), (2, 3)])
def test_casts_after_concat_keep_signs(shape: Shape) -> None:
    if shape:
        check_unfused(lambda b, x: {"y": b.cast(b.concat([x, x], 0), "float16")}, 1e-3, x=floats(*shape))
    check_unfused(lambda b, x: {"y": b.cast(b.reverse(x), "float16")}, 1e-3, x=floats(*shape))


def test_constant_results_keep_subnormal_numbers_and_zeros() -> None:
    numbers = np.float32([0, -0.0, 1e-40, -1e-45, 1.5, -np.inf, np.nan, 3e38])
    b = ow.MLGraphBuilder(openvino_context())
    constant = b.constant(numbers)
    graph = b.build({"whole": b.cast(constant, "float32"), "part": b.reshape(constant, [2, 4])})
    for y in openvino_context().compute(graph, {}).values():
        assert y.tobytes() == numbers.tobytes()


def pair(b: Any, x: Any, scale: Any, zero: int = 128, data_type: str = "uint8", shape: Shape | None = None) -> Any:
    """`x`, quantised and dequantised."""
    part = (1,) * x.rank if shape is None else shape
    known = b.constant(np.full(part, scale, np.float32)), b.constant(np.full(part, zero, data_type))
    return b.dequantize_linear(b.quantize_linear(x, *known), *known)


READERS: dict[str, Build] = {
    "clamp": lambda b, y: b.clamp(y, min_value=-0.51, max_value=1.0),
    "relu": lambda b, y: b.relu(y),
    "hard_sigmoid": lambda b, y: b.hard_sigmoid(y, alpha=0.3, beta=0.4),
    "sigmoid": lambda b, y: b.sigmoid(y),
    "sub": lambda b, y: b.sub(b.constant(np.float32(1.3)), y),
    "sum of constants": lambda b, y: b.add(b.mul(y, b.constant(np.float32(-1.7))), b.constant(np.float32(0.9))),
    "pair": lambda b, y: pair(b, y, 0.0518821),
    "odd pair": lambda b, y: pair(b, y, 0.11, 3, "int8"),
    "pad": lambda b, y: b.pad(y, [1] * y.rank, [1] * y.rank, value=-0.5),
    "concat": lambda b, y: b.concat([y, b.mul(y, y)], 0),
    "tail": lambda b, y: b.slice(y, [0] * y.rank, [1] * y.rank),
    "transpose": lambda b, y: b.transpose(y),
    "reduce_mean": lambda b, y: b.reduce_mean(y, axes=[y.rank - 1], keep_dimensions=True),
    "layer_normalization": lambda b, y: b.layer_normalization(y, axes=[y.rank - 1]),
    "average_pool2d": lambda b, y: b.average_pool2d(y, window_dimensions=[2, 2]),
    "matmul": lambda b, y: b.matmul(y, b.transpose(y, permutation=[*range(y.rank - 2), y.rank - 1, y.rank - 2])),
}
LEAST_RANK = {"concat": 1, "pad": 1, "reduce_mean": 1, "layer_normalization": 1, "matmul": 2, "average_pool2d": 4}


@pytest.mark.parametrize("reader", READERS)
def test_quantised_values_keep_their_meaning_for_all_readers(reader: str, products: str) -> None:
    """Scales moved through what follows, which then computed integers; vectors and scalars were refused."""
    shapes: list[Shape] = [(), (5,), (3, 4), (2, 3, 4), (1, 2, 4, 6)]
    for number, shape in enumerate(shapes):
        if len(shape) < LEAST_RANK.get(reader, 0):
            continue
        x = (2 * floats(*shape)).astype(np.float32)
        kinds = [(0.037693, 0, "int8"), (0.0844884, 128, "uint8"), (0.5, 104 + number, "uint8")]
        known = kinds[(number + len(reader)) % 3]

        def build(b: Any, x: Any, known: Any = known) -> Any:
            y = pair(b, x, *known)
            other = pair(b, b.add(x, y), 2 * known[0], *known[1:])
            return {"y": READERS[reader](b, y), "sum": READERS[reader](b, other)}

        check_unfused(build, 2e-5, x=x)


SOURCES: dict[str, Build] = {
    "div": lambda b, x: b.div(x, b.constant(np.linspace(0.4, 2, x.shape[-1], dtype=np.float32))),
    "mul": lambda b, x: b.mul(x, b.constant(np.linspace(-1, 2, x.shape[-1], dtype=np.float32))),
    "sub of rows": lambda b, x: b.sub(x, b.constant(np.linspace(-1, 2, x.shape[-2], dtype=np.float32).reshape(-1, 1))),
    "layer_normalization": lambda b, x: b.layer_normalization(
        x, scale=b.constant(np.linspace(-1, 2, x.shape[-1], dtype=np.float32)), axes=[x.rank - 1]
    ),
    "matmul": lambda b, x: b.matmul(x, b.constant(floats(x.shape[-1], 5))),
}


@pytest.mark.parametrize(
    "parts",
    ["one", "channels", *(pytest.param(name, marks=pytest.mark.covers()) for name in ("rows", "all"))],
)
@pytest.mark.parametrize("source", SOURCES)
def test_quantisation_after_constants_of_columns(source: str, parts: str, products: str) -> None:
    for shape in ((5, 4), (1, 5, 8), (1, 2, 4, 6)):

        def build(b: Any, x: Any) -> Any:
            y = SOURCES[source](b, x)
            axes = {"one": [], "channels": [1], "rows": [y.rank - 2], "all": range(y.rank)}[parts]
            part = tuple(size if axis in axes else 1 for axis, size in enumerate(y.shape))
            filters = weights(b, 5, y.shape[-1])
            return {
                "y": pair(b, y, 0.0844884, shape=part),
                "sum": b.add(pair(b, y, 0.5, shape=part), y),
                "product": b.matmul(pair(b, y, 0.0844884, shape=part), b.transpose(filters)),
            }

        check_unfused(build, 2e-5, x=floats(*shape))


def weights(b: Any, *shape: int) -> Any:
    """Weights of 8 bits with a scale for each filter; so small that no sum of two products saturates."""
    rng = np.random.default_rng(shape)
    part = (shape[0], *(1,) * (len(shape) - 1))
    scale = rng.uniform(0.01, 0.05, part).astype(np.float32)
    return b.dequantize_linear(
        b.constant(rng.integers(-60, 60, shape, np.int8)), b.constant(scale), b.constant(np.zeros(part, np.int8))
    )


@pytest.mark.parametrize("source", SOURCES)
def test_quantised_products_after_constants_of_columns(source: str, products: str) -> None:
    """The constant was merged with the quantisation, as one of rows."""
    for shape in ((5, 4), (1, 8), (1, 5, 8), (1, 6, 4, 6)):

        def build(b: Any, x: Any) -> Any:
            y = SOURCES[source](b, x)
            return {"y": b.matmul(pair(b, y, 0.0844884), b.transpose(weights(b, 5, y.shape[-1])))}

        check_unfused(build, 2e-5, x=floats(*shape))


@pytest.mark.parametrize("reader", READERS)
def test_quantised_values_are_read_by_products_and_others(reader: str, products: str) -> None:
    """The products multiply integers, and the others read floats."""

    def build(b: Any, x: Any) -> Any:
        y = pair(b, x, 0.037693)
        return {"y": b.conv2d(y, weights(b, 8, 4, 3, 3)), "other": READERS[reader](b, y), "plain": b.add(y, x)}

    check_unfused(build, 5e-5, x=floats(1, 4, 6, 6))


BYTES: dict[str, Build] = {
    "int8": lambda b, x: b.cast(x, "int8"),
    "uint8": lambda b, x: b.cast(b.abs(x), "uint8"),
    "reshaped": lambda b, x: b.reshape(b.reshape(b.cast(x, "int8"), [*x.shape, 1]), x.shape),
    "from float16": lambda b, x: b.cast(b.cast(x, "float16"), "int8"),
}

WIDENED: dict[str, Build] = {
    "alone": lambda b, y: b.cast(y, "float32"),
    "by float16": lambda b, y: b.cast(b.cast(y, "float16"), "float32"),
    "add": lambda b, y: b.add(b.cast(y, "float32"), b.constant(np.float32(0.75))),
    "linear": lambda b, y: b.linear(b.cast(y, "float32"), alpha=0.5, beta=0.25),
    "transpose": lambda b, y: b.transpose(b.transpose(b.cast(y, "float32"))),
    "reshape": lambda b, y: b.reshape(b.reshape(b.cast(y, "float32"), [*y.shape, 1]), y.shape),
}


@pytest.mark.parametrize("widened", WIDENED)
@pytest.mark.parametrize("source", BYTES)
def test_casts_to_bytes_before_quantised_products_cut_off_fractions(source: str, widened: str, products: str) -> None:
    """Both conversions were dropped, as those of a dequantisation are."""
    for number, shape in enumerate([(5, 8), (2, 5, 8), (1, 6, 4, 6)]):
        scale, zero, data_type = [(0.25, 4, "uint8"), (0.5, -4, "int8"), (0.25, 0, "int8")][number]

        def build(b: Any, x: Any, scale: float = scale, zero: int = zero, data_type: str = data_type) -> Any:
            y = pair(b, WIDENED[widened](b, BYTES[source](b, x)), scale, zero, data_type)
            filters = weights(b, 5, y.shape[-1])
            if y.rank == 2:
                return {"y": b.gemm(y, filters, b_transpose=True)}
            results = {"y": b.matmul(y, b.transpose(filters))}
            return results | ({"z": b.conv2d(y, weights(b, 4, 6, 3, 3))} if y.rank == 4 else {})

        steps = np.random.default_rng(number).integers(-12, 13, shape)
        check_unfused(build, 2e-5, x=(steps / 2).astype(np.float32))


AFTER_SHIFTED: dict[str, Build] = {
    "add": lambda b, y, c: b.add(y, c),
    "turned add": lambda b, y, c: b.add(c, y),
    "sub": lambda b, y, c: b.sub(y, c),
    "turned sub": lambda b, y, c: b.sub(c, y),
    "relu": lambda b, y, c: b.relu(b.add(y, c)),
    "scaled": lambda b, y, c: b.add(b.mul(y, 0.5), c),
    "transpose": lambda b, y, c: b.add(b.transpose(y), b.transpose(c)),
    "reshape": lambda b, y, c: b.add(b.reshape(y, [1, *y.shape]), c),
}


@pytest.mark.parametrize(
    ("zero", "data_type"), [(-128, "int8"), (64, "int8"), (128, "uint8"), (254, "uint8"), (0, "uint8")]
)
@pytest.mark.parametrize("name", AFTER_SHIFTED)
def test_constant_matrices_after_products_with_zero_points_keep_digits(
    name: str, zero: int, data_type: str, products: str
) -> None:
    """They were added to the products of the zero points, which are far larger, and lost what these have no digits for."""
    for shape in ((6, 8), (2, 6, 8), (1, 2, 6, 8)):

        def build(b: Any, x: Any) -> Any:
            left, right = pair(b, x, 0.5, zero, data_type), weights(b, 5, 8)
            y = b.matmul(left, b.transpose(right))
            result = {"y": AFTER_SHIFTED[name](b, y, b.constant(floats(*y.shape)))}
            if y.rank == 2:
                result["gemm"] = b.gemm(left, right, c=b.constant(floats(6, 5)), b_transpose=True)
            return result

        check_unfused(build, 5e-7, x=floats(*shape) / 100)


AFTER_BYTES: dict[str, Build] = READERS | {
    "square": lambda b, y: b.mul(y, y),
    "double": lambda b, y: b.add(y, y),
    "hard swish in parts": lambda b, y: b.mul(y, b.hard_sigmoid(y, alpha=0.2, beta=0.5)),
    "sum with tanh": lambda b, y: b.add(y, b.tanh(y)),
    "reduce_max": lambda b, y: b.reduce_max(y, axes=[y.rank - 1]),
    "max_pool2d": lambda b, y: b.max_pool2d(y, window_dimensions=[2, 2]),
    "average_pool2d with padding": lambda b, y: b.average_pool2d(y, window_dimensions=[3, 3], padding=[1, 1, 1, 1]),
    "l2_pool2d": lambda b, y: b.l2_pool2d(y, window_dimensions=[2, 2]),
    "resample2d": lambda b, y: b.resample2d(y, scales=[2.0, 2.0]),
    "matrix": lambda b, y: b.mul(y, b.constant(floats(*y.shape))),
    "narrow clamp": lambda b, y: b.clamp(y, min_value=0.5, max_value=0.5),
    "pool of clamp": lambda b, y: b.max_pool2d(b.clamp(y, min_value=-0.3, max_value=1.0), window_dimensions=[2, 2]),
}


@pytest.mark.parametrize("product", ["matmul", "gemm", "conv2d", "depthwise"])
@pytest.mark.parametrize("reader", AFTER_BYTES)
def test_products_of_bytes_have_any_readers(reader: str, product: str, products: str) -> None:
    """Scales moved through readers, were taken for those of channels, or applied twice; or the graph was refused."""
    if product == "gemm" and ("pool" in reader or reader == "resample2d"):
        return
    for zero, data_type in ((0, "int8"), (128, "uint8")):

        def build(b: Any, x: Any, zero: int = zero, data_type: str = data_type) -> Any:
            left = pair(b, x, 0.037693, zero, data_type)
            if product == "conv2d":
                y = b.conv2d(left, weights(b, 5, 4, 3, 3))
            elif product == "depthwise":
                y = b.conv2d(left, weights(b, 4, 1, 3, 3), groups=4)
            elif product == "gemm":
                y = b.gemm(left, weights(b, 5, 6), b_transpose=True)
            else:
                y = b.matmul(left, b.transpose(weights(b, 5, 6)))
            return {"y": AFTER_BYTES[reader](b, y)}

        check_unfused(build, 1e-4, x=floats(*((6, 6) if product == "gemm" else (2, 4, 6, 6))))


AFTER_CONVOLUTION: dict[str, Build] = {
    "neg": lambda b, y: b.neg(y),
    "relu of neg": lambda b, y: b.relu(b.neg(y)),
    "cast": lambda b, y: b.cast(b.cast(y, "float16"), "float32"),
    "leaky_relu": lambda b, y: b.leaky_relu(y, alpha=0),
    "mul": lambda b, y: b.mul(y, b.constant(np.float32(-0.3))),
}


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("name", AFTER_CONVOLUTION)
def test_factors_after_quantised_convolutions(name: str, groups: int, products: str) -> None:
    """A constant that is computed when the graph is loaded was taken for scales, and refused."""

    def build(b: Any, x: Any) -> Any:
        known, options = weights(b, 4, 4 // groups, 3, 3), {"padding": [1, 1, 1, 1], "groups": groups}
        y = pair(b, x, 0.037693)
        biased = b.conv2d(y, known, bias=b.constant(floats(4)), **options)
        return {
            "y": AFTER_CONVOLUTION[name](b, b.conv2d(y, known, **options)),
            "biased": AFTER_CONVOLUTION[name](b, biased),
        }

    check_unfused(build, 5e-3 if name == "cast" else 5e-5, x=floats(1, 4, 6, 6))


def kernels(outputs: dict[str, Any]) -> dict[str, set[str]]:
    """The precisions of the engine's kernels by their types."""
    result: dict[str, set[str]] = {}
    compiled = compile(openvino, Graph.reaching(outputs), "cpu")._compiled
    for node in compiled.get_runtime_model().get_ordered_ops():
        layer, precision = (node.get_rt_info()[key].astype(str) for key in ("layerType", "runtimePrecision"))
        result.setdefault(layer, set()).add(precision)
    return result


def test_residual_networks_stay_in_8_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "saturates", lambda: False, raising=False)
    b = ow.MLGraphBuilder(openvino_context())
    x = pair(b, b.input("x", "float32", [1, 16, 8, 8]), 0.1)
    y = pair(b, b.relu(b.conv2d(x, weights(b, 16, 16, 3, 3), padding=[1] * 4)), 0.05, 0)
    z = pair(b, b.relu(b.add(b.conv2d(y, weights(b, 16, 16, 3, 3), padding=[1] * 4), y)), 0.1, 0)
    mean = pair(b, b.reduce_mean(z, axes=[2, 3]), 0.1, 0)
    precisions = kernels({"y": b.matmul(mean, b.transpose(weights(b, 10, 16)))})
    assert precisions["Convolution"] <= {"i8", "u8"}
    assert precisions["FullyConnected"] <= {"i8", "u8"}


@pytest.mark.parametrize("strides", [[1, 2], [2, 1], [2, 2], [3, 2]])
@pytest.mark.parametrize("padding", [[0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0], [0, 0, 1, 1]])
def test_strides_of_small_filters_stay_behind_padding(padding: list[int], strides: list[int]) -> None:
    """The engine moved them to the convolution before."""
    first, second = floats(4, 2, 3, 3), floats(3, 4, 1, 1)

    def build(b: Any, x: Any) -> Any:
        options = {"padding": padding, "strides": strides}
        before = b.conv2d(x, b.constant(first), padding=[1, 1, 1, 1])
        turned = b.conv2d(b.transpose(before), b.constant(floats(3, 9, 1, 1)), **options)
        return {
            "conv2d": b.conv2d(before, b.constant(second), **options),
            "relu": b.conv2d(b.relu(before), b.constant(second), **options),
            "groups": b.conv2d(before, b.constant(floats(4, 1, 1, 1)), groups=4, **options),
            "transposed": b.transpose(turned, permutation=[0, 1, 3, 2]),
            "alone": b.conv2d(x, b.constant(floats(3, 2, 1, 1)), **options),
        }

    check_unfused(build, 1e-4, x=floats(1, 2, 9, 9))


RESHAPES: list[tuple[Shape, Shape]] = [
    ((2, 1, 8), (2, 1, 8, 1)),
    ((2, 3, 8), (2, 3, 8, 1)),
    ((2, 3, 8), (2, 1, 3, 1, 8)),
    ((2, 1, 8), (1, 2, 1, 8)),
    ((1, 8), (1, 8, 1)),
    ((8,), (1, 8, 1)),
    ((1, 5, 8), (5, 1, 8)),
]


@pytest.mark.long(rows=1)
@pytest.mark.parametrize(
    "op", ["reduce_l1", "reduce_l2", "reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_product"]
)
def test_reductions_between_reshapes(op: str) -> None:
    """A reshape that adds axes of size 1 moved behind the reduction with their places lost; one after it was dropped."""
    for shape, new in RESHAPES:

        def build(b: Any, x: Any, new: Shape = new) -> Any:
            y, made = b.reshape(x, new), {}
            for axes in ([0], [1], [len(new) - 1], [0, 1], list(range(len(new)))):
                for keep in (True, False):
                    made[f"{axes} {keep}"] = z = getattr(b, op)(y, axes=axes, keep_dimensions=keep)
                    size = z.desc.element_count if hasattr(z, "desc") else int(np.prod(z.shape))
                    made[f"{axes} {keep} column"] = b.add(b.reshape(z, [size, 1]), b.reshape(z, [1, size]))
            return made

        check_unfused(build, 1e-4, x=floats(*shape))


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("op", ["reduce_l1", "reduce_sum", "reduce_mean", "reduce_max"])
def test_reshapes_after_reductions_stay(op: str, keep: bool) -> None:
    def build(b: Any, x: Any) -> Any:
        y = b.reshape(getattr(b, op)(x, axes=[1], keep_dimensions=keep), [1, 8])
        return {
            "product": b.matmul(y, b.transpose(y)),
            "sum": b.add(y, b.reshape(y, [8, 1])),
            "y": b.reshape(y, [8, 1, 1]),
        }

    check_unfused(build, 1e-4, x=floats(1, 5, 8))


@pytest.mark.parametrize(
    "op", ["add", "sub", "mul", "div", pytest.param("max", marks=pytest.mark.covers()), "batch_normalization"]
)
def test_constants_of_rows_after_products(op: str) -> None:
    """Kernels of products took them for constants of columns, or refused them."""
    for shape in ((3, 4), (2, 3, 4), (1, 8, 6, 4), (1, 3, 1, 4), (1, 2, 2, 3, 4)):

        def build(b: Any, x: Any) -> Any:
            made = {}
            factors = {
                "square": b.constant(floats(4, x.shape[-2])),
                "column": b.constant(floats(4, 1)),
                "eight": b.constant(floats(4, 8)),
            }
            sides = {name: b.matmul(x, factor) for name, factor in factors.items()}
            sides["left"] = b.matmul(b.constant(floats(5, x.shape[-2])), x)
            for name, y in sides.items():
                for axis in range(y.rank):
                    part = tuple(size if a == axis else 1 for a, size in enumerate(y.shape))
                    c = np.abs(floats(*part)) + np.float32(0.5)
                    if op == "batch_normalization":
                        mean, variance, scale = (b.constant(c.ravel() + np.float32(k)) for k in range(3))
                        made[f"{name} {axis}"] = b.batch_normalization(y, mean, variance, scale=scale, axis=axis)
                    else:
                        made[f"{name} {axis}"] = b.relu(getattr(b, op)(y, b.constant(c)))
            return made

        check_unfused(build, 1e-4, x=floats(*shape))


@pytest.mark.parametrize("data_type", ["int8", "uint8"])
@pytest.mark.parametrize("shape", [(1, 2, 1), (1, 1, 2, 1), (1, 1, 3, 5), (2, 1, 3, 5), (1, 1, 1, 3, 5)])
def test_products_by_dequantised_stacks_of_matrices(shape: Shape, data_type: str) -> None:
    """Refused where the other dimensions are 1."""
    rng = np.random.default_rng(0)
    last = (1,) * (len(shape) - 1) + shape[-1:]
    numbers = rng.integers(0, 100, shape, data_type)

    def build(b: Any, x: Any) -> Any:
        made = {}
        for name, part in (("one", (1,) * len(shape)), ("columns", last)):
            known = b.constant(np.full(part, 0.05, np.float32)), b.constant(np.full(part, 1, data_type))
            w = b.dequantize_linear(b.constant(numbers), *known)
            made[name] = b.matmul(x, w)
            turned = b.transpose(w, permutation=[*range(len(shape) - 2), len(shape) - 1, len(shape) - 2])
            made[f"{name} turned"] = b.matmul(made[name], turned)
        return made

    check_unfused(build, 1e-4, x=floats(*shape[:-2], 4, shape[-2]))


@pytest.mark.parametrize("data_type", ["float32", "float16", "int32", "int8"])
@pytest.mark.parametrize("is_reshaped", [False, True])
def test_abs_of_a_concatenation_leaves_it_to_others(data_type: str, is_reshaped: bool) -> None:
    x = np.linspace(-50, 50, 12).astype(data_type)

    def build(b: Any, x: Any) -> Any:
        first, second = b.split(x, [3, 9], axis=0)
        y = b.concat([second, first], 0)
        return {"y": b.abs(b.reshape(y, [3, 4]) if is_reshaped else y), "z": y}

    check_unfused(build, x=x)


@pytest.mark.parametrize("operation", ["div", "mul", "add", "sub", "pow"])
@pytest.mark.parametrize("reduction", ["reduce_mean", "reduce_sum", "reduce_l1", "reduce_l2", "reduce_max"])
@pytest.mark.parametrize(
    ("shape", "axes"), [((2, 1, 8), [2]), ((3, 1, 8), [1, 2]), ((2, 3, 1, 8), [3]), ((4, 8), [1])], ids=str
)
def test_operations_with_numbers_after_reductions(
    shape: Shape, axes: list[int], reduction: str, operation: str
) -> None:
    """A quotient by a number was computed for the first result only, if there were no others beside it."""

    def build(b: Any, x: Any) -> Any:
        both = (getattr(b, reduction)(x, axes=axes, keep_dimensions=keep) for keep in (True, False))
        return {name: getattr(b, operation)(y, 1.25) for name, y in zip("yz", both, strict=True)}

    check_unfused(build, x=np.abs(floats(*shape)))
