"""Find nodes worth a compiled loop: chains of element-wise operations, and operations whose kernel is slow.

An engine reads and writes memory for each operation of a chain; a compiled loop does it once. That pays if the operands are
large, and the saved traffic takes longer than switching to the other engine and back: threads of one engine have to sleep
before those of the other can run (`benchmarks/fusion.py`). Operations that directly follow a convolution or a matrix product
stay: engines fuse these as epilogues. A chain of any size is moved if one of its operations is in the table of `winners`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .. import ops
from ..core.graph import Graph, Node
from .choose import Chooser
from .partition import Joining, partition

MIN_ELEMENTS = 2**16
"""Chains over fewer elements stay with the engine: a pass over them takes no longer than starting a loop."""

MIN_NODES = 3
"""Chains of fewer operations stay with the engine, unless a user's expression is among them."""

MIN_SAVED_BY_THREAD = 2**21
"""Minimum number of elements that a chain between operations of the engine must save writing and reading again, for each
thread: each has to sleep in one pool and to wake in the other. On two processors, chains between convolutions win if they
save 2**22 elements or more; on 16, chains that save 2**24 and 7 * 2**22 took 1.21 and 1.09 times as long
(`benchmarks/fusion.py`)."""

_HEAVY = {ops.conv2d, ops.conv_transpose2d, ops.gemm, ops.matmul, ops.batch_normalization}
"""Operations into which engines fuse the next one."""


def find_fusible(graph: Graph, chooser: Chooser, most: int) -> set[Node]:
    """The nodes that an engine could run, but that are faster in loops, whose work (`Chooser.work`) is at most `most`."""
    winners = set(filter(chooser.wins, graph.nodes))
    is_large = any(output.desc.element_count >= MIN_ELEMENTS for node in graph.nodes for output in node.outputs)
    if not is_large and not winners and not any(map(chooser.is_expression, graph.nodes)):
        return set()  # as `_is_worth_it` would say of each loop
    absorbed = _epilogues(graph, winners)

    def may_be_candidate(node: Node) -> bool:
        if node in winners:
            return True
        return not node.op.is_alternative and node not in absorbed and chooser.could_be_loop(node)

    def is_candidate(node: Node) -> bool:
        if node in winners:
            return node not in absorbed or not chooser.is_pointwise(node)
        return may_be_candidate(node) and chooser.is_pointwise(node)

    # Tracing expressions takes most of the time here, so it is done only where loops may be worth it. A loop is a part of
    # one of these groups.
    groups = _groups_of(node for node in graph.nodes if may_be_candidate(node) or chooser.is_expression(node))
    candidates: set[Node] = set()
    for group in groups:
        if not winners.isdisjoint(group) or _is_worth_it(group, chooser.is_expression, False, chooser.threads):
            candidates.update(filter(is_candidate, group))

    def kind(node: Node) -> str:
        return "loop" if node in candidates or chooser.is_expression(node) else "engine"

    parts = partition(graph, kind, Joining("loop", chooser.fits, chooser.work, most))
    engine = {operand for part in parts if part.kind == "engine" for operand in part.outputs}
    feeds = {operand for part in parts if part.kind == "engine" for operand in part.inputs}
    chosen: set[Node] = set()
    for part in parts:
        between = not engine.isdisjoint(part.inputs) and not feeds.isdisjoint(part.outputs)
        if part.kind != "loop":
            continue
        if not winners.isdisjoint(part.nodes) or _is_worth_it(
            part.nodes, chooser.is_expression, between, chooser.threads
        ):
            chosen.update(node for node in part.nodes if node in candidates)
    return chosen


def _groups_of(nodes: Iterable[Node]) -> list[list[Node]]:
    groups: dict[Node, list[Node]] = {}
    for node in nodes:
        group = groups[node] = [node]
        for operand in node.operands:
            if operand.node not in groups or not Chooser.may_fit(operand.node, node):
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


def _is_worth_it(nodes: list[Node], is_expression: Callable[[Node], bool], between: bool, threads: int) -> bool:
    if len(nodes) > 1 and any(map(is_expression, nodes)):
        return True
    elements = max(output.desc.element_count for node in nodes for output in node.outputs)
    if between and (len(nodes) - 1) * elements < MIN_SAVED_BY_THREAD * threads:
        return False
    return len(nodes) >= MIN_NODES and elements >= MIN_ELEMENTS
