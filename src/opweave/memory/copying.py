"""The one `copy` of the project, and the counter of all copies."""

from __future__ import annotations

from collections import defaultdict
from threading import Lock
from typing import Any

import numpy as np

from ..support.records import field, record


@record(frozen=False, eq=True)
class Tally:
    """A `count` of copies, and the `bytes` of all of them together.

    >>> tally = Tally(count=2, bytes=64)
    >>> tally.bytes // tally.count
    32
    """

    count: int = 0
    bytes: int = 0


@record(frozen=False, eq=True)
class Copies:
    """Counts all copies of tensor data by reason, since the start or the last `reset`: `by_reason` has a `Tally` for each.

    >>> counter = Copies()
    >>> counter.add(16, "an input that is not contiguous")
    >>> counter.add(32, "an input that is not contiguous")
    >>> counter.count, counter.bytes
    (2, 48)
    >>> counter.reset()
    >>> counter.by_reason
    defaultdict(<class 'opweave.memory.copying.Tally'>, {})
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

    def add(self, size: int, reason: str, count: int = 1) -> None:
        """Count one copy of `size` bytes, or `count` copies of `size` bytes together."""
        with self._lock:
            tally = self.by_reason[reason]
            tally.count += count
            tally.bytes += size

    def reset(self) -> None:
        """Reset all counts to zero."""
        with self._lock:
            self.by_reason.clear()


copies = Copies()
"""The counter of this process."""

OVER_INPUT = "an output in the memory of an input"
"""The reason for copying outputs that use the memory of inputs, and are computed elsewhere first."""

NOT_IN_PLACE = "inside an engine: an input that is not updated in place"
"""The reason for an engine's copies of inputs whose outputs are in other memory, such as a KV cache."""


def copy(target: np.ndarray, source: np.ndarray, reason: str) -> None:
    """Copy `source` into `target`, and count it.

    Args:
        target: an array of the data type and shape of `source`.
        source: an array.
        reason: why it is copied, for the counter.

    >>> target = np.zeros(2, "float32")
    >>> copy(target, np.float32([1, 2]), "an example")
    >>> target.tolist()
    [1.0, 2.0]
    """
    np.copyto(target, source, casting="no")
    copies.add(target.nbytes, reason)


def copied(value: Any, reason: str) -> Any:
    """Copy an array, or a list of arrays, and count it; other objects are returned as they are.

    Args:
        value: an array, or a list of them.
        reason: why it is copied, for the counter.

    >>> array = np.float32([1, 2])
    >>> same = copied(array, "an example")
    >>> same.tolist(), np.shares_memory(same, array)
    ([1.0, 2.0], False)
    """
    if isinstance(value, list):
        return [copied(item, reason) for item in value]
    if not isinstance(value, np.ndarray):
        return value
    duplicate = np.empty_like(value)
    copy(duplicate, value, reason)
    return duplicate
