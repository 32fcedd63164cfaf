"""Operations of the user in ONNX models: overrides of ONNX's own operators, and nodes that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model
from support.onnx import keep_registry

import opweave as ow
from opweave.compile import engines
from opweave.context.graph import recorded_graph
from opweave.onnx.model.model import Model
from opweave.onnx.model.parameters import digest_of

CONTEXT = ow.ml.create_context(device="cpu")


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Overrides end with the test."""
    keep_registry(monkeypatch)


@ow.expression
def seven(x):  # type: ignore[no-untyped-def]
    return x * 0 + 7


@ow.expression
def hardish(x, *, alpha: float = 0.2):  # type: ignore[no-untyped-def]
    return x * alpha


def model(text: str, opsets: str = '"": 17') -> onnx.ModelProto:
    return parse_model(f"<ir_version: 8, opset_import: [{opsets}]> {text}")


def relu(size: str = "n") -> onnx.ModelProto:
    return model(f"g (float[{size}] x) => (float[{size}] y) {{ a = Neg(x)  y = Relu(a) }}")


X = np.float32([-3, 2, 1])
OPTIONS: list[dict[str, Any]] = [{}, {"specialise": "always"}, {"specialise": "never"}, {"fallback": "error"}]


# Overrides ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("size", ["n", "3"])
def test_override_computes_every_call(size: str, options: dict[str, Any]) -> None:
    ow.register_onnx("", "Relu", seven)
    session = ow.InferenceSession(relu(size), CONTEXT, program_bytes=0, **options)
    for _ in range(4):
        assert session.run(None, {"x": X})[0].tolist() == [7, 7, 7]
    assert session.shapes() == {"x [3]": "compiled"}


def test_override_of_contrib_operator_computes_every_call() -> None:
    ow.register_onnx("com.microsoft", "QuickGelu", seven, attributes={})
    proto = model("g (float[n] x) => (float[n] y) { y = com.microsoft.QuickGelu(x) }", '"": 17, "com.microsoft": 1')
    session = ow.InferenceSession(proto, CONTEXT)
    assert [session.run(None, {"x": X})[0].tolist() for _ in range(3)] == [[7, 7, 7]] * 3


def test_override_with_specialise_never_can_be_tuned() -> None:
    ow.register_onnx("", "Relu", seven)
    session = ow.InferenceSession(relu(), ow.ml.create_context(backend="onnxruntime"), specialise="never")
    assert str(session.tune([{"x": [3]}])).endswith("onnxruntime  there is no other engine for it")
    with pytest.raises(ow.ValidationError, match="no shapes are in use yet"):
        ow.InferenceSession(relu(), CONTEXT, specialise="never").tune()


def test_override_applies_to_later_sessions() -> None:
    before = ow.InferenceSession(relu(), CONTEXT, specialise="always")
    ow.register_onnx("", "Relu", seven)
    assert before.run(None, {"x": X})[0].tolist() == [3, 0, 0]  # though it compiles only now
    assert ow.InferenceSession(relu(), CONTEXT).run(None, {"x": X})[0].tolist() == [7, 7, 7]


def test_override_changes_model_digest() -> None:
    plain = digest_of(Model.load(relu()))
    ow.register_onnx("", "Relu", seven)
    assert digest_of(Model.load(relu())) != plain
    assert digest_of(Model.load(model("g (float[n] x) => (float[n] y) { y = Neg(x) }"))) != plain


def test_digest_distinguishes_operations_of_one_name() -> None:
    @ow.expression
    def relu(x):  # type: ignore[no-untyped-def]
        return x * 0 + 7

    digests = []
    for build in (lambda b, x: b.relu(x), lambda b, x: relu(x)):
        builder = ow.MLGraphBuilder(CONTEXT)
        graph = builder.build({"y": build(builder, builder.input("x", "float32", [2]))})
        digests.append(engines.digest(recorded_graph(graph)))  # type: ignore[arg-type]
    assert digests[0] != digests[1]


def test_override_of_shape_arithmetic_is_computed() -> None:
    @ow.expression
    def doubled_product(a, b):  # type: ignore[no-untyped-def]
        return a * b * 2

    ow.register_onnx("", "Mul", doubled_product)
    proto = model(
        """g (float[n] x) => (float[m] y, int64[1] size)
        <int64[1] one = {1}> { s = Shape(x)  size = Mul(s, one)  y = Expand(x, size) }"""
    )
    session = ow.InferenceSession(proto, CONTEXT, fallback="error")
    y, size = session.run(None, {"x": np.float32([5])})
    assert (y.tolist(), size.tolist()) == ([5, 5], [2])


def branching(other: str) -> onnx.ModelProto:
    proto = model(
        f"""g (float[3] x, float[1] c) => (float[m] y) {{
            flag = Cast<to = 9>(c)
            y = If<
                then_branch = t () => (float[m] r) {{ r = Relu(x) }},
                else_branch = e () => (float[m] r) {{ r = {other} }}
            >(flag)
        }}"""
    )
    proto.graph.node[1].name, proto.graph.node[1].attribute[0].g.node[0].name = "pick", "inner"
    return proto


def test_override_computes_in_branch() -> None:
    ow.register_onnx("", "Relu", seven)
    session = ow.InferenceSession(branching("Neg(x)"), CONTEXT)
    for condition, expected in ((1, [7, 7, 7]), (0, (-X).tolist())):
        assert session.run(None, {"x": X, "c": np.float32([condition])})[0].tolist() == expected


def test_override_in_fallback_branch_is_an_error() -> None:
    ow.register_onnx("", "Relu", seven)
    message = (
        r"If 'pick' falls back \(.*\), and Relu 'inner' inside of it is your operation seven, which the engine lacks"
    )
    with pytest.raises(ow.NotSupportedError, match=message):
        ow.InferenceSession(branching("Concat<axis = 0>(x, x)"), CONTEXT).run(None, {"x": X, "c": np.float32([1])})


def test_override_in_sequence_map_is_an_error() -> None:
    """ONNX defines SequenceMap by a Loop, which the engine would run with its own Relu."""
    ow.register_onnx("", "Relu", seven)
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3]) for name in "xy")
    body = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"], "inner")], "body", [x], [y])
    nodes = [
        onnx.helper.make_node("SequenceConstruct", ["a"], ["s"]),
        onnx.helper.make_node("SequenceMap", ["s"], ["t"], "map", body=body),
        onnx.helper.make_node("ConcatFromSequence", ["t"], ["b"], axis=0),
    ]
    a, b = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3]) for name in "ab")
    graph = onnx.helper.make_graph(nodes, "g", [a], [b])
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    message = "SequenceMap 'map' falls back .*, and Relu 'inner' inside of it is your operation seven"
    for options in OPTIONS:
        with pytest.raises(ow.NotSupportedError, match=message):
            ow.InferenceSession(proto, CONTEXT, **options)


@pytest.mark.parametrize("domain", ["", "test.registered"])
def test_override_behind_deciding_values_runs_for_any_value(domain: str) -> None:
    ow.register_onnx(domain, "Relu", seven)
    node = f"{domain}.Relu" if domain else "Relu"
    opsets = '"": 17' + (f', "{domain}": 1' if domain else "")
    proto = model(f"g (float[n] x, int64[1] size) => (float[m] y) {{ a = Expand(x, size)  y = {node}(a) }}", opsets)
    session = ow.InferenceSession(proto, CONTEXT)
    for size in range(2, 9):  # more than the values for which other models are compiled
        (y,) = session.run(None, {"x": np.float32([1]), "size": np.int64([size])})
        assert y.tolist() == [7] * size


def test_override_without_attribute_falls_back() -> None:
    ow.register_onnx("", "Elu", seven)  # which has no attribute alpha
    proto = model("g (float[n] x) => (float[n] y, float[n] z) { y = Elu<alpha = 2.0>(x)  z = Elu(x) }")
    session = ow.InferenceSession(proto, CONTEXT)
    for _ in range(3):
        y, z = session.run(None, {"x": np.float32([1, 2])})
        assert (y.tolist(), z.tolist()) == ([1, 2], [7, 7])
    assert "Elu: seven has no attribute 'alpha', only []" in session.explain()


# Nodes that do not fit ----------------------------------------------------------------------------------------------


def two(size: str, *domains: str) -> onnx.ModelProto:
    proto = model(
        f"""g (float[{size}] x) => (float[{size}] y) {{
            a = Neg(x)  b = com.mine.Hardish(a)  c = com.mine.Hardish(b)  y = Relu(c) }}""",
        '"": 17, "com.mine": 1',
    )
    for node, name, domain in zip(proto.graph.node[1:3], ("one", "two"), domains, strict=True):
        node.name, node.domain = name, domain
    return proto


@pytest.mark.parametrize("size", ["n", "3"])
@pytest.mark.parametrize(
    ("domains", "message"),
    [
        (("", "com.mine"), "Hardish 'one': ONNX has no operator Hardish in its own domain"),
        (("", ""), "Hardish 'one': ONNX has no operator Hardish in its own domain"),
        (("com.mine", ""), "Hardish 'two': ONNX has no operator Hardish in its own domain"),
        (
            ("com.mine", "com.other"),
            "Hardish 'two': neither Opweave nor ONNX Runtime has the operator Hardish of the domain 'com.other'",
        ),
    ],
)
def test_error_suggests_registered_domain(size: str, domains: tuple[str, str], message: str) -> None:
    ow.register_onnx("com.mine", "Hardish", hardish)
    advice = "registered is com.mine.Hardish: set node.domain = 'com.mine'"
    with pytest.raises(ow.OperationError) as raised:
        ow.InferenceSession(two(size, *domains), CONTEXT)
    assert str(raised.value) == f"{message}; {advice}"
    with pytest.raises(ow.OperationError) as raised:
        ow.onnx.load(two(size, *domains), CONTEXT, fix_shapes={} if size == "3" else {"n": 3})
    assert str(raised.value) == f"{message}; {advice}"


def test_error_suggests_registered_operator() -> None:
    ow.register_onnx("com.mine", "Hardish", hardish)
    proto = two("n", "com.mine", "com.mine")
    proto.graph.node[2].op_type = "HardIsh"
    with pytest.raises(
        ow.OperationError, match=r"HardIsh 'two': .*; registered is com\.mine\.Hardish; did you mean 'Hardish'\?$"
    ):
        ow.InferenceSession(proto, CONTEXT)


@pytest.mark.parametrize("size", ["n", "3"])
def test_load_checks_registered_attributes_and_inputs(size: str) -> None:
    ow.register_onnx("com.mine", "Hardish", hardish)
    proto = two(size, "com.mine", "com.mine")
    proto.graph.node[2].attribute.append(onnx.helper.make_attribute("alhpa", 0.5))
    with pytest.raises(
        ow.NotSupportedError, match=r"Hardish 'two': hardish has no attribute 'alhpa', .* mean 'alpha'\?"
    ):
        ow.InferenceSession(proto, CONTEXT)
    proto = two(size, "com.mine", "com.mine")
    proto.graph.node[2].input.append("x")
    with pytest.raises(ow.NotSupportedError, match="Hardish 'two': it has 2 inputs, and hardish takes 1"):
        ow.InferenceSession(proto, CONTEXT)
