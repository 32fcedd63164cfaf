"""Diamonds: values such as x in x * sigmoid(x), whose readers all flow into one result, and so fit into one kernel."""

from __future__ import annotations

from ...core.graph import Graph, Node, Operand
from ...core.sizes import is_same_shape
from ...expr import ir
from ...expr.ir import Formula
from ...ops.movement import reshape
from .backend import GpuBackend
from .forms import is_users_kernel, trace
from .fusion import MAX_FUSED_CALLS, read_patterns

MAX_DIAMOND_NODES = 12
"""The largest number of operations of a diamond. GELU has 5, its tanh approximation 8."""


def diamond_operands(graph: Graph, backend: GpuBackend) -> set[Operand]:
    """Operands with several readers that need no memory.

    All readers are element-wise, and their results flow through element-wise nodes into one result. `forms.refusal_of` must
    be empty for each node.
    """
    return _Search(graph, backend).found


class _Search:
    def __init__(self, graph: Graph, backend: GpuBackend) -> None:
        self.backend = backend
        self.outputs = set(graph.outputs.values())
        self.order = {node: number for number, node in enumerate(graph.nodes)}
        self.readers: dict[Operand, dict[Node, None]] = {}
        for node in graph.nodes:
            for operand in node.operands:
                self.readers.setdefault(operand, {})[node] = None
        self._programs: dict[Node, Formula | None] = {}
        self.found: set[Operand] = set()
        for node in graph.nodes:
            for operand in node.outputs:
                if len(self.readers.get(operand, ())) > 1 and operand not in self.outputs:
                    self.found |= self._diamond_from(operand)

    def _diamond_from(self, first: Operand) -> set[Operand]:
        """The inner operands of the diamond that starts at `first`; empty if there is none."""
        inside, taken, calls = {first}, set[Node](), 0
        while len(taken) < MAX_DIAMOND_NODES:
            waiting = {node for operand in inside for node in self.readers.get(operand, ())} - taken
            if not waiting:
                return set()
            node = min(waiting, key=self.order.__getitem__)
            program = self._element_wise(node, inside)
            if program is None:
                return set()
            calls += program.operations
            taken.add(node)
            inside.add(node.outputs[0])
            last = [operand for operand in inside if not self._is_inside(operand, taken)]
            if len(last) == 1 and last[0] is not first:
                return inside - {*last} if calls <= MAX_FUSED_CALLS // 2 else set()
        return set()

    def _is_inside(self, operand: Operand, taken: set[Node]) -> bool:
        readers = self.readers.get(operand, {})
        return operand not in self.outputs and bool(readers) and taken.issuperset(readers)

    def _element_wise(self, node: Node, inside: set[Operand]) -> Formula | None:
        """The program of a node that reads the operands in `inside` element-wise; else None."""
        if node not in self._programs:
            self._programs[node] = self._one_result(node)
        program = self._programs[node]
        if program is None:
            return None
        for operand, reading in read_patterns(node, program).items():
            if operand in inside and not (reading.aligned and is_same_shape(operand.shape, node.outputs[0].shape)):
                return None
        return program

    def _one_result(self, node: Node) -> Formula | None:
        if node.op is reshape or len(node.outputs) > 1 or is_users_kernel(node, self.backend):
            return None
        program = trace(node, self.backend)
        if not isinstance(program, Formula) or program.stored:
            return None
        return None if any(isinstance(part, ir.Reduce) for part in ir.walk(*program.roots)) else program
