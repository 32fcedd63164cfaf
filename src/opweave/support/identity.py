"""Values of objects, by identity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import ref

K = TypeVar("K")
V = TypeVar("V")


class ByIdentity(Generic[K, V]):
    """A mapping of objects to values, each for as long as its object lives; `peek` takes the `id` of a live object.

    A lookup is one in a dictionary, while `weakref.WeakKeyDictionary` makes a weak reference for each lookup, in Python.

    >>> class Run: ...
    >>> first, second = Run(), Run()
    >>> times = ByIdentity()
    >>> times.put(first, 3)
    3
    >>> times.peek(id(first)), times.peek(id(second))
    (3, None)
    >>> del first
    >>> len(times)
    0
    """

    __slots__ = ("__weakref__", "_owners", "_values", "peek")

    def __init__(self) -> None:
        self._values: dict[int, V] = {}
        self._owners: dict[int, ref[K]] = {}
        self.peek: Callable[[int], V | None] = self._values.get

    def __len__(self) -> int:
        return len(self._values)

    def put(self, owner: K, value: V) -> V:
        """Set the value of an object, and return the value."""
        # A reference to `self` would make a cycle, which keeps the values until a garbage collection.
        number, mapping = id(owner), ref(self)

        def forget(_: object) -> None:
            live = mapping()
            if live is not None:
                live.drop(number)

        self._owners[number] = ref(owner, forget)
        self._values[number] = value
        return value

    def drop(self, number: int) -> None:
        """Drop the value of the object with this `id`, if it has one."""
        self._values.pop(number, None)
        self._owners.pop(number, None)


__all__ = ["ByIdentity"]
