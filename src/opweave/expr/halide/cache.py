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
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MAX_OBJECT_BYTES = 2**28
"""Maximum size of a file to read; compiled expressions take some kilobytes (`limits.MAX_NODES` bounds them)."""

_MAGIC = b"opweave object 1\n"
_DIGEST = hashlib.sha256().digest_size
_HAS_OWNERS = hasattr(os, "geteuid")  # on Windows, user directories are private by default

_warned: set[str] = set()


def directory() -> Path | None:
    """The cache directory: `$OPWEAVE_CACHE`, or `opweave` in the user's cache directory; None if the user has none."""
    chosen = os.environ.get("OPWEAVE_CACHE")
    if chosen:
        return Path(chosen).absolute()
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        base = Path(local) if local else _home("AppData", "Local")
        return base / "opweave" / "cache" if base else None
    if sys.platform == "darwin":
        return _home("Library", "Caches", "opweave")
    # The XDG specification: "If an implementation encounters a relative path … it should consider the path invalid".
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    base = named if named.is_absolute() else _home(".cache")
    return base / "opweave" if base else None


def _home(*parts: str) -> Path | None:
    """A path in the user's home directory; None for users without one."""
    try:
        home = Path.home()
    except (RuntimeError, KeyError):  # neither $HOME nor an entry in the user database
        return None
    return home.joinpath(*parts) if home.is_absolute() else None


def kept(key: str, make: Callable[[], bytes]) -> bytes:
    """Read the object of a key from the cache, or make it and store it.

    A file that is damaged, or writable by others, is made again. Without a trusted, writable directory, nothing is
    stored; a warning is issued once if the directory is writable by others.
    """
    name = f"{key}.o"
    with suppress(OSError), _opened() as folder:
        data = _read(folder, name, key)
        if data is not None:
            return data
    data = make()
    with suppress(OSError), _opened(create=True) as folder:
        _write(folder, name, key, data)
    return data


class _Folder:
    """An open directory. Entries are resolved relative to its descriptor, so that replacing the path has no effect."""

    def __init__(self, path: Path, descriptor: int | None) -> None:
        self.path, self.descriptor = path, descriptor

    def entry(self, name: str) -> str:
        return name if self.descriptor is not None else str(self.path / name)


@contextmanager
def _opened(create: bool = False) -> Iterator[_Folder]:
    """Open and check the directory.

    Raises:
        OSError: it does not exist, or is not trusted.
    """
    path = directory()
    if path is None:
        raise FileNotFoundError("this user has no directory for caches")
    if create:
        for missing in reversed([folder for folder in (path, *path.parents) if not folder.exists()]):
            with suppress(FileExistsError):
                missing.mkdir(mode=0o700)
                missing.chmod(0o700)  # regardless of the umask
    if not _HAS_OWNERS:
        yield _Folder(path, None)
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        problem = _problem(os.fstat(descriptor))
        if problem:
            _warn(f"{path} {problem}")
            raise PermissionError(f"{path} {problem}")
        yield _Folder(path, descriptor)
    finally:
        os.close(descriptor)


def _problem(status: os.stat_result) -> str:
    """Why a directory or file is not trusted; empty if it is."""
    if status.st_uid != os.geteuid():
        return f"belongs to the user {status.st_uid}, not to {os.geteuid()}"
    if status.st_mode & 0o022:
        return f"can be written to by other users (its mode is {stat.S_IMODE(status.st_mode):03o})"
    return ""


def _warn(problem: str) -> None:
    if problem not in _warned:
        _warned.add(problem)
        warnings.warn(
            f"{problem}: compiled expressions are not kept there, since they are run as they are found. "
            "Make it yours alone (chmod 700), or set OPWEAVE_CACHE to a directory that is",
            RuntimeWarning,
            stacklevel=2,
        )


def _read(folder: _Folder, name: str, key: str) -> bytes | None:
    """The content of a trusted, undamaged file; None if there is none."""
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    # Do not follow links to files of others, nor wait for the writer of a pipe.
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(folder.entry(name), flags, dir_fd=folder.descriptor)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_OBJECT_BYTES:
            return None
        problem = _HAS_OWNERS and _problem(status)
        if problem:
            _warn(f"{folder.path / name} {problem}")
            return None
        content = file.read(MAX_OBJECT_BYTES + 1)
    start = len(_MAGIC) + _DIGEST
    data = content[start:]
    return data if content[:start] == _header(key, data) else None


def _write(folder: _Folder, name: str, key: str, data: bytes) -> None:
    """Write atomically: to a temporary file, which is then renamed."""
    temporary = folder.entry(f".{name}.{os.urandom(8).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    descriptor = os.open(temporary, flags, 0o600, dir_fd=folder.descriptor)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if _HAS_OWNERS:
                os.fchmod(descriptor, 0o600)  # regardless of the umask
            file.write(_header(key, data) + data)
        os.replace(temporary, folder.entry(name), src_dir_fd=folder.descriptor, dst_dir_fd=folder.descriptor)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder.descriptor)
        raise


def _header(key: str, data: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(key.encode() + data).digest()
