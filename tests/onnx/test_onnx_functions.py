"""Functions of models: values of their attributes, given by calls or by default, against written results and ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser
from support.onnx_nodes import run_engine

import opweave as ow

FLOATS = np.float32([-1, 0, 2])
TABLE = np.arange(6, dtype=np.float32).reshape(1, 6)
ON_FLOATS = "(float[3] x) => (float[3] y)"
ON_TABLE = "(float[1,6] x) => (float[n,m] y)"
CALL = f"{ON_FLOATS} {{ y = local.f (x) }}"

LEAKY = "f <alpha: float = 0.5> (x) => (y) { y = LeakyRelu <alpha: float = @alpha> (x) }"
INNER = "g <beta: float = 0.125> (x) => (y) { y = LeakyRelu <alpha: float = @beta> (x) }"
IS_POSITIVE = "zero = Constant <value = float {0}> () total = ReduceSum <keepdims = 0> (x) c = Greater (total, zero)"
IN_BRANCH = f"""f <alpha: float = 0.5> (x) => (y) {{ {IS_POSITIVE} y = If (c) <
    then_branch = one () => (a) {{ a = LeakyRelu <alpha: float = @alpha> (x) }},
    else_branch = two () => (b) {{ b = Neg (x) }}> }}"""
GRAPH = f"""f <body: graph = b () => (float[3] r) {{ r = Constant <value_floats = [1.0, 2.0, 3.0]> () }}> (x) => (y) {{
    {IS_POSITIVE} y = If <then_branch: graph = @body, else_branch: graph = @body> (c) }}"""
CALL_IN_BRANCH = f"""{ON_FLOATS} {{ {IS_POSITIVE} y = If (c) <
    then_branch = one () => (a) {{ a = local.f (x) }}, else_branch = two () => (b) {{ b = local.f <alpha = 2.0> (x) }}> }}"""
CALL_IN_LOOP = f"""{ON_FLOATS} {{ n = Constant <value = int64 {{3}}> () yes = Constant <value = bool {{1}}> ()
    y = Loop (n, yes, x) <body = body (int64 i, bool on, float[3] v) => (bool still, float[3] w)
        {{ still = Identity (on) w = local.f (v) }}> }}"""
CALL_IN_SCAN = f"""{ON_TABLE} {{ y = Scan <num_scan_inputs = 1, body = body (float[6] v) => (float[6] w)
        {{ t = Constant <value_float = -1.0> () u = Mul (v, t) w = local.f (u) }}> (x) }}"""


def model(graph: str, *functions: str) -> onnx.ModelProto:
    """A model of ONNX's text format, with functions in the domain "local"."""
    imports = 'opset_import: ["" : 20, "local" : 1]'
    bodies = (f'<opset_import: ["" : 20, "local" : 1], domain: "local"> {function}' for function in functions)
    proto: onnx.ModelProto = parser.parse_model(f"<ir_version: 10, {imports}> g {graph} {' '.join(bodies)}")
    return proto


def overloaded() -> onnx.ModelProto:
    """One name, two functions with different defaults."""
    proto = model(f"{ON_FLOATS} {{ a = local.f (x) y = local.f (a) }}", LEAKY, LEAKY.replace("0.5", "0.25"))
    for number, (node, function) in enumerate(zip(proto.graph.node, proto.functions, strict=True)):
        node.overload = function.overload = f"v{number}"
    return proto


ROWS: dict[str, tuple[onnx.ModelProto, np.ndarray, Any]] = {
    "float": (model(CALL, LEAKY), FLOATS, [-0.5, 0, 2]),
    "given by the call": (model(f"{ON_FLOATS} {{ y = local.f <alpha = 0.25> (x) }}", LEAKY), FLOATS, [-0.25, 0, 2]),
    "given and default": (
        model(f"{ON_FLOATS} {{ a = local.f (x) b = local.f <alpha = 4.0> (a) y = local.f (b) }}", LEAKY),
        FLOATS,
        [-1, 0, 2],
    ),
    "neither given nor default": (
        model(CALL, LEAKY.replace(": float = 0.5", "", 1)),
        FLOATS,
        np.float32([-0.01, 0, 2]),
    ),
    "int": (
        model(CALL, "f <to: int = 6> (x) => (y) { a = Cast <to: int = @to> (x) y = Cast <to = 1> (a) }"),
        np.float32([-1.5, 0.5, 2.5]),
        [-1, 0, 2],
    ),
    "int of a constant": (
        model(
            "(int64[3] x) => (int64[3] y) { y = local.f (x) }",
            "f <k: int = 5> (x) => (y) { c = Constant <value_int: int = @k> () y = Add (x, c) }",
        ),
        np.array([1, 2, 3]),
        [6, 7, 8],
    ),
    "ints of a constant": (
        model(
            f"{ON_TABLE} {{ y = local.f (x) }}",
            "f <shape: ints = [3, 2]> (x) => (y) { s = Constant <value_ints: ints = @shape> () y = Reshape (x, s) }",
        ),
        TABLE,
        TABLE.reshape(3, 2),
    ),
    "ints": (
        model(
            f"{ON_TABLE} {{ y = local.f (x) }}",
            "f <order: ints = [0, 1]> (x) => (y) { y = Transpose <perm: ints = @order> (x) }",
        ),
        TABLE,
        TABLE,
    ),
    "axis": (
        model(
            f"{ON_TABLE} {{ y = local.f (x) }}",
            "f <axis: int = 0> (x) => (y) { y = Softmax <axis: int = @axis> (x) }",
        ),
        TABLE,
        np.ones((1, 6)),
    ),
    "floats": (
        model(
            CALL,
            "f <by: floats = [1.0, 2.0, 3.0]> (x) => (y) "
            "{ c = Constant <value_floats: floats = @by> () y = Add (x, c) }",
        ),
        FLOATS,
        [0, 2, 5],
    ),
    "string": (
        model(
            CALL,
            'f <mode: string = "DCR"> (x) => (y) { y = local.g <how: string = @mode> (x) }',
            """
            g <how: string = "CRD"> (x) => (y) { s = Constant <value_ints = [1, 4, 1, 1]> () k = Constant <value_ints = [3]> ()
            p = Constant <value_ints = [0, 1]> () a = Pad (x, p) b = Reshape (a, s)
            c = DepthToSpace <blocksize = 2, mode: string = @how> (b) d = Constant <value_ints = [-1]> ()
            e = Reshape (c, d) zero = Constant <value_ints = [0]> () y = Slice (e, zero, k) }""",
        ),
        FLOATS,
        FLOATS,
    ),
    "tensor": (
        model(
            CALL,
            "f <t: tensor = float[3] {1.0, 2.0, 3.0}> (x) => (y) { c = Constant <value: tensor = @t> () y = Add (x, c) }",
        ),
        FLOATS,
        [0, 2, 5],
    ),
    "graph": (model(CALL, GRAPH), FLOATS, [1, 2, 3]),
    "nested": (
        model(CALL, "f <alpha: float = 0.5> (x) => (y) { y = local.g <beta: float = @alpha> (x) }", INNER),
        FLOATS,
        [-0.5, 0, 2],
    ),
    "nested, without a value of the caller": (
        model(CALL, "f <alpha> (x) => (y) { y = local.g <beta: float = @alpha> (x) }", INNER),
        FLOATS,
        [-0.125, 0, 2],
    ),
    "nested, with the same name": (
        model(
            f"{ON_FLOATS} {{ y = local.f <alpha = 0.25> (x) }}",
            "f <alpha: float = 0.5> (x) => (y) { a = local.g (x) y = LeakyRelu <alpha: float = @alpha> (a) }",
            INNER.replace("beta", "alpha"),
        ),
        FLOATS,
        [-0.03125, 0, 2],
    ),
    "in a branch of the function": (model(CALL, IN_BRANCH), FLOATS, [-0.5, 0, 2]),
    "called in a branch": (model(CALL_IN_BRANCH, LEAKY), FLOATS, [-0.5, 0, 2]),
    "called in a loop": (model(CALL_IN_LOOP, LEAKY), FLOATS, [-0.125, 0, 2]),
    "called in a scan": (model(CALL_IN_SCAN, LEAKY), TABLE, TABLE * -0.5),
    "overloads": (overloaded(), FLOATS, [-0.125, 0, 2]),
}


@pytest.mark.parametrize("specialise", ["always", "never"])
@pytest.mark.parametrize("name", ROWS)
def test_function_attributes_from_call_or_default(name: str, specialise: Any) -> None:
    proto, x, expected = ROWS[name]
    before = proto.SerializeToString(deterministic=True)
    session = ow.InferenceSession(proto, ow.ml.create_context(device="cpu"), specialise=specialise)
    (y,) = session.run(None, {"x": x})
    np.testing.assert_array_equal(y, np.asarray(expected, y.dtype))
    assert proto.SerializeToString(deterministic=True) == before  # it is the caller's
    if name != "overloads":  # the engine refuses this model
        np.testing.assert_array_equal(run_engine(proto, {"x": x})[0], y)


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_function_attribute_defaults_apply_to_bytes_model(device: Any) -> None:
    serialised = model(CALL, LEAKY).SerializeToString()
    session = ow.InferenceSession(serialised, ow.ml.create_context(device=device), fallback="error")
    assert session.run(None, {"x": FLOATS})[0].tolist() == [-0.5, 0, 2]


def test_nested_function_attributes_are_bound() -> None:
    names = [f"f{number}" for number in range(90)]
    chain = [
        f"{name} <alpha: float = 0.5> (x) => (y) {{ y = local.{inner} <alpha: float = @alpha> (x) }}"
        for name, inner in zip(names, [*names[1:], "f"], strict=True)
    ]
    proto = model(f"{ON_FLOATS} {{ y = local.f0 (x) }}", *chain, LEAKY.replace("0.5", "0.125"))
    assert ow.InferenceSession(proto).run(None, {"x": FLOATS})[0].tolist() == [-0.5, 0, 2]


@pytest.mark.long
def test_function_graph_attributes_count_as_nodes() -> None:
    """Each function hands on a graph that holds the graph of its caller twice."""
    inner = "{ y = If <then_branch: graph = @body, else_branch: graph = @body> (c) }"
    functions = [
        f"f{number} <body: graph> (c) => (y) {{ y = local.f{number + 1} (c) <body = b () => (r) "
        "{ r = If <then_branch: graph = @body, else_branch: graph = @body> (c) }> }"
        for number in range(15)
    ]
    call = "(bool c) => (float y) { y = local.f0 (c) <body = b () => (r) { r = Constant <value_float = 1.0> () }> }"
    proto = model(call, *functions, f"f15 <body: graph> (c) => (y) {inner}")
    with pytest.raises(
        ow.DataError, match=r"number of nodes, those of functions included: .* more than the limit of 1000"
    ):
        ow.InferenceSession(proto, limits=ow.onnx.ModelLimits(nodes=1000))
