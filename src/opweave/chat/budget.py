"""Limit the memory and time of a chat template.

Values in a template are immutable, apart from namespaces. So if every value is small, every operation is fast, and the memory
of a template is the sum of the sizes of all values.
"""

from __future__ import annotations

import re
from collections.abc import ItemsView, KeysView, Mapping, ValuesView
from sys import getsizeof
from time import thread_time
from typing import Any

from ..support.errors import DataError

MAX_TEXT = 2**22
"""Maximum characters of a text, about as many as the longest contexts of published models hold."""

MAX_VALUE = 2**24
"""Maximum bytes of a value, nested values included: a text of MAX_TEXT characters of 4 bytes."""

MAX_TOTAL = 2**27
"""Maximum bytes of all values that a template creates, dead ones included."""

MAX_BITS = 2**13
"""Maximum bits of an integer; Python writes no integers of more than 14,285 bits."""

MAX_SECONDS = 2.0
"""Maximum processor time of a template. Templates of published models take milliseconds for a long conversation."""

_VIEWS = (KeysView, ValuesView, ItemsView)
_SEQUENCES = (list, tuple, set, frozenset, *_VIEWS)


class LimitError(DataError):
    """A template takes too much memory or time, or its text is too long."""


class Budget:
    """The memory and time that a template has left; `title` is its name in messages."""

    def __init__(self, title: str, limit: int) -> None:
        self._title = title
        self.begin(limit)

    def begin(self, limit: int) -> None:
        """Start a new text of at most `limit` characters."""
        self._text = self._limit = limit
        self._left = MAX_TOTAL
        self._end = thread_time() + MAX_SECONDS

    def _limit_error(self, rule: str) -> LimitError:
        return LimitError(f"{self._title} {rule}")

    def step(self, size: int = 0) -> str:
        """Count a step, and text of `size` characters; return an empty text, since the template writes the result."""
        self._left -= size
        if self._left < 0:
            raise self._limit_error(f"makes more than {MAX_TOTAL // 2**20} MiB of values")
        if thread_time() > self._end:
            raise self._limit_error(f"takes more than {MAX_SECONDS:g} s")
        return ""

    def write(self, part: str) -> None:
        """Count a part of the text."""
        self._text -= len(part)
        if self._text < 0:
            raise self._limit_error(f"writes more than {self._limit:,} characters")

    def admit(self, value: Any) -> Any:
        """Count a new value and all nested values; return the value."""
        self.step(self.require_small(value))
        return value

    def admit_container(self, value: Any) -> Any:
        """Count a new value, but not nested values, which have been counted already; return the value."""
        self.require_small(value)
        self.step(getsizeof(value))
        return value

    def require_text(self, size: int) -> None:
        """Require that a text of `size` characters is not too long."""
        if size > MAX_TEXT:
            raise self._limit_error(f"makes a text of more than {MAX_TEXT:,} characters")

    def require_small(self, value: Any) -> int:
        """Require that a value is not too large; return the bytes of the value and of all nested values.

        A nested list that occurs twice counts twice, since it is written twice.
        """
        pending, total = [value], 0
        while pending:
            item = pending.pop()
            if isinstance(item, str):
                self.require_text(len(item))
            elif isinstance(item, int):
                if item.bit_length() > MAX_BITS:
                    raise self._limit_error(f"makes an integer of more than {MAX_BITS:,} bits")
            elif isinstance(item, Mapping):
                pending += item.keys()
                pending += item.values()
            elif isinstance(item, _SEQUENCES):
                pending += item
            total += getsizeof(item)
            # Each pending value takes at least a pointer.
            if total + 8 * len(pending) > MAX_VALUE:
                raise self._limit_error(f"makes a value of more than {MAX_VALUE // 2**20} MiB")
        return total

    def require_operands(self, operator: str, left: Any, right: Any) -> None:
        """Require that the result of an operator is not too large, before the operator runs."""
        if operator == "%" and isinstance(left, (str, bytes)):
            self.require_text(size_of_printf(left, right))
        elif isinstance(left, int) and isinstance(right, int):
            if operator == "**" and right > 0 and left.bit_length() * right > 2 * MAX_BITS:
                raise self._limit_error(f"makes an integer of more than {MAX_BITS:,} bits")
        elif operator == "*":
            for values, count in ((left, right), (right, left)):
                if isinstance(values, (str, bytes, list, tuple)) and isinstance(count, int):
                    self.require_text(len(values) * count)
        elif operator == "+" and isinstance(left, str) and isinstance(right, str):
            self.require_text(len(left) + len(right))


def size_of_printf(form: str | bytes, values: Any) -> int:
    """Bound the characters of `form % values`.

    >>> size_of_printf("%5d, %*s", (1, 20, "abc")) >= len("%5d, %*s" % (1, 20, "abc"))
    True
    """
    text = form if isinstance(form, str) else form.decode("latin-1")
    size = len(text) + sum(int(item[:20]) for item in re.findall(r"\d+", text))
    if isinstance(values, Mapping):
        return size + text.count("%") * max((len(repr(item)) for item in values.values()), default=0)
    values = values if isinstance(values, tuple) else (values,)
    widths = [abs(item) for item in values if isinstance(item, int)]
    return size + text.count("*") * max(widths, default=0) + sum(map(_length_of, values))


def _length_of(value: Any) -> int:
    return len(value) if isinstance(value, (str, bytes)) else 0


def size_of_replaced(s: str, old: str, new: str, count: int | None = None) -> int:
    """Bound the characters of `s.replace(old, new)`.

    >>> size_of_replaced("aba", "a", "12345"), size_of_replaced("ab", "", "-")
    (13, 5)
    """
    times = s.count(old)
    times = times if count is None or count < 0 else min(times, count)
    return len(s) + times * len(new)
