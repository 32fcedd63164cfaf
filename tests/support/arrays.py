"""Arrays for tests: their numbers, and their memory."""

from __future__ import annotations

import numpy as np


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Draw float32 numbers of a normal distribution."""
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def floats(*shape: int) -> np.ndarray:
    """Float32 numbers from -1 to 1 in equal steps."""
    return np.linspace(-1, 1, int(np.prod(shape)), dtype="float32").reshape(shape)


def address_of(array: np.ndarray) -> int:
    """The address of the first element, by NumPy's array interface."""
    return int(array.__array_interface__["data"][0])
