"""Indexing: slices, gathers and scatters, embeddings, masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...context.builder import MLGraphBuilder
from ...core.graph import MLOperand
from ...core.sizes import Size
from ..registry import AtenCall, as_type, axis_of, converts, refuse_if
from ..sizes import maximum, minimum
from .shapes import window

LAST = 2**63 - 1
"""The end of a slice that has none."""


def bounds(start: Any, end: Any, size: Any) -> tuple[Any, Any]:
    """Start and end of a slice within a dimension: negative ones count from the end, and others are limited."""
    return _bound(0 if start is None else start, size), _bound(LAST if end is None else end, size)


def _bound(position: Any, size: Any) -> Any:
    if isinstance(position, int) and position >= LAST:
        return size
    if not isinstance(position, Size) and not isinstance(size, Size):
        return min(max(position + size if position < 0 else position, 0), size)
    if isinstance(position, int):
        return maximum(size + position, 0) if position < 0 else minimum(position, size) if position else 0
    return minimum(position, size)


@converts("aten.slice.Tensor", "aten.slice_copy.Tensor")
def _(b: MLGraphBuilder, self: MLOperand, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> MLOperand:
    axis = axis_of(dim, self.rank)
    size = self.shape[axis]
    first, last = bounds(start, end, size)
    count = last - first
    if isinstance(count, int):
        count = max(count, 0)
    return window(b, self, axis, first, count, step)


@converts("aten.narrow.default")
def _(b: MLGraphBuilder, self: MLOperand, dim: int, start: Any, length: Any) -> MLOperand:
    axis = axis_of(dim, self.rank)
    first = self.shape[axis] + start if isinstance(start, int) and start < 0 else start
    return window(b, self, axis, first, length)


@converts("aten.select.int", "aten.select_copy.int")
def _(b: MLGraphBuilder, self: MLOperand, dim: int, index: Any) -> MLOperand:
    axis = axis_of(dim, self.rank)
    position = self.shape[axis] + index if isinstance(index, int) and index < 0 else index
    row = window(b, self, axis, position, 1)
    return b.reshape(row, [size for k, size in enumerate(self.shape) if k != axis])


@converts("aten.slice_scatter.default")
def _slice_scatter(
    b: MLGraphBuilder, self: MLOperand, src: MLOperand, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> MLOperand:
    return slice_scatter(b, self, src, dim, start, end, step)


def slice_scatter(
    b: MLGraphBuilder, x: MLOperand, new: MLOperand, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> MLOperand:
    """Replace a slice along an axis."""
    axis = axis_of(dim, x.rank)
    size = x.shape[axis]
    first, last = bounds(start, end, size)
    if step != 1:
        refuse_if(any(isinstance(value, Size) for value in (size, first, last)), "its slice has steps, and a size")
        return _replace_rows(b, x, new, axis, range(first, last, step))
    parts = [new]
    if isinstance(first, Size) or first > 0:
        parts.insert(0, window(b, x, axis, 0, first))
    rest = size - last
    if isinstance(rest, Size) or rest > 0:
        parts.append(window(b, x, axis, last, rest))
    return parts[0] if len(parts) == 1 else b.concat(parts, axis)


def _replace_rows(b: MLGraphBuilder, x: MLOperand, new: MLOperand, axis: int, rows: range) -> MLOperand:
    import numpy as np

    shape = [1] * x.rank
    shape[axis] = len(rows)
    positions = b.expand(b.constant(np.array(rows, np.int64).reshape(shape)), new.shape)
    return b.scatter_elements(x, positions, new, axis=axis)


@converts("aten.select_scatter.default")
def _select_scatter(b: MLGraphBuilder, self: MLOperand, src: MLOperand, dim: int, index: Any) -> MLOperand:
    return select_scatter(b, self, src, dim, index)


def select_scatter(b: MLGraphBuilder, x: MLOperand, new: MLOperand, dim: int, index: Any) -> MLOperand:
    """Replace one position along an axis."""
    axis = axis_of(dim, x.rank)
    position = x.shape[axis] + index if isinstance(index, int) and index < 0 else index
    row = b.reshape(new, [*x.shape[:axis], 1, *x.shape[axis + 1 :]])
    return slice_scatter(b, x, row, axis, position, position + 1)


@converts("aten.embedding.default")
def _(
    b: MLGraphBuilder,
    weight: MLOperand,
    indices: MLOperand,
    padding_idx: Any = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> MLOperand:
    return b.gather(weight, indices, axis=0)


@converts("aten.index_select.default")
def _(b: MLGraphBuilder, self: MLOperand, dim: int, index: MLOperand) -> MLOperand:
    if not self.rank:
        return self
    rows = index if index.rank else b.reshape(index, [1])
    return b.gather(self, rows, axis=axis_of(dim, self.rank))


@converts("aten.gather.default")
def _(b: MLGraphBuilder, self: MLOperand, dim: int, index: MLOperand, *, sparse_grad: bool = False) -> MLOperand:
    if not self.rank:
        return self if not index.rank else b.expand(self, index.shape)
    axis = axis_of(dim, self.rank)
    x = self
    for k, (size, count) in enumerate(zip(self.shape, index.shape, strict=True)):
        if k != axis and size != count:
            x = window(b, x, k, 0, count)
    return b.gather_elements(x, index, axis=axis)


@converts("aten.scatter.src", "aten.scatter.value")
def _(b: MLGraphBuilder, self: MLOperand, dim: int, index: MLOperand, src: Any, *, call: AtenCall) -> MLOperand:
    axis = axis_of(dim, self.rank)
    if isinstance(src, MLOperand):
        new = src
        for k, (size, count) in enumerate(zip(src.shape, index.shape, strict=True)):
            if size != count:
                new = window(b, new, k, 0, count)
    else:
        new = b.expand(as_type(b, src, self.data_type), index.shape)
    return b.scatter_elements(self, index, new, axis=axis)


@converts("aten.index.Tensor", "aten._unsafe_index.Tensor")
def _(b: MLGraphBuilder, self: MLOperand, indices: Sequence[MLOperand | None], *, call: AtenCall) -> MLOperand:
    chosen = [axis for axis, index in enumerate(indices) if index is not None]
    refuse_if(_has_masks(call), "a mask selects elements, so that the shape depends on values")
    if not chosen:
        return self
    if len(chosen) == 1:
        index = indices[chosen[0]]
        assert index is not None
        return b.gather(self, index, axis=chosen[0])
    order = [*chosen, *(axis for axis in range(self.rank) if axis not in chosen)]
    x = self if order == list(range(self.rank)) else b.transpose(self, permutation=order)
    coordinates = _coordinates(b, [indices[axis] for axis in chosen])
    y = b.gather_nd(x, coordinates)
    # Results of adjacent indices stand where the first index is; of others, in front.
    rank = coordinates.rank - 1
    if chosen[0] and chosen == list(range(chosen[0], chosen[-1] + 1)):
        before = chosen[0]
        permutation = [*range(rank, rank + before), *range(rank), *range(rank + before, y.rank)]
        y = b.transpose(y, permutation=permutation)
    return y


def _has_masks(call: AtenCall) -> bool:
    import torch

    return any(getattr(index, "dtype", None) is torch.bool for index in call.arguments[1] or ())


def _coordinates(b: MLGraphBuilder, indices: Sequence[Any]) -> MLOperand:
    """Indices that are broadcast together, as coordinates along a new last axis."""
    from ...core.shapes import broadcast

    shape: tuple[Any, ...] = ()
    for index in indices:
        shape = broadcast(shape, index.shape)
    columns = []
    for index in indices:
        column = index if index.shape == shape else b.expand(index, shape)
        column = column if column.data_type == "int64" else b.cast(column, "int64")
        columns.append(b.reshape(column, [*shape, 1]))
    return b.concat(columns, len(shape)) if len(columns) > 1 else columns[0]
