"""Compute only the real parts of Fourier transforms whose imaginary parts nothing reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..composites.fourier import dft
from ..core.graph import Graph, Node, Operand, add_node, map_operands
from ..ops.indexing import gather
from ..ops.movement import slice
from .bodies import copy_inputs, finish_copy


def read_real_parts(graph: Graph, origin: Mapping[Node, Node]) -> tuple[Graph, Mapping[Node, Node]]:
    """Compute only the real part of each transform of a graph whose readers all pick the real part.

    Args:
        graph: the graph.
        origin: node of `graph` -> the node that it comes from.

    Returns: The new graph, and `origin` for its nodes.
    """
    transforms = {node.outputs[0] for node in graph.nodes if node.op is dft and node.outputs[0].shape[-1] == 2}
    transforms.difference_update(graph.outputs.values())
    for node in graph.nodes:
        transforms.difference_update(operand for operand in node.operands if not _picks_real_part(node, operand))
    if not transforms:
        return graph, origin
    builder, parents = copy_inputs(graph), dict[Node, Node]()
    builder.has_names = graph.has_names
    copies: dict[Operand, Operand] = dict(zip(graph.inputs.values(), builder.inputs.values(), strict=True))
    for node in graph.nodes:
        inputs = map_operands(node.inputs, lambda operand: copies.get(operand, operand))
        attributes, descs = node.attributes, tuple(output.desc for output in node.outputs)
        if not transforms.isdisjoint(node.outputs):
            attributes = {**attributes, "parts": "real"}
            descs = tuple(replace(desc, shape=(*desc.shape[:-1], 1)) for desc in descs)
        results = add_node(builder, node.op, inputs, attributes, node.label, descs)
        copies.update(zip(node.outputs, results, strict=True))
        if results[0].node is not None:
            parents[results[0].node] = origin.get(node, node)
    return finish_copy(graph, builder, copies, parents)


def _picks_real_part(node: Node, operand: Operand) -> bool:
    """Whether a node reads only the real part of complex numbers, and would read the same of real parts alone."""
    if node.op is slice:
        return bool(node.attributes["starts"][-1] == 0 and node.attributes["sizes"][-1] == 1)
    if node.op is not gather or node.attributes["axis"] != operand.rank - 1:
        return False
    indices = node.inputs["indices"]
    return isinstance(indices, Operand) and indices.is_constant and not indices.value.any()


__all__ = ["read_real_parts"]
