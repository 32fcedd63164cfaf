"""Nested graphs: iterate over nodes, find the names that a graph defines or captures, rename values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ...support.errors import DataError
from .protobuf import GraphProto, NodeProto, copy_of, sub_graphs

MAX_DEPTH = 100
"""The deepest nesting of sub-graphs; serialised protocol buffers can hold about 30 levels."""


def all_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Iterate over nodes and the nodes of their sub-graphs; `DataError` if these are nested too deep."""
    pending = [(node, 0) for node in nodes]
    while pending:
        node, depth = pending.pop()
        yield node
        for graph in sub_graphs(node):
            if depth == MAX_DEPTH:
                raise DataError(f"sub-graphs are nested more than {MAX_DEPTH} levels deep")
            pending += [(inner, depth + 1) for inner in graph.node]


def flatten(graph: GraphProto) -> tuple[list[NodeProto], bool]:
    """The nodes of a graph and its sub-graphs, and whether it has no sub-graphs."""
    nodes = list(graph.node)
    is_flat = not any(map(sub_graphs, nodes))
    return (nodes if is_flat else list(all_nodes(nodes))), is_flat


def initializer_names(graph: GraphProto) -> list[str]:
    """The names of a graph's initializers, dense and sparse."""
    dense = [initializer.name for initializer in graph.initializer]
    return dense + [initializer.values.name for initializer in graph.sparse_initializer]


def own_names(graph: GraphProto) -> set[str]:
    """The names that a graph defines: inputs, initializers, and outputs of its nodes."""
    names = {value.name for value in graph.input}.union(initializer_names(graph))
    return names.union(name for node in graph.node for name in node.output if name)


def free_names(graph: GraphProto) -> set[str]:
    """The names that a sub-graph captures from enclosing graphs."""
    used = {value.name for value in graph.output}
    for node in graph.node:
        used.update(name for name in node.input if name)
        for inner in sub_graphs(node):
            used |= free_names(inner)
    return used - own_names(graph)


def used_names(node: NodeProto) -> list[str]:
    """The names that a node reads, including captures of its sub-graphs."""
    names = dict.fromkeys(node.input[:])
    names.pop("", None)
    for graph in sub_graphs(node):
        names.update(dict.fromkeys(sorted(free_names(graph))))
    return list(names)


def rename_node(node: NodeProto, names: Mapping[str, str], prefix: str) -> NodeProto:
    """A copy of a node with other `names` for its inputs and outputs; names that its sub-graphs define get a prefix."""
    copy = copy_of(node)
    copy.input[:] = [names.get(name, name) for name in node.input]
    copy.output[:] = [names.get(name, name) for name in node.output]
    for graph in sub_graphs(copy):
        _rename(graph, names, prefix)
    return copy


def _rename(graph: GraphProto, names: Mapping[str, str], prefix: str) -> None:
    inner = {**names, **{name: prefix + name for name in own_names(graph)}}
    sparse = (initializer.values for initializer in graph.sparse_initializer)
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer, *sparse):
        value.name = inner.get(value.name, value.name)
    nodes = [rename_node(node, inner, prefix) for node in graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
