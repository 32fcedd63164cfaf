"""Where a compiled expression is faster than an engine's own kernel: the table that `python -m benchmarks kernels` measures.

Each line of winners.txt names an engine, an operation, a data type, the number of elements from which on the expression wins,
and how many times as fast it is there. Kernels of one engine differ little between processors next to the gains that count.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .. import composites, ops
from ..graph import Node
from ..operation import Op

MIN_GAIN = 1.2
"""Gains that are smaller do not make up for compiling an expression."""

PATH = Path(__file__).with_name("winners.txt")
"""The table. Lines that begin with # say what it was measured on."""


@dataclass(frozen=True, slots=True)
class Winner:
    """An operation that is faster as a compiled expression.

    Attributes:
        engine: the back end whose kernel is slower.
        op: the name of the operation.
        data_type: of its first operand.
        elements: the size, of the largest operand or result, from which on it wins.
        gain: the time of the kernel divided by that of the expression, at this size.
    """

    engine: str
    op: str
    data_type: str
    elements: int
    gain: float


@cache
def winners() -> list[Winner]:
    """All lines of the table."""
    lines = (line.split() for line in PATH.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    return [Winner(engine, op, type, int(elements), float(gain)) for engine, op, type, elements, gain in lines]


@cache
def _sizes(engine: str) -> dict[Op[..., Any], dict[str, int]]:
    """From which number of elements on expressions win against an engine, by operation and data type."""
    found: dict[Op[..., Any], dict[str, int]] = {}
    for winner in winners():
        if winner.engine == engine:
            found.setdefault(operation(winner.op), {})[winner.data_type] = winner.elements
    return found


def operation(name: str) -> Op[..., Any]:
    """The operation of the specification, or the composite, of a name."""
    found: Op[..., Any] = getattr(ops if hasattr(ops, name) else composites, name)
    return found


def wins(node: Node, engine: str) -> bool:
    """Whether the expression of a node is faster than the kernel of an engine."""
    sizes = _sizes(engine).get(node.op)
    if sizes is None:
        return False
    descs = [operand.desc for operand in (*node.operands, *node.outputs)]
    least = sizes.get(descs[0].data_type)
    return least is not None and max(desc.element_count for desc in descs) >= least
