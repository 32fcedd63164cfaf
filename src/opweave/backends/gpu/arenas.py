"""Memory of intermediates, which the versions of a runner for different sizes share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from threading import Lock
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from ...core.graph import Desc
from ...memory import Plan
from ...memory.intermediates import Pool
from ...support.identity import ByIdentity
from .arrays import DeviceArray
from .device import GpuDevice

M = TypeVar("M")
"""Arrays and kernels that are bound to an arena."""

SLACK = 8
"""A buffer that grows gets 1/8 more than is needed: with a KV cache that grows by one token, it is seldom replaced."""

MAX_EXCESS = 2
"""An arena shrinks if it has this many times the memory that the versions in use need; an estimate."""


class GpuArena(Generic[M]):
    """Buffers for the intermediates of one run at a time, the largest first.

    `memories` has what each version of a runner has bound to the buffers. An entry ends with its version, or with one of the
    buffers: a version whose intermediates do not fit replaces buffers, and the others are bound again when they run.
    """

    def __init__(self, device: GpuDevice) -> None:
        self._device = device
        self._buffers: list[Any] = []
        self.sizes: list[int] = []
        self.memories: ByIdentity[Any, M] = ByIdentity()

    def carve(self, plan: Plan, descs: Sequence[Desc], in_use: Sequence[int]) -> list[DeviceArray]:
        """Return the arrays of a plan. Buffers are replaced by larger ones if they do not fit.

        `in_use` are the sizes of buffers that suffice for each of the versions in use, in bytes, the largest first.
        """
        homes = sorted(range(len(plan.pieces)), key=plan.pieces.__getitem__, reverse=True)
        needed = [plan.pieces[home] for home in homes]
        if sum(self.sizes) > MAX_EXCESS * sum(in_use):
            self._resize(in_use)
        else:
            self._resize([self._grow_size(*pair) for pair in zip_longest(self.sizes, needed, fillvalue=-1)])
        buffers = dict(zip(homes, self._buffers, strict=False))
        return [DeviceArray(desc, buffers[home]) for desc, home in zip(descs, plan.homes, strict=True)]

    def _grow_size(self, size: int, needed: int) -> int:
        """The new size of a buffer of `size` bytes, -1 for none."""
        if size >= needed:
            return size
        return needed if size < 0 else max(needed, min(needed + needed // SLACK, self._device.max_byte_length))

    def _resize(self, sizes: Sequence[int]) -> None:
        """Replace the buffers that have other sizes."""
        kept = [old if old == new else -1 for old, new in zip(self.sizes, sizes, strict=False)]
        if kept != self.sizes:
            self.memories = ByIdentity()
        # Old buffers are freed before new ones are allocated. If that fails, the missing ones have the size -1.
        self._buffers = [buffer if size >= 0 else None for buffer, size in zip(self._buffers, kept, strict=False)]
        self.sizes = kept
        for rank, size in enumerate(sizes):
            if rank == len(self.sizes):
                self.sizes.append(-1)
                self._buffers.append(None)
            if self.sizes[rank] < 0 <= size:
                self._buffers[rank] = self._device.buffer(size, "intermediates")
                self.sizes[rank] = size


class Arenas(Pool[GpuArena[M]]):
    """Arenas of a runner and its versions: each run takes one."""

    def __init__(self, device: GpuDevice) -> None:
        super().__init__()
        self._device, self._lock = device, Lock()
        self._needed: WeakKeyDictionary[Any, Sequence[int]] = WeakKeyDictionary()
        self._for_commands: GpuArena[M] | None = None

    def new(self) -> GpuArena[M]:
        return GpuArena(self._device)

    def for_commands(self) -> GpuArena[M]:
        """Return the arena of runs in command buffers of the caller, which the device's queue executes one after another.

        No other run takes it: nobody knows when the caller submits the commands.
        """
        if self._for_commands is None:
            self._for_commands = self.take()
        return self._for_commands

    def use(self, version: Any, plan: Plan) -> None:
        """Note the buffers that a version needs, as long as it exists."""
        with self._lock:
            self._needed[version] = sorted(plan.pieces, reverse=True)

    @property
    def in_use(self) -> list[int]:
        """The sizes of buffers that suffice for each version, the largest first."""
        with self._lock:
            return [max(sizes) for sizes in zip_longest(*self._needed.values(), fillvalue=0)]
