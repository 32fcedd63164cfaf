"""Fuse attention that a graph spells out as matmul, element-wise operations, softmax and matmul.

Models from other frameworks have attention in this form.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...core.graph import Graph, Node, Operand
from ...core.guards import estimate
from ...core.sizes import is_same_shape, is_static
from ...expr import Traced, where
from ...expr.gpu import Features
from ...expr.ir import Input
from ...expr.tracing import of_input
from ...ops.elementwise import add, div, mul, where as choose
from ...ops.formulas import broadcast
from ...ops.logical import is_nan
from ...ops.matrix import matmul
from ...ops.movement import transpose
from ...ops.normalization import softmax
from .rules.flash import Attention, Element
from .rules.flash_tensor import MAX_SIZE, on_tensor_cores
from .rules.reduction import widen

MAX_OPERATIONS = 2e8
"""The largest number of FLOPs of an attention to fuse without tensor cores. Fusion saves launches and the stores of scores,
but the matmul kernels compute about 5 times as fast. On tensor cores fusion is always faster: on an H200, ViT-B/16 with 32
images in TF32 takes 7.9 ms fused, 10.4 ms unfused."""

MAX_OPERANDS = 3
"""The largest number of operands of the scores besides query and key."""

Change = Callable[..., Traced]
"""`change(score, position, operands)` applies a node between the first matmul and the softmax to a score."""


@dataclass(frozen=True)
class AttentionMatch:
    """An attention in a graph. Only the last node's result has readers outside.

    Attributes:
        query: [batches, heads, queries, size], or without batches.
        key: [batches, heads, size, keys].
        value: [batches, heads, keys, size of values].
        operands: other operands of the scores.
        changes: element-wise operations on a score, in order.
        permutation: permutation of the result's axes; empty for none.
        zeroes: whether weights of NaN are replaced by 0. A query that sees no key has such weights.
    """

    nodes: tuple[Node, ...]
    query: Operand
    key: Operand
    value: Operand
    operands: tuple[Operand, ...]
    changes: tuple[Change, ...]
    permutation: tuple[int, ...] = ()
    zeroes: bool = False

    @property
    def result(self) -> Operand:
        return self.nodes[-1].outputs[0]

    @property
    def has_halves(self) -> bool:
        """Whether the nodes round results to float16; the fused kernel does not."""
        return self.result.data_type == "float16"

    @property
    def operations(self) -> int:
        sums = self.key.desc.element_count * self.query.shape[-2]
        return 2 * (sums + self.value.desc.element_count * self.query.shape[-2])

    def problem(self, query: Traced, key: Traced, value: Traced, *operands: Traced) -> Attention:
        """The problem for `attend`. A query that sees no key gives NaN, like the softmax of its scores; or 0, if `zeroes`."""
        rank = query.rank
        batches = query.shape[0] if rank == 4 else 1
        heads, queries, size = query.shape[-3:]

        def of(array: Traced) -> Element:
            wide = widen(array)
            return lambda *position: wide[position[4 - rank :]]

        keys, others = of(key), [broadcast(widen(array)) for array in operands]

        def adjust(score: Traced, *position: Traced) -> Traced:
            for change in self.changes:
                score = change(score, position[4 - rank :], others)
            return score

        return Attention(
            *(batches, heads, heads, queries, key.shape[-1], size, value.shape[-1]),
            query=of(query),
            key=lambda b, h, k, s: keys(b, h, s, k),
            value=of(value),
            adjust=adjust if self.changes else None,
            empty=0.0 if self.zeroes else float("nan"),
            zeroes=self.zeroes,
        )

    def is_faster(self, features: Features) -> bool:
        """Whether the fused kernel is estimated to be faster.

        Few workgroups loop over long queries: with 8 heads of 12 queries and keys of size 784, an H200 takes 77 us.
        """
        if max(self.query.shape[-1], self.value.shape[-1]) > MAX_SIZE:
            return False
        if estimate(self.operations) <= MAX_OPERATIONS:
            return True
        operands = (self.query, self.key, self.value, *self.operands)
        problem = self.problem(*(of_input(Input(k, operand.desc)) for k, operand in enumerate(operands)))
        return on_tensor_cores(problem, features, Input(len(operands), self.result.desc), self.place) is not None

    def place(self, *position: Traced) -> Sequence[Traced]:
        """The position of an element in the result."""
        leading = position[4 - self.query.rank :]
        return [leading[axis] for axis in self.permutation] if self.permutation else leading


def attentions(graph: Graph, features: Features) -> list[AttentionMatch]:
    """The attentions of a graph that are faster as one kernel."""
    uses = Counter(operand for node in graph.nodes for operand in node.operands)
    uses.update(graph.outputs.values())
    readers = {operand: node for node in graph.nodes for operand in node.operands}
    outputs = set(graph.outputs.values())
    matches = (_match_of(node, uses) for node in graph.nodes if node.op is matmul)
    return [_with_transpose(match, uses, readers, outputs) for match in matches if match and match.is_faster(features)]


def _match_of(last: Node, uses: Counter[Operand]) -> AttentionMatch | None:
    """Match the attention whose last matmul is `last`."""
    weights, value = _operand(last, "a"), _operand(last, "b")
    zeroing, nodes = _zeroing_of(weights, uses), [last]
    if zeroing is not None:
        weights, zeroing_nodes = zeroing
        nodes += zeroing_nodes
    exponentials = weights.node
    if exponentials is None or exponentials.op is not softmax or uses[weights] > (1 if zeroing is None else 2):
        return None
    if exponentials.attributes["axis"] != weights.rank - 1 or not 3 <= weights.rank <= 4:
        return None
    scores = _operand(exponentials, "input")
    nodes.append(exponentials)
    operands: list[Operand] = []
    changes: list[Change] = []
    while scores.node is not None and uses[scores] == 1 and is_same_shape(scores.shape, weights.shape):
        node = scores.node
        nodes.append(node)
        if node.op is matmul:
            query, key = _operand(node, "a"), _operand(node, "b")
            leading = [operand.shape[:-2] for operand in (query, key, value)]
            is_joined = all(is_same_shape(shape, leading[0]) for shape in leading)
            if not is_joined or not is_static((query.shape[-1], value.shape[-1])) or len(operands) > MAX_OPERANDS:
                return None
            return AttentionMatch(
                *(tuple(nodes[::-1]), query, key, value, tuple(operands), tuple(changes[::-1])),
                zeroes=zeroing is not None,
            )
        step = _change(node, operands)
        if step is None:
            return None
        scores, change = step
        changes.append(change)
    return None


def _zeroing_of(weights: Operand, uses: Counter[Operand]) -> tuple[Operand, list[Node]] | None:
    """The weights whose NaN are replaced by 0, and the nodes of `where(is_nan(w), 0, w)`, the last first; None for others.

    Exporters of PyTorch write this, because softmax gives NaN where a mask leaves no key.
    """
    choice = weights.node
    if choice is None or choice.op is not choose or uses[weights] > 1:
        return None
    condition, zero, others = (_operand(choice, name) for name in ("condition", "true_value", "false_value"))
    test = condition.node
    if test is None or test.op is not is_nan or uses[condition] > 1 or test.operands != (others,):
        return None
    is_zero = zero.is_constant and not zero.shape and zero.value.item() == 0
    return (others, [choice, test]) if is_zero else None


_FUNCTIONS: dict[Any, Callable[[Traced, Traced], Traced]] = {
    add: operator.add,
    mul: operator.mul,
    div: operator.truediv,
}


def _change(node: Node, operands: list[Operand]) -> tuple[Operand, Change] | None:
    """The scores that a node reads, and the node's operation on a score. Appends the other operands to `operands`."""
    first = len(operands)
    if node.op in _FUNCTIONS:
        a, b = _operand(node, "a"), _operand(node, "b")
        is_second = node.op is not div and not _is_computed(a, node) and _is_computed(b, node)
        scores, other = (b, a) if is_second else (a, b)
        operands.append(other)
        function = _FUNCTIONS[node.op]
        return scores, lambda score, position, others: function(score, others[first](*position))
    if node.op is choose:
        condition, one, other = (_operand(node, name) for name in ("condition", "true_value", "false_value"))
        is_first = _is_computed(one, node)
        operands += [condition, other if is_first else one]

        def select(score: Traced, position: Sequence[Traced], others: Sequence[Element]) -> Traced:
            flag, alternative = (others[first + k](*position) for k in range(2))
            return where(flag != 0, *((score, alternative) if is_first else (alternative, score)))

        return one if is_first else other, select
    return None


def _is_computed(operand: Operand, reader: Node) -> bool:
    """Whether an operand may be the scores that `reader` changes."""
    is_result = operand.node is not None and operand.node.op in (matmul, add, mul, div, choose)
    return is_result and is_same_shape(operand.shape, reader.outputs[0].shape)


def _with_transpose(
    match: AttentionMatch, uses: Counter[Operand], readers: dict[Operand, Node], outputs: set[Operand]
) -> AttentionMatch:
    """Include a transpose that is the only reader of the result."""
    reader = readers.get(match.result)
    if reader is None or reader.op is not transpose or uses[match.result] > 1 or match.result in outputs:
        return match
    return replace(match, nodes=(*match.nodes, reader), permutation=tuple(reader.attributes["permutation"]))


def _operand(node: Node, name: str) -> Operand:
    operand = node.inputs[name]
    assert isinstance(operand, Operand), (node, name)
    return operand
