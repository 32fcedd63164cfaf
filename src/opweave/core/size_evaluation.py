"""Evaluation of sizes: the numbers of formulas for sizes by name, by their terms or by generated code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from .size_calls import CALLS, FUNCTIONS, MAX_OPERATORS, SOURCES, UnknownName, add, multiply
from .size_terms import Factor, Polynomial, Term

MAX_FUNCTIONS = 4096
"""Number of formulas whose functions are kept. An estimate: a decoder of 30 layers has some dozens."""

COMPILED_AT = 8
"""The evaluation of a formula before which its code is compiled. An estimate."""


def source_of(dimension: int | Polynomial) -> str:
    """Python's expression for the number; `s` has the sizes by name."""
    if not isinstance(dimension, Polynomial):
        return str(dimension)
    return _source_of_terms(dimension.terms)


def _source_of_terms(terms: Iterable[Term]) -> str:
    products = [
        _operation("*", "multiply", [str(coefficient), *[_source_of_factor(factor) for factor in factors]])
        for factors, coefficient in terms
    ]
    return _operation("+", "add", products)


def _source_of_factor(factor: Factor) -> str:
    if not factor.arguments:
        return f"s[unknown({factor.text!r})]" if factor.kind == "unknown" else f"s[{factor.text!r}]"
    arguments = [source_of(argument) for argument in factor.arguments]
    template = SOURCES.get(factor.kind)
    return f"{factor.kind}({', '.join(arguments)})" if template is None else template.format(*arguments)


def _operation(operator: str, function: str, operands: Sequence[str]) -> str:
    """The source of a sum or product."""
    if len(operands) <= MAX_OPERATORS + 1:
        return f" {operator} ".join(operands)
    return f"{function}({', '.join(operands)})"


def function_of(sources: Sequence[str]) -> Callable[[Mapping[str, int]], tuple[int, ...]]:
    """The function of sizes by name that computes dimensions, each written by `source_of`.

    >>> from opweave.core.sizes import Size
    >>> function_of([source_of(Size("n") * Size("m")), source_of(Size("n") // 2)])({"n": 5, "m": 3})
    (15, 2)
    """
    function: Callable[[Mapping[str, int]], tuple[int, ...]] = eval(
        f"lambda s: ({''.join(f'{source}, ' for source in sources)})", dict(FUNCTIONS)
    )
    return function


class SizesOfCall(dict[str, int]):
    """The sizes of a call by name, with the values of formulas and factors that were evaluated for them.

    The formulas of a program share most of their factors, so looking up values is faster than running generated code. Sizes
    may be added, but must not change.
    """

    __slots__ = ("values_of",)

    def __init__(self) -> None:
        super().__init__()
        self.values_of: dict[Any, int] = {}


@lru_cache(MAX_FUNCTIONS)
def evaluation_of(terms: tuple[Term, ...]) -> Callable[[Mapping[str, int]], int]:
    """The function that evaluates a formula for sizes by name. Equal formulas share it."""
    return _Evaluation(terms)


class _Evaluation:
    """A function that evaluates a formula for sizes by name.

    A program has many sizes, which are evaluated for each combination of names: generated code takes a tenth. Compiling it
    takes as long as a hundred evaluations, and most formulas are evaluated for the first sizes alone. For `SizesOfCall`, each
    formula and each factor is evaluated once.
    """

    def __init__(self, terms: tuple[Term, ...]) -> None:
        self._terms, self._calls = terms, 0
        self._function: Callable[[Mapping[str, int]], int] | None = None

    def __call__(self, sizes: Mapping[str, int]) -> int:
        if type(sizes) is SizesOfCall:
            value = sizes.values_of.get(self)
            if value is None:
                value = sizes.values_of[self] = _shared_sum_at(self._terms, sizes)
            return value
        if self._function is not None:
            return self._function(sizes)
        self._calls += 1
        return _sum_at(self._terms, sizes) if self._calls < COMPILED_AT else self._compile()(sizes)

    def _compile(self) -> Callable[[Mapping[str, int]], int]:
        function: Callable[[Mapping[str, int]], int]
        function = self._function = eval(f"lambda s: {_source_of_terms(self._terms)}", dict(FUNCTIONS))
        return function


def _sum_at(terms: tuple[Term, ...], sizes: Mapping[str, int]) -> int:
    products = [multiply(number, *[_factor_at(factor, sizes) for factor in factors]) for factors, number in terms]
    result: int = add(*products)
    return result


def _factor_at(factor: Factor, sizes: Mapping[str, int]) -> int:
    if not factor.arguments:
        return sizes[UnknownName(factor.text) if factor.kind == "unknown" else factor.text]
    if factor.kind == "where":
        condition, left, right = factor.arguments
        return _at(left if _at(condition, sizes) else right, sizes)
    number: int = CALLS[factor.kind](*[_at(argument, sizes) for argument in factor.arguments])
    return number


def _at(dimension: int | Polynomial, sizes: Mapping[str, int]) -> int:
    return _sum_at(dimension.terms, sizes) if isinstance(dimension, Polynomial) else dimension


def _shared_sum_at(terms: tuple[Term, ...], sizes: SizesOfCall) -> int:
    """The value of a formula, whose factors are evaluated once for these sizes."""
    total, values_of = 0, sizes.values_of
    for factors, number in terms:
        for factor in factors:
            value = values_of.get(factor)
            if value is None:
                value = values_of[factor] = _shared_factor_at(factor, sizes)
            number *= value
        total += number
    return total


def _shared_factor_at(factor: Factor, sizes: SizesOfCall) -> int:
    if not factor.arguments:
        return _factor_at(factor, sizes)
    if factor.kind == "where":
        condition, left, right = factor.arguments
        return _shared_at(left if _shared_at(condition, sizes) else right, sizes)
    number: int = CALLS[factor.kind](*[_shared_at(argument, sizes) for argument in factor.arguments])
    return number


def _shared_at(dimension: int | Polynomial, sizes: SizesOfCall) -> int:
    return _shared_sum_at(dimension.terms, sizes) if isinstance(dimension, Polynomial) else dimension
