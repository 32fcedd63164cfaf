"""Files that are written wholly or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from .errors import DataError


@contextmanager
def written(path: str | Path) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of `path` once all went well; after an error nothing has changed.

    Raises:
        DataError: the file cannot be written.
    """
    target = Path(path)
    try:
        # Beside the target: a file is moved within its file system only.
        name = str(target.parent / f".{target.name}.{os.urandom(8).hex()}")
        # The process's umask decides who may read it, as for every new file; asking for the umask would change it.
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        os.replace(name, target)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    finally:
        Path(name).unlink(missing_ok=True)
