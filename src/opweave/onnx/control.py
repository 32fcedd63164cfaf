"""Control flow with static decisions: If becomes one of its branches, Loop and Scan the nodes of all their turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..errors import OperationError
from .checks import title_of
from .messages import (
    AttributeProto,
    GraphProto,
    NodeProto,
    TensorProto,
    attribute_value,
    node as make_node,
    sub_graphs,
)
from .registry import Unsupported, normalized

if TYPE_CHECKING:
    from .trace import Step, Tracer

MAX_TURNS = 256
"""Loops that turn more often are not unrolled."""
MAX_NODES = 20000
"""Nor are those that would become more nodes than these."""

_ENDLESS = 2**31
"""As many turns, or more, are what exporters write where the condition alone ends a loop."""


def inline_if(tracer: Tracer, node: NodeProto) -> list[Step]:
    """The steps of the branch that a constant condition chooses."""
    condition = _condition(tracer, node.input[0])
    graph = _graph(node, "then_branch" if condition else "else_branch")
    return _inline(tracer, graph, {}, node.output, tracer.fresh(node), whole=False)


def unroll_loop(tracer: Tracer, node: NodeProto) -> list[Step]:
    """The steps of all turns of a Loop, if neither their number nor the condition depends on data."""
    body = _graph(node, "body")
    trips, condition, *state = [*node.input, "", ""][: max(len(node.input), 2)]
    limit = _known(tracer, trips, "its number of turns", TensorProto.INT64)
    limit = None if limit is not None and limit >= _ENDLESS else limit
    go_on = _condition(tracer, condition)
    if limit is not None and limit > MAX_TURNS:
        raise Unsupported(f"it turns {limit} times, and at most {MAX_TURNS} turns are unrolled")
    turns = _Turns(tracer, body, 1, len(state), tracer.fresh(node))
    while go_on != 0 and (limit is None or turns.count < limit):
        number = tracer.add_constant(f"{turns.prefix}number", np.array(turns.count, np.int64))
        true = tracer.add_constant(f"{turns.prefix}condition", np.array(True))
        go_on_name, *state = turns.turn([number, true, *state])
        go_on = _condition(tracer, go_on_name)
    return turns.finish(state, node.output, [0] * len(turns.gathered))


def check_ends(tracer: Tracer, node: NodeProto) -> None:
    """Refuse a Loop that the engine would never come back from: no limit worth the name, and a condition that stays.

    Raises:
        OperationError: its body hands its condition on unchanged.
    """
    body = _graph(node, "body")
    limit = _ENDLESS
    if node.input and node.input[0]:
        try:
            limit = _known(tracer, node.input[0], "its number of turns", TensorProto.INT64) or 0
        except Unsupported:  # it comes when the graph runs
            return
    if limit < _ENDLESS or len(body.input) < 2 or not body.output:
        return
    source = {node.output[0]: node.input[0] for node in body.node if node.op_type == "Identity" and node.input}
    name = body.output[0].name
    for _ in body.node:
        name = source.get(name, name)
    if name == body.input[1].name:
        raise OperationError(f"{title_of(node)} would never end: its body hands its condition on as it came")


def unroll_scan(tracer: Tracer, node: NodeProto) -> list[Step]:
    """The steps of a Scan's body for each slice of what it scans."""
    if tracer.opset < 9:
        raise Unsupported("it scans batches, as before operator set 9")
    attributes = {a.name: attribute_value(a) for a in node.attribute if a.type != AttributeProto.GRAPH}
    body, count = _graph(node, "body"), len(node.input) - attributes["num_scan_inputs"]
    state, scanned = list(node.input[:count]), list(node.input[count:])
    shapes = [tracer.shape(name) for name in scanned]
    given = attributes.get("scan_input_axes") or [0] * len(scanned)
    axes = [normalized(axis, len(shape)) for axis, shape in zip(given, shapes, strict=True)]
    lengths = {shape[axis] for axis, shape in zip(axes, shapes, strict=True)}
    if len(lengths) != 1:
        raise Unsupported(f"it scans axes of {sorted(lengths)} elements")
    (length,) = lengths
    if length > MAX_TURNS:
        raise Unsupported(f"it turns {length} times, and at most {MAX_TURNS} turns are unrolled")
    backward = attributes.get("scan_input_directions") or [0] * len(scanned)
    turns = _Turns(tracer, body, 0, count, tracer.fresh(node))
    for turn in range(length):
        slices = []
        for k, (name, axis) in enumerate(zip(scanned, axes, strict=True)):
            place = np.array(length - 1 - turn if backward[k] else turn, np.int64)
            at = tracer.add_constant(f"{turns.prefix}place {k}", place)
            slices.append(f"{turns.prefix}slice {k}")
            turns.add([make_node("Gather", [name, at], [slices[-1]], axis=axis)])
        state = turns.turn([*state, *slices])
    results = len(turns.gathered)
    out_axes = attributes.get("scan_output_axes") or [0] * results
    for names, reverse in zip(turns.gathered, attributes.get("scan_output_directions") or [0] * results, strict=True):
        if reverse:
            names.reverse()
    return turns.finish(state, node.output, out_axes)


CONTROL: Mapping[str, Callable[[Tracer, NodeProto], list[Step]]] = {
    "If": inline_if,
    "Loop": unroll_loop,
    "Scan": unroll_scan,
}
"""Operators with sub-graphs, and what replaces them; `Unsupported` where nothing does."""


class _Turns:
    """The turns of a body, one after the other. WebNN must express all of their nodes.

    Args:
        tracer: what walks over the nodes.
        body: the graph of each turn.
        leading: how many outputs of the body come before its state.
        state: how many values a turn hands to the next one.
        prefix: what the names of all values begin with.

    Attributes:
        count: how many turns there have been.
        gathered: for each output that is gathered, its names in all turns.
    """

    def __init__(self, tracer: Tracer, body: GraphProto, leading: int, state: int, prefix: str) -> None:
        self.count = 0
        self.gathered: list[list[str]] = [[] for _ in range(len(body.output) - leading - state)]
        self._tracer, self._body, self._kept, self._prefix = tracer, body, leading + state, prefix
        self._steps: list[Step] = []

    @property
    def prefix(self) -> str:
        """What the names of this turn begin with."""
        return f"{self._prefix}{self.count}/"

    def add(self, nodes: Iterable[NodeProto]) -> None:
        """Walk over nodes besides those of the body."""
        self._steps += self._tracer.steps(nodes, whole=True)

    def turn(self, inputs: Sequence[str]) -> list[str]:
        """Walk over the body once; the names of its outputs that are not gathered."""
        if self.count == MAX_TURNS:
            raise Unsupported(f"it turns more than {MAX_TURNS} times, and no more are unrolled")
        if len(self._body.input) != len(inputs):
            raise Unsupported(f"its body takes {len(self._body.input)} values, and gets {len(inputs)}")
        names = {value.name: name for value, name in zip(self._body.input, inputs, strict=True)}
        outputs = [f"{self.prefix}{k}:{value.name}" for k, value in enumerate(self._body.output)]
        self._steps += _inline(self._tracer, self._body, names, outputs, self.prefix, whole=True)
        if len(self._steps) > MAX_NODES:
            raise Unsupported(f"it would become more than {MAX_NODES} nodes")
        for names_of_one, name in zip(self.gathered, outputs[self._kept :], strict=True):
            names_of_one.append(name)
        self.count += 1
        return outputs[: self._kept]

    def finish(self, state: Sequence[str], outputs: Sequence[str], axes: Sequence[int]) -> list[Step]:
        """All steps, at the end those that hand out the last state, and join what has been gathered along new axes."""
        count = len(state)
        self.add(_copies(zip(state, outputs[:count], strict=False)))
        for names, output, axis in zip(self.gathered, outputs[count:], axes, strict=False):
            if output:
                self._join(names, output, axis)
        return self._steps

    def _join(self, names: Sequence[str], output: str, axis: int) -> None:
        if not names:
            raise Unsupported("it never turns, so what it gathers is empty")
        shape = self._tracer.shape(names[0])
        axis = normalized(axis, len(shape) + 1)
        longer = np.array([*shape[:axis], 1, *shape[axis:]], np.int64)
        wanted = self._tracer.add_constant(f"{self._prefix}shape of {output}", longer)
        parts = [f"{name} in {output}" for name in names]
        self.add(make_node("Reshape", [name, wanted], [part]) for name, part in zip(names, parts, strict=True))
        self.add([make_node("Concat", parts, [output], axis=axis)])


def _graph(node: NodeProto, name: str) -> GraphProto:
    graph: GraphProto = next(attribute.g for attribute in node.attribute if attribute.name == name)
    return graph


def _condition(tracer: Tracer, name: str) -> int | None:
    return _known(tracer, name, "its condition", TensorProto.BOOL)


def _known(tracer: Tracer, name: str, what: str, element_type: int) -> int | None:
    """The value of a scalar, None where it is absent; `Unsupported` where it is not constant."""
    if not name:
        return None
    found = tracer.element_type(name)
    if found != element_type:
        raise Unsupported(f"{what} has the type {TensorProto.DataType.Name(found)}")
    value = tracer.known(name, what)
    if value.size != 1:
        raise Unsupported(f"{what} has the shape {list(value.shape)}")
    return int(value.item())


def _inline(
    tracer: Tracer, graph: GraphProto, inputs: Mapping[str, str], outputs: Sequence[str], prefix: str, *, whole: bool
) -> list[Step]:
    """The steps of a graph under other names: what is made inside begins with `prefix`, what it yields is `outputs`."""
    names = dict(inputs)
    for name, array in tracer.initializers(graph):
        names.setdefault(name, prefix + name)
        tracer.add_constant(prefix + name, array)
    made = {name for node in graph.node for name in node.output if name}
    names |= {name: prefix + name for name in made}
    copied: list[tuple[str, str]] = []
    renamed: set[str] = set()
    for value, output in zip(graph.output, outputs, strict=False):
        if output and value.name in made - renamed:
            names[value.name] = output
            renamed.add(value.name)
        else:
            copied.append((value.name, output))
    nodes = [_renamed(node, names) for node in graph.node]
    return tracer.steps([*nodes, *_copies((names.get(a, a), b) for a, b in copied)], whole=whole)


def _copies(pairs: Iterable[tuple[str, str]]) -> list[NodeProto]:
    """Nodes that give values other names."""
    return [make_node("Identity", [name], [output]) for name, output in pairs if output]


def _renamed(node: NodeProto, names: Mapping[str, str]) -> NodeProto:
    """A node with other names for what it takes and makes; those not in `names` stay, as do those made in sub-graphs."""
    new = NodeProto()
    new.CopyFrom(node)
    new.input[:] = [names.get(name, name) for name in node.input]
    new.output[:] = [names.get(name, name) for name in node.output]
    for graph in sub_graphs(new):
        own = {value.name for value in [*graph.input, *graph.initializer]}
        own |= {value.values.name for value in graph.sparse_initializer}
        own |= {name for inner in graph.node for name in inner.output}
        outer = {name: other for name, other in names.items() if name not in own}
        nodes = [_renamed(inner, outer) for inner in graph.node]
        del graph.node[:]
        graph.node.extend(nodes)
        for value in graph.output:
            value.name = outer.get(value.name, value.name)
    return new
