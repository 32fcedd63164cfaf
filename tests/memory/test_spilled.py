"""Arrays in a temporary file, whose pages are dropped."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from typing import Any

import numpy as np
import pytest

from opweave.memory import copies, owner, spilled
from opweave.memory.spilled import SpilledArrays

RANDOM = np.random.default_rng(0)

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how many pages a process has")


def resident() -> int:
    """Bytes of mapped files that are in memory."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssFile")) * 1024


@LINUX
def test_release_drops_pages_that_are_read_again() -> None:
    arrays = [RANDOM.integers(0, 255, (1 << 20) + k, np.uint8) for k in range(20)]
    store = SpilledArrays()
    copies = [store.add(array) for array in arrays]
    before = resident()
    store.release()
    assert before - resident() > 19 << 20
    for array, copy in zip(arrays, copies, strict=True):
        np.testing.assert_array_equal(copy, array)
    with store.releasing():
        assert all((copy == array).all() for array, copy in zip(arrays, copies, strict=True))


def test_add_keeps_types_shapes_and_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spilled, "SEGMENT_BYTES", 1 << 18)
    store = SpilledArrays()
    arrays = [RANDOM.integers(-99, 99, shape).astype(kind) for shape in ((300, 77, 5), (1 << 17,)) for kind in "bHfd"]
    copies = [store.add(array) for array in arrays]
    store.release()
    for array, copy in zip(arrays, copies, strict=True):
        assert (copy.dtype, copy.shape) == (array.dtype, array.shape)
        assert copy.ctypes.data % 64 == 0
        assert not copy.flags.writeable
        np.testing.assert_array_equal(copy, array)
    assert len(store._segments) > 2


def test_add_counts_the_copy() -> None:
    copies.reset()
    SpilledArrays().add(np.zeros(1 << 17))
    tally = copies.by_reason["weights in a temporary file"]
    assert (tally.count, tally.bytes) == (1, 1 << 20)


def test_add_leaves_small_arrays_and_views() -> None:
    store = SpilledArrays()
    small, view = np.zeros(100), np.frombuffer(bytes(1 << 20), np.uint8)
    copies.reset()
    assert store.add(small) is small
    assert store.add(view) is view
    assert copies.count == 0
    assert store._segments == []
    with store.releasing():
        store.release()


@pytest.mark.parametrize("broken", ["no disk", "full", "limit"])
def test_add_keeps_arrays_where_no_file_can_be_made(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "no space left on device")

    if broken == "no disk":
        monkeypatch.setattr(tempfile, "TemporaryFile", fail)
    elif broken == "full":
        monkeypatch.setattr(os, "posix_fallocate", fail, raising=False)
    else:
        monkeypatch.setattr(spilled, "MAX_BYTES", 1 << 20)
    array = RANDOM.random(1 << 18)
    assert owner(array) is None
    store = SpilledArrays()
    assert store.add(array) is array
    assert store.add(array) is array
    with store.releasing():
        pass
