"""Build, hash and compile the graph of pending calls behind a read."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from ..compile.driver import compile
from ..core.graph import Graph, Operand
from ..ops import Operations
from .array import Array, ArrayTemplate, PendingCall

if TYPE_CHECKING:
    from ..context.context import MLContext
    from ..run.program import Program

ResultSlot = tuple[int, int, Array]
"""A result to write: index of the call, index of the result in the call, array that receives the values."""


class CallGraph:
    """Calls that are compiled as one graph.

    Attributes:
        refs: the operands of each call: (call index, result index) for a result, (-1, input index) for an input.
        kept: the results to write: (call index, result index).
    """

    def __init__(self, context: MLContext, nodes: Sequence[PendingCall], kept: Sequence[ResultSlot]) -> None:
        self.backend, self.device, self.power = context.backend, context.device.name, context.power_preference
        self.templates = [node.template for node in nodes]
        self.kept = [(number, position) for number, position, _ in kept]
        self.refs: list[list[tuple[int, int]]] = []
        numbers = {id(node): number for number, node in enumerate(nodes)}
        slots: dict[int, int] = {}
        for node in nodes:
            refs = []
            for array in node.inputs:
                producer = array.node
                if producer is not None:
                    refs.append((numbers[id(producer)], _position(array, producer)))
                else:
                    refs.append((-1, slots.setdefault(id(array), len(slots))))
            self.refs.append(refs)

    @classmethod
    def of_one(cls, template: ArrayTemplate, context: MLContext) -> CallGraph:
        """Return the graph of a single call that writes all results."""
        graph = cls(context, (), ())
        graph.templates, graph.refs = [template], [[(-1, k) for k in range(len(template.operands))]]
        graph.kept = [(0, k) for k in range(len(template.descs))]
        return graph

    def graph(self, constants: Mapping[int, np.ndarray] | None = None) -> Graph:
        """Build a graph with inputs `x0`… and outputs `y0`…; `constants` replace inputs by index. Labels are call indices."""
        builder = Operations()
        inputs: dict[int, Operand] = {}
        results: list[tuple[Operand, ...]] = []
        for place, (template, refs) in enumerate(zip(self.templates, self.refs, strict=True)):
            operands = []
            for (call, number), desc in zip(refs, template.operands, strict=True):
                if call < 0 and number not in inputs:
                    if constants is not None and number in constants:
                        inputs[number] = Operand(builder, desc, value=constants[number])
                    else:
                        inputs[number] = Operand(builder, desc, name=f"x{number}")
                operands.append(inputs[number] if call < 0 else results[call][number])
            results.append(template.add_to(builder, operands, f"@{place}"))
        builder.inputs.update((f"x{number}", inputs[number]) for number in sorted(inputs) if inputs[number].is_input)
        reached = Graph.reaching({f"y{k}": results[call][number] for k, (call, number) in enumerate(self.kept)})
        # All inputs: a program is run with the arrays of all calls, and a result that is not kept may leave some unused.
        return Graph(dict(builder.inputs), reached.outputs, reached.nodes)

    def compile(self, constants: Mapping[int, np.ndarray] | None = None) -> Program:
        """Compile the calls; `constants` replace inputs by index."""
        graph = self.graph(constants)
        return compile(graph, self.backend, device=self.device, power_preference=self.power, alone=False)


def _position(array: Array, node: PendingCall) -> int:
    if len(node.outputs) == 1:
        return 0
    return next(k for k, output in enumerate(node.outputs) if output() is array)


# ---------------------------------------------------------------------------------------------------------------------
# From arrays to calls


def calls_for(arrays: Sequence[Array]) -> tuple[list[PendingCall], dict[int, int]]:
    """Return the pending calls that arrays depend on, in topological order, and the number of uses of each array by `id`."""
    order: list[PendingCall] = []
    seen: set[int] = set()
    uses: dict[int, int] = {}
    # Depth-first search without recursion. Once None is popped, all operands of the call below it are in `order`.
    stack: list[PendingCall | None] = [array.node for array in reversed(arrays) if array.node is not None]
    while stack:
        node = stack.pop()
        if node is None:
            order.append(stack.pop())  # type: ignore[arg-type]
            continue
        if id(node) in seen:
            continue
        seen.add(id(node))
        stack += (node, None)
        for array in reversed(node.inputs):
            key, producer = id(array), array.node
            uses[key] = uses[key] + 1 if key in uses else 1
            if producer is not None and id(producer) not in seen:
                stack.append(producer)
    return order, uses


def signature(
    context: MLContext, nodes: Sequence[PendingCall], kept: Sequence[ResultSlot]
) -> tuple[tuple[Any, ...], list[Array]]:
    """Return the cache key of a graph of calls, and the arrays that are inputs of the graph.

    For each call, the key has the serial number of the template, then the operands: call index and result index for a result,
    -1 - input index for an input. The key is unambiguous since the template determines the number of operands.
    """
    key: list[Any] = [context._place]
    numbers: dict[int, int] = {}
    slots: dict[int, int] = {}
    leaves: list[Array] = []
    add = key.append
    for number, node in enumerate(nodes):
        add(node.template.serial)
        for array in node.inputs:
            producer = array.node
            if producer is not None:
                add(numbers[id(producer)])
                add(0 if len(producer.outputs) == 1 else _position(array, producer))
                continue
            slot = slots.get(id(array))
            if slot is None:
                slot = slots[id(array)] = len(leaves)
                leaves.append(array)
            add(-1 - slot)
        numbers[id(node)] = number
    add("results")
    for number, position, _ in kept:
        add(number)
        add(position)
    return tuple(key), leaves


def _reference_count(output: ref[Array]) -> int:
    array = output()
    return sys.getrefcount(array)


class _Probe:
    """An object with one reference. It shows how many references `_reference_count` adds in this version of Python."""


_probe: Any = _Probe()
_OWN_REFERENCES = _reference_count(ref(_probe)) - 1


def kept_results(nodes: Sequence[PendingCall], uses: dict[int, int], asked: set[int]) -> list[ResultSlot]:
    """Return the results to write: results in `asked`, and results that are referenced by anything but these calls."""
    kept = []
    for number, node in enumerate(nodes):
        for position, output in enumerate(node.outputs):
            # Without CPython's reference counts, all results are written.
            holders = _reference_count(output) - _OWN_REFERENCES
            array = output()
            if array is not None and (id(array) in asked or holders > uses.get(id(array), 0)):
                kept.append((number, position, array))
            del array
    return kept
