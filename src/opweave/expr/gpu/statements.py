"""Statements of kernels that are written workgroup by workgroup (`workgroups`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ..ir import Expr, Index, Input


@dataclass(frozen=True, eq=False)
class Local(Input):
    """An array that each workgroup keeps for itself, float32, int32 or uint32.

    If `private`, elements are in registers, and an invocation reads only elements that it has computed.
    """

    private: bool = False


@dataclass(frozen=True, eq=False)
class Fill:
    """Compute elements of a local array: `target[axes] = body`, or `target[start + axes[0], ...] = body`."""

    target: Local
    axes: tuple[Index, ...]
    body: Expr
    start: int = 0


@dataclass(frozen=True, eq=False)
class Write:
    """Write elements of an array in memory: `target[at] = body` at all positions of `axes`."""

    target: Input
    axes: tuple[Index, ...]
    at: tuple[Expr, ...]
    body: Expr


@dataclass(frozen=True, eq=False)
class Repeat:
    """Execute statements for each `variable` in [first, end), at most `most` times.

    The limits may depend only on rows and on the variables of enclosing loops.
    """

    variable: Index
    first: Expr
    end: Expr
    most: int
    statements: list[Statement]


Statement: TypeAlias = Fill | Write | Repeat
