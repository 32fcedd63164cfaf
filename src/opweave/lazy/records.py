"""Records of the operations that each read of arrays ran, for `opweave.lazy.profile`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..core.graph import title
from .array import PendingCall
from .graphs import ResultSlot


@dataclass(frozen=True)
class Record:
    """The operations that one read ran.

    Attributes:
        calls: the operations in the order in which they ran, with their labels.
        places: the source lines that called them.
        how: "one graph" if they were compiled as a whole, else "one by one".
        written: the results that were written: operation, data type and shape, reason ("asked for" or "held elsewhere").
        dropped: number of results that nothing refers to any more.
        seconds: duration.
        copies: number of copies of tensors.
        constants: number of inputs that were compiled in as constants.
    """

    calls: tuple[str, ...]
    places: tuple[str, ...]
    how: str
    written: tuple[tuple[str, str, str], ...]
    dropped: int
    seconds: float
    copies: int
    constants: int = 0

    def __str__(self) -> str:
        lines = [
            f"{len(self.calls)} operations, {self.how}, {self.seconds * 1e6:.0f} us: {len(self.written)} results written, "
            f"{self.dropped} dropped, {self.copies} copies"
        ]
        return "\n".join(lines + [f"  {call} -> {desc}: {why}" for call, desc, why in self.written])

    @classmethod
    def of(
        cls, nodes: Sequence[PendingCall], kept: Sequence[ResultSlot], asked: set[int], whole: bool, *numbers: Any
    ) -> Record:
        """Return the record of a run that has just ended."""
        calls = tuple(title(node.template.op.name, node.label) for node in nodes)
        written = tuple(
            (calls[number], str(array.desc), "asked for" if id(array) in asked else "held elsewhere")
            for number, _, array in kept
        )
        return cls(
            calls, tuple(node.place for node in nodes), "one graph" if whole else "one by one", written, *numbers
        )


active: list[list[Record]] = []
"""Lists of the open `profile` blocks."""


@contextmanager
def profile() -> Iterator[list[Record]]:
    """Collect a record of each read in the `with` block, from all threads.

    >>> import opweave as ow
    >>> x = ow.array([1.0, 2.0])
    >>> with ow.lazy.profile() as records:
    ...     values = (x + 1).relu().numpy()
    >>> records[0].calls, records[0].dropped
    (('add', 'relu'), 1)
    """
    records: list[Record] = []
    active.append(records)
    try:
        yield records
    finally:
        active[:] = [other for other in active if other is not records]
