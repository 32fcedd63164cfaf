"""Locks of tensors, taken together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .tensor import MLTensor


class Locks:
    """Holds the locks of tensors, always taken in the same order, so that two threads cannot wait for each other."""

    __slots__ = ("_locks", "_taken")

    def __init__(self, tensors: Sequence[MLTensor]) -> None:
        self._locks = [tensor._lock for tensor in sorted(tensors, key=id)]
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
