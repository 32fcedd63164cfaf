"""Digests of the contents of arrays. Those of large arrays in mapped files are kept by the state of the file.

Reading all weights of a model takes longer than loading the model. So a digest is kept in the cache on disk under device and
inode, size, and times of the file, and under the place in the file. Nobody can set the time of the last change of a file
(`ctime`) back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping

import numpy as np

from ..support import disk_cache
from ..support.digests import digest
from .mapped import find_in_files, mapped_files

MAPPED_BYTES = 2**20
"""The smallest array whose digest is kept: smaller ones are read in a millisecond."""

SETTLED_SECONDS = 2.0
"""Age of the last change of a file from which its digest is kept: clocks of file systems are coarse, and a later change could
have the same time."""

KIND = "digest"
"""Kind of the files in the cache on disk."""


def digests_of(arrays: Iterable[np.ndarray]) -> Mapping[int, bytes]:
    """A digest of the bytes of each C-contiguous array, by the `id` of the array.

    >>> a, b = np.float32([1, 2]), np.float32([1, 2])
    >>> found = digests_of([a, b])
    >>> found[id(a)] == found[id(b)], len(found[id(a)])
    (True, 32)
    """
    unique = {id(array): array for array in arrays}
    large = [array for array in unique.values() if array.nbytes >= MAPPED_BYTES]
    regions = mapped_files(large)
    states = {path: _state_of(path) for path in {region.path for region in regions}}
    digests: dict[int, bytes] = {}
    for number, array in unique.items():
        place = find_in_files(array, regions) if regions and array.nbytes >= MAPPED_BYTES else None
        state = states.get(place[0]) if place is not None else None
        if place is None or state is None:
            digests[number] = _digest(array)
            continue
        key = digest(f"{state} {place[1]} {array.nbytes}".encode()).hexdigest()
        data = disk_cache.load(key, KIND)
        if data is None:
            data = _digest(array)
            if _state_of(place[0]) == state:  # it has not been written meanwhile
                disk_cache.store(key, KIND, data)
        digests[number] = data
    return digests


def _digest(array: np.ndarray) -> bytes:
    return digest(memoryview(array.reshape(-1).view(np.uint8))).digest()  # type: ignore[arg-type]


def _state_of(path: str) -> tuple[int, ...] | None:
    """Device, inode, size and times of a file; None if the file has just been changed, or cannot be asked."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    if abs(time.time() - status.st_ctime) < SETTLED_SECONDS:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
