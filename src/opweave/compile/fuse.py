"""Find nodes worth a compiled loop: chains of element-wise operations, and operations whose kernel is slow.

The other way round, `move_to_engine` finds expressions of users that are not worth a loop between operations of the engine.

An engine reads and writes memory for each operation of a chain; a compiled loop does it once. This saves time if the operands
are large, and the saved traffic takes longer than switching to the other engine and back: threads of one engine have to sleep
before those of the other can run (`benchmarks/fusion.py`). Operations that directly follow a convolution or a matrix product
stay: engines fuse these as epilogues. A chain of any size is moved if one of its operations is in the table of `winners`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping

from .. import ops
from ..composites import is_composite
from ..core.graph import Graph, Node, Operand
from ..core.guards import estimate
from ..core.sizes import is_static
from ..support.errors import NotSupportedError
from .legalise import cut_out, legalise
from .loops import EXPRESSION, fits, formula_of, is_pointwise, may_fit, work
from .partition import LoopFusion, Segment, partition
from .winners import slowness, wins

MIN_ELEMENTS = 2**16
"""Fewest elements of a chain to take from the engine: for fewer, a pass of the engine takes no longer than starting a loop."""

MIN_NODES = 3
"""Fewest operations of a chain to take from the engine, unless it contains a user's expression."""

MIN_SAVED_BY_THREAD = 2**21
"""Minimum number of elements that a chain between operations of the engine must save writing and reading again, for each
thread: each has to sleep in one pool and to wake in the other. On two processors, chains between convolutions win if they
save 2**22 elements or more; on 16, chains that save 2**24 and 7 * 2**22 took 1.21 and 1.09 times as long
(`benchmarks/fusion.py`)."""

MAX_SAVED = 2**16
"""Maximum number of elements that a loop saves writing for the engine to run its parts: below it, starting the loop and a
second session takes longer. On two processors, the engine runs `x / (1 + exp(-x))` between two products in 0.6 to 0.8 of the
time with 2**12 elements, in the same time with 2**13 to 2**15, and in 1.3 to 1.5 times with 2**18 and more; a comparison and
`where`, whose kernels are slow, in 0.9 of the time with 2**12 elements, and in 1.5 times with 2**13."""

MAX_SAVED_WITH_NAMES = 2**18
"""The same for sizes that are those of the first run: later ones may be smaller. Small dense layers with such an operation
after each of them take the engine 0.4 to 0.9 of the time with up to 2**16 elements, and a new size needs no further memory."""

NODE_ELEMENTS = 2**12
"""Number of elements that the engine writes in the time that it takes to start an operation."""

_HEAVY = {ops.conv2d, ops.conv_transpose2d, ops.gemm, ops.matmul, ops.batch_normalization}
"""Operations into which engines fuse the next one, besides the convolutions among composites."""


def move_to_loops(
    graph: Graph, kinds: Mapping[Node, Hashable], engine: str, threads: int, most: int
) -> dict[Node, Hashable]:
    """The kinds of nodes, with `EXPRESSION` for those of `engine` that are faster in compiled loops.

    `threads` is the number of threads of an operation, and `most` the maximum work of a loop.
    """
    expressions = {node for node in graph.nodes if kinds[node] == EXPRESSION}
    # Nodes of the engine that could be compiled loops.
    able = {
        node
        for node in graph.nodes
        if kinds[node] == engine and node.op.formula is not None and not node.has_further_types
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


def move_to_engine(
    graph: Graph, kinds: Mapping[Node, Hashable], engine: str, supports: Callable[[Node], bool], most: int
) -> set[Node]:
    """The expressions between operations of an engine that should be decomposed, for the engine to run them, too.

    `supports` returns whether the engine runs a node. The work of a loop is at most `most`.
    """
    if EXPRESSION not in kinds.values() or engine not in kinds.values():
        return set()
    parts = partition(graph, kinds, LoopFusion(EXPRESSION, fits, work, most))
    of_engine = [part for part in parts if part.kind == engine]
    results = {operand for part in of_engine for operand in part.outputs}
    feeds = {operand for part in of_engine for operand in part.inputs}
    moved: set[Node] = set()
    for part in parts:
        is_between = not results.isdisjoint(part.inputs) and not feeds.isdisjoint(part.outputs)
        if part.kind == EXPRESSION and is_between and _is_faster_in_engine(part, engine, supports):
            moved.update(node for node in part.nodes if not supports(node))
    return moved


def _is_faster_in_engine(part: Segment[Node, Operand], engine: str, supports: Callable[[Node], bool]) -> bool:
    """Whether an engine runs the decomposition of a loop faster than switching to the loop and back would be."""
    has_names = not all(is_static(operand.shape) for operand in (*part.inputs, *part.outputs))
    limit = MAX_SAVED_WITH_NAMES if has_names else MAX_SAVED
    written = sum(estimate(operand.desc.element_count) for operand in part.outputs)
    if written > limit:
        return False  # without tracing: a decomposition of one operation would be rare
    from ..expr.decompose import is_slow

    if any(node.op.is_derived and is_slow(formula_of(node)) for node in part.nodes):
        return False
    try:
        nodes = legalise(cut_out(part.inputs, part.outputs)[0], supports)[0].nodes
    except NotSupportedError:
        return False
    if any(wins(node, engine) for node in nodes):
        return False
    taken = 0.0
    for node in nodes:
        size = sum(estimate(operand.desc.element_count) for operand in node.outputs)
        taken += NODE_ELEMENTS + slowness(node, engine) * size
    return taken - written <= limit


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
        producers = [operand.node for operand in node.operands if operand.node is not None]
        after_sum = any(producer in absorbed and producer.op is ops.add for producer in producers)
        if after_sum or any(_is_heavy(producer) and producer not in winners for producer in producers):
            absorbed.add(node)
    return absorbed


def _is_heavy(node: Node) -> bool:
    return node.op in _HEAVY or is_composite(node.op, "convolution", "conv_transpose")


def _is_worth_it(nodes: list[Node], expressions: set[Node], between: bool, threads: int) -> bool:
    if len(nodes) > 1 and not expressions.isdisjoint(nodes):
        return True
    elements = max(estimate(output.desc.element_count) for node in nodes for output in node.outputs)
    if between and (len(nodes) - 1) * elements < MIN_SAVED_BY_THREAD * threads:
        return False
    return len(nodes) >= MIN_NODES and elements >= MIN_ELEMENTS
