"""Clamp integers that a graph computes to the ranges that operations declare (`Op.value_range`).

Constants and inputs are checked before a run. With other values outside of the range, some kernels fail, some count from
the end, and some clamp.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..core.bodies import Body
from ..core.graph import Graph, Node, Operand, add_node, map_operands
from ..core.value_ranges import ValueRange
from ..ops.constants import constant
from ..ops.recorder import Recorder
from .bodies import copy_inputs, finish_copy


def clamp_computed(
    graph: Graph, origin: Mapping[Node, Node], *, is_body: bool = False
) -> tuple[Graph, Mapping[Node, Node]]:
    """The graph with computed operands clamped to their ranges, also in bodies.

    Args:
        graph: the graph.
        origin: the node that each of its nodes comes from; the second result is the same for the new graph.
        is_body: whether the graph is a body, whose inputs are computed, too.
    """
    bodies = {(node, name): _clamp_body(node.attributes[name]) for node in graph.nodes for name in node.op.bodies}
    is_same = all(body is node.attributes[name] for (node, name), body in bodies.items())
    if is_same and not any(_computed_names(node, is_body) for node in graph.nodes):
        return graph, origin
    builder, parents = copy_inputs(graph), dict[Node, Node]()
    builder.has_names = graph.has_names
    copies: dict[Operand, Operand] = dict(zip(graph.inputs.values(), builder.inputs.values(), strict=True))
    clamped: dict[tuple[Operand, int, int], Operand] = {}  # layers read the same lengths
    for node in graph.nodes:
        inputs = map_operands(node.inputs, lambda operand: copies.get(operand, operand))
        names = _computed_names(node, is_body)
        for name, values in node.op.value_ranges(node.arguments) if names else ():
            if name in names:
                key = inputs[name], values.low, values.high
                if key not in clamped:
                    clamped[key] = _clamp(builder, inputs[name], values, f"{node.label or node.op.name}/{name}")
                inputs[name] = clamped[key]
        attributes = {name: bodies.get((node, name), value) for name, value in node.attributes.items()}
        descs = tuple(output.desc for output in node.outputs)
        results = add_node(builder, node.op, inputs, attributes, node.label, descs)
        copies.update(zip(node.outputs, results, strict=True))
        pending = [results[0].node]
        while pending:  # the node, and those that clamp its operands
            if (copy := pending.pop()) is not None and copy not in parents:
                parents[copy] = origin.get(node, node)
                pending += [operand.node for operand in copy.operands]
    return finish_copy(graph, builder, copies, parents)


def _computed_names(node: Node, is_body: bool) -> list[str]:
    """The operands with a range that are neither constants, nor inputs of the whole graph."""
    ranged = {name: node.inputs[name] for name in node.op.range_functions}
    return [
        name
        for name, operand in ranged.items()
        if isinstance(operand, Operand) and (operand.node is not None or (is_body and operand.is_input))
    ]


def _clamp_body(body: Body) -> Body:
    graph = clamp_computed(body.graph, {}, is_body=True)[0]
    return body if graph is body.graph else Body(graph)


def _clamp(builder: Recorder, operand: Operand, values: ValueRange, label: str) -> Operand:
    low, high = (constant(builder, bound, operand.data_type) for bound in (values.low, values.high))
    return builder.min(builder.max(operand, low, label=label), high, label=label)
