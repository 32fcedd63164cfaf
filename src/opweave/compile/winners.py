"""Operations that are faster as compiled expressions than by an engine's kernel: the table of `python -m benchmarks kernels`.

Each line of winners.txt is a `Winner`. Kernels of one engine differ little between processors next to the gains that count.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from .. import composites, ops
from ..composites import is_composite
from ..core.graph import Node
from ..core.guards import estimate
from ..core.operation import Op
from ..core.sizes import is_same_size
from ..support.records import record

Row = TypeVar("Row")

MIN_GAIN = 1.5
"""Minimum gain of an expression. Smaller ones do not pay for compiling it, and for fusions that the engine would have done."""

MIN_GAIN_OF_PRODUCTS = 1.2
"""Minimum gain of a matrix product. Its loop includes an epilogue that the engine would have fused, such as an activation."""

PATH = os.path.join(os.path.dirname(__file__), "winners.txt")


@record(eq=True)
class Winner:
    """An operation that is faster as a compiled expression than as the kernel of an engine.

    Attributes:
        data_type: of its last operand.
        elements: the smallest size of its operands with which it wins; for a product, the size of the matrix.
        gain: time of the kernel / time of the expression, at this size.
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
    with open(PATH, encoding="utf-8") as file:
        lines = [line.split() for line in file if not line.startswith("#")]
    return [Winner(engine, op, form, type, int(least), float(gain)) for engine, op, form, type, least, gain in lines]


@cache
def _sizes(engine: str) -> dict[str, dict[tuple[str, str], int]]:
    """Smallest number of elements with which expressions beat an engine, by name of the operation, form and data type."""
    sizes: dict[str, dict[tuple[str, str], int]] = {}
    for winner in winners():
        if winner.engine == engine:
            sizes.setdefault(winner.op, {})[winner.form, winner.data_type] = winner.elements
    return sizes


def operation(name: str) -> Op[..., Any]:
    """The operation of the specification, or the composite, of a name."""
    op: Op[..., Any] = getattr(composites if name in composites.__all__ else ops, name)
    return op


def is_own(op: Op[..., Any]) -> bool:
    """Whether an operation is one of the specification, or a composite, and not one of a user with such a name."""
    return getattr(composites if op.name in composites.__all__ else ops, op.name, None) is op


def min_gain(op: str) -> float:
    """The smallest gain of an operation of this name that the table may have."""
    return MIN_GAIN_OF_PRODUCTS if operation(op) is ops.gemm else MIN_GAIN


def form(node: Node) -> str:
    """The kernel of an engine that a node would use, as far as kernels differ in speed.

    "last" or "other" for an operation along axes; "row" for the product of one row with a constant transposed matrix (GEMV),
    which takes as long as reading the matrix once in memory order; "matrix" for other products; the mode of `grid_sample`, but
    "zeros" for linear interpolation of images between zeros; "any" for all else.
    """
    if is_composite(node.op, "grid_sample"):
        mode: str = node.attributes["mode"]
        is_zeros = mode == "linear" and node.attributes["padding_mode"] == "zeros" and node.operands[0].rank == 4
        return "zeros" if is_zeros else mode
    if node.op is ops.gemm:
        _, matrix, *_ = node.operands
        is_row = is_same_size(node.outputs[0].shape[0], 1) and node.attributes["b_transpose"] and matrix.is_constant
        return "row" if is_row else "matrix"
    axes = node.attributes.get("axes", node.attributes.get("axis"))
    if axes is None:
        return "any"
    last = node.operands[0].rank - 1
    return "last" if last in (axes if isinstance(axes, Sequence) else (axes,)) else "other"


def elements(node: Node) -> int | None:
    """The size by which the table decides about a node; None for calls that are not measured.

    In calls other than matrix products and `grid_sample`, the operands have one shape: for a constant exponent, engines have
    other kernels.
    """
    if is_composite(node.op, "grid_sample"):
        return node.outputs[0].desc.element_count
    if node.op is ops.gemm:
        _, matrix, *_ = node.operands
        return matrix.desc.element_count
    operands = list(node.operands)
    return operands[-1].desc.element_count if len({operand.shape for operand in operands}) == 1 else None


@cache
def _gains(engine: str) -> dict[str, dict[str, float]]:
    """Largest gain of expressions over an engine, by name of the operation and form."""
    gains: dict[str, dict[str, float]] = {}
    for winner in winners():
        if winner.engine == engine:
            forms = gains.setdefault(winner.op, {})
            forms[winner.form] = max(winner.gain, forms.get(winner.form, 0))
    return gains


def _row_of(node: Node, rows: Mapping[str, Row]) -> Row | None:
    """The entry of a node's operation, unless that is an operation of a user; composites without an entry are not imported."""
    row = rows.get(node.op.name)
    return row if row is not None and operation(node.op.name) is node.op else None


def slowness(node: Node, engine: str) -> float:
    """The time of an engine's kernel as a multiple of a loop's, as far as the table says; else 1."""
    gains = _row_of(node, _gains(engine))
    return 1 if gains is None else gains.get(form(node), 1)


def wins(node: Node, engine: str) -> bool:
    """Whether the expression of a node is faster than an engine's kernel."""
    sizes = _row_of(node, _sizes(engine))
    if sizes is None:
        return False
    size = elements(node)
    least = sizes.get((form(node), list(node.operands)[-1].data_type))
    return least is not None and size is not None and estimate(size) >= least
