"""Positions as linear sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..ir import Call, Const, Expr, Index, Load, walk

Linear: TypeAlias = tuple[int, dict[Expr, int]]
"""A constant, and a factor for each expression that is not a sum itself."""


def is_sum(node: Expr) -> bool:
    """Whether an index is a sum, difference, negation, or multiple of others."""
    if not isinstance(node, Call) or node.type != "index":
        return False
    if node.name == "mul":
        return any(isinstance(part, Const) for part in node.parts)
    return node.name in ("add", "sub", "neg")


def linear(root: Expr) -> Linear:
    """An index as a linear sum."""
    found: dict[Expr, Linear] = {}
    for node in walk(root, enter=lambda n: n.parts if is_sum(n) else ()):
        if isinstance(node, Const):
            found[node] = int(node.value), {}
            continue
        if not is_sum(node):
            found[node] = 0, {node: 1}
            continue
        assert isinstance(node, Call)
        first, *others = (found[part] for part in node.parts)
        if node.name == "neg":
            found[node] = plus((0, {}), first, -1)
        elif node.name == "mul":
            constant, scaled = (first, others[0]) if not first[1] else (others[0], first)
            found[node] = plus((0, {}), scaled, constant[0])
        else:
            found[node] = plus(first, others[0], 1 if node.name == "add" else -1)
    return found[root]


def plus(a: Linear, b: Linear, factor: int) -> Linear:
    """`a + b * factor`."""
    factors = dict(a[1])
    for atom, own in b[1].items():
        factors[atom] = factors.get(atom, 0) + own * factor
    return a[0] + b[0] * factor, factors


def place(load: Load) -> Linear:
    """The flat position of a load."""
    total: Linear = (0, {})
    stride = 1
    for index, size in zip(reversed(load.parts), reversed(load.source.desc.shape), strict=True):
        total = plus(total, linear(index), stride)
        stride *= size
    return total


@dataclass(frozen=True, eq=False)
class Grid:
    """A domain whose positions follow from one flat number.

    Attributes:
        axes: the last one changes fastest.
        flat: text of the flat number, a u32.
        letter: index of the letter that names the first axis.
        prefix: prefix of the names.
    """

    axes: tuple[Index, ...]
    flat: str = "flat"
    letter: int = 0
    prefix: str = ""

    @property
    def size(self) -> int:
        """The number of positions."""
        return math.prod(axis.extent for axis in self.axes)


def size_of(variables: Sequence[Index] | frozenset[Index]) -> int:
    """The number of positions of variables."""
    return math.prod(variable.extent for variable in variables)
