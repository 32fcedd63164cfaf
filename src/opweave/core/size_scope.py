"""The scope of comparisons of sizes, and the comparisons that need none."""

from __future__ import annotations

from contextvars import ContextVar
from math import gcd
from typing import TYPE_CHECKING, Literal, NoReturn, Protocol, TypeAlias

from ..support.errors import ValidationError
from .size_terms import linear_interval

if TYPE_CHECKING:
    from .sizes import Dimension, Size, Symbol

Question: TypeAlias = Literal["zero", "negative"]
Condition: TypeAlias = "tuple[Question, Symbol]"
"""A comparison of two sizes, or real numbers computed from sizes: whether their difference is zero, or negative."""


class SizeScope(Protocol):
    """Answers for what depends on sizes.

    Attributes:
        is_of_run: whether the answers are those for the sizes of a run, and are recorded.
    """

    is_of_run: bool

    def decide(self, condition: Condition) -> bool:
        """Answer a comparison."""

    def number(self, size: Size) -> int:
        """Return the number of a size."""


current_scope: ContextVar[SizeScope | None] = ContextVar("sizes", default=None)
"""The scope of this thread or task."""


class UnknownSizeError(ValidationError):
    """A function asked for the number or the order of sizes that are known only when a graph runs."""


def refuse(question: str) -> NoReturn:
    """Raise the error of a question without an answer."""
    raise UnknownSizeError(f"sizes are known only when the graph runs, but a function asked for {question}")


def decide_without_scope(condition: Condition) -> bool:
    """The answer that is valid for formulas: those that differ are not equal, and have no order."""
    question, difference = condition
    return False if question == "zero" else refuse(f"whether {difference} is less than 0")


def answer_for_all(question: Question, difference: Dimension) -> bool | None:
    """Whether a difference is zero, or negative, for all sizes; None if that depends on them."""
    if isinstance(difference, int):
        return difference == 0 if question == "zero" else difference < 0
    low, high = linear_interval(difference)
    if question == "negative":
        return True if high < 0 else False if low >= 0 else None
    if low == high == 0:
        return True
    coefficients = [coefficient for factors, coefficient in difference.terms if factors]
    constant = dict(difference.terms).get((), 0)
    return False if low > 0 or high < 0 or constant % gcd(*coefficients) else None
