"""Control flow in ONNX models, and what is computed while a model is compiled, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from support.onnx import node
from support.onnx_nodes import CONTEXT, check_agreement, ints, model_of, node_model, reasons, run_engine

from opweave.core.bodies import MAX_UNROLLED_STEPS
from opweave.onnx.convert import control, fold
from opweave.onnx.convert.trace import Tracer
from opweave.onnx.model.model import Model
from opweave.onnx.session.session import InferenceSession

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def info(name: str, element_type: int = FLOAT, shape: Sequence[int | str] | None = None) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, element_type, shape)


def graph(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    constants: Mapping[str, Any] | None = None,
) -> GraphProto:
    initializers = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    return helper.make_graph(nodes, "body", inputs, outputs, initializers)


def kinds(session: InferenceSession) -> list[str]:
    """What runs the sections of a model that is compiled once."""
    sections = [line for line in session.explain().splitlines() if line.startswith("section ")]
    return ["fallback" if line.endswith("(fallback)") else "webnn" for line in sections]


def branches() -> dict[str, GraphProto]:
    """Branches that use a name from around them, and the same names inside."""
    one, result = {"k": np.float32(2)}, [info("r", FLOAT, (2, 3))]
    return {
        "then_branch": graph([node("Mul", "around k", "inner"), node("Relu", "inner", "r")], [], result, one),
        "else_branch": graph([node("Add", "around k", "r")], [], result, one),
    }


def on_data(name: str) -> list[NodeProto]:
    """A condition that is true where x has positive elements."""
    return [
        node("ReduceMax", "x", f"{name}_most", keepdims=0),
        node("Sign", f"{name}_most", f"{name}_sign"),
        node("Cast", f"{name}_sign", name, to=BOOL),
    ]


@pytest.mark.parametrize("condition", [True, False])
def test_constant_if_becomes_its_branch(condition: bool) -> None:
    nodes = [node("Neg", "x", "around"), node("If", "c", "y", **branches()), node("Abs", "y", "z")]
    model = model_of(nodes, {"x": X}, {"c": np.array(condition)}, ["z"])
    session = check_agreement(model, {"x": X})
    assert kinds(session) == ["webnn"]
    assert ("Mul" in session.explain()) == condition


@pytest.mark.parametrize("condition", [True, False])
def test_branches_may_have_sparse_initializers(condition: bool) -> None:
    values = numpy_helper.from_array(np.float32([3]), "w")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(np.int64([4]), "indices"), [2, 3])
    sub_graphs = branches()
    sub_graphs["then_branch"].node[0].input[1] = "w"
    sub_graphs["then_branch"].sparse_initializer.append(sparse)
    nodes = [node("Neg", "x", "around"), node("If", "c", "y", **sub_graphs)]
    feed = {"x": X, "c": np.array(condition)}
    check_agreement(model_of(nodes, feed, {}, ["y"]), feed)


@pytest.mark.parametrize("rate", [8000, 16000])
def test_if_with_unknown_condition_does_not_read_branches(rate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a condition on an input's value needs is that value: to infer types in both branches takes their weights."""
    inferred: list[str] = []
    infer = Tracer._infer

    def noted(self: Tracer, node: NodeProto, values: Any) -> Any:
        inferred.append(node.op_type)
        return infer(self, node, values)

    monkeypatch.setattr(Tracer, "_infer", noted)
    nodes = [node("Neg", "x", "around"), node("Equal", "rate high", "c"), node("If", "c", "y", **branches())]
    feed = {"x": X, "rate": np.array(rate)}
    model = model_of(nodes, feed, {"high": np.array(16000)}, ["y"])
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    session = check_agreement(model, feed)
    assert kinds(session) == ["webnn"]
    assert ("Mul" in session.explain()) == (rate == 16000)
    assert inferred == []


def test_condition_on_shape_is_constant() -> None:
    nodes = [
        node("Identity", "x", "around"),
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n"),
        node("Equal", "n two", "c"),
        node("If", "c", "y", **branches()),
    ]
    model = model_of(nodes, {"x": X}, {"zero": np.int64(0), "two": np.int64(2)}, ["y"])
    assert kinds(check_agreement(model, {"x": X})) == ["webnn"]


def test_branches_may_return_outer_values() -> None:
    """What is around them, a constant, one value twice; the engine refuses these."""
    one, two = info("around", FLOAT, (2, 3)), info("k", FLOAT, ())
    branch = graph([], [], [one, two, one], {"k": np.float32(7)})
    nodes = [node("Neg", "x", "around"), node("If", "c", "y z w", then_branch=branch, else_branch=branch)]
    model = model_of(nodes, {"x": X}, {"c": np.array(True)}, ["y", "z", "w"])
    found = InferenceSession(model, CONTEXT, fallback="error").run(None, {"x": X})
    for ours, wanted in zip(found, [-X, np.float32(7), -X], strict=True):
        np.testing.assert_array_equal(ours, wanted)
    result = info("n", FLOAT, (2, 3))
    branch = graph([node("Neg", "x", "n")], [], [result, result])
    nodes = [node("If", "c", "y z", then_branch=branch, else_branch=branch)]
    model = model_of(nodes, {"x": X}, {"c": np.array(False)}, ["y", "z"])
    for ours in InferenceSession(model, CONTEXT, fallback="error").run(None, {"x": X}):
        np.testing.assert_array_equal(ours, -X)


@pytest.mark.parametrize("condition", [True, False])
def test_if_on_data_reads_outer_values(condition: bool) -> None:
    """It takes a value of the graph before it, and hands on one to the graph after it."""
    nodes = [*on_data("c"), node("Neg", "x", "around"), node("If", "c", "y", **branches()), node("Abs", "y", "z")]
    feed = {"x": X if condition else -X}
    session = check_agreement(model_of(nodes, feed, {}, ["z"]), feed)
    assert kinds(session) == ["webnn"]


def test_branches_may_hold_branches() -> None:
    inner = graph([node("Add", "doubled x", "r")], [], [info("r", FLOAT, (2, 3))])
    other = graph([node("Sub", "doubled x", "r")], [], [info("r", FLOAT, (2, 3))])
    outer = graph(
        [node("Mul", "x two", "doubled"), node("If", "d", "r2", then_branch=inner, else_branch=other)],
        [],
        [info("r2", FLOAT, (2, 3))],
    )
    choice = node("If", "c", "y", then_branch=outer, else_branch=outer)
    constants = {"c": np.array(True), "two": np.float32(2)}
    for known in (True, False):
        nodes, more = ([choice], {"d": np.array(False)}) if known else ([*on_data("d"), choice], {})
        session = check_agreement(model_of(nodes, {"x": X}, {**constants, **more}, ["y"]), {"x": X})
        assert kinds(session) == ["webnn"]


def loop_body(condition: Sequence[NodeProto] = (), element: str = "sum") -> GraphProto:
    """Sum' = sum + x * turn; it gathers `element`."""
    nodes = [
        *(condition or [node("Identity", "go", "go_on")]),
        node("Cast", "turn", "t", to=FLOAT),
        node("Mul", "x t", "product"),
        node("Add", "total product", "sum"),
    ]
    return graph(
        nodes,
        [info("turn", INT64, ()), info("go", BOOL, ()), info("total", FLOAT, (2, 3))],
        [info("go_on", BOOL, ()), info("sum", FLOAT, (2, 3)), info(element, FLOAT, ())],
    )


def test_short_loop_is_unrolled() -> None:
    nodes = [node("Loop", "n go start", "last all", body=loop_body(element="t")), node("Neg", "last", "y")]
    for trips, go in ((control.UNROLLED, True), (1, True), (control.UNROLLED + 1, True)):
        constants = {"n": np.int64(trips), "go": np.array(go), "start": X}
        session = check_agreement(model_of(nodes, {"x": X}, constants, ["y", "all"]), {"x": X})
        assert session.explain().count("\n  Mul") == (trips if trips <= control.UNROLLED else 0)


def test_loop_without_iterations_returns_its_state() -> None:
    nodes = [node("Loop", "n go start", "last", body=loop_body())]
    del nodes[0].attribute[0].g.output[2]
    for trips, go in ((0, True), (5, False)):
        constants = {"n": np.int64(trips), "go": np.array(go)}
        feed = {"x": X, "start": X + 1}
        check_agreement(model_of(nodes, feed, constants, ["last"]), feed)


def test_loop_ends_by_constant_condition() -> None:
    """The condition depends on the number of the turn, not on data; there is no limit, or an absurd one."""
    condition = [node("Less", "turn three", "go_on")]
    constants: dict[str, Any] = {"three": np.int64(3), "go": np.array(True), "start": X, "n": np.int64(2**62)}
    body = loop_body(condition)
    body.output[2].CopyFrom(info("product", FLOAT, (2, 3)))
    for limit in ("n", ""):
        nodes = [helper.make_node("Loop", [limit, "go", "start"], ["last", "all"], body=body)]
        model = model_of(nodes, {"x": X}, constants, ["last", "all"])
        session = check_agreement(model, {"x": X})
        assert session.explain().count("\n  Mul") == 4


def test_loop_falls_back_with_reason() -> None:
    start = {"start": X}
    small = [node("ReduceSum", "total", "s", keepdims=0), node("Less", "s limit", "go_on")]
    most = [node("ReduceMax", "x", "most", keepdims=0), node("Cast", "most", "n", to=INT64)]
    deep = node("Loop", "n go start", "last all", body=loop_body())
    rows: list[tuple[NodeProto, list[NodeProto], dict[str, Any], str]] = [
        (deep, most, {"go": np.array(True)}, "its number of iterations is not constant"),
        (
            node("Loop", "n go start", "last all", body=loop_body(small)),
            [],
            {"n": np.int64(9), "go": np.array(True), "limit": np.float32(40)},
            "its condition is not constant",
        ),
    ]
    for loop, before, constants, reason in rows:
        loop.attribute[0].g.output[2].CopyFrom(info("product", FLOAT, (2, 3)))
        model = model_of([*before, loop, node("Neg", "last", "y")], {"x": X}, {**start, **constants}, ["y", "all"])
        session = check_agreement(model, {"x": X}, fallback=True)
        assert [line for line in reasons(session) if reason in line], reason


def test_loop_falls_back_with_unsupported_body() -> None:
    body = loop_body()
    body.node.extend([node("Det", "square", "d")])
    body.output[2].CopyFrom(info("d", FLOAT, ()))
    nodes = [node("Neg", "x", "n"), node("Loop", "three go n", "last all", body=body), node("Abs", "last", "y")]
    constants = {"three": np.int64(3), "go": np.array(True), "square": np.eye(65, dtype=np.float32)}
    feed = {"x": X}
    model = model_of(nodes, feed, constants, ["y", "all"])
    session = check_agreement(model, feed)  # Det of a constant is one
    assert kinds(session) == ["webnn"]
    feed = {"x": X, "square": np.eye(65, dtype=np.float32) * 3}
    del constants["square"]
    session = check_agreement(model_of(nodes, feed, constants, ["y", "all"]), feed, fallback=True)
    assert kinds(session) == ["webnn", "fallback"]  # a Loop's state may change its shape: what follows goes along
    (first, *_) = reasons(session)
    assert first.startswith("Loop: Det inside: the builder refuses it")
    assert "matrices may have at most 64 rows, got float32[65, 65]" in first


def test_unrolled_loops_do_not_share_names() -> None:
    """Two loops with one body, one of them inside of a branch."""
    body = loop_body()
    body.output[2].CopyFrom(info("product", FLOAT, (2, 3)))
    branch = graph([node("Loop", "n go x", "l a", body=body)], [], [info("l", FLOAT, (2, 3))])
    nodes = [
        node("Loop", "n go x", "first all", body=body),
        node("If", "go", "second", then_branch=branch, else_branch=branch),
        node("Loop", "n go second", "third more", body=body),
    ]
    constants = {"n": np.int64(3), "go": np.array(True)}
    model = model_of(nodes, {"x": X}, constants, ["first", "all", "third", "more"])
    assert kinds(check_agreement(model, {"x": X})) == ["webnn"]


def test_scan_is_unrolled() -> None:
    body = graph(
        [node("Add", "state a", "next"), node("Mul", "a b", "p"), node("Identity", "next", "copy")],
        [info("state", FLOAT, (2,)), info("a", FLOAT, (2,)), info("b", FLOAT, (2,))],
        [info("next", FLOAT, (2,)), info("p", FLOAT, (2,)), info("copy", FLOAT, (2,))],
    )
    rows: list[dict[str, Any]] = [
        {"scan_input_axes": [1, -1]},
        {"scan_input_axes": [1, 1], "scan_input_directions": [1, 0]},
        {"scan_input_axes": [1, 1], "scan_output_axes": [1, -1], "scan_output_directions": [0, 1]},
    ]
    feed = {"x": X, "z": X[::-1].copy()}
    for attributes in rows:
        nodes = [node("Scan", "start x z", "last p c", body=body, num_scan_inputs=2, **attributes)]
        model = model_of(nodes, feed, {"start": np.ones(2, np.float32)}, ["last", "p", "c"])
        assert kinds(check_agreement(model, feed)) == ["webnn"]


def test_long_scan_is_repeated() -> None:
    body = graph(
        [node("Add", "state a", "next")], [info("state", FLOAT, ()), info("a", FLOAT, ())], [info("next", FLOAT, ())]
    )
    x = np.ones(MAX_UNROLLED_STEPS + 1, np.float32)
    nodes = [node("Scan", "start x", "last", body=body, num_scan_inputs=1)]
    session = check_agreement(model_of(nodes, {"x": x}, {"start": np.float32(0)}, ["last"]), {"x": x})
    assert kinds(session) == ["webnn"]


def test_nested_model_function_is_inlined() -> None:
    function = helper.make_function(
        "own",
        "Twice",
        ["a"],
        ["b"],
        [helper.make_node("Add", ["a", "a"], ["c"]), helper.make_node("LeakyRelu", ["c"], ["b"])],
        [helper.make_opsetid("", 21)],
    )
    call = helper.make_node("Twice", ["x"], ["t"], domain="own")
    again = helper.make_node("Twice", ["t"], ["y"], domain="own")
    proto = helper.make_model(
        helper.make_graph([call, again], "g", [info("x", FLOAT, (2, 3))], [info("y", FLOAT, (2, 3))]),
        opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("own", 1)],
        functions=[function],
        ir_version=10,
    )
    session = check_agreement(proto, {"x": X - 2})
    assert session.explain().count("LeakyRelu") == 2


def test_operator_with_function_body_is_expanded() -> None:
    x = np.random.default_rng(1).standard_normal((2, 3, 4, 5)).astype(np.float32)
    model, feed = node_model("MeanVarianceNormalization", [x], opset=13)
    session = check_agreement(model, feed, rtol=1e-4)
    assert kinds(session) == ["webnn"]


# Folding -------------------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(3)


def numbers(dtype: str, *shape: int) -> np.ndarray:
    if dtype == "bool":
        return RNG.integers(0, 2, shape).astype(bool)
    return np.asarray(RNG.integers(-9 if dtype[0] != "u" else 0, 9, shape)).astype(dtype)


ALL = ("float32", "float16", "float64", "int32", "int64", "uint8", "int8", "bool")
NUMBERS = ("float32", "float64", "int32", "int64")

FOLDS: list[tuple[str, list[Any], dict[str, Any], int]] = [
    *(("Concat", [numbers(t, 2, 3), numbers(t, 2, 1), numbers(t, 2, 0)], {"axis": -1}, 13) for t in ALL),
    *(("Gather", [numbers(t, 4, 3), ints(-1, 0)], {"axis": 1}, 13) for t in ALL),
    *(("Gather", [numbers(t, 4), np.array(-2)], {}, 13) for t in ALL),
    *((op, [numbers(t, 2, 3), numbers(t, 3)], {}, 14) for op in ("Add", "Sub", "Mul") for t in NUMBERS),
    *(("Div", [numbers(t, 5, 3), np.array([3, -2, 7], t)], {}, 14) for t in NUMBERS),
    *(("Mod", [numbers(t, 5, 3), np.array([3, -2, 7], t)], {}, 13) for t in ("int32", "int64")),
    ("Add", [np.array([2**62, 2**63 - 1]), np.array([2**62, 1])], {}, 14),
    ("Div", [np.array([1, -1, 0], np.float32), np.zeros(3, np.float32)], {}, 14),
    *(
        ("Cast", [numbers(t, 3, 2)], {"to": helper.np_dtype_to_tensor_dtype(np.dtype(to))}, 19)
        for t in ALL
        for to in ALL
        if not (t != to and to in ("uint8",))
    ),
    ("Cast", [np.array([300, -1, 2**40], np.int64)], {"to": TensorProto.UINT8}, 19),
    ("Cast", [np.array([1.7, -1.7, 0.5], np.float32)], {"to": TensorProto.INT64}, 13),
    ("Cast", [np.array([1.0009, 70000, -1e-8], np.float32)], {"to": TensorProto.FLOAT16}, 13),
    ("Cast", [np.array([0.0, -0.0, np.nan, 0.3], np.float32)], {"to": TensorProto.BOOL}, 13),
    ("Unsqueeze", [ints(3, 4), ints(0, -1)], {}, 13),
    ("Unsqueeze", [ints(3, 4)], {"axes": [1]}, 11),
    ("Squeeze", [numbers("int64", 1, 2, 1)], {}, 13),
    ("Squeeze", [numbers("int64", 1, 2, 1), ints(-1)], {}, 13),
    ("Squeeze", [numbers("int64", 1, 2, 1)], {"axes": [0]}, 11),
    ("Slice", [ints(1, 2, 3, 4, 5), ints(-1), ints(-(2**63)), ints(0), ints(-2)], {}, 13),
    ("Slice", [ints(1, 2, 3, 4, 5), ints(3), ints(1)], {}, 13),
    ("Slice", [ints(1, 2, 3), ints(-9), ints(-(2**63)), ints(0), ints(-1)], {}, 13),
    ("Slice", [numbers("float32", 4, 5), ints(1, -100), ints(100, 2)], {}, 13),
    ("Slice", [numbers("float32", 4, 5)], {"starts": [1], "ends": [-1], "axes": [1]}, 9),
    ("Reshape", [numbers("int32", 2, 3), ints(0, -1, 1)], {}, 13),
    ("Reshape", [numbers("int32", 2, 0), ints(0, 3)], {"allowzero": 1}, 14),
    ("Range", [np.int64(3), np.int64(-5), np.int64(-2)], {}, 11),
    ("Range", [np.int32(0), np.int32(7), np.int32(3)], {}, 11),
    ("Range", [np.int64(3), np.int64(3), np.int64(1)], {}, 11),
    ("Range", [np.float32(0), np.float32(1), np.float32(0.1)], {}, 11),
    ("ConstantOfShape", [ints(2, 3)], {}, 9),
    ("ConstantOfShape", [ints(2, 0)], {"value": numpy_helper.from_array(ints(7))}, 21),
    ("ConstantOfShape", [np.zeros(0, np.int64)], {"value": numpy_helper.from_array(np.array([True]))}, 21),
    *(("Where", [numbers("bool", 2, 3), numbers(t, 3), numbers(t, 2, 1)], {}, 16) for t in ("float32", "int64")),
    *(("Equal", [numbers(t, 2, 3), numbers(t, 3)], {}, 13) for t in (*NUMBERS, "bool")),
    *((op, [numbers(t, 4), numbers(t, 4)], {}, 16) for op in ("Less", "GreaterOrEqual", "Greater") for t in NUMBERS),
    *((op, [numbers("bool", 4), numbers("bool", 4)], {}, 7) for op in ("And", "Or")),
    ("Not", [numbers("bool", 4)], {}, 7),
    ("Neg", [numbers("int64", 4)], {}, 13),
    ("Abs", [numbers("int64", 4)], {}, 13),
    *(
        (op, [numbers(t, 4), numbers(t, 3, 1), numbers(t, 1)], {}, 13)
        for op in ("Min", "Max")
        for t in ("int64", "int32")
    ),
    *((op, [np.array([-0.5, 0.5, 2.5, -1e30], np.float32)], {}, 13) for op in ("Floor", "Ceil")),
    ("Sqrt", [np.array([0.0, 2, 3, 1e30], np.float32)], {}, 13),
    ("Expand", [numbers("float32", 3, 1), ints(2, 1, 4)], {}, 13),
    *(("Pad", [numbers(t, 2, 3), ints(0, 1, 2, 0), numbers(t)], {}, 13) for t in (*NUMBERS, "bool")),
    ("Pad", [numbers("float32", 2, 3), ints(0, 0, 0, 4)], {"mode": "constant"}, 19),
    ("Tile", [numbers("float32", 3, 1), ints(2, 3)], {}, 13),
    ("Transpose", [numbers("float32", 2, 3, 4)], {"perm": [2, 0, 1]}, 13),
    ("Transpose", [numbers("float32", 2, 3, 4)], {}, 13),
]


@pytest.mark.parametrize("row", FOLDS, ids=lambda row: f"{row[0]}-{np.asarray(row[1][0]).dtype}")
def test_folding_agrees_with_engine(row: tuple[str, list[Any], dict[str, Any], int]) -> None:
    op_type, inputs, attributes, opset = row
    model, _ = node_model(op_type, inputs, attributes, opset=opset, dynamic=())
    (wanted,) = run_engine(model, {})
    try:
        (found,) = fold.with_numpy(model.graph.node[0], [np.asarray(value) for value in inputs])
    except fold.Declined:
        assert op_type == "Range" or op_type not in fold.EVALUATORS, "NumPy should compute it"
        (found,) = fold.with_engine(model.graph.node[0], [np.asarray(value) for value in inputs], model) or []
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(found, wanted)


def test_split_is_folded() -> None:
    model, _ = node_model("Split", [ints(1, 2, 3, 4, 5), ints(2, 3)], opset=13, outputs=2, dynamic=())
    found = fold.with_engine(model.graph.node[0], [ints(1, 2, 3, 4, 5), ints(2, 3)], model)
    assert found is not None
    assert [part.tolist() for part in found] == [[1, 2], [3, 4, 5]]


def test_fold_leaves_large_results_to_graph() -> None:
    for op_type, inputs in {
        "Tile": [ints(7), ints(fold.LARGE_BYTES // 8 + 1)],
        "Range": [np.float32(0), np.float32(1e8), np.float32(1)],
    }.items():
        model, _ = node_model(op_type, inputs, opset=13, dynamic=())
        (step,) = Tracer(Model.load(model), CONTEXT, {}).run().steps
        assert step.kind != "folded"
    model, _ = node_model("Tile", [ints(7), ints(fold.LARGE_BYTES // 8)], opset=13, dynamic=())
    (step,) = Tracer(Model.load(model), CONTEXT, {}).run().steps
    assert step.kind == "folded"


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes"),
    [
        ("Div", [ints(1), ints(0)], {}),
        ("Gather", [ints(1, 2), ints(2)], {}),
        ("Add", [ints(1), np.float32([1])], {}),
        ("Cast", [np.float32([np.nan])], {"to": TensorProto.INT32}),
        ("Cast", [np.float32([3e9])], {"to": TensorProto.INT32}),
        ("Cast", [np.float32([1])], {"to": TensorProto.BFLOAT16}),
        ("Pad", [numbers("float32", 2, 3), ints(1, 2)], {}),
        ("Pad", [np.float32(3), ints()], {}),
        ("Pad", [numbers("float32", 3), ints(-1, 0)], {}),
        ("Pad", [numbers("float32", 3), ints(1, 0)], {"mode": "reflect"}),
        ("Pad", [numbers("float32", 3), ints(1, 0), ints(1)], {}),
        ("Pad", [numbers("float32", 3), ints(1, 0), np.float32(1), ints(0)], {}),
        ("Pad", [numbers("float32", 3)], {"pads": [1, 0]}),
        ("Reshape", [ints(1, 2), ints(3)], {}),
        ("Slice", [ints(1, 2), ints(1), ints(2**63 - 1), ints(0), ints(-1)], {}),
    ],
)
def test_fold_with_numpy_declines(op_type: str, inputs: list[np.ndarray], attributes: dict[str, Any]) -> None:
    names = [f"x{k}" for k in range(len(inputs))]
    with pytest.raises(fold.Declined):
        fold.with_numpy(helper.make_node(op_type, names, ["y"], **attributes), inputs)


@pytest.mark.parametrize(
    ("op_type", "inputs"),
    [
        ("ConstantOfShape", [ints(2**20, 2**20)]),
        ("Expand", [ints(1), ints(2**20, 2**20)]),
        ("Pad", [ints(1), ints(2**40, 2**40)]),
        ("Range", [ints(0).reshape(()), np.array(2**40), np.array(1)]),
        ("Gather", [np.zeros((1, 2**13)), np.zeros(2**13, np.int64)]),
    ],
)
def test_fold_with_numpy_rejects_large_results(op_type: str, inputs: list[np.ndarray]) -> None:
    names = [f"x{k}" for k in range(len(inputs))]
    with pytest.raises(fold.TooLarge):
        fold.with_numpy(helper.make_node(op_type, names, ["y"]), inputs)


def test_constant_of_shape_large_is_not_folded() -> None:
    size = 3000
    nodes = [node("ConstantOfShape", "s", "c", value=numpy_helper.from_array(np.float32([2]))), node("Mul", "c x", "y")]
    x = np.arange(size, dtype=np.float32)
    session = check_agreement(model_of(nodes, {"x": x}, {"s": ints(size, size)}, ["y"]), {"x": x})
    assert "\n0 nodes computed when the model was compiled" in session.explain()


def test_shape_arithmetic_needs_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exported transformers have hundreds of such nodes; a session of the engine for each would take about a millisecond."""
    asked: list[str] = []
    monkeypatch.setattr(fold, "with_engine", lambda node, *_: asked.append(node.name))
    nodes: list[NodeProto] = []
    for k in range(200):
        nodes += [
            node("Shape", "x", f"s{k}"),
            node("Gather", f"s{k} zero", f"g{k}"),
            node("Unsqueeze", f"g{k} axes", f"u{k}"),
            node("Concat", f"u{k} minus", f"t{k}", axis=0),
            node("Reshape", f"{f'y{k - 1}' if k else 'x'} t{k}", f"y{k}"),
        ]
    constants = {"zero": np.int64(0), "axes": ints(0), "minus": ints(-1)}
    model = model_of(nodes, {"x": X}, constants, ["y199"])
    session = InferenceSession(model, CONTEXT, fallback="error")
    assert asked == []
    assert "800 nodes computed when the model was compiled" in session.explain()
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], X)


def test_session_does_not_change_the_proto() -> None:
    nodes = [node("Neg", "x", "around"), node("If", "c", "y", **branches())]
    model = model_of(nodes, {"x": X}, {"c": np.array(True)}, ["y"])
    before = model.SerializeToString(deterministic=True)
    InferenceSession(model, CONTEXT).run(None, {"x": X})
    assert model.SerializeToString(deterministic=True) == before
    assert onnx.ModelProto.FromString(before).graph.node[1].op_type == "If"
