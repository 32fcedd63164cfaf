"""Copy between host arrays and a device through page-locked memory.

A copy to or from pageable host memory waits for all work of the stream. A copy through a page-locked block is ordered by the
stream, and does not wait for work enqueued after it (https://docs.nvidia.com/cuda/cuda-driver-api/api-sync-behavior.html).
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np

from .devices import bindings, call, failure, is_done

PIECE_BYTES = 2**23
"""Size of the largest block. Arrays are copied in pieces: the host fills a block while the device copies the previous one."""

MAX_IDLE_BYTES = 2**26

MIN_BLOCK_BYTES = 2**12
"""Size of the smallest block: a page, the unit of locking."""


@dataclass(eq=False, slots=True)
class StagingBlock:
    """A block of page-locked memory.

    Attributes:
        number: position of its last copy among all copies. The block is free once this copy is done. See `Staging`.
        event: recorded after a copy to the host through the block; None before the first one.
    """

    address: int
    size: int
    number: int = 0
    event: Any = None


class Staging:
    """The staging blocks of a stream. The context of the device must be current in all calls.

    Copies are numbered when they are enqueued, and are done in this order. Once the host has waited for one copy, all earlier
    copies are done, too; so a call that uploads, runs and downloads needs no further queries. Only if no block is known to
    be free, an event shows how many copies the device has done.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        # Least recently used first.
        self._idle: deque[StagingBlock] = deque()
        self._lock = Lock()
        self._enqueued = self._done = 0
        self._event: Any = None
        self._recorded = 0
        """Number of the last copy before `_event`; 0 if the event is not in use."""

    def upload(self, address: int, source: np.ndarray) -> None:
        copy = bindings().cuMemcpyHtoDAsync
        for start, size in _pieces(source.nbytes):
            block = self._take(size)
            try:
                ctypes.memmove(block.address, source.ctypes.data + start, size)
                # Not through `call`, which adds a microsecond to each copy.
                (error,) = copy(address + start, block.address, size, self._stream)
                if error:
                    raise failure(error)
            finally:
                self._count(block)
                self._give_back(block)

    def download(self, targets: Sequence[np.ndarray], addresses: Sequence[int]) -> None:
        pending: deque[tuple[int, int, StagingBlock]] = deque()
        held = 0
        try:
            for target, address in zip(targets, addresses, strict=True):
                for start, size in _pieces(target.nbytes):
                    while pending and held + size > MAX_IDLE_BYTES:
                        held -= self._finish(*pending.popleft())
                    block = self._take(size)
                    pending.append((target.ctypes.data + start, size, block))
                    held += size
                    call("cuMemcpyDtoHAsync", block.address, address + start, size, self._stream)
                    self._count(block)
                    if block.event is None:
                        block.event = _new_event()
                    call("cuEventRecord", block.event, self._stream)
            while pending:
                self._finish(*pending.popleft())
        finally:
            for _, _, block in pending:
                self._count(block)
                self._give_back(block)

    def _count(self, block: StagingBlock) -> None:
        """Number a copy once it is enqueued: an event that another thread records earlier must not cover the copy."""
        with self._lock:
            self._enqueued += 1
            block.number = self._enqueued

    def _finish(self, target: int, size: int, block: StagingBlock) -> int:
        try:
            call("cuEventSynchronize", block.event)
            with self._lock:
                self._done = max(self._done, block.number)
            ctypes.memmove(target, block.address, size)
        finally:
            self._give_back(block)
        return size

    def _take(self, count: int) -> StagingBlock:
        """Take a block of at least `count` bytes without a copy in flight."""
        with self._lock:
            block = self._free_block(count)
            if block is None and self._ask():
                block = self._free_block(count)
        if block is not None:
            return block
        size = max(MIN_BLOCK_BYTES, 1 << (count - 1).bit_length())
        return StagingBlock(int(call("cuMemHostAlloc", size, 0)), size)

    def _free_block(self, count: int) -> StagingBlock | None:
        for block in self._idle:
            if block.size >= count and block.number <= self._done:
                self._idle.remove(block)
                return block
        return None

    def _ask(self) -> bool:
        """Ask the driver how many copies are done, and record the next event; return whether this number has grown."""
        before = self._done
        if self._recorded and is_done(self._event):
            self._done, self._recorded = max(self._done, self._recorded), 0
        if not self._recorded and self._done < self._enqueued:
            if self._event is None:
                self._event = _new_event()
            call("cuEventRecord", self._event, self._stream)
            self._recorded = self._enqueued
        return self._done > before

    def _give_back(self, block: StagingBlock) -> None:
        surplus: list[StagingBlock] = []
        with self._lock:
            self._idle.append(block)
            while sum(block.size for block in self._idle) > MAX_IDLE_BYTES:
                surplus.append(self._idle.popleft())
        if surplus and not self._has_done(max(old.number for old in surplus)):
            call("cuStreamSynchronize", self._stream)
        for old in surplus:
            _free(old)

    def _has_done(self, number: int) -> bool:
        """Whether the copy of this number is known to be done."""
        with self._lock:
            return number <= self._done or (self._ask() and number <= self._done)

    def close(self) -> None:
        """Free all blocks; no copy may be in flight."""
        while self._idle:
            _free(self._idle.popleft())
        if self._event is not None:
            call("cuEventDestroy", self._event)


def _pieces(count: int) -> Iterator[tuple[int, int]]:
    return ((start, min(PIECE_BYTES, count - start)) for start in range(0, count, PIECE_BYTES))


def _new_event() -> Any:
    return call("cuEventCreate", bindings().CUevent_flags.CU_EVENT_DISABLE_TIMING)


def _free(block: StagingBlock) -> None:
    """Free a block without a copy in flight."""
    call("cuMemFreeHost", block.address)
    if block.event is not None:
        call("cuEventDestroy", block.event)
