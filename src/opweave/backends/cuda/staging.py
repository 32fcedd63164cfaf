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

from .devices import bindings, call, is_done

PIECE_BYTES = 2**23
"""Size of the largest block. Arrays are copied in pieces: the host fills a block while the device copies the previous one."""

MAX_IDLE_BYTES = 2**26

MIN_BLOCK_BYTES = 2**12
"""Size of the smallest block: a page, the unit of locking."""


@dataclass(eq=False, slots=True)
class StagingBlock:
    """A block of page-locked memory. `event` is recorded after the most recent copy through the block."""

    address: int
    size: int
    event: Any


class Staging:
    """The staging blocks of a stream. The context of the device must be current in all calls."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        # Least recently used first.
        self._idle: deque[StagingBlock] = deque()
        self._lock = Lock()

    def upload(self, address: int, source: np.ndarray) -> None:
        for start, size in _pieces(source.nbytes):
            block = self._take(size)
            try:
                ctypes.memmove(block.address, source.ctypes.data + start, size)
                call("cuMemcpyHtoDAsync", address + start, block.address, size, self._stream)
                call("cuEventRecord", block.event, self._stream)
            finally:
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
                    call("cuEventRecord", block.event, self._stream)
            while pending:
                self._finish(*pending.popleft())
        finally:
            for _, _, block in pending:
                self._give_back(block)

    def _finish(self, target: int, size: int, block: StagingBlock) -> int:
        try:
            call("cuEventSynchronize", block.event)
            ctypes.memmove(target, block.address, size)
        finally:
            self._give_back(block)
        return size

    def _take(self, count: int) -> StagingBlock:
        """Take a block of at least `count` bytes without a copy in flight."""
        with self._lock:
            for block in self._idle:
                if block.size >= count and is_done(block.event):
                    self._idle.remove(block)
                    return block
        size = max(MIN_BLOCK_BYTES, 1 << (count - 1).bit_length())
        address = int(call("cuMemHostAlloc", size, 0))
        return StagingBlock(address, size, call("cuEventCreate", bindings().CUevent_flags.CU_EVENT_DISABLE_TIMING))

    def _give_back(self, block: StagingBlock) -> None:
        surplus: list[StagingBlock] = []
        with self._lock:
            self._idle.append(block)
            while sum(block.size for block in self._idle) > MAX_IDLE_BYTES:
                surplus.append(self._idle.popleft())
        for old in surplus:
            _free(old)

    def close(self) -> None:
        """Free all blocks; no copy may be in flight."""
        while self._idle:
            _free(self._idle.popleft())


def _pieces(count: int) -> Iterator[tuple[int, int]]:
    return ((start, min(PIECE_BYTES, count - start)) for start in range(0, count, PIECE_BYTES))


def _free(block: StagingBlock) -> None:
    call("cuEventSynchronize", block.event)
    call("cuMemFreeHost", block.address)
    call("cuEventDestroy", block.event)
