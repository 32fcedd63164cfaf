"""Locks of tensors, taken together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from threading import RLock

from .tensor import MLTensor, guard_of


def locks_of(tensors: Iterable[MLTensor]) -> list[RLock]:
    """The locks of tensors in the order in which all threads take them, so that two cannot wait for each other."""
    return [guard_of(tensor).lock for tensor in sorted(tensors, key=id)]


class Locks:
    """Holds the locks of tensors."""

    __slots__ = ("_locks", "_taken")

    def __init__(self, tensors: Sequence[MLTensor]) -> None:
        self._locks = locks_of(tensors)
        self._taken = 0

    def __enter__(self) -> None:
        try:
            for lock in self._locks:
                lock.acquire()
                self._taken += 1
        except BaseException:  # Ctrl-C while waiting
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        for lock in self._locks[: self._taken]:
            lock.release()
        self._taken = 0
