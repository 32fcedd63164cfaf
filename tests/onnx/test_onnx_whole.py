"""The line that says whether a device runs a model whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from support.sampling_cases import MAKERS, case
from support.webgpu_device import gpu_context

import opweave as ow
from opweave.onnx.session.parts import parts_of
from opweave.onnx.session.whole import line_of

FLOATS = TensorProto.FLOAT
NODES: dict[str, list[Any]] = {
    "whole": [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Softmax", ["r"], ["y"])],
    "float64": [
        helper.make_node("Relu", ["x"], ["r"], name="first"),
        helper.make_node("Cast", ["r"], ["wide"], to=TensorProto.DOUBLE),
        helper.make_node("Exp", ["wide"], ["power"]),
        helper.make_node("Neg", ["power"], ["y"]),
    ],
    "strings": [
        helper.make_node("Cast", ["x"], ["text"], to=TensorProto.STRING),
        helper.make_node("Cast", ["text"], ["z"], to=FLOATS),
        helper.make_node("Neg", ["z"], ["y"]),
    ],
    "data": [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("NonZero", ["r"], ["y"])],
}
LINES = {
    "whole": "runs whole on gpu-software",
    "strings": "2 of 3 nodes on the processor: Cast (WebNN has no string), Cast (its input 'text' is string)",
}


def compiled(nodes: list[Any], context: ow.MLContext) -> tuple[Any, str, list[str]]:
    """The compiled model, its line, and the lines of `explain`."""
    y = helper.make_empty_tensor_value_info("y")
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", FLOATS, [2, 3])], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = ow.InferenceSession(model, context, specialise="always")
    parts = parts_of(session)
    program = parts.compile_for({"x": [2, 3]})
    line = line_of(program.trace, program.outputs, parts.context, has_list=True)
    return program, line, session.explain({"x": [2, 3]}).splitlines()


@pytest.mark.parametrize("name", NODES)
def test_line_tells_what_is_placed_on_the_processor(name: str) -> None:
    program, line, explained = compiled(NODES[name], gpu_context())
    assert line in explained
    on_processor = {
        placement.node for placements in program.placements for placement in placements if placement.device == "cpu"
    }
    fallbacks = sum(len(section.nodes) for section in program.sections if section.kind == "fallback")
    assert line.startswith("runs whole on ") == (not on_processor and not fallbacks)
    assert LINES.get(name, line) == line
    if name == "float64":
        reason = "kernels of this device have no float64"
        assert line == f"3 of 4 nodes on the processor: Cast ({reason}), Exp ({reason}), Neg ({reason})"


@pytest.mark.parametrize("name", NODES)
def test_line_on_cpus_counts_nodes_that_fall_back(name: str) -> None:
    program, line, explained = compiled(NODES[name], ow.ml.create_context(device="cpu"))
    assert line in explained
    fallbacks = sum(len(section.nodes) for section in program.sections if section.kind == "fallback")
    nodes = sum(len(section.nodes) for section in program.sections)
    verb = "falls" if fallbacks == 1 else "fall"
    expected = f"{fallbacks} of {nodes} nodes {verb} back to ONNX Runtime" if fallbacks else "runs whole on cpu"
    assert line.startswith(expected)
    assert (": " in line) == (fallbacks == 1), "several reasons are in the list of sections alone"


@pytest.mark.parametrize("op_type", MAKERS)
def test_composites_run_whole_on_gpus(op_type: str) -> None:
    model, feed = case(op_type, 3).model()
    session = ow.InferenceSession(model, gpu_context())
    text = session.explain({name: array.shape for name, array in feed.items() if isinstance(array, np.ndarray)})
    assert "runs whole on gpu-software" in text.splitlines()


def test_line_lists_the_first_reasons() -> None:
    operators = ["Abs", "Neg", "Exp", "Sqrt", "Ceil", "Floor", "Neg", "Erf"]
    names = [f"wide{k}" for k in range(len(operators))]
    nodes = [helper.make_node("Cast", ["x"], ["wide0"], to=TensorProto.DOUBLE)]
    nodes += [
        helper.make_node(op, [name], [after])
        for op, name, after in zip(operators, names, [*names[1:], "y"], strict=True)
    ]
    _, line, _ = compiled(nodes, gpu_context())
    reason = "kernels of this device have no float64"
    shown = ["Cast", "Abs", "Neg 2x", "Exp", "Sqrt", "Ceil"]
    assert line == f"9 of 9 nodes on the processor: {', '.join(f'{name} ({reason})' for name in shown)}, 2 more nodes"
