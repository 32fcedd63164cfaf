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
) -> list[Segment]:
    """The segments of a graph.

    Args:
        graph: what to divide.
        kind: the engine of a node; something unique for nodes that stand alone.
        joined: kinds whose nodes share a segment only if they are connected by operands and `fits` holds.
        fits: whether a node of such a kind may join the segment of one that it takes an operand from.
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
        parts = _connected(nodes, fits) if its_kind in joined else [nodes]
        segments += (Segment(its_kind, part) for part in parts)
    return _ordered(graph, segments)


def _connected(nodes: list[Node], fits: Callable[[Node, Node], bool]) -> list[list[Node]]:
    """Nodes of one level and kind, divided into those that fit together; no two parts depend on each other in a circle."""
    parts: list[list[Node]] = []
    home: dict[Node, int] = {}
    needs: list[set[int]] = []  # the parts that a part takes operands from

    def reaches(start: int, goal: int) -> bool:
        pending, seen = [start], set()
        while pending:
            part = pending.pop()
            if part == goal:
                return True
            if part not in seen:
                seen.add(part)
                pending.extend(needs[part])
        return False

    for node in nodes:
        makers = [operand.node for operand in node.operands if operand.node in home]
        sources = {home[maker] for maker in makers if maker is not None}
        choice = None
        for maker in reversed(makers):
            assert maker is not None
            target = home[maker]
            others = sources - {target}
            if fits(maker, node) and not any(reaches(other, target) for other in others):
                choice = target
                break
        if choice is None:
            choice = len(parts)
            parts.append([])
            needs.append(set())
        parts[choice].append(node)
        needs[choice] |= sources - {choice}
        home[node] = choice
    return parts


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

    def place(segment: Segment) -> None:
        # Levels are few, so that this does not go deep; parts of one level follow each other.
        if id(segment) not in ordered:
            for operand in segment.inputs:
                if operand.node is not None:
                    place(home[operand.node])
            ordered[id(segment)] = segment

    for segment in sorted(segments, key=lambda segment: segment.nodes[-1].serial):
        place(segment)
    return list(ordered.values())
