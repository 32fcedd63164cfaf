"""Reuse the memory of large results that have been freed, for results of the same size.

The system maps large allocations page by page on first write, which takes longer than an element-wise operation. The C library
reuses smaller ones by itself.
"""

from __future__ import annotations

from collections import deque
from functools import partial

import numpy as np

from ..core.desc import Desc
from ..support.cache import Cache
from . import host

LARGE = 32 * 2**20
"""Size in bytes from which the C library returns freed memory immediately (the largest `M_MMAP_THRESHOLD` of glibc)."""

MOST = host.physical() // 32
"""Maximum number of bytes to keep for reuse."""

AGE = 16
"""Free a kept buffer that this many large allocations have not used."""

_spare: deque[tuple[int, np.ndarray]] = deque()
"""Kept buffers, the oldest first, each with the number of the last allocation before it was freed."""
_wanted: Cache[int, int] = Cache(AGE, raw=True)
"""Number of allocations by size, for the most recent sizes."""
_turn = 0


def room(desc: Desc) -> np.ndarray:
    """A new array, not initialised."""
    size = desc.byte_length
    return host.empty(desc) if size < LARGE else _large(desc, size)


def _large(desc: Desc, size: int) -> np.ndarray:
    global _turn
    _turn += 1
    _wanted.put(size, (_wanted.peek(size) or 0) + 1)
    raw = _take(size)
    if raw is None:
        raw = host.empty(Desc("uint8", (size,)))
    return host.lease(host.address_range(raw)[0], size, partial(_keep, raw)).view(desc.data_type).reshape(desc.shape)


def _keep(raw: np.ndarray) -> None:
    """Keep a buffer whose size was allocated more than once recently."""
    if (_wanted.peek(raw.nbytes) or 0) > 1:
        _spare.append((_turn, raw))
        _trim()


def _take(size: int) -> np.ndarray | None:
    """Remove and return a kept buffer of `size` bytes, or None; free buffers that were idle for `AGE` allocations."""
    match: np.ndarray | None = None
    for _ in range(len(_spare)):
        try:
            turn, raw = _spare.popleft()
        except IndexError:  # another thread took it
            break
        if match is None and raw.nbytes == size:
            match = raw
        elif _turn - turn < AGE:
            _spare.append((turn, raw))
    return match


def _trim() -> None:
    while kept_bytes() > MOST:
        try:
            _spare.popleft()
        except IndexError:
            break


def kept_bytes() -> int:
    return sum([raw.nbytes for _, raw in list(_spare)])
