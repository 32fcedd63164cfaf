"""Constants of kernels: what they are made of, and their memory on a device, which graphs share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, MutableMapping
from dataclasses import dataclass
from threading import RLock
from typing import Any
from weakref import finalize

import numpy as np


@dataclass(frozen=True, eq=False, slots=True)
class Constant:
    """A constant as kernels read it: an array, or what functions make of one when it is copied to a device.

    Attributes:
        source: the array, which is C-contiguous.
        make: returns the elements.
        how: the functions that make them and their arguments; empty for the array as it is.
    """

    source: np.ndarray
    make: Callable[[], np.ndarray]
    how: tuple[Hashable, ...] = ()

    @classmethod
    def of(cls, array: np.ndarray) -> Constant:
        """An array as it is."""
        return cls(array, lambda: array)

    def then(self, function: Callable[..., np.ndarray], *arguments: Hashable) -> Constant:
        """What a function makes of the elements. Its result must depend on nothing but them and its arguments."""
        return Constant(self.source, lambda: function(self.make(), *arguments), (*self.how, function, arguments))

    @property
    def key(self) -> Hashable:
        """The same for constants that have the same bytes, while the array exists."""
        how = (self.source.dtype.str, *self.how) if self.how else ()
        return self.source.ctypes.data, self.source.nbytes, how


def uploaded_once(
    uploaded: MutableMapping[Hashable, Any], lock: RLock, constant: Constant, upload: Callable[[np.ndarray], Any]
) -> Any:
    """The memory of a constant on a device; graphs that make the same of an array share it.

    Args:
        uploaded: the memory of constants, by their keys; a weak mapping, which keeps none alive.
        lock: of the mapping.
        constant: the constant.
        upload: copies an array to the device.
    """
    key = constant.key
    with lock:
        cached = uploaded.get(key)
    if cached is not None:
        return cached
    memory = upload(constant.make())
    with lock:
        uploaded[key] = memory
    end = finalize(_owner(constant.source), uploaded.pop, key, None)  # another array may lie there then
    end.atexit = False
    finalize(memory, end.detach).atexit = False
    return memory


def _owner(array: np.ndarray) -> np.ndarray:
    """The array whose memory a view shows: views of constants that are in order live only until they are copied."""
    owner, base = array, array.base
    while base is not None:
        if isinstance(base, np.ndarray):
            owner = base
        base = getattr(base, "base", None)
    return owner


__all__ = ["Constant", "uploaded_once"]
