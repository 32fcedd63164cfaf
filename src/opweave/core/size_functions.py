"""Arithmetic on integers and sizes that never pins a size: a result that depends on sizes becomes a call in a formula."""

from __future__ import annotations

from typing import Any, Literal

from .size_calls import quotient_of_numbers, remainder_of_numbers
from .size_scope import answer_for_all
from .size_terms import interval, linear_interval
from .sizes import Dimension, Size, call_of, divide, is_same_size


def broadcast_size(*sizes: Any) -> Any:
    """Return the dimension to which sizes broadcast: the one that is not 1."""
    others = list(dict.fromkeys(size for size in sizes if not (isinstance(size, int) and size == 1)))
    if not others:
        return 1
    numbers = [size for size in others if isinstance(size, int)]
    if numbers:
        return numbers[0]
    return others[0] if len(others) == 1 else call_of("broadcast", *sorted(others, key=str))


def is_less(a: Dimension, b: Dimension) -> Dimension:
    """Return 1 if a < b, else 0.

    >>> from opweave.core.sizes import Size
    >>> n = Size("n")
    >>> is_less(3, 4), is_less(n, n + 1), is_less(n, 4)
    (1, 1, n < 4)
    """
    answer = answer_for_all("negative", a - b)
    return call_of("<", a, b) if answer is None else int(answer)


def is_equal(a: Dimension, b: Dimension) -> Dimension:
    """Return 1 if a == b, else 0.

    >>> from opweave.core.sizes import Size
    >>> n = Size("n")
    >>> is_equal(3, 4), is_equal(2 * n - n, n), is_equal(n, 4)
    (0, 1, 4 == n)
    """
    answer = answer_for_all("zero", a - b)
    return call_of("==", *sorted((a, b), key=str)) if answer is None else int(answer)


def truth_of(value: Dimension) -> Dimension:
    """Return 1 if a value differs from 0, else 0."""
    low, high = interval(value)
    return value if low >= 0 and high <= 1 else 1 - is_equal(value, 0)


def choose(condition: Dimension, a: Dimension, b: Dimension) -> Dimension:
    """Return `a` if the condition differs from 0, else `b`.

    >>> from opweave.core.sizes import Size
    >>> n = Size("n")
    >>> choose(1, n, 4), choose(is_less(n, 4), n, n), choose(is_less(n, 4), n, 4)
    (n, n, where(n < 4, n, 4))
    """
    decided = truth_of(condition)
    if isinstance(decided, int):
        return a if decided else b
    return a if is_same_size(a, b) else call_of("where", decided, a, b)


def larger(a: Dimension, b: Dimension) -> Dimension:
    """Return the maximum of two values. Named sizes may be 0, too.

    >>> from opweave.core.sizes import Size
    >>> larger(Size("n"), Size("n") + 1), larger(Size("n"), 4)
    (n + 1, max(4, n))
    """
    return _extreme("max", a, b)


def smaller(a: Dimension, b: Dimension) -> Dimension:
    """Return the minimum of two values. Named sizes may be 0, too.

    >>> from opweave.core.sizes import Size
    >>> smaller(Size("n"), Size("n") + 1), smaller(Size("n"), 4)
    (n, min(4, n))
    """
    return _extreme("min", a, b)


def _extreme(kind: Literal["max", "min"], a: Dimension, b: Dimension) -> Dimension:
    difference = a - b
    low, high = linear_interval(difference) if isinstance(difference, Size) else (difference, difference)
    if high <= 0:
        return b if kind == "max" else a
    if low >= 0:
        return a if kind == "max" else b
    return call_of(kind, *sorted((a, b), key=str))


def truncated_quotient(a: Dimension, b: Dimension) -> Dimension:
    """Return the quotient a / b, truncated toward zero; 0 if b is 0.

    >>> from opweave.core.sizes import Size
    >>> n = Size("n")
    >>> truncated_quotient(-7, 2), truncated_quotient(n * 4, 2), truncated_quotient(n + 1, 2), truncated_quotient(2 - n, 2)
    (-3, 2*n, (n + 1) // 2, (-n + 2) / 2)
    """
    if isinstance(b, int) and b < 0:
        return truncated_quotient(-a, -b)
    if isinstance(b, int) and b == 0:
        return 0
    if interval(b)[0] >= 0:
        quotient = divide(a, b)
        if interval(a)[0] >= 0 or is_same_size(quotient * b, a):
            return choose(is_equal(b, 0), 0, quotient)
    return quotient_of_numbers(a, b) if isinstance(a, int) and isinstance(b, int) else call_of("/", a, b)


def floored_remainder(a: Dimension, b: Dimension) -> Dimension:
    """Return the remainder of a / b with the sign of b, as Python's `%`; 0 if b is 0.

    >>> from opweave.core.sizes import Size
    >>> floored_remainder(-7, 3), floored_remainder(-7, 0), floored_remainder(3 * Size("n"), 3)
    (2, 0, 0)
    """
    if interval(b)[0] >= 1:
        return a - divide(a, b) * b
    return remainder("%", a, b)


def truncated_remainder(a: Dimension, b: Dimension) -> Dimension:
    """Return the remainder of a / b with the sign of a, as `%` in C; 0 if b is 0.

    >>> from opweave.core.sizes import Size
    >>> truncated_remainder(-7, 3), truncated_remainder(7, 0), truncated_remainder(3 * Size("n"), 3)
    (-1, 0, 0)
    """
    if interval(b)[0] >= 1 and interval(a)[0] >= 0:
        return a - divide(a, b) * b
    return remainder("%" if interval(a)[0] >= 0 and interval(b)[0] >= 0 else "fmod", a, b)


def remainder(kind: str, a: Dimension, b: Dimension) -> Dimension:
    """The remainder of a / b with the sign of b (`kind` is "%"), or with that of a ("fmod"); 0 if b is 0.

    As a formula, it has known bounds, which `a - a // b * b` lacks, but is not simplified.

    >>> from opweave.core.sizes import Size, interval
    >>> remainder("%", -7, 3), remainder("%", Size("n") - 7, 3), interval(remainder("%", Size("n") - 7, 3))
    (2, (n - 7) % 3, (0, 2))
    """
    is_number = isinstance(a, int) and isinstance(b, int)
    return remainder_of_numbers(kind, a, b) if is_number else call_of(kind, a, b)
