"""Arrays in an unnamed temporary file, whose pages are dropped from memory, and read again when they are needed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from . import copying
from .host import ALIGNMENT, owner

SEGMENT_BYTES = 2**26
"""Bytes by which the file grows: each segment takes a file descriptor. An estimate."""

LEAST_BYTES = 2**16
"""Smallest array in the file: sixteen pages. An estimate."""

MAX_BYTES = 2**31
"""Largest size of a file. The system writes it to the disk in the background, and would slow larger ones down. An estimate."""

RELEASE_SECONDS = 0.005
"""Time between two releases, in which an engine packs about 2 MB of weights (SmolLM2, two cores)."""


class SpilledArrays:
    """Copies of arrays in an unnamed temporary file, which is mapped into memory.

    A packed copy of weights in an engine makes the originals useless, but few engines say of which arrays. The pages of these
    arrays can be dropped at any time: where somebody reads them after all, the system reads them from the file.

    >>> spilled = SpilledArrays()
    >>> array = spilled.add(np.arange(100_000))
    >>> spilled.release()
    >>> int(array[-1])
    99999
    """

    def __init__(self) -> None:
        self._segments: list[Any] = []
        self._file: Any = None
        self._size = self._left = 0
        self._is_possible: bool | None = None

    def add(self, array: np.ndarray) -> np.ndarray:
        """Return a read-only copy in the file, or the array itself: a small one, a view, or where no file can be made."""
        size = -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        if array.nbytes < LEAST_BYTES or owner(array) is not None or not self._make_room(size):
            return array
        segment = self._segments[-1]
        copy: np.ndarray = np.frombuffer(segment, array.dtype, array.size, len(segment) - self._left).reshape(
            array.shape
        )
        copying.copy(copy, array, "weights in a temporary file")
        copy.flags.writeable = False
        self._left -= size
        return copy

    def release(self) -> None:
        """Drop the pages from memory."""
        import mmap

        for segment in self._segments:
            segment.madvise(mmap.MADV_DONTNEED)

    @contextmanager
    def releasing(self) -> Iterator[None]:
        """Release pages again and again while the block runs, which reads one array after the other, and at its end."""
        if not self._segments:
            yield
            return
        from threading import Event, Thread

        is_done = Event()

        def repeat() -> None:
            while not is_done.wait(RELEASE_SECONDS):
                self.release()

        thread = Thread(target=repeat, name="opweave-release", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_done.set()
            thread.join()
            self.release()

    def _make_room(self, size: int) -> bool:
        """Extend the file if the segment has no room for an array; false if that fails."""
        if self._is_possible is False:
            return False
        if size <= self._left:
            return True
        import mmap
        import os

        added = max(SEGMENT_BYTES, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
        self._is_possible = hasattr(mmap, "MADV_DONTNEED") and hasattr(os, "posix_fallocate")
        if not self._is_possible or self._size + added > MAX_BYTES:
            return False
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="opweave-")  # noqa: SIM115  as long as the arrays
            # Reserve the blocks: a write to a mapping of a full disk would end the process.
            os.posix_fallocate(self._file.fileno(), self._size, added)
            self._segments.append(mmap.mmap(self._file.fileno(), added, offset=self._size))
        except (OSError, ValueError):
            self._is_possible = False
            return False
        self._size, self._left = self._size + added, added
        return True
