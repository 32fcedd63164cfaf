"""Arrays on the host: aligned allocation, and the addresses that they take."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

import numpy as np

from ..core.desc import Desc
from ..core.dtypes import numpy_type
from ..support import control_groups
from ..support.errors import OperationError, ValidationError

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector register."""


def allocate(desc: Desc) -> np.ndarray:
    """Make an array of zeros, C-contiguous and aligned to 64 bytes.

    Args:
        desc: its data type and shape.

    Raises:
        OperationError: there is not enough memory.

    >>> array = allocate(Desc("float32", (2, 3)))
    >>> array.shape, array.ctypes.data % ALIGNMENT
    ((2, 3), 0)
    """
    try:
        raw = np.zeros(desc.byte_length + ALIGNMENT, np.uint8)
    except MemoryError:
        raise OperationError(f"there is no memory for {desc}: {desc.byte_length} bytes") from None
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + desc.byte_length].view(numpy_type(desc.data_type)).reshape(desc.shape)


def empty(desc: Desc) -> np.ndarray:
    """A new array, not initialised, with NumPy's alignment."""
    try:
        return np.empty(desc.shape, numpy_type(desc.data_type))
    except MemoryError:
        raise OperationError(f"there is no memory for {desc}: {desc.byte_length} bytes") from None


class _Range:
    """The base object of the arrays over existing memory."""

    __slots__ = ("__array_interface__", "__weakref__")

    def __init__(self, address: int, size: int) -> None:
        self.__array_interface__ = {"version": 3, "shape": (size,), "typestr": "|u1", "data": (address, False)}


class _Lease(_Range):
    __slots__ = ("_release",)

    def __init__(self, address: int, size: int, release: Callable[[], object]) -> None:
        super().__init__(address, size)
        self._release = release

    def __del__(self) -> None:
        self._release()


def array_at(address: int, size: int) -> np.ndarray:
    """An array of bytes over existing memory, which it does not keep alive."""
    return np.asarray(_Range(address, size))


def lease(address: int, size: int, release: Callable[[], object]) -> np.ndarray:
    """An array of bytes over existing memory, which `release` keeps alive.

    `release` is called when the array and all its views have been collected, at any time in any thread: it must not wait for
    a lock.
    """
    return np.asarray(_Lease(address, size, release))


def address_range(array: np.ndarray) -> tuple[int, int]:
    """Addresses of the first byte of a contiguous array and of the first one after it."""
    start: int = array.__array_interface__["data"][0]
    return start, start + array.nbytes


def check_overlap(
    inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray], constants: Sequence[tuple[int, int]] = ()
) -> None:
    """Require that no output shares memory with an input, another output, or one of the ranges `constants`."""
    ranges = [(*address_range(array), name, False) for name, array in inputs.items() if array.size]
    ranges += [(*address_range(array), name, True) for name, array in outputs.items() if array.size]
    ranges.sort()
    end, before, written = -1, "", False
    for start, stop, name, writes in ranges:
        if start < end and (writes or written):
            raise ValidationError(
                f"the memory of {name!r} overlaps that of {before!r}; outputs need memory of their own"
            )
        # Inputs may overlap each other; compare the next array with the one that ends last.
        if stop > end or writes:
            end, before, written = max(stop, end), name, writes
        if writes and _meets(constants, start, stop):
            raise ValidationError(f"the memory of {name!r} overlaps that of a constant of the graph")


def _meets(ranges: Sequence[tuple[int, int]], start: int, stop: int) -> bool:
    before = bisect_left(ranges, (stop, 0))  # how many ranges begin before the end
    return before > 0 and ranges[before - 1][1] > start


def meets(ranges: Sequence[tuple[int, int]], array: np.ndarray) -> bool:
    """Whether a contiguous array shares memory with one of `ranges`, as `merged_ranges` returns them."""
    return _meets(ranges, *address_range(array))


def is_same(one: object, other: object) -> bool:
    """Whether two tensors use the same memory, from the first byte to the last."""
    if one is other or not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray):
        return one is other
    return one.nbytes == other.nbytes > 0 and address_range(one) == address_range(other)


def in_place(
    inputs: Mapping[str, object], outputs: Mapping[str, object], may_share: Mapping[str, str]
) -> dict[str, str]:
    """For each output in exactly the memory of the input that it `may_share`: the name of that input."""
    return {
        name: source
        for name, source in may_share.items()
        if name in outputs and source in inputs and is_same(inputs[source], outputs[name])
    }


def merged_ranges(arrays: Iterable[np.ndarray]) -> list[tuple[int, int]]:
    """The address ranges of contiguous arrays, sorted; ranges that overlap or touch are merged."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(map(address_range, arrays)):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        else:
            merged.append((start, stop))
    return merged


def owner(array: np.ndarray) -> object:
    """The object that owns the memory of an array, such as an `mmap` or `bytes`; None if an array owns it."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base.obj if isinstance(base, memoryview) else base


def physical() -> int:
    """Size of the physical memory in bytes, within the limit of the container; 64 TiB if the system reports neither."""
    total = 2**46
    with suppress(AttributeError, OSError, ValueError):
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(min(total, control_groups.memory_limit()))


def trim() -> None:
    """Return freed memory to the system: glibc keeps it in a heap for each thread."""
    import ctypes

    trim_heaps = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None  # glibc has it
    if trim_heaps is not None:
        trim_heaps(0)
