"""Results of rules that a single expression cannot describe, or not efficiently."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....expr.array import Array
from ..contraction.problem import Problem


@dataclass(frozen=True, slots=True)
class Scatter:
    """A copy of an array with some elements replaced, in any order.

    Attributes:
        into: the array to copy.
        shape: how many elements are written then; for each position `p` in it, `result[at(*p)] = value(*p)`.
        at: takes a position, and returns an index for each axis of the result, all of them inside of it.
        value: takes a position, and returns the element to write there.
    """

    into: Array
    shape: tuple[int, ...]
    at: Callable[..., Sequence[Array]]
    value: Callable[..., Array]


@dataclass(frozen=True, slots=True)
class Products:
    """A result whose elements are sums of products, for which there are kernels of their own.

    Attributes:
        problem: what is multiplied and added up; its sources are what the operands load, all of them in memory.
        finish: takes the sums, in the shape of the result, and returns the result: with a bias, say.
    """

    problem: Problem
    finish: Callable[[Array], Array] = lambda total: total
