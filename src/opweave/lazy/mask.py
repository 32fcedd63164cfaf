"""Arrays of truth values. WebNN has no such type: operations take and give uint8."""

from __future__ import annotations

from typing import Any

import numpy as np

from .array import Array


class Mask(Array):
    """An array of truth values, the results of `x < y`: 0 and 1 of type uint8 for operations, of type bool when read."""

    __slots__ = ()

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's bool."""
        return np.dtype(np.bool_)

    def _as_read(self) -> np.ndarray:
        return super()._as_read().view(np.bool_)

    def numpy(self) -> np.ndarray:
        """A read-only view of the values, of type bool; pending values are computed first."""
        return super().numpy().view(np.bool_)

    def __getitem__(self, key: Any) -> Mask:
        return as_mask(super().__getitem__(key))


def as_mask(array: Array) -> Mask:
    """The same array of 0 and 1, a new result of operations, as truth values.

    The object changes its class: calls that are pending refer to their results weakly, so it must stay the same object.
    """
    if type(array) is Array:
        array.__class__ = Mask
    assert isinstance(array, Mask), type(array)
    return array
