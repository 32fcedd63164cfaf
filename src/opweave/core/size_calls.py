"""Calls in formulas of sizes: the functions of numbers that they stand for, their source, and their bounds.

`/` truncates, as the integer division of WebNN does; a quotient or remainder by 0 is 0, but that of `//` is an error.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import inf, prod
from typing import Any, TypeAlias

MAX_OPERATORS = 8
"""Maximum number of operators of a sum or product in code; longer ones are calls. CPython's compiler recurses for each of
them, and may do so about 3000 times."""


class UnknownName(str):
    """The name of a size without a formula, in sizes by name. It never equals a name that a user chose."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnknownName) and str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(("unknown", str.__str__(self)))


def _broadcast(*sizes: int) -> int:
    return next((size for size in sizes if size != 1), 1)


def quotient_of_numbers(a: Any, b: Any) -> Any:
    """The quotient a / b, truncated toward zero; 0 if b is 0."""
    # Sizes have an order, but no absolute value: guards decide comparisons.
    return 0 if b == 0 else (-a if a < 0 else a) // (-b if b < 0 else b) * (1 if (a < 0) == (b < 0) else -1)


def remainder_of_numbers(kind: str, a: Any, b: Any) -> Any:
    """The remainder of a / b with the sign of b (`kind` is "%"), or with that of a ("fmod"); 0 if b is 0."""
    if b == 0:
        return 0
    return a % b if kind == "%" else a - b * quotient_of_numbers(a, b)


def add(*items: Any) -> Any:
    """The sum of numbers or sizes. Halves are added: each sum of sizes takes time for all its terms."""
    if len(items) <= MAX_OPERATORS + 1:
        return sum(items)
    return add(*items[: len(items) // 2]) + add(*items[len(items) // 2 :])


def multiply(*items: Any) -> Any:
    """The product of numbers or sizes. Halves are multiplied: each product of sizes takes time for all its factors."""
    if len(items) <= MAX_OPERATORS + 1:
        return prod(items)
    return multiply(*items[: len(items) // 2]) * multiply(*items[len(items) // 2 :])


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "unknown": UnknownName,
    "broadcast": _broadcast,
    "max": max,
    "min": min,
    "floordiv": operator.floordiv,
    "quotient": quotient_of_numbers,
    "remainder": lambda a, b: remainder_of_numbers("%", a, b),
    "fmod": lambda a, b: remainder_of_numbers("fmod", a, b),
    "add": add,
    "multiply": multiply,
}
"""The functions that the source of a size calls, by name."""

SOURCES = {
    "//": "floordiv({}, {})",
    "&": "({} & {})",
    "/": "quotient({}, {})",
    "%": "remainder({}, {})",
    "<": "int({} < {})",
    "==": "int({} == {})",
    "where": "({1} if {0} else {2})",
}
"""The source of calls, by kind. A kind that is not here is the name of a function."""

CALLS: dict[str, Callable[..., Any]] = {
    **FUNCTIONS,
    "//": operator.floordiv,
    "&": operator.and_,
    "/": quotient_of_numbers,
    "%": FUNCTIONS["remainder"],
    "<": lambda a, b: int(a < b),
    "==": lambda a, b: int(a == b),
}
"""The functions of calls, by kind, except "where", of which one branch may divide by 0."""

INFIX = ("//", "/", "%", "<", "==", "&")
"""The kinds of calls that are written between their arguments."""

Interval: TypeAlias = tuple[float, float]
"""A lower and an upper bound."""

INTERVALS: dict[str, Callable[..., Interval]] = {
    "max": lambda *bounds: (max(low for low, _ in bounds), max(high for _, high in bounds)),
    "min": lambda *bounds: (min(low for low, _ in bounds), min(high for _, high in bounds)),
    "&": lambda a, b: (0 if a[0] >= 0 or b[0] >= 0 else -inf, inf),
    "<": lambda a, b: (0, 1),
    "==": lambda a, b: (0, 1),
    "where": lambda condition, a, b: (min(a[0], b[0]), max(a[1], b[1])),
    "/": lambda a, b: (min(a[0], 0), max(a[1], 0)) if b[0] >= 0 else (min(a[0], -a[1], 0), max(a[1], -a[0], 0)),
    "%": lambda a, b: (min(b[0] + 1, 0), max(b[1] - 1, 0)),
    "fmod": lambda a, b: (min(a[0], 0), max(a[1], 0)),
}
"""Bounds of calls, given those of their arguments."""

# Bounds are integers, or infinite floats. Integers may be beyond the range of floats, so that they cannot be operands of one
# operator.


def multiply_bounds(a: float, b: float) -> float:
    """The product of two bounds; that of 0 and infinity is 0."""
    if isinstance(a, float) or isinstance(b, float):
        return 0 if a == 0 or b == 0 else inf if (a < 0) == (b < 0) else -inf
    return a * b


def add_bounds(a: float, b: float) -> float:
    """The sum of two bounds, of which at most one is infinite."""
    return b if isinstance(b, float) else a if isinstance(a, float) else a + b


def divide_bound(bound: float, divisor: int) -> float:
    """floor(bound / divisor), for a positive divisor."""
    return bound if isinstance(bound, float) else bound // divisor
