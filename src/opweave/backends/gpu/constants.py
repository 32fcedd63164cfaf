"""Constants of kernels, uploaded to devices once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np

from ...memory.arrays import owner_of


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

    @property
    def owner(self) -> np.ndarray:
        """The array that owns the memory of `source`, whose views are short-lived."""
        return owner_of(self.source)
