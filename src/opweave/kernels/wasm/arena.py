"""Allocate tensors in linear memory."""

from __future__ import annotations

import threading
from bisect import bisect, insort
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from ...memory.host import ALIGNMENT, address_range, lease
from ...support.errors import OperationError
from .engine import PAGE, address_of

if TYPE_CHECKING:
    import wasmtime

    from ...core.graph import Desc


class Arena:
    """The linear memory of one or more modules, with an allocator for tensors.

    The allocator only uses pages that it obtained by growing the memory. `memory.grow` returns each page once, so a module can
    have a separate allocator, and its memory layout does not matter. One thread at a time may use the engine's `store`, and
    holds `lock` meanwhile. `armed` is the tick at which the timeout was last set, and the timeout in ticks.
    """

    def __init__(self, name: str, store: wasmtime.Store, memory: wasmtime.Memory, limit: int) -> None:
        self.name, self.store = name, store
        self.lock = threading.Lock()
        self.wide: bool = memory.type(store).is_64
        self.memory, self.limit = memory, limit
        self.armed = -1, 0
        self._size = self._current_size()
        self.base = address_of(memory.data_ptr(store))
        self._free: list[tuple[int, int]] = []  # offset and size; sorted, adjacent blocks are merged
        self._released: deque[tuple[int, int]] = deque()
        self._used_up_to = 0  # memory beyond has never been allocated, and is still zero

    @property
    def size(self) -> int:
        """Current size of the memory in bytes; while a function runs, the size before the call."""
        if self.lock.acquire(blocking=False):
            try:
                self._size = self._current_size()
            finally:
                self.lock.release()
        return self._size

    def _current_size(self) -> int:
        """Return the current size; the lock must be held."""
        size: int = self.memory.data_len(self.store)
        return size

    def allocate(self, desc: Desc) -> np.ndarray:
        """Allocate a zeroed array in linear memory, C-contiguous and aligned to 64 bytes; freed with its last view."""
        return self.block(desc.byte_length, str(desc)).view(desc.data_type).reshape(desc.shape)

    def block(self, size: int, subject: str) -> np.ndarray:
        """Allocate zeroed bytes, aligned to 64 bytes; `subject` describes them in messages."""
        room = max(size + -size % ALIGNMENT, ALIGNMENT)
        with self.lock:
            while self._released:
                self._give_back(*self._released.popleft())
            offset = self._take(room, subject)
            used_before, self._used_up_to = offset < self._used_up_to, max(self._used_up_to, offset + room)
        # The garbage collector may free arrays while this thread holds the lock: a deque takes their memory without the lock.
        block = lease(self.base + offset, size, lambda: self._released.append((offset, room)))
        if used_before:
            block.fill(0)
        return block

    def _take(self, room: int, subject: str) -> int:
        """Take the first free block that is large enough; grow the memory if there is none."""
        index = next((index for index, (_, size) in enumerate(self._free) if size >= room), None)
        if index is None:
            self._grow(room, subject)
            index = -1  # the block that ends with the new pages
        offset, size = self._free.pop(index)
        if size > room:
            insort(self._free, (offset + room, size - room))
        return offset

    def _grow(self, room: int, subject: str) -> None:
        """Add the pages that the last free block lacks."""
        end = self._current_size()
        at_end = self._free[-1][1] if self._free and sum(self._free[-1]) == end else 0
        pages = -(-(room - at_end) // PAGE)
        exceeded = f"{end} bytes and {pages * PAGE} more exceed {self._limit_text()}"
        problem = f"{self.name}: there is no memory for {subject}: {exceeded}"
        if end + pages * PAGE > self.limit:
            raise OperationError(problem)
        try:
            before = self.memory.grow(self.store, pages)
        except Exception:
            raise OperationError(problem) from None
        if address_of(self.memory.data_ptr(self.store)) != self.base:
            raise OperationError(f"{self.name}: the engine moved the memory; all views of it are lost")
        self._give_back(before * PAGE, pages * PAGE)

    def _limit_text(self) -> str:
        """Return the limit that keeps the memory from growing, for messages."""
        declared = self.memory.type(self.store).limits.max
        if declared is not None and declared * PAGE < self.limit:
            return f"what the module declares, {declared * PAGE}"
        return f"the limit of {self.limit}"

    def _give_back(self, offset: int, size: int) -> None:
        """Insert a free block, and merge it with adjacent ones."""
        index = bisect(self._free, (offset, size))
        if index < len(self._free) and offset + size == self._free[index][0]:
            size += self._free.pop(index)[1]
        if index and sum(self._free[index - 1]) == offset:
            offset, before = self._free.pop(index - 1)
            size += before
        insort(self._free, (offset, size))

    def owns(self, array: np.ndarray) -> bool:
        # All addresses up to the limit are reserved for this memory.
        low, high = np.lib.array_utils.byte_bounds(array)
        return self.base <= low and high <= self.base + self.limit

    def offset(self, array: np.ndarray) -> int:
        """Return the offset of an array in linear memory: the pointer for functions."""
        return address_range(array)[0] - self.base
