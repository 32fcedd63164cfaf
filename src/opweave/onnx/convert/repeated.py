"""Loops and branches whose bodies stay graphs: Loop and Scan become `loop`, and If `branch`.

A body is traced once, in a new builder. It captures the operands that it reads from the graph around it; constants become
constants of the body. States keep their data types and shapes; `control` unrolls other loops.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...composites.control import FLAG, POSITION, branch, loop
from ...context.builder import NamedBuilder
from ...core.bodies import add_input, body_of
from ...core.graph import Desc, Operand
from ...core.sizes import is_same_shape, is_same_size
from ...ops.elementwise import identity
from ...ops.movement import move_axis
from ..model.booleans import bool_as_uint8
from ..model.protobuf import GraphProto, NodeProto, TensorProto, node as make_node
from ..model.registry import DATA_TYPES, Unsupported, normalize_axis, unsupported_if
from ..model.scopes import rename_node
from ..model.values import Constant, Tensor, Value

if TYPE_CHECKING:
    from .trace import TracedNode, Tracer


@dataclass
class TracedBody:
    """A sub-graph, traced in the builder `builder`.

    Attributes:
        outputs: the operands and the ONNX element types of its outputs; a constant has no operand yet.
        captured: operands of the graph around the body -> the inputs of the body that stand for them.
    """

    builder: NamedBuilder
    inputs: list[Operand]
    outputs: list[Value]
    captured: dict[Operand, Operand]

    def operand(self, number: int) -> Operand:
        """The operand of an output."""
        match self.outputs[number]:
            case Tensor(operand):
                return operand
            case Constant(array) if array.dtype.kind not in "OUS":
                return self.builder.constant(bool_as_uint8(array))
        raise Unsupported("an output of its body has a shape that is known only when the graph runs")

    def reads(self, operand: Operand, outputs: Sequence[Operand]) -> bool:
        """Whether outputs depend on an input."""
        pending, seen = list(outputs), set(outputs)
        while pending:
            item = pending.pop()
            if item is operand:
                return True
            fresh = [] if item.node is None else [o for o in item.node.operands if o not in seen]
            seen.update(fresh)
            pending += fresh
        return False


def trace_body(
    tracer: Tracer, graph: GraphProto, prefix: str, inputs: Sequence[tuple[int, Desc] | np.ndarray]
) -> TracedBody:
    """Trace a sub-graph; its inputs have these element types and descriptors, or these values."""
    unsupported_if(len(graph.input) != len(inputs), f"its body takes {len(graph.input)} values, and gets {len(inputs)}")
    with tracer.inside(graph, prefix) as scope:
        names: dict[str, str] = {}
        operands = []
        for number, (info, item) in enumerate(zip(graph.input, inputs, strict=True)):
            name = names[info.name] = f"{prefix}in {number}"
            if isinstance(item, np.ndarray):
                tracer.add_constant(name, item)
                continue
            element_type, desc = item
            operand = add_input(scope.builder, name, desc)
            operands.append(operand)
            tracer.trace.values[name] = Tensor(operand, element_type)
        results = [f"{prefix}out {number}" for number in range(len(graph.output))]
        steps = inline(tracer, graph, names, results, prefix, whole=True)
        tracer.label(steps)
        outputs = [tracer.trace.values[name] for name in results]
    return TracedBody(scope.builder, operands, outputs, scope.captured)


def operand_of(tracer: Tracer, name: str) -> Operand:
    """The operand of a value around a body."""
    match tracer.trace.values[name]:
        case Tensor(operand):
            return operand
        case Constant() as value if value.element_type in DATA_TYPES:
            return tracer.operand_of_constant(value)
    raise Unsupported(f"its input {name!r} has a shape that is known only when the graph runs")


def _type_of(tracer: Tracer, name: str, operand: Operand) -> tuple[int, Desc]:
    return tracer.element_type(name), operand.desc


def _constant_flag(value: Value) -> bool | None:
    """The value of a condition; None if it is computed when the graph runs."""
    return bool(value.array.item()) if isinstance(value, Constant) and value.array.size == 1 else None


class _States:
    """The loop-carried values of a body, without those that never change, which the body captures.

    `lead` is the number of inputs, and of outputs, of the body before the states.
    """

    def __init__(self, traced: TracedBody, first: Sequence[Operand], types: Sequence[int], lead: int) -> None:
        self.first, self.inputs, self.outputs, self.places = [], [], [], []
        self.constant: dict[int, Operand] = {}
        for number, operand in enumerate(first):
            own, value = traced.inputs[lead + number], traced.outputs[lead + number]
            result = traced.operand(lead + number)
            if _source_of(result) is own:
                self.constant[number] = operand
                traced.captured[operand] = traced.captured.get(operand, own)
                if traced.captured[operand] is not own:  # two inputs of one value: both stay states
                    del self.constant[number]
            if number in self.constant:
                continue
            fits = result.data_type == operand.data_type and value.element_type == types[number]
            unsupported_if(
                not fits, f"its state {number} is {operand.desc} before, and {result.desc} after an iteration"
            )
            is_kept = is_same_shape(result.shape, operand.shape)
            unsupported_if(
                not is_kept,
                f"its state {number} has the shape {list(operand.shape)} before, and {list(result.shape)} after an iteration",
            )
            self.first.append(operand)
            self.inputs.append(own)
            self.outputs.append(result)
            self.places.append(number)


def _source_of(operand: Operand) -> Operand:
    while operand.node is not None and operand.node.op is identity:
        (operand,) = operand.node.operands
    return operand


def repeat_scan(tracer: Tracer, node: NodeProto, body: GraphProto, attributes: Mapping[str, Any]) -> dict[str, Value]:
    """The outputs of a Scan, by name."""
    count = len(node.input) - attributes["num_scan_inputs"]
    operands = [operand_of(tracer, name) for name in node.input]
    types = [tracer.element_type(name) for name in node.input]
    first, scanned = operands[:count], operands[count:]
    axes = attributes.get("scan_input_axes") or [0] * len(scanned)
    axes = [normalize_axis(axis, operand.rank) for axis, operand in zip(axes, scanned, strict=True)]
    scanned = [move_axis(tracer.builder, operand, axis, 0) for operand, axis in zip(scanned, axes, strict=True)]
    length = scanned[0].shape[0]
    lengths = [operand.shape[0] for operand in scanned]
    is_one = all(is_same_size(other, length) for other in lengths)
    unsupported_if(not is_one, f"it scans axes of {sorted(set(map(str, lengths)))} elements")
    slices = [Desc(operand.data_type, operand.shape[1:]) for operand in scanned]
    descs = [*(operand.desc for operand in first), *slices]
    prefix = tracer.fresh(node)
    traced = trace_body(tracer, body, prefix, list(zip(types, descs, strict=True)))
    return _finish(
        tracer, node, traced, first, types[:count], scanned, 0,
        length=length,
        backward=attributes.get("scan_input_directions") or (),
        stacked_backward=attributes.get("scan_output_directions") or (),
        axes=attributes.get("scan_output_axes"),
    )  # fmt: skip


class EndsByPosition(Unsupported):
    """A Loop whose condition depends on the number of the iteration alone."""


def repeat_loop(
    tracer: Tracer,
    node: NodeProto,
    body: GraphProto,
    length: int | None,
    count: str,
    condition: str,
    names: Sequence[str],
    asks: bool = False,
) -> dict[str, Value]:
    """The outputs of a Loop, by name.

    `length` is the number of iterations; `count` and `condition` are the names of operands, empty if there are none. Without
    `asks`, a condition that depends on the number of the iteration alone raises `EndsByPosition`.
    """
    first = [operand_of(tracer, name) for name in names]
    types = [tracer.element_type(name) for name in names]
    prefix = tracer.fresh(node)
    states = [(type, operand.desc) for type, operand in zip(types, first, strict=True)]
    traced = trace_body(tracer, body, prefix, [(TensorProto.INT64, POSITION), np.array(True), *states])
    continues = _constant_flag(traced.outputs[0])
    if continues is None and not asks:
        others = [*traced.inputs[1:], *traced.captured.values()]
        if not any(traced.reads(own, [traced.operand(0)]) for own in others):
            raise EndsByPosition("its condition depends on the number of the iteration")
    if continues is False and not count:
        length = 1 if length is None else min(length, 1)
    options: dict[str, Any] = {"length": length}
    if count:
        number = operand_of(tracer, count)
        options["count"] = tracer.builder.clamp(number, max_value=1) if continues is False else number
    if condition:
        options["condition"] = operand_of(tracer, condition)
    return _finish(tracer, node, traced, first, types, [], 1, gives_condition=continues is None, **options)


def _finish(
    tracer: Tracer,
    node: NodeProto,
    traced: TracedBody,
    first: Sequence[Operand],
    types: Sequence[int],
    scanned: Sequence[Operand],
    lead: int,
    *,
    gives_condition: bool = False,
    axes: Sequence[int] | None = None,
    **options: Any,
) -> dict[str, Value]:
    states = _States(traced, first, types, lead)
    elements = [traced.operand(number) for number in range(lead + len(first), len(traced.outputs))]
    flag = []
    if gives_condition:
        operand = traced.operand(0)
        flag = [operand if operand.rank == 0 else traced.builder.reshape(operand, [])]
        unsupported_if(flag[0].data_type != FLAG.data_type, "its condition is no bool")
    outputs = [*flag, *states.outputs, *elements]
    unsupported_if(elements and (gives_condition or len({"count", "condition"} & options.keys())), _EARLY)
    if not states.outputs and not elements:  # nothing changes in it
        pairs = zip(node.output, first, types, strict=False)
        return {name: Tensor(operand, type) for name, operand, type in pairs if name}
    captured = {o: own for o, own in traced.captured.items() if traced.reads(own, outputs)}
    position = [own for own in traced.inputs[:lead] if traced.reads(own, outputs)]
    slices = traced.inputs[lead + len(first) :]
    body = body_of(traced.builder, [*position, *states.inputs, *slices, *captured.values()], outputs)
    results = loop(
        tracer.builder,
        states.first,
        scanned,
        list(captured),
        body=body,
        takes_position=bool(position),
        gives_condition=gives_condition,
        label=node.name,
        **options,
    )
    finals = dict(zip(states.places, results, strict=False)) | states.constant
    values: list[Value] = [Tensor(finals[number], types[number]) for number in range(len(first))]
    stacked = results[len(states.first) :]
    for number, operand in enumerate(stacked):
        axis = 0 if not axes else normalize_axis(axes[number], operand.rank)
        element_type = traced.outputs[lead + len(first) + number].element_type
        values.append(Tensor(move_axis(tracer.builder, operand, 0, axis), element_type))
    return {name: value for name, value in zip(node.output, values, strict=False) if name}


_EARLY = "it stacks outputs, whose number depends on data"


def choose_branch(tracer: Tracer, node: NodeProto, graphs: Sequence[GraphProto]) -> dict[str, Value]:
    """The outputs of an If whose condition is computed when the graph runs, by name."""
    condition = operand_of(tracer, node.input[0])
    prefix = tracer.fresh(node)
    traced = [trace_body(tracer, graph, f"{prefix}{number}/", []) for number, graph in enumerate(graphs)]
    outputs = [[part.operand(number) for number in range(len(part.outputs))] for part in traced]
    types = [[value.element_type for value in part.outputs] for part in traced]
    pairs = zip(*outputs, strict=True)
    is_alike = len(outputs[0]) == len(outputs[1]) and types[0] == types[1]
    is_alike = is_alike and all(is_same_shape(one.shape, other.shape) for one, other in pairs)
    unsupported_if(not is_alike, "its branches give values of different types or shapes")
    read = {
        operand: None
        for part, results in zip(traced, outputs, strict=True)
        for operand, own in part.captured.items()
        if part.reads(own, results)
    }
    bodies = []
    for part, results in zip(traced, outputs, strict=True):
        inputs = [
            part.captured[o] if o in part.captured else add_input(part.builder, f"{prefix}unread {k}", o.desc)
            for k, o in enumerate(read)
        ]
        bodies.append(body_of(part.builder, inputs, results))
    chosen = branch(tracer.builder, condition, list(read), body=bodies[0], other=bodies[1], label=node.name)
    values = [Tensor(operand, type) for operand, type in zip(chosen, types[0], strict=True)]
    return {name: value for name, value in zip(node.output, values, strict=False) if name}


# ---------------------------------------------------------------------------------------------------------------------
# Sub-graphs in place of nodes


def inline(
    tracer: Tracer, graph: GraphProto, inputs: Mapping[str, str], outputs: Sequence[str], prefix: str, *, whole: bool
) -> list[TracedNode]:
    """Inline a sub-graph: trace its nodes in place of the node that contains it.

    `inputs` map names to values passed, `outputs` are the names outside ("" for unused ones). Names that the sub-graph defines
    get the prefix. `whole`: WebNN must express all nodes.
    """
    names = dict(inputs)
    for name, array in tracer.initializers(graph):
        names.setdefault(name, prefix + name)
        tracer.add_constant(prefix + name, array)
    defined = {name for node in graph.node for name in node.output if name}
    names |= {name: prefix + name for name in defined}
    copied: list[tuple[str, str]] = []
    for value, output in zip(graph.output, outputs, strict=False):
        if output and value.name in defined:
            names[value.name] = output
            defined.remove(value.name)  # an output that is listed twice is copied
        else:
            copied.append((value.name, output))
    nodes = [rename_node(node, names, prefix) for node in graph.node]
    return tracer.steps([*nodes, *copies((names.get(a, a), b) for a, b in copied)], whole=whole)


def copies(pairs: Iterable[tuple[str, str]]) -> list[NodeProto]:
    """Identity nodes that copy values to other names; copies to "" are left out."""
    return [make_node("Identity", [name], [output]) for name, output in pairs if output]
