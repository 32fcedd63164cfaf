"""Scopes, which decide comparisons that depend on sizes.

- `explore` takes both answers in turn. It finds the shapes that an operation may have.
- `Guards` takes the answer for the sizes of one run, and records it. A program that was compiled in this scope is valid for
  all sizes that give the same answers.
- `without_deciding` is for code that must be valid for all sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import Any, TypeVar

from ..support.errors import ValidationError, caller_line
from .formula_limits import LongFormulaError
from .size_scope import Condition, SizeScope, UnknownSizeError, current_scope, decide_without_scope, refuse
from .size_terms import variables_of
from .sizes import Dimension, Size, is_multiple

T = TypeVar("T")

MAX_PATHS = 64
"""Maximum number of ways through a function that `explore` tries; no operation of WebNN has more than 20."""

TYPICAL_SIZE = 1024
"""Estimate of a size of which nothing is known."""

ALIGNMENT = 32
"""A factor that sizes of images often have: networks halve them some times. Other sizes seldom have it by chance."""


@contextmanager
def _use(scope: SizeScope | None) -> Iterator[None]:
    token = current_scope.set(scope)
    try:
        yield
    finally:
        current_scope.reset(token)


def bind_scope(function: Callable[[], T]) -> Callable[[], T]:
    """The function, called in this scope wherever it is called: in other threads, too."""
    scope = current_scope.get()

    def call() -> T:
        with _use(scope):
            return function()

    return call


class Guards:
    """The answers to comparisons for certain sizes, by which code was chosen that is valid for other sizes, too.

    >>> n, guards = Size("n"), Guards({"n": 8})
    >>> with guards.deciding():
    ...     n > 4, n == 8, n % 2 == 0
    (True, True, True)
    >>> guards.hold({"n": 8}), guards.hold({"n": 10})
    (True, False)
    """

    is_of_run = True

    def __init__(self, sizes: Mapping[str, int], typical: Mapping[str, int] = MappingProxyType({})) -> None:
        self.sizes = sizes
        self.typical = {**sizes, **typical}
        """The sizes of estimates: those of the run, unless others are `typical`."""
        self.similar: list[Mapping[str, int]] = []
        """Further sizes whose estimates choose the same code."""
        self.answers: dict[Condition, bool] = {}
        self.lines: dict[Size, str] = {}
        """The lines of users that asked for the numbers of sizes, as ends of messages."""

    def deciding(self) -> AbstractContextManager[None]:
        """A context manager in which comparisons of sizes have the answers for these sizes."""
        return _use(self)

    def decide(self, condition: Condition) -> bool:
        """The answer for these sizes, which is recorded."""
        answer = self.answers[condition] = _holds(condition, self.sizes)
        return answer

    def number(self, size: Size) -> int:
        """The number of a size; the code is valid for this number only."""
        number = size.at(self.sizes)
        if isinstance(difference := size - number, Size):
            self.decide(("zero", difference))
            if size not in self.lines:
                self.lines[size] = caller_line()
        return number

    def ratio_to(self, sizes: Mapping[str, int]) -> float:
        """The largest ratio between a size and its estimate; with `similar` sizes, the least of these.

        >>> guards = Guards({"n": 8, "m": 3})
        >>> guards.ratio_to({"n": 2, "m": 6})
        4.0
        >>> guards.similar.append({"n": 2, "m": 3})
        >>> guards.ratio_to({"n": 2, "m": 6})
        2.0
        """
        return min(_largest_ratio(typical, sizes) for typical in (self.typical, *self.similar))

    def hold(self, sizes: Mapping[str, int]) -> bool:
        """Whether all comparisons have the same answers for other sizes. A formula that divides by 0 has none."""
        try:
            return all(_holds(condition, sizes) is answer for condition, answer in self.answers.items())
        except (ArithmeticError, ValidationError):
            return False


def _largest_ratio(one: Mapping[str, int], other: Mapping[str, int]) -> float:
    """The largest ratio between sizes of the same name; 1 without names."""
    pairs = [(max(1, one[name]), max(1, size)) for name, size in other.items() if name in one]
    return max((max(pair) / min(pair) for pair in pairs), default=1.0)


def _holds(condition: Condition, sizes: Mapping[str, int]) -> bool:
    question, difference = condition
    number = difference.at(sizes)
    return number == 0 if question == "zero" else number < 0


def current_guards() -> Guards | None:
    """This scope, if it records answers for the sizes of a run."""
    scope = current_scope.get()
    return scope if isinstance(scope, Guards) else None


def guarded_sizes() -> Mapping[str, int]:
    """The sizes whose answers this scope records; none without such a scope."""
    guards = current_guards()
    return guards.sizes if guards else {}


def is_multiple_here(size: Dimension, divisor: int) -> bool:
    """Whether a dimension is a multiple of a number for all sizes, or because some names are multiples of 32 in this run.

    Only a positive answer is recorded, for these names: code for other sizes is valid for these, too.

    >>> n, guards = Size("n"), Guards({"n": 64, "m": 5})
    >>> with guards.deciding():
    ...     is_multiple_here((n - 1) // 2 + 1, 4), is_multiple_here(Size("m"), 4)
    (True, False)
    >>> guards.hold({"n": 96, "m": 6}), guards.hold({"n": 97, "m": 5})
    (True, False)
    """
    if is_multiple(size, divisor):
        return True
    guards = current_guards()
    if guards is None or not isinstance(size, Size):
        return False
    aligned = [name for name in variables_of(size) if guards.sizes.get(name, 1) % ALIGNMENT == 0]
    # The width of an image alone often suffices, and leaves out a condition for the height.
    for names in [*([name] for name in aligned), *([aligned] if len(aligned) > 1 else [])]:
        if _is_multiple_if_aligned(size, divisor, names):
            for name in names:
                guards.decide(("zero", Size(name) % ALIGNMENT))
            return True
    return False


def _is_multiple_if_aligned(size: Size, divisor: int, names: Sequence[str]) -> bool:
    """Whether a size is a multiple of a number if these names are multiples of 32."""
    values: dict[str, Any] = {name: Size(name) for name in variables_of(size)}
    values |= {name: ALIGNMENT * values[name] for name in names}
    with without_deciding():
        try:
            return is_multiple(size.at(values), divisor)
        except UnknownSizeError:  # the formula compares sizes
            return False


class _NoAnswers:
    """A scope that records nothing, and keeps the sizes of the scope around it for estimates."""

    is_of_run = False

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes

    def decide(self, condition: Condition) -> bool:
        return decide_without_scope(condition)

    def number(self, size: Size) -> int:
        return refuse(f"{size} as a number")


def without_deciding() -> AbstractContextManager[None]:
    """A context manager for code that is valid for all sizes: there, sizes are equal if their formulas are.

    >>> n, guards = Size("n"), Guards({"n": 1})
    >>> with guards.deciding(), without_deciding():
    ...     n == 1, estimate(2 * n)
    (False, 2)
    >>> guards.answers
    {}
    """
    return _use(_NoAnswers(_typical_sizes()))


def _typical_sizes() -> Mapping[str, int]:
    scope = current_scope.get()
    if isinstance(scope, Guards):
        return scope.typical
    return scope.sizes if isinstance(scope, _NoAnswers) else {}


def estimate(dimension: Dimension) -> int:
    """A dimension for the sizes of the first run, or those of hints, on which only speed may depend: no answer is recorded.

    >>> with Guards({"n": 8}).deciding():
    ...     estimate(Size("n") + 1)
    9
    >>> estimate(Size("n"))
    1024
    """
    if isinstance(dimension, int):
        return dimension
    sizes = _typical_sizes()
    return dimension.at({name: sizes.get(name, TYPICAL_SIZE) for name in variables_of(dimension)})


class _Path:
    """One way through a function: the answers up to the last one that changes, then True until it returns."""

    is_of_run = False

    def __init__(self, answers: Sequence[bool]) -> None:
        self.answers = list(answers)
        self._decided: dict[Condition, bool] = {}

    def decide(self, condition: Condition) -> bool:
        answer = self._decided.get(condition)
        if answer is None:
            if len(self._decided) == len(self.answers):
                self.answers.append(True)
            answer = self._decided[condition] = self.answers[len(self._decided)]
        return answer

    def number(self, size: Size) -> int:
        return refuse(f"{size} as a number")


def explore(function: Callable[[], T]) -> list[T]:
    """The results of a function that compares sizes, for all answers to the comparisons that depend on sizes.

    Where guards give the answers, the only result.

    >>> n = Size("n")
    >>> explore(lambda: 1 if n == 1 else 2 * n)
    [1, 2*n]

    Raises:
        UnknownSizeError: the function asks for a number, or compares too much.
        ValidationError: the function fails whatever the sizes are. The error is that of the first way, or of a formula that is
            too long.
    """
    if isinstance(current_scope.get(), Guards):
        return [function()]
    results: list[T] = []
    errors: list[ValidationError] = []
    answers: list[bool] = []
    for _ in range(MAX_PATHS):
        path = _Path(answers)
        with _use(path):
            try:
                results.append(function())
            except UnknownSizeError:
                raise
            except ValidationError as error:
                errors.append(error)
        answers = path.answers
        while answers and not answers[-1]:
            answers.pop()
        if not answers:
            break
        answers[-1] = False
    else:
        refuse(f"more than {MAX_PATHS} combinations of comparisons")
    if not results:
        raise next((error for error in errors if isinstance(error, LongFormulaError)), errors[0])
    return results
