"""The bytes of a model: the user's object, or a regular file."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, BinaryIO

from ...memory.arrays import is_mapped_or_bytes
from ...support.errors import DataError
from ...support.records import record

if TYPE_CHECKING:
    from pathlib import Path

LARGE_BYTES = 2**20
"""Models of this size or more are parsed without their weights, and their files are mapped into memory."""

WRITTEN = 4
"""Items of the state of a file that writing changes: device, inode, size, and time of modification."""

LEAST_BYTES = 1024
"""Weights of this size or more are then replaced by references (`wire`)."""


@record
class Contents:
    """The bytes of a file or of the user's object; a large file is mapped into memory.

    `state` is that of the file when it was mapped: device, inode, size, times, mode, links and owner.
    """

    data: memoryview
    path: str | Path | None = None
    state: tuple[int, ...] = ()

    @classmethod
    def map(cls, path: str | Path) -> Contents:
        """Map a file."""
        import mmap  # imported late, because it loads a library that small models do not need

        with _open_regular(path) as file:
            whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            return cls(memoryview(whole), path, _state(os.fstat(file.fileno())))

    @classmethod
    def read(cls, path: str | Path) -> Contents:
        """Read a file, or map it if it is large."""
        with _open_regular(path) as file:
            if os.fstat(file.fileno()).st_size >= LARGE_BYTES:
                return cls.map(os.path.realpath(path))
            return cls(memoryview(file.read()))

    @property
    def is_fixed(self) -> bool:
        """Whether the bytes cannot change; the user may change a bytearray."""
        return is_mapped_or_bytes(self.data.obj)

    def check_unchanged(self) -> None:
        """Raise `DataError` if a mapped file was written since, also if its time was set back.

        Replacing or deleting a file does not change its mapping.
        """
        if self.path is None:
            return
        try:
            state = _state(os.stat(self.path))
        except OSError:
            return
        if state[:2] == self.state[:2] and (state[:WRITTEN] != self.state[:WRITTEN] or _is_written(self.state, state)):
            raise DataError(
                f"{self.path} has changed since the model was read: it must not, as its weights are read again"
            )

    def forget(self) -> None:
        """Release the resident pages of a mapped file; the next access reads them again."""
        if self.path is None:
            return
        import mmap

        if hasattr(mmap, "MADV_DONTNEED"):
            self.data.obj.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]


def _state(status: os.stat_result) -> tuple[int, ...]:
    written = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
    # Windows has the time of creation there.
    changed = 0 if os.name == "nt" else status.st_ctime_ns
    return *written, changed, status.st_mode, status.st_nlink, status.st_uid, status.st_gid


def _is_written(before: tuple[int, ...], now: tuple[int, ...]) -> bool:
    """Whether a file was changed other than in its mode, links or owner: nobody can set the time of the last change back."""
    return before[WRITTEN] != now[WRITTEN] and before[WRITTEN + 1 :] == now[WRITTEN + 1 :]


def _open_regular(path: str | Path) -> BinaryIO:
    """Open a regular file; reading a pipe could block forever, and reading a device could never end."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    raise OSError(errno.EINVAL, "it is a pipe, a socket or a device, and only files can be read")


__all__ = ["LARGE_BYTES", "LEAST_BYTES", "Contents"]
