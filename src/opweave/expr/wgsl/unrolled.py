"""Unroll short reductions, whose loops are slow on GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir import Expr, Reduce, unified, walk
from ..reductions import COMBINE, unrolled
from .positions import size_of

MAX_POSITIONS = 32
"""Reductions of up to this many elements are unrolled."""
MAX_NODES = 600
"""Maximum size of an unrolled reduction, because compilers of shaders take time for each expression."""


def written_out(bodies: Sequence[Expr]) -> tuple[Expr, ...]:
    """Replace short reductions by expressions of their elements."""
    made: dict[Expr, Expr] = {}
    for node in walk(*bodies):
        parts = tuple(made[part] for part in node.parts)
        same = all(a is b for a, b in zip(parts, node.parts, strict=True))
        made[node] = node if same else node.rebuilt(parts)
        rebuilt = made[node]
        if isinstance(rebuilt, Reduce) and _is_short(rebuilt):
            made[node] = unrolled(rebuilt)
    return unified(*(made[body] for body in bodies))


def _is_short(node: Reduce) -> bool:
    size = size_of(node.variables)
    return node.reduction in COMBINE and size <= MAX_POSITIONS and size * len(walk(node.body)) <= MAX_NODES
