"""Where a compiled expression is faster than an engine's own kernel: the table that `python -m benchmarks kernels` measures.

Each line of winners.txt is a `Winner`. Kernels of one engine differ little between processors next to the gains that count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .. import composites, ops
from ..core.graph import Node
from ..core.operation import Op

MIN_GAIN = 1.5
"""Gains that are smaller do not make up for compiling an expression, and for what the engine would have merged with it."""

MIN_GAIN_OF_PRODUCTS = 1.2
"""Likewise for matrix products: the loop does what the engine would have merged with them, such as an activation."""

PATH = Path(__file__).with_name("winners.txt")
"""The table. Lines that begin with # say what it was measured on."""


@dataclass(frozen=True, slots=True)
class Winner:
    """An operation that is faster as a compiled expression.

    Attributes:
        engine: the back end whose kernel is slower.
        op: the name of the operation.
        form: which of its calls, see `form`.
        data_type: of its last operand.
        elements: the size of its operands from which on it wins; of a product, that of the matrix.
        gain: the time of the kernel divided by that of the expression, at this size.
    """

    engine: str
    op: str
    form: str
    data_type: str
    elements: int
    gain: float


@cache
def winners() -> list[Winner]:
    """All lines of the table."""
    lines = (line.split() for line in PATH.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    return [Winner(engine, op, form, type, int(least), float(gain)) for engine, op, form, type, least, gain in lines]


@cache
def _sizes(engine: str) -> dict[Op[..., Any], dict[tuple[str, str], int]]:
    """From which number of elements on expressions win against an engine, by operation, form and data type."""
    found: dict[Op[..., Any], dict[tuple[str, str], int]] = {}
    for winner in winners():
        if winner.engine == engine:
            found.setdefault(operation(winner.op), {})[winner.form, winner.data_type] = winner.elements
    return found


def operation(name: str) -> Op[..., Any]:
    """The operation of the specification, or the composite, of a name."""
    found: Op[..., Any] = getattr(composites if name in composites.__all__ else ops, name)
    return found


def min_gain(op: str) -> float:
    """The smallest gain of an operation of this name that the table may have."""
    return MIN_GAIN_OF_PRODUCTS if operation(op) is ops.gemm else MIN_GAIN


def form(node: Node) -> str:
    """Which kernel of an engine a node would use, as far as these differ in speed.

    Returns:
        "last" or "other" for an operation that goes along axes; "row" for the product of one row with a constant matrix that
        is transposed, which takes as long as it takes to read the matrix once, in the order in which it lies in memory;
        "matrix" for other products; "any" for all else.
    """
    if node.op is ops.gemm:
        _, matrix, *_ = node.operands
        is_row = node.outputs[0].shape[0] == 1 and node.attributes["b_transpose"] and matrix.is_constant
        return "row" if is_row else "matrix"
    axes = node.attributes.get("axes", node.attributes.get("axis"))
    if axes is None:
        return "any"
    last = node.operands[0].rank - 1
    return "last" if last in (axes if isinstance(axes, Sequence) else (axes,)) else "other"


def elements(node: Node) -> int | None:
    """The size by which the table decides about a node; None for calls that are not measured.

    Of a matrix product it is the size of the matrix. Else all operands have one shape: for others, such as a constant
    exponent, engines have other kernels.
    """
    if node.op is ops.gemm:
        _, matrix, *_ = node.operands
        return matrix.desc.element_count
    operands = list(node.operands)
    return operands[-1].desc.element_count if len({operand.shape for operand in operands}) == 1 else None


def wins(node: Node, engine: str) -> bool:
    """Whether the expression of a node is faster than the kernel of an engine."""
    sizes = _sizes(engine).get(node.op)
    if sizes is None:
        return False
    size = elements(node)
    least = sizes.get((form(node), list(node.operands)[-1].data_type))
    return least is not None and size is not None and size >= least
