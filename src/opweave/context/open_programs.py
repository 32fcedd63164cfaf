"""Programs that were compiled with names, and the sizes for which they are valid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..core.graph import Graph, Node
from ..core.guards import Guards
from ..core.size_values import values_at
from ..core.sizes import is_same_shape
from ..support.records import record

if TYPE_CHECKING:
    from ..core.specialise import SizeLimits
    from ..core.value_ranges import InputRange
    from ..run.program import Program


@record
class GraphVariant:
    """A graph whose operations are those for certain answers to comparisons of sizes.

    Attributes:
        graph: the operations.
        guards: the answers, and the sizes that gave them.
    """

    graph: Graph
    guards: Guards


@record
class OpenProgram:
    """A program that was compiled with names.

    Attributes:
        guards: the answers for which it is valid.
        graph: the graph with names, as the answers make it.
        limits: of sizes; None if the operations must be checked with each of them.
        ranges: the ranges of the values of inputs, which may depend on sizes.
        formulas: the values of operands that give sizes.
    """

    guards: Guards
    program: Program
    graph: Graph
    limits: SizeLimits | None
    ranges: Sequence[InputRange]
    formulas: tuple[Any, ...]

    def gives(self, chains: tuple[int, ...], sizes: Mapping[str, int]) -> bool:
        """Whether the operands that give sizes have the values `chains` for these sizes."""
        return gives(self.formulas, chains, sizes)


@record
class RefusedNames:
    """An attempt to compile with names whose formulas did not hold.

    Attributes:
        numbers: the names that had numbers.
        guards: the answers for which it fails.
        formulas: the values of operands that give sizes, if some of them wrap around; None if it fails whatever they are.
        reason: why, as text.
    """

    numbers: frozenset[str]
    guards: Guards
    formulas: tuple[Any, ...] | None
    reason: str

    def fails(self, numbers: frozenset[str], chains: tuple[int, ...], sizes: Mapping[str, int]) -> bool:
        """Whether the attempt would fail for these sizes, too."""
        if self.numbers != numbers or not self.guards.hold(sizes):
            return False
        return self.formulas is None or not gives(self.formulas, chains, sizes)


def gives(formulas: tuple[Any, ...], numbers: tuple[int, ...], sizes: Mapping[str, int]) -> bool:
    """Whether formulas have these numbers for sizes."""
    try:
        return bool(values_at(formulas, sizes) == numbers)
    except ArithmeticError:  # a division by 0
        return False


def chain_values(graph: Graph) -> tuple[Any, ...]:
    """The values of all operands that give sizes."""
    if not any(node.op.is_draft for node in graph.nodes):
        return ()
    from ..ops.chains import values_in  # few graphs have such operands

    return values_in(graph)


def updates_for_all(node: Node) -> bool:
    """Whether results that may use the memory of an operand have the shape of the operand for all sizes."""
    return all(is_same_shape(source.shape, result.shape) for result, source in node.updates.items())
