"""Quantised ONNX models on OpenVINO whose scales its passes for 8 bits would misread, against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.openvino_device import openvino_context

import opweave as ow


def model(nodes: list[Any], inputs: dict[str, np.ndarray], weights: dict[str, np.ndarray], result: int) -> Any:
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in inputs.items()
    ]
    output = helper.make_tensor_value_info("y", result, None)
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "quantised", infos, [output], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def assert_same(proto: Any, feed: dict[str, np.ndarray], tolerance: float) -> None:
    contexts = openvino_context(), ow.ml.create_context(device="reference")
    found, wanted = (
        np.asarray(ow.InferenceSession(proto, context=context, specialise="always").run(None, feed)[0], "float64")
        for context in contexts
    )
    assert np.abs(found - wanted).max() <= tolerance


def pair(name: str, **attributes: int) -> list[Any]:
    """Nodes that quantise `name`, and dequantise it as `name`_d."""
    known = [f"{name}_scale", f"{name}_zero"]
    return [
        helper.make_node("QuantizeLinear", [name, *known], [f"{name}_q"], **attributes),
        helper.make_node("DequantizeLinear", [f"{name}_q", *known], [f"{name}_d"], **attributes),
    ]


def steps(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Floats that are not near the middle between two steps of 0.01."""
    return ((rng.integers(-90, 90, shape) + rng.uniform(-0.3, 0.3, shape)) * 0.01).astype("float32")


@pytest.mark.parametrize("is_quantised", [True, False])
def test_computed_matrices_with_a_scale_for_each_column(is_quantised: bool) -> None:
    """The second operand is quantised by the model, or an input of integers."""
    rng = np.random.default_rng(0)
    integers, scale = rng.integers(-128, 127, (32, 32)).astype("int8"), rng.uniform(0.002, 0.02, 32).astype("float32")
    weights = {
        "x_scale": np.float32(0.01),
        "x_zero": np.array(0, "uint8"),
        "w_scale": scale,
        "w_zero": np.zeros(32, "int8"),
    }
    feed = {
        "x": (rng.integers(0, 256, (32, 32)) * 0.01).astype("float32"),
        "w": integers * scale if is_quantised else integers,
    }
    other = [helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["w_d"], axis=1)]
    nodes = [*pair("x"), *(pair("w", axis=1) if is_quantised else other)]
    nodes.append(helper.make_node("MatMul", ["x_d", "w_d"], ["y"]))
    assert_same(model(nodes, feed, weights, TensorProto.FLOAT), feed, 1e-3)


@pytest.mark.parametrize("data_type", ["int8", "uint8"])
def test_transposed_convolutions_with_zero_points_of_their_filters(data_type: str) -> None:
    rng = np.random.default_rng(0)
    feed = {"x": steps(rng, (1, 8, 6, 6))}
    info = np.iinfo(data_type)
    weights = {
        "x_scale": np.float32(0.01),
        "x_zero": np.array(0, "int8"),
        "w": rng.integers(info.min, info.max, (8, 4, 3, 3)).astype(data_type),
        "w_scale": rng.uniform(0.002, 0.02, 4).astype("float32"),
        "w_zero": np.full(4, (info.min + info.max + 1) // 2 + 9, data_type),
    }
    nodes = [
        *pair("x"),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["w_d"], axis=1),
        helper.make_node("ConvTranspose", ["x_d", "w_d"], ["y"]),
    ]
    assert_same(model(nodes, feed, weights, TensorProto.FLOAT), feed, 1e-3)


@pytest.mark.parametrize("columns", [(), (1, 16)], ids=["one", "columns"])
def test_integer_products_with_a_scale_for_each_row(columns: tuple[int, ...]) -> None:
    """QLinearMatMul, beside something that is quantised."""
    rng = np.random.default_rng(0)
    feed = {"x": steps(rng, (16, 32))}
    weights = {
        "x_scale": rng.uniform(0.005, 0.02, (16, 1)).astype("float32"),
        "x_zero": np.full((16, 1), 128, "uint8"),
        "b": rng.integers(-128, 128, (32, 16)).astype("int8"),
        "b_scale": rng.uniform(0.002, 0.02, columns).astype("float32"),
        "b_zero": np.zeros(columns, "int8"),
        "y_scale": np.float32(0.5),
        "y_zero": np.array(100, "uint8"),
        "one_scale": np.float32(0.01),
        "one_zero": np.array(0, "int8"),
    }
    first = helper.make_node("Relu", ["one_d"], ["r"])
    known = ["x_scale", "x_zero", "b", "b_scale", "b_zero", "y_scale", "y_zero"]
    quantised = helper.make_node("Cast", ["shifted"], ["q"], to=TensorProto.UINT8)
    nodes = [
        helper.make_node("Identity", ["x"], ["one"]),
        *pair("one"),
        first,
        helper.make_node("Mul", ["r", "hundred"], ["shifted"]),
        quantised,
        helper.make_node("QLinearMatMul", ["q", *known], ["y"]),
    ]
    weights["hundred"] = np.float32(100)
    assert_same(model(nodes, feed, weights, TensorProto.UINT8), feed, 1.0)
