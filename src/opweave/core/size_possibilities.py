"""Comparisons that hold for some sizes: True if that is unknown. In a run, the real sizes decide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .formula_limits import MAX_FACTORS
from .size_scope import Question, answer_for_all, current_scope
from .size_terms import count_in_product
from .sizes import Dimension, Size, primitive_of


def may_equal(left: Dimension, right: Dimension) -> bool:
    """Whether dimensions are equal for some sizes."""
    if type(left) is type(right) is int:
        return left == right
    return left is right or _may("zero", left - right)


def may_stretch(size: Dimension, whole: Dimension) -> bool:
    """Whether a dimension is 1 or `whole` for some sizes.

    >>> from opweave.core.sizes import Size
    >>> may_stretch(Size("n"), Size("m")), may_stretch(2, Size("m") + 3)
    (True, False)
    """
    return may_be_one_of(size, whole, 1)


def may_be_one_of(size: Dimension, left: Dimension, right: Dimension) -> bool:
    """Whether a dimension is one of two for some sizes."""
    if type(size) is type(left) is type(right) is int:
        return size in (left, right)
    differences: list[Any] = []
    for difference in (size - left, size - right):
        answer = answer_for_all("zero", difference)
        if answer:
            return True
        if answer is None:
            differences.append(difference)
    if len(differences) == 2 and count_in_product(differences[0].terms, differences[1].terms) <= MAX_FACTORS:
        # Code for both cases is the same: one answer keeps it valid for both.
        return _may("zero", differences[0] * differences[1])
    return any(_may("zero", difference) for difference in differences)


def may_be_within(value: Dimension, low: int, high: int) -> bool:
    """Whether a value is in [low, high] for some sizes."""
    return _may("negative", low - 1 - value) and _may("negative", value - high - 1)


def _may(question: Question, difference: Dimension) -> bool:
    answer = answer_for_all(question, difference)
    if answer is not None:
        return answer
    scope = current_scope.get()
    if scope is None or not scope.is_of_run:
        return True
    assert isinstance(difference, Size)
    return scope.decide((question, primitive_of(difference) if question == "zero" else difference))


def may_equal_shape(left: Sequence[Dimension], right: Sequence[Dimension]) -> bool:
    """Whether shapes are equal for some sizes."""
    return left is right or (len(left) == len(right) and all(map(may_equal, left, right)))
