"""Files that are written wholly or not at all."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from .errors import DataError


@contextmanager
def written(path: str | Path) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of `path` once all went well; after an error nothing has changed.

    A symbolic link stays, and the file that it leads to is replaced. What is no regular file (a pipe, a device) is written
    to directly, since it cannot be replaced.

    Raises:
        DataError: the file cannot be written.
    """
    target, mode = resolved(path)
    try:
        if mode is not None and not stat.S_ISREG(mode):
            with open(os.open(target, os.O_WRONLY | getattr(os, "O_BINARY", 0)), "wb") as file:
                yield file
            return
        # Beside the target: a file is moved within its file system only.
        name = str(target.parent / f".{target.name}.{os.urandom(8).hex()}")
        # The process's umask decides who may read it, as for every new file; asking for the umask would change it.
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        try:
            with os.fdopen(descriptor, "wb") as file:
                if mode is not None:
                    os.chmod(name, stat.S_IMODE(mode))  # who could read the old file can read this one
                yield file
            os.replace(name, target)
        finally:
            Path(name).unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None


def resolved(path: str | Path) -> tuple[Path, int | None]:
    """Follow symbolic links: the path at their end, and the mode of the file there, or None if there is no file.

    Raises:
        DataError: the links form a loop, or a folder cannot be read.
    """
    try:
        target = Path(os.path.realpath(path))
        if target.is_symlink():  # it leads to itself
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        return target, target.stat().st_mode
    except FileNotFoundError:
        return target, None
    except (OSError, ValueError) as error:  # ValueError: there is a null in it
        raise DataError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
