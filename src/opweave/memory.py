"""Memory of tensors on the host: aligned allocation, and the one `copy` of the project, which counts.

>>> import numpy as np
>>> before = copies.count
>>> copy(np.zeros(4, "float32"), np.ones(4, "float32"), "example")
>>> copies.count - before, copies.by_reason["example"].bytes
(1, 16)
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .graph import Desc

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector register."""


@dataclass(slots=True)
class Tally:
    """How many copies there were, and of how many bytes."""

    count: int = 0
    bytes: int = 0


@dataclass
class Copies:
    """Counts every copy of tensor data that Opweave makes, with its reason, since the start or the last `reset`.

    Attributes:
        by_reason: a `Tally` for each reason.
    """

    by_reason: dict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    _lock: Lock = field(default_factory=Lock, repr=False)

    @property
    def count(self) -> int:
        """Number of copies."""
        return sum(tally.count for tally in self.by_reason.values())

    @property
    def bytes(self) -> int:
        """Bytes copied."""
        return sum(tally.bytes for tally in self.by_reason.values())

    def add(self, size: int, reason: str) -> None:
        """Count one copy of `size` bytes."""
        with self._lock:
            tally = self.by_reason[reason]
            tally.count += 1
            tally.bytes += size

    def reset(self) -> None:
        """Start again from zero."""
        with self._lock:
            self.by_reason.clear()


copies = Copies()
"""The counter of this process."""


def allocate(desc: Desc) -> np.ndarray:
    """A new array of zeros, C-contiguous and aligned to 64 bytes."""
    raw = np.zeros(desc.byte_length + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + desc.byte_length].view(desc.data_type).reshape(desc.shape)


def copy(target: np.ndarray, source: np.ndarray, reason: str) -> None:
    """Copy `source` into `target`, which has the same data type and shape, and count it."""
    np.copyto(target, source, casting="no")
    copies.add(target.nbytes, reason)


def address_range(array: np.ndarray) -> tuple[int, int]:
    """Addresses of the first byte of a contiguous array and of the first one after it."""
    start: int = array.__array_interface__["data"][0]
    return start, start + array.nbytes
