"""The cache on disk: compiled expressions and kernels, and which engine runs a graph faster.

Compiled expressions run as native code, so ownership is the trust boundary: the directory and its files must belong to the
user and not be writable by others, or nothing is read or written. Each file starts with a digest of its key and content,
so that a damaged one is made again. Several processes may share the directory, and others may delete files at any time. When
the files exceed `limit()`, the least recently used ones are deleted.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Protocol
from weakref import ref

from . import settings
from .compilations import statistics
from .errors import ValidationError
from .records import record
from .tuned import TUNING as TUNING, cache_place

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

MAX_FILE_BYTES = 2**28
"""Maximum size of a file to read; compiled expressions take some kilobytes (`expr.limits.MAX_NODES` bounds them)."""

DEFAULT_LIMIT = 2**28
"""The default of `$OPWEAVE_CACHE_BYTES`: thousands of compiled expressions, which take some kilobytes each."""

MIN_LIMIT = 2**10
"""The smallest limit with room for a measurement of one graph, which takes about 700 bytes."""

TOUCH_SECONDS = 60
"""A use updates a file's modification time only if that is older than this."""

STALE_SECONDS = 3600
"""Older temporary files were left by processes that ended while they wrote."""

KINDS = {"cubin": "compiled kernel", "o": "compiled expression", TUNING: "tuning"}
"""Contents of the files, by suffix."""

_NAME = rf"(runtime-)?[0-9a-f]{{32,64}}\.({'|'.join(KINDS)})"
SECRET = "opweave"
"""Name of the file of `secret`, which ends in `.key`."""

SECRET_BYTES = 32

_TEMPORARY = rf"\.({_NAME}|{SECRET}\.key)\.\w+"

SHARE = 16
"""A process that has written 1/16 of the limit lists all files again, because others write, too. An estimate."""

SPARE = 64
"""A full cache gets 1/64 of the limit free, so that not every file that is stored lists all others. An estimate."""

_warned: set[str] = set()

_layers: tuple[ref[Layer], ...] = ()
_layers_lock = Lock()

_room: dict[tuple[Path, int], int] = {}
"""Bytes that this process may write before it lists all files again, by directory and limit."""


@record
class Entry:
    """A file of the cache; `used` is in seconds since the epoch, to the minute."""

    path: Path
    kind: str
    bytes: int
    used: float

    @property
    def key(self) -> str:
        """The key of the file, as `load` takes it."""
        return self.path.stem


def directory() -> Path | None:
    """The cache directory: `$OPWEAVE_CACHE`, or `opweave` in the user's cache directory; None if the user has none."""
    from pathlib import Path  # here: most processes only ask whether there are files

    place = cache_place()
    return None if place is None else Path(place)


def limit() -> int:
    """The most bytes that the cache may take: `$OPWEAVE_CACHE_BYTES`."""
    return settings.number("OPWEAVE_CACHE_BYTES", DEFAULT_LIMIT, least=0, subject="a number of bytes")


def load_or_make(key: str, make: Callable[[], bytes]) -> bytes:
    """Read the compiled expression of a key from the cache, or make it and store it."""
    data = load(key, "o")
    if data is not None:
        statistics.code_loaded += 1
        return data
    data = make()
    statistics.code_compiled += 1
    store(key, "o", data)
    return data


class Layer(Protocol):
    """Files that are looked for before those of the directory, such as compiled parts of a saved graph."""

    def load(self, key: str, kind: str) -> bytes | None:
        """The content of a file, or None."""

    def has(self, kind: str) -> bool:
        """Whether there are files of a kind."""

    def tensor(self, name: str) -> np.ndarray | None:
        """The bytes of a tensor that belongs to files, or None."""


def has_layers(kind: str) -> bool:
    """Whether a layer has files of a kind."""
    return any((layer := item()) is not None and layer.has(kind) for item in _layers)


def tensor(name: str) -> np.ndarray | None:
    """The bytes of a tensor that a layer has beside its files; None if there is none."""
    layers = [layer for item in _layers if (layer := item()) is not None]
    return next((data for layer in layers if (data := layer.tensor(name)) is not None), None)


def add_layer(layer: Layer) -> None:
    """Look for files in `layer`, too, for as long as the object lives. What it has is trusted as the directory is."""
    global _layers
    with _layers_lock:
        _layers = (*(item for item in _layers if item() is not None), ref(layer))


def load(key: str, kind: str, is_use: bool = True) -> bytes | None:
    """The content of a file; None if there is none, or it is damaged, or others can write to it.

    A warning is issued once if others can write to the directory or the file. `is_use`: this counts as a use of the file.
    """
    for item in _layers:
        if (layer := item()) is not None and (data := layer.load(key, kind)) is not None:
            return data
    with suppress(OSError):
        return _read(_file(key, kind), key, is_use)
    return None


def store(key: str, kind: str, data: bytes) -> bool:
    """Write a file, and delete others if the cache is too large. Returns whether there is a trusted directory with room."""
    from .digests import DIGEST_BYTES

    if len(data) > limit():
        return False
    try:
        path = _file(key, kind, create=True)
        _write(path, key, data)
        if kind == TUNING:
            _index(path.parent, key)
        where = path.parent, limit()
        _room[where] = _room.get(where, 0) - len(data) - DIGEST_BYTES
        if _room[where] <= 0:
            total = _evict(path)
            _room[where] = min(limit() - total, limit() // SHARE)
    except OSError:
        return False
    return True


def obstacle() -> str:
    """The reason why no file can be stored, as a phrase; empty if files can be."""
    if limit() < MIN_LIMIT:
        return f"OPWEAVE_CACHE_BYTES is {limit()}"
    try:
        folder = _file("key", "kind", create=True, warns=False).parent
    except OSError as error:
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    if not folder.is_dir():
        return f"{folder} is no directory"
    return "" if os.access(folder, os.W_OK) else f"{folder} is read-only"


def _index(place: Path, key: str) -> None:
    """Note for `tuned.has_tuning` that there is a tuning: an empty file in a folder for them."""
    from .digests import PREFIX_DIGITS

    folder = place / TUNING
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / key[:PREFIX_DIGITS]).touch(mode=0o600)


def exists(key: str, kind: str) -> bool:
    """Whether there is a file of this key; `load` says whether it can be trusted and read."""
    place = cache_place()
    return place is not None and os.path.exists(os.path.join(place, f"{key}.{kind}"))


def lock(name: str) -> int | None:
    """Take the machine's lock of this name; it is held while the returned descriptor is open.

    It never waits or warns: None if another process holds the lock, the directory cannot be used, or the limit is 0. The
    lock's file is left in the directory.
    """
    descriptor = -1
    try:
        if limit() > 0:
            path = _file(name, "lock", create=True, warns=False)
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
            descriptor = os.open(path, flags, 0o600)
            _lock(descriptor, True)
            return descriptor
    except (OSError, ValidationError):
        if descriptor >= 0:
            os.close(descriptor)
    return None


def unlock(descriptor: int) -> None:
    """Release a lock, in all processes that have the descriptor."""
    with suppress(OSError):
        _lock(descriptor, False)
    os.close(descriptor)


def _lock(descriptor: int, is_wanted: bool) -> None:
    """Take or release the lock of an open file; `OSError` if another process holds it."""
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(descriptor, msvcrt.LK_NBLCK if is_wanted else msvcrt.LK_UNLCK, 1)
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB if is_wanted else fcntl.LOCK_UN)


def folder(*names: str, create: bool = False) -> Path:
    """A folder in the cache directory for files that are no cache, or one inside of it; `clear` keeps them.

    Raises:
        OSError: the directory is missing, or others can write to it.
    """
    path = _file(names[0], "", create=create, warns=False).parent
    for name in names:
        path /= name
        if create:
            path.mkdir(mode=0o700, exist_ok=True)
        _check(path, path.stat(), warns=False)
    return path


def secret() -> bytes | None:
    """A random key that only this user can read, made at the first call; None if the directory cannot be used.

    Saved graphs are authenticated with the key. `clear` keeps it.
    """
    try:
        if limit() <= 0:
            return None
        path = _file(SECRET, "key", create=True, warns=False)
        if (data := _read_secret(path)) is None:
            _make_secret(path)
            data = _read_secret(path)
        return data
    except (OSError, ValidationError):
        return None


def _read_secret(path: Path) -> bytes | None:
    """The key in a file of this user; None if there is no such file, or it is damaged."""
    with suppress(FileNotFoundError), open(path, "rb", opener=_open) as file:
        status = os.fstat(file.fileno())
        _check(path, status, warns=False)
        if not stat.S_ISREG(status.st_mode) or (hasattr(os, "geteuid") and status.st_mode & 0o077):
            raise PermissionError(f"{path} can be read by other users")
        data = file.read(SECRET_BYTES + 1)
        return data if len(data) == SECRET_BYTES else None
    return None


def _make_secret(path: Path) -> None:
    """Write a new key, unless another process has just done so."""
    import tempfile

    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.chmod(temporary, 0o600)  # regardless of the umask
            file.write(os.urandom(SECRET_BYTES))
        if path.exists() and _read_secret(path) is None:  # a full disk has cut it
            os.replace(temporary, path)
        else:
            with suppress(FileExistsError):
                os.link(temporary, path)  # unlike a move, never replaces a key that other processes use already
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)


def entries() -> list[Entry]:
    """The files of the cache, the most recently used first."""
    files = []
    for path in _files():
        with suppress(OSError):  # another process has just deleted it
            status = path.lstat()
            if re.fullmatch(_NAME, path.name) and stat.S_ISREG(status.st_mode):
                files.append(Entry(path, KINDS[path.suffix[1:]], status.st_size, status.st_mtime))
    return sorted(files, key=lambda entry: -entry.used)


def clear() -> list[Entry]:
    """Delete all files of the cache, and return them."""
    deleted = entries()
    for entry in deleted:
        with suppress(OSError):
            entry.path.unlink()
    if (folder := directory()) is not None:
        with suppress(OSError):  # nothing was tuned, or another process tunes now
            for note in (folder / TUNING).iterdir():
                note.unlink()
            (folder / TUNING).rmdir()
    return deleted


def _files() -> list[Path]:
    folder = directory()
    return [] if folder is None else [folder / name for name in _names()]


def _names() -> list[str]:
    place = cache_place()
    try:
        return [] if place is None else os.listdir(place)
    except OSError:  # there is no such directory yet
        return []


def _evict(new: Path) -> int:
    """Delete the least recently used files beyond the limit, and stale temporary ones; return the bytes that remain."""
    files = sorted(entries(), key=lambda entry: entry.path != new)  # the new one is kept
    total, most = 0, limit()
    if sum(entry.bytes for entry in files) > most:
        most -= most // SPARE
    for entry in files:
        total += entry.bytes
        if total > most and entry.path != new:
            with suppress(OSError):
                entry.path.unlink()
            total -= entry.bytes
    for path in _files():
        with suppress(OSError):
            if re.fullmatch(_TEMPORARY, path.name) and time.time() - path.lstat().st_mtime > STALE_SECONDS:
                path.unlink()
    return total


def _file(key: str, kind: str, create: bool = False, warns: bool = True) -> Path:
    """The path of a key's file, which need not exist; `OSError` if its directory is not trusted or missing."""
    path = directory()
    if path is None:
        raise FileNotFoundError("this user has no directory for caches")
    if create:
        for missing in reversed([folder for folder in (path, *path.parents) if not folder.exists()]):
            with suppress(FileExistsError):
                missing.mkdir(mode=0o700)
                missing.chmod(0o700)  # regardless of the umask
    _check(path, path.stat(), warns)
    return path / f"{key}.{kind}"


def _check(path: Path, status: os.stat_result, warns: bool = True) -> None:
    """Raise `PermissionError`, and warn once, if others own a directory or a file, or can write to it."""
    if not hasattr(os, "geteuid"):  # on Windows, user directories are private by default
        return
    if status.st_uid != os.geteuid():
        problem = f"{path} belongs to the user {status.st_uid}, not to {os.geteuid()}"
    elif status.st_mode & 0o022:
        problem = f"{path} can be written to by other users (its mode is {stat.S_IMODE(status.st_mode):03o})"
    else:
        return
    if warns and problem not in _warned:
        _warned.add(problem)
        warnings.warn(
            f"{problem}: nothing is kept there, since compiled expressions are run as they are found. "
            "Make it yours alone (chmod 700), or set OPWEAVE_CACHE to a directory that is",
            RuntimeWarning,
            stacklevel=2,
        )
    raise PermissionError(problem)


def _read(path: Path, key: str, is_use: bool) -> bytes | None:
    """The content of an undamaged file; None if it is damaged."""
    from .digests import DIGEST_BYTES

    with open(path, "rb", opener=_open) as file:
        # The status of the open file: the path may lead elsewhere by now.
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
            return None
        _check(path, status)
        content = file.read(MAX_FILE_BYTES + 1)
        data = content[DIGEST_BYTES:]
        if content != _digest(key, data) + data:
            return None
        if is_use and time.time() - status.st_mtime > TOUCH_SECONDS:
            with suppress(OSError):  # on a file system that is mounted read-only
                os.utime(path)
        return data


def _open(path: str, flags: int) -> int:
    """Open a file, but neither follow a link to another user's file, nor wait for the writer of a pipe."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


def _write(path: Path, key: str, data: bytes) -> None:
    """Write atomically: to a temporary file, which is then renamed."""
    import tempfile  # loads many modules; most processes only read

    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.chmod(temporary, 0o600)  # regardless of the umask
            file.write(_digest(key, data) + data)
        os.replace(temporary, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)


def _digest(key: str, data: bytes) -> bytes:
    from .digests import digest  # here: most processes only ask whether there are files

    return digest(key.encode() + data).digest()
