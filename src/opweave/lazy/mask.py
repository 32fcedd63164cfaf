"""Arrays of truth values. WebNN has no bool type: operations take and return uint8."""

from __future__ import annotations

from typing import Any

import numpy as np

from .array import Array, host_values


class ArrayMask(Array):
    """An array of truth values, such as the result of `x < y`. Operations see uint8 with 0 and 1, reads return bool."""

    __slots__ = ()

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's bool."""
        return np.dtype(np.bool_)

    def _as_read(self) -> np.ndarray:
        return host_values(self).view(np.bool_)

    def numpy(self) -> np.ndarray:
        """A read-only view of the values, of type bool; pending values are computed first."""
        return super().numpy().view(np.bool_)

    def __getitem__(self, key: Any) -> ArrayMask:
        return as_mask(super().__getitem__(key))


def as_mask(array: Array) -> ArrayMask:
    """Turn a new result of 0 and 1 into truth values. The object must stay the same, as pending calls refer to it weakly."""
    if type(array) is Array:
        array.__class__ = ArrayMask
    assert isinstance(array, ArrayMask), type(array)
    return array
