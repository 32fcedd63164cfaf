"""Find nodes worth a compiled loop: chains of element-wise operations, and operations whose kernel is slow.

An engine reads and writes memory for each operation of a chain; a compiled loop does it once. This saves time if the operands
are large, and the saved traffic takes longer than switching to the other engine and back: threads of one engine have to sleep
before those of the other can run (`benchmarks/fusion.py`). Operations that directly follow a convolution or a matrix product
stay: engines fuse these as epilogues. A chain of any size is moved if one of its operations is in the table of `winners`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from .. import ops
from ..core.graph import Graph, Node, is_beyond
from ..core.sizes import estimate
from .loops import EXPRESSION, fits, is_pointwise, may_fit, work
from .partition import LoopFusion, partition
from .winners import wins

MIN_ELEMENTS = 2**16
"""Fewest elements of a chain to take from the engine: for fewer, a pass of the engine takes no longer than starting a loop."""

MIN_NODES = 3
"""Fewest operations of a chain to take from the engine, unless it contains a user's expression."""

MIN_SAVED_BY_THREAD = 2**21
"""Minimum number of elements that a chain between operations of the engine must save writing and reading again, for each
thread: each has to sleep in one pool and to wake in the other. On two processors, chains between convolutions win if they
save 2**22 elements or more; on 16, chains that save 2**24 and 7 * 2**22 took 1.21 and 1.09 times as long
(`benchmarks/fusion.py`)."""

_HEAVY = {ops.conv2d, ops.conv_transpose2d, ops.gemm, ops.matmul, ops.batch_normalization}
"""Operations into which engines fuse the next one."""


def move_to_loops(
    graph: Graph, kinds: Mapping[Node, Hashable], engine: str, threads: int, most: int
) -> dict[Node, Hashable]:
    """The kinds of nodes, with `EXPRESSION` for those of `engine` that are faster in compiled loops.

    An operation may use `threads`. The work of a loop is at most `most`.
    """
    expressions = {node for node in graph.nodes if kinds[node] == EXPRESSION}
    # Nodes of the engine that could be compiled loops.
    able = {
        node for node in graph.nodes if kinds[node] == engine and node.op.formula is not None and not is_beyond(node)
    }
    winners = {node for node in able if wins(node, engine)}
    is_large = any(estimate(output.desc.element_count) >= MIN_ELEMENTS for n in graph.nodes for output in n.outputs)
    if not is_large and not winners and not expressions:
        return dict(kinds)  # as `_is_worth_it` would say of each loop
    absorbed = _epilogues(graph, winners)
    chains = {node for node in able if not node.op.is_alternative and node not in absorbed}
    loopable = chains | winners | expressions

    def is_candidate(node: Node) -> bool:
        if node in winners:
            return node not in absorbed or not is_pointwise(node)
        return node in chains and is_pointwise(node)

    # Tracing expressions takes most of the time here, so it is done only where loops may be worth it. A loop is a part of
    # one of these groups.
    candidates: set[Node] = set()
    for group in _groups_of(node for node in graph.nodes if node in loopable):
        if not winners.isdisjoint(group) or _is_worth_it(group, expressions, False, threads):
            candidates.update(filter(is_candidate, group))
    in_loops = candidates | expressions
    sides = {node: "loop" if node in in_loops else "engine" for node in graph.nodes}
    parts = partition(graph, sides, LoopFusion("loop", fits, work, most))
    of_engine = [part for part in parts if part.kind == "engine"]
    results = {operand for part in of_engine for operand in part.outputs}
    feeds = {operand for part in of_engine for operand in part.inputs}
    moved: set[Node] = set()
    for part in parts:
        if part.kind == "loop":
            between = not results.isdisjoint(part.inputs) and not feeds.isdisjoint(part.outputs)
            if not winners.isdisjoint(part.nodes) or _is_worth_it(part.nodes, expressions, between, threads):
                moved.update(candidates.intersection(part.nodes))
    return {**kinds, **dict.fromkeys(moved, EXPRESSION)}


def _groups_of(nodes: Iterable[Node]) -> list[list[Node]]:
    groups: dict[Node, list[Node]] = {}
    for node in nodes:
        group = groups[node] = [node]
        for operand in node.operands:
            if operand.node not in groups or not may_fit(operand.node, node):
                continue
            other = groups[operand.node]
            if other is not group:
                small, group = sorted((group, other), key=len)
                group += small
                groups.update(dict.fromkeys(small, group))
    return list({id(group): group for group in groups.values()}.values())


def _epilogues(graph: Graph, winners: set[Node]) -> set[Node]:
    """The operations that engines fuse as epilogues into a convolution or matrix product: bias or sum, activation.

    Operations behind products that are faster as loops are left out.
    """
    absorbed: set[Node] = set()
    for node in graph.nodes:
        makers = [operand.node for operand in node.operands if operand.node is not None]
        after_sum = any(maker in absorbed and maker.op is ops.add for maker in makers)
        if after_sum or any(maker.op in _HEAVY and maker not in winners for maker in makers):
            absorbed.add(node)
    return absorbed


def _is_worth_it(nodes: list[Node], expressions: set[Node], between: bool, threads: int) -> bool:
    if len(nodes) > 1 and not expressions.isdisjoint(nodes):
        return True
    elements = max(estimate(output.desc.element_count) for node in nodes for output in node.outputs)
    if between and (len(nodes) - 1) * elements < MIN_SAVED_BY_THREAD * threads:
        return False
    return len(nodes) >= MIN_NODES and elements >= MIN_ELEMENTS
