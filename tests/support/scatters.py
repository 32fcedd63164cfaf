"""Scatters with a reduction, computed by NumPy."""

from __future__ import annotations

import numpy as np

COMBINE: dict[str, np.ufunc] = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
"""NumPy's function for each reduction of ONNX."""


def scatter_nd_in_numpy(data: np.ndarray, indices: np.ndarray, updates: np.ndarray, reduction: str) -> np.ndarray:
    """Compute ScatterND."""
    result = data.copy()
    COMBINE[reduction].at(result, tuple(np.moveaxis(indices, -1, 0)), updates)
    return result
