"""ONNX operators that pick or replace elements by index.

Indices out of range are errors in ONNX; WebNN clamps them.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ...builder import MLGraphBuilder
from ...graph import MLOperand
from ..registry import Tensor, Unsupported, converts, known, normalized, shape_of


@converts("Gather")
def _(b: MLGraphBuilder, data: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    return b.gather(data, indices, axis=normalized(axis, len(shape_of(data))))


@converts("GatherElements")
def _(b: MLGraphBuilder, data: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    axis = normalized(axis, len(shape_of(data)))
    # Indices may be shorter than the data along the other axes: what they leave out is cut off.
    sizes = list(shape_of(indices))
    sizes[axis] = shape_of(data)[axis]
    if sizes != list(shape_of(data)):
        data = b.slice(data, [0] * len(sizes), sizes)
    return b.gather_elements(data, indices, axis=axis)


@converts("GatherND")
def _(b: MLGraphBuilder, data: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    counts = shape_of(indices)[:-1]
    if not batch_dims:
        return b.gather_nd(data, indices)
    # The position in each batch dimension comes before the other coordinates.
    batches = np.indices(counts, np.int64)[:batch_dims]
    return b.gather_nd(data, _columns(b, [*batches, indices], counts))


def _columns(b: MLGraphBuilder, columns: list[Tensor], counts: tuple[int, ...]) -> Tensor:
    """Coordinates side by side; arrays have the shape `counts`, what is computed has coordinates already."""
    *leading, last = columns
    if isinstance(last, np.ndarray):
        return np.concatenate([np.stack(leading, -1), last.astype(np.int64)], -1)
    wide = b.cast(last, "int64") if last.data_type != "int64" else last
    return b.concat([np.stack(leading, -1), wide], len(counts))


@converts("Scatter", "ScatterElements")
def _(
    b: MLGraphBuilder, data: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none"
) -> Tensor:
    _check_reduction(reduction)
    shape, counts = shape_of(data), shape_of(indices)
    axis = normalized(axis, len(shape))
    if all(a == axis or size == whole for a, (size, whole) in enumerate(zip(counts, shape, strict=True))):
        return b.scatter_elements(data, indices, updates, axis=axis)
    # Indices that are shorter along the other axes leave the ends there as they are: all coordinates are written out.
    count = prod(counts)
    coordinates = np.indices(counts, np.int64).reshape(len(counts), count, 1)
    if isinstance(indices, np.ndarray):
        coordinates[axis, :, 0] = indices.reshape(-1)
        whole = coordinates[..., 0].T
    else:
        wide = indices if indices.data_type == "int64" else b.cast(indices, "int64")
        columns: list[Tensor] = list(coordinates)
        columns[axis] = b.reshape(wide, [count, 1])
        whole = b.concat(columns, 1)
    return b.scatter_nd(data, whole, b.reshape(updates, [count]))


@converts("ScatterND")
def _(b: MLGraphBuilder, data: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    _check_reduction(reduction)
    return b.scatter_nd(data, indices, updates)


def _check_reduction(reduction: str) -> None:
    if reduction != "none":
        raise Unsupported(f"WebNN scatters without a reduction, this has {reduction!r}")


@converts("OneHot")
def _(b: MLGraphBuilder, indices: Tensor, depth: Tensor, values: Tensor, *, axis: int = -1) -> Tensor:
    count = int(known(depth, "the depth").item())
    shape = shape_of(indices)
    axis = normalized(axis, len(shape) + 1)
    classes = np.arange(count).reshape([-1 if a == axis else 1 for a in range(len(shape) + 1)])
    column = [*shape[:axis], 1, *shape[axis:]]
    if isinstance(indices, MLOperand):
        wide = indices if indices.data_type == "int64" else b.cast(indices, "int64")
        wide = b.reshape(wide, column)
        is_hot = b.equal(wide, classes)
        if indices.data_type not in ("uint8", "uint32", "uint64"):  # negative ones count from the end
            is_hot = b.logical_or(is_hot, b.equal(wide, classes - count))
    else:
        wide = indices.astype(np.int64).reshape(column)
        is_hot = ((wide == classes) | (wide == classes - count)).view(np.uint8)
    if isinstance(values, np.ndarray):
        return b.where(b.constant(is_hot) if isinstance(is_hot, np.ndarray) else is_hot, values[1], values[0])
    off, on = b.split(values, 2)
    return b.where(is_hot, on, off)
