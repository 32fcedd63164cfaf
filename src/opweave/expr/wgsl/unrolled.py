"""Reductions of few elements, written out: devices go through short loops slowly, as they count the steps of each."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ..ir import Const, Expr, Reduce, call, substitute, unified, walk
from .positions import size_of

POSITIONS, NODES = 32, 600
"""Reductions of so many elements, which take so many nodes in all, are written out."""

_COMBINED = {"sum": "add", "product": "mul", "max": "max", "min": "min"}


def written_out(bodies: Sequence[Expr]) -> tuple[Expr, ...]:
    """The same expressions, in which short reductions are sums (or products, …) of their elements."""
    made: dict[Expr, Expr] = {}
    for node in walk(*bodies):
        parts = tuple(made[part] for part in node.parts)
        same = all(a is b for a, b in zip(parts, node.parts, strict=True))
        made[node] = node if same else node.rebuilt(parts)
        rebuilt = made[node]
        if isinstance(rebuilt, Reduce) and _is_short(rebuilt):
            made[node] = _elements(rebuilt)
    return unified(*(made[body] for body in bodies))


def _is_short(node: Reduce) -> bool:
    size = size_of(node.variables)
    return node.reduction in _COMBINED and size <= POSITIONS and size * len(walk(node.body)) <= NODES


def _elements(node: Reduce) -> Expr:
    terms = []
    for position in itertools.product(*(range(variable.extent) for variable in node.variables)):
        values: dict[Expr, Expr] = {v: Const(p, "index") for v, p in zip(node.variables, position, strict=True)}
        terms.append(substitute(node.body, values))
    while len(terms) > 1:  # a tree, not a chain, whose errors are smaller
        pairs = [call(_COMBINED[node.reduction], *terms[k : k + 2]) for k in range(0, len(terms) - 1, 2)]
        terms = pairs + terms[len(terms) - len(terms) % 2 :]
    return terms[0]
