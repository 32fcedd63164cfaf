"""Scatter with reductions: repeated and negative indices, all types and axes, against ONNX Runtime and NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from support.every_device import DEVICES, context_on
from support.onnx import model
from support.onnx_nodes import CONTEXT, integers, model_of, node_model, randn, run_engine
from support.scatters import COMBINE, scatter_nd_in_numpy

import opweave as ow

REDUCTIONS = tuple(COMBINE)
TYPES = ("float32", "int8", "uint8", "int32", "uint32", "int64", "uint64")

ELEMENTS = [((6,), (9,), 0), ((4, 5), (2, 8), 1), ((4, 5, 3), (3, 2, 2), -3), ((4, 5, 3), (4, 9, 3), -2)]
"""The shape of the data, that of indices and updates, and the axis."""

SLICES = [((6,), (4, 1)), ((4, 5), (3, 2, 2)), ((4, 5, 3), (7, 1)), ((4, 5, 3), (6, 2)), ((4, 5, 3), (2, 3, 3))]
"""The shape of the data, and that of the indices."""


def coordinates(shape: tuple[int, ...], of: tuple[int, ...]) -> np.ndarray:
    """Indices of slices; many repeat, and some are negative."""
    return np.stack([integers(-size, size, *of[:-1], dtype="int64") for size in shape[: of[-1]]], -1)


def run_scatter(
    op_type: str, *inputs: np.ndarray, constant: bool = False, context: ow.MLContext = CONTEXT, **attributes: Any
) -> np.ndarray:
    """The result of a node, which WebNN computes; the engine's, with one thread, must be the same."""
    model, feed = node_model(op_type, inputs, attributes, opset=18, dynamic=(0, 2) if constant else (0, 1, 2))
    (found,) = ow.InferenceSession(model, context, fallback="error").run(None, feed)
    (theirs,) = run_engine(model, feed)
    assert found.dtype == theirs.dtype
    np.testing.assert_allclose(found, theirs, rtol=1e-5)
    result: np.ndarray = found
    return result


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("constant", [True, False])
def test_scatter_elements_with_reduction(reduction: str, dtype: str, constant: bool) -> None:
    for shape, counts, axis in ELEMENTS:
        indices = integers(-shape[axis], shape[axis], *counts, dtype="int64")
        inputs = integers(1, 5, *shape, dtype=dtype), indices, integers(1, 5, *counts, dtype=dtype)
        run_scatter("ScatterElements", *inputs, constant=constant, axis=axis, reduction=reduction)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("constant", [True, False])
def test_scatter_nd_with_reduction(reduction: str, dtype: str, constant: bool) -> None:
    for shape, of in SLICES:
        data, indices = integers(1, 5, *shape, dtype=dtype), coordinates(shape, of)
        updates = integers(1, 5, *of[:-1], *shape[of[-1] :], dtype=dtype)
        found = run_scatter("ScatterND", data, indices, updates, constant=constant, reduction=reduction)
        np.testing.assert_allclose(found, scatter_nd_in_numpy(data, indices, updates, reduction), rtol=1e-5)


@pytest.mark.parametrize("op_type", ["ScatterElements", "ScatterND"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_scatter_of_bool_with_reduction(op_type: str, reduction: str) -> None:
    data, updates = np.array([True, False, False, True]), np.array([True, False, True, False, False])
    indices = np.int64([0, 0, 1, 2, -1])
    places = indices if op_type == "ScatterElements" else indices[:, None]
    model, feed = node_model(op_type, [data, places, updates], {"reduction": reduction}, opset=18, dynamic=(0, 1, 2))
    (found,) = ow.InferenceSession(model, CONTEXT, fallback="error").run(None, feed)
    assert found.dtype == bool
    assert found.tolist() == scatter_nd_in_numpy(data, indices[:, None], updates, reduction).tolist()
    if reduction in ("add", "mul"):  # the engine has no others
        assert found.tolist() == run_engine(model, feed)[0].tolist()


@pytest.mark.parametrize("op_type", ["ScatterElements", "ScatterND"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_scatter_of_float16_with_reduction(op_type: str, reduction: str) -> None:
    data, indices, updates = randn(5).astype("float16"), np.int64([0, 0, 1, 0, -1]), randn(5).astype("float16")
    places = indices if op_type == "ScatterElements" else indices[:, None]
    model, feed = node_model(op_type, [data, places, updates], {"reduction": reduction}, opset=18, dynamic=(0, 1, 2))
    (found,) = ow.InferenceSession(model, CONTEXT, fallback="error").run(None, feed)
    assert found.dtype == np.float16
    wanted = scatter_nd_in_numpy(data.astype("float32"), indices[:, None], updates.astype("float32"), reduction)
    np.testing.assert_allclose(found, wanted.astype("float16"), rtol=1e-3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reduction", ["add", "max"])
def test_scatter_with_reduction_agrees_on_every_device(device: str, reduction: str) -> None:
    for dtype in ("float32", "int64"):
        data, updates = integers(-4, 5, 4, 3, dtype=dtype), integers(-4, 5, 7, 3, dtype=dtype)
        for constant in (True, False):
            indices = coordinates((4, 3), (7, 1))
            run_scatter(
                "ScatterND", data, indices, updates, constant=constant, context=context_on(device), reduction=reduction
            )


@pytest.mark.parametrize("device", ["cpu", "openvino", "reference"])
def test_scatter_nd_adds_all_updates_of_wide_rows(device: str) -> None:
    """The engine's own ScatterND loses updates of an element if it has several threads."""
    names = [name for name in DEVICES if f"({'onnxruntime' if device == 'cpu' else device})" in name]
    if not names:
        pytest.skip(f"there is no {device}")
    count = 300 if device == "reference" else 3000
    data, indices = np.zeros((8, 400), np.int32), integers(0, 2, count, 1, dtype="int64")
    updates = np.ones((count, 400), np.int32)
    model, feed = node_model("ScatterND", [data, indices, updates], {"reduction": "add"}, opset=18, dynamic=(0, 1, 2))
    session = ow.InferenceSession(model, context_on(names[0]), fallback="error", specialise="always")
    for _ in range(3):
        np.testing.assert_array_equal(session.run(None, feed)[0], scatter_nd_in_numpy(data, indices, updates, "add"))


@pytest.mark.parametrize("count", [16 + 1, 3000])
def test_scatter_nd_decomposition_applies_many_updates_of_one_element(count: int) -> None:
    """More than are applied one after the other, and more than are compared at once."""
    data, indices = np.float32([1, 2, 3]), integers(0, 2, count, 1, dtype="int64")
    updates = integers(-3, 4, count, dtype="float32")
    context = ow.ml.create_context(device="reference")
    for constant in (True, False):
        dynamic = (0, 2) if constant else (0, 1, 2)
        model, feed = node_model("ScatterND", [data, indices, updates], {"reduction": "add"}, opset=18, dynamic=dynamic)
        (found,) = ow.InferenceSession(model, context, fallback="error").run(None, feed)
        np.testing.assert_array_equal(found, scatter_nd_in_numpy(data, indices, updates, "add"))


@pytest.mark.parametrize("op_type", ["ScatterElements", "ScatterND"])
def test_scatter_with_dynamic_batch_stays_on_webnn(op_type: str) -> None:
    """Features are summed by groups; a Reshape and a MatMul follow."""
    groups = ["i"] if op_type == "ScatterElements" else ["j"]
    nodes = [
        helper.make_node("Unsqueeze", ["i", "last"], ["j"]),
        helper.make_node(op_type, ["sums", *groups, "u"], ["total"], reduction="add"),
        helper.make_node("Shape", ["u"], ["count"]),
        helper.make_node("Expand", ["one", "count"], ["ones"]),
        helper.make_node("MatMul", ["ones", "u"], ["all"]),
        helper.make_node("Reshape", ["total", "shape"], ["rows"]),
        helper.make_node("MatMul", ["rows", "weight"], ["product"]),
        helper.make_node("Add", ["product", "all"], ["y"]),
    ]
    constants = {
        "last": np.int64([-1]),
        "one": np.float32([1]),
        "sums": np.zeros(6, "float32"),
        "shape": np.int64([2, 3]),
        "weight": np.ones((3, 2), "float32"),
    }
    inputs = {"i": "int64[batch]", "u": "float32[batch]"}
    proto = model(nodes, inputs, {"y": "float32[2, 2]"}, constants, opset=18)
    onnx.checker.check_model(proto)
    session = ow.InferenceSession(proto, CONTEXT, specialise="always")
    for count in (2, 5):
        feed = {"i": np.int64([1, 1, -1, 5, 0])[:count], "u": randn(count)}
        np.testing.assert_allclose(session.run(None, feed)[0], run_engine(proto, feed)[0], rtol=1e-5, atol=1e-6)
    assert list(session.shapes().values()) == ["compiled", "compiled"]
    assert "fallback" not in session.explain()
    assert "section 1" not in session.explain()


def test_scatter_with_another_reduction_falls_back() -> None:
    node = helper.make_node("ScatterElements", ["x", "i", "u"], ["y"], reduction="mean")
    feed = {"x": randn(3), "i": np.int64([0]), "u": randn(1)}
    model = model_of([node], feed, {}, ["y"], opset=18)
    with pytest.raises(ow.NotSupportedError, match="its reduction is 'mean'"):
        ow.InferenceSession(model, CONTEXT, fallback="error")
    session = ow.InferenceSession(model, CONTEXT, specialise="always")
    np.testing.assert_array_equal(session.run(None, feed)[0], run_engine(model, feed)[0])
