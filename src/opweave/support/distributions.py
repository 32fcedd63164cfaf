"""Read the versions of installed packages, if possible without `importlib.metadata`.

To read one small file, `importlib.metadata` loads the standard library's mail, archive and socket modules: 2 MB.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import PathFinder

FOLDERS = (".dist-info", ".egg-info")
"""Suffixes of folders with metadata."""

_SEPARATORS = re.compile("[-_.]+")


def folders() -> Iterator[str] | None:
    """The folders that Python imports from, in order; None if packages may also be in archives or behind import hooks."""
    if any(hasattr(finder, "find_distributions") and finder is not PathFinder for finder in sys.meta_path):
        return None
    return None if any(map(os.path.isfile, sys.path)) else (folder or "." for folder in sys.path)


def version_of(package: str) -> str:
    """The version of an installed package from its metadata; empty if the package is not installed.

    >>> import numpy
    >>> version_of("NumPy") == numpy.__version__, version_of("no_such_package")
    (True, '')
    """
    for folder in folders() or ():
        matches = _metadata_folders(package, folder)
        if len(matches) > 1:  # a failed installation leaves several versions; `importlib.metadata` chooses one
            break
        for match in matches:
            if version := _version_in(match):
                return version
    from importlib.metadata import PackageNotFoundError, version as version_in_metadata

    with suppress(PackageNotFoundError):
        return version_in_metadata(package) or ""
    return ""


def _metadata_folders(package: str, folder: str) -> list[str]:
    try:
        names = [name for name in os.listdir(folder) if name.endswith(FOLDERS)]
    except OSError:  # `sys.path` may name folders that do not exist
        return []
    package = _normalise(package)
    return [
        os.path.join(folder, name)
        for name in names
        if _normalise(name.removesuffix(".egg-info").partition("-")[0]) == package
    ]


def _normalise(name: str) -> str:
    return _SEPARATORS.sub("_", name).lower()


def _version_in(folder: str) -> str:
    """The version in a folder with metadata; empty if there is none."""
    with suppress(OSError, UnicodeError), open(os.path.join(folder, "METADATA"), encoding="utf-8") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name.lower() == "version":
                return value.strip()
            if not line.strip():  # the end of the header; the description follows
                break
    return ""
