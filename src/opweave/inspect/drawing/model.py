"""Drawing of a model: its nodes, in lanes for the sections that run them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from ...backends import Placement
from ...compile.partition import Segment
from ...core.graph import Graph, Node, Operand
from ...onnx.convert.trace import Trace, TracedNode
from ...onnx.model.protobuf import AttributeProto, GraphProto, TensorProto, attribute_value, dtype_of
from ...onnx.model.scopes import used_names
from ...onnx.model.values import Constant, Tensor
from ...onnx.session.compiled import CompiledModel
from ...support.formatting import shorten, size
from ...support.names import count_of, short_repr
from ..profile import engine
from .picture import MAX_VALUE, Box, Details, DrawnLane, Picture, Sketch, scope_of

NAMESPACE = "namespace"
"""Property of a node in which PyTorch's exporter writes the modules around it, each with its class."""

KNOWN_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
"""Domains of standard operators; others are custom."""


def model_picture(compiled: CompiledModel, inputs: list[str], outputs: list[str]) -> Picture:
    """Build the picture of a compiled model."""
    lanes = [_lane(number, section, compiled) for number, section in enumerate(compiled.sections)]
    sketch, trace = Sketch(lanes), compiled.trace
    used = {name for section in compiled.sections for name in section.inputs} | set(outputs)

    def reads(names: Iterable[str]) -> list[tuple[str, str, bool]]:
        return [(name, _text(trace, name), False) for name in names if name in sketch.homes]

    for name in inputs:
        if name in used:
            sketch.add(Box(name, 0, "input", tooltip=f"input {name}: {_text(trace, name)}"), (), [name])
    for lane, section in enumerate(compiled.sections, start=1):
        placed = _placements(compiled, lane - 1) if section.kind == "webnn" else {}
        for step in section.nodes:
            results = [name for name in step.node.output if name]
            sketch.add(
                _box(step, lane, trace, *_runs(compiled, lane - 1, step, placed)), reads(used_names(step.node)), results
            )
    for name in outputs:
        box = Box(name, len(lanes) + 1, "output", tooltip=f"output {name}: {_text(trace, name)}")
        sketch.add(box, reads([name]), ())
    return sketch.picture


def _box(step: TracedNode, lane: int, trace: Trace, runs_on: str, reason: str) -> Box:
    node, values = step.node, {name: trace.values[name] for name in used_names(step.node)}
    constants = {name: value.array for name, value in values.items() if isinstance(value, Constant)}
    tooltip = [
        f"{node.op_type} {node.name!r}",
        *(f"{name}: {_text(trace, name)}" for name in constants),
        *(f"→ {name}: {_text(trace, name)}" for name in node.output if name),
        *([step.reason] if step.reason else []),
    ]
    details = Details(
        node.name,
        _scope(step),
        runs_on,
        reason,
        tuple((attribute.name, _attribute(attribute)) for attribute in node.attribute),
        tuple(("", name, _text(trace, name)) for name in used_names(node)),
        tuple((name, _text(trace, name)) for name in node.output if name),
    )
    return Box(
        node.op_type,
        lane,
        "operation" if node.domain in KNOWN_DOMAINS else "custom",
        (f"{node.name!r}",) if node.name else (),
        tuple("end" if node.op_type == "Slice" and _is_no_end(array) else _chip(array) for array in constants.values()),
        "\n".join(tooltip),
        (node.op_type,),
        {id(array): array.nbytes for array in constants.values()},  # nodes may name one array differently
        details=details,
    )


def _placements(compiled: CompiledModel, number: int) -> dict[Node, Placement]:
    """The placement of each operation of a section, by its node in the graph of the trace."""
    section = compiled.sections[number]
    inputs, outputs = (_operands(compiled.trace, names) for names in (section.inputs, section.outputs))
    takes = {operand: f"x{index}" for index, operand in enumerate(inputs)}
    graph = Graph.reaching({f"y{index}": operand for index, operand in enumerate(outputs - inputs)}, takes)
    placements = compiled.placements[number]
    return dict(zip(graph.nodes, placements, strict=True)) if placements else {}


def _operands(trace: Trace, names: Iterable[str]) -> set[Operand]:
    values = (trace.values[name] for name in names if name)
    return {value.operand for value in values if isinstance(value, Tensor)}


def _runs(compiled: CompiledModel, number: int, step: TracedNode, placed: Mapping[Node, Placement]) -> tuple[str, str]:
    """The engines that run the operations of a node, and the reason."""
    device = compiled.context.device.name
    if compiled.sections[number].kind != "webnn":
        return "ONNX Runtime, as fallback", step.reason
    start = _operands(compiled.trace, used_names(step.node))
    pending = [*_operands(compiled.trace, step.node.output)]
    own: dict[Node, Placement] = {}
    while pending:
        operand = pending.pop()
        node = operand.node
        if operand not in start and node is not None and node in placed and node not in own:
            own[node] = placed[node]
            pending += node.operands
    return (f"{engine([*own.values()])} on {device}" if own else "nothing: no operation is left"), compiled.choice


def _scope(step: TracedNode) -> tuple[str, ...]:
    """The modules around a node: from the property that PyTorch's exporter writes, or from the name of the node."""
    for entry in step.node.metadata_props:
        if entry.key == NAMESPACE:
            modules = [part.partition(": ")[0].strip() for part in entry.value.split("/")[:-1]]
            return tuple(filter(None, modules))
    return scope_of(step.node.name)


def _attribute(attribute: AttributeProto) -> str:
    if attribute.ref_attr_name:
        return f"the attribute {attribute.ref_attr_name!r} of a function"
    match attribute_value(attribute):
        case TensorProto() as tensor:
            return f"{dtype_of(tensor.data_type)}{list(tensor.dims)}"
        case bytes(text):
            return shorten(text.decode(errors="replace"), MAX_VALUE)
        case float(number):
            return f"{number:.6g}"
        case GraphProto() | None:
            return attribute.name
        case value:
            return shorten(short_repr(value), MAX_VALUE)


def _lane(number: int, section: Segment[TracedNode, str], compiled: CompiledModel) -> DrawnLane:
    caption = count_of(len(section.nodes), "node")
    if section.kind == "webnn":
        return DrawnLane((f"section {number}", f"WebNN on {compiled.context.device.name}", caption), "engine")
    return DrawnLane((f"section {number}", "ONNX Runtime (fallback)", caption), "fallback")


def _text(trace: Trace, name: str) -> str:
    value = trace.values[name]
    if isinstance(value, Tensor):
        return str(value.operand.desc)
    if isinstance(value, Constant):
        array = value.array
        is_number = array.size == 1 and array.dtype.kind in "fiub"
        content = _chip(array) if is_number else size(array.nbytes)
        return f"constant {array.dtype}{list(array.shape)}, {content}"
    return "shape known when it runs"


def _is_no_end(array: np.ndarray) -> bool:
    """Whether a constant is the number that exporters write as the end of a slice that goes to the last element."""
    return array.size == 1 and array.dtype == np.int64 and array.item() == np.iinfo(np.int64).max


def _chip(array: np.ndarray) -> str:
    if array.size == 1 and array.dtype.kind in "fiub":
        return f"{array.item():.5g}" if array.dtype.kind == "f" else f"{array.item()}"
    return "×".join(map(str, array.shape))
