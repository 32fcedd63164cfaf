"""Reference rules: gather and scatter."""

from __future__ import annotations

import numpy as np

from ....composites.scatter import scatter_reduce
from ....ops import indexing as ops
from ..backend import Array, reference


def _positions(indices: Array, size: int) -> Array:
    """Convert indices to positions in [0, size): clamp them to [-size, size - 1]; negative ones count from the end."""
    clamped = np.clip(indices.astype(np.int64), -size, size - 1)
    return np.where(clamped < 0, clamped + size, clamped)


def _coordinates(indices: Array, shape: tuple[int, ...]) -> tuple[Array, ...]:
    """Split indices of gather_nd or scatter_nd into an array of positions for each of the first axes of `shape`."""
    return tuple(_positions(indices[..., axis], shape[axis]) for axis in range(indices.shape[-1]))


@reference.lower(ops.gather)
def _(input: Array, indices: Array, axis: int) -> Array:
    return np.take(input, _positions(indices, input.shape[axis]), axis)


@reference.lower(ops.gather_elements)
def _(input: Array, indices: Array, axis: int) -> Array:
    return np.take_along_axis(input, _positions(indices, input.shape[axis]), axis)


@reference.lower(ops.gather_nd)
def _(input: Array, indices: Array) -> Array:
    return input[_coordinates(indices, input.shape)]


@reference.lower(ops.scatter_elements)
def _(input: Array, indices: Array, updates: Array, axis: int) -> Array:
    output = input.copy()
    np.put_along_axis(output, _positions(indices, input.shape[axis]), updates, axis)
    return output


@reference.lower(ops.scatter_nd)
def _(input: Array, indices: Array, updates: Array) -> Array:
    output = input.copy()
    output[_coordinates(indices, input.shape)] = updates
    return output


_COMBINE = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


@reference.lower(scatter_reduce)
def _(input: Array, indices: Array, updates: Array, axis: int, reduction: str) -> Array:
    # All devices apply updates in order, and round each sum to float32. So does the definition, instead of using float64.
    wide = np.dtype("float32") if input.dtype.kind == "f" else input.dtype
    output = input.astype(wide)
    coordinates = list(np.ogrid[tuple(slice(size) for size in updates.shape)])
    coordinates[axis] = _positions(np.broadcast_to(indices, updates.shape), input.shape[axis])
    _COMBINE[reduction].at(output, tuple(coordinates), updates.astype(wide))
    return output.astype(input.dtype)
