"""Constants of kernels, and their device memory, which graphs share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, MutableMapping
from dataclasses import dataclass
from threading import RLock
from typing import Any
from weakref import finalize

import numpy as np


@dataclass(frozen=True, eq=False, slots=True)
class GpuConstant:
    """A constant of a kernel: a C-contiguous array, optionally transformed by functions when it is uploaded.

    `make` computes the elements. `how` has the functions with their arguments; it is empty for the unchanged array.
    """

    source: np.ndarray
    make: Callable[[], np.ndarray]
    how: tuple[Hashable, ...] = ()

    @classmethod
    def of(cls, array: np.ndarray) -> GpuConstant:
        return cls(array, lambda: array)

    def then(self, function: Callable[..., np.ndarray], *arguments: Hashable) -> GpuConstant:
        """Apply a pure function to the elements."""
        return GpuConstant(self.source, lambda: function(self.make(), *arguments), (*self.how, function, arguments))

    @property
    def key(self) -> Hashable:
        """A key that is equal for constants with the same bytes, while `source` exists."""
        how = (self.source.dtype.str, *self.how) if self.how else ()
        return self.source.ctypes.data, self.source.nbytes, how


def uploaded_once(
    uploaded: MutableMapping[Hashable, Any], lock: RLock, constant: GpuConstant, upload: Callable[[np.ndarray], Any]
) -> Any:
    """The device memory of a constant, uploaded on first use; graphs share the memory of equal constants.

    `uploaded` has weak values, and `lock` guards it.
    """
    key = constant.key
    with lock:
        cached = uploaded.get(key)
    if cached is not None:
        return cached
    memory = upload(constant.make())
    with lock:
        uploaded[key] = memory
    end = finalize(_owner(constant.source), uploaded.pop, key, None)  # a new array may reuse the address
    end.atexit = False
    finalize(memory, end.detach).atexit = False
    return memory


def _owner(array: np.ndarray) -> np.ndarray:
    """The array that owns the memory of a view. Views of constants are short-lived."""
    owner, base = array, array.base
    while base is not None:
        if isinstance(base, np.ndarray):
            owner = base
        base = getattr(base, "base", None)
    return owner


__all__ = ["GpuConstant", "uploaded_once"]
