"""Find the entry points of installed packages, if possible without `importlib.metadata`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from ..support import distributions

T = TypeVar("T")


class ByNeed(Mapping[str, T]):
    """Values by name, each loaded from its reference on access.

    >>> ByNeed({"one": "1"}, int)["one"]
    1
    """

    def __init__(self, references: Mapping[str, str], load: Callable[[str], T]) -> None:
        self._references, self._load = references, load

    def __getitem__(self, name: str) -> T:
        return self._load(self._references[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._references)

    def __len__(self) -> int:
        return len(self._references)


def entry_points(group: str) -> dict[str, str]:
    """Return the entry points of a group in all installed packages: `{name: "module:attribute"}`."""
    references, mention = dict[str, str](), group.encode()
    folders = distributions.folders()
    if folders is None:
        return _with_metadata(group)
    for place in folders:
        for content in _contents(place):
            if mention in content:
                for name, value in _entries(content.decode(), group):
                    # The folder that is searched first wins.
                    references.setdefault(name, value)
    return references


def _with_metadata(group: str) -> dict[str, str]:
    from importlib.metadata import entry_points as all_of

    return {entry.name: _reference(entry.value) for entry in all_of(group=group)}


def _contents(place: str) -> Iterator[bytes]:
    """Yield the files with the entry points of the packages in a folder."""
    try:
        names = sorted(name for name in os.listdir(place) if name.endswith(distributions.FOLDERS))
    except OSError:  # the path has a folder that does not exist
        return
    for name in names:
        try:
            # Read without a buffer and a text decoder: making these takes longer than reading such a small file.
            with open(os.path.join(place, name, "entry_points.txt"), "rb", buffering=0) as file:
                yield file.read()
        except OSError:  # most packages have none
            continue


def _entries(text: str, group: str) -> Iterator[tuple[str, str]]:
    r"""Yield the entry points of one file.

    >>> list(_entries("[console_scripts]\nrun = a:b\n\n[my.group] \n# one\nx = package.module:name\n", "my.group"))
    [('x', 'package.module:name')]
    """
    inside = False
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            inside = line == f"[{group}]"
        elif inside and line and not line.startswith(("#", ";")):
            name, _, value = line.partition("=")
            yield name.strip(), _reference(value)


def _reference(value: str) -> str:
    return value.partition("[")[0].strip()  # without the extras that it needs
