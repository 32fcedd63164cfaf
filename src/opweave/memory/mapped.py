"""Memory-mapped files: find the file and the offset that an array maps."""

from __future__ import annotations

import os
from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from .host import address_range


@dataclass(frozen=True, slots=True)
class FileRegion:
    """A range of addresses of this process that maps a part of a file."""

    start: int
    stop: int
    offset: int
    path: str


def mapped_files() -> list[FileRegion]:
    """The memory-mapped files of this process, in order of address; empty on systems other than Linux.

    Private writable mappings are left out, because they may differ from the file, and so are files that have been
    replaced or deleted.
    """
    regions = []
    try:
        with open("/proc/self/maps", errors="surrogateescape") as file:
            lines = file.readlines()
    except OSError:
        return []
    for line in lines:
        addresses, permissions, offset, device, inode, *name = line.rstrip("\n").split(maxsplit=5)
        if not name or not name[0].startswith("/") or permissions[0] != "r" or permissions[1:] == "w-p":
            continue
        try:
            name[0].encode()
            status = os.stat(name[0])
        except (OSError, UnicodeError):  # deleted, or a name that a model cannot contain
            continue
        if not os.access(name[0], os.R_OK):
            continue
        major, minor = (int(part, 16) for part in device.split(":"))
        if status.st_ino == int(inode) and (os.major(status.st_dev), os.minor(status.st_dev)) == (major, minor):
            start, stop = (int(address, 16) for address in addresses.split("-"))
            regions.append(FileRegion(start, stop, int(offset, 16), name[0]))
    return regions


def find_in_files(array: np.ndarray, regions: list[FileRegion]) -> tuple[str, int] | None:
    """The file and the offset that a contiguous array maps; None if it is not in a mapped file."""
    start, stop = address_range(array)
    at = bisect_right(regions, start, key=lambda region: region.start) - 1
    if at < 0 or stop > regions[at].stop:
        return None
    return regions[at].path, regions[at].offset + start - regions[at].start
