"""Fuse recurrences with the element-wise operations before and behind them, so that their sequences are not written.

An operation before a recurrence computes slices of a sequence; one behind it changes slices of an output. They become a part
of the step if nothing else reads what is between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain

from ..core.graph import Desc, Graph, Node, Operand, add_like, add_node, iter_operands
from ..core.sizes import is_same_shape, is_static
from ..custom.recurrence import recur
from ..expr.ir import Call, Formula, walk
from ..expr.limits import too_much_work
from ..expr.recurrence import Along, Recurrence
from ..expr.recurrence_fusion import slice_of_formula, with_consumer, with_producer
from ..expr.vocabulary import DEAR
from ..kernels.expression import program_of_nodes
from ..kernels.recurrence import recurrence_of
from .bodies import copy_inputs, finish_copy

MAX_REPEATED_CALLS = 4
"""The largest number of functions of an operation that is computed more than once for an element, since the step broadcasts
the element. An estimate."""

MIN_DEAR_ELEMENTS = 1024
"""The smallest number of elements of a slice for functions such as `exp` in a step that has none. Several such steps are not
compiled as one, and a call of a step takes as long as 50 of these functions. An estimate."""

FUSED = "a part of the step of a recurrence"
"""Remark on operations that are fused."""


class _FusedRecurrence:
    """A recurrence and the operations that are fused with it; `results` are the operands of the graph that it computes."""

    def __init__(self, node: Node) -> None:
        self.node, self.recurrence, self.nodes = node, recurrence_of(node), [node]
        self.operands: list[Operand] = list(iter_operands(node.inputs))
        self.results = list(node.outputs)


class _Fusion:
    def __init__(self, graph: Graph, may_fuse: Callable[[Node], bool], rounds: bool) -> None:
        self.graph, self.may_fuse, self.rounds = graph, may_fuse, rounds
        self.readers: dict[Operand, list[Node]] = {}
        for node in graph.nodes:
            for operand in node.operands:
                self.readers.setdefault(operand, []).append(node)
        self.outputs = set(graph.outputs.values())
        self.groups: dict[Node, _FusedRecurrence] = {}

    def add(self, node: Node, supports: Callable[[Recurrence, Sequence[Operand]], bool]) -> None:
        """Fuse a recurrence with its neighbours, one after the other."""
        group = _FusedRecurrence(node)
        if group.recurrence.step.stored or group.recurrence.step.checks or group.recurrence.step.has_sizes:
            return
        self.groups[node] = group
        while True:
            before = len(group.nodes)
            for fused, nodes, operands, results in chain(self._before(group), self._behind(group)):
                if not too_much_work(fused.step) and supports(fused, operands):
                    group.recurrence, group.operands, group.results = fused, operands, results
                    group.nodes += nodes
                    self.groups.update(dict.fromkeys(nodes, group))
                    break
            if len(group.nodes) == before:
                break
        if len(group.nodes) == 1:
            del self.groups[node]

    def _before(self, group: _FusedRecurrence) -> Iterator[tuple[Recurrence, list[Node], list[Operand], list[Operand]]]:
        """The recurrence with an operation before it, for each such operation."""
        states = group.recurrence.states
        for number, along in enumerate(group.recurrence.inputs):
            operand = group.operands[states + number]
            node = operand.node
            if along is None or node is None or not self._is_between(operand, node, [group.node, *group.nodes]):
                continue
            if (
                group.operands.count(operand) != 1
                or (part := self._formula_of(node, operand, along, group.recurrence.step)) is None
            ):
                continue
            formula, reads, alongs = part
            largest = max(output.desc.element_count for output in group.recurrence.step.outputs)
            if formula.outputs[0].desc.element_count < largest and _calls(formula) > MAX_REPEATED_CALLS:
                continue
            fused = with_producer(group.recurrence, number, formula, alongs)
            place = states + number
            operands = [*group.operands[:place], *reads, *group.operands[place + 1 :]]
            yield fused, [node], operands, group.results

    def _behind(self, group: _FusedRecurrence) -> Iterator[tuple[Recurrence, list[Node], list[Operand], list[Operand]]]:
        """The recurrence with an operation behind it, for each such operation."""
        states = group.recurrence.states
        for number, along in enumerate(group.recurrence.outputs):
            operand = group.results[states + number]
            readers = self.readers.get(operand, [])
            if len(readers) != 1 or operand in self.outputs:
                continue
            (node,) = readers
            if not self._is_fusible(node) or not is_same_shape(node.outputs[0].shape, operand.shape):
                continue
            others = [other for other in node.operands if other is not operand]
            if len(others) != len(node.operands) - 1 or any(self._depends(other, group) for other in others):
                continue
            part = self._formula_of(node, node.outputs[0], along, group.recurrence.step)
            if part is None:
                continue
            formula, reads, alongs = part
            place = reads.index(operand)
            fused = with_consumer(group.recurrence, number, formula, place, [*alongs[:place], *alongs[place + 1 :]])
            results = [*group.results]
            results[states + number] = node.outputs[0]
            yield fused, [node], [*group.operands, *(other for other in reads if other is not operand)], results

    def _is_between(self, operand: Operand, node: Node, readers: Sequence[Node]) -> bool:
        """Whether an operation can be fused whose result only these nodes read."""
        is_read_here = all(reader in readers for reader in self.readers[operand])
        return is_read_here and operand not in self.outputs and self._is_fusible(node)

    def _is_fusible(self, node: Node) -> bool:
        op = node.op
        return (
            node not in self.groups
            and op.formula is not None
            and not op.is_alternative
            and len(node.outputs) == 1
            and not node.has_further_types
            and self.may_fuse(node)
        )

    def _formula_of(
        self, node: Node, result: Operand, along: Along, step: Formula
    ) -> tuple[Formula, list[Operand], list[Along | None]] | None:
        """The formula of an operation for slices of its result, its operands, and their axes of time; None without one."""
        length = result.shape[along.axis]
        alongs = dict[Operand, Along | None]()
        for operand in node.operands:
            axis = along.axis - (result.rank - operand.rank)
            if axis >= 0 and operand.shape[axis] != length:
                return None
            alongs[operand] = Along(axis, along.backward) if axis >= 0 else None
        whole, reads, _ = program_of_nodes([node], list(alongs), [result], rounds=self.rounds)
        if not whole.is_pointwise or whole.outputs[0].desc != result.desc:
            return None
        slices = [alongs[read] for read in reads]
        formula = slice_of_formula(whole, along, slices)
        if formula is None:
            return None
        is_small = formula.outputs[0].desc.element_count < MIN_DEAR_ELEMENTS
        if is_small and _is_dear(formula) and not _is_dear(step):
            return None
        return formula, reads, slices

    def _depends(self, operand: Operand, group: _FusedRecurrence) -> bool:
        """Whether an operand depends on a group."""
        pending, seen = [operand], {operand}
        while pending:
            node = pending.pop().node
            if node is None:
                continue
            own = self.groups.get(node)
            if own is group:
                return True
            sources = node.operands if own is None else own.operands
            fresh = [source for source in sources if source not in seen]
            seen.update(fresh)
            pending += fresh
        return False


def _is_dear(formula: Formula) -> bool:
    return any(isinstance(node, Call) and node.name in DEAR for node in walk(*formula.roots))


def _calls(formula: Formula) -> int:
    return sum(isinstance(node, Call) for node in walk(*formula.roots))


def fuse_recurrences(
    graph: Graph,
    origin: Mapping[Node, Node],
    may_fuse: Callable[[Node], bool],
    supports: Callable[[Recurrence, Sequence[Operand]], bool],
    *,
    rounds: bool,
) -> tuple[Graph, Mapping[Node, Node], set[Node]]:
    """The graph with recurrences that include the element-wise operations beside them.

    Args:
        graph: the graph.
        origin: the node that each of its nodes comes from; the second result is the same for the new graph.
        may_fuse: whether a node, a recurrence or an element-wise operation, runs where recurrences run.
        supports: whether one kernel runs a recurrence of these operands.
        rounds: whether results of float16 are rounded between operations.

    Returns: The graph, origins, and the nodes that are a part of recurrences.
    """
    fusion = _Fusion(graph, may_fuse, rounds)
    for node in graph.nodes:
        if node.op.recurrence is not None and may_fuse(node) and _is_static(node):
            fusion.add(node, supports)
    if not fusion.groups:
        return graph, origin, set()
    builder, parents = copy_inputs(graph), dict[Node, Node]()
    copies: dict[Operand, Operand] = dict(zip(graph.inputs.values(), builder.inputs.values(), strict=True))
    emitted: set[Node] = set()

    def emit(node: Node) -> None:
        """Add a node, or its group."""
        group = fusion.groups.get(node)
        emitted.update([node] if group is None else group.nodes)
        if group is None:
            results = add_like(builder, node, lambda operand: copies.get(operand, operand), node.label)
            copies.update(zip(node.outputs, results, strict=True))
        else:
            node = group.node
            inputs = {"operands": tuple(copies.get(operand, operand) for operand in group.operands)}
            descs: tuple[Desc, ...] = tuple(operand.desc for operand in group.results)
            results = add_node(builder, recur, inputs, {"recurrence": group.recurrence}, node.label, descs)
            copies.update(zip(group.results, results, strict=True))
        assert results[0].node is not None
        parents[results[0].node] = origin.get(node, node)

    for root in graph.nodes:
        pending = [root]
        while pending:
            node = pending[-1]
            group = fusion.groups.get(node)
            needed = node.operands if group is None else group.operands
            missing = [o.node for o in needed if o.node is not None and o.node not in emitted and o not in copies]
            if node in emitted or not missing:
                pending.pop()
                if node not in emitted:
                    emit(node)
            else:
                pending += missing
    fused = {node for node, group in fusion.groups.items() if node is not group.node}
    new, parents_of_new = finish_copy(graph, builder, copies, parents)
    return new, parents_of_new, fused


def _is_static(node: Node) -> bool:
    return all(is_static(operand.shape) for operand in (*node.operands, *node.outputs))
