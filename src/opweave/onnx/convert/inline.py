"""Inline sub-graphs: trace their nodes in place of the node that contains them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..model.protobuf import GraphProto, NodeProto, node as make_node
from ..model.scopes import rename_node

if TYPE_CHECKING:
    from .trace import TracedNode, Tracer


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
