"""Compute operations on constants once, when a graph is built, for devices whose engine does not.

Models compute weights from others, as a weight-standardised convolution does. Its filter is a constant then, which kernels get
in the order that they read fastest.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from ..core.graph import Graph, Node, Operand, add_like
from ..core.sizes import is_static, is_symbolic
from ..memory.arrays import owner_of
from ..ops import matrix, movement
from ..ops.elementwise import identity
from ..ops.recorder import Recorder

MAX_ELEMENTS = 2**24
"""Largest number of elements, operands and results together, of an operation that is computed here."""

MAX_GROWTH = 2**20
"""Bytes up to which a result may be larger than its operands. Tables that are expanded, and narrow weights that are
dequantised, stay as they are."""

MAX_PRODUCTS = 2**30
"""Most multiplications of a matrix product of constants: a fraction of a second."""

_MOVES = {
    identity, movement.concat, movement.expand, movement.reshape, movement.slice, movement.split, movement.tile,
    movement.transpose,
}  # fmt: skip
"""Operations that move elements: of an unchanged constant, kernels read what they yield without a copy."""

_QUICK = {matrix.matmul, matrix.gemm}
"""Operations that take more than a few steps an element, and yet are computed here."""

_SLOW = ("conv2d", "conv_transpose2d", "gru", "gru_cell", "lstm", "lstm_cell")


def fold_constants(graph: Graph, origin: Mapping[Node, Node]) -> tuple[Graph, Mapping[Node, Node]]:
    """The graph without the operations on constants alone, whose results are constants of it.

    Args:
        graph: whose nodes the device runs.
        origin: the node that each of its nodes comes from; the second result is the same for the new graph.
    """
    from ..backends.reference import reference

    outputs = set(graph.outputs.values())
    known = set(graph.constants)
    foldable: list[Node] = []
    fresh: set[Operand] = set()
    for node in graph.nodes:
        is_constant = bool(node.operands) and known.issuperset(node.operands) and outputs.isdisjoint(node.outputs)
        if is_constant and _is_cheap(node) and reference.supports(node):
            foldable.append(node)
            known.update(node.outputs)
            if node.op not in _MOVES or not fresh.isdisjoint(node.operands):
                fresh.update(node.outputs)
    if not fresh:
        return graph, origin
    folded = {node for node in foldable if fresh.issuperset(node.outputs)}
    read = {operand for node in graph.nodes if node not in folded for operand in node.operands}
    values = _FoldedValues(reference.evaluate)
    copies: dict[Operand, Operand] = {}
    builder = Recorder()
    for name, operand in graph.inputs.items():
        copies[operand] = builder.inputs[name] = Operand(builder, operand.desc, name=name)
    builder.has_names = graph.has_names
    parents: dict[Node, Node] = {}
    for node in graph.nodes:
        if node in folded:
            for operand in read.intersection(node.outputs):
                copies[operand] = Operand(builder, operand.desc, value=values.of(operand))
            continue
        results = add_like(builder, node, lambda operand: copies.get(operand, operand), node.label)
        copies.update(zip(node.outputs, results, strict=True))
        parents[_node_of(results[0])] = origin[node]
    ends = {name: copies.get(operand, operand) for name, operand in graph.outputs.items()}
    nodes = Graph.reaching(ends).nodes
    return Graph(builder.inputs, ends, nodes), {node: parents[node] for node in nodes}


def _node_of(operand: Operand) -> Node:
    assert operand.node is not None
    return operand.node


def _is_cheap(node: Node) -> bool:
    """Whether the results of a node of constants take little time and memory to compute."""
    if node.op.name in _SLOW or any(map(is_symbolic, node.attributes.values())):
        return False
    if not all(is_static(operand.shape) for operand in (*node.operands, *node.outputs)):
        return False
    taken, given = (sum(_bytes(operand) for operand in operands) for operands in (node.operands, node.outputs))
    count = sum(operand.desc.element_count for operand in (*node.operands, *node.outputs))
    if count > MAX_ELEMENTS or given > taken + MAX_GROWTH:
        return False
    return node.op not in _QUICK or prod(node.outputs[0].shape) * max(node.operands[0].shape, default=1) <= MAX_PRODUCTS


def _bytes(operand: Operand) -> int:
    return int(operand.desc.byte_length)


# ---------------------------------------------------------------------------------------------------------------------
# Values, which graphs share


@dataclass(frozen=True)
class _Shared:
    """A computed array, and the arrays that it was computed from, whose addresses are part of its key."""

    array: weakref.ref[np.ndarray]
    sources: tuple[weakref.ref[np.ndarray], ...]

    def get(self) -> np.ndarray | None:
        """The array, unless a source is gone: its address may belong to another array by now."""
        return self.array() if all(source() is not None for source in self.sources) else None


_shared: dict[Hashable, _Shared] = {}
"""Computed arrays that graphs hold. Graphs of one model, such as those for several shapes, have the same ones."""


def _forget(key: Hashable, _: object) -> None:
    _shared.pop(key, None)


class _FoldedValues:
    """The values of operands that are computed from constants.

    Args:
        evaluate: computes the results of a node from arrays.
    """

    def __init__(self, evaluate: Callable[[Node, Mapping[Operand, np.ndarray]], Sequence[np.ndarray]]) -> None:
        self._evaluate = evaluate
        self._arrays: dict[Operand, np.ndarray] = {}

    def of(self, operand: Operand) -> np.ndarray:
        """The elements of a constant, or of the result of a node of constants."""
        if operand.is_constant:
            value: np.ndarray = operand.value
            return value
        if operand not in self._arrays:
            self._fill(_node_of(operand))
        return self._arrays[operand]

    def _fill(self, node: Node) -> None:
        keys = [self._key(output) for output in node.outputs]
        kept = [_shared[key].get() if key in _shared else None for key in keys]
        arrays = [array for array in kept if array is not None]
        if len(arrays) < len(keys):
            arrays = list(self._evaluate(node, {operand: self.of(operand) for operand in node.operands}))
            sources = tuple(weakref.ref(source) for source in self._sources(node))
            for key, array in zip(keys, arrays, strict=True):
                _shared[key] = _Shared(weakref.ref(array, partial(_forget, key)), sources)
        self._arrays.update(zip(node.outputs, arrays, strict=True))

    def _key(self, operand: Operand) -> Hashable:
        """A key that is equal for equal elements, as long as the constants that they come from exist."""
        if operand.is_constant:
            array = operand.value
            return array.ctypes.data, array.nbytes, array.dtype.str, array.shape
        node = _node_of(operand)
        parts = tuple(self._key(part) for part in node.operands)
        return node.op, tuple(node.attributes.items()), parts, operand.data_type, node.outputs.index(operand)

    def _sources(self, node: Node) -> Iterator[np.ndarray]:
        """The arrays that own the memory of the constants that a node is computed from."""
        for operand in node.operands:
            yield from [owner_of(operand.value)] if operand.is_constant else self._sources(_node_of(operand))
