"""Divide a graph into segments, each of which one engine runs as a whole.

Requires that every node has a kind of engine; ensures that the segments, in the order of the result, find all their
inputs computed, and that nothing between two nodes of a segment runs outside of it.

A node's level is the number of changes of kind on the longest way to it. Nodes of one level and kind form a segment, as
large as it can be; nodes whose kind is no engine's but their own (a kernel, say) stand alone; and of those of `joined`
kinds only the ones that fit together stay together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field

from ..graph import Graph, Node, Operand


@dataclass
class Segment:
    """Nodes that run together.

    Attributes:
        kind: what engine runs them.
        nodes: in order.
        inputs: the operands that they take from inputs of the graph and from other segments.
        outputs: the operands that others, or the outputs of the graph, take from them.
    """

    kind: Hashable
    nodes: list[Node]
    inputs: list[Operand] = field(default_factory=list)
    outputs: list[Operand] = field(default_factory=list)


def partition(
    graph: Graph,
    kind: Callable[[Node], Hashable],
    joined: Collection[Hashable] = (),
    fits: Callable[[Node, Node], bool] = lambda _producer, _consumer: True,
    work: Callable[[Node], int] = lambda _node: 0,
    most: int = 0,
) -> list[Segment]:
    """The segments of a graph.

    Args:
        graph: what to divide.
        kind: the engine of a node; something unique for nodes that stand alone.
        joined: kinds whose nodes share a segment only if they are connected by operands and `fits` holds.
        fits: whether a node of such a kind may join the segment of one that it takes an operand from.
        work: how long it takes to compile a node of such a kind.
        most: how much of that a segment may have.
    """
    levels: dict[Node, int] = {}
    groups: dict[tuple[int, Hashable], list[Node]] = {}
    kinds = {node: kind(node) for node in graph.nodes}
    for node in graph.nodes:
        makers = [operand.node for operand in node.operands if operand.node is not None]
        levels[node] = max((levels[maker] + (kinds[maker] != kinds[node]) for maker in makers), default=0)
        groups.setdefault((levels[node], kinds[node]), []).append(node)
    segments: list[Segment] = []
    for (_, its_kind), nodes in groups.items():
        parts = _connected(nodes, fits, work, most) if its_kind in joined else [nodes]
        segments += (Segment(its_kind, part) for part in parts)
    return _ordered(graph, segments)


def _connected(
    nodes: list[Node], fits: Callable[[Node, Node], bool], work: Callable[[Node], int], most: int
) -> list[list[Node]]:
    """Nodes of one level and kind, divided into those that fit together; no two parts depend on each other in a circle."""
    parts = _Parts()
    for node in nodes:
        makers = [operand.node for operand in node.operands if operand.node in parts.home]
        home = parts.add(node, work(node), {parts.home[maker] for maker in makers if maker is not None})
        for maker in makers:
            assert maker is not None
            if parts.work[parts.home[maker]] + parts.work[home] <= most and fits(maker, node):
                home = parts.merge(parts.home[maker], home)
    return [sorted(part, key=lambda node: node.serial) for part in parts.members.values()]


class _Parts:
    """Parts that are merged step by step."""

    def __init__(self) -> None:
        self.members: dict[int, list[Node]] = {}
        self.needs: dict[int, set[int]] = {}  # the parts that a part takes operands from
        self.home: dict[Node, int] = {}
        self.work: dict[int, int] = {}

    def add(self, node: Node, work: int, needs: set[int]) -> int:
        """A part of one node."""
        number = node.serial
        self.members[number], self.needs[number], self.home[node] = [node], needs, number
        self.work[number] = work
        return number

    def merge(self, producer: int, consumer: int) -> int:
        """Make one part of two, unless a third one lies on a way between them; the part that `consumer` is in then."""
        if producer == consumer or any(self._reaches(p, producer) for p in self.needs[consumer] - {producer}):
            return consumer
        self.members[producer] += self.members.pop(consumer)
        self.work[producer] += self.work.pop(consumer)
        self.needs[producer] |= self.needs.pop(consumer) - {producer}
        for needs in self.needs.values():
            if consumer in needs:
                needs.discard(consumer)
                needs.add(producer)
        self.needs[producer].discard(producer)
        self.home.update(dict.fromkeys(self.members[producer], producer))
        return producer

    def _reaches(self, start: int, goal: int) -> bool:
        """Whether `start` takes something from `goal`, also through others."""
        pending, seen = [start], {start}
        while pending:
            part = pending.pop()
            if part == goal:
                return True
            fresh = self.needs[part] - seen
            seen |= fresh
            pending += fresh
        return False


def _ordered(graph: Graph, segments: list[Segment]) -> list[Segment]:
    """The segments in an order in which they can run, with what they take and give."""
    home = {node: segment for segment in segments for node in segment.nodes}
    wanted = set(graph.outputs.values())
    for node in graph.nodes:
        segment = home[node]
        for operand in node.operands:
            maker = None if operand.node is None else home[operand.node]
            if maker is segment or operand.is_constant:
                continue
            if operand not in segment.inputs:
                segment.inputs.append(operand)
            if maker is not None and operand not in maker.outputs:
                maker.outputs.append(operand)
        for operand in node.outputs:
            if operand in wanted and operand not in segment.outputs:
                segment.outputs.append(operand)
    ordered: dict[int, Segment] = {}
    opened: set[int] = set()
    for segment in sorted(segments, key=lambda segment: segment.nodes[-1].serial):
        pending = [segment]
        while pending:
            makers = [home[operand.node] for operand in pending[-1].inputs if operand.node is not None]
            missing = [maker for maker in makers if id(maker) not in ordered]
            if missing:
                assert id(pending[-1]) not in opened, "segments depend on each other in a circle"
                opened.add(id(pending[-1]))
                pending += missing
            else:
                done = pending.pop()
                ordered[id(done)] = done
    return list(ordered.values())
