"""Values that the specification fixes, or that we promise, on back ends that have all float32, denormals among them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from support.cuda_driver import HARDWARE, cuda_context
from support.graphs import compute_again
from support.openvino_device import openvino_context

import opweave as ow
from opweave.core.dtypes import ANY, INFO

CONTEXTS: dict[str, Callable[[], ow.MLContext]] = {
    "cpu": cache(partial(ow.ml.create_context, device="cpu")),
    "cuda": cuda_context,
    "openvino": openvino_context,
    "reference": cache(partial(ow.ml.create_context, device="reference")),
}
float32, int32, int64, uint8 = (partial(np.array, dtype=t) for t in ("float32", "int32", "int64", "uint8"))
NAN, INF = float("nan"), float("inf")
INTEGERS = [data_type for data_type in ANY if INFO[data_type].kind != "f"]
FLOATS = ["float32", "float16"]

# Each kernel is compiled as C++, which takes seconds without a GPU.
ON_CUDA = pytest.mark.covers() if not HARDWARE else ()
devices = pytest.mark.parametrize(
    "device", [pytest.param(name, marks=ON_CUDA if name == "cuda" else ()) for name in CONTEXTS]
)


def compute_operation(device: str, op: str, *arguments: Any, **options: Any) -> np.ndarray:
    """The result of one operation; arrays are inputs of the graph, all else is passed as it is."""
    builder = ow.MLGraphBuilder(CONTEXTS[device]())
    arrays = {f"x{i}": value for i, value in enumerate(arguments) if isinstance(value, np.ndarray)}
    operands = [
        builder.input(f"x{i}", ow.core.dtypes.of_array(value.dtype), value.shape)
        if isinstance(value, np.ndarray)
        else value
        for i, value in enumerate(arguments)
    ]
    graph = builder.build({"y": getattr(builder, op)(*operands, **options)})
    return compute_again(CONTEXTS[device](), graph, arrays)["y"]


def lowest(data_type: ow.DataType) -> int:
    return INFO[data_type].lowest


def highest(data_type: ow.DataType) -> int:
    return INFO[data_type].highest


@devices
@pytest.mark.parametrize("data_type", FLOATS)
def test_round_even(device: str, data_type: str) -> None:
    x = np.array([0.1, 0.9, 1.1, 1.9, -3.5, -2.5, -1.5, 1.5, 2.5, 3.5, 0.5, -0.5, NAN, INF, -INF], data_type)
    y = [0, 1, 1, 2, -4, -2, -2, 2, 2, 4, 0, 0, NAN, INF, -INF]
    np.testing.assert_array_equal(compute_operation(device, "round_even", x), np.array(y, data_type))


@devices
@pytest.mark.parametrize("data_type", FLOATS)
def test_kinds_of_floats(device: str, data_type: str) -> None:
    x = np.array(
        [NAN, INF, -INF, 0, -0.0, 1, np.finfo(data_type).max, np.finfo(data_type).smallest_subnormal], data_type
    )
    assert compute_operation(device, "is_nan", x).tolist() == [1, 0, 0, 0, 0, 0, 0, 0]
    assert compute_operation(device, "is_infinite", x).tolist() == [0, 1, 1, 0, 0, 0, 0, 0]
    assert compute_operation(device, "sign", x).tolist() == [0, 1, -1, 0, 0, 1, 1, 1]
    assert compute_operation(device, "is_nan", x[0].reshape(())).tolist() == 1


@devices
def test_nan_is_neither_greater_nor_lesser_nor_equal(device: str) -> None:
    x, y = float32([NAN, NAN, 1]), float32([NAN, 1, NAN])
    for op in ("equal", "greater", "greater_or_equal", "lesser", "lesser_or_equal"):
        assert compute_operation(device, op, x, y).tolist() == [0, 0, 0]
    assert compute_operation(device, "not_equal", x, y).tolist() == [1, 1, 1]
    for op in ("max", "min"):
        assert np.isnan(compute_operation(device, op, x, y)).all()
    for op in ("relu", "clamp", "abs", "hard_sigmoid", "leaky_relu", "elu", "sigmoid", "tanh", "softplus"):
        assert np.isnan(compute_operation(device, op, x)).tolist() == [True, True, False]


@devices
def test_logical_nonzero_is_true(device: str) -> None:
    a, b = uint8([0, 0, 2, 255]), uint8([0, 7, 1, 0])
    assert compute_operation(device, "logical_not", a).tolist() == [1, 1, 0, 0]
    assert compute_operation(device, "logical_and", a, b).tolist() == [0, 0, 1, 0]
    assert compute_operation(device, "logical_or", a, b).tolist() == [0, 1, 1, 1]
    assert compute_operation(device, "logical_xor", a, b).tolist() == [0, 1, 0, 1]
    assert compute_operation(device, "where", a, int32([1, 2, 3, 4]), int32(-1)).tolist() == [-1, -1, 3, 4]


@devices
def test_where_ignores_non_finite_alternative(device: str) -> None:
    chosen = compute_operation(device, "where", uint8([1, 0]), float32([1, NAN]), float32([INF, 2]))
    assert chosen.tolist() == [1, 2]


@devices
def test_numbers_take_the_type_of_the_values(device: str) -> None:
    condition, x = uint8([1, 0]), float32([0.25, 0.75])
    assert compute_operation(device, "where", condition, x, 0.5).tolist() == [0.25, 0.5]
    assert compute_operation(device, "where", condition, 0.5, x).tolist() == [0.5, 0.75]


@devices
@pytest.mark.parametrize("data_type", INTEGERS)
def test_integer_division_is_truncated_and_wraps(device: str, data_type: ow.DataType) -> None:
    low, high = lowest(data_type), highest(data_type)
    a, b = np.array([7, low, high, 0, 5], data_type), np.array([2, 2, 3, 0, 0], data_type)
    want = [3, -(-low // 2), high // 3, 0, 0]
    assert compute_operation(device, "div", a, b).tolist() == want
    assert compute_operation(device, "div", a, 0).tolist() == [0] * 5
    assert compute_operation(device, "div", a, 3).tolist() == [2, -(-low // 3), high // 3, 0, 1]
    if low < 0:
        a, b = np.array([-7, 7, -7, low, low, high], data_type), np.array([2, -2, -2, -1, low, low], data_type)
        assert compute_operation(device, "div", a, b).tolist() == [-3, -3, 3, low, 1, 0]
        assert compute_operation(device, "div", a, -1).tolist() == [7, -7, 7, low, low, -high]
        for op in ("abs", "neg"):
            assert compute_operation(device, op, np.array([low, high], data_type)).tolist() == [
                low,
                high if op == "abs" else -high,
            ]


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_pow_of_one_half_is_no_sqrt(device: str) -> None:
    """IEEE 754: the power of an infinity is infinite, its square root is NaN, also where one exponent is for all elements."""
    x = float32([-INF, 4.0, -4.0, INF])
    for half in (float32(0.5), float32([0.5]), float32([0.5] * 4)):
        np.testing.assert_array_equal(compute_operation(device, "pow", x, half), float32([INF, 2.0, NAN, INF]))


@devices
@pytest.mark.parametrize("power", [2.0, 3.0, 4.0])
def test_powers_of_floats_by_small_integers(device: str, power: float) -> None:
    x = float32([-INF, -1e30, -1.5, -1.0, -0.0, 0.0, 1e-30, 0.3, 1.7, 1e13, INF, NAN])
    with np.errstate(over="ignore", under="ignore"):
        want = (x.astype(np.float64) ** power).astype(np.float32)
    got = compute_operation(device, "pow", x, float32(power))
    np.testing.assert_allclose(got, want, rtol=1e-6)
    np.testing.assert_array_equal(np.signbit(got[:-1]), np.signbit(want[:-1]))


@pytest.mark.long
@devices
@pytest.mark.parametrize("data_type", INTEGERS)
def test_integer_powers_are_exact_and_wrap(device: str, data_type: ow.DataType) -> None:
    a = np.array([0, 1, 2, 3, highest(data_type), 7], data_type)
    bits = INFO[data_type].bits
    for power in (0, 1, 2, 3, 5, bits - 1, bits + 1, highest(data_type)):
        exact = np.array([pow(int(x), power, 1 << bits) for x in a], f"uint{bits}").view(data_type)
        assert compute_operation(device, "pow", a, power).tolist() == exact.tolist()
        assert compute_operation(device, "pow", a, np.array([power], data_type)).tolist() == exact.tolist()
    if lowest(data_type) < 0:
        a, b = np.array([1, -1, -1, 2, -3, 0, 5], data_type), np.array([-5, -5, -4, -1, -2, -1, -128], data_type)
        assert compute_operation(device, "pow", a, b).tolist() == [1, -1, 1, 0, 0, 0, 0]
        assert compute_operation(device, "pow", a, -3).tolist() == [1, -1, -1, 0, 0, 0, 0]


@devices
@pytest.mark.parametrize("data_type", INTEGERS)
def test_integers_wrap(device: str, data_type: ow.DataType) -> None:
    low, high = np.array([lowest(data_type)], data_type), np.array([highest(data_type)], data_type)
    assert compute_operation(device, "add", high, 1).tolist() == low.tolist()
    assert compute_operation(device, "sub", low, 1).tolist() == high.tolist()
    assert compute_operation(device, "mul", high, 2).tolist() == [-2 if low[0] < 0 else highest(data_type) - 1]


@devices
@pytest.mark.parametrize("source", INTEGERS)
@pytest.mark.parametrize("target", INTEGERS)
def test_casts_of_integers_keep_the_lowest_bits(device: str, source: ow.DataType, target: ow.DataType) -> None:
    info = INFO[target]
    x = np.array([0, 1, 127, lowest(source), highest(source), highest(source) - 200 % (highest(source) + 1)], source)
    lowest_bits = (int(value) % (1 << info.bits) for value in x)
    want = [bits - (1 << info.bits) if bits > info.highest else bits for bits in lowest_bits]
    assert compute_operation(device, "cast", x, target).tolist() == want


@devices
@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("target", INTEGERS)
def test_casts_of_floats_are_truncated(device: str, source: str, target: ow.DataType) -> None:
    x = np.array([0.9, 1.5, 2.5, 126.75, -0.0], source)
    assert compute_operation(device, "cast", x, target).tolist() == [0, 1, 2, 126, 0]
    if lowest(target) < 0:
        assert compute_operation(device, "cast", -x, target).tolist() == [0, -1, -2, -126, 0]


@devices
def test_casts_to_floats_are_rounded_to_the_nearest(device: str) -> None:
    x = int64([2049, 2051, 65519, 65520, -65520, 2**24 + 1, 2**63 - 1])
    assert compute_operation(device, "cast", x, "float16").tolist() == [2048, 2052, 65504, INF, -INF, INF, INF]
    assert compute_operation(device, "cast", x, "float32").tolist() == [2049, 2051, 65519, 65520, -65520, 2**24, 2**63]
    y = float32([65519, 65520, -1e30, 2049, 2051, 1e-8, NAN])
    np.testing.assert_array_equal(
        compute_operation(device, "cast", y, "float16"), [65504, INF, -INF, 2048, 2052, 0, NAN]
    )


@devices
@pytest.mark.parametrize("data_type", ["int64", "uint64"])
def test_clamp_is_exact_beyond_2_to_the_53(device: str, data_type: str) -> None:
    x = np.array([2**53 + 3, 2**53 - 1, 2**63 - 1], data_type)
    assert compute_operation(device, "clamp", x, min_value=2**53 + 1, max_value=2**62 + 1).tolist() == [
        2**53 + 3,
        2**53 + 1,
        2**62 + 1,
    ]
    assert compute_operation(device, "clamp", x, min_value=-(10**400), max_value=10**400).tolist() == x.tolist()


@devices
@pytest.mark.parametrize("data_type", FLOATS)
def test_bounds_of_clamp(device: str, data_type: str) -> None:
    x = np.array([-INF, -2, 0, 2, INF, NAN], data_type)
    for bounds, want in (
        ({}, x),
        ({"min_value": NAN, "max_value": NAN}, x),
        ({"min_value": -INF, "max_value": INF}, x),
        ({"min_value": -1}, [-1, -1, 0, 2, INF, NAN]),
        ({"max_value": 1}, [-INF, -2, 0, 1, 1, NAN]),
        ({"min_value": INF}, [INF] * 5 + [NAN]),
        ({"max_value": -INF}, [-INF] * 5 + [NAN]),
        ({"min_value": 10**400}, [INF] * 5 + [NAN]),
    ):
        np.testing.assert_array_equal(
            compute_operation(device, "clamp", x, **bounds), np.array(want, data_type), err_msg=str(bounds)
        )


@devices
def test_bounds_of_clamp_are_rounded_to_the_data_type(device: str) -> None:
    assert compute_operation(device, "clamp", int32([-9, 9]), min_value=-2.5, max_value=3.5).tolist() == [-2, 4]
    assert compute_operation(device, "clamp", uint8([0, 255]), min_value=-7, max_value=300).tolist() == [0, 255]


@devices
def test_graph_output_may_be_its_input(device: str) -> None:
    for op in ("identity", "clamp", "linear"):
        assert compute_operation(device, op, float32([1, 2])).tolist() == [1, 2]
    assert compute_operation(device, "cast", float32([1, 2]), "float32").tolist() == [1, 2]


@devices
def test_sigmoid_is_right_in_its_tails(device: str) -> None:
    x = float32([-INF, -80, -20, -14, 0, 14, 80, 6e4, INF, NAN])
    exact = 1 / (1 + np.exp(-x.astype(np.float64)))
    np.testing.assert_allclose(compute_operation(device, "sigmoid", x), exact, rtol=1e-6, atol=1e-38)
    half = compute_operation(device, "sigmoid", x.astype(np.float16)).astype(np.float64)
    np.testing.assert_allclose(half, exact, rtol=1e-3, atol=1e-7)


@devices
def test_conditions_made_of_comparisons(device: str) -> None:
    builder = ow.MLGraphBuilder(CONTEXTS[device]())
    x = builder.input("x", "float32", [4])
    inside = builder.logical_and(x.greater(0.0), x.lesser(2.0))
    graph = builder.build({"y": builder.where(inside, x, builder.constant("float32", -1.0)), "inside": inside})
    results = CONTEXTS[device]().compute(graph, {"x": float32([-1, 1, 3, NAN])})
    assert results["y"].tolist() == [-1, 1, -1, -1]
    assert results["inside"].dtype == np.uint8
    assert results["inside"].tolist() == [0, 1, 0, 0]
