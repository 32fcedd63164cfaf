"""ONNX's arithmetic, logic, activations, reductions and matrix products: versions, options and types."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import opweave as ow
from opweave.graph import Graph
from opweave.onnx.model import Model
from opweave.onnx.session import InferenceSession
from opweave.onnx.trace import Tensor, Tracer

MICROSOFT = "com.microsoft"
CONTEXT = ow.ml.create_context()

rng = np.random.default_rng(3)


def randn(*shape: int, dtype: str = "float32") -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


def integers(low: int, high: int, *shape: int, dtype: str = "int32") -> np.ndarray:
    return rng.integers(low, high, shape).astype(dtype)


def model(
    op_type: str,
    inputs: tuple[np.ndarray | None, ...],
    constants: tuple[int, ...] = (),
    opset: int = 21,
    domain: str = "",
    outputs: int = 1,
    **attributes: Any,
) -> tuple[ModelProto, dict[str, np.ndarray]]:
    """A model of one node, and what to feed it; the inputs numbered in `constants` are initializers."""
    names = [f"i{k}" if array is not None else "" for k, array in enumerate(inputs)]
    made = [f"o{k}" for k in range(outputs)]
    given = {f"i{k}": array for k, array in enumerate(inputs) if array is not None}
    weights = [numpy_helper.from_array(given.pop(f"i{k}"), f"i{k}") for k in constants]
    node = helper.make_node(op_type, names, made, "the node", domain=domain, **attributes)
    declared = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in given.items()
    ]
    graph = helper.make_graph([node], "g", declared, [helper.make_empty_tensor_value_info(m) for m in made], weights)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), given


def check(
    op_type: str,
    *inputs: np.ndarray | None,
    wanted: Any = None,
    rtol: float = 1e-5,
    atol: float = 1e-6,
    **options: Any,
) -> np.ndarray:
    """Run a node without fallback, and compare with `wanted`, or else with the engine's own result."""
    proto, feed = model(op_type, inputs, **options)
    if wanted is None:
        engine = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        wanted = engine.run(None, feed)
    elif not isinstance(wanted, list):
        wanted = [wanted]
    got = InferenceSession(proto, CONTEXT, fallback="error").run(None, feed)
    for mine, other in zip(got, wanted, strict=True):
        assert mine.dtype == other.dtype
        assert mine.shape == other.shape
        np.testing.assert_allclose(mine, other, rtol=rtol, atol=atol)
    first: np.ndarray = got[0]
    return first


def operations(op_type: str, *inputs: np.ndarray | None, **options: Any) -> list[str]:
    """The WebNN operations that a node becomes."""
    proto, feed = model(op_type, inputs, **options)
    shapes = {name: array.shape for name, array in feed.items()}
    value = Tracer(Model.load(proto), CONTEXT, shapes).run().values["o0"]
    assert isinstance(value, Tensor)
    return [node.op.name for node in Graph.reaching({"y": value.operand}).nodes]


def reason(op_type: str, *inputs: np.ndarray | None, **options: Any) -> str:
    """Why a node falls back; what it then yields is the engine's."""
    proto, feed = model(op_type, inputs, **options)
    session = InferenceSession(proto, CONTEXT)
    engine = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, feed)[0], engine.run(None, feed)[0])
    return session.explain()


# No more operations than needed --------------------------------------------------------------------------------------

X = randn(2, 3, 4)


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
        (["reduce_max", "sub", "exp", "reduce_sum", "log", "sub"], "LogSoftmax", (X,), {}),
    ],
)
def test_operations(expected: list[str], op_type: str, inputs: tuple[np.ndarray, ...], options: dict[str, Any]) -> None:
    assert operations(op_type, *inputs, **options) == expected


# Arithmetic ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize(("op_type", "function"), [("Add", np.add), ("Sub", np.subtract), ("Mul", np.multiply)])
def test_integers_wrap_around(op_type: str, function: Any, dtype: str) -> None:
    info = np.iinfo(dtype)
    a, b = np.array([info.max, info.min, 5], dtype), np.array([[3], [7]], dtype)
    with np.errstate(over="ignore"):
        check(op_type, a, b, opset=14, wanted=function(a, b))


@pytest.mark.parametrize("opset", [8, 13, 21])
@pytest.mark.parametrize("op_type", ["Max", "Min", "Sum", "Mean"])
def test_any_number_of_inputs(op_type: str, opset: int) -> None:
    check(op_type, X, opset=opset)
    check(op_type, X, randn(4), randn(3, 1), opset=opset)
    check(op_type, randn(4), X, randn(2, 1, 1), opset=opset, constants=(0, 2))


def test_extremes_of_int64_differing_in_bit_31() -> None:
    a, b = np.array([2**31, -1]), np.array([0, -(2**31) - 1])
    check("Max", a, b, wanted=np.maximum(a, b))
    check("Min", a, b, wanted=np.minimum(a, b))


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint64"])
@pytest.mark.parametrize("fmod", [0, 1])
@pytest.mark.parametrize("constants", [(), (0,), (1,)])
def test_mod_of_integers(dtype: str, fmod: int, constants: tuple[int, ...]) -> None:
    low = 0 if dtype.startswith("u") else -9
    a = np.arange(low, 10).astype(dtype)
    for b in ([[3]], [[5]]) if low == 0 else ([[4]], [[-4]], [[3], [-3]]):
        check("Mod", a, np.array(b, dtype), fmod=fmod, constants=constants)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("constants", [(), (1,)])
def test_mod_of_floats(dtype: str, constants: tuple[int, ...]) -> None:
    a = np.array([-7.5, -3, -0.25, 0, 0.25, 3, 7.5, np.inf, np.nan], dtype)
    b = np.array([[2], [-2], [0.75], [0], [np.inf], [-np.inf], [np.nan]], dtype)
    with np.errstate(invalid="ignore"):
        check("Mod", a, b, opset=28, constants=constants, wanted=np.mod(a, b))
        check("Mod", a, b[:3], opset=28, constants=constants, wanted=np.mod(a, b[:3]))


def test_remainder_of_floats_falls_back() -> None:
    assert "rounded quotient" in reason("Mod", np.float32([6, -7.5]), np.float32([0.1, 2]), fmod=1)


@pytest.mark.parametrize("constants", [(), (1,)])
@pytest.mark.parametrize("base", ["float32", "float16", "int32", "int64"])
@pytest.mark.parametrize("exponent", ["float32", "int32", "int64"])
def test_pow_of_types(base: str, exponent: str, constants: tuple[int, ...]) -> None:
    x, y = np.array([1, -2, 3, 5], base), np.array([[2], [3], [0]], exponent)
    if base.startswith("int") and exponent == "float32" and not constants:
        assert "more digits" in reason("Pow", x, y)
    else:
        wanted = (x.astype("float64") ** y.astype("float64")).astype(base)
        check("Pow", x, y, constants=constants, wanted=wanted)


def test_pow_of_exponents_of_another_size() -> None:
    x = np.array([-1, 3, 7], "int32")
    wanted = np.array([-1, pow(3, 2**32 + 1, 2**32), pow(7, 2**32 + 1, 2**32)]).astype("uint32").view("int32")
    check("Pow", x, np.array(2**32 + 1), wanted=wanted)
    check("Pow", np.array([-3, 2**33]), np.array([3, 1], "uint8"), wanted=np.array([-27, 2**33]))
    check("Pow", np.float32([2, 4]), np.array([-1, 0.5], "float16"), wanted=np.float32([0.5, 2]))


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
    check("BitShift", x, y, opset=28, constants=constants, direction=direction, wanted=wanted)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "uint64"])
def test_bitwise_not(dtype: str) -> None:
    info = np.iinfo(dtype)
    x = np.array([info.min, info.max, 0, 1, 77], dtype)
    check("BitwiseNot", x, wanted=~x)


@pytest.mark.parametrize("op_type", ["Sinh", "Cosh"])
def test_hyperbolic_functions_near_zero_and_near_overflow(op_type: str) -> None:
    x = np.float32([-89.3, -1, -1e-4, -1e-20, 0, 1e-20, 1e-4, 0.3, 5, 89.3, 100, np.inf, -np.inf, np.nan])
    with np.errstate(over="ignore"):
        wanted = {"Sinh": np.sinh, "Cosh": np.cosh}[op_type](x.astype("float64")).astype("float32")
    check(op_type, x, wanted=wanted, rtol=2e-6, atol=0)


@pytest.mark.parametrize("op_type", ["Abs", "Sign"])
def test_unsigned_integers(op_type: str) -> None:
    check(op_type, np.array([0, 1, 200], "uint8"))


# Casts ---------------------------------------------------------------------------------------------------------------

TYPES = ["float32", "float16", "int8", "uint8", "int32", "uint32", "int64", "uint64", "bool"]


@pytest.mark.parametrize("source", TYPES)
@pytest.mark.parametrize("target", TYPES)
def test_casts(source: str, target: str) -> None:
    x = np.array([0, 1, 3, 100]).astype(source)
    check("Cast", x, to=helper.np_dtype_to_tensor_dtype(np.dtype(target)), wanted=x.astype(target))
    check("CastLike", x, np.zeros(2, target), wanted=x.astype(target))


def test_a_bool_and_its_number_are_two_tensors() -> None:
    nodes = [
        helper.make_node("Greater", ["x", "zero"], ["positive"]),
        helper.make_node("Cast", ["positive"], ["number"], to=TensorProto.UINT8),
        helper.make_node("Cast", ["positive"], ["same"], to=TensorProto.BOOL),
    ]
    zero = numpy_helper.from_array(np.float32(0), "zero")
    made = [helper.make_empty_tensor_value_info(name) for name in ("number", "same", "positive")]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])
    proto = helper.make_model(helper.make_graph(nodes, "g", [x], made, [zero]), ir_version=10)
    proto.opset_import[0].version = 21
    got = InferenceSession(proto, CONTEXT, fallback="error").run(None, {"x": np.float32([1, -1, 2])})
    assert [array.dtype.name for array in got] == ["uint8", "bool", "bool"]
    assert [array.tolist() for array in got] == [[1, 0, 1], [True, False, True], [True, False, True]]


def test_bits_of_integers() -> None:
    x = np.array([-1, 0, 2**31 - 1], "int32")
    check("BitCast", x, opset=26, to=TensorProto.UINT32, wanted=x.view("uint32"))
    check("BitCast", x.view("uint32"), opset=26, to=TensorProto.INT32, wanted=x)


# Clip ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("low", "high"), list(itertools.product([None, -0.5], [None, 0.25])))
def test_clip(low: float | None, high: float | None) -> None:
    bounds = [None if value is None else np.float32(value) for value in (low, high)]
    arrays = [None if value is None else np.array(value) for value in bounds]
    known = tuple(k for k, value in enumerate(bounds, 1) if value is not None)
    check("Clip", X, *arrays)
    check("Clip", X, *arrays, constants=known)
    attributes = {name: value for name, value in (("min", low), ("max", high)) if value is not None}
    check("Clip", X, opset=7, **attributes)


@pytest.mark.parametrize("constants", [(), (1,), (2,), (1, 2)])
def test_clip_between_crossed_bounds_is_the_upper_one(constants: tuple[int, ...]) -> None:
    low, high = np.array(2, "float32"), np.array(-1, "float32")
    check("Clip", X, low, high, constants=constants, wanted=np.full_like(X, -1))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64", "float16"])
def test_clip_of_types(dtype: str) -> None:
    x = np.arange(10).astype(dtype)
    check("Clip", x, np.array(2, dtype), np.array(6, dtype), constants=(1, 2), wanted=np.clip(x, 2, 6))


# Cumulative sums and products ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_cumulative(exclusive: int, reverse: int, axis: int) -> None:
    x = integers(-4, 5, 7, 5, dtype="int64")
    options = {"constants": (1,), "exclusive": exclusive, "reverse": reverse}
    check("CumSum", x, np.array(axis), **options)
    turned = np.flip(x, axis) if reverse else x
    products = np.cumprod(turned, axis)
    if exclusive:
        products = np.roll(products, 1, axis)
        np.moveaxis(products, axis, 0)[0] = 1
    wanted = np.flip(products, axis) if reverse else products
    check("CumProd", x, np.array(axis), opset=26, wanted=wanted, **options)
    check("CumProd", x.astype("float32"), np.array(axis), opset=26, wanted=wanted.astype("float32"), **options)


def test_cumulative_products_of_one_number() -> None:
    x = np.float32([[np.inf], [2]])
    check("CumProd", x, np.array(1), opset=26, constants=(1,), wanted=x)
    check("CumProd", x, np.array(1), opset=26, constants=(1,), exclusive=1, wanted=np.ones_like(x))


def test_range_of_a_type_that_the_engine_has_not() -> None:
    bounds = [np.array(value, "float16") for value in (1, 5, 1.5)]
    proto, _ = model("Range", tuple(bounds), (0, 1, 2), opset=27)
    assert InferenceSession(proto, CONTEXT, fallback="error").run(None, {})[0].tolist() == [1, 2.5, 4]


# Logic ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op_type", ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"])
@pytest.mark.parametrize("dtype", ["float32", "int32", "int64"])
def test_comparisons(op_type: str, dtype: str) -> None:
    check(op_type, integers(0, 3, 4, 5, dtype=dtype), integers(0, 3, 5, dtype=dtype), opset=16)


@pytest.mark.parametrize("op_type", ["And", "Or", "Xor", "Equal"])
def test_bools(op_type: str) -> None:
    check(op_type, integers(0, 2, 2, 5, dtype="bool"), integers(0, 2, 5, dtype="bool"), opset=13)


@pytest.mark.parametrize("negative", [0, 1])
@pytest.mark.parametrize("positive", [0, 1])
def test_infinities(negative: int, positive: int) -> None:
    x = np.float32([1, np.inf, -np.inf, np.nan])
    check("IsInf", x, detect_negative=negative, detect_positive=positive)


# Activations ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op_type", "options"),
    [
        ("Celu", {"alpha": 2.5}),
        ("Celu", {}),
        ("Elu", {"alpha": 0.5}),
        ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}),
        ("HardSwish", {}),
        ("LeakyRelu", {"alpha": 0.2}),
        ("Mish", {}),
        ("Selu", {}),
        ("Selu", {"alpha": 2.0, "gamma": 3.0}),
        ("Shrink", {"lambd": 0.3, "bias": 0.2}),
        ("Shrink", {"lambd": 1.0}),
        ("ThresholdedRelu", {"alpha": 0.3}),
        ("ThresholdedRelu", {}),
        ("Swish", {"alpha": 1.5, "opset": 24}),
        ("Gelu", {}),
        ("Gelu", {"approximate": "tanh"}),
        ("Gelu", {"domain": MICROSOFT}),
        ("QuickGelu", {"domain": MICROSOFT}),
        ("QuickGelu", {"domain": MICROSOFT, "alpha": 1.0}),
        ("FastGelu", {"domain": MICROSOFT}),
    ],
)
def test_activations(op_type: str, options: dict[str, Any]) -> None:
    check(op_type, 3 * randn(4, 33), **{"opset": 22, **options})


def test_activations_with_a_bias() -> None:
    check("FastGelu", X, randn(4), domain=MICROSOFT)
    check("BiasGelu", X, randn(4), domain=MICROSOFT)


def test_prelu_of_versions() -> None:
    for opset in (7, 9, 16):
        check("PRelu", X, randn(3, 1), opset=opset)
    x = integers(-4, 5, 3, 4)
    check("PRelu", x, np.array([2], "int32"), constants=(1,), wanted=np.where(x < 0, 2 * x, x))


def test_shrinking_integers_falls_back() -> None:
    assert "compared with a float" in reason("Shrink", np.array([-3, 0, 3], "int32"), lambd=1.5)


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize(("opset", "axis"), [(9, None), (11, 0), (11, 1), (12, -2), (13, None), (13, 0), (21, 1)])
def test_softmax_of_versions(op_type: str, opset: int, axis: int | None) -> None:
    check(op_type, 4 * X, opset=opset, **({} if axis is None else {"axis": axis}))


def test_log_softmax_keeps_the_digits_of_large_numbers() -> None:
    x = np.float32([[10000, 10001, 10002, 10003]])
    check("LogSoftmax", x, wanted=np.float32([[-3.4401897, -2.4401897, -1.4401897, -0.4401897]]), rtol=1e-6)


def test_hardmax_takes_the_first_of_equals() -> None:
    check("Hardmax", np.float32([[1, 3, 3], [2, 2, 0]]), wanted=np.float32([[0, 1, 0], [1, 0, 0]]))


# Reductions ----------------------------------------------------------------------------------------------------------

REDUCTIONS = ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"]


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("axes", [None, [1], [0, -1], [2, 0]])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_reductions(name: str, axes: list[int] | None, keepdims: int) -> None:
    x = np.abs(X) + 0.1
    check(f"Reduce{name}", x, opset=11, keepdims=keepdims, **({} if axes is None else {"axes": axes}))
    inputs = (x,) if axes is None else (x, np.array(axes))
    check(f"Reduce{name}", *inputs, opset=18, constants=() if axes is None else (1,), keepdims=keepdims)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_over_no_axes(name: str) -> None:
    # The engine hands its input on; ONNX reduces each element by itself.
    x = np.float32([[1, 2], [3, 4]])
    by_element = {"LogSum": np.log(x), "SumSquare": x * x}.get(name, x)
    check(f"Reduce{name}", x, opset=18, noop_with_empty_axes=1, wanted=by_element)
    check(f"Reduce{name}", x, np.zeros(0, "int64"), opset=18, constants=(1,), noop_with_empty_axes=0)


@pytest.mark.parametrize("name", ["Max", "Min", "Sum", "Prod", "L1", "SumSquare"])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_reductions_of_integers(name: str, dtype: str) -> None:
    check(f"Reduce{name}", integers(-5, 6, 3, 4, dtype=dtype), opset=13)


def test_sum_with_axes_as_input_since_13() -> None:
    check("ReduceSum", X, np.array([1]), opset=13, constants=(1,), keepdims=0)
    check("ReduceSum", X, opset=12, axes=[1], keepdims=0)


def test_extremes_of_bools() -> None:
    x = np.array([[True, False], [True, True]])
    check("ReduceMax", x, np.array([1]), opset=20, constants=(1,), keepdims=0, wanted=x.any(1))
    check("ReduceMin", x, np.array([1]), opset=20, constants=(1,), keepdims=0, wanted=x.all(1))


@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_positions(op_type: str, last: int, keepdims: int, axis: int) -> None:
    x = integers(0, 3, 4, 5, 6, dtype="float32")
    check(op_type, x, opset=12, axis=axis, keepdims=keepdims, select_last_index=last)
    check(op_type, x.astype("int32"), opset=13, axis=axis, keepdims=keepdims, select_last_index=last)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [0, -1])
def test_lp_normalization(p: int, axis: int) -> None:
    x = randn(3, 4)
    x[1] = 0
    x[:, 2] = 0
    norm = np.linalg.norm(x.astype("float64"), p, axis, keepdims=True)
    wanted = np.divide(x, norm, out=np.zeros_like(x), where=norm != 0)
    check("LpNormalization", x, opset=22, p=p, axis=axis, wanted=wanted)


@pytest.mark.parametrize(("opset", "axes"), [(9, None), (13, [1]), (13, [0, 1, 2, 3]), (13, [2, -1])])
def test_mean_variance_normalization(opset: int, axes: list[int] | None) -> None:
    x = 3 + 2 * randn(2, 3, 4, 5)
    over = tuple(axes or (0, 2, 3))
    wanted = (x - x.mean(over, keepdims=True)) / x.std(over, keepdims=True)
    check("MeanVarianceNormalization", x, opset=opset, wanted=wanted, **({} if axes is None else {"axes": axes}))


def test_a_constant_row_has_no_variance() -> None:
    x = np.full((1, 1, 2, 2), 5, "float32")
    check("MeanVarianceNormalization", x, wanted=np.zeros_like(x))


# Matrix products -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "right"),
    [((4,), (4,)), ((4,), (4, 3)), ((2, 4), (4,)), ((5, 2, 4), (4,)), ((4,), (5, 4, 3)), ((5, 1, 2, 4), (3, 4, 2))],
)
def test_matmul_of_ranks(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = randn(*left), randn(*right)
    check("MatMul", a, b, wanted=np.asarray(a @ b))
    check("MatMul", a, b, constants=(0,), wanted=np.asarray(a @ b))
    check("FusedMatMul", a, b, domain=MICROSOFT, alpha=0.5, wanted=np.asarray(np.float32(0.5) * (a @ b)))


@pytest.mark.parametrize("shape", [None, (), (1,), (5,), (3, 1), (1, 5), (3, 5)])
@pytest.mark.parametrize(("trans_a", "trans_b"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_gemm(shape: tuple[int, ...] | None, trans_a: int, trans_b: int) -> None:
    a, b = randn(*((4, 3) if trans_a else (3, 4))), randn(*((5, 4) if trans_b else (4, 5)))
    c = () if shape is None else (randn(*shape),)
    options = {"transA": trans_a, "transB": trans_b, "alpha": 0.5, "beta": 2.0}
    check("Gemm", a, b, *c, opset=13 if shape is None else 7, **options)


@pytest.mark.parametrize(("trans_a", "trans_b"), [(1, 0), (0, 1), (1, 1)])
def test_fused_matmul_of_stacks(trans_a: int, trans_b: int) -> None:
    a, b = randn(*((2, 4, 3) if trans_a else (2, 3, 4))), randn(*((2, 5, 4) if trans_b else (2, 4, 5)))
    check("FusedMatMul", a, b, domain=MICROSOFT, transA=trans_a, transB=trans_b, alpha=0.25)


@pytest.mark.parametrize(
    ("activation", "options"),
    [
        ("Relu", {}),
        ("LeakyRelu", {"activation_alpha": 0.3}),
        ("Tanh", {}),
        ("Sigmoid", {}),
        ("Softplus", {}),
        ("HardSigmoid", {"activation_alpha": 0.3, "activation_beta": 0.4}),
    ],
)
def test_fused_gemm(activation: str, options: dict[str, Any]) -> None:
    check("FusedGemm", randn(3, 4), randn(4, 5), randn(5), domain=MICROSOFT, activation=activation, **options)


# Einsum --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("ij,jk->ki", [(2, 3), (3, 4)]),
        ("ji,kj", [(3, 2), (4, 3)]),
        ("ij->", [(2, 3)]),
        ("ij->j", [(2, 3)]),
        ("ii->i", [(3, 3)]),
        ("ii", [(3, 3)]),
        ("iij->ji", [(3, 3, 2)]),
        ("iii->i", [(3, 3, 3)]),
        ("i,j->ij", [(2,), (3,)]),
        ("i,i", [(3,), (3,)]),
        ("i,i->i", [(3,), (3,)]),
        (",ij->ij", [(), (2, 3)]),
        ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("bqhd,bkhd->bhqk", [(2, 4, 3, 5), (2, 6, 3, 5)]),
        ("bhqk,bkhd->bqhd", [(2, 3, 4, 6), (2, 6, 3, 5)]),
        ("bnd,de->bne", [(2, 3, 4), (4, 5)]),
        ("abc,cde->abde", [(2, 3, 4), (4, 2, 3)]),
        ("abcd,cd->ab", [(2, 3, 4, 5), (4, 5)]),
        ("ab,ab->", [(2, 3), (2, 3)]),
        ("ab,cb->", [(2, 3), (4, 3)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
        ("ij,ij,ij->i", [(2, 3), (2, 3), (2, 3)]),
        ("i,ij,j->", [(2,), (2, 3), (3,)]),
        ("...ij,...jk->...ik", [(2, 3, 4), (2, 4, 5)]),
        ("...ij,...jk->...ik", [(7, 1, 3, 4), (2, 4, 5)]),
        ("...ij,jk", [(2, 3, 4), (4, 5)]),
        ("i...->i...", [(2, 3)]),
        ("...i,...i->...", [(4, 2, 3), (3,)]),
        ("b...,b->b...", [(2, 3, 4), (2,)]),
        ("ib, ik -> bk", [(2, 3), (2, 4)]),
        ("aB,Bc->ca", [(2, 3), (3, 4)]),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    inputs = [randn(*shape) for shape in shapes]
    check("Einsum", *inputs, equation=equation, wanted=np.asarray(np.einsum(equation, *inputs)), rtol=1e-4, atol=1e-5)
    whole = [integers(-3, 4, *shape) for shape in shapes]
    check("Einsum", *whole, equation=equation, wanted=np.asarray(np.einsum(equation, *whole)))


def test_einsum_of_a_size_that_broadcasts_and_is_summed() -> None:
    a, b = randn(3, 1), randn(4, 5)
    check("Einsum", a, b, equation="ij,jk->ik", wanted=a * b.sum(0), rtol=1e-4)


# Losses --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", [None, 2, -1])
@pytest.mark.parametrize("inner", [(), (4,)])
def test_losses(reduction: str, weighted: bool, ignored: int | None, inner: tuple[int, ...]) -> None:
    scores, labels = randn(6, 5, *inner), integers(0, 5, 6, *inner, dtype="int64")
    if ignored is not None:
        labels[0] = ignored
    weights = (np.abs(randn(5)),) if weighted else ()
    options = {"reduction": reduction} if ignored is None else {"reduction": reduction, "ignore_index": ignored}
    check("NegativeLogLikelihoodLoss", scores, labels, *weights, opset=13, **options)
    check("SoftmaxCrossEntropyLoss", scores, labels, *weights, opset=13, outputs=2, **options)


def test_an_ignored_target_may_have_an_infinite_loss() -> None:
    scores, labels = np.float32([[-np.inf, 0], [0, -1]]), np.array([0, 1])
    check("NegativeLogLikelihoodLoss", scores, labels, ignore_index=0, wanted=np.asarray(np.float32(1)))
