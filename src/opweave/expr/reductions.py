"""Rewrite reductions: unroll them, divide them into parts, or store their results."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from ..core.dtypes import FLOATS, INFO, DataType
from ..core.sizes import is_same_size
from ..support.records import record
from .ir import Cast, Const, Expr, Index, Reduce, Reduction, Stored, Type, call, storage, substitute, unify, walk

COMBINE = {"sum": "add", "product": "mul", "max": "max", "min": "min"}
"""The function that combines two elements of a reduction."""


def neutral(reduction: Reduction, type: Type) -> Const:
    """The value of an empty reduction."""
    if reduction in ("sum", "product"):
        return Const(int(reduction == "product"), type)
    least = reduction.endswith("max")
    if type in FLOATS:
        return Const(-math.inf if least else math.inf, type)
    info = INFO[storage(type)]
    return Const(info.lowest if least else info.highest, type)


def unroll(node: Reduce) -> Expr:
    """Unroll a reduction into one expression."""
    terms = []
    for position in itertools.product(*(range(variable.extent) for variable in node.variables)):
        values: dict[Expr, Expr] = {v: Const(p, "index") for v, p in zip(node.variables, position, strict=True)}
        terms.append(substitute(node.body, values))
    if node.reduction.startswith("arg_"):
        return _position_of_extreme(node.reduction, terms)
    while len(terms) > 1:  # a balanced tree has smaller rounding errors than a chain, and more parallelism
        pairs = [call(COMBINE[node.reduction], *terms[k : k + 2]) for k in range(0, len(terms) - 1, 2)]
        terms = pairs + terms[len(terms) - len(terms) % 2 :]
    return terms[0]


def _position_of_extreme(reduction: Reduction, terms: Sequence[Expr]) -> Expr:
    """The first position of the extreme term, and of NaN if there is one."""
    best: Expr = terms[0]
    place: Expr = Const(0, "int32")
    for number, term in enumerate(terms[1:], 1):
        is_better = call("greater" if reduction == "arg_max" else "lesser", term, best)
        if term.type in FLOATS:
            is_first_nan = call("logical_and", call("is_nan", term), call("logical_not", call("is_nan", best)))
            is_better = call("logical_or", is_better, is_first_nan)
        best, place = call("where", is_better, term, best), call("where", is_better, Const(number, "int32"), place)
    return place


def unroll_short(bodies: Sequence[Expr], is_short: Callable[[Reduce], bool]) -> tuple[Expr, ...]:
    """Unroll the short reductions of expressions."""
    rewritten: dict[Expr, Expr] = {}
    for node in walk(*bodies):
        rebuilt = node.rebuild(tuple(rewritten[part] for part in node.parts))
        rewritten[node] = unroll(rebuilt) if isinstance(rebuilt, Reduce) and is_short(rebuilt) else rebuilt
    return unify(*(rewritten[body] for body in bodies))


def stored_value(node: Expr) -> Stored:
    """An array of the values of `node`. Its axes are the free variables of `node` with an extent above 1."""
    variables = (v for v in node.free if not is_same_size(v.extent, 1))
    axes = tuple(sorted(variables, key=lambda v: (v.axis == 0, v.axis, v.serial)))
    body = substitute(node, {v: Const(0, "index") for v in node.free if is_same_size(v.extent, 1)})
    # Intermediate float16 values stay float32: they are rounded when the result is stored.
    type: DataType = "float32" if storage(node.type) == "float16" else storage(node.type)
    return Stored(axes, Cast(body, type) if type != node.type else body)


@record(eq=True, slots=False)
class Split:
    """A reduction variable divided into parts of equal size, from `start` on.

    `index` is the position in the whole range, clamped to the range. `inside` is the condition that it is in range before
    clamping; None if the size divides the extent.
    """

    part: Index
    position: Index
    start: Expr
    index: Expr
    inside: Expr | None

    def mask(self, node: Reduce, variable: Index) -> Expr:
        """The body of `node` at `index`, neutral at positions out of range."""
        body = substitute(node.body, {variable: self.index})
        return body if self.inside is None else call("where", self.inside, body, neutral(node.reduction, node.type))


def split(variable: Index, count: int) -> Split:
    """Divide a variable into at most `count` parts."""
    size = -(-variable.extent // count)
    part, position = Index(-(-variable.extent // size)), Index(size)
    start = call("mul", part, Const(size, "index"))
    index = call("add", start, position)
    if is_same_size(part.extent * size, variable.extent):
        return Split(part, position, start, index, None)
    inside = call("lesser", index, Const(variable.extent, "index"))
    return Split(part, position, start, call("min", index, Const(variable.extent - 1, "index")), inside)
