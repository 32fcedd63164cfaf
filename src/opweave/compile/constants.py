"""Compute operations on constants once, when a graph is built, for devices whose engine does not.

Models compute weights from others, as a weight-standardised convolution does. Its filter is a constant then, which kernels get
in the order that they read fastest.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from math import prod
from typing import TypeAlias

import numpy as np

from ..core.graph import Graph, Node, Operand, add_like
from ..core.sizes import is_static, is_symbolic
from ..memory.arrays import is_immutable, owner_of
from ..ops import matrix, movement
from ..ops.elementwise import cast, identity
from ..ops.recorder import Recorder
from ..support.cache import Cache
from ..support.digests import digest

MAX_ELEMENTS = 2**24
"""Largest number of elements, operands and results together, of an operation that is computed here."""

MAX_GROWTH = 2**20
"""Bytes up to which a result may be larger than its operands. Tables that are expanded, and narrow weights that are
dequantised, stay as they are."""

MAX_PRODUCTS = 2**30
"""The largest number of multiplications of a matrix product of constants: a fraction of a second."""

_MOVES = {
    identity, movement.concat, movement.expand, movement.reshape, movement.slice, movement.split, movement.tile,
    movement.transpose,
}  # fmt: skip
"""Operations that only move elements: kernels read the result from the unchanged constant, without a copy."""

_QUICK = {matrix.matmul, matrix.gemm}
"""Operations that take more than a few steps an element, and yet are computed here."""

Evaluate: TypeAlias = Callable[[Node, Mapping[Operand, np.ndarray]], Sequence[np.ndarray]]

_SLOW = ("conv2d", "conv_transpose2d", "gru", "gru_cell", "lstm", "lstm_cell")


def fold_constants(graph: Graph, origin: Mapping[Node, Node]) -> tuple[Graph, Mapping[Node, Node]]:
    """Compute the operations whose operands are constants: in the new graph, their results are constants.

    Args:
        graph: whose nodes the device runs.
        origin: the node that each node of `graph` comes from; the second result is this map for the new graph.
    """
    from ..backends.reference import reference

    outputs = set(graph.outputs.values())
    constants = set(graph.constants)
    foldable: list[Node] = []
    fresh: set[Operand] = set()
    halves = _widened_for_products(graph)
    for node in graph.nodes:
        if node in halves:
            continue
        is_constant = bool(node.operands) and constants.issuperset(node.operands) and outputs.isdisjoint(node.outputs)
        if is_constant and _is_cheap(node) and reference.supports(node):
            foldable.append(node)
            constants.update(node.outputs)
            if node.op not in _MOVES or not fresh.isdisjoint(node.operands):
                fresh.update(node.outputs)
    if not fresh:
        return graph, origin
    folded = {node for node in foldable if fresh.issuperset(node.outputs)}
    read = {operand for node in graph.nodes if node not in folded for operand in node.operands}
    wanted = {operand for node in folded for operand in read.intersection(node.outputs)}
    values = _FoldedValues(reference.evaluate, foldable, wanted)
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


def _widened_for_products(graph: Graph) -> set[Node]:
    """The casts of 16-bit constants to float32 that only products read: kernels of products read the constants themselves."""
    others = set(graph.outputs.values())
    for node in graph.nodes:
        if node.op not in _QUICK:
            others.update(node.operands)
        elif (c := node.arguments.get("c")) is not None:
            others.add(c)
    casts = [node for node in graph.nodes if node.op is cast and node.outputs[0] not in others]
    return {
        node
        for node in casts
        if node.operands[0].is_constant
        and node.operands[0].data_type in ("float16", "bfloat16")
        and node.outputs[0].data_type == "float32"
    }


def _node_of(operand: Operand) -> Node:
    assert operand.node is not None
    return operand.node


def _is_cheap(node: Node) -> bool:
    """Whether the results of a node of constants take little time and memory to compute."""
    if node.op.name in _SLOW or any(map(is_symbolic, node.attributes.values())):
        return False
    if not all(is_static(operand.shape) for operand in (*node.operands, *node.outputs)):
        return False
    operand_bytes, result_bytes = (
        sum(_bytes(operand) for operand in operands) for operands in (node.operands, node.outputs)
    )
    count = sum(operand.desc.element_count for operand in (*node.operands, *node.outputs))
    if count > MAX_ELEMENTS or result_bytes > operand_bytes + MAX_GROWTH:
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


_serials = itertools.count()
MAX_ATTRIBUTE_BYTES = 1 << 24
"""Maximum bytes of arrays that are kept as attributes of operations, to number them. An estimate."""

_numbers: Cache[object, int] = Cache(4096, MAX_ATTRIBUTE_BYTES)
"""Numbers of operations with attributes, for keys: attributes that differ may have one text, as large arrays have."""

_shared: dict[bytes, _Shared] = {}
"""Computed arrays that graphs hold. Graphs of one model, such as those for several shapes, have the same ones."""


def _forget(key: bytes, array: weakref.ref[np.ndarray]) -> None:
    """Drop an array that is gone, unless another one has its key by now."""
    if (shared := _shared.get(key)) is not None and shared.array is array:
        del _shared[key]


def _identity_of(array: np.ndarray) -> str:
    """Text that is equal for the same elements in the same memory, while that memory exists.

    Users may change an array after its graphs are destroyed, while arrays that were computed from it still exist:
    operands and nodes refer to each other, so that only the garbage collector frees them.
    """
    place = array.ctypes.data, array.shape, array.strides, array.dtype.str, array.dtype.name
    if is_immutable(array):
        return f"{place}"
    in_memory_order = array.transpose(sorted(range(array.ndim), key=lambda axis: -array.strides[axis]))
    contents = np.ascontiguousarray(in_memory_order).reshape(-1).view(np.uint8)
    # OpenSSL uses the processor's instructions for SHA-256: BLAKE2b takes three times as long.
    return f"{place} {sha256(contents.data).hexdigest()}"


def share(purpose: str, sources: Sequence[np.ndarray], compute: Callable[[], np.ndarray]) -> np.ndarray:
    """An array that is computed from constants, which graphs of the same constants share.

    `purpose` is the same for equal functions of arrays.
    """
    key = digest(f"{purpose} {[*map(_identity_of, sources)]}".encode()).digest()
    shared = _shared.get(key)
    if shared is not None and (array := shared.get()) is not None:
        return array
    array = compute()
    owners = tuple(weakref.ref(owner_of(source)) for source in sources)
    _shared[key] = _Shared(weakref.ref(array, partial(_forget, key)), owners)
    return array


class _FoldedValues:
    """The values of operands that are computed from constants.

    Nodes are looked at in the order of the graph, and each once, however many nodes read its results.

    Args:
        evaluate: computes the results of a node from arrays.
        nodes: the nodes of constants, in order.
        wanted: the results to compute.
    """

    def __init__(self, evaluate: Evaluate, nodes: Sequence[Node], wanted: Collection[Operand]) -> None:
        self._arrays: dict[Operand, np.ndarray] = {}
        self._keys: dict[Operand, bytes] = {}
        self._sources: dict[Operand, frozenset[int]] = {}
        self._owners: dict[int, np.ndarray] = {}
        needed, chain = set(wanted), list[Node]()
        for node in reversed(nodes):
            if not needed.isdisjoint(node.outputs):
                chain.append(node)
                needed.update(node.operands)
        for node in reversed(chain):
            self._identify(node)
        needed, missing = set(wanted), list[Node]()
        for node in chain:
            if not needed.isdisjoint(node.outputs) and not self._find(node):
                missing.append(node)
                needed.update(node.operands)
        for node in reversed(missing):
            arrays = evaluate(node, {operand: self.of(operand) for operand in node.operands})
            for output, array in zip(node.outputs, arrays, strict=True):
                self._keep(output, array)

    def of(self, operand: Operand) -> np.ndarray:
        """The elements of a constant, or of a wanted result."""
        value: np.ndarray = operand.value if operand.is_constant else self._arrays[operand]
        return value

    def _identify(self, node: Node) -> None:
        """Give results keys that are equal for equal elements, as long as the constants that they come from exist."""
        for operand in node.operands:
            if operand.is_constant and operand not in self._keys:
                array, owner = operand.value, owner_of(operand.value)
                text = f"{_identity_of(array)} {operand.desc}"
                self._keys[operand], self._sources[operand] = text.encode(), frozenset([id(owner)])
                self._owners[id(owner)] = owner
        parts = [self._keys[operand] for operand in node.operands]
        counts = {
            name: len(value) if isinstance(value, tuple) else value is not None for name, value in node.inputs.items()
        }
        size = sum(getattr(value, "nbytes", 0) for value in node.attributes.values())
        serial = _numbers.make((node.op, *node.attributes.items()), partial(next, _serials), lambda _: size)
        text = f"{node.op.name} {serial} {counts} {parts}"
        key = digest(text.encode()).digest()
        sources = frozenset().union(*(self._sources[operand] for operand in node.operands))
        for number, output in enumerate(node.outputs):
            self._keys[output], self._sources[output] = key + bytes([number]), sources

    def _find(self, node: Node) -> bool:
        """Take the results that other graphs hold; whether there are all of them."""
        for output in node.outputs:
            shared = _shared.get(self._keys[output])
            array = None if shared is None else shared.get()
            if array is None:
                return False
            self._arrays[output] = array
        return True

    def _keep(self, output: Operand, array: np.ndarray) -> None:
        key = self._keys[output]
        sources = tuple(weakref.ref(self._owners[number]) for number in self._sources[output])
        self._arrays[output] = array
        _shared[key] = _Shared(weakref.ref(array, partial(_forget, key)), sources)
