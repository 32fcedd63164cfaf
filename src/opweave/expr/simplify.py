"""Simplify index arithmetic.

Composed operations leave positions such as `((i * 6 + j) // 6) % 4`, which equals `i % 4` for `j` in [0, 6), and conditions
that are always true. Positions become linear sums. Terms that are multiples of a divisor are moved out of its quotients and
remainders. Comparisons, clamps and `where` are evaluated if the ranges of the positions determine the result. Arithmetic on
the elements of arrays is not changed.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ..core.dtypes import INFO
from ..core.guards import without_deciding
from ..core.size_bounds import is_always_less, lower_bound
from ..core.sizes import Size, is_same_size
from .ir import Call, Cast, Const, Expr, Formula, Index, Load, Output, Reduce, Stored, call, unify, walk
from .linear import Linear, combine, magnitude_of
from .ranges import Range, bounds, greatest, is_inside, least

_REFLECTED = {"greater": "lesser", "lesser_or_equal": "greater_or_equal"}
"""Comparisons -> the same with swapped operands: a > b is b < a."""
_ORDERINGS = frozenset({*_REFLECTED, *_REFLECTED.values()})
_COMPARISONS = _ORDERINGS | {"equal", "not_equal"}


class _Simplifier:
    """Rewrites nodes; equal calls become one node, so that terms can cancel. `stored` arrays are replaced by new ones."""

    def __init__(self) -> None:
        self.stored: dict[Stored, Stored] = {}
        self._rewritten: dict[Expr, Expr] = {}  # original node -> rewritten node
        self._sums: dict[Expr, Linear] = {}  # rewritten node -> the sum that it computes
        self._calls: dict[tuple[object, ...], Expr] = {}  # function and arguments -> their only node
        self._ranges: dict[Expr, Range | None] = {}

    def rewrite(self, root: Expr) -> Expr:
        """Return `root` with simpler positions and conditions."""
        for node in walk(root, enter=lambda n: () if n in self._rewritten else n.parts):
            if node not in self._rewritten:
                self._rewritten[node] = self._rewrite_node(node, tuple(self._rewritten[part] for part in node.parts))
        return self._rewritten[root]

    def _rewrite_node(self, node: Expr, parts: tuple[Expr, ...]) -> Expr:
        match node:
            case Index(extent=1):
                return Const(0, "index")
            case Load(source=Stored() as source):
                return Load(self.stored.get(source, source), parts)
            case Reduce():
                return _reduction_of(node, parts[0])
            case Call():
                return self._call(node.name, parts, node)
        return node.rebuild(parts)

    def _call(self, name: str, parts: tuple[Expr, ...], node: Expr) -> Expr:
        first = parts[0]
        if name == "where" and isinstance(first, Const):
            return parts[1] if first.value else parts[2]
        if name in ("logical_and", "logical_or"):
            return _and_or(name, parts)
        if name in _COMPARISONS:
            parts = _without_cast(parts)
        if parts[-1].type == "index":
            if name in _ORDERINGS:
                return self._compare(name, parts)
            if node.type == "index":
                return self._index(name, parts)
        return node.rebuild(parts)

    # Conditions ------------------------------------------------------------------------------------------------------

    def _compare(self, name: str, parts: tuple[Expr, ...]) -> Expr:
        """A comparison of positions; a constant if their ranges determine the result."""
        a, b = reversed(parts) if name in _REFLECTED else parts
        is_lesser = _REFLECTED.get(name, name) == "lesser"  # a < b; otherwise a >= b
        difference = self._range_of(self._sum(a).plus(self._sum(b), -1))
        if difference is not None:
            if is_always_less(difference[1], 0):
                return Const(is_lesser, "bool")
            if lower_bound(difference[0]) >= 0:
                return Const(not is_lesser, "bool")
        return call(name, *parts)

    # Positions -------------------------------------------------------------------------------------------------------

    def _index(self, name: str, parts: tuple[Expr, ...]) -> Expr:
        sums = [self._sum(part) for part in parts]
        total = combine(name, sums)
        if total is not None:
            return self._expression(total)
        match name:
            case "floor_div" if not sums[1].terms and lower_bound(sums[1].constant) >= 1:
                return self._expression(self._quotient(sums[0], sums[1].constant))
            case "mod" if not sums[1].terms and lower_bound(sums[1].constant) >= 1:
                return self._expression(self._remainder(sums[0], sums[1].constant))
            case "max" | "min":
                return self._extremum(name, parts, sums)
            case "abs":
                ends = self._range_of(sums[0])
                if ends is not None and lower_bound(ends[0]) >= 0:
                    return parts[0]
        return self._unique(name, *parts)

    def _quotient(self, dividend: Linear, divisor: int) -> Linear:
        """`dividend // divisor`."""
        whole, remainder = _divide(dividend, divisor)
        quotient = _constant_quotient(self._range_of(remainder), divisor)
        if quotient is not None:
            return whole.plus(Linear(quotient))
        common, remainder, _ = self._common_factor(remainder, divisor)  # (g * x + y) // (g * n) is x // n
        divisor //= common
        inner = _only_term(remainder)
        if isinstance(inner, Call) and inner.name == "floor_div" and isinstance(inner.parts[1], Const):
            # x // m // n is x // (m * n)
            remainder, divisor = self._sum(inner.parts[0]), divisor * inner.parts[1].value
        return whole.plus(self._call_as_sum("floor_div", remainder, divisor))

    def _remainder(self, dividend: Linear, divisor: int) -> Linear:
        """`dividend % divisor`."""
        _, remainder = _divide(dividend, divisor)
        quotient = _constant_quotient(self._range_of(remainder), divisor)
        if quotient is not None:
            return remainder.plus(Linear(-quotient * divisor))
        common, remainder, below = self._common_factor(remainder, divisor)  # (g * x + y) % (g * n) is g * (x % n) + y
        return self._call_as_sum("mod", remainder, divisor // common).times(common).plus(below)

    def _common_factor(self, value: Linear, divisor: int) -> tuple[int, Linear, Linear]:
        """Split `value` into `g * x + y` with `y` in [0, g); return `g`, `x` and `y`.

        `g` is the largest common divisor of `divisor` and a factor in `value` for which this is possible; 1 if there is none.
        """
        for common in _common_divisors(value, divisor):
            multiple, below = _divide(value, common)
            ends = self._range_of(below)
            if ends is not None and is_inside(ends, common):
                return common, multiple, below
        return 1, value, Linear()

    def _extremum(self, name: str, parts: tuple[Expr, ...], sums: list[Linear]) -> Expr:
        difference = self._range_of(sums[0].plus(sums[1], -1))
        if difference is not None:
            if lower_bound(difference[0]) >= 0:
                return parts[0] if name == "max" else parts[1]
            if lower_bound(-difference[1]) >= 0:
                return parts[1] if name == "max" else parts[0]
        return self._unique(name, *parts)

    # Sums ------------------------------------------------------------------------------------------------------------

    def _sum(self, node: Expr) -> Linear:
        """The sum that a rewritten node computes."""
        if isinstance(node, Const):
            constant: Any = node.value if isinstance(node.value, Size) else int(node.value)
            return Linear(constant)
        return self._sums.get(node) or Linear(0, {node: 1})

    def _expression(self, value: Linear) -> Expr:
        """Build the node that computes a sum."""
        value = self._recombine(value)
        only = _only_term(value)
        if only is not None:
            return only
        if not value.terms:
            return Const(value.constant, "index")
        ordered = sorted(value.terms.items(), key=lambda item: is_always_less(item[1], 0))  # negative terms last
        pieces = [
            (t if is_same_size(n, 1) else self._unique("mul", t, Const(n, "index")), is_negative)
            for t, n, is_negative in ((t, *magnitude_of(n)) for t, n in ordered)
        ]
        constant, is_subtracted = magnitude_of(value.constant)
        if pieces[0][1] and constant != 0:  # 5 - x rather than -x + 5
            pieces.insert(0, (Const(value.constant, "index"), False))
        elif constant != 0:
            pieces.append((Const(constant, "index"), is_subtracted))
        (first, is_negative), *others = pieces
        result = self._unique("neg", first) if is_negative else first
        for piece, is_negative in others:
            result = self._unique("sub" if is_negative else "add", result, piece)
        self._sums[result] = value
        return result

    def _recombine(self, value: Linear) -> Linear:
        """Replace `x // n * n + x % n` by `x`."""
        for term, count in value.terms.items():
            if isinstance(term, Call) and term.name == "mod" and isinstance(term.parts[1], Const):
                divisor, dividend = term.parts[1].value, self._sum(term.parts[0])
                if lower_bound(divisor) < 1:
                    continue
                quotient = _only_term(self._quotient(dividend, divisor))
                if quotient is not None and is_same_size(value.terms.get(quotient, 0), count * divisor):
                    rest = {t: n for t, n in value.terms.items() if t is not term and t is not quotient}
                    return self._recombine(Linear(value.constant, rest).plus(dividend, count))
        return value

    def _call_as_sum(self, name: str, dividend: Linear, divisor: int) -> Linear:
        """A quotient or remainder as a sum of one term."""
        return Linear(0, {self._unique(name, self._expression(dividend), Const(divisor, "index")): 1})

    def _unique(self, name: str, *parts: Expr) -> Expr:
        """The node of a call; equal calls share one node."""
        key = name, *(("constant", p.value) if isinstance(p, Const) else p for p in parts)
        if key not in self._calls:
            self._calls[key] = Call(name, parts)
        return self._calls[key]

    def _range_of(self, value: Linear) -> Range | None:
        """The range of a sum; None if the range of a term is unknown."""
        low = high = value.constant
        for term, count in value.terms.items():
            if term not in self._ranges:
                self._ranges[term] = bounds(term)
            span = self._ranges[term]
            if span is None:
                return None
            ends = span[0] * count, span[1] * count  # in reverse order if `count` is negative
            low, high = low + least(*ends), high + greatest(*ends)
        return low, high


def _only_term(value: Linear) -> Expr | None:
    """The term of a sum that consists of one term with factor 1; None for other sums."""
    if value.constant != 0 or len(value.terms) != 1 or not all(is_same_size(n, 1) for n in value.terms.values()):
        return None
    return next(iter(value.terms))


def _divide(value: Linear, divisor: int) -> tuple[Linear, Linear]:
    """Split `value` into `divisor * quotient + remainder`; return `quotient` and `remainder`.

    Terms whose factor is a multiple of `divisor` go into the quotient, the others into the remainder. The constant of the
    remainder is in [0, divisor), if both are numbers.
    """
    whole = {term: count // divisor for term, count in value.terms.items() if is_same_size(count % divisor, 0)}
    remainder = {term: count for term, count in value.terms.items() if term not in whole}
    constant = value.constant
    if isinstance(constant, Size) or isinstance(divisor, Size):
        quotient = constant // divisor if is_same_size(constant % divisor, 0) else 0
    else:
        quotient = constant // divisor
    return Linear(quotient, whole), Linear(constant - quotient * divisor, remainder)


def _constant_quotient(ends: Range | None, divisor: int) -> int | None:
    """The quotient of all numbers of a range; None if it differs."""
    if ends is None:
        return None
    if is_inside(ends, divisor):
        return 0
    quotient = ends[0] // divisor
    return quotient if is_same_size(quotient, ends[1] // divisor) else None


def _common_divisors(value: Linear, divisor: int) -> list[int]:
    """Divisors of a factor and of `divisor`, the largest first."""
    factors = list(value.terms.values())
    numbers = {math.gcd(divisor, n) for n in factors if not isinstance(n, Size) and not isinstance(divisor, Size)}
    sizes = [n for n in factors if isinstance(divisor, Size) and lower_bound(n) >= 1 and is_same_size(divisor % n, 0)]
    return [*reversed(sizes), *sorted(numbers, reverse=True)]


def _and_or(name: str, parts: tuple[Expr, ...]) -> Expr:
    """`and` or `or`, folded if a condition is constant."""
    decides = name == "logical_or"  # `True or x` is True, and `False and x` is False
    for condition, other in (parts, parts[::-1]):
        if isinstance(condition, Const):
            return condition if condition.value == decides else other
    return call(name, *parts)


def _without_cast(parts: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Drop a cast to int64 from the operands of a comparison with a constant that fits the original type."""
    for cast, other in (parts, parts[::-1]):
        if isinstance(cast, Cast) and isinstance(other, Const) and cast.type == "int64":
            inner = cast.parts[0]
            info = INFO.get("int32" if inner.type == "index" else inner.type)
            is_known = not isinstance(other.value, Size)
            if info is not None and info.kind != "f" and is_known and info.lowest <= other.value <= info.highest:
                number = Const(other.value, inner.type)
                return tuple(inner if part is cast else number for part in parts)
    return parts


def _reduction_of(node: Reduce, body: Expr) -> Expr:
    """A reduction without variables of extent 1. If no variable is left: the element, or position 0."""
    variables = tuple(variable for variable in node.variables if variable.extent != 1)
    if variables:
        return Reduce(node.reduction, variables, body)
    return Const(0, "int32") if node.reduction.startswith("arg_") else body


def simplify_elements(*bodies: Expr) -> tuple[Expr, ...]:
    """Simplify positions and conditions of elements, and merge equal parts."""
    with without_deciding():
        return unify(*map(_Simplifier().rewrite, bodies))


def simplify(program: Formula) -> Formula:
    """Simplify positions and conditions of a program.

    >>> from opweave.expr import compute, trace
    >>> from opweave.core.graph import Desc
    >>> def copy(x):
    ...     flat = compute((24,), lambda i: x[i // 6, i % 6])
    ...     return compute((4, 6), lambda i, j: flat[i * 6 + j])
    >>> print(simplify(trace(copy, "copy", [Desc("int8", (4, 6))])))
    copy(x0: int8[4, 6]) -> (y0: int8[4, 6]):
      y0[i, j] =
        x0[i, j]
    """
    with without_deciding():
        return _simplify(program)


def _simplify(program: Formula) -> Formula:
    simplifier = _Simplifier()
    for stored in program.stored:
        simplifier.stored[stored] = Stored(stored.axes, *unify(simplifier.rewrite(stored.body)))
    bodies = unify(*(simplifier.rewrite(output.body) for output in program.outputs))
    outputs = tuple(Output(output.axes, body) for output, body in zip(program.outputs, bodies, strict=True))
    checks = tuple(
        replace(c, condition=simplifier.rewrite(c.condition), value=c.value and simplifier.rewrite(c.value))
        for c in program.checks
    )
    return Formula(program.name, program.inputs, outputs, checks)
