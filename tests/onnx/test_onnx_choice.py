"""What runs the calls of a session by default: ONNX Runtime, uncompiled, unless something else is known to be better."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.parser import parse_model
from support.onnx import model, node

import opweave as ow
from opweave.onnx.convert import trace
from opweave.onnx.session.parts import parts_of
from opweave.onnx.session.session import InferenceSession
from opweave.onnx.session.session_choice import SessionChoice
from opweave.onnx.session.shape_cache import ShapeCache
from opweave.support.background import background

pytestmark = pytest.mark.default_choice

CONTEXT = ow.ml.create_context(device="cpu", backend="onnxruntime")
IEEE = ow.ml.create_context(device="cpu", backend="onnxruntime", precision="ieee")
OWN = "ONNX Runtime, uncompiled"
RNG = np.random.default_rng(5)


def dense(
    rows: int | str, width: int = 8, cast: int | None = None, has_text: bool = False, quantised: bool = False
) -> onnx.ModelProto:
    """softmax(x @ w), perhaps in another type, or written as text and read again before the softmax, or quantised."""
    nodes = []
    weights = {"w": RNG.standard_normal((width, width), np.float32)}
    if cast is not None:
        nodes += [node("Cast", "x", "a", to=cast), node("Cast", "w", "v", to=cast)]
        nodes += [node("MatMul", "a v", "p"), node("Softmax", "p", "s")]
        nodes += [node("Cast", "s", "y", to=TensorProto.FLOAT)]
    elif has_text:
        nodes += [node("MatMul", "x w", "p"), node("Cast", "p", "t", to=TensorProto.STRING)]
        nodes += [node("Cast", "t", "s", to=TensorProto.FLOAT), node("Softmax", "s", "y")]
    elif quantised:
        weights |= {"scale": np.float32(0.05), "zero": np.uint8(128)}
        nodes += [node("QuantizeLinear", "x scale zero", "q")]
        nodes += [node("DequantizeLinear", "q scale zero", "d")]
        nodes += [node("MatMul", "d w", "p")]
        nodes += [node("QuantizeLinear", "p scale zero", "r")]
        nodes += [node("DequantizeLinear", "r scale zero", "y")]
    else:
        nodes += [node("MatMul", "x w", "p"), node("Softmax", "p", "y")]
    value = f"float32[{rows}, {width}]"
    return model(nodes, {"x": value}, {"y": value}, weights)


def divided(rows: int | str, width: int = 8) -> onnx.ModelProto:
    """Text, which WebNN has not, between a product and a softmax."""
    return dense(rows, width, has_text=True)


def written(rows: int | str, width: int = 8) -> onnx.ModelProto:
    """Numbers as text, which WebNN has not, read again."""
    nodes = [node("Cast", "x", "t", to=TensorProto.STRING), node("Cast", "t", "y", to=TensorProto.FLOAT)]
    value = f"float32[{rows}, {width}]"
    return model(nodes, {"x": value}, {"y": value})


def normalised(channels: int = 4, size: int = 512, fallback: bool = False) -> onnx.ModelProto:
    """A response normalisation, perhaps after an operator that WebNN has not."""
    shape = f"float[1, {channels}, {size}, {size}]"
    before = "f = Cast<to: int = 8> (x) a = Cast<to: int = 1> (f)" if fallback else "a = Relu (x)"
    text = f'<ir_version: 8, opset_import: ["": 17]> g ({shape} x) => ({shape} y) {{ {before} y = LRN<size: int = 3> (a) }}'
    return parse_model(text)


def ways(session: InferenceSession) -> set[str]:
    """How the calls of a session ran, without reasons."""
    return {way.partition(":")[0] for way in session.shapes().values()}


LARGE = 640
"""The width of a model whose weights are more than what counts as small."""


@pytest.mark.parametrize(
    ("model", "options", "way"),
    [
        pytest.param(dense(4), {}, OWN, id="small"),
        pytest.param(dense(4, LARGE), {}, OWN, id="one graph"),
        pytest.param(normalised(), {}, "compiled", id="an operator that loops speed up"),
        pytest.param(normalised(size=64), {}, OWN, id="the same, small"),
        pytest.param(normalised(fallback=True), {}, OWN, id="the same, several sections"),
        pytest.param(divided(4, LARGE), {}, OWN, id="several sections"),
        pytest.param(dense(4), {"specialise": "always"}, "compiled", id="small, always"),
        pytest.param(dense(4), {"specialise": "recurring"}, "compiled", id="small, recurring"),
        pytest.param(dense(4, LARGE), {"specialise": "always"}, "compiled", id="one graph, always"),
        pytest.param(divided(4), {"specialise": "always"}, "compiled", id="several sections, always"),
        pytest.param(dense(4), {"fallback": "error"}, "compiled", id="no fallback"),
        pytest.param(dense(4, cast=TensorProto.FLOAT16), {}, OWN, id="float16"),
        pytest.param(dense(4, cast=TensorProto.FLOAT16), {"context": IEEE}, "compiled", id="float16, ieee"),
        pytest.param(dense(4, quantised=True), {"context": IEEE}, "compiled", id="quantised, ieee"),
        pytest.param(dense(4), {"context": IEEE}, OWN, id="float32, ieee"),
    ],
)
def test_static_model_runs(model: onnx.ModelProto, options: dict[str, Any], way: str) -> None:
    session = ow.InferenceSession(model, **{"context": CONTEXT, **options})
    x = RNG.standard_normal([dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim], np.float32)
    for _ in range(3):
        session.run(None, {"x": x})
    assert ways(session) == {way}
    if way == OWN:
        assert OWN in session.explain()


@pytest.mark.parametrize(
    ("model", "options", "sentence"),
    [
        pytest.param(dense("n"), {}, "on ONNX Runtime, uncompiled, because no other way", id="dynamic"),
        pytest.param(dense(4), {}, "on ONNX Runtime, uncompiled, because no other way", id="static"),
        pytest.param(dense("n"), {"specialise": "always"}, "on onnxruntime, compiled, because specialise", id="always"),
        pytest.param(written(4), {"specialise": "always"}, "on ONNX Runtime (fallback), because spec", id="fallback"),
        pytest.param(
            normalised(fallback=True), {"specialise": "always"}, "in 2 parts, compiled, 1 of them on ONNX", id="parts"
        ),
        pytest.param(dense("n"), {"specialise": "never"}, "on ONNX Runtime, uncompiled, because spec", id="never"),
        pytest.param(dense(4), {"specialise": "recurring"}, "on onnxruntime, compiled, because spec", id="recurring"),
        pytest.param(dense("n"), {"specialise": "recurring"}, "on ONNX Runtime, uncompiled, because these", id="new"),
        pytest.param(dense("n"), {"fallback": "error"}, "on onnxruntime, compiled, because fallback", id="no fallback"),
        pytest.param(normalised(), {}, "on onnxruntime, compiled, because Opweave's loop for LRN", id="a loop"),
        pytest.param(normalised(size=64), {}, "on ONNX Runtime, uncompiled, because it is small", id="small"),
        pytest.param(normalised(fallback=True), {}, "on ONNX Runtime, uncompiled, because WebNN", id="sections"),
        pytest.param(
            dense("n"),
            {"context": ow.ml.create_context(device="reference")},
            "on reference, compiled, because reference runs compiled models only",
            id="device",
        ),
        pytest.param(
            dense(4),
            {"context": None, "precision": "bfloat16"},
            "on openvino, compiled, because bfloat16 runs on openvino, which runs compiled models only; pass precision=",
            id="precision",
            marks=pytest.mark.skipif(find_spec("openvino") is None, reason="needs openvino"),
        ),
    ],
)
def test_choice_says_what_runs_and_what_changes_it(
    model: onnx.ModelProto, options: dict[str, Any], sentence: str
) -> None:
    dims = model.graph.input[0].type.tensor_type.shape.dim
    x = RNG.standard_normal([dim.dim_value or 4 for dim in dims], np.float32)

    def run(**options: Any) -> tuple[SessionChoice, set[str]]:
        session = ow.InferenceSession(model, **{"context": CONTEXT, **options})
        before = parts_of(session).choice()
        session.run(None, {"x": x})
        after = parts_of(session).choice({"x": x.shape})
        assert (before.label, before.reason, before.change) == (after.label, after.reason, after.change)
        assert after.dynamic == ({"x": ["n"]} if dims[0].dim_param else {})
        return after, ways(session)

    choice, way = run(**options)
    assert str(choice).startswith(f"your program runs this {sentence}")
    assert way == {"compiled" if choice.is_compiled else OWN}
    other, _ = run(**(options | eval(f"dict({choice.change})", {"ml": ow.ml})))
    assert other.label != choice.label


def test_static_model_of_an_operator_without_converter_is_not_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "Tracer", None)
    text = (
        '<ir_version: 8, opset_import: ["": 17]> g (float[4, 300000] x) => (float[k, n] y) '
        "{ i = NonZero(x) a = Cast<to: int = 1>(i) y = Relu(a) }"
    )
    session = ow.InferenceSession(parse_model(text), CONTEXT)
    assert session.run(None, {"x": np.eye(4, 300000, dtype=np.float32)})[0].shape == (2, 4)
    assert "no other way to run it was measured to be faster" in session.explain()


@pytest.mark.parametrize(
    ("attributes", "shapes", "is_traced"),
    [
        pytest.param("", {"s": 4, "b": 4}, False, id="as exporters write it"),
        pytest.param("<axis: int = -1>", {"s": 4}, False, id="without bias"),
        pytest.param("", {"s": 3, "b": 3}, False, id="of another length"),  # which the engine refuses
        pytest.param("", {"s": 4, "b": 1}, True, id="a bias of another length"),
        pytest.param("<axis: int = 0>", {"s": 4, "b": 4}, True, id="along more axes"),
        pytest.param("", {"b": 4}, True, id="computed weights"),
    ],
)
def test_normalisation_is_traced_before_the_engine_gets_it(
    attributes: str, shapes: dict[str, int], is_traced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["x", "s", *(["b"] if "b" in shapes else [])]
    inputs = "float[n, 4] x" + ("" if "s" in shapes else ", float[4] s")
    weights = ", ".join(f"float[{size}] {name} = {{{', '.join(['1'] * size)}}}" for name, size in shapes.items())
    text = f'<ir_version: 8, opset_import: ["": 17]> g ({inputs}) => (float[n, 4] y) <{weights}> '
    text += f"{{ y = LayerNormalization {attributes} ({', '.join(names)}) }}"
    traced: list[Any] = []
    trace_of = ShapeCache._trace

    def noted(cache: ShapeCache, *given: Any) -> Any:
        traced.append(given)
        return trace_of(cache, *given)

    monkeypatch.setattr(ShapeCache, "_trace", noted)
    session = ow.InferenceSession(parse_model(text), CONTEXT)
    feed = {"x": np.ones((2, 4), "float32"), "s": np.ones(4, "float32")}
    given = {name: feed[name] for name in ("x", "s") if name == "x" or name not in shapes}
    if shapes.get("s") == 3:
        with pytest.raises(ow.MLError):
            session.run(None, given)
    else:
        session.run(None, given)
        assert bool(traced) == is_traced


@pytest.mark.parametrize("inputs", ["", "x", "x, s, s, s"])
def test_normalisation_with_other_inputs_is_refused(inputs: str) -> None:
    text = (
        f'<ir_version: 8, opset_import: ["": 17]> g (float[n, 4] x) => (float[n, 4] y) <float[4] s = {{1, 1, 1, 1}}> '
        f"{{ y = LayerNormalization ({inputs}) }}"
    )
    with pytest.raises(ow.MLError):
        ow.InferenceSession(parse_model(text), CONTEXT).run(None, {"x": np.ones((2, 4), "float32")})


def test_static_model_with_an_operation_of_the_user_is_compiled() -> None:
    @ow.expression
    def twice(x: ow.Operand) -> ow.Operand:
        return x * 2

    ow.register_onnx("test", "TwiceForChoice", twice)
    text = (
        '<ir_version: 8, opset_import: ["": 17, "test": 1]> g (float[4] x) => (float[4] y) '
        "{ a = test.TwiceForChoice (x) b = Cast<to: int = 11>(a) y = Cast<to: int = 1>(b) }"
    )
    session = ow.InferenceSession(parse_model(text), CONTEXT)
    assert session.run(None, {"x": np.ones(4, "float32")})[0].tolist() == [2, 2, 2, 2]
    assert ways(session) == {"compiled"}


def test_dynamic_model_compiles_nothing_beside_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "put", None)
    session = ow.InferenceSession(dense("n"), CONTEXT)
    for rows in (1, 2, 1, 1, 3, 2, 1):
        session.run(None, {"x": np.ones((rows, 8), "float32")})
    assert ways(session) == {OWN}
    assert not session._parts.shape_cache.compiled


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(dense("n"), id="float32"),
        pytest.param(dense("n", cast=TensorProto.FLOAT16), id="float16"),
        pytest.param(dense("n", quantised=True), id="quantised"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"specialise": "always"}, {"specialise": "never"}], ids=str)
def test_run_of_equal_inputs_returns_equal_bits(model: onnx.ModelProto, options: dict[str, Any]) -> None:
    session = ow.InferenceSession(model, CONTEXT, **options)
    feeds = [{"x": RNG.standard_normal((rows, 8), np.float32)} for rows in (1, 2, 3, 5, 8, 13)]
    first = [session.run(None, feed)[0].tobytes() for feed in feeds]
    for k in RNG.integers(len(feeds), size=1000):
        assert session.run(None, feeds[k])[0].tobytes() == first[k]


def test_run_of_index_out_of_range_does_not_change_later_runs() -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x, int64[k] i) => (float[k] y) { a = Exp(x) y = Gather(a, i) }'
    session = ow.InferenceSession(parse_model(text), CONTEXT)
    x = RNG.standard_normal(6, np.float32)
    right, wrong = {"x": x, "i": np.int64([0, 5])}, {"x": x, "i": np.int64([0, 99])}
    before = session.run(None, right)[0].tobytes()
    assert session.run(None, wrong)[0][0] == pytest.approx(np.exp(x[0]))  # WebNN clamps indices
    model, _ = session._parts.shape_cache.select({"x": (6,), "i": (2,)}, right)
    assert model is session._parts.shape_cache.only_uncompiled
    assert session.run(None, right)[0].tobytes() == before


@pytest.mark.parametrize("options", [{}, {"specialise": "always"}], ids=str)
def test_alternating_shapes_take_fast_path(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    session = ow.InferenceSession(dense("n"), CONTEXT, **options)
    feeds = [{"x": RNG.standard_normal((rows, 8), np.float32)} for rows in range(1, 11)]
    expected = [session.run(None, feed)[0] for feed in feeds]
    targets = [np.empty_like(each) for each in expected]
    for feed, target in zip(feeds, targets, strict=True):
        session.run(None, feed, out={"y": target})
    monkeypatch.setattr("opweave.onnx.session.session.run_call", None)
    for k in (0, 3, 9, 3, 0, 1):
        np.testing.assert_array_equal(session.run(None, feeds[k])[0], expected[k])
        session.run(None, feeds[k], out={"y": targets[k]})
        np.testing.assert_array_equal(targets[k], expected[k])


def test_alternating_shapes_are_bounded() -> None:
    session = ow.InferenceSession(dense("n"), CONTEXT, specialise="always")
    for rows in range(1, 80):
        session.run(None, {"x": np.ones((rows, 8), "float32")})
    assert len(session._repeats._by_shapes) <= 64
    assert len(session._parts.shape_cache.compiled) <= 64


def test_alternating_shapes_in_threads() -> None:
    session = ow.InferenceSession(dense("n"), CONTEXT, specialise="always")
    feeds = [{"x": RNG.standard_normal((rows, 8), np.float32)} for rows in range(1, 70)]
    expected = [session.run(None, feed)[0] for feed in feeds[:8]]

    def run(seed: int) -> None:
        for k in np.random.default_rng(seed).integers(len(feeds), size=150):
            y = session.run(None, feeds[k])[0]
            assert y.shape == feeds[k]["x"].shape
            if k < len(expected):
                np.testing.assert_allclose(y, expected[k], rtol=1e-6)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))


def test_alternating_shapes_reject_wrong_shape() -> None:
    session = ow.InferenceSession(dense("n"), CONTEXT)
    for rows in (1, 2, 1, 2):
        session.run(None, {"x": np.ones((rows, 8), "float32")})
    for shape in ((2, 7), (2,), (1, 2, 8)):
        with pytest.raises(ow.ValidationError, match="x"):
            session.run(None, {"x": np.ones(shape, "float32")})
    with pytest.raises(ow.ValidationError, match="y"):
        session.run(None, {"x": np.ones((2, 8), "float32")}, out={"y": np.empty((2, 7), "float32")})


def test_small_model_loads_without_the_compiler() -> None:
    code = """
import sys
import numpy as np, opweave as ow
from onnx.parser import parse_model
for n in ("4", "n"):
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[%s] x) => (float[%s] y) { y = Relu(x) }' % (n, n)
    ow.InferenceSession(parse_model(text), device_context).run(None, {"x": np.ones(4, "float32")})
loaded = [name for name in ("halide", "openvino", "wgpu") if name in sys.modules]
assert not loaded, loaded
""".replace("device_context", 'ow.ml.create_context(device="cpu", backend="onnxruntime")')
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
