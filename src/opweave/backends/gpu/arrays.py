"""Memory of tensors on GPUs."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from threading import RLock
from typing import Any
from weakref import finalize

import numpy as np

from ...graph import Desc


@dataclass(eq=False, slots=True)
class DeviceArray:
    """Memory of a tensor on a device.

    Attributes:
        desc: data type and shape.
        buffer: the buffer that it begins, as the engine of the device has it.
        lent: whether the buffer is the user's, who may destroy it at any time.
        read_only: whether nothing may write to it.
    """

    desc: Desc
    buffer: Any
    lent: bool = False
    read_only: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of data."""
        return self.desc.byte_length

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions."""
        return self.desc.shape


def uploaded_once(
    uploaded: MutableMapping[tuple[int, int], Any], lock: RLock, array: np.ndarray, upload: Callable[[], Any]
) -> Any:
    """The memory of a constant on a device; graphs that share the array share it.

    Args:
        uploaded: the memory of constants, by address and size of the array; a weak mapping, which keeps none alive.
        lock: of the mapping.
        array: the constant.
        upload: copies it to the device.
    """
    key = array.ctypes.data, array.nbytes
    with lock:
        known = uploaded.get(key)
    if known is not None:
        return known
    made = upload()
    with lock:
        uploaded[key] = made
    finalize(_owner(array), uploaded.pop, key, None).atexit = False  # another array may lie there then
    return made


def _owner(array: np.ndarray) -> np.ndarray:
    """The array whose memory a view shows: views of constants that are in order live only until they are copied."""
    owner, base = array, array.base
    while base is not None:
        if isinstance(base, np.ndarray):
            owner = base
        base = getattr(base, "base", None)
    return owner
