"""Custom operations inside of ONNX models."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from custom_operations import rms_norm, rng, top_k
from onnx import TensorProto, helper
from support.onnx import model, node

import opweave as ow


def top_k_model(**attributes: Any) -> bytes:
    nodes = [
        node("Relu", "x", "a"),
        node("TopK2", "a", "v i", domain="com.example", name="best", **attributes),
        node("Neg", "v", "y"),
    ]
    outputs = {"y": "float32[n, 2]", "i": "int32[n, 2]"}
    return model(nodes, {"x": "float32[n, 4]"}, outputs, opset=17, domains=["com.example"]).SerializeToString()


def test_custom_operation_in_onnx_model() -> None:
    ow.register_onnx("com.example", "TopK2", top_k, attributes={"count": "k"})
    session = ow.InferenceSession(top_k_model(count=2), fallback="error")
    ow.memory.copies.reset()
    y, i = session.run(None, {"x": np.float32([[1, 3, 2, -1], [5, 4, 6, 9]])})
    assert ow.memory.copies.count == 0
    assert y.tolist() == [[-3, -2], [-9, -6]]
    assert i.tolist() == [[1, 2], [3, 2]]
    explained = session.explain()
    assert "  TopK2 'best'\n" in explained
    assert "  custom: top_k 'best', kernel, Python kernel, custom_operations.py:" in explained
    with pytest.raises(ow.NotSupportedError, match=r"TopK2 'best': .*top_k 'best': k must be in \[1, 4\], got 9"):
        ow.InferenceSession(top_k_model(count=9)).run(None, {"x": np.zeros((1, 4), "float32")})
    with pytest.raises(ow.NotSupportedError, match="TopK2 'best': top_k has no attribute 'nonsense', only"):
        ow.InferenceSession(top_k_model(count=2, nonsense=1)).run(None, {"x": np.zeros((1, 4), "float32")})


def test_explain_begins_with_the_custom_operations() -> None:
    ow.register_onnx("com.example", "TopK2", top_k, attributes={"count": "k"})
    session = ow.InferenceSession(top_k_model(count=2))
    session.run(None, {"x": np.float32([[1, 3, 2, -1]])})
    lines = session.explain().splitlines()
    line, section = lines[(at := lines.index("custom operations:")) + 1 : at + 3]
    assert line.startswith("  top_k for com.example.TopK2: 1 node, kernel, Python kernel, custom_operations.py:")
    assert (
        section == "section 0: 3 nodes, WebNN on cpu (ONNX Runtime + Python kernel), in 3 segments"
    )  # as many as the profile of the graph has
    graph = ow.onnx.load(top_k_model(count=2), ow.ml.create_context(device="cpu"), fix_shapes={"n": 1})
    assert len({step.segment for step in graph.profile(repeat=1).steps}) == 3
    plain = model([node("Neg", "x", "y")], {"x": "float32[1]"}, {"y": "float32[1]"})
    assert "custom" not in ow.InferenceSession(plain).explain()


def test_tensors_as_attributes_of_onnx_nodes_are_arrays() -> None:
    @ow.op
    def shifted(self: Any, x: ow.MLOperand, *, by: Any) -> ow.Desc:
        return x.desc

    shifted.kernel("cpu", lambda x, by, out: np.copyto(out, x + by))
    ow.register_onnx("test.tensors", "Shifted", shifted)
    by = helper.make_tensor("by", TensorProto.FLOAT, [2], [1, 2])
    nodes = [node("Shifted", "x", "y", domain="test.tensors", by=by)]
    proto = model(nodes, {"x": "float32[2]"}, {"y": "float32[2]"}, opset=17, domains=["test.tensors"])
    (result,) = ow.onnx.InferenceSession(proto.SerializeToString()).run(None, {"x": np.float32([1, 1])})
    assert result.tolist() == [2, 3]


def test_custom_composite_in_onnx_model() -> None:
    ow.register_onnx("com.example", "RmsNorm", rms_norm)
    nodes = [node("RmsNorm", "x w", "y", domain="com.example", name="norm", epsilon=0.5)]
    inputs = {"x": "float32[2, 4]", "w": "float32[4]"}
    proto = model(nodes, inputs, {"y": "float32[2, 4]"}, opset=17, domains=["com.example"])
    session = ow.InferenceSession(proto, fallback="error")
    x, w = rng.standard_normal((2, 4)).astype("float32"), rng.standard_normal(4).astype("float32")
    wanted = x / np.sqrt((x**2).mean(-1, keepdims=True) + 0.5) * w
    np.testing.assert_allclose(session.run(None, {"x": x, "w": w})[0], wanted, rtol=1e-5)
    assert "  custom: rms_norm 'norm', decomposed, " in session.explain()


def test_registrations_that_are_wrong() -> None:
    with pytest.raises(ow.ValidationError, match=r"top_k has the attributes \['k'\], not 'n'"):
        ow.register_onnx("com.example", "TopK2", top_k, attributes={"count": "n"})
    with pytest.raises(ow.ValidationError, match="register_onnx: X needs an operation"):
        ow.register_onnx("com.example", "X", print)
    with pytest.raises(ow.ValidationError, match="register_onnx: op_type must not be empty"):
        ow.register_onnx("com.example", "", top_k)


def test_constants_are_not_folded_by_an_operation_with_too_few_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opweave.onnx.model.model.REGISTERED", registered := dict[Any, Any]())
    monkeypatch.setattr("opweave.onnx.convert.register.REGISTERED", registered)

    @ow.expression
    def halved(x: Any) -> Any:
        return x * 0.5

    ow.register_onnx("", "Split", halved)
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) {
        c = Constant<value = float[4] {1, 2, 3, 4}>()  a, b = Split(c)  p = Add(x, a)  y = Add(p, b)
    }"""
    (y,) = ow.InferenceSession(onnx.parser.parse_model(text)).run(None, {"x": np.zeros(2, "float32")})
    assert y.tolist() == [4, 6]


def test_explain_tells_operations_from_built_in_ones_of_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opweave.onnx.model.model.REGISTERED", registered := dict[Any, Any]())
    monkeypatch.setattr("opweave.onnx.convert.register.REGISTERED", registered)

    @ow.expression
    def tanh(x: Any) -> Any:
        return x * 2.0

    ow.register_onnx("my", "A", tanh)
    ow.register_onnx("my", "B", tanh)
    text = """<ir_version: 8, opset_import: ["": 17, "my": 1]> g (float[2] x) => (float[2] y) {
        a = Tanh(x)  b = my.A(a)  y = my.B(b)
    }"""
    session = ow.InferenceSession(onnx.parser.parse_model(text))
    lines = session.explain().splitlines()
    assert sum(line.startswith("  custom: tanh") for line in lines) == 2
    (line,) = [line for line in lines if line.startswith("  tanh for ")]
    assert line.startswith("  tanh for my.A, my.B: 2 nodes, ")


@pytest.mark.parametrize("with_own", [False, True])
def test_override_is_not_used_in_other_converters(monkeypatch: pytest.MonkeyPatch, with_own: bool) -> None:
    monkeypatch.setattr("opweave.onnx.model.model.REGISTERED", registered := dict[Any, Any]())
    monkeypatch.setattr("opweave.onnx.convert.register.REGISTERED", registered)

    @ow.expression
    def seven(x: Any) -> Any:
        return x * 0.0 + 7.0

    ow.register_onnx("", "Exp", seven)
    own = "z = Exp(x)" if with_own else "z = Identity(x)"
    text = f"""<ir_version: 8, opset_import: ["": 18]> g (float[2] x) => (float[2] y, float[2] z) {{
        y = Mish(x)  {own}
    }}"""
    x = np.float32([0.5, 1])
    y, z = ow.InferenceSession(onnx.parser.parse_model(text)).run(None, {"x": x})
    np.testing.assert_allclose(y, x * np.tanh(np.log1p(np.exp(x))), rtol=1e-5)
    assert z.tolist() == ([7, 7] if with_own else x.tolist())
