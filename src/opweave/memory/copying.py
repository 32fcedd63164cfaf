"""The one `copy` of the project, and the counter of all copies."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np


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


def copy(target: np.ndarray, source: np.ndarray, reason: str) -> None:
    """Copy `source` into `target`, which has the same data type and shape, and count it."""
    np.copyto(target, source, casting="no")
    copies.add(target.nbytes, reason)


def copied(value: Any, reason: str) -> Any:
    """A new array with the elements of another, counted; a list of arrays is copied with them, other objects are not."""
    if isinstance(value, list):
        return [copied(item, reason) for item in value]
    if not isinstance(value, np.ndarray):
        return value
    made = np.empty_like(value)
    copy(made, value, reason)
    return made
