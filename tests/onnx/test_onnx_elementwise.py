"""ONNX's arithmetic, casts and logic: versions, options and types; and how few operations become of a node."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from support.every_device import DEVICES, context_on
from support.onnx import model, node
from support.onnx_nodes import CONTEXT, MICROSOFT, check_node, integers, node_model, randn, run_engine

from opweave.core.graph import Graph
from opweave.onnx.convert.trace import Tracer
from opweave.onnx.model.model import Model
from opweave.onnx.model.values import Tensor
from opweave.onnx.session.session import InferenceSession

X = randn(2, 3, 4)


def operations(op_type: str, *inputs: np.ndarray, constants: Sequence[int] = (), **options: Any) -> list[str]:
    """The WebNN operations that a node becomes."""
    dynamic = [k for k in range(len(inputs)) if k not in constants]
    known = {"opset", "domain"} & options.keys()
    proto, feed = node_model(
        op_type,
        inputs,
        {name: value for name, value in options.items() if name not in known},
        dynamic=dynamic,
        **{name: options[name] for name in known},
    )
    shapes = {name: array.shape for name, array in feed.items()}
    value = Tracer(Model.load(proto), CONTEXT, shapes).run().values["y0"]
    assert isinstance(value, Tensor)
    return [node.op.name for node in Graph.reaching({"y": value.operand}).nodes]


# No more operations than needed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "op_type", "inputs", "options"),
    [
        (["relu"], "Relu", (X,), {}),
        (["add"], "Add", (X, randn(4)), {}),
        (["clamp"], "Clip", (X, np.float32(0), np.float32(6)), {"constants": (1, 2)}),
        (["clamp"], "Clip", (X,), {"opset": 7, "min": 0.0, "max": 6.0}),
        (["pow"], "Pow", (X, np.int64(2)), {"constants": (1,)}),
        (["softmax"], "Softmax", (X,), {}),
        (["softmax"], "Softmax", (X,), {"opset": 11, "axis": -1}),
        (["reshape", "softmax", "reshape"], "Softmax", (X,), {"opset": 11}),
        (["reduce_mean"], "ReduceMean", (X, np.array([1])), {"constants": (1,)}),
        (["arg_max"], "ArgMax", (X,), {"axis": 1}),
        (["matmul"], "MatMul", (X, randn(4, 5)), {}),
        (["gemm"], "Gemm", (randn(2, 3), randn(4, 3), randn(4)), {"transB": 1, "alpha": 0.5}),
        (["gemm"], "FusedMatMul", (randn(2, 3), randn(4, 3)), {"transB": 1, "alpha": 0.5, "domain": MICROSOFT}),
        (["matmul"], "Einsum", (X, randn(2, 4, 5)), {"equation": "bij,bjk->bik"}),
        (["matmul"], "Einsum", (randn(2, 4, 5), X), {"equation": "bjk,bij->bik"}),
        (["transpose", "matmul"], "Einsum", (X, randn(2, 5, 4)), {"equation": "bqd,bkd->bqk"}),
        (["mul"], "Einsum", (X, randn(2, 3, 4)), {"equation": "...,...->..."}),
        (["transpose"], "Einsum", (X,), {"equation": "ijk->kij"}),
        (["reduce_sum"], "Einsum", (X,), {"equation": "i...->..."}),
        (["gelu"], "Gelu", (X,), {}),
        (["not_equal"], "Cast", (X,), {"to": TensorProto.BOOL}),
        (["log_softmax"], "LogSoftmax", (X,), {}),
        (["thresholded_relu"], "ThresholdedRelu", (X,), {"alpha": 0.5}),
    ],
)
def test_operations(expected: list[str], op_type: str, inputs: tuple[np.ndarray, ...], options: dict[str, Any]) -> None:
    assert operations(op_type, *inputs, **options) == expected


# Arithmetic -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize(("op_type", "function"), [("Add", np.add), ("Sub", np.subtract), ("Mul", np.multiply)])
def test_integers_wrap_around(op_type: str, function: Any, dtype: str) -> None:
    info = np.iinfo(dtype)
    a, b = np.array([info.max, info.min, 5], dtype), np.array([[3], [7]], dtype)
    with np.errstate(over="ignore"):
        check_node(op_type, a, b, opset=14, wanted=function(a, b))


@pytest.mark.parametrize("opset", [8, 13, 21])
@pytest.mark.parametrize("op_type", ["Max", "Min", "Sum", "Mean"])
def test_variadic_operators(op_type: str, opset: int) -> None:
    check_node(op_type, X, opset=opset)
    check_node(op_type, X, randn(4), randn(3, 1), opset=opset)
    check_node(op_type, randn(4), X, randn(2, 1, 1), opset=opset, constants=(0, 2))


def test_extremes_of_int64_differing_in_bit_31() -> None:
    a, b = np.array([2**31, -1]), np.array([0, -(2**31) - 1])
    check_node("Max", a, b, wanted=np.maximum(a, b))
    check_node("Min", a, b, wanted=np.minimum(a, b))


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint64"])
@pytest.mark.parametrize("fmod", [0, 1])
@pytest.mark.parametrize("constants", [(), (0,), (1,)])
def test_mod_of_integers(dtype: str, fmod: int, constants: tuple[int, ...]) -> None:
    low = 0 if dtype.startswith("u") else -9
    a = np.arange(low, 10).astype(dtype)
    for b in ([[3]], [[5]]) if low == 0 else ([[4]], [[-4]], [[3], [-3]]):
        check_node("Mod", a, np.array(b, dtype), fmod=fmod, constants=constants)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("constants", [(), (1,)])
def test_mod_of_floats(dtype: str, constants: tuple[int, ...]) -> None:
    a = np.array([-7.5, -3, -0.25, 0, 0.25, 3, 7.5, np.inf, np.nan], dtype)
    b = np.array([[2], [-2], [0.75], [0], [np.inf], [-np.inf], [np.nan]], dtype)
    with np.errstate(invalid="ignore"):
        check_node("Mod", a, b, opset=28, constants=constants, wanted=np.mod(a, b))
        check_node("Mod", a, b[:3], opset=28, constants=constants, wanted=np.mod(a, b[:3]))


def test_remainder_of_floats_is_exact() -> None:
    check_node("Mod", np.float32([6, -7.5, 1e30]), np.float32([0.1, 2, 7]), fmod=1)


@pytest.mark.parametrize("constants", [(), (1,)])
@pytest.mark.parametrize("base", ["float32", "float16", "int32", "int64"])
@pytest.mark.parametrize("exponent", ["float32", "int32", "int64"])
def test_pow_of_types(base: str, exponent: str, constants: tuple[int, ...]) -> None:
    x, y = np.array([1, -2, 3, 5], base), np.array([[2], [3], [0]], exponent)
    wanted = (x.astype("float64") ** y.astype("float64")).astype(base)
    check_node("Pow", x, y, constants=constants, wanted=wanted)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("base", ["int32", "int64"])
@pytest.mark.parametrize("exponent", ["float32", "float64"])
def test_pow_of_integers_to_floats_has_all_digits(base: str, exponent: str, constant: bool, device: str) -> None:
    x = np.array([4, 9, 125, 46340**2, 3, 10, 0, -2, 7, 1], base)
    y = np.array([0.5, 0.5, 1 / 3, 0.5, 18.75 if base == "int32" else 30.5, -1, 0, 3, 0.0625, np.inf], exponent)
    model, feed = node_model("Pow", [x, y], dynamic=(0,) if constant else (0, 1))
    (result,) = InferenceSession(model, context_on(device), specialise="always").run(None, feed)
    np.testing.assert_array_equal(result, np.power(x, y.astype("float64")).astype(base))


def test_pow_of_exponents_of_another_size() -> None:
    x = np.array([-1, 3, 7], "int32")
    wanted = np.array([-1, pow(3, 2**32 + 1, 2**32), pow(7, 2**32 + 1, 2**32)]).astype("uint32").view("int32")
    check_node("Pow", x, np.array(2**32 + 1), wanted=wanted)
    check_node("Pow", np.array([-3, 2**33]), np.array([3, 1], "uint8"), wanted=np.array([-27, 2**33]))
    check_node("Pow", np.float32([2, 4]), np.array([-1, 0.5], "float16"), wanted=np.float32([0.5, 2]))
    for base, largest in (("float32", 2**31 - 1), ("float16", 2**11 + 1)):
        odd = np.array([largest, -largest, 3])
        for exponent in (odd, odd.astype("float64")):
            x = np.array([[-2], [-1]], base)
            wanted = np.array([[-np.inf, -0.0, -8], [-1, -1, -1]], base)
            check_node("Pow", x, exponent, constants=(1,), wanted=wanted)


@pytest.mark.parametrize("dtype", ["uint8", "uint32", "uint64", "int8", "int32", "int64"])
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize("constants", [(), (1,)])
def test_shifts(dtype: str, direction: str, constants: tuple[int, ...]) -> None:
    info = np.iinfo(dtype)
    x = np.array([info.min, info.max, 0, 1, 77, info.max // 3] + ([-1, -77] if info.min else []), dtype)
    y = np.array([[0], [1], [info.bits - 1], [info.bits]] + ([[-1], [info.min]] if info.min else []), dtype)

    def shifted(number: int, by: int) -> int:
        if not 0 <= by < info.bits:
            return -1 if direction == "RIGHT" and number < 0 else 0
        return number << by if direction == "LEFT" else number >> by

    values = [[shifted(number, by) % 2**info.bits for number in x.tolist()] for by in y[:, 0].tolist()]
    wanted = np.array(values, f"uint{info.bits}").astype(dtype)
    check_node("BitShift", x, y, opset=28, constants=constants, direction=direction, wanted=wanted)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "uint64"])
def test_bitwise_not(dtype: str) -> None:
    info = np.iinfo(dtype)
    x = np.array([info.min, info.max, 0, 1, 77], dtype)
    check_node("BitwiseNot", x, wanted=~x)


@pytest.mark.parametrize("op_type", ["Sinh", "Cosh"])
def test_hyperbolic_functions_near_zero_and_near_overflow(op_type: str) -> None:
    x = np.float32([-89.3, -1, -1e-4, -1e-20, 0, 1e-20, 1e-4, 0.3, 5, 89.3, 100, np.inf, -np.inf, np.nan])
    with np.errstate(over="ignore"):
        wanted = {"Sinh": np.sinh, "Cosh": np.cosh}[op_type](x.astype("float64")).astype("float32")
    check_node(op_type, x, wanted=wanted, rtol=2e-6, atol=0)


@pytest.mark.parametrize("op_type", ["Abs", "Sign"])
def test_unsigned_integers(op_type: str) -> None:
    check_node(op_type, np.array([0, 1, 200], "uint8"))


# Casts ----------------------------------------------------------------------------------------------------------------

TYPES = ["float32", "float16", "int8", "uint8", "int32", "uint32", "int64", "uint64", "bool"]


@pytest.mark.parametrize("source", TYPES)
@pytest.mark.parametrize("target", TYPES)
def test_casts(source: str, target: str) -> None:
    x = np.array([0, 1, 3, 100]).astype(source)
    check_node("Cast", x, to=helper.np_dtype_to_tensor_dtype(np.dtype(target)), wanted=x.astype(target))
    check_node("CastLike", x, np.zeros(2, target), wanted=x.astype(target))


def test_cast_of_bool_to_uint8_and_bool() -> None:
    nodes = [
        node("Greater", "x zero", "positive"),
        node("Cast", "positive", "number", to=TensorProto.UINT8),
        node("Cast", "positive", "same", to=TensorProto.BOOL),
    ]
    outputs = dict.fromkeys(["number", "same", "positive"], "")
    proto = model(nodes, {"x": "float32[3]"}, outputs, {"zero": np.float32(0)})
    got = InferenceSession(proto, CONTEXT, fallback="error").run(None, {"x": np.float32([1, -1, 2])})
    assert [array.dtype.name for array in got] == ["uint8", "bool", "bool"]
    assert [array.tolist() for array in got] == [[1, 0, 1], [True, False, True], [True, False, True]]


def test_bits_of_integers() -> None:
    x = np.array([-1, 0, 2**31 - 1], "int32")
    check_node("BitCast", x, opset=26, to=TensorProto.UINT32, wanted=x.view("uint32"))
    check_node("BitCast", x.view("uint32"), opset=26, to=TensorProto.INT32, wanted=x)


# Clip -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("low", "high"), list(itertools.product([None, -0.5], [None, 0.25])))
def test_clip(low: float | None, high: float | None) -> None:
    bounds = [None if value is None else np.float32(value) for value in (low, high)]
    arrays = [None if value is None else np.array(value) for value in bounds]
    known = tuple(k for k, value in enumerate(bounds, 1) if value is not None)
    check_node("Clip", X, *arrays)
    check_node("Clip", X, *arrays, constants=known)
    attributes = {name: value for name, value in (("min", low), ("max", high)) if value is not None}
    check_node("Clip", X, opset=7, **attributes)
    check_node("Clip", np.float32([-np.inf, 1, np.inf]), opset=7, **attributes)


@pytest.mark.parametrize("constants", [(), (1,), (2,), (1, 2)])
def test_clip_between_crossed_bounds_is_the_upper_one(constants: tuple[int, ...]) -> None:
    low, high = np.array(2, "float32"), np.array(-1, "float32")
    check_node("Clip", X, low, high, constants=constants, wanted=np.full_like(X, -1))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("dynamic", [(0,), (0, 1), (0, 2), (0, 1, 2)])
def test_clip_takes_nan_for_no_bound(dynamic: tuple[int, ...], dtype: str, device: str) -> None:
    """Whether bounds are constants or computed; ONNX Runtime does so, ONNX's reference returns NaN.

    Absent bounds are finite, as ONNX's text and ONNX Runtime have them; ONNX's reference and function body keep infinities.
    """
    x = np.array([1, -3, np.nan, np.inf, -np.inf, 5], dtype)
    absent = [(None, None), (None, 2), (None, np.inf), (-np.inf, None), (np.inf, None)]
    for low, high in ((np.nan, 2), (-2, np.nan), (np.nan, np.nan), *absent):
        arrays = [x, *(None if bound is None else np.array(bound, dtype) for bound in (low, high))]
        proto, feed = node_model("Clip", arrays, opset=13, dynamic=[k for k in dynamic if arrays[k] is not None])
        session = InferenceSession(proto, context_on(device), fallback="error")
        np.testing.assert_array_equal(session.run(None, feed)[0], run_engine(proto, feed)[0])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64", "float16"])
def test_clip_of_types(dtype: str) -> None:
    x = np.arange(10).astype(dtype)
    check_node("Clip", x, np.array(2, dtype), np.array(6, dtype), constants=(1, 2), wanted=np.clip(x, 2, 6))


# Cumulative sums and products -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_cumulative(exclusive: int, reverse: int, axis: int) -> None:
    x = integers(-4, 5, 7, 5, dtype="int64")
    options = {"constants": (1,), "exclusive": exclusive, "reverse": reverse}
    check_node("CumSum", x, np.array(axis), **options)
    turned = np.flip(x, axis) if reverse else x
    products = np.cumprod(turned, axis)
    if exclusive:
        products = np.roll(products, 1, axis)
        np.moveaxis(products, axis, 0)[0] = 1
    wanted = np.flip(products, axis) if reverse else products
    check_node("CumProd", x, np.array(axis), opset=26, wanted=wanted, **options)
    check_node("CumProd", x.astype("float32"), np.array(axis), opset=26, wanted=wanted.astype("float32"), **options)


def test_cumulative_products_of_one_number() -> None:
    x = np.float32([[np.inf], [2]])
    check_node("CumProd", x, np.array(1), opset=26, constants=(1,), wanted=x)
    check_node("CumProd", x, np.array(1), opset=26, constants=(1,), exclusive=1, wanted=np.ones_like(x))


def test_range_of_type_without_engine_kernel() -> None:
    bounds = [np.array(value, "float16") for value in (1, 5, 1.5)]
    proto, _ = node_model("Range", bounds, opset=27, dynamic=())
    assert InferenceSession(proto, CONTEXT, fallback="error").run(None, {})[0].tolist() == [1, 2.5, 4]


# Logic ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op_type", ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"])
@pytest.mark.parametrize("dtype", ["float32", "int32", "int64"])
def test_comparisons(op_type: str, dtype: str) -> None:
    check_node(op_type, integers(0, 3, 4, 5, dtype=dtype), integers(0, 3, 5, dtype=dtype), opset=16)


@pytest.mark.parametrize("op_type", ["And", "Or", "Xor", "Equal"])
def test_bools(op_type: str) -> None:
    check_node(op_type, integers(0, 2, 2, 5, dtype="bool"), integers(0, 2, 5, dtype="bool"), opset=13)


@pytest.mark.parametrize("negative", [0, 1])
@pytest.mark.parametrize("positive", [0, 1])
def test_infinities(negative: int, positive: int) -> None:
    x = np.float32([1, np.inf, -np.inf, np.nan])
    check_node("IsInf", x, detect_negative=negative, detect_positive=positive)
