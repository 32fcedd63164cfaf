"""A session bound to the arrays of a user, for calls that pass the same ones again.

To bind takes longer than all else that a repeated call does. The arrays stay the user's: nothing here keeps them alive. Before
each run those of the call are looked at, for what is bound is memory, and an array object can get other memory (`resize`),
another shape, or another data type. An array that is where one was before, and like it, is as good as that one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from ctypes import c_size_t
from typing import Any

import numpy as np

_POINTER = object.__basicsize__
"""Where an array object has the address of its data: NumPy's C interface has it in front of all else."""


def _finds_addresses() -> bool:
    """Whether addresses are where they should be: `__array_interface__` takes ten times as long to tell them."""
    probe = np.empty(1)
    return sys.implementation.name == "cpython" and _pointer(probe).value == probe.__array_interface__["data"][0]


def _pointer(array: np.ndarray) -> c_size_t:
    """The address of an array's data, to be read while the array is alive."""
    return c_size_t.from_address(id(array) + _POINTER)


FINDS_ADDRESSES = _finds_addresses()

Given = tuple[str, np.ndarray, np.dtype[Any], tuple[int, ...]]
"""What the user calls an array, the array, and the data type and shape that it must have."""

Watched = tuple[str, int, np.dtype[Any], tuple[int, ...], c_size_t, int]
"""The name of an array, its identity, and what it must be like: data type, shape, and address."""


class Bound:
    """What runs on certain arrays, and only on these.

    Args:
        call: runs; it is bound to the arrays, and does not keep them.
        inputs: the arrays that it reads.
        outputs: the arrays that it writes.
        names: the outputs that are returned.

    Attributes:
        call: the same.
        results: where these outputs are in what `take` gives.
    """

    __slots__ = ("_inputs", "_outputs", "call", "results")

    def __init__(
        self, call: Callable[[], None], inputs: Sequence[Given], outputs: Sequence[Given], names: Sequence[str]
    ) -> None:
        self.call = call
        self._inputs, self._outputs = list(map(_watch, inputs)), list(map(_watch, outputs))
        places = {name: len(inputs) + k for k, (name, _, _, _) in enumerate(outputs)}
        self.results = [places[name] for name in names]

    def take(self, given: Any, out: Any) -> list[np.ndarray] | None:
        """The arrays of a call, to be held while it runs, for the user may drop them; None if they are not what is bound."""
        if type(given) is not dict or len(given) != len(self._inputs):
            return None
        if type(out) is not dict or len(out) != len(self._outputs):
            return None
        found = []
        for name, identity, dtype, shape, pointer, address in self._inputs:
            value = given.get(name)
            if id(value) != identity or type(value) is not np.ndarray:
                return None
            if value.dtype is not dtype or value.shape != shape or pointer.value != address:
                return None
            if not value.flags.c_contiguous:
                return None
            found.append(value)
        for name, identity, dtype, shape, pointer, address in self._outputs:
            value = out.get(name)
            if id(value) != identity or type(value) is not np.ndarray:
                return None
            if value.dtype is not dtype or value.shape != shape or pointer.value != address:
                return None
            if not value.flags.carray:  # C-contiguous, aligned and writable
                return None
            found.append(value)
        return found


def _watch(given: Given) -> Watched:
    name, array, dtype, shape = given
    pointer = _pointer(array)
    return name, id(array), dtype, shape, pointer, pointer.value
