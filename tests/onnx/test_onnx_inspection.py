"""Profiles and drawings of sessions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx.parser import parse_model

import opweave as ow

CONTEXT = ow.ml.create_context(device="cpu", backend="onnxruntime")
TEXT = '<ir_version: 8, opset_import: ["": 17]> g (float[n, 3] x) => (float[n, 3] y) { a = Softmax(x)  y = Relu(a) }'
MIXED = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (int64[1, m] y) { a = Relu(x)  y = NonZero(a) }'


def session(text: str = TEXT, **options: Any) -> ow.InferenceSession:
    return ow.InferenceSession(parse_model(text), context=CONTEXT, **options)


def test_profile_of_last_program() -> None:
    each = session(specialise="always")
    for rows in (2, 4, 2):
        each.run(None, {"x": np.ones((rows, 3), "float32")})
    profile = each.profile(repeat=2)
    assert profile.remarks == ("program: x [2, 3]: compiled", "other calls: x [4, 3]: compiled")
    assert str(profile).endswith("\n".join(profile.remarks))
    assert profile.to_dict()["remarks"] == profile.remarks
    assert [step.writes for step in profile.steps][-1] == 2 * 3 * 4
    x = np.ones((4, 3), "float32")
    assert each.profile({"x": x}, repeat=1).remarks[0] == "program: x [4, 3]: compiled"
    tensor = CONTEXT.tensor_from(x)
    assert each.profile({"x": tensor}, repeat=1).remarks[0] == "program: x [4, 3]: compiled"
    assert each.profile(input_shapes={"x": [7, 3]}, repeat=1).remarks[0] == "program: x [7, 3]: compiled"
    assert each.shapes().keys() == {"x [2, 3]", "x [4, 3]", "x [7, 3]"}


def test_profile_of_own_session() -> None:
    each = session()
    each.run(None, {"x": np.ones((2, 3), "float32")})
    profile = each.profile(repeat=2)
    assert profile.remarks == ("program: x [2, 3]: ONNX Runtime, uncompiled",)
    assert [(step.title, step.how) for step in profile.steps] == [("the model", "ONNX Runtime")]
    assert (
        each.profile({"x": np.ones((5, 3), "float32")}, repeat=1)
        .remarks[0]
        .endswith("[5, 3]: ONNX Runtime, uncompiled")
    )
    each.profile(input_shapes={"x": [2, 3]}, repeat=1)
    assert each.shapes() == {"x [2, 3]": "compiled"}


def test_profile_has_fallback_steps() -> None:
    profile = session(MIXED, specialise="always").profile({"x": np.float32([-1, 2, 3])}, repeat=2)
    assert [(step.title, step.how) for step in profile.steps] == [("relu", "ONNX Runtime"), ("NonZero", "ONNX Runtime")]
    assert sum(copied.count for copied in profile.copies) == 0


def test_profile_and_draw_static_model_before_run(tmp_path: Path) -> None:
    each = session(TEXT.replace("n,", "2,"))
    assert each.profile(repeat=1).remarks == ("program: x [2, 3]: compiled",)
    drawing = each.draw(tmp_path / "model.svg")
    assert (tmp_path / "model.svg").read_text() == drawing
    assert "a model: x [2, 3]" in drawing
    assert "section 0" in drawing
    assert "Softmax" in drawing


def test_draw_shapes_of_last_run() -> None:
    each = session(specialise="always")
    for rows in (2, 4):
        each.run(None, {"x": np.ones((rows, 3), "float32")})
    assert "a model: x [4, 3]" in each.draw()
    assert "a model: x [9, 3]" in each.draw(input_shapes={"x": [9, 3]})


def test_profiling_does_not_disturb_the_session() -> None:
    each = session(specialise="always")
    x = np.random.default_rng(0).random((2, 3), "float32")
    before = each.run(None, {"x": x})[0].copy()
    each.profile(repeat=2, detail=True)
    np.testing.assert_array_equal(each.run(None, {"x": x})[0], before)


def own(call: Callable[[ow.InferenceSession], Any]) -> Any:
    each = session()
    each.run(None, {"x": np.ones((2, 3), "float32")})
    return call(each)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: session().profile(), "the model has dynamic dimensions; run it first, or pass input_shapes"),
        (lambda: session().draw(), "the model has dynamic dimensions; run it first, or pass input_shapes"),
        (
            lambda: own(lambda each: each.draw()),
            "draw: calls run in ONNX Runtime, uncompiled, .*; pass input_shapes to draw",
        ),
        (lambda: session().profile(repeat=0, input_shapes={"x": [1, 3]}), "repeat must be a positive integer, got 0"),
        (lambda: session().profile({"z": 1}), r"profile: inputs must hold \['x'\]; missing: \['x'\], unknown: \['z'\]"),
        (lambda: session().profile([1]), "profile: inputs must map names to arrays"),  # type: ignore[arg-type]
        (lambda: session().profile({}, input_shapes={}), "inputs and input_shapes must not be given both"),
        (lambda: session().draw("a.png", input_shapes={"x": [1, 3]}), "the name of the file must end with .svg"),
    ],
)
def test_profile_and_draw_reject_invalid_arguments(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ow.ValidationError, match=message):
        call()


def test_profile_with_random_shapes_asks_for_inputs() -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x, int64[2] s) => (float[a, b] y) { y = Reshape(x, s) }'
    each = session(text)
    feed = {"x": np.ones(6, "float32"), "s": np.int64([2, 3])}
    each.run(None, feed)
    with pytest.raises(ow.OperationError, match=r"profile: the model fails with random inputs; pass inputs \(of which"):
        session(text, specialise="never").profile(input_shapes={"x": [6]}, repeat=1)
    assert each.profile(feed, repeat=1).steps
