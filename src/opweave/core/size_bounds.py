"""Bounds of extents. Loops have extents of at least 1, so names are at least 1 here; `size_terms` takes names from 0."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import inf, prod
from typing import TypeAlias

from .size_calls import divide_bound
from .size_terms import MAX_INTERVALS, Factor, Term, order_of
from .size_values import variables_in
from .sizes import Dimension

MAX_EXPANDED = 1000
"""Maximum number of terms of an expanded product: that of k names has 2**k terms."""

Expansion: TypeAlias = dict[tuple[Factor, ...], float]
"""Coefficients by their factors, each of which stands for its excess over its least value."""


def lower_bound(extent: Dimension) -> float:
    """Return a lower bound of an extent whose names are at least 1; -inf if there is none.

    >>> from opweave.core.sizes import Size
    >>> n, m = Size("n"), Size("m")
    >>> lower_bound(n * m - m), lower_bound(n - m)
    (0, -inf)
    """
    return extent if isinstance(extent, int) else _lower_bound_of(extent.terms)


@lru_cache(MAX_INTERVALS)
def _lower_bound_of(terms: tuple[Term, ...]) -> float:
    # Replace each factor by `least + excess`, with excess >= 0. If all other terms are 0 or more, the constant is a bound.
    total: Expansion = {(): 0}
    for factors, coefficient in terms:
        product = _expand(factors, coefficient)
        if product is None:
            return -inf
        for key, number in product.items():
            ordered = tuple(sorted(key, key=order_of))
            total[ordered] = total.get(ordered, 0) + number
    constant = total.pop(())
    return constant if min(total.values(), default=0) >= 0 else -inf


def _expand(factors: Sequence[Factor], coefficient: int) -> Expansion | None:
    """The terms of a product whose factors are `least + excess`; None if a factor has no least value."""
    least = [_least(factor) for factor in factors]
    if any(isinstance(number, float) for number in least):  # infinite; integers may be beyond the range of floats
        return None
    product: Expansion = {(): coefficient}
    for factor, number in zip(factors, least, strict=True):
        expanded = {key: value * number for key, value in product.items()}
        for key, value in product.items():
            expanded[*key, factor] = expanded.get((*key, factor), 0) + value
        product = expanded
        if len(product) > MAX_EXPANDED:
            return {(): coefficient * prod(least)} if coefficient > 0 and min(least) >= 0 else None
    return product


@lru_cache(MAX_INTERVALS)
def _least(factor: Factor) -> float:
    if not factor.arguments:
        return 1
    least = [lower_bound(argument) for argument in factor.arguments]
    if factor.kind == "max":
        return max(least)
    if factor.kind == "&":
        return 0 if max(least) >= 0 else -inf
    if factor.kind in ("min", "broadcast"):
        return min(least)
    if factor.kind == "where":
        return min(least[1:])
    if factor.kind != "//":
        return factor.interval()[0]
    divisor = factor.arguments[1]
    if isinstance(divisor, int) and divisor > 0:
        return divide_bound(least[0], divisor)
    return 0 if least[0] >= 0 and least[1] >= 1 else -inf


def names_in_empty(extents: Iterable[Dimension]) -> set[str]:
    """The names in extents that are 0 or less for the sizes of the current run.

    >>> from opweave.core.guards import Guards
    >>> from opweave.core.sizes import Size
    >>> n, m = Size("n"), Size("m")
    >>> with Guards({"n": 3, "m": 2}).deciding():
    ...     names_in_empty([n, n - 3, m - 1])
    {'n'}
    """
    return variables_in(tuple(extent for extent in extents if lower_bound(extent) < 1 and extent < 1))


def is_always_less(left: Dimension, right: Dimension) -> bool:
    """Whether an extent is less than another one for all sizes; False if that is unknown."""
    return lower_bound(right - left) >= 1
