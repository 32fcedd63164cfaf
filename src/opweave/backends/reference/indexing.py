"""Reference rules: gather and scatter."""

from __future__ import annotations

import numpy as np

from ...ops import indexing as ops
from .backend import Array, reference


def _positions(indices: Array, size: int) -> Array:
    """Positions in [0, size): indices are clamped to [-size, size - 1], and negative ones count from the end."""
    clamped = np.clip(indices.astype(np.int64), -size, size - 1)
    return np.where(clamped < 0, clamped + size, clamped)


def _points(indices: Array, shape: tuple[int, ...]) -> tuple[Array, ...]:
    """The positions along each of the leading dimensions, given coordinates along the last axis of `indices`."""
    return tuple(_positions(indices[..., axis], shape[axis]) for axis in range(indices.shape[-1]))


@reference.lower(ops.gather)
def _(input: Array, indices: Array, axis: int) -> Array:
    return np.take(input, _positions(indices, input.shape[axis]), axis)


@reference.lower(ops.gather_elements)
def _(input: Array, indices: Array, axis: int) -> Array:
    return np.take_along_axis(input, _positions(indices, input.shape[axis]), axis)


@reference.lower(ops.gather_nd)
def _(input: Array, indices: Array) -> Array:
    return input[_points(indices, input.shape)]


@reference.lower(ops.scatter_elements)
def _(input: Array, indices: Array, updates: Array, axis: int) -> Array:
    output = input.copy()
    np.put_along_axis(output, _positions(indices, input.shape[axis]), updates, axis)
    return output


@reference.lower(ops.scatter_nd)
def _(input: Array, indices: Array, updates: Array) -> Array:
    output = input.copy()
    output[_points(indices, input.shape)] = updates
    return output
