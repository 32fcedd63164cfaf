"""Plan memory for intermediates, so that intermediates with disjoint lifetimes share memory."""

from __future__ import annotations

from collections.abc import Sequence

from ..support.records import record
from .host import ALIGNMENT


@record(eq=True)
class Life:
    """An intermediate of `size` bytes that is needed from step `first` to step `last`, inclusive.

    >>> Life(100, first=0, last=1)
    Life(size=100, first=0, last=1)
    """

    size: int
    first: int
    last: int


@record(eq=True)
class Plan:
    """A layout of intermediates in shared pieces of memory.

    Attributes:
        offsets: for each `Life`, bytes from the start of its piece: a multiple of `ALIGNMENT`.
        pieces: the size of each piece in bytes.
        total: the sum of the sizes of all intermediates, in bytes.
        homes: for each `Life`, the index of its piece; empty if there is only one piece.

    >>> one = Plan(offsets=(0, 64), pieces=(128,), total=192)
    >>> one.peak, (one + one).pieces, (one + one).homes
    (128, (128, 128), (0, 0, 1, 1))
    """

    offsets: tuple[int, ...] = ()
    pieces: tuple[int, ...] = ()
    total: int = 0
    homes: tuple[int, ...] = ()

    @property
    def peak(self) -> int:
        """Total size of the pieces in bytes."""
        return sum(self.pieces)

    def __add__(self, other: Plan) -> Plan:
        first, second = self.homes or (0,) * len(self.offsets), other.homes or (0,) * len(other.offsets)
        homes = first + tuple(len(self.pieces) + home for home in second)
        return Plan(self.offsets + other.offsets, self.pieces + other.pieces, self.total + other.total, homes)


def plan(lives: Sequence[Life]) -> Plan:
    """Lay out one piece of memory in which intermediates that are needed at the same time do not overlap.

    Place them in order of size, the largest first, each at the lowest offset that is free during its life (greedy by
    size; Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net Inference, 2020).

    Args:
        lives: the size of each intermediate in bytes, and the steps in which it is needed.

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
    """Plan device buffers, each for one tensor at a time.

    In order of first use, each intermediate takes the smallest free buffer that is large enough; otherwise the largest free
    buffer grows. (WebGPU cannot bind two parts of one buffer, one for reading and one for writing.)

    Args:
        lives: the size of each intermediate in bytes, and the steps in which it is needed.

    >>> plan_buffers([Life(100, 0, 1), Life(64, 1, 2), Life(128, 2, 3)])
    Plan(offsets=(0, 0, 0), pieces=(128, 64), total=292, homes=(0, 1, 0))
    """
    pieces: list[int] = []
    until: list[int] = []  # the last step that uses each piece
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
