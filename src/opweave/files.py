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
    from tempfile import mkstemp

    target = Path(path)
    try:
        # Beside the target: a file is moved within its file system only.
        descriptor, name = mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)  # mkstemp makes files that nobody else can read
        os.replace(name, target)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    finally:
        Path(name).unlink(missing_ok=True)
