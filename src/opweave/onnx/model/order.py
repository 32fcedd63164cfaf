"""Sort the nodes of a model topologically, as ONNX demands."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush

from ...support.errors import DataError
from ...support.names import short_repr
from .checks import title_of
from .protobuf import ModelProto, copy_of
from .scopes import initializer_names, used_names


def with_sorted_nodes(proto: ModelProto) -> ModelProto:
    """A copy of a model with its nodes in topological order; otherwise nodes keep their order.

    ONNX Runtime sorts the main graph, too. It refuses unsorted sub-graphs, so sub-graphs stay as they are.
    """
    nodes = proto.graph.node
    sources = {info.name for info in proto.graph.input}.union(initializer_names(proto.graph))
    producers: dict[str, int] = {}
    for number, node in enumerate(nodes):
        for name in set(node.output) - sources:
            producers.setdefault(name, number)
    sorter = TopologicalSorter(
        {
            number: {producers[name] for name in used_names(node) if name in producers}
            for number, node in enumerate(nodes)
        }
    )
    try:
        sorter.prepare()
    except CycleError as error:
        cycle = [f"{title_of(nodes[number])} -> {nodes[number].output[0]}" for number in error.args[1]]
        rule = "the graph has a cycle, in which each node uses a result of the one before"
        raise DataError(f"{rule}: {short_repr(cycle)}") from None
    order: list[int] = []
    ready: list[int] = []
    while sorter.is_active():
        for number in sorter.get_ready():
            heappush(ready, number)
        order.append(heappop(ready))
        sorter.done(order[-1])
    sorted_proto = copy_of(proto)
    del sorted_proto.graph.node[:]
    sorted_proto.graph.node.extend(nodes[number] for number in order)
    return sorted_proto


__all__ = ["with_sorted_nodes"]
