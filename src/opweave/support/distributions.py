"""Metadata of installed packages without `importlib.metadata`, wherever that finds the same.

`importlib.metadata` loads the standard library's mail, archive and socket modules, two megabytes, to read one small file.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import PathFinder

FOLDERS = (".dist-info", ".egg-info")
"""Ends of the names of folders with metadata."""

_SEPARATORS = re.compile("[-_.]+")


def folders() -> Iterator[str] | None:
    """The folders that Python imports from, in order; None if packages are elsewhere, too: in archives, or behind hooks."""
    if any(hasattr(finder, "find_distributions") and finder is not PathFinder for finder in sys.meta_path):
        return None
    return None if any(map(os.path.isfile, sys.path)) else (place or "." for place in sys.path)


def version_of(package: str) -> str:
    """The version of an installed package by its metadata; empty if there are none.

    >>> import numpy
    >>> version_of("NumPy") == numpy.__version__, version_of("no_such_package")
    (True, '')
    """
    for place in folders() or ():
        matches = _folders_of(package, place)
        if len(matches) > 1:  # left by an installation that failed
            break
        for folder in matches:
            if version := _version_in(folder):
                return version
    from importlib.metadata import PackageNotFoundError, version as version_in_metadata

    with suppress(PackageNotFoundError):
        return version_in_metadata(package) or ""
    return ""


def _folders_of(package: str, place: str) -> list[str]:
    try:
        names = [name for name in os.listdir(place) if name.endswith(FOLDERS)]
    except OSError:  # the path has a folder that does not exist
        return []
    plain = _plain(package)
    return [
        os.path.join(place, name) for name in names if _plain(name.removesuffix(".egg-info").partition("-")[0]) == plain
    ]


def _plain(name: str) -> str:
    return _SEPARATORS.sub("_", name).lower()


def _version_in(folder: str) -> str:
    """The version in the metadata of a folder; empty if there is none."""
    with suppress(OSError, UnicodeError), open(os.path.join(folder, "METADATA"), encoding="utf-8") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name.lower() == "version":
                return value.strip()
            if not line.strip():  # the description
                break
    return ""
