"""Atomic writing of files."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO

from .errors import DataError

if TYPE_CHECKING:
    from pathlib import Path  # imported late: most processes write no files, and it takes 4 ms


@contextmanager
def atomic_writer(path: str | Path) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` on success; after an error, nothing has changed.

    A symbolic link is kept, and its target is replaced. Anything but a regular file (a pipe, a device) is written
    directly, because it cannot be replaced.
    """
    target, mode = resolve_links(path)
    try:
        if mode is not None and not stat.S_ISREG(mode):
            with open(os.open(target, os.O_WRONLY | getattr(os, "O_BINARY", 0)), "wb") as file:
                yield file
            return
        # In the same directory, because a file can only be renamed within its file system.
        name = str(target.parent / f".{target.name}.{os.urandom(8).hex()}")
        # Let the umask determine the permissions; reading the umask would require changing it.
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        try:
            with os.fdopen(descriptor, "wb") as file:
                if mode is not None:
                    os.chmod(name, stat.S_IMODE(mode))  # keep the permissions of the old file
                yield file
            os.replace(name, target)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(name)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None


def check_writable(path: str | Path) -> None:
    """Require that a file can be written: its folder exists and is writable. Call this before work that may take minutes."""
    from pathlib import Path

    target, mode = resolve_links(path)
    if mode is not None and stat.S_ISDIR(mode):
        raise DataError(f"{path}: {os.strerror(errno.EISDIR)}")
    if not target.parent.is_dir():
        raise DataError(f"{path}: there is no folder {target.parent if Path(path).is_symlink() else Path(path).parent}")
    # A regular file is replaced by a new one of the same folder; a pipe or a device is written itself.
    is_replaced = mode is None or stat.S_ISREG(mode)
    if not os.access(target.parent if is_replaced else target, os.W_OK):
        raise DataError(f"{path}: {os.strerror(errno.EACCES)}")


def make_folder(path: str | Path, subject: str) -> Path:
    """Make a folder and those above it, if they do not exist; `subject` is its name in errors."""
    from pathlib import Path

    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        file = next(path for path in (folder, *folder.parents) if path.exists())
        raise DataError(f"{subject}: {file} is a file, not a folder") from None
    except OSError as error:
        raise DataError(f"{subject}: {path}: {error.strerror or error}") from None
    return folder


def resolve_links(path: str | Path) -> tuple[Path, int | None]:
    """Follow symbolic links; return the final path, and the mode of the file there, or None if it does not exist."""
    from pathlib import Path

    try:
        target = Path(os.path.realpath(path))
        if target.is_symlink():  # a loop
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        mode = os.stat(path).st_mode  # follows /dev/stdout to a pipe, which has no path
        return target if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else Path(path), mode
    except FileNotFoundError:
        return target, None
    except (OSError, ValueError) as error:  # ValueError: the path contains a null character
        raise DataError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
