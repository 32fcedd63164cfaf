"""Equal layers: nodes of a graph that repeat with other constants, inputs and outputs of the graph.

The layers of a network have the same kernels: `layer_copies` makes the steps of most layers from those of one layer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.graph import Node, Operand
from ...core.sizes import Size
from ...support.cache import exact

MIN_LAYERS = 3
"""The fewest layers of a run: the steps of two are not copied."""

MAX_LENGTHS = 6
"""The number of lengths of a layer that are tried: the most common distances between nodes of the same kind."""


@dataclass(frozen=True)
class LayerRun:
    """Equal layers that follow each other: `count` times `length` nodes, the first of which has the number `start`."""

    start: int
    length: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.length * self.count


def layer_runs(nodes: Sequence[Node], facts_of: Callable[[Node], Hashable]) -> list[LayerRun]:
    """The runs of equal layers in a graph, in order.

    The nodes of layers have the same operations, attributes, data types, shapes and `facts_of`. Their operands are results of
    nodes of the same or the previous layer at the same distance; results of one node before the run; constants; or inputs of
    the graph. Scalar constants are equal, other ones correspond one to one.
    """
    kinds = _kinds_of(nodes, facts_of)
    distances, latest = Counter[int](), dict[int, int]()
    for number, kind in enumerate(kinds):
        if kind in latest:
            distances[number - latest[kind]] += 1
        latest[kind] = number
    order = {node: number for number, node in enumerate(nodes)}
    runs: list[LayerRun] = []
    for length, _ in distances.most_common(MAX_LENGTHS):
        second = length
        while second < len(nodes):
            run, different = _run_from(nodes, kinds, order, second, length)
            second = different + 1
            if run.count >= MIN_LAYERS:
                runs.append(run)
                second = max(second, run.end + length)
    chosen: list[LayerRun] = []
    for run in sorted(runs, key=lambda run: (run.count - 2) * run.length, reverse=True):
        if all(run.end <= other.start or other.end <= run.start for other in chosen):
            chosen.append(run)
    return sorted(chosen, key=lambda run: run.start)


def _kinds_of(nodes: Sequence[Node], facts_of: Callable[[Node], Hashable]) -> list[int]:
    """A number for each node that nodes of the same operation, attributes, shapes and facts share."""
    numbers: dict[Hashable, int] = {}
    kinds = []
    for number, node in enumerate(nodes):
        descs = [(o.data_type, _key_of(o.shape)) for o in (*node.operands, *node.outputs)]
        inputs = [len(value) if isinstance(value, tuple) else value is None for value in node.inputs.values()]
        key = node.op, _key_of(tuple(node.attributes.items())), tuple(descs), tuple(inputs), facts_of(node)
        try:
            kinds.append(numbers.setdefault(key, number))
        except TypeError:  # attributes that cannot be compared, such as bodies
            kinds.append(number)
    return kinds


def _key_of(value: Any) -> Hashable:
    """A key of attributes or a shape. Sizes are compared by their formulas: `==` might ask for their values."""
    if isinstance(value, Size):
        return Size, value.terms
    if isinstance(value, (tuple, list)):
        return (type(value), *map(_key_of, value))
    key: Hashable = exact(value)
    return key


def _run_from(
    nodes: Sequence[Node], kinds: Sequence[int], order: dict[Node, int], second: int, length: int
) -> tuple[LayerRun, int]:
    """The longest run of layers whose second one begins at number `second`, and the number of the first node that differs."""
    start, number = second - length, second
    corresponding: dict[Operand, Operand] = {}
    sources: dict[Operand, Operand] = {}

    def corresponds(operand: Operand, before: Operand, first: int) -> bool:
        """Whether an operand of the layer that begins at `first` corresponds to the operand `before` of the previous layer."""
        if operand.node is not None and before.node is not None:
            at, other = order[operand.node], order[before.node]
            if operand is before:
                # Results of the run itself are read by the layers that follow, or by nobody else.
                return at < start
            same = operand.node.outputs.index(operand) == before.node.outputs.index(before)
            return same and at - other == length and at >= max(start, first - length)
        if operand.is_constant and before.is_constant:
            if not operand.shape and exact(operand.value) != exact(before.value):
                return False
        elif not (operand.is_input and before.is_input):
            return False
        return corresponding.setdefault(before, operand) is operand and sources.setdefault(operand, before) is before

    while number < len(nodes):
        first = number - (number - start) % length
        if number == first:
            corresponding.clear()
            sources.clear()
        node, before = nodes[number], nodes[number - length]
        pairs = zip(node.operands, before.operands, strict=False)
        if kinds[number] != kinds[number - length] or not all(corresponds(one, other, first) for one, other in pairs):
            break
        number += 1
    return LayerRun(start, length, (number - start) // length), number
