"""The cache of the project: least recently used entries are evicted when there are too many entries or bytes."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from threading import RLock
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakSet, WeakValueDictionary, ref

import numpy as np

K = TypeVar("K")
V = TypeVar("V")

_PLAIN = frozenset({int, bool, str, bytes, type(None)})
_INTEGERS = frozenset({int})


class Statistics(NamedTuple):
    """Size of a cache, and number of lookups that found a value."""

    entries: int
    bytes: int
    hits: int
    misses: int


class Cache(Generic[K, V]):
    """A thread-safe mapping that evicts its least recently used entries.

    Args:
        max_entries: maximum number of entries, which can be changed at any time; None for no limit.
        max_bytes: maximum total of the sizes passed to `put`; can be changed, too; None for no limit.
        raw: whether to compare keys with `==`. By default, keys are passed to `exact`, which distinguishes 1 from True
            and 0.0 from -0.0.
        on_drop: called with each value that is evicted, replaced or cleared, while the cache is not locked.

    `peek` is `dict.get` of the entries, for hot paths. It takes the key as stored, and does not count as a use: a cache that
    is only read in this way evicts its oldest entries.

    >>> sizes = Cache(max_entries=2)
    >>> for value in (1, True, 1.0):
    ...     _ = sizes.put(value, repr(value))
    >>> sizes.get(1), sizes.get(True), sizes.get(1.0)
    (None, 'True', '1.0')
    """

    def __init__(
        self,
        max_entries: int | None = None,
        max_bytes: int | None = None,
        *,
        raw: bool = False,
        on_drop: Callable[[V], object] | None = None,
    ) -> None:
        self.max_entries, self.max_bytes = max_entries, max_bytes
        self._key: Callable[[Any], Any] = (lambda key: key) if raw else exact
        self._on_drop = on_drop
        self._entries: OrderedDict[Any, V] = OrderedDict()
        self._sizes: dict[Any, int] = {}
        self._bytes = self._hits = self._misses = self._deaths = 0
        self._turns: WeakValueDictionary[Any, Any] | None = None
        self._lock = RLock()
        self.peek: Callable[[Any], V | None] = self._entries.get
        _caches.add(self)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return self._key(key) in self._entries

    @property
    def statistics(self) -> Statistics:
        """Current size; hits and misses of `get` and `make` since the start or the last `clear`."""
        with self._lock:
            return Statistics(len(self._entries), self._bytes, self._hits, self._misses)

    def items(self) -> list[tuple[Any, V]]:
        """Stored keys (results of `exact`, unless raw) and values, the least recently used first."""
        with self._lock:
            return list(self._entries.items())

    def get(self, key: K) -> V | None:
        """The value of a key, or None; counts as a use."""
        return self._find(self._key(key))

    def put(self, key: K, value: V, size: int = 0) -> V:
        """Store a value of `size` bytes, unless that exceeds `max_bytes`; return the value."""
        return self._keep(self._key(key), value, size)

    def make(self, key: K, make: Callable[[], V], size: Callable[[V], int] = lambda _: 0) -> V:
        """The value of a key, made and stored if it is missing. Threads that make it at the same time all get the first value.

        A value whose key is not hashable is made each time.
        """
        stored_key = self._key(key)
        try:
            hash(stored_key)
        except TypeError:
            return make()
        value = self._find(stored_key)
        if value is None:
            new = make()
            with self._lock:
                value = self._entries.get(stored_key)
                if value is None:
                    value = self._keep(stored_key, new, size(new))
        return value

    def turn(self, key: K) -> AbstractContextManager[Any]:
        """The lock of a key, which the thread that makes the value holds, so that others wait for the value."""
        with self._lock:
            if self._turns is None:  # each operation has a cache, and few caches have turns
                self._turns = WeakValueDictionary()
            turn: AbstractContextManager[Any] = self._turns.setdefault(self._key(key), RLock())
            return turn

    def pop(self, key: K) -> V | None:
        """Remove and return the value of a key, or None."""
        return self._pop(self._key(key))

    def clear(self) -> None:
        """Drop all entries, and reset the statistics."""
        with self._lock:
            dropped = list(self._entries.values())
            self._entries.clear()
            self._sizes.clear()
            self._bytes = self._hits = self._misses = 0
        self._drop(dropped)

    def renew_locks(self) -> None:
        """Replace locks that threads held in the parent process, which do not exist in the child."""
        self._lock = RLock()
        self._turns = None

    def _find(self, key: Any) -> V | None:
        with self._lock:
            value = self._entries.get(key)
            if value is None:
                self._misses += 1
                return None
            self._entries.move_to_end(key)
            self._hits += 1
            return value

    def _keep(self, key: Any, value: V, size: int) -> V:
        dropped: list[V | None] = []
        with self._lock:
            if _deaths[0] - self._deaths > len(self._entries) // 16:  # drop entries whose keys had collected objects
                self._deaths = _deaths[0]
                dropped += [self._pop(other) for other in list(self._entries) if not _is_alive(other)]
            if (old := self._pop(key)) is not value:
                dropped.append(old)
            if self.max_bytes is not None and size > self.max_bytes:
                dropped.append(value)
            else:
                self._entries[key], self._sizes[key] = value, size
                self._bytes += size
            while (self.max_entries is not None and len(self._entries) > self.max_entries) or (
                self.max_bytes is not None and self._bytes > self.max_bytes
            ):
                dropped.append(self._pop(next(iter(self._entries))))
        self._drop(dropped)
        return value

    def _pop(self, key: Any) -> V | None:
        with self._lock:
            self._bytes -= self._sizes.pop(key, 0)
            return self._entries.pop(key, None)

    def _drop(self, values: Iterable[V | None]) -> None:
        for value in values:
            if value is not None and self._on_drop is not None:
                self._on_drop(value)


def exact(value: Any) -> Any:
    """Make a key that is equal only for values of the same type, and zeros of the same sign.

    Tuples, lists, frozen sets, dataclasses and arrays are compared by their contents; NaN equals NaN. Objects that
    inherit `__eq__` from `object` are referenced weakly. The key of a dictionary is not hashable.

    >>> exact(1) == exact(True), exact(0.0) == exact(-0.0), exact((1, [2])) == exact((1, [2]))
    (False, False, True)
    """
    kind = type(value)
    if kind is float:  # `repr` distinguishes 0.0 from -0.0, and makes NaN equal to itself
        return kind, value if value > 0 or value < 0 else repr(value)
    if kind in _PLAIN:
        return kind, value
    if isinstance(value, (tuple, list)):
        if _INTEGERS.issuperset(map(type, value)):
            return (kind, int, *value)
        return (kind, *map(exact, value))
    if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        return kind, value.dtype, value.shape, value.tobytes()
    if isinstance(value, (float, complex)):
        return kind, exact(value.real), exact(value.imag)
    if isinstance(value, frozenset):
        return kind, frozenset(map(exact, value))
    if kind.__hash__ is object.__hash__:  # type: ignore[comparison-overlap]
        try:
            return kind, ref(value, _note_death)
        except TypeError:  # the type does not support weak references
            return kind, value
    if hasattr(kind, "__dataclass_fields__"):
        fields = [field.name for field in kind.__dataclass_fields__.values() if field.compare]
        return (kind, value, *[exact(getattr(value, name)) for name in fields])
    return kind, value


_deaths = [0]
"""Number of objects in keys that have been collected."""


def _note_death(_: object) -> None:
    _deaths[0] += 1  # called at any time in any thread, so it must not take a lock


def _is_alive(key: Any) -> bool:
    if isinstance(key, (tuple, frozenset)):
        return all(map(_is_alive, key))
    return not isinstance(key, ref) or key() is not None


_caches: WeakSet[Cache[Any, Any]] = WeakSet()


def _after_fork() -> None:
    for cache in _caches:
        cache.renew_locks()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
