"""Attributes and shapes with sizes: the numbers in place of sizes, and the names that they depend on."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from .size_calls import add, multiply
from .size_evaluation import SizesOfCall
from .size_terms import Factor, variables_of
from .sizes import Dimension, Size, call_of


class HasSizes(ABC):
    """An attribute that contains sizes, such as a formula."""

    __slots__ = ()

    @property
    @abstractmethod
    def shapes(self) -> tuple[Any, ...]:
        """Nested tuples of the dimensions on which it depends."""

    @abstractmethod
    def at(self, sizes: Mapping[str, int]) -> HasSizes:
        """The attribute with the numbers for sizes by name."""


def at(dimension: Dimension, sizes: Mapping[str, int]) -> int:
    """The number of a dimension for sizes by name."""
    return dimension if isinstance(dimension, int) else dimension.at(sizes)


def values_at(value: Any, sizes: Mapping[str, int]) -> Any:
    """An attribute or a shape, with the numbers for sizes by name."""
    if isinstance(value, tuple):
        # A new combination of sizes evaluates about a thousand dimensions, and calls of this function take most of the time.
        return tuple(
            [
                item if type(item) is int else item.at(sizes) if type(item) is Size else values_at(item, sizes)
                for item in value
            ]
        )
    return value.at(sizes) if isinstance(value, (Size, HasSizes)) else value


def values_in_scope(value: Any) -> Any:
    """An attribute or a shape, with the numbers of sizes in the scope, which must have numbers."""
    if isinstance(value, tuple):
        return tuple(values_in_scope(item) for item in value)
    return operator.index(value) if isinstance(value, Size) else value


_WITHOUT_SIZES = frozenset({int, float, str, bool, type(None)})


def sizes_in(value: Any) -> list[Size]:
    """The sizes in an attribute, or in nested tuples."""
    if isinstance(value, tuple):
        return [size for item in value if type(item) is not int for size in sizes_in(item)]
    if isinstance(value, Size):
        return [value]
    # Most attributes are numbers, texts and truth values, and looking for an abstract class takes long.
    return sizes_in(value.shapes) if type(value) not in _WITHOUT_SIZES and isinstance(value, HasSizes) else []


def variables_in(value: Any) -> set[str]:
    """The names of the sizes that an attribute, or nested tuples, depend on, with those without a formula."""
    return {name for size in sizes_in(value) for name in variables_of(size)}


def rename(dimension: Dimension, names: Mapping[str, str]) -> Dimension:
    """The dimension with other names.

    >>> rename(2 * Size("rows") + 1, {"rows": "n"})
    2*n + 1
    """
    if isinstance(dimension, int):
        return dimension

    def renamed(factor: Factor) -> Dimension:
        if factor.arguments:
            return call_of(factor.kind, *[rename(argument, names) for argument in factor.arguments])
        return Size(names[factor.text])

    products = [multiply(coefficient, *map(renamed, factors)) for factors, coefficient in dimension.terms]
    total: Dimension = add(*products)
    return total


def match_sizes(pairs: Iterable[tuple[Iterable[Any], Iterable[int]]]) -> dict[str, int] | None:
    """The size of each name, given pairs of a shape with names and a shape of the same rank; None if they do not fit.

    >>> n = Size("n")
    >>> match_sizes([((n, 3), (2, 3)), ((n,), (2,))]), match_sizes([((n, n), (2, 3))])
    ({'n': 2}, None)
    """
    sizes = SizesOfCall()
    for named, shape in pairs:
        for declared, size in zip(named, shape, strict=True):
            if (sizes.setdefault(declared.name, size) if isinstance(declared, Size) else declared) != size:
                return None
    return sizes
