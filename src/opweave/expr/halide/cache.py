"""The on-disk cache of compiled objects.

Cached objects run as native code, so ownership is the trust boundary: the directory and its files must belong to the
user and not be writable by others, or nothing is read or written. Each file starts with a digest of its key and
content, so that a damaged file is recompiled. Files may be deleted at any time, and several processes may share the
directory.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

MAX_OBJECT_BYTES = 2**28
"""Maximum size of a file to read; compiled expressions take some kilobytes (`limits.MAX_NODES` bounds them)."""

_warned: set[str] = set()


def directory() -> Path | None:
    """The cache directory: `$OPWEAVE_CACHE`, or `opweave` in the user's cache directory; None if the user has none."""
    chosen = os.environ.get("OPWEAVE_CACHE")
    if chosen:
        return Path(chosen).absolute()
    try:
        home = Path.home()
    except (RuntimeError, KeyError):  # neither $HOME nor an entry in the user database
        home = Path()
    if sys.platform == "win32":
        path = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "opweave" / "cache"
    elif sys.platform == "darwin":
        path = home / "Library" / "Caches" / "opweave"
    else:
        # The XDG specification: "If an implementation encounters a relative path … it should consider the path invalid".
        named = Path(os.environ.get("XDG_CACHE_HOME", ""))
        path = (named if named.is_absolute() else home / ".cache") / "opweave"
    return path if path.is_absolute() else None


def kept(key: str, make: Callable[[], bytes]) -> bytes:
    """Read the object of a key from the cache, or make it and store it.

    A file that is damaged, or writable by others, is made again. Without a trusted, writable directory, nothing is
    stored; a warning is issued once if the directory is writable by others.
    """
    with suppress(OSError):
        data = _read(_file(key), key)
        if data is not None:
            return data
    data = make()
    with suppress(OSError):
        _write(_file(key, create=True), key, data)
    return data


def _file(key: str, create: bool = False) -> Path:
    """The path of a key's file, which need not exist; with `create`, its directory is made.

    Raises:
        OSError: the directory does not exist, or is not trusted.
    """
    path = directory()
    if path is None:
        raise FileNotFoundError("this user has no directory for caches")
    if create:
        for missing in reversed([folder for folder in (path, *path.parents) if not folder.exists()]):
            with suppress(FileExistsError):
                missing.mkdir(mode=0o700)
                missing.chmod(0o700)  # regardless of the umask
    _check(path, path.stat())
    return path / f"{key}.o"


def _check(path: Path, status: os.stat_result) -> None:
    """Raise `PermissionError`, and warn once, if others own a directory or a file, or can write to it."""
    if not hasattr(os, "geteuid"):  # on Windows, user directories are private by default
        return
    if status.st_uid != os.geteuid():
        problem = f"{path} belongs to the user {status.st_uid}, not to {os.geteuid()}"
    elif status.st_mode & 0o022:
        problem = f"{path} can be written to by other users (its mode is {stat.S_IMODE(status.st_mode):03o})"
    else:
        return
    if problem not in _warned:
        _warned.add(problem)
        warnings.warn(
            f"{problem}: compiled expressions are not kept there, since they are run as they are found. "
            "Make it yours alone (chmod 700), or set OPWEAVE_CACHE to a directory that is",
            RuntimeWarning,
            stacklevel=2,
        )
    raise PermissionError(problem)


def _read(path: Path, key: str) -> bytes | None:
    """The content of an undamaged file; None if it is damaged.

    Raises:
        OSError: there is no such file, or it is not trusted.
    """
    with open(path, "rb", opener=_opened) as file:
        # Of the open file, not of the path, which may lead elsewhere by now.
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_OBJECT_BYTES:
            return None
        _check(path, status)
        content = file.read(MAX_OBJECT_BYTES + 1)
    data = content[hashlib.sha256().digest_size :]
    return data if content == _digest(key, data) + data else None


def _opened(path: str, flags: int) -> int:
    """Open a file, but neither follow a link to a file of others, nor wait for the writer of a pipe."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


def _write(path: Path, key: str, data: bytes) -> None:
    """Write atomically: to a temporary file, which is then renamed."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.chmod(temporary, 0o600)  # regardless of the umask
            file.write(_digest(key, data) + data)
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _digest(key: str, data: bytes) -> bytes:
    return hashlib.sha256(key.encode() + data).digest()
