"""Divide the nodes of a graph, or the steps of an ONNX model, into segments that one engine runs as a whole.

Each segment comes after those that compute its inputs, and no node on a path between two of its nodes is outside of it.

A node's level is the number of changes of kind on the longest path to it. A node that is computed from constants alone gets
the highest level that its readers allow, so that it joins their segment. Nodes of one level and kind form one segment. A
node with a unique kind (a kernel, say) is a segment alone, and nodes of the kind of `fusion` share a segment only if they
fit together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ..core.graph import Graph, Node, Operand

N = TypeVar("N")
V = TypeVar("V", bound=Hashable)


@dataclass(frozen=True)
class LoopFusion(Generic[N]):
    """Nodes of one kind that share a segment only if they are connected by values and fit together.

    `fits` tells whether a node may join the segment of one that it takes a value from. `work` is the cost of compiling a node,
    and `most` the largest sum of it in a segment.
    """

    kind: Hashable
    fits: Callable[[N, N], bool]
    work: Callable[[N], int]
    most: int


@dataclass
class Segment(Generic[N, V]):
    """Nodes that run together, the values that they take from outside, and the values that other nodes take from them."""

    kind: Hashable
    nodes: list[N]
    inputs: list[V] = field(default_factory=list)
    outputs: list[V] = field(default_factory=list)


def partition(
    graph: Graph, kinds: Mapping[Node, Hashable], fusion: LoopFusion[Node] | None = None
) -> list[Segment[Node, Operand]]:
    """The segments of a graph with nodes of these kinds; see `divide`."""

    def reads(node: Node) -> Iterable[Operand]:
        return (operand for operand in node.operands if not operand.is_constant)

    def writes(node: Node) -> Iterable[Operand]:
        return node.outputs

    return divide(graph.nodes, graph.outputs.values(), lambda node: kinds[node], reads, writes, fusion)


def divide(
    nodes: Sequence[N],
    outputs: Iterable[V],
    kind: Callable[[N], Hashable],
    reads: Callable[[N], Iterable[V]],
    writes: Callable[[N], Iterable[V]],
    fusion: LoopFusion[N] | None = None,
) -> list[Segment[N, V]]:
    """The segments of `nodes` in topological order, whose results `outputs` the whole returns.

    `kind` is the engine of a node, or something unique for nodes that stand alone. A node `reads` values without constants.
    """
    # Nodes are numbered by position.
    written = [tuple(writes(node)) for node in nodes]
    maker = {value: number for number, values in enumerate(written) for value in values}
    taken = [tuple(reads(node)) for node in nodes]
    makers = [[maker[value] for value in values if value in maker] for values in taken]
    kinds = [kind(node) for node in nodes]
    groups: dict[tuple[int, Hashable], list[int]] = {}
    levels = _levels(taken, makers, kinds) if len(set(kinds)) > 1 else [0] * len(nodes)
    for number, level in enumerate(levels):
        groups.setdefault((level, kinds[number]), []).append(number)
    members: list[list[int]] = []
    for (_, group_kind), numbers in groups.items():
        if fusion is not None and group_kind == fusion.kind:
            members += _split(numbers, makers, nodes, fusion)
        else:
            members.append(numbers)
    segments: list[Segment[N, V]] = [Segment(kinds[m[0]], [nodes[number] for number in m]) for m in members]
    _connect(segments, members, taken, written, maker, set(outputs))
    return [segments[number] for number in _order(members, makers)]


def _levels(taken: Sequence[Sequence[V]], makers: Sequence[Sequence[int]], kinds: Sequence[Hashable]) -> Sequence[int]:
    levels: list[int] = []
    for number, sources in enumerate(makers):
        levels.append(max((levels[other] + (kinds[other] != kinds[number]) for other in sources), default=0))
    is_constant: list[bool] = []
    for values, sources in zip(taken, makers, strict=True):
        is_constant.append(len(sources) == len(values) and all(is_constant[other] for other in sources))
    highest: dict[int, int] = {}  # the lowest level that a reader needs its operand to have
    for number in reversed(range(len(levels))):
        if is_constant[number]:
            levels[number] = highest.get(number, levels[number])
        for other in makers[number]:
            level = levels[number] - (kinds[other] != kinds[number])
            highest[other] = min(highest.get(other, level), level)
    return levels


def _split(
    numbers: list[int], makers: Sequence[Sequence[int]], nodes: Sequence[N], fusion: LoopFusion[N]
) -> list[list[int]]:
    """Divide nodes of one level and kind into parts that fit together, without cycles between parts."""
    parts = _Parts(fusion.most)
    for number in numbers:
        sources = [maker for maker in makers[number] if maker in parts]
        parts.add(number, fusion.work(nodes[number]), sources)
        for maker in sources:
            if parts.may_merge(maker, number) and fusion.fits(nodes[maker], nodes[number]):
                parts.merge(maker, number)
    return [sorted(part) for part in parts.members.values()]


class _Parts:
    """Parts that are merged step by step (union-find). A merged part has the number of the larger one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.members: dict[int, list[int]] = {}
        self._work: dict[int, int] = {}
        # The parts that a part takes values from; some of them may have been merged since.
        self._needs: dict[int, set[int]] = {}
        self._parent: dict[int, int] = {}  # the part that a part was merged into, or itself
        self._first: dict[int, int] = {}  # the numbers of the first node of a part, and of the last
        self._last: dict[int, int] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._parent

    def add(self, number: int, work: int, makers: Collection[int]) -> None:
        self.members[number], self._needs[number] = [number], {self._find(maker) for maker in makers}
        self._parent[number] = self._first[number] = self._last[number] = number
        self._work[number] = work

    def may_merge(self, maker: int, taker: int) -> bool:
        """Whether two nodes are in different parts, whose work together is within the limit."""
        producer, consumer = self._find(maker), self._find(taker)
        return producer != consumer and self._work[producer] + self._work[consumer] <= self._most

    def merge(self, maker: int, taker: int) -> None:
        """Merge the parts of two nodes, unless a third part is on a path between them."""
        producer, consumer = self._find(maker), self._find(taker)
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
        while (parent := self._parent[number]) != number:
            self._parent[number] = self._parent[parent]  # path halving
            number = parent
        return number

    def _reaches(self, start: int, goal: int) -> bool:
        """Whether `start` depends on `goal`, directly or through others."""
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


def _connect(
    segments: Sequence[Segment[N, V]],
    members: Sequence[Sequence[int]],
    taken: Sequence[Sequence[V]],
    written: Sequence[Sequence[V]],
    maker: Mapping[V, int],
    results: Collection[V],
) -> None:
    """Set the inputs and outputs of segments, each value once, in order of use."""
    home = {number: index for index, numbers in enumerate(members) for number in numbers}
    inputs: list[dict[V, None]] = [{} for _ in segments]
    outputs: list[dict[V, None]] = [{} for _ in segments]
    for number, values in enumerate(taken):
        index = home[number]
        for value in values:
            source = home[maker[value]] if value in maker else None
            if source != index:
                inputs[index][value] = None
                if source is not None:
                    outputs[source][value] = None
        for value in written[number]:
            if value in results:
                outputs[index][value] = None
    for segment, segment_inputs, segment_outputs in zip(segments, inputs, outputs, strict=True):
        segment.inputs, segment.outputs = list(segment_inputs), list(segment_outputs)


def _order(members: Sequence[Sequence[int]], makers: Sequence[Sequence[int]]) -> list[int]:
    """An order in which segments can run: by last node, but each after the segments that it needs."""
    home = {number: index for index, numbers in enumerate(members) for number in numbers}
    needs = [{home[maker]: None for number in numbers for maker in makers[number]} for numbers in members]
    ordered: dict[int, None] = {}
    opened: set[int] = set()
    for first in sorted(range(len(members)), key=lambda index: members[index][-1]):
        pending = [first]
        while pending:
            index = pending[-1]
            missing = [other for other in needs[index] if other != index and other not in ordered]
            if missing:
                assert index not in opened, "segments depend on each other in a circle"
                opened.add(index)
                pending += missing
            else:
                ordered[pending.pop()] = None
    return list(ordered)
