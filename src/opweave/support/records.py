"""Classes that only hold values, for modules that every program loads.

>>> @record
... class Range:
...     low: int
...     high: int = 10
>>> Range(3).high, Range(low=1, high=2).low
(10, 1)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """Make a dataclass with slots, which type checkers treat as frozen.

    Objects are equal only to themselves. A frozen dataclass also gets methods that compare, hash, print and protect its
    objects; compiling these methods for all classes takes a large part of a cold start.
    """
    return dataclass(eq=False, repr=False, slots=True)(cls)
