"""ONNX operators that pick or replace elements by index.

Indices out of range are errors in ONNX; WebNN clamps them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ...builder import MLGraphBuilder
from ...composites import one_hot, top_k
from ...graph import MLOperand
from ..messages import TensorProto
from ..registry import (
    Tensor,
    Unsupported,
    as_type,
    check_count,
    converts,
    integer,
    normalized,
    operand,
    shape_of,
)


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
    return b.gather_nd(data, _columns(b, list(batches), indices))


def _columns(b: MLGraphBuilder, leading: Sequence[np.ndarray], last: Tensor) -> Tensor:
    """Coordinates side by side: arrays of known ones, then those that the last dimension of `last` holds."""
    if isinstance(last, np.ndarray):
        return np.concatenate([np.stack(leading, -1), last], -1)
    parts: list[Tensor] = [np.stack(leading, -1), as_type(b, last, "int64")]
    return b.concat(parts, last.rank - 1)


@converts("Scatter", "ScatterElements")
def _(
    b: MLGraphBuilder,
    data: Tensor,
    indices: Tensor,
    updates: Tensor,
    *,
    axis: int = 0,
    reduction: str = "none",
    types: list[int],
) -> Tensor:
    shape, counts = shape_of(data), shape_of(indices)
    axis = normalized(axis, len(shape))
    aligned = all(a == axis or size == whole for a, (size, whole) in enumerate(zip(counts, shape, strict=True)))
    if aligned and reduction == "none":
        return b.scatter_elements(data, indices, updates, axis=axis)
    # Indices that are shorter along the other axes leave the ends there as they are: all coordinates are written out.
    count = prod(counts)
    columns: list[Tensor] = list(np.indices(counts, np.int64).reshape(len(counts), count, 1))
    if isinstance(indices, MLOperand):
        columns[axis] = b.reshape(as_type(b, indices, "int64"), [count, 1])
        coordinates: Tensor = b.concat(columns, 1)
    else:
        columns[axis] = indices.reshape(count, 1)
        coordinates = np.concatenate(columns, 1)
    return _scattered(b, data, coordinates, b.reshape(updates, [count]), reduction, types[0])


@converts("ScatterND")
def _(
    b: MLGraphBuilder, data: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none", types: list[int]
) -> Tensor:
    return _scattered(b, data, indices, updates, reduction, types[0])


def _scattered(
    b: MLGraphBuilder, data: Tensor, indices: Tensor, updates: Tensor, reduction: str, element_type: int
) -> Tensor:
    """`data` with updates at coordinates, reduced with what is there where no two of them are the same."""
    if reduction != "none":
        updates = _reduced(b, data, indices, updates, reduction, element_type)
    return b.scatter_nd(data, indices, updates)


def _reduced(
    b: MLGraphBuilder, data: Tensor, indices: Tensor, updates: Tensor, reduction: str, element_type: int
) -> Tensor:
    combine = {"add": b.add, "mul": b.mul, "max": b.max, "min": b.min}.get(reduction)
    if combine is None or element_type == TensorProto.BOOL:
        raise Unsupported(f"the reduction {reduction!r} is not WebNN's")
    if not isinstance(indices, np.ndarray):
        raise Unsupported(f"it has the reduction {reduction!r}, and its indices, which may repeat, are not constant")
    *_, depth = indices.shape
    places = np.ravel_multi_index(
        tuple((indices % np.array(shape_of(data)[:depth])).reshape(-1, depth).T), shape_of(data)[:depth]
    )
    if len(np.unique(places)) < len(places):
        raise Unsupported(f"it has the reduction {reduction!r}, and its indices repeat")
    return combine(b.gather_nd(data, indices), updates)


@converts("OneHot")
def _(b: MLGraphBuilder, indices: Tensor, depth: Tensor, values: Tensor, *, axis: int = -1) -> Tensor:
    count = check_count(integer(depth, "the depth"))
    off, on = values if isinstance(values, np.ndarray) else b.split(values, 2)
    positions, along = as_type(b, indices, "int64"), normalized(axis, len(shape_of(indices)) + 1)
    is_hot = one_hot(b, operand(b, positions), count, along, data_type="uint8")
    return b.where(is_hot, on, off)


@converts("TopK")
def _(
    b: MLGraphBuilder,
    x: MLOperand,
    K: Tensor | None = None,
    *,
    axis: int = -1,
    k: int = 0,
    largest: int = 1,
    sorted: int = 1,  # what need not be sorted may be
) -> tuple[MLOperand, MLOperand]:
    count = k if K is None else integer(K, "the number of elements")  # an attribute until opset 9
    values, positions = top_k(b, x, count, normalized(axis, x.rank), largest=bool(largest))
    return values, positions
