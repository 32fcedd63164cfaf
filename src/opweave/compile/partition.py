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
        work: the cost of compiling a node of such a kind, in units of the caller's.
        most: the largest sum of `work` in a segment.
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
    parts = _Parts(most)
    for node in nodes:
        makers = [operand.node for operand in node.operands if operand.node is not None and operand.node in parts]
        parts.add(node, work(node), makers)
        for maker in makers:
            if parts.may_merge(maker, node) and fits(maker, node):
                parts.merge(maker, node)
    return [sorted(part, key=lambda node: node.serial) for part in parts.members.values()]


class _Parts:
    """Parts that are merged step by step; each is known by a number, and a merged part by that of the larger one.

    Args:
        most: how much work a part may have.

    Attributes:
        members: the nodes of each part.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.members: dict[int, list[Node]] = {}
        self._work: dict[int, int] = {}
        # The parts that a part takes operands from; some of them may have been merged since.
        self._needs: dict[int, set[int]] = {}
        self._parent: dict[int, int] = {}  # of a part that has been merged into another, that one
        self._first: dict[int, int] = {}  # the serial numbers of the first node of a part, and of the last
        self._last: dict[int, int] = {}

    def __contains__(self, node: Node) -> bool:
        return node.serial in self._parent

    def home(self, node: Node) -> int:
        """The part of a node."""
        return self._find(node.serial)

    def add(self, node: Node, work: int, makers: Collection[Node]) -> None:
        """Make a part of one node, which takes operands from others."""
        number = node.serial
        self.members[number], self._needs[number] = [node], {self.home(maker) for maker in makers}
        self._parent[number] = self._first[number] = self._last[number] = number
        self._work[number] = work

    def may_merge(self, maker: Node, taker: Node) -> bool:
        """Whether the parts of two nodes are two, and have no more work than one may have."""
        producer, consumer = self.home(maker), self.home(taker)
        return producer != consumer and self._work[producer] + self._work[consumer] <= self._most

    def merge(self, maker: Node, taker: Node) -> None:
        """Make one part of those of two nodes, unless a third one lies on a way between them."""
        producer, consumer = self.home(maker), self.home(taker)
        others = {self._find(part) for part in self._needs[consumer]} - {producer, consumer}
        if any(self._reaches(part, producer) for part in others):
            return
        # The smaller part goes into the larger one: a chain of n nodes would take n² steps otherwise.
        kept, gone = producer, consumer
        if len(self.members[gone]) > len(self.members[kept]):
            kept, gone = gone, kept
        self.members[kept] += self.members.pop(gone)
        self._needs[producer] |= others
        self._needs[kept] = self._needs[producer]
        self._parent[gone] = kept
        self._work[kept] += self._work[gone]
        self._first[kept] = min(self._first[kept], self._first[gone])
        self._last[kept] = max(self._last[kept], self._last[gone])

    def _find(self, number: int) -> int:
        """The part that a part has become."""
        while (parent := self._parent[number]) != number:
            self._parent[number] = self._parent[parent]  # halves the way for the next time
            number = parent
        return number

    def _reaches(self, start: int, goal: int) -> bool:
        """Whether `start` takes something from `goal`, also through others."""
        pending, seen = [start], {start}
        while pending:
            part = pending.pop()
            if part == goal:
                return True
            if self._last[part] > self._first[goal]:  # else all of it comes before the goal
                fresh = {self._find(other) for other in self._needs[part]} - seen
                seen |= fresh
                pending += fresh
        return False


def _ordered(graph: Graph, segments: list[Segment]) -> list[Segment]:
    """The segments in an order in which they can run, with what they take and give."""
    home = {node: segment for segment in segments for node in segment.nodes}
    wanted = set(graph.outputs.values())
    taken: dict[int, dict[Operand, None]] = {id(segment): {} for segment in segments}  # in order, without repetitions
    given: dict[int, dict[Operand, None]] = {id(segment): {} for segment in segments}
    for node in graph.nodes:
        segment = home[node]
        for operand in node.operands:
            maker = None if operand.node is None else home[operand.node]
            if maker is segment or operand.is_constant:
                continue
            taken[id(segment)][operand] = None
            if maker is not None:
                given[id(maker)][operand] = None
        for operand in node.outputs:
            if operand in wanted:
                given[id(segment)][operand] = None
    for segment in segments:
        segment.inputs, segment.outputs = list(taken[id(segment)]), list(given[id(segment)])
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
