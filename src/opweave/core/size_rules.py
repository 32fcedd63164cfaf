"""Rules for sizes, which an exported program of PyTorch was made for: answers of branches on shapes, and ranges.

Such a program has one side of each branch on a shape, so its results are wrong for sizes that take the other one. A rule is an
expression of Python, which may come from the file of a stranger: `ast` reads it, and nothing runs it as code.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..support.errors import ValidationError

Formula = Callable[[Mapping[str, int]], Any]

_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "float": float,
    "int": int,
    "math.ceil": math.ceil,
    "math.floor": math.floor,
    "math.sqrt": math.sqrt,
    "math.trunc": math.trunc,
    "max": max,
    "min": min,
    "round": lambda number: round(number),  # with a number of digits, it could take any time
}

MAX_EXPONENT, MAX_BASE = 8, 2**64
"""The largest exponent and base of powers in rules, which could have any number of digits in untrusted files."""

MAX_TEXT = 10_000
"""The longest rule that is read, in characters; an estimate. Those of branches have some tens."""


@dataclass(frozen=True)
class SizeRule:
    """A rule that sizes must keep.

    Attributes:
        text: the rule, as in "x.shape[0] <= 5".
        sizes: the texts of the sizes that the rule reads, as "x.shape[0]".
        formula: whether the numbers of these texts keep the rule.
    """

    text: str
    sizes: tuple[str, ...]
    formula: Formula

    @classmethod
    def parse(cls, text: str, sizes: Collection[str]) -> SizeRule | None:
        """Read a rule of sizes, which have these texts; None if the rule reads something else, or no size.

        >>> rule = SizeRule.parse("x.shape[0] % 2 == 0", ["x.shape[0]", "x.shape[1]"])
        >>> rule.sizes, rule.holds({"x.shape[0]": 4}), rule.holds({"x.shape[0]": 5})
        (('x.shape[0]',), True, False)
        >>> SizeRule.parse("x.stride()[0] == 1", ["x.shape[0]"])
        """
        read: dict[str, None] = {}
        try:
            tree = parse_rule(text)
            formula, canonical = _formula(tree, sizes, read), ast.unparse(tree)
        except (_OtherRuleError, SyntaxError, RecursionError, MemoryError, ValueError):
            return None
        return cls(canonical, tuple(read), formula) if read else None

    def holds(self, numbers: Mapping[str, int]) -> bool:
        """Whether numbers, by the texts of sizes, keep the rule; True if it has no value, as after a division by 0.

        >>> [SizeRule.parse(text, ["n"]).holds({"n": 9}) for text in ("n < 5", "1 / (n - 9) > 1", "((n**8) ** 8) ** 8 < 1")]
        [False, True, True]
        """
        try:
            return bool(self.formula(numbers))
        except (ArithmeticError, TypeError, ValueError):
            return True

    def check(self, subject: str, numbers: Mapping[str, int]) -> None:
        """Require numbers that keep the rule."""
        if not self.holds(numbers):
            got = ", ".join(f"{size} = {numbers[size]}" for size in self.sizes)
            raise ValidationError(
                f"{subject}: the module was exported for sizes with {self.text}, and may compute something else for "
                f"others, got {got}; pass example arguments of such sizes to from_torch for another graph"
            )


@dataclass(frozen=True)
class NamedSizeRule:
    """A rule that the sizes of a graph must keep.

    Attributes:
        rule: the rule.
        dimensions: text of a size in the rule -> its name in the graph, or its number.
    """

    rule: SizeRule
    dimensions: Mapping[str, str | int]

    @property
    def names(self) -> set[str]:
        """The names that the rule depends on."""
        return {dimension for dimension in self.dimensions.values() if isinstance(dimension, str)}

    def check(self, subject: str, sizes: Mapping[str, int]) -> None:
        """Require sizes, by name, that keep the rule."""
        numbers = {text: sizes[d] if isinstance(d, str) else d for text, d in self.dimensions.items()}
        self.rule.check(subject, numbers)


def parse_rule(text: str) -> ast.expr:
    """The expression of a rule; `SyntaxError` or `ValueError` if the text is none."""
    if len(text) > MAX_TEXT:
        raise ValueError(f"a rule has at most {MAX_TEXT} characters, got {len(text)}")
    return ast.parse(text, mode="eval").body


class _OtherRuleError(Exception):
    """A rule reads something else than sizes."""


def _formula(node: ast.expr, sizes: Collection[str], read: dict[str, None]) -> Formula:
    """A function of numbers for an expression; adds the sizes that it reads to `read`."""

    def parts(nodes: Sequence[ast.expr]) -> list[Formula]:
        return [_formula(item, sizes, read) for item in nodes]

    if (text := ast.unparse(node)) in sizes:
        read[text] = None
        return lambda numbers: numbers[text]
    match node:
        case ast.Constant(value=bool() | int() | float() as number):
            return lambda _: number
        case ast.UnaryOp(op=kind, operand=operand) if type(kind) in _OPERATORS:
            return _call(_OPERATORS[type(kind)], parts([operand]))
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int() as exponent)) if (
            0 <= exponent <= MAX_EXPONENT
        ):
            return _call(partial(_power, exponent), parts([left]))
        case ast.BinOp(left=left, op=kind, right=right) if type(kind) in _OPERATORS:
            return _call(_OPERATORS[type(kind)], parts([left, right]))
        case ast.Compare(left=left, ops=[kind], comparators=[right]) if type(kind) in _OPERATORS:
            return _call(_OPERATORS[type(kind)], parts([left, right]))
        case ast.BoolOp(op=kind, values=values):
            join = all if isinstance(kind, ast.And) else any
            terms = parts(values)
            return lambda numbers: join(term(numbers) for term in terms)
        case ast.Call(func=function, args=arguments, keywords=[]) if ast.unparse(function) in _FUNCTIONS:
            return _call(_FUNCTIONS[ast.unparse(function)], parts(arguments))
    raise _OtherRuleError


def _power(exponent: int, base: Any) -> Any:
    if abs(base) > MAX_BASE:
        raise OverflowError
    return base**exponent


def _call(function: Callable[..., Any], parts: Sequence[Formula]) -> Formula:
    return lambda numbers: function(*[part(numbers) for part in parts])
