"""Terms of sizes: their factors, and the number, text and bounds of terms."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from math import gcd, inf
from typing import TYPE_CHECKING, Any, TypeAlias

from ..support.names import printable
from .desc import MAX_DIMENSION
from .formula_limits import check_depth
from .size_calls import INFIX, INTERVALS, Interval, add_bounds, divide_bound, multiply_bounds

if TYPE_CHECKING:
    from .sizes import Dimension, Size

MAX_QUOTIENTS = 32
"""Maximum number of quotients that `linear_interval` replaces; formulas of networks have as many as they have strides."""

MAX_INTERVALS = 4096
"""Number of formulas whose bounds are kept. An estimate: a detector asks 4,000 times for the bounds of 229 formulas."""


class Factor:
    """A factor of a term: a name, a call, or a size without a formula. Factors are equal if kind and text are.

    Attributes:
        depth: the number of nested calls.
        count: the number of names and calls, with those in arguments.
        key: the key by which factors are sorted.
    """

    __slots__ = ("_bounds", "_hash", "arguments", "count", "depth", "key", "kind", "text")

    def __init__(self, kind: str, text: str, arguments: tuple[Dimension, ...] = ()) -> None:
        self.kind, self.text, self.arguments = kind, text, arguments
        self.depth = 1 + max(map(depth_of, arguments)) if arguments else 0
        check_depth(self.depth)
        self.count = 1 + sum(map(count_of, arguments))
        self._bounds: Interval | None = None
        self.key = text, kind
        self._hash = hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Factor) and (self.kind, self.text) == (other.kind, other.text)

    def __hash__(self) -> int:
        return self._hash

    def interval(self) -> Interval:
        """Bounds of the value, cached: formulas share their parts."""
        if self._bounds is None:
            self._bounds = self._interval()
        return self._bounds

    def _interval(self) -> Interval:
        if self.kind in INTERVALS:
            return INTERVALS[self.kind](*map(interval, self.arguments))
        if self.kind == "//" and isinstance(self.arguments[1], int) and self.arguments[1] > 0:
            divisor = self.arguments[1]
            low, high = interval(self.arguments[0])
            return divide_bound(low, divisor), divide_bound(high, divisor)
        if self.kind in INFIX:
            return -inf, inf
        if not self.arguments:
            return 0, MAX_DIMENSION if self.kind == "name" else inf
        lows, highs = zip(*map(interval, self.arguments), strict=True)
        return min(lows), max(highs)


order_of = operator.attrgetter("key")
"""The key by which factors are sorted."""

Term: TypeAlias = tuple[tuple[Factor, ...], int]
"""Factors, and a coefficient."""

Terms: TypeAlias = dict[tuple[Factor, ...], int]
"""Coefficients by their factors."""


class Polynomial:
    """Base of `Size`, for code that reads terms. `Size` adds the arithmetic.

    Attributes:
        terms: the normal form: terms with different factors, in order.
    """

    __slots__ = ("terms",)
    terms: tuple[Term, ...]


def factors_of(polynomial: Polynomial) -> Iterator[Factor]:
    """The factors of all terms, and those of their arguments."""
    for factors, _ in polynomial.terms:
        for factor in factors:
            yield factor
            for argument in factor.arguments:
                if isinstance(argument, Polynomial):
                    yield from factors_of(argument)


def variables_of(dimension: Dimension) -> list[str]:
    """The names of the sizes that a dimension depends on, with those without a formula, in order."""
    factors = factors_of(dimension) if isinstance(dimension, Polynomial) else ()
    return list(dict.fromkeys(factor.text for factor in factors if not factor.arguments))


def depth_of(dimension: Dimension) -> int:
    """The number of nested calls in a formula."""
    if not isinstance(dimension, Polynomial):
        return 0
    return max([factor.depth for factors, _ in dimension.terms for factor in factors], default=0)


def count_of(dimension: Dimension) -> int:
    """The number of names and calls in a formula."""
    return count_in(dimension.terms) if isinstance(dimension, Polynomial) else 0


def characters_of(dimension: Dimension) -> int:
    """The length of the names and calls in a formula."""
    return characters_in([factors for factors, _ in dimension.terms]) if isinstance(dimension, Polynomial) else 0


def count_in(terms: Iterable[Term]) -> int:
    """The number of names and calls in terms."""
    return sum([factor.count for factors, _ in terms for factor in factors])


def characters_in(products: Iterable[tuple[Factor, ...]]) -> int:
    """The length of the names and calls in products."""
    return sum([len(factor.text) for factors in products for factor in factors])


def count_in_product(left: Collection[Term], right: Collection[Term]) -> int:
    """The number of names and calls in a product, before equal terms are added."""
    return count_in(left) * len(right) + count_in(right) * len(left)


def text_of(terms: Iterable[Term]) -> str:
    """The formula as text."""
    texts: list[str] = []
    for factors, coefficient in terms:
        names = [
            f"({f.text})" if f.kind in INFIX else printable(f.text) if f.kind == "name" else f.text for f in factors
        ]
        sign = ("- " if coefficient < 0 else "+ ") if texts else "-" * (coefficient < 0)
        number = [str(abs(coefficient))] if abs(coefficient) != 1 or not names else []
        texts.append(sign + "*".join([*number, *names]))
    text = " ".join(texts)
    is_infix = len(texts) == 1 and text.startswith("(") and len(factors) == 1 and factors[0].kind in INFIX
    return text[1:-1] if is_infix else text


def interval(dimension: Dimension) -> Interval:
    """Bounds of a dimension, if names are at least 0."""
    return _interval(dimension.terms) if isinstance(dimension, Polynomial) else (dimension, dimension)


def _interval_of(terms: Iterable[tuple[tuple[Factor, ...], Any]]) -> Interval:
    low: Any = 0
    high: Any = 0
    for factors, coefficient in terms:
        least: Any = 1
        most: Any = 1
        for factor in factors:
            corners = [multiply_bounds(a, b) for a in (least, most) for b in factor.interval()]
            least, most = min(corners), max(corners)
        ends = multiply_bounds(coefficient, least), multiply_bounds(coefficient, most)
        low, high = add_bounds(low, min(ends)), add_bounds(high, max(ends))
    return low, high


_interval = lru_cache(MAX_INTERVALS)(_interval_of)
"""The bounds of a normal form. Each operation of a graph asks for those of its shapes, which are few."""


def linear_interval(size: Size) -> Interval:
    """Bounds of a difference: in `2 * (n // 2) - n`, the quotient cannot be replaced by bounds alone.

    With n // d = (n - r) / d and 0 <= r < d, the quotient becomes linear in n, and cancels out with other terms.

    >>> from opweave.core.sizes import Size
    >>> n = Size("n")
    >>> [linear_interval(size) for size in (n - 2 * (n // 2), 3 * ((n + 2) // 3) - n)]
    [(0, 1), (0, 2)]
    """
    return _linear_interval(size.terms)


@lru_cache(MAX_INTERVALS)
def _linear_interval(terms: tuple[Term, ...]) -> Interval:
    """Bounds of the sum of these terms; integers, since all terms are, or infinite."""
    low, high = _interval(terms)
    # Coefficients and remainders are numerators over `denominator`.
    numerators, denominator = dict(terms), 1
    remainder_low = remainder_high = 0
    for _ in range(MAX_QUOTIENTS):
        key = next((factors for factors in numerators if len(factors) == 1 and _is_quotient(factors[0])), None)
        if key is None:
            break
        dividend, divisor = key[0].arguments
        assert isinstance(divisor, int)
        scale = divisor // gcd(numerators[key], divisor)
        numerators = {factors: number * scale for factors, number in numerators.items()}
        denominator, remainder_low, remainder_high = denominator * scale, remainder_low * scale, remainder_high * scale
        factor = numerators.pop(key) // divisor
        for factors, coefficient in dividend.terms if isinstance(dividend, Polynomial) else [((), dividend)]:
            numerators[factors] = numerators.get(factors, 0) + factor * coefficient
        remainder = -factor * (divisor - 1)
        remainder_low, remainder_high = remainder_low + min(remainder, 0), remainder_high + max(remainder, 0)
        least, most = _interval_of((factors, number) for factors, number in numerators.items() if number)
        low = max(low, -divide_bound(-add_bounds(least, remainder_low), denominator))
        high = min(high, divide_bound(add_bounds(most, remainder_high), denominator))
    return low, high


def _is_quotient(factor: Factor) -> bool:
    return factor.kind == "//" and isinstance(factor.arguments[1], int) and factor.arguments[1] > 0
