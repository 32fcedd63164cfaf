"""The planner: how intermediates that are not needed at the same time share memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .host import ALIGNMENT


@dataclass(frozen=True, slots=True)
class Life:
    """Memory that is needed for a while: `size` bytes, from step `first` to step `last`, both included."""

    size: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Where intermediates lie in pieces of memory that they share.

    Attributes:
        offsets: of each `Life`, bytes from the start of its piece, multiples of `ALIGNMENT`.
        pieces: the size of each piece in bytes.
        total: bytes that they would take if none shared memory.
        homes: the number of the piece of each `Life`; empty where there is one piece.
    """

    offsets: tuple[int, ...] = ()
    pieces: tuple[int, ...] = ()
    total: int = 0
    homes: tuple[int, ...] = ()

    @property
    def peak(self) -> int:
        """Bytes that all pieces take."""
        return sum(self.pieces)

    def __add__(self, other: Plan) -> Plan:
        first, second = self.homes or (0,) * len(self.offsets), other.homes or (0,) * len(other.offsets)
        homes = first + tuple(len(self.pieces) + home for home in second)
        return Plan(self.offsets + other.offsets, self.pieces + other.pieces, self.total + other.total, homes)


def plan(lives: Sequence[Life]) -> Plan:
    """Lay out one piece of memory so that what is needed at the same time does not overlap.

    The largest come first, each at the lowest offset that is free during its life (greedy by size; Pisarchyk and Lee,
    Efficient Memory Management for Deep Neural Net Inference, 2020).

    >>> plan([Life(100, 0, 1), Life(64, 1, 2), Life(128, 2, 3)])
    Plan(offsets=(0, 128, 0), pieces=(192,), total=320, homes=())
    """
    sizes = [-(-life.size // ALIGNMENT) * ALIGNMENT for life in lives]
    offsets = [0] * len(lives)
    placed: list[int] = []
    for k in sorted(range(len(lives)), key=lambda k: (-sizes[k], lives[k].first)):
        life, offset = lives[k], 0
        together = (j for j in placed if lives[j].first <= life.last and life.first <= lives[j].last)
        for j in sorted(together, key=lambda j: offsets[j]):
            if offset + sizes[k] <= offsets[j]:
                break
            offset = max(offset, offsets[j] + sizes[j])
        offsets[k] = offset
        placed.append(k)
    peak = max((offsets[k] + sizes[k] for k in placed), default=0)
    return Plan(tuple(offsets), (peak,) if lives else (), sum(sizes))


def plan_buffers(lives: Sequence[Life]) -> Plan:
    """Lay out memory of a device, where each buffer holds one tensor at a time.

    In order of their first use, each takes the smallest free buffer that is large enough, else the largest one, which grows.
    (WebGPU does not bind two parts of one buffer for reading and for writing.)

    >>> plan_buffers([Life(100, 0, 1), Life(64, 1, 2), Life(128, 2, 3)])
    Plan(offsets=(0, 0, 0), pieces=(128, 64), total=292, homes=(0, 1, 0))
    """
    pieces: list[int] = []
    until: list[int] = []  # the last step that needs what lies in a piece
    homes = [0] * len(lives)
    for k in sorted(range(len(lives)), key=lambda k: lives[k].first):
        life = lives[k]
        free = [home for home, last in enumerate(until) if last < life.first]
        fitting = [home for home in free if pieces[home] >= life.size]
        if fitting:
            home = min(fitting, key=pieces.__getitem__)
        elif free:
            home = max(free, key=pieces.__getitem__)
        else:
            home = len(pieces)
            pieces.append(0)
            until.append(0)
        pieces[home], until[home], homes[k] = max(pieces[home], life.size), life.last, home
    return Plan((0,) * len(lives), tuple(pieces), sum(life.size for life in lives), tuple(homes))
