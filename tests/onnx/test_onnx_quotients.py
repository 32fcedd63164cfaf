"""Quotients of the smallest integer by -1, which ONNX Runtime's kernels end the process for, in each part of a model."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

import opweave as ow

BOOL, INT64 = TensorProto.BOOL, TensorProto.INT64
PLACES = (
    "top",
    "branch",
    "top and branch",
    "constants of a branch",
    "loop",
    "scan",
    "nested",
    "function",
    "of a sequence",
)


def value(name: str, element_type: int, shape: Sequence[int | str] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element_type, shape)


def choice(
    then: Sequence[NodeProto], result: str, initializers: Sequence[TensorProto] = (), output: str = "r"
) -> NodeProto:
    """An If that depends on the input "c"; the other branch returns a."""
    untyped = [onnx.ValueInfoProto(name=f"{output} of a branch")]
    ends = [helper.make_node("Identity", [name], [untyped[0].name]) for name in (result, "a")]
    bodies = [[*then, ends[0]], [ends[1]]]
    graphs = [helper.make_graph(body, "branch", [], untyped) for body in bodies]
    graphs[0].initializer.extend(initializers)
    return helper.make_node("If", ["c"], [output], then_branch=graphs[0], else_branch=graphs[1])


def model(op: str, data_type: str, place: str) -> ModelProto:
    """A model that divides its input "a" by its input "b" once."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(data_type))
    divide = helper.make_node(op, ["a", "b"], ["q"])
    same = helper.make_node("Identity", ["go"], ["go on"])
    functions = []
    body: GraphProto
    match place:
        case "top":
            nodes = [helper.make_node(op, ["a", "b"], ["r"])]
        case "branch":
            nodes = [choice([divide], "q")]
        case "top and branch":
            top = helper.make_node(op, ["a", "b"], ["p"])
            nodes = [top, choice([divide], "q", output="s"), helper.make_node("Min", ["p", "s"], ["r"])]
        case "constants of a branch":  # of which the engine folds what it can
            least = numpy_helper.from_array(np.array([np.iinfo(data_type).min], data_type), "least")
            minus = helper.make_node(
                "Constant", [], ["minus"], value=numpy_helper.from_array(np.array([-1], data_type))
            )
            folded = helper.make_node(op, ["least", "minus"], ["folded"])
            rest = [
                divide,
                helper.make_node("Sub", ["q", "folded"], ["s"]),
                helper.make_node("Add", ["s", "folded"], ["t"]),
            ]
            nodes = [choice([minus, folded, *rest], "t", [least])]
        case "loop":
            divide = helper.make_node(op, ["s", "b"], ["q"])
            inputs, outputs = (
                [value("i", INT64, []), value("go", BOOL, []), value("s", kind)],
                [value("go on", BOOL, [])],
            )
            body = helper.make_graph([same, divide], "body", inputs, [*outputs, value("q", kind)])
            nodes = [helper.make_node("Loop", ["n", "c", "a"], ["r"], body=body)]
        case "scan":
            divide = helper.make_node(op, ["s", "e"], ["q"])
            body = helper.make_graph([divide], "body", [value("s", kind), value("e", kind)], [value("q", kind)])
            scan = helper.make_node("Scan", ["first", "b"], ["last"], body=body, num_scan_inputs=1)
            nodes = [
                helper.make_node("Squeeze", ["a"], ["first"]),
                scan,
                helper.make_node("Unsqueeze", ["last", "zero"], ["r"]),
            ]
        case "nested":
            nodes = [choice([choice([divide], "q", output="inner")], "inner")]
        case "function":
            imports = [helper.make_opsetid("", 15)]
            functions = [helper.make_function("local", "f", ["a", "b"], ["q"], [divide], imports)]
            nodes = [choice([helper.make_node("f", ["a", "b"], ["q"], domain="local")], "q")]
        case "of a sequence":  # whose type no operator says
            made = helper.make_node("SequenceConstruct", ["a", "b"], ["both"])
            taken = [
                helper.make_node("SequenceAt", ["both", at], [name]) for name, at in (("u", "zero0"), ("v", "one0"))
            ]
            nodes = [choice([made, *taken, helper.make_node(op, ["u", "v"], ["q"])], "q")]
    inputs = [value("a", kind, ["k"]), value("b", kind, ["k"]), value("c", BOOL, []), value("n", INT64, [])]
    constants = {"zero": np.int64([0]), "zero0": np.int64(0), "one0": np.int64(1)}
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "quotients", inputs, [value("r", kind)], initializers)
    imports = [helper.make_opsetid("", 15), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, functions=functions, opset_imports=imports, ir_version=8)


def check_division(place: str) -> None:
    """Divide in one place of a model, uncompiled and compiled."""
    for data_type in ("int32", "int64"):
        least = np.iinfo(data_type).min
        for op, cases in (
            ("Div", {(7, -2): -3, (-7, 2): -3, (7, -1): -7, (least, -1): least}),
            ("Mod", {(7, -2): -1, (-7, 2): 1, (7, -1): 0, (least, -1): 0}),
        ):
            for options in ({}, {"specialise": "always"}):
                session = ow.InferenceSession(model(op, data_type, place), **options)
                for (a, b), expected in cases.items():
                    arrays = {"a": np.array([a], data_type), "b": np.array([b], data_type)}
                    feed: dict[str, Any] = {**arrays, "c": np.array(True), "n": np.int64(1)}
                    (found,) = session.run(None, feed)
                    assert found.tolist() == [expected], f"{op} {options}: {a} by {b} is {found}, not {expected}"


@pytest.mark.long
def test_div_of_smallest_integer_by_minus_one() -> None:
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True)
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.stdout.splitlines() == [*PLACES]


def test_quotients_of_floats_stay_as_they_are() -> None:
    """Also where their type follows from other nodes: a guard would cost time."""
    from opweave.backends.onnxruntime import quotients
    from opweave.backends.onnxruntime.quotients import guard_quotients

    steps = [
        helper.make_node("Gather", ["table", "a"], ["rows"]),
        helper.make_node("ReduceSum", ["rows"], ["sum"]),
        helper.make_node("Sqrt", ["sum"], ["root"]),
        helper.make_node("Div", ["rows", "root"], ["scaled"]),
        helper.make_node("Mod", ["a", "three"], ["rest"]),
        helper.make_node("Cast", ["scaled"], ["r"], to=INT64),
    ]
    proto = model("Div", "int64", "top")
    constants = {"table": np.ones((5, 2), np.float32), "three": np.int64([3])}
    del proto.graph.node[:]
    proto.graph.node.extend([choice(steps, "rest")])
    guarded = ModelProto()
    guarded.CopyFrom(proto)
    before = quotients._signatures.cache_info()
    guard_quotients(guarded, constants)
    assert guarded == proto
    assert quotients._signatures.cache_info() == before  # nothing else must be known of these
    constants["three"] = np.int64([-1])
    guard_quotients(guarded, constants)
    names = [node.op_type for node in guarded.graph.node[0].attribute[1].g.node]
    assert names[:4] == ["Gather", "ReduceSum", "Sqrt", "Div"]
    assert names[4:] == ["Sub", "Div", "Add", "Equal", "Less", "And", "Where", "Mod", "Cast", "Identity"]


def test_known_types_equal_schemas() -> None:
    from opweave.backends.onnxruntime.quotients import FIRST, FLOATS

    for schema in onnx.defs.get_all_schemas_with_history():
        types = {constraint.type_param_str: constraint.allowed_type_strs for constraint in schema.type_constraints}
        if schema.domain == "" and schema.name in FLOATS:
            assert not {"tensor(int32)", "tensor(int64)"} & {*types[schema.outputs[0].type_str]}, schema.name
        if schema.domain == "" and schema.name in FIRST:
            assert len(schema.outputs) == 1, schema.name
            assert schema.outputs[0].type_str == schema.inputs[0].type_str, schema.name
    assert {*FIRST, *FLOATS} <= {schema.name for schema in onnx.defs.get_all_schemas()}


def test_guard_quotients_rejects_old_operator_set() -> None:
    from opweave.backends.onnxruntime.quotients import guard_quotients

    proto = model("Div", "int64", "branch")
    proto.opset_import[0].version = 8
    with pytest.raises(ow.OperationError, match="Div of integers needs operator set 9, and the model has 8"):
        guard_quotients(proto, {})


if __name__ == "__main__":
    for place in PLACES:
        print(place, flush=True)  # the last one has ended the process
        check_division(place)
