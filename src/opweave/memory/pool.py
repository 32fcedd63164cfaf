"""Reuse the memory of large results that have been freed, for results of the same size.

The system maps large allocations page by page on first write, which takes longer than an element-wise operation. The C library
reuses smaller ones by itself.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from ..cache import Cache
from ..graph import Desc
from . import host

LARGE = 32 * 2**20
"""Bytes: where the C library begins to give memory back to the system at once (the largest `M_MMAP_THRESHOLD` of glibc)."""

MOST = host.physical() // 32
"""Maximum number of bytes to keep for reuse."""

AGE = 16
"""Free a kept buffer that this many large allocations have not used."""

_spare: deque[tuple[int, np.ndarray]] = deque()
"""What is kept, the oldest first, with the number of the request before which it came back."""
_wanted: Cache[int, int] = Cache(AGE, raw=True)
"""How often a size has been asked for; the last few sizes."""
_turn = 0


class _Window:
    """Gives NumPy memory that its array does not own: all views of it keep this, and so we learn when none is left."""

    __slots__ = ("__array_interface__", "__weakref__", "raw")

    def __init__(self, raw: np.ndarray) -> None:
        self.raw, self.__array_interface__ = raw, raw.__array_interface__

    def __del__(self) -> None:
        raw = getattr(self, "raw", None)
        if raw is not None and (_wanted.peek(raw.nbytes) or 0) > 1:
            _spare.append((_turn, raw))  # may come at any time, in any thread: nothing else is done here
            _trim()


def room(desc: Desc) -> np.ndarray:
    """A new array with whatever was there.

    Raises:
        OperationError: there is not enough memory.
    """
    size = desc.byte_length
    return host.empty(desc) if size < LARGE else _large(desc, size)


def _large(desc: Desc, size: int) -> np.ndarray:
    global _turn
    _turn += 1
    _wanted.put(size, (_wanted.peek(size) or 0) + 1)
    raw = _taken(size)
    if raw is None:
        raw = host.empty(Desc("uint8", (size,)))
    return np.asarray(_Window(raw)).view(desc.data_type).reshape(desc.shape)


def _taken(size: int) -> np.ndarray | None:
    """A kept buffer of this size, or None; frees buffers that have not been used for `AGE` allocations."""
    found: np.ndarray | None = None
    for _ in range(len(_spare)):
        try:
            turn, raw = _spare.popleft()
        except IndexError:  # another thread has it
            break
        if found is None and raw.nbytes == size:
            found = raw
        elif _turn - turn < AGE:
            _spare.append((turn, raw))
    return found


def _trim() -> None:
    while kept() > MOST:
        try:
            _spare.popleft()
        except IndexError:
            break


def kept() -> int:
    """Bytes that are kept for later."""
    return sum([raw.nbytes for _, raw in list(_spare)])


__all__ = ["LARGE", "MOST", "kept", "room"]
