"""What a session says of the values of inputs that determine shapes: numbers, not bytes."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto
from onnx.parser import parse_model

import opweave as ow
from opweave.onnx.model.arguments import Argument
from opweave.onnx.model.shape_keys import text_of

MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "expand": (
        "g (float[1] x, int64[k] to) => (float[a, b] y) { y = Expand(x, to) }",
        {"x": np.zeros(1, np.float32), "to": np.int64([2, 5])},
        "to = [2, 5]",
    ),
    "negative": (
        "g (float[n] x, int64[k] to) => (float[a, b] y) { y = Reshape(x, to) }",
        {"x": np.zeros(6, np.float32), "to": np.int64([3, -1])},
        "to = [3, -1]",
    ),
    "axes": (
        "g (float[a, b, c] x, int64[k] axes) => (float[n] y) { y = ReduceSum<keepdims=0>(x, axes) }",
        {"x": np.zeros((2, 3, 4), np.float32), "axes": np.int64([0, 2])},
        "axes = [0, 2]",
    ),
    "scalar": (
        "g (int64 n, int64 one, int64 zero) => (int64[m] y) { y = Range(zero, n, one) }",
        {"n": np.int64(5), "one": np.int64(1), "zero": np.int64(0)},
        "n = 5, one = 1, zero = 0",
    ),
    "int32": (
        "g (int32 n, int32 step) => (int32[m] y) { s = Constant<value = int32 {-3}>() f = Squeeze(s) y = Range(f, n, step) }",
        {"n": np.int32(300), "step": np.int32(100)},
        "n = 300, step = 100",
    ),
    "float": (
        "g (float n, float step) => (float[m] y) { s = Constant<value_float = 0.0>() y = Range(s, n, step) }",
        {"n": np.float32(1), "step": np.float32(0.1)},
        "n = 1.0, step = 0.1",
    ),
    "scales": (
        'g (float[1, 1, a, b] x, float[4] s) => (float[1, 1, c, d] y) { y = Resize<mode = "nearest">(x, , s) }',
        {"x": np.zeros((1, 1, 2, 2), np.float32), "s": np.float32([1, 1, 1.5, 2])},
        "s = [1.0, 1.0, 1.5, 2.0]",
    ),
    "condition": (
        "g (float[n] x, bool c) => (float[m] y) { y = If(c) <then_branch = t () => (float[p] a) { a = Concat<axis=0>(x, x) }, "
        "else_branch = e () => (float[q] b) { b = Identity(x) }> }",
        {"x": np.zeros(2, np.float32), "c": np.bool_(True)},
        "c = True",
    ),
}
"""Models in which values of inputs determine shapes: the text, inputs, and what is said of their values."""


@pytest.mark.parametrize("name", MODELS)
def test_explain_prints_deciding_values_as_numbers(name: str) -> None:
    text, feed, wanted = MODELS[name]
    session = ow.InferenceSession(
        parse_model(f'<ir_version: 10, opset_import: ["": 18]> {text}'),
        context=ow.ml.create_context(device="cpu", backend="onnxruntime"),
        specialise="always",
    )
    given = {key: np.asarray(value) for key, value in feed.items()}
    session.run(None, given)
    (program,) = session.shapes()
    assert program.endswith(f", {wanted}"), program
    if not all(array.shape == () for array in given.values()):  # else the model is static, and has one program
        assert f"{program}: compiled" in session.explain().splitlines()
    assert session.profile(given, repeat=1).remarks == (f"program: {program}: compiled",)
    assert wanted in session.draw()
    assert not re.search(r"= [0-9a-f]{8,}", program)


def test_shapes_tells_values_apart_in_every_element() -> None:
    text = '<ir_version: 10, opset_import: ["": 18]> g (float[1] x, int64[k] to) => (float y) '
    model = parse_model(text + "{ z = Expand(x, to) y = ReduceSum<keepdims=0>(z) }")
    session = ow.InferenceSession(model, specialise="always")
    shapes = [np.ones(16, np.int64) for _ in range(3)]
    for k, shape in enumerate(shapes):
        shape[7 + 3 * k] = 2
        session.run(None, {"x": np.zeros(1, np.float32), "to": shape})
    assert list(session.shapes()) == [f"x [1], to [16], to = {shape.tolist()}" for shape in shapes]


@pytest.mark.parametrize(
    ("element_type", "array", "wanted"),
    [
        (TensorProto.INT64, np.int64([-(2**63), 2**63 - 1]), "[-9223372036854775808, 9223372036854775807]"),
        (TensorProto.UINT64, np.uint64(2**64 - 1), "18446744073709551615"),
        (TensorProto.INT8, np.int8([-128, 127]), "[-128, 127]"),
        (TensorProto.UINT8, np.uint8(200), "200"),
        (TensorProto.INT16, np.int16([]), "[]"),
        (TensorProto.DOUBLE, np.float64([0.1, -0.0, np.nan, -np.inf]), "[0.1, -0.0, nan, -inf]"),
        (TensorProto.FLOAT, np.float32(1e-30), "1e-30"),
        (TensorProto.FLOAT16, np.float16([0.1, 65504]), "[0.1, 6.55e+04]"),
        (TensorProto.BFLOAT16, np.array([0.5, 3], ml_dtypes.bfloat16), "[0.5, 3]"),
        (TensorProto.INT4, np.array([-8, 7], ml_dtypes.int4), "[-8, 7]"),
        (TensorProto.BOOL, np.array([True, False]), "[True, False]"),
    ],
    ids=str,
)
def test_text_of_values_by_data_type(element_type: int, array: Any, wanted: str) -> None:
    array = np.asarray(array)
    inputs = [Argument("x", "", TensorProto.FLOAT, None), Argument("n", "", element_type, None)]
    key = (("x", (1, 3)), ("n", array.shape), ("n", array.tobytes()))
    assert text_of(key, inputs) == f"x [1, 3], n {list(array.shape)}, n = {wanted}"
