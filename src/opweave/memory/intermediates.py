"""Memory of the intermediates of programs: laid out once, and reused by runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from ..core.desc import Desc
from ..support.processors import processors
from .planner import Life, Plan, plan, plan_buffers
from .spaces import Memory, Space

T = TypeVar("T")


def intermediates(
    space: Space, descs: Sequence[Desc], lives: Sequence[tuple[int, int]]
) -> tuple[Plan, Callable[[], list[Memory]]]:
    """Lay out the intermediates of a program: the plan, and a function that allocates memory by it.

    `lives` are the first and the last step that needs each of `descs`.
    """
    needed = [Life(desc.byte_length, *life) for desc, life in zip(descs, lives, strict=True)]
    if not space.is_host:
        layout = plan_buffers(needed)
        return layout, lambda: space.carve(layout.pieces, layout.homes, descs)  # type: ignore[attr-defined]
    layout = plan(needed)

    def allocate() -> list[Memory]:
        raw = space.allocate(Desc("uint8", (layout.peak,)))
        pieces = (raw[at : at + desc.byte_length] for at, desc in zip(layout.offsets, descs, strict=True))
        return [piece.view(d.data_type).reshape(d.shape) for piece, d in zip(pieces, descs, strict=True)]

    return layout, allocate


class Pool(ABC, Generic[T]):
    """Reusable memory for runs: each run takes its own, so that several threads can run one program at the same time.

    At most `limit` are kept `idle`, by default enough for one run on each processor.
    """

    def __init__(self, limit: int = 0) -> None:
        self.idle: deque[T] = deque()
        self._limit = limit or processors()

    @abstractmethod
    def new(self) -> T:
        """New memory for one run."""

    def take(self) -> T:
        try:
            return self.idle.pop()
        except IndexError:
            return self.new()

    def give_back(self, memory: T) -> None:
        """Return the memory of a run for reuse; it is freed if enough is idle."""
        if len(self.idle) < self._limit:
            self.idle.append(memory)
