"""Sizes: dimensions that are known only when a graph runs.

A `Size` is a polynomial with integer coefficients. The factors of its terms are names, and calls such as `(n + 1) // 2`.
Polynomials have a normal form, so `2 * n - n == n`. Calls also express comparisons, whose value is 0 or 1, and choices between
two sizes (`size_functions`).

Polynomials that differ may be equal for some sizes. The scope decides such comparisons (`guards`). Without a scope, sizes are
equal if their normal forms are, and asking for an unknown order is an error.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import count
from math import ceil, floor, gcd, isinf
from numbers import Integral
from typing import Any, Self, TypeAlias

from ..support import lazy_imports
from ..support.errors import ValidationError
from .formula_limits import check_characters, check_count, check_integers
from .size_calls import INFIX, UnknownName, multiply
from .size_evaluation import evaluation_of
from .size_scope import Question, answer_for_all, current_scope, decide_without_scope, refuse
from .size_terms import (
    Factor,
    Polynomial,
    Term,
    Terms,
    characters_in,
    count_in,
    count_in_product,
    factors_of,
    interval,
    order_of,
    text_of,
)

Dimension: TypeAlias = "int | Size"
"""An element of a shape."""

MAX_RESULTS = 4096
"""Number of sums, differences and products of formulas that are kept, of each kind. An estimate: two programs of a classifier
of 233 operations compute 1,300 different ones, each 28 times on average."""


class Symbol:
    """Base of numbers that are known only when a graph runs. They may be operands, as numbers may."""

    __slots__ = ()

    def at(self, sizes: Mapping[str, int]) -> int | float:
        """The number for sizes by name."""
        raise NotImplementedError

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Compute with numbers beside an array of numbers, else with formulas: `numpy.sqrt(n)` is `n.sqrt()`."""
        import numpy as np

        has_numbers = any(isinstance(item, np.ndarray) and item.ndim and item.dtype != object for item in inputs)

        def plain(item: Any) -> Any:
            if not isinstance(item, Symbol):
                return item
            if has_numbers:
                return item.number()
            scalar = np.empty((), object)
            scalar[()] = item
            return scalar

        return getattr(ufunc, method)(*map(plain, inputs), **options)

    def number(self) -> int | float:
        """The number in this scope.

        Raises:
            UnknownSizeError: this scope has no numbers.

        >>> import opweave as ow
        >>> ow.Size("n").number()
        Traceback (most recent call last):
            ...
        opweave.core.size_scope.UnknownSizeError: sizes are known only when the graph runs, but a function asked for n ...
        """
        return operator.index(self)  # type: ignore[arg-type]


def _of_numbers(function: Callable[[Any, Any], Any]) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
    """The method of an operator that asks for the number of a size, and its reflection."""
    return (
        lambda self, other: function(operator.index(self), other),
        lambda self, other: function(other, operator.index(self)),
    )


def _real(name: str) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
    """The method of an operator whose result is a real number, and its reflection."""
    return (
        lambda self, other: lazy_imports.compute_real(name, self, other),
        lambda self, other: lazy_imports.compute_real(name, other, self),
    )


def _compare_float(
    compare: Callable[[Any, Any], Any], size: Size, other: float, to_integer: Callable[[float], int]
) -> bool:
    return bool(compare(0.0, other) if isinf(other) else compare(size, to_integer(other)))


class Size(Polynomial, Symbol):
    """A dimension that is known only when a graph runs: the name of a size, or a formula of names.

    The same name means the same size in a whole graph. Arithmetic with `+ - * // %` gives formulas; a bare name equals its
    string. `n / 2`, `n * 0.5`, `n ** 0.5`, `n.sqrt()` and `n.log()` are real numbers that are known only when a graph runs,
    too. `float(n)`, `math.sqrt(n)` and `range(n)` ask for the number, which Python cannot put off.

    >>> import opweave as ow
    >>> n = ow.Size("n")
    >>> (2 * n + 4) // 2, n * 3 % 3, n - n, n == "n"
    (n + 2, 0, 0, True)
    >>> 1 / n, n ** -0.5, (n / 2).at({"n": 5})
    (1 / n, n ** -0.5, 2.5)
    >>> (-(-n // 2)).at({"n": 5})
    3

    Args:
        name: any string that is not empty.

    Raises:
        ValidationError: `name` is not a string, or empty; the order or the value of an unknown size is asked for.
    """

    __slots__ = ("_function", "_hash", "_text")
    # Computed on demand: most sizes are intermediates of formulas.
    _text: str | None
    _hash: int | None
    _function: Callable[[Mapping[str, int]], int] | None

    def __new__(cls, name: str, /, terms: tuple[Term, ...] = ()) -> Self:
        if not isinstance(name, str) or not (name or terms):
            raise ValidationError(f"the name of a size must be a string that is not empty, got {name!r}")
        self = super().__new__(cls)
        self.terms = terms or (((Factor("name", name),), 1),)
        self._text = self._hash = self._function = None
        return self

    @property
    def name(self) -> str:
        """The name, for a size that is a name; empty for formulas.

        >>> import opweave as ow
        >>> ow.Size("n").name, (ow.Size("n") + 1).name
        ('n', '')
        """
        ((factors, coefficient), *more) = self.terms
        is_name = not more and coefficient == 1 and len(factors) == 1 and factors[0].kind == "name"
        return factors[0].text if is_name else ""

    @property
    def names(self) -> frozenset[str]:
        """The names that the size depends on.

        >>> import opweave as ow
        >>> sorted((ow.Size("n") * 2 + ow.Size("m")).names)
        ['m', 'n']
        """
        return frozenset(factor.text for factor in factors_of(self) if factor.kind == "name")

    def at(self, sizes: Mapping[str, int]) -> int:
        """The number for sizes by name.

        >>> import opweave as ow
        >>> (ow.Size("n") * 2 + 1).at({"n": 3})
        7
        """
        if self._function is None:
            self._function = evaluation_of(self.terms)
        return self._function(sizes)

    def __str__(self) -> str:
        if self._text is None:
            self._text = text_of(self.terms)
        return self._text

    __repr__ = __str__

    def __hash__(self) -> int:
        if self._hash is None:
            # Numbers that differ may have the same hash (-1 and -2, 1 and 2**61), texts have not: when hashes are equal,
            # dictionaries compare formulas, also those of other graphs, and the scope would decide, and record the answer.
            terms = tuple([(factors, f"{coefficient:x}") for factors, coefficient in self.terms])
            self._hash = hash(self.name or terms)  # a name may be the text of a formula
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_terms, (
            [([(f.kind, f.text, f.arguments) for f in factors], coefficient) for factors, coefficient in self.terms],
        )

    # Arithmetic ------------------------------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Any:
        terms = _key_of(other)
        return lazy_imports.compute_real("+", self, other) if terms is None else _sum(self.terms, terms)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        if type(other) is int and not other:
            return self
        terms = _key_of(other)
        return lazy_imports.compute_real("-", self, other) if terms is None else _difference(self.terms, terms)

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __neg__(self) -> Size:
        return Size("", tuple([(factors, -coefficient) for factors, coefficient in self.terms]))

    def __pos__(self) -> Size:
        return self

    def __mul__(self, other: Any) -> Any:
        terms = _key_of(other)
        return lazy_imports.compute_real("*", self, other) if terms is None else _product(self.terms, terms)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        if terms_of(other) is None:
            return lazy_imports.compute_real("//", self, other)
        return divide(self, _dimension_of(other))

    def __rfloordiv__(self, other: Any) -> Any:
        if terms_of(other) is None:
            return lazy_imports.compute_real("//", other, self)
        return divide(_dimension_of(other), self)

    def __pow__(self, other: Any) -> Any:
        if not isinstance(other, int) or other < 0:
            return lazy_imports.compute_real("**", self, other)
        # The term with the most factors remains in the power: no other term cancels it out.
        check_count(other * max([count_in([term]) for term in self.terms]))
        return multiply(*[self] * other)

    def __and__(self, other: Any) -> Any:
        return NotImplemented if terms_of(other) is None else call_of("&", self, _dimension_of(other))

    __rand__ = __and__

    def __mod__(self, other: Any) -> Any:
        return lazy_imports.compute_real("%", self, other) if terms_of(other) is None else self - self // other * other

    def __rmod__(self, other: Any) -> Any:
        return lazy_imports.compute_real("%", other, self) if terms_of(other) is None else other - other // self * self

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    __truediv__, __rtruediv__ = _real("/")
    __rpow__ = _real("**")[1]

    def sqrt(self) -> Any:
        """The square root, a real number; `numpy.sqrt` calls it, too.

        >>> import opweave as ow
        >>> (ow.Size("n") + 1).sqrt()
        sqrt(n + 1)
        """
        return lazy_imports.compute_real("sqrt", self)

    def log(self) -> Any:
        """The natural logarithm, a real number; `numpy.log` calls it, too.

        >>> import opweave as ow
        >>> ow.Size("n").log()
        log(n)
        """
        return lazy_imports.compute_real("log", self)

    # Operations on bits ask for the number.
    __or__, __ror__ = _of_numbers(operator.or_)
    __xor__, __rxor__ = _of_numbers(operator.xor)
    __lshift__, __rlshift__ = _of_numbers(operator.lshift)
    __rshift__, __rrshift__ = _of_numbers(operator.rshift)

    # Comparison ------------------------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return bool(self.name) and self.name == other
        # Comparisons with 0 and with the same formula are frequent: compilers ask for each shape whether it is empty.
        if type(other) is int and other == 0:
            return _decide("zero", self)
        if isinstance(other, Size) and other.terms == self.terms:
            return True
        return NotImplemented if terms_of(other) is None else _decide("zero", self - other)

    def __lt__(self, other: Any) -> bool:
        if isinstance(other, float):
            return _compare_float(operator.lt, self, other, ceil)
        return NotImplemented if terms_of(other) is None else _decide("negative", self - other)

    def __le__(self, other: Any) -> bool:
        if isinstance(other, float):
            return _compare_float(operator.le, self, other, floor)
        return NotImplemented if terms_of(other) is None else _decide("negative", self - other - 1)

    def __gt__(self, other: Any) -> bool:
        if isinstance(other, float):
            return _compare_float(operator.gt, self, other, floor)
        return NotImplemented if terms_of(other) is None else _decide("negative", other - self)

    def __ge__(self, other: Any) -> bool:
        if isinstance(other, float):
            return _compare_float(operator.ge, self, other, ceil)
        return NotImplemented if terms_of(other) is None else _decide("negative", other - self - 1)

    def __bool__(self) -> bool:
        return not _decide("zero", self)

    def __index__(self) -> int:
        scope = current_scope.get()
        return refuse(f"{self} as a number") if scope is None else scope.number(self)

    __int__ = __index__

    def __float__(self) -> float:
        return float(int(self))


_unknown_numbers = count(1)


def unknown_size() -> Any:
    """A new size without a formula, such as the one that depends on which of two branches a function took."""
    return size_of({(Factor("unknown", UnknownName(f"?{next(_unknown_numbers)}")),): 1})


def unknown_name(size: object) -> UnknownName | None:
    """The name of a size without a formula; None for others."""
    if type(size) is not Size or len(size.terms) > 1:
        return None
    factors, coefficient = size.terms[0]
    name = factors[0].text if coefficient == 1 and len(factors) == 1 else ""
    return name if isinstance(name, UnknownName) else None


def is_unknown(size: object) -> bool:
    """Whether a dimension is a size without a formula."""
    return unknown_name(size) is not None


# ---------------------------------------------------------------------------------------------------------------------
# The normal form


def size_of(terms: Terms) -> Dimension:
    """The normal form of a sum of products: a number, if no names remain."""
    remaining = {factors: coefficient for factors, coefficient in terms.items() if coefficient}
    if remaining.keys() <= {()}:
        return remaining.get((), 0)
    check_count(count_in(remaining.items()))
    check_characters(characters_in(remaining))
    check_integers(remaining.values())
    ordered: Iterable[Term] = remaining.items()
    if len(remaining) > 1:
        ordered = sorted(ordered, key=lambda term: (-len(term[0]), [order_of(factor) for factor in term[0]]))
    return Size("", tuple(ordered))


def call_of(kind: str, *arguments: Dimension) -> Dimension:
    """The size that a function of sizes gives, one that is no polynomial."""
    check_integers([argument for argument in arguments if isinstance(argument, int)])
    if kind in INFIX:
        left, right = arguments
        first = f"({left})" if isinstance(left, Size) and not _is_product(left) else left
        second = f"({right})" if isinstance(right, Size) and not right.name else right
        text = f"{first} {kind} {second}"
    else:
        text = f"{kind}({', '.join(map(str, arguments))})"
    return size_of({(Factor(kind, text, arguments),): 1})


def _is_product(size: Size) -> bool:
    return bool(size.name) or (len(size.terms) == 1 and size.terms[0][1] == 1)


def terms_of(value: object) -> Terms | None:
    """The terms of an integer or a size; None for other values."""
    if isinstance(value, Size):
        return dict(value.terms)
    if type(value) is int:
        return {(): value}
    if isinstance(value, bool) or not isinstance(value, Integral):
        return None
    return {(): operator.index(value)}


def _dimension_of(value: Any) -> Dimension:
    """A size, or an integer of any type as one of Python's."""
    return value if isinstance(value, Size) else operator.index(value)


def _key_of(value: object) -> tuple[Term, ...] | None:
    """The terms of an integer or a size, as a key; None for other values."""
    if isinstance(value, Size):
        return value.terms
    if type(value) is int:
        return (((), value),)
    terms = terms_of(value)
    return None if terms is None else tuple(terms.items())


@lru_cache(MAX_RESULTS)
def _sum(left: tuple[Term, ...], right: tuple[Term, ...]) -> Dimension:
    total = dict(left)
    for factors, coefficient in right:
        total[factors] = total.get(factors, 0) + coefficient
    return size_of(total)


@lru_cache(MAX_RESULTS)
def _difference(left: tuple[Term, ...], right: tuple[Term, ...]) -> Dimension:
    total = dict(left)
    for factors, coefficient in right:
        total[factors] = total.get(factors, 0) - coefficient
    return size_of(total)


@lru_cache(MAX_RESULTS)
def _product(left: tuple[Term, ...], right: tuple[Term, ...]) -> Dimension:
    check_count(count_in_product(left, right))
    product: Terms = {}
    for one, a in left:
        for other, b in right:
            key = tuple(sorted((*one, *other), key=order_of))
            product[key] = product.get(key, 0) + a * b
    return size_of(product)


def divide(dividend: Dimension, divisor: Dimension) -> Dimension:
    """floor(dividend / divisor). Terms that the divisor divides leave the call: (n m + 3) // m = n + 3 // m.

    >>> n, m = Size("n"), Size("m")
    >>> divide(2 * n + 2, n + 1), divide(n * m - m, 1 - n), divide(2 * n + 3, n + 1)
    (2, -m, (2*n + 3) // (n + 1))
    """
    if isinstance(dividend, int) and isinstance(divisor, int):
        return dividend // divisor
    if isinstance(dividend, int) and dividend == 0:
        return 0
    if isinstance(dividend, int) and dividend == -1 and interval(divisor)[0] >= 0:
        return -1  # the divisor is not 0
    if isinstance(divisor, int) or len(divisor.terms) == 1:
        ((factors, coefficient),) = ({(): divisor} if isinstance(divisor, int) else dict(divisor.terms)).items()
        if coefficient == 0:
            raise ZeroDivisionError(f"{dividend} // 0")
        quotient: Terms = {}
        remainder: Terms = {}
        for product, number in (terms_of(dividend) or {}).items():
            reduced = _without(product, factors)
            if reduced is None or number % coefficient:
                remainder[product] = number
            else:
                quotient[reduced] = number // coefficient
        if quotient:
            return size_of(quotient) + divide(size_of(remainder), divisor)
    if isinstance(divisor, int) and divisor < 0:
        return divide(-dividend, -divisor)
    if isinstance(dividend, Size) and isinstance(divisor, Size):
        ratio = _ratio(dividend, divisor)
        if ratio is not None:
            return ratio
    return call_of("//", dividend, divisor)


def _ratio(dividend: Size, divisor: Size) -> Dimension | None:
    """The quotient of two sums if it is exact and a single term, as (2 n + 2) / (n + 1) = 2; otherwise None."""
    if len(dividend.terms) != len(divisor.terms):
        return None
    factors, coefficient = divisor.terms[0]
    for product, number in dividend.terms:
        reduced = _without(product, factors)
        if reduced is not None and number % coefficient == 0:
            ratio = size_of({reduced: number // coefficient})
            if (ratio * divisor).terms == dividend.terms:
                return ratio
    return None


def _without(product: Sequence[Factor], factors: Iterable[Factor]) -> tuple[Factor, ...] | None:
    """A product divided by some of its factors; None if it does not have all of them."""
    reduced = list(product)
    for factor in factors:
        if factor not in reduced:
            return None
        reduced.remove(factor)
    return tuple(reduced)


def _from_terms(terms: Iterable[tuple[Iterable[tuple[Any, ...]], int]]) -> Dimension:
    return size_of({tuple(Factor(*factor) for factor in factors): coefficient for factors, coefficient in terms})


# ---------------------------------------------------------------------------------------------------------------------
# Comparisons


def _decide(question: Question, difference: Dimension) -> bool:
    scope = current_scope.get()
    # Without a scope, equality agrees with the hash, and so with the normal form.
    is_formal = scope is None and question == "zero" and isinstance(difference, Size)
    decided = None if is_formal else answer_for_all(question, difference)
    if decided is not None:
        return decided
    assert isinstance(difference, Size)
    condition = question, primitive_of(difference) if question == "zero" else difference
    return decide_without_scope(condition) if scope is None else scope.decide(condition)


def primitive_of(size: Size) -> Size:
    """The size divided by the common divisor of its coefficients, with a positive first one."""
    divisor = gcd(*[coefficient for _, coefficient in size.terms])
    sign = -1 if size.terms[0][1] < 0 else 1
    if sign * divisor == 1:
        return size
    reduced = size_of({factors: sign * coefficient // divisor for factors, coefficient in size.terms})
    assert isinstance(reduced, Size)
    return reduced


def is_static(shape: Iterable[Any]) -> bool:
    """Whether all dimensions are numbers."""
    return Size not in map(type, shape)


def is_symbolic(value: Any) -> bool:
    """Whether a dimension or an attribute has sizes."""
    return isinstance(value, Size) or (isinstance(value, tuple) and any(map(is_symbolic, value)))


def is_same_size(left: Dimension, right: Dimension) -> bool:
    """Whether dimensions are equal for all sizes; False if that is unknown."""
    if isinstance(left, Size) and isinstance(right, Size):
        return left.terms == right.terms  # normal forms
    difference = left - right
    return isinstance(difference, int) and difference == 0


def is_multiple(size: Dimension, divisor: int) -> bool:
    """Whether a dimension is a multiple of a number for all sizes, as far as formulas tell.

    >>> is_multiple(4 * Size("n") + 8, 4), is_multiple(Size("n"), 4)
    (True, False)
    """
    return is_same_size(size % divisor, 0)


def is_same_shape(left: Sequence[Dimension], right: Sequence[Dimension]) -> bool:
    """Whether shapes are equal for all sizes; False if that is unknown."""
    return len(left) == len(right) and all(map(is_same_size, left, right))


def may_exceed(dimension: Dimension, length: float) -> bool:
    """Whether a dimension is more than `length` for some sizes; True if that is unknown."""
    return interval(dimension)[1] > length if isinstance(dimension, Size) else dimension > length
