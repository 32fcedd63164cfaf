"""Simplify index arithmetic.

Composed operations leave positions such as `((i * 6 + j) // 6) % 4`, which is `i % 4`, and conditions that always hold.
Positions are rewritten as linear sums, quotients and remainders drop the terms that divide evenly, and comparisons,
`where` and clamps that ranges decide are replaced by the result. Expressions of data are not changed.
"""

from __future__ import annotations

import math

from ..dtypes import INFO
from .ir import Call, Cast, Const, Expr, Index, Load, Output, Program, Reduce, Stored, call, unified, walk
from .linear import Linear, combined
from .ranges import Range, bounds

_REFLECTED = {"greater": "lesser", "lesser_or_equal": "greater_or_equal"}
_COMPARISONS = frozenset({"equal", "not_equal", "lesser", "greater_or_equal", *_REFLECTED})


class _Simplifier:
    """Rewrites nodes. Equal nodes are merged, so that terms can cancel."""

    def __init__(self) -> None:
        self.stored: dict[Stored, Stored] = {}
        self._made: dict[Expr, Expr] = {}
        self._sums: dict[Expr, Linear] = {}
        self._alike: dict[tuple[object, ...], Expr] = {}
        self._ranges: dict[Expr, Range | None] = {}

    def rewritten(self, root: Expr) -> Expr:
        """`root`, simplified."""
        for node in walk(root, enter=lambda n: () if n in self._made else n.parts):
            if node not in self._made:
                self._made[node] = self._rewrite(node, tuple(self._made[part] for part in node.parts))
        return self._made[root]

    def _rewrite(self, node: Expr, parts: tuple[Expr, ...]) -> Expr:
        match node:
            case Index(extent=1):
                return Const(0, "index")
            case Load(source=Stored() as source):
                return Load(self.stored.get(source, source), parts)
            case Reduce():
                return _reduced(node, parts[0])
            case Call():
                return self._call(node.name, parts, node)
        return node.rebuilt(parts)

    def _call(self, name: str, parts: tuple[Expr, ...], node: Expr) -> Expr:
        first = parts[0]
        if name == "where" and isinstance(first, Const):
            return parts[1] if first.value else parts[2]
        if name in ("logical_and", "logical_or"):
            return _junction(name, parts)
        if name in _COMPARISONS:
            parts = _narrowed(parts)
        if parts[-1].type == "index":
            if name in ("lesser", "greater_or_equal", *_REFLECTED):
                return self._compared(name, parts)
            if node.type == "index":
                return self._index(name, parts)
        return node.rebuilt(parts)

    # Conditions ------------------------------------------------------------------------------------------------------

    def _compared(self, name: str, parts: tuple[Expr, ...]) -> Expr:
        """A comparison of positions; a constant if their ranges decide it."""
        a, b = reversed(parts) if name in _REFLECTED else parts
        known = self._range_of(self._sum(a).plus(self._sum(b), -1))
        if known is not None:
            if known[1] < 0:
                return Const(_REFLECTED.get(name, name) == "lesser", "bool")
            if known[0] >= 0:
                return Const(_REFLECTED.get(name, name) != "lesser", "bool")
        return call(name, *parts)

    # Positions -------------------------------------------------------------------------------------------------------

    def _index(self, name: str, parts: tuple[Expr, ...]) -> Expr:
        sums = [self._sum(part) for part in parts]
        made = combined(name, sums)
        if made is not None:
            return self._expression(made)
        match name:
            case "floor_div" if not sums[1].terms and sums[1].constant > 0:
                return self._expression(self._quotient(sums[0], sums[1].constant))
            case "mod" if not sums[1].terms and sums[1].constant > 0:
                return self._expression(self._remainder(sums[0], sums[1].constant))
            case "max" | "min":
                return self._chosen(name, parts, sums)
            case "abs":
                known = self._range_of(sums[0])
                if known is not None and known[0] >= 0:
                    return parts[0]
        return self._alone(name, *parts)

    def _quotient(self, dividend: Linear, divisor: int) -> Linear:
        """`dividend // divisor`."""
        whole, rest = _divided(dividend, divisor)
        known = self._range_of(rest)
        if known is not None and known[0] // divisor == known[1] // divisor:
            return whole.plus(Linear(known[0] // divisor))
        common, rest, _ = self._common(rest, divisor)  # (g * x + y) // (g * n) is x // n
        divisor //= common
        inner = _only(rest)
        if isinstance(inner, Call) and inner.name == "floor_div" and isinstance(inner.parts[1], Const):
            rest, divisor = self._sum(inner.parts[0]), divisor * int(inner.parts[1].value)
        return whole.plus(self._single("floor_div", rest, divisor))

    def _remainder(self, dividend: Linear, divisor: int) -> Linear:
        """`dividend % divisor`."""
        _, rest = _divided(dividend, divisor)
        known = self._range_of(rest)
        if known is not None and known[0] // divisor == known[1] // divisor:
            return rest.plus(Linear(-(known[0] // divisor) * divisor))
        common, rest, beside = self._common(rest, divisor)  # (g * x + y) % (g * n) is g * (x % n) + y
        return self._single("mod", rest, divisor // common).times(common).plus(beside)

    def _common(self, value: Linear, divisor: int) -> tuple[int, Linear, Linear]:
        """Split `value` as `g * x + y` with `y` in [0, g), for the largest divisor `g` of `divisor` found; return `g`,
        `x` and `y`.
        """
        for common in sorted({math.gcd(divisor, count) for count in value.terms.values()}, reverse=True):
            multiple, beside = _divided(value, common)
            known = self._range_of(beside)
            if known is not None and known[0] >= 0 and known[1] < common:
                return common, multiple, beside
        return 1, value, Linear()

    def _chosen(self, name: str, parts: tuple[Expr, ...], sums: list[Linear]) -> Expr:
        """The maximum or minimum of two positions."""
        difference = self._range_of(sums[0].plus(sums[1], -1))
        if difference is not None:
            if difference[0] >= 0:
                return parts[0] if name == "max" else parts[1]
            if difference[1] <= 0:
                return parts[1] if name == "max" else parts[0]
        return self._alone(name, *parts)

    # Sums ------------------------------------------------------------------------------------------------------------

    def _sum(self, node: Expr) -> Linear:
        """A rewritten node as a sum."""
        if isinstance(node, Const):
            return Linear(int(node.value))
        return self._sums.get(node) or Linear(0, {node: 1})

    def _expression(self, value: Linear) -> Expr:
        """A sum as a node."""
        value = self._joined(value)
        only = _only(value)
        if only is not None:
            return only
        if not value.terms:
            return Const(value.constant, "index")
        ordered = sorted(value.terms.items(), key=lambda item: item[1] < 0)  # negative terms last
        pieces = [(t if abs(n) == 1 else self._alone("mul", t, Const(abs(n), "index")), n) for t, n in ordered]
        if value.constant and ordered[0][1] < 0:  # 5 - x rather than -x + 5
            pieces.insert(0, (Const(value.constant, "index"), 1))
        elif value.constant:
            pieces.append((Const(abs(value.constant), "index"), value.constant))
        (first, sign), *others = pieces
        result = first if sign > 0 else self._alone("neg", first)
        for piece, sign in others:
            result = self._alone("add" if sign > 0 else "sub", result, piece)
        self._sums[result] = value
        return result

    def _joined(self, value: Linear) -> Linear:
        """Replace `x // n * n + x % n` by `x`."""
        for term, count in value.terms.items():
            if isinstance(term, Call) and term.name == "mod" and isinstance(term.parts[1], Const):
                divisor, dividend = int(term.parts[1].value), self._sum(term.parts[0])
                quotient = _only(self._quotient(dividend, divisor))
                if quotient is not None and value.terms.get(quotient) == count * divisor:
                    rest = {t: n for t, n in value.terms.items() if t is not term and t is not quotient}
                    return self._joined(Linear(value.constant, rest).plus(dividend, count))
        return value

    def _single(self, name: str, dividend: Linear, divisor: int) -> Linear:
        return Linear(0, {self._alone(name, self._expression(dividend), Const(divisor, "index")): 1})

    def _alone(self, name: str, *parts: Expr) -> Expr:
        """A call; the same node for the same arguments."""
        key = name, *(("constant", p.value) if isinstance(p, Const) else p for p in parts)
        if key not in self._alike:
            self._alike[key] = Call(name, parts)
        return self._alike[key]

    def _range_of(self, value: Linear) -> Range | None:
        low = high = value.constant
        for term, count in value.terms.items():
            if term not in self._ranges:
                self._ranges[term] = bounds(term)
            known = self._ranges[term]
            if known is None:
                return None
            ends = known[0] * count, known[1] * count
            low, high = low + min(ends), high + max(ends)
        return low, high


def _only(value: Linear) -> Expr | None:
    """The term of a sum that consists of one term with factor 1; else None."""
    if value.constant or list(value.terms.values()) != [1]:
        return None
    return next(iter(value.terms))


def _divided(value: Linear, divisor: int) -> tuple[Linear, Linear]:
    """Divide the terms that `divisor` divides; return the quotient and the rest, whose constant is in [0, divisor)."""
    whole = {term: count // divisor for term, count in value.terms.items() if count % divisor == 0}
    rest = {term: count for term, count in value.terms.items() if count % divisor}
    return Linear(value.constant // divisor, whole), Linear(value.constant % divisor, rest)


def _junction(name: str, parts: tuple[Expr, ...]) -> Expr:
    """`and` or `or`, folded if a condition is constant."""
    decides = name == "logical_or"
    for condition, other in (parts, parts[::-1]):
        if isinstance(condition, Const):
            return condition if condition.value == decides else other
    return call(name, *parts)


def _narrowed(parts: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Drop a cast to int64 in a comparison with a constant that the original type can hold."""
    for cast, other in (parts, parts[::-1]):
        if isinstance(cast, Cast) and isinstance(other, Const) and cast.type == "int64":
            inner = cast.parts[0]
            known = INFO.get("int32" if inner.type == "index" else inner.type)  # type: ignore[arg-type]
            if known is not None and known.kind != "f" and known.lowest <= other.value <= known.highest:
                number = Const(other.value, inner.type)
                return tuple(inner if part is cast else number for part in parts)
    return parts


def _reduced(node: Reduce, body: Expr) -> Expr:
    """A reduction without the variables of extent 1."""
    variables = tuple(variable for variable in node.variables if variable.extent > 1)
    if variables:
        return Reduce(node.reduction, variables, body)
    return Const(0, "int32") if node.reduction.startswith("arg_") else body


def simplified(program: Program) -> Program:
    """The same program with simpler positions and conditions.

    >>> from opweave.expr import compute, trace
    >>> from opweave.graph import Desc
    >>> flat = lambda x: compute((24,), lambda i: x[i // 6, i % 6])
    >>> print(simplified(trace(lambda x: compute((4, 6), lambda i, j: flat(x)[i * 6 + j]), "copy", [Desc("int8", (4, 6))])))
    copy(x0: int8[4, 6]) -> (y0: int8[4, 6]):
      y0[i, j] =
        x0[i, j]
    """
    simplifier = _Simplifier()
    for stored in program.stored:
        simplifier.stored[stored] = Stored(stored.axes, *unified(simplifier.rewritten(stored.body)))
    bodies = unified(*(simplifier.rewritten(output.body) for output in program.outputs))
    outputs = tuple(Output(output.axes, body) for output, body in zip(program.outputs, bodies, strict=True))
    checks = tuple(type(c)(simplifier.rewritten(c.condition), c.message) for c in program.checks)
    return Program(program.name, program.inputs, outputs, checks)
