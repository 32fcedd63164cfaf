"""Data types of ONNX that WebNN lacks, and tensors without elements, in graphs of models."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from support.onnx_nodes import node_model, run_engine

import opweave as ow
from opweave.core.casts import cast_array, compute_form
from opweave.core.dtypes import BEYOND, INFO
from opweave.onnx.convert.inference import infer
from opweave.onnx.model.model import Model
from opweave.onnx.model.values import Constant

CONTEXT = ow.ml.create_context(device="cpu")
TYPES = [*BEYOND, "float32", "float16", "int8", "uint8", "int32", "int64"]


def whole(model: onnx.ModelProto, context: ow.MLContext = CONTEXT) -> Any:
    """A session that runs no node in the engine uncompiled."""
    return ow.InferenceSession(model, context, fallback="error")


def cast_model(source: str, target: str, **attributes: Any) -> onnx.ModelProto:
    node = helper.make_node("Cast", ["x"], ["y"], to=INFO[target].onnx, **attributes)
    values = [helper.make_tensor_value_info(n, INFO[t].onnx, [4, 8]) for n, t in (("x", source), ("y", target))]
    graph = helper.make_graph([node], "casts", values[:1], values[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=12)


@pytest.mark.parametrize("target", TYPES)
@pytest.mark.parametrize("source", TYPES)
def test_casts_equal_the_reference_of_onnx(source: str, target: str) -> None:
    """In the range of both types; ties of integers of few bits, which ONNX's reference truncates, are left out."""
    numbers = np.random.default_rng(3).integers(0, 2, (4, 8)).astype(np.float64)
    if INFO[source].kind == "f" and INFO[target].kind == "f" and "e8m0" not in f"{source} {target}":
        numbers = np.random.default_rng(3).standard_normal((4, 8)) * 3
    if "float8_e8m0fnu" in (source, target):
        numbers += 1
    if "int2" in (source, target):
        numbers = np.minimum(numbers, 1)
    if target == "float8_e8m0fnu" and source == "int2":
        pytest.skip("int2 has no positive number but 1")
    x = cast_array(numbers, source)
    model = cast_model(source, target)
    (got,) = whole(model).run(None, {"x": x})
    # ONNX's reference lacks casts between types of few bits.
    is_narrow = INFO[source].is_narrow and INFO[target].is_narrow
    expected: Any = ReferenceEvaluator(model).run(None, {"x": compute_form(x) if is_narrow else x})[0]
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got.astype(np.float64), expected.astype(np.float64))


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("source", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("target", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"])
def test_saturation_is_that_of_onnx(source: str, target: str, saturate: int) -> None:
    numbers = [
        0,
        -0.0,
        447,
        448,
        464,
        480,
        496,
        500,
        -500,
        57344,
        61439,
        61440,
        65000,
        -65000,
        np.inf,
        -np.inf,
        np.nan,
        1e-3,
    ]
    x = cast_array(np.resize(numbers, (4, 8)), source)
    model = cast_model(source, target, saturate=saturate)
    (got,) = whole(model).run(None, {"x": x})
    with np.errstate(all="ignore"):
        expected: Any = ReferenceEvaluator(model).run(None, {"x": compute_form(x) if source == "bfloat16" else x})[0]
    np.testing.assert_array_equal(got.astype(np.float32), expected.astype(np.float32))


def test_bfloat16_network_runs_whole() -> None:
    random = np.random.default_rng(4)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Add", ["a", "c"], ["b"]),
        helper.make_node("Gelu", ["b"], ["g"]),
        helper.make_node("LayerNormalization", ["g", "c"], ["n"]),
        helper.make_node("Softmax", ["n"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.BFLOAT16, [4, 32]) for name in "xy"]
    arrays = {"w": random.standard_normal((32, 32)), "c": random.standard_normal(32)}
    weights = [onnx.numpy_helper.from_array(cast_array(array, "bfloat16"), name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "network", values[:1], values[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    x = cast_array(random.standard_normal((4, 32)), "bfloat16")
    (got,), (expected,) = (
        whole(model, ow.ml.create_context(device=device)).run(None, {"x": x}) for device in ("cpu", "reference")
    )
    assert got.dtype == expected.dtype == x.dtype
    np.testing.assert_allclose(got.astype(np.float32), expected.astype(np.float32), rtol=2.0**-6, atol=2.0**-9)


# Tensors without elements ---------------------------------------------------------------------------------------------


def floats(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


EMPTY: list[tuple[str, list[Any], dict[str, Any]]] = [
    *((name, [floats(2, 0, 3)], {}) for name in ("Relu", "Exp", "Softmax", "Shape", "IsNaN", "Gelu")),
    *((name, [floats(2, 0, 3), floats(1, 1, 3)], {}) for name in ("Add", "Div", "Max", "Less")),
    ("MatMul", [floats(2, 0), floats(0, 3)], {}),
    ("MatMul", [floats(0, 2), floats(2, 3)], {}),
    ("Gemm", [floats(2, 0), floats(0, 3), floats(3)], {}),
    ("Concat", [floats(2, 0), floats(2, 3)], {"axis": 1}),
    ("Reshape", [floats(2, 0, 3), ints(3, 0)], {"allowzero": 1}),
    ("Transpose", [floats(2, 0, 3)], {"perm": [2, 0, 1]}),
    ("Slice", [floats(4, 3), ints(2), ints(2), ints(0)], {}),
    ("Gather", [floats(3, 0), ints(1, 2)], {"axis": 0}),
    ("Gather", [floats(3, 2), np.zeros((0, 2), np.int64)], {"axis": 1}),
    ("Expand", [floats(1, 3), ints(0, 3)], {}),
    ("Tile", [floats(2, 3), ints(0, 1)], {}),
    ("Pad", [floats(0, 3), ints(1, 0, 1, 0), np.float32(2)], {}),
    ("Where", [np.zeros((0, 3), bool), floats(0, 3), floats(1, 3)], {}),
    ("Conv", [floats(0, 2, 5, 5), floats(3, 2, 3, 3)], {}),
    ("MaxPool", [floats(0, 2, 5, 5)], {"kernel_shape": [2, 2]}),
    ("LayerNormalization", [floats(0, 3), floats(3)], {}),
    ("ScatterND", [floats(4, 3), np.zeros((0, 1), np.int64), floats(0, 3)], {}),
    *(
        (f"Reduce{name}", [floats(2, 0, 3), ints(axis)], {"keepdims": keep})
        for name in ("Sum", "Max", "Min", "Prod", "L2", "LogSumExp", "SumSquare")
        for axis, keep in ((1, 0), (0, 1))
    ),
]


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize(("op_type", "inputs", "attributes"), EMPTY)
def test_tensors_without_elements_run_whole(
    op_type: str, inputs: list[Any], attributes: dict[str, Any], device: str
) -> None:
    model, feed = node_model(op_type, inputs, attributes, opset=20)
    (got,) = whole(model, ow.ml.create_context(device=device)).run(None, feed)
    (expected,) = run_engine(model, feed)
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("element", [bool, np.uint8])
def test_element_types_without_shape_inference(element: type) -> None:
    """ONNX's inference reads no axes of int32; bools became uint8."""
    x: np.ndarray = np.eye(2, 3, dtype=element)
    model, feed = node_model("Pad", [x, ints(1, 1), None, np.int32([0])], opset=19)
    (got,) = whole(model).run(None, feed)
    assert got.dtype == element
    np.testing.assert_array_equal(got, np.pad(x, ((1, 1), (0, 0))))


def test_element_types_of_states_without_shape_inference() -> None:
    """The states of a loop have types of their own."""
    loop = helper.make_node("Loop", ["count", "", "x", "k"], ["y", "z"])
    values = [Constant(np.array(3)), None, Constant(np.ones(3, np.float32)), Constant(np.ones(3, np.int64))]
    model = Model(helper.make_model(helper.make_graph([loop], "g", [], [])), opsets={"": 21})
    assert infer(loop, values, model, {}) == {}
