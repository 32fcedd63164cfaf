"""Positions as linear sums, such as `2 * i + j - 1`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.size_bounds import is_always_less
from ..core.sizes import Dimension
from ..support.records import field, record
from .ir import Call, Const, Expr, Index, Load, walk
from .ranges import bounds, is_inside


@record(frozen=False, eq=True)  # not frozen: a frozen one takes four times as long to make
class Linear:
    """A linear sum: a constant, and expressions that are not sums, each with its factor, which is not 0.

    The constant and the factors may be sizes that are known only at a run.
    """

    constant: int = 0
    terms: Mapping[Expr, int] = field(default_factory=dict)

    @property
    def variables(self) -> list[Index]:
        return [term for term in self.terms if isinstance(term, Index)]

    @property
    def others(self) -> list[Expr]:
        return [term for term in self.terms if not isinstance(term, Index)]

    def plus(self, other: Linear, factor: int = 1) -> Linear:
        """`self + other * factor`."""
        terms = dict(self.terms)
        for term, count in other.terms.items():
            terms[term] = terms.get(term, 0) + count * factor
            if isinstance(terms[term], int) and not terms[term]:
                del terms[term]
        return Linear(self.constant + other.constant * factor, terms)

    def times(self, factor: int) -> Linear:
        """`self * factor`."""
        return Linear().plus(self, factor)


def is_sum(node: Expr) -> bool:
    """Whether a position is a sum, difference, negation, or multiple of others."""
    if not isinstance(node, Call) or node.type != "index":
        return False
    if node.name == "mul":
        return any(isinstance(part, Const) for part in node.parts)
    return node.name in ("add", "sub", "neg")


def combine(name: str, parts: Sequence[Linear]) -> Linear | None:
    """A function of linear sums as a linear sum; None if it is not one."""
    a, b = parts[0], parts[-1]
    match name:
        case "add":
            return a.plus(b)
        case "sub":
            return a.plus(b, -1)
        case "neg":
            return a.times(-1)
        case "mul" if not b.terms:
            return a.times(b.constant)
        case "mul" if not a.terms:
            return b.times(a.constant)
    return None


def linear(root: Expr) -> Linear:
    """A position as a linear sum."""
    if isinstance(root, Index):  # most are, and need no walk
        return Linear(0, {root: 1})
    sums: dict[Expr, Linear] = {}
    for node in walk(root, enter=lambda n: n.parts if is_sum(n) else ()):
        value = None
        if isinstance(node, Const):
            value = Linear(node.value)
        elif isinstance(node, Call) and is_sum(node):
            value = combine(node.name, [sums[part] for part in node.parts])
        sums[node] = value or Linear(0, {node: 1})
    return sums[root]


def place(load: Load) -> Linear:
    """The position of a load in its array's flat memory."""
    total, stride = Linear(), 1
    for index, size in zip(reversed(load.parts), reversed(load.source.desc.shape), strict=True):
        total = total.plus(linear(index), stride)
        stride *= size
    return total


class Positions:
    """The positions in the expressions of a kernel as linear sums, which code asks for again in each statement."""

    def __init__(self) -> None:
        self._sums: dict[Expr, Linear] = {}
        self._operands: dict[Expr, tuple[Expr, ...]] = {}
        self._in_bounds: dict[Load, bool] = {}

    def sum_of(self, node: Expr) -> Linear:
        """The position that a load reads, or that a sum is, as a linear sum."""
        total = self._sums.get(node)
        if total is None:
            total = self._sums[node] = place(node) if isinstance(node, Load) else linear(node)
        return total

    def operands_of(self, node: Expr) -> tuple[Expr, ...]:
        """The nodes that a node is computed from; sums of positions are expanded."""
        operands = self._operands.get(node)
        if operands is None:
            is_expanded = isinstance(node, Load) or is_sum(node)
            operands = self._operands[node] = tuple(self.sum_of(node).others) if is_expanded else node.parts
        return operands

    def exists(self, load: Load) -> bool:
        """Whether a load is known to be in bounds."""
        is_in_bounds = self._in_bounds.get(load)
        if is_in_bounds is None:
            pairs = zip(map(bounds, load.parts), load.source.desc.shape, strict=True)
            is_in_bounds = all(span is not None and is_inside(span, size) for span, size in list(pairs))
            self._in_bounds[load] = is_in_bounds
        return is_in_bounds


def magnitude_of(factor: Dimension) -> tuple[Any, bool]:
    """A factor without its sign, and whether it is negative for all sizes."""
    is_negative = is_always_less(factor, 0)
    return (-factor if is_negative else factor), is_negative
