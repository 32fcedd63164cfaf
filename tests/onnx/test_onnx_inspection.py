"""Profiles and drawings of sessions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper
from onnx.parser import parse_model

import opweave as ow
from opweave.backends.onnxruntime.measure import run_times
from opweave.onnx.session import choice

CONTEXT = ow.ml.create_context(device="cpu", backend="onnxruntime")
TEXT = '<ir_version: 8, opset_import: ["": 17]> g (float[n, 3] x) => (float[n, 3] y) { a = Softmax(x)  y = Relu(a) }'
MIXED = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (int64[1, m] y) { a = Relu(x)  y = NonZero(a) }'


def session_of_text(text: str = TEXT, **options: Any) -> ow.InferenceSession:
    return ow.InferenceSession(parse_model(text), context=CONTEXT, **options)


def test_profile_of_last_program() -> None:
    each = session_of_text(specialise="always")
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
    each = session_of_text()
    each.run(None, {"x": np.ones((2, 3), "float32")})
    profile = each.profile(repeat=2)
    assert profile.remarks == (
        "program: x [2, 3]: ONNX Runtime, uncompiled",
        'this is what run() uses; InferenceSession(..., specialise="always") compiles the model instead',
    )
    assert [(step.title, step.how) for step in profile.steps] == [("the model", "ONNX Runtime")]
    assert "0 B" not in str(profile), "the bytes are unknown"
    others = (
        each.profile({"x": np.ones((5, 3), "float32")}, repeat=1),
        each.profile(input_shapes={"x": [5, 3]}, repeat=1),
    )
    assert [other.remarks[0] for other in others] == ["program: x [5, 3]: ONNX Runtime, uncompiled"] * 2
    each.explain(input_shapes={"x": [2, 3]})  # compiles the shapes, which run() does not use
    assert each.profile(repeat=1).remarks[0] == "program: x [2, 3]: ONNX Runtime, uncompiled"


def test_profile_says_that_shapes_are_compiled_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    each = session_of_text(specialise="recurring")
    each.run(None, {"x": np.ones((2, 3), "float32")})
    monkeypatch.setattr(choice.RecentShape, "describe", lambda self: choice.COMPILING)
    assert each.profile(repeat=1).remarks[1].startswith("run() compiles these shapes in the background")


NETWORK = """<ir_version: 8, opset_import: ["": 17]> g (float[n, 16, 8, 8] x) => (float[n, 16] y) {
    [stem] c = Conv<pads=[1, 1, 1, 1]>(x, w)
    [bn] b = BatchNormalization(c, v, v, v, v)
    [act] r = Relu(b)
    [pool] p = GlobalAveragePool(r)
    [flat] f = Flatten(p)
    [wide] m = MatMul(f, k)
    [bias] q = Add(m, v)
    [g1] d = Div(q, root)
    [g2] e = Erf(d)
    [g3] a = Add(e, one)
    [g4] h = Mul(q, a)
    [g5] u = Mul(h, half)
    y = Softmax(u)
}"""


def network() -> ModelProto:
    """A convolution with a normalisation, a product with a bias, GELU, and a node without a name."""
    model, generator = parse_model(NETWORK), np.random.default_rng(0)
    arrays: dict[str, Any] = {"root": 2**0.5, "one": 1, "half": 0.5, "v": np.ones(16), "k": np.eye(16)}
    arrays["w"] = generator.random((16, 16, 3, 3))
    model.graph.initializer.extend(numpy_helper.from_array(np.float32(array), name) for name, array in arrays.items())
    model.graph.node[3].name = "größe/pool"
    return model


@pytest.mark.parametrize(
    ("backend", "specialise"), [("onnxruntime", "auto"), ("onnxruntime", "always"), ("openvino", "always")]
)
def test_profile_names_nodes_of_the_model(backend: str, specialise: Any, tmp_path: Path) -> None:
    context = ow.ml.create_context(device="cpu", backend=backend)
    model = network()
    each = ow.InferenceSession(model, context=context, specialise=specialise)
    profile = each.profile(input_shapes={"x": [1, 16, 8, 8]}, repeat=2)
    assert model == network()
    named = [kernel.node for kernel in profile.kernels if kernel.node]
    assert {part for node in named for part in node.split(" + ")} >= {node.name or "y" for node in model.graph.node} - {
        "bn"  # folded into the convolution
    }
    (product,) = [node.split(" + ") for node in named if "wide" in node.split(" + ")]
    assert "bias" in product
    assert "größe/pool" in str(profile)
    if backend == "onnxruntime":
        assert {kernel.kernel: kernel.node for kernel in profile.kernels}["Gelu"] == "g1 + g2 + g3 + g4 + g5"
    shares = [float(share) for share in re.findall(r" ([\d.]+)%$", str(profile).partition("slowest first")[2], re.M)]
    assert len(shares) == min(len(profile.kernels), 10)
    assert 0 < sum(shares) <= 100.5, "each is rounded"
    profile.save_trace(tmp_path / "trace.json")
    names = {event["name"] for event in json.loads((tmp_path / "trace.json").read_text("utf-8"))["traceEvents"]}
    assert set(named) <= names


def test_profile_names_quantised_convolutions() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[1, 8, 8, 8] x) => (float[1, 8, 8, 8] y)
    <float s = {0.1}, uint8 z = {0}> {
        q = QuantizeLinear(x, s, z)
        d = DequantizeLinear(q, s, z)
        k = DequantizeLinear(w, s, z)
        [stem] c = Conv<pads=[1, 1, 1, 1]>(d, k)
        e = QuantizeLinear(c, s, z)
        y = DequantizeLinear(e, s, z)
    }"""
    model = parse_model(text)
    model.graph.initializer.append(numpy_helper.from_array(np.ones((8, 8, 3, 3), np.uint8), "w"))
    kernels = ow.InferenceSession(model, providers=["CPUExecutionProvider"]).profile(repeat=1).kernels
    assert {kernel.kernel: kernel.node for kernel in kernels}["QLinearConv"] == "stem"


def test_profile_tells_nodes_of_one_name_apart() -> None:
    text = TEXT.replace("a = Softmax(x)", "[same] a = Softmax(x)  [same] b = Neg(a)").replace("Relu(a)", "Sqrt(b)")
    kernels = session_of_text(text).profile(input_shapes={"x": [2, 3]}, repeat=1).kernels
    assert [(kernel.node, kernel.kernel) for kernel in kernels] == [("same", "Softmax"), ("same", "Neg"), ("y", "Sqrt")]


def test_profile_counts_kernels_of_loops_once() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[n, 64] x, bool c, int64 k) => (float[n, 64] y) {
        [pre] a = Softmax(x)
        [loop] y = Loop(k, c, a) <body = b (int64 i, bool t, float[n, 64] s) => (bool o, float[n, 64] r) {
            [keep] o = Identity(t)  [inner] r = Softmax(s) }>
    }"""
    feed = {"x": np.ones((2, 64), "float32"), "c": np.array(True), "k": np.array(20)}
    profile = session_of_text(text).profile(feed, repeat=3)
    assert sorted(kernel.node for kernel in profile.kernels) == ["inner", "keep", "loop", "pre"]


def test_time_of_a_loop_excludes_kernels_inside() -> None:
    def event(name: str, start: int, duration: int, operator: str = "Softmax") -> dict[str, Any]:
        arguments = {"op_name": operator, "node_index": "0"}
        return {"cat": "Node", "name": f"{name}_kernel_time", "ts": start, "dur": duration, "args": arguments}

    def run(at: int) -> list[dict[str, Any]]:
        inner = [event("inner", at + 10 * number, 8) for number in (1, 2, 3)]
        return [event("pre", at, 5), *inner, event("loop", at + 9, 40, "Loop"), {"cat": "Session", "name": "model_run"}]

    runs, about = run_times([*run(0), *run(100)])
    assert runs == [{("pre", "0"): 5, ("inner", "0"): 24, ("loop", "0"): 16}] * 2
    assert [name for name, _ in about] == ["pre", "inner", "loop"]


def test_profile_with_detail_measures_fallback_nodes() -> None:
    text = MIXED.replace("y = NonZero", "[places] y = NonZero")
    profile = session_of_text(text, specialise="always").profile({"x": np.float32([-1, 2, 3])}, repeat=2, detail=True)
    assert [(kernel.segment, kernel.node, kernel.kernel) for kernel in profile.kernels] == [
        (0, "a", "Relu"),
        (1, "places", "NonZero"),
    ]


def test_profile_has_fallback_steps() -> None:
    profile = session_of_text(MIXED, specialise="always").profile({"x": np.float32([-1, 2, 3])}, repeat=2)
    assert [(step.title, step.how) for step in profile.steps] == [
        ("relu 'a'", "ONNX Runtime"),
        ("NonZero", "ONNX Runtime"),
    ]
    assert sum(copied.count for copied in profile.copies) == 0


def test_profile_and_draw_static_model_before_run(tmp_path: Path) -> None:
    each = session_of_text(TEXT.replace("n,", "2,"))
    assert each.profile(repeat=1).remarks == ("program: x [2, 3]: compiled",)
    drawing = each.draw(tmp_path / "model.svg")
    assert (tmp_path / "model.svg").read_text() == drawing
    assert "a model: x [2, 3]" in drawing
    assert "section 0" in drawing
    assert "Softmax" in drawing


def test_draw_shapes_of_last_run() -> None:
    each = session_of_text(specialise="always")
    for rows in (2, 4):
        each.run(None, {"x": np.ones((rows, 3), "float32")})
    assert "a model: x [4, 3]" in each.draw()
    assert "a model: x [9, 3]" in each.draw(input_shapes={"x": [9, 3]})


def test_profiling_does_not_disturb_the_session() -> None:
    each = session_of_text(specialise="always")
    x = np.random.default_rng(0).random((2, 3), "float32")
    before = each.run(None, {"x": x})[0].copy()
    each.profile(repeat=2, detail=True)
    np.testing.assert_array_equal(each.run(None, {"x": x})[0], before)


def own(call: Callable[[ow.InferenceSession], Any]) -> Any:
    each = session_of_text()
    each.run(None, {"x": np.ones((2, 3), "float32")})
    return call(each)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: session_of_text().profile(), "the model has dynamic dimensions; run it first, or pass input_shapes"),
        (lambda: session_of_text().draw(), "the model has dynamic dimensions; run it first, or pass input_shapes"),
        (
            lambda: own(lambda each: each.draw()),
            "draw: calls run in ONNX Runtime, uncompiled, .*; pass input_shapes to draw",
        ),
        (
            lambda: session_of_text().profile(repeat=0, input_shapes={"x": [1, 3]}),
            "repeat must be a positive integer, got 0",
        ),
        (
            lambda: session_of_text().profile({"z": 1}),
            r"profile: inputs must hold \['x'\]; missing: \['x'\], unknown: \['z'\]",
        ),
        (lambda: session_of_text().profile([1]), "profile: inputs must map names to arrays"),  # type: ignore[arg-type]
        (lambda: session_of_text().profile({}, input_shapes={}), "inputs and input_shapes must not be given both"),
        (
            lambda: session_of_text().draw("a.png", input_shapes={"x": [1, 3]}),
            "the name of the file must end with .svg",
        ),
    ],
)
def test_profile_and_draw_reject_invalid_arguments(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ow.ValidationError, match=message):
        call()


def test_profile_with_random_shapes_asks_for_inputs() -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x, int64[2] s) => (float[a, b] y) { y = Reshape(x, s) }'
    each = session_of_text(text)
    feed = {"x": np.ones(6, "float32"), "s": np.int64([2, 3])}
    each.run(None, feed)
    with pytest.raises(ow.OperationError, match=r"profile: the model fails with random inputs; pass inputs \(of which"):
        session_of_text(text, specialise="never").profile(input_shapes={"x": [6]}, repeat=1)
    assert each.profile(feed, repeat=1).steps
