"""Calls of the operations in `opweave.ops.indexing`: nothing is computed, so results must be equal.

Scatters never name an element twice: which update stays is then not defined.
"""

from __future__ import annotations

from math import prod

import numpy as np

from opweave.core.operation import N
from opweave.ops import indexing as ops

from . import Call, Make, sample


def any_indices(make: Make, shape: tuple[int, ...], size: int) -> np.ndarray:
    """Indices in and out of range, the extremes of their data type among them."""
    indices = make.indices("indices", shape, size, beyond=3)
    info = np.iinfo(indices.dtype)
    wild = make.indices("indices", shape, 8)
    return np.asarray(np.where(wild == 0, info.min, np.where(wild == 1, info.max, indices))).astype(indices.dtype)


def spelled(make: Make, positions: np.ndarray, size: int) -> np.ndarray:
    """Indices that mean `positions` in [0, size): some negative, some out of range at either end."""
    data_type = np.dtype(make.types["indices"])
    how = make.indices("indices", positions.shape, 4).astype(np.int64) % 4
    beyond = np.where(positions == 0, -size - how, np.where(positions == size - 1, size + how, positions))
    if data_type.kind == "u":
        beyond = np.maximum(beyond, positions)
    else:
        beyond = np.where(how == 1, positions - size, beyond)
    return np.where(how == 0, positions, beyond).astype(data_type)


@sample(ops.gather, rtol=0, atol=0)
def _(make: Make) -> Call:
    x = make.array("input", make.shape(1, 5, 4), special=True)
    axis = make.integer(0, x.ndim - 1)
    indices = any_indices(make, make.shape(0, 4, 3), x.shape[axis])
    return Call(x, indices, axis=axis) if axis > 0 or make.boolean() else Call(x, indices)


@sample(ops.gather_elements, rtol=0, atol=0)
def _(make: Make) -> Call:
    x = make.array("input", make.shape(1, N, 3), special=True)
    axis = make.integer(0, x.ndim - 1)
    shape = (*x.shape[:axis], make.integer(1, 6), *x.shape[axis + 1 :])
    indices = any_indices(make, shape, x.shape[axis])
    return Call(x, indices, axis=axis) if axis > 0 or make.boolean() else Call(x, indices)


@sample(ops.gather_nd, rtol=0, atol=0)
def _(make: Make) -> Call:
    x = make.array("input", make.shape(1, 5, 4), special=True)
    counts, coordinates = make.shape(0, 3, 3), make.integer(1, x.ndim)
    columns = [any_indices(make, counts, size) for size in x.shape[:coordinates]]
    return Call(x, np.stack(columns, axis=-1))


@sample(ops.scatter_elements, rtol=0, atol=0)
def _(make: Make) -> Call:
    x = make.array("input", make.shape(1, N, 3), special=True)
    axis = make.integer(0, x.ndim - 1)
    lines = make.array("input", x.shape, special=False).astype(np.float64)
    # The ranks of the elements along the axis are a permutation of the positions; some of them are picked.
    count = make.integer(min(1, x.shape[axis]), x.shape[axis])
    picked = np.argsort(lines, axis=axis, kind="stable").take(np.arange(count), axis)
    indices = spelled(make, picked, x.shape[axis])
    updates = make.array("updates", indices.shape, special=True)
    return Call(x, indices, updates, axis=axis) if axis > 0 or make.boolean() else Call(x, indices, updates)


@sample(ops.scatter_nd, rtol=0, atol=0)
def _(make: Make) -> Call:
    x = make.array("input", make.shape(1, 5, 4), special=True)
    leading = x.shape[: make.integer(1, x.ndim)]
    counts: tuple[int, ...] = make.shape(0, 3, 3)
    if 0 in leading:
        counts = (0,)
    while prod(counts) > prod(leading):
        counts = counts[1:]
    order = np.array(make.permutation(prod(leading)), "int64")[: prod(counts)]
    columns = np.unravel_index(order.reshape(counts), leading)
    indices = np.stack([spelled(make, c, size) for c, size in zip(columns, leading, strict=True)], axis=-1)
    return Call(x, indices, make.array("updates", (*counts, *x.shape[len(leading) :]), special=True))
