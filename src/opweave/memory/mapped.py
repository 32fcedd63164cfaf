"""Memory-mapped files: find the file and the offset that an array maps."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator

import numpy as np

from ..support.records import record
from .host import address_range, owner


@record
class FileRegion:
    """A range of addresses of this process that maps a part of a file."""

    start: int
    stop: int
    offset: int
    path: str


def mapped_files(arrays: Iterable[np.ndarray]) -> list[FileRegion]:
    """The memory-mapped files that may hold `arrays`, in order of address; none if NumPy or Python owns all memory.

    Private writable mappings are left out, because they may differ from the file, and so are files that have been
    replaced or deleted. Systems other than Linux have no list of mappings.
    """
    ranges = [address_range(array) for array in arrays if not isinstance(owner(array), (bytes, bytearray, type(None)))]
    if not ranges:
        return []
    first, last = min(start for start, _ in ranges), max(stop for _, stop in ranges)
    regions = []
    identities: dict[str, tuple[int, int, int] | None] = {}  # most files are mapped in several pieces
    for line in _maps(last):
        addresses, permissions, offset, device, inode, *name = line.rstrip("\n").split(maxsplit=5)
        start, stop = (int(address, 16) for address in addresses.split("-"))
        if stop <= first:
            continue
        if not name or not name[0].startswith("/") or permissions[0] != "r" or permissions[1:] == "w-p":
            continue
        path = name[0]
        if path not in identities:
            identities[path] = _identity(path)
        major, minor = (int(part, 16) for part in device.split(":"))
        if identities[path] == (major, minor, int(inode)):
            regions.append(FileRegion(start, stop, int(offset, 16), path))
    return regions


def _maps(last: int) -> Iterator[str]:
    """The lines of /proc/self/maps up to the address `last`: the system takes long to list all libraries."""
    try:
        with open("/proc/self/maps", errors="surrogateescape") as file:
            for line in file:
                if int(line[: line.index("-")], 16) >= last:
                    return
                yield line
    except OSError:
        return


def _identity(path: str) -> tuple[int, int, int] | None:
    """Device (major, minor) and inode of a file; None if an engine could not open it by this name."""
    try:
        path.encode()  # a model cannot contain every name
        status = os.stat(path)
    except (OSError, UnicodeError):  # deleted
        return None
    if not os.access(path, os.R_OK):
        return None
    return os.major(status.st_dev), os.minor(status.st_dev), status.st_ino


def find_in_files(array: np.ndarray, regions: list[FileRegion]) -> tuple[str, int] | None:
    """The file and the offset that a contiguous array maps; None if it is not in a mapped file."""
    start, stop = address_range(array)
    index = bisect_right(regions, start, key=lambda region: region.start) - 1
    if index < 0 or stop > regions[index].stop:
        return None
    return regions[index].path, regions[index].offset + start - regions[index].start
