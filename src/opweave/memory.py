"""Memory of tensors on the host: aligned allocation, and the one `copy` of the project, which counts.

    ow.memory.copies.reset()
    context.dispatch(graph, inputs, outputs)
    ow.memory.copies.count          # how many copies there were; .bytes, and .by_reason

>>> import numpy as np
>>> before = copies.count
>>> copy(np.zeros(4, "float32"), np.ones(4, "float32"), "example")
>>> copies.count - before, copies.by_reason["example"].bytes
(1, 16)
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import OperationError, ValidationError

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
    """A new array of zeros, C-contiguous and aligned to 64 bytes.

    Raises:
        OperationError: there is not enough memory.
    """
    try:
        raw = np.zeros(desc.byte_length + ALIGNMENT, np.uint8)
    except MemoryError:
        raise OperationError(f"there is no memory for {desc}: {desc.byte_length} bytes") from None
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + desc.byte_length].view(desc.data_type).reshape(desc.shape)


def empty(desc: Desc) -> np.ndarray:
    """A new array with whatever was there, aligned as NumPy does it.

    Raises:
        OperationError: there is not enough memory.
    """
    try:
        return np.empty(desc.shape, desc.data_type)
    except MemoryError:
        raise OperationError(f"there is no memory for {desc}: {desc.byte_length} bytes") from None


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


def address_range(array: np.ndarray) -> tuple[int, int]:
    """Addresses of the first byte of a contiguous array and of the first one after it."""
    start: int = array.__array_interface__["data"][0]
    return start, start + array.nbytes


def check_overlap(
    inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray], constants: Sequence[tuple[int, int]] = ()
) -> None:
    """Require that no output shares memory with an input, another output, or one of the ranges `constants`.

    Raises:
        ValidationError: naming the two that overlap.
    """
    ranges = [(*address_range(array), name, False) for name, array in inputs.items()]
    ranges += [(*address_range(array), name, True) for name, array in outputs.items()]
    ranges.sort()
    end, before, written = -1, "", False
    for start, stop, name, writes in ranges:
        if start < end and (writes or written):
            raise ValidationError(
                f"the memory of {name!r} overlaps that of {before!r}; outputs need memory of their own"
            )
        # Of inputs that overlap each other (which is fine), the one that reaches furthest counts.
        if stop > end or writes:
            end, before, written = max(stop, end), name, writes
        if writes and constants:
            at = bisect_right(constants, (start, 0)) - 1
            nearby = constants[max(at, 0) : at + 2]
            if any(first < stop and start < last for first, last in nearby):
                raise ValidationError(f"the memory of {name!r} overlaps that of a constant of the graph")


def merged_ranges(arrays: Iterable[np.ndarray]) -> list[tuple[int, int]]:
    """The address ranges of contiguous arrays, in order, those that overlap or touch made one."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(map(address_range, arrays)):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        else:
            merged.append((start, stop))
    return merged


@dataclass(frozen=True, slots=True)
class FileRegion:
    """A stretch of this process's memory that shows a stretch of a file."""

    start: int
    stop: int
    offset: int
    path: str


def mapped_files() -> list[FileRegion]:
    """The memory-mapped files of this process whose mappings show what the files hold, in order of address.

    Mappings that could have been changed without the file (private and writable), and files that have been replaced or
    deleted since, are left out. Only Linux tells; elsewhere the list is empty.
    """
    regions = []
    try:
        with open("/proc/self/maps", errors="surrogateescape") as file:
            lines = file.readlines()
    except OSError:
        return []
    for line in lines:
        addresses, permissions, offset, device, inode, *name = line.rstrip("\n").split(maxsplit=5)
        if not name or not name[0].startswith("/") or permissions[0] != "r" or permissions[1:] == "w-p":
            continue
        try:
            name[0].encode()
            status = os.stat(name[0])
        except (OSError, UnicodeError):  # gone, or a name that cannot be written into a model
            continue
        if not os.access(name[0], os.R_OK):
            continue
        major, minor = (int(part, 16) for part in device.split(":"))
        if status.st_ino == int(inode) and (os.major(status.st_dev), os.minor(status.st_dev)) == (major, minor):
            start, stop = (int(address, 16) for address in addresses.split("-"))
            regions.append(FileRegion(start, stop, int(offset, 16), name[0]))
    return regions


def owner(array: np.ndarray) -> object:
    """Whose memory an array shows: an `mmap`, `bytes`, …; None where it is that of an array."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base.obj if isinstance(base, memoryview) else base


def find_in_files(array: np.ndarray, regions: list[FileRegion]) -> tuple[str, int] | None:
    """The file, and the offset in it, that the memory of a contiguous array shows; None if it shows no file."""
    start, stop = address_range(array)
    at = bisect_right(regions, start, key=lambda region: region.start) - 1
    if at < 0 or stop > regions[at].stop:
        return None
    return regions[at].path, regions[at].offset + start - regions[at].start


def physical() -> int:
    """Bytes of memory that this machine has; where it does not tell, more than any has."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 2**46


def trim() -> None:
    """Return freed memory to the system: glibc keeps it in a heap for each thread."""
    import ctypes

    trim_heaps = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None  # glibc has it
    if trim_heaps is not None:
        trim_heaps(0)
