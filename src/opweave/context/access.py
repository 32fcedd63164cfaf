"""Access to the parts of graphs, which users do not see, for the rooms that inspect graphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..core.graph import Graph
from ..memory.spaces import Memory, TensorSpace
from .graph import MLGraph
from .tensor import MLTensor

if TYPE_CHECKING:
    from ..backends import Aliases
    from ..compile.uses import Use
    from ..run.program import Program


def program_of(graph: MLGraph) -> Program:
    """The program of a graph; `InvalidStateError` once the graph is destroyed or its context lost."""
    return graph._check_alive()


def recorded_graph(graph: MLGraph) -> Graph:
    """The operations of a graph as the user built it; `InvalidStateError` as for `program_of`."""
    recorded = graph._graph
    if recorded is None:
        graph._check_alive()  # raises
    assert recorded is not None
    return recorded


def is_fused(graph: MLGraph) -> bool:
    """Whether the graph was built with fusion."""
    return graph._fuse


def use_of(graph: MLGraph) -> Use | None:
    """The record of the graph's use, if other engines may be verified for it."""
    return graph._use


def replace_program(graph: MLGraph, program: Program) -> None:
    """Replace the program by another one of the same graph. Runs in progress finish with the old program."""
    graph._replace_program(program)


def memory_of(graph: MLGraph, tensor: MLTensor, label: str) -> Any:
    """The memory of a tensor of the graph's context; `ValidationError` if the tensor belongs to another context."""
    return graph.context._own(tensor, label)


def shared_pairs(
    graph: MLGraph, space: TensorSpace, inputs: Mapping[str, Memory], outputs: Mapping[str, Memory]
) -> Aliases:
    """The pairs of inputs and outputs that share memory; `ValidationError` unless the graph may update them in place."""
    return graph._check_overlap(space, inputs, outputs)
