"""Divide the nodes of a graph, or the steps of an ONNX model, into segments that one engine runs as a whole.

Segments are in topological order, and a segment contains all nodes on paths between its nodes.

Nodes of one level and kind form a segment. A node's level is the largest number of changes of kind on a path to the node. A
node that depends on constants alone gets the highest level that its readers allow, so that it joins their segment. A node with
a unique kind, such as a kernel, is a segment alone. Nodes of the kind `fusion.kind` share a segment only if they fit together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from ..core.graph import Graph, Node, Operand
from ..support.records import field, record

N = TypeVar("N")
V = TypeVar("V", bound=Hashable)


@record(eq=True, slots=False)
class LoopFusion(Generic[N]):
    """Nodes of one kind that share a segment only if they are connected by values and fit together.

    `fits(producer, consumer)` is true if a consumer may join the segment of its producer. `work` is the cost of compiling a
    node, and `most` the maximum total cost of a segment.
    """

    kind: Hashable
    fits: Callable[[N, N], bool]
    work: Callable[[N], int]
    most: int


@record(frozen=False, eq=True, slots=False)
class Segment(Generic[N, V]):
    """Nodes that run together. `inputs` come from outside of the segment, and `outputs` are used outside of it."""

    kind: Hashable
    nodes: list[N]
    inputs: list[V] = field(default_factory=list)
    outputs: list[V] = field(default_factory=list)


def partition(
    graph: Graph, kinds: Mapping[Node, Hashable], fusion: LoopFusion[Node] | None = None
) -> list[Segment[Node, Operand]]:
    """Divide a graph into segments; `kinds` has the kind of each node, as in `divide`."""

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
    """Divide nodes into segments.

    The nodes are in topological order. `outputs` are the results of the whole. `kind` returns the engine of a node, or a
    unique key for a node that must be a segment alone. `reads` returns a node's operands except constants, and `writes` its
    results.
    """
    # Nodes are numbered by position.
    written = [tuple(writes(node)) for node in nodes]
    producer = {value: number for number, values in enumerate(written) for value in values}
    operands = [tuple(reads(node)) for node in nodes]
    producers = [[producer[value] for value in values if value in producer] for values in operands]
    kinds = [kind(node) for node in nodes]
    groups: dict[tuple[int, Hashable], list[int]] = {}
    levels = _levels(operands, producers, kinds) if len(set(kinds)) > 1 else [0] * len(nodes)
    for number, level in enumerate(levels):
        groups.setdefault((level, kinds[number]), []).append(number)
    members: list[list[int]] = []
    for (_, group_kind), numbers in groups.items():
        if fusion is not None and group_kind == fusion.kind:
            members += _split(numbers, producers, nodes, fusion)
        else:
            members.append(numbers)
    segments: list[Segment[N, V]] = [Segment(kinds[m[0]], [nodes[number] for number in m]) for m in members]
    _connect(segments, members, operands, written, producer, set(outputs))
    return [segments[number] for number in _order(members, producers)]


def _levels(
    operands: Sequence[Sequence[V]], producers: Sequence[Sequence[int]], kinds: Sequence[Hashable]
) -> Sequence[int]:
    levels: list[int] = []
    for number, sources in enumerate(producers):
        levels.append(max((levels[other] + (kinds[other] != kinds[number]) for other in sources), default=0))
    is_constant: list[bool] = []
    for values, sources in zip(operands, producers, strict=True):
        is_constant.append(len(sources) == len(values) and all(is_constant[other] for other in sources))
    highest: dict[int, int] = {}  # node -> highest level that all readers allow
    for number in reversed(range(len(levels))):
        if is_constant[number]:
            levels[number] = highest.get(number, levels[number])
        for other in producers[number]:
            level = levels[number] - (kinds[other] != kinds[number])
            highest[other] = min(highest.get(other, level), level)
    return levels


def _split(
    numbers: list[int], producers: Sequence[Sequence[int]], nodes: Sequence[N], fusion: LoopFusion[N]
) -> list[list[int]]:
    """Divide nodes of one level and kind into parts of nodes that fit together, without cycles between parts."""
    parts = _Parts(fusion.most)
    for number in numbers:
        sources = [producer for producer in producers[number] if producer in parts]
        parts.add(number, fusion.work(nodes[number]), sources)
        for producer in sources:
            if parts.may_merge(producer, number) and fusion.fits(nodes[producer], nodes[number]):
                parts.merge(producer, number)
    return [sorted(part) for part in parts.members.values()]


class _Parts:
    """Sets of nodes that are merged step by step (union-find). A merged part keeps the number of its larger half."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.members: dict[int, list[int]] = {}
        self._work: dict[int, int] = {}
        # Part -> the parts that compute its operands. Their numbers may be outdated: look them up with `_find`.
        self._needs: dict[int, set[int]] = {}
        self._parent: dict[int, int] = {}  # part -> the part that it was merged into, or itself
        self._first: dict[int, int] = {}  # part -> its first node; `_last`: its last node
        self._last: dict[int, int] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._parent

    def add(self, number: int, work: int, sources: Collection[int]) -> None:
        self.members[number], self._needs[number] = [number], {self._find(source) for source in sources}
        self._parent[number] = self._first[number] = self._last[number] = number
        self._work[number] = work

    def may_merge(self, source: int, reader: int) -> bool:
        """Whether two nodes are in different parts, and the total work of both parts is within the limit."""
        producer, consumer = self._find(source), self._find(reader)
        return producer != consumer and self._work[producer] + self._work[consumer] <= self._most

    def merge(self, source: int, reader: int) -> None:
        """Merge the parts of two nodes, unless a third part is on a path between them."""
        producer, consumer = self._find(source), self._find(reader)
        others = {self._find(part) for part in self._needs[consumer]} - {producer, consumer}
        if any(self._reaches(part, producer) for part in others):
            return
        # Move the nodes of the smaller part: otherwise, a chain of n nodes could take n² steps.
        kept, absorbed = producer, consumer
        if len(self.members[absorbed]) > len(self.members[kept]):
            kept, absorbed = absorbed, kept
        self.members[kept] += self.members.pop(absorbed)
        self._needs[producer] |= others
        self._needs[kept] = self._needs[producer]
        self._parent[absorbed] = kept
        self._work[kept] += self._work[absorbed]
        self._first[kept] = min(self._first[kept], self._first[absorbed])
        self._last[kept] = max(self._last[kept], self._last[absorbed])

    def _find(self, number: int) -> int:
        while (parent := self._parent[number]) != number:
            self._parent[number] = self._parent[parent]  # path halving
            number = parent
        return number

    def _reaches(self, start: int, goal: int) -> bool:
        """Whether the part `start` depends on the part `goal`, directly or indirectly."""
        pending, seen = [start], {start}
        while pending:
            part = pending.pop()
            if part == goal:
                return True
            if self._last[part] > self._first[goal]:  # a part that ends before the goal begins cannot depend on it
                fresh = {self._find(other) for other in self._needs[part]} - seen
                seen |= fresh
                pending += fresh
        return False


def _connect(
    segments: Sequence[Segment[N, V]],
    members: Sequence[Sequence[int]],
    operands: Sequence[Sequence[V]],
    written: Sequence[Sequence[V]],
    producer: Mapping[V, int],
    results: Collection[V],
) -> None:
    """Set the inputs and outputs of all segments, without duplicates, in order of use."""
    segment_of = {number: index for index, numbers in enumerate(members) for number in numbers}
    inputs: list[dict[V, None]] = [{} for _ in segments]
    outputs: list[dict[V, None]] = [{} for _ in segments]
    for number, values in enumerate(operands):
        index = segment_of[number]
        for value in values:
            source = segment_of[producer[value]] if value in producer else None
            if source != index:
                inputs[index][value] = None
                if source is not None:
                    outputs[source][value] = None
        for value in written[number]:
            if value in results:
                outputs[index][value] = None
    for segment, segment_inputs, segment_outputs in zip(segments, inputs, outputs, strict=True):
        segment.inputs, segment.outputs = list(segment_inputs), list(segment_outputs)


def _order(members: Sequence[Sequence[int]], producers: Sequence[Sequence[int]]) -> list[int]:
    """Sort segments topologically, and by their last nodes where the topology allows it."""
    segment_of = {number: index for index, numbers in enumerate(members) for number in numbers}
    needs = [
        {segment_of[producer]: None for number in numbers for producer in producers[number]} for numbers in members
    ]
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
