"""Indexing: slices, gathers and scatters, embeddings, masks."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod
from typing import Any

import numpy as np
import torch

from ... import composites
from ...context.builder import MLGraphBuilder
from ...core.dtypes import INFO, DataType, is_float
from ...core.graph import MLOperand
from ...core.shapes import broadcast
from ...core.size_functions import choose, is_less, larger, smaller
from ...core.sizes import Size, is_same_size
from ...ops.constants import line
from ..registry import AtenCall, as_type, axis_of, converts, refuse_if
from .elementwise import divide, is_one
from .shapes import window

LAST = 2**63 - 1
"""The end of a slice that has none."""


def bounds(start: Any, end: Any, size: Any) -> tuple[Any, Any]:
    """Start and end of a slice within a dimension: negative ones count from the end, and others are limited."""
    return _bound(0 if start is None else start, size), _bound(LAST if end is None else end, size)


def _bound(position: Any, size: Any) -> Any:
    if isinstance(position, int) and position >= LAST:
        return size
    return choose(is_less(position, 0), larger(size + position, 0), smaller(position, size))


def from_start(index: Any, size: Any) -> Any:
    """An index within a dimension, counted from the start."""
    return choose(is_less(index, 0), size + index, index)


@converts("aten.slice.Tensor", "aten.slice_copy.Tensor")
def _(b: MLGraphBuilder, self: MLOperand, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> MLOperand:
    axis = axis_of(dim, self.rank)
    size = self.shape[axis]
    first, last = bounds(start, end, size)
    is_ordered = is_same_size(first, 0) or is_same_size(last, size)
    return window(b, self, axis, first, last - first if is_ordered else larger(last - first, 0), step)


@converts("aten.narrow.default", "aten.narrow_copy.default")
def _(b: MLGraphBuilder, self: MLOperand, dim: int, start: Any, length: Any) -> MLOperand:
    axis = axis_of(dim, self.rank)
    return window(b, self, axis, from_start(start, self.shape[axis]), length)


@converts("aten.select.int", "aten.select_copy.int")
def _(b: MLGraphBuilder, self: MLOperand, dim: int, index: Any) -> MLOperand:
    axis = axis_of(dim, self.rank)
    row = window(b, self, axis, from_start(index, self.shape[axis]), 1)
    return b.reshape(row, [size for k, size in enumerate(self.shape) if k != axis])


@converts("aten.slice_scatter.default")
def slice_scatter(
    b: MLGraphBuilder, self: MLOperand, src: MLOperand, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> MLOperand:
    """Replace a slice along an axis."""
    axis = axis_of(dim, self.rank)
    size = self.shape[axis]
    first, last = bounds(start, end, size)
    last = larger(first, last)
    if step != 1:
        refuse_if(any(isinstance(value, Size) for value in (size, first, last)), "its slice has steps, and a size")
        return _replace_rows(b, self, src, axis, range(first, last, step))
    parts = [src]
    if isinstance(first, Size) or first > 0:
        parts.insert(0, window(b, self, axis, 0, first))
    rest = size - last
    if isinstance(rest, Size) or rest > 0:
        parts.append(window(b, self, axis, last, rest))
    return parts[0] if len(parts) == 1 else b.concat(parts, axis)


def _replace_rows(b: MLGraphBuilder, x: MLOperand, new: MLOperand, axis: int, rows: range) -> MLOperand:
    shape = [1] * x.rank
    shape[axis] = len(rows)
    positions = b.expand(b.constant(np.array(rows, np.int64).reshape(shape)), new.shape)
    return b.scatter_elements(x, positions, new, axis=axis)


@converts("aten.select_scatter.default")
def select_scatter(b: MLGraphBuilder, self: MLOperand, src: MLOperand, dim: int, index: Any) -> MLOperand:
    """Replace one position along an axis."""
    axis = axis_of(dim, self.rank)
    position = from_start(index, self.shape[axis])
    row = b.reshape(src, [*self.shape[:axis], 1, *self.shape[axis + 1 :]])
    return slice_scatter(b, self, row, axis, position, position + 1)


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


@converts("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default")
def _(
    b: MLGraphBuilder,
    weight: MLOperand,
    indices: MLOperand,
    offsets: MLOperand,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: MLOperand | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[MLOperand | None, ...]:
    """Sums, means (mode 1) or maxima (mode 2) of rows in bags, whose begins are `offsets`."""
    count, width = indices.shape[0], weight.shape[1]
    bags = offsets.shape[0] - 1 if include_last_offset else offsets.shape[0]
    kind = weight.data_type
    rows, zero = b.gather(weight, indices, axis=0), as_type(b, 0, kind)
    if per_sample_weights is not None:
        rows = b.mul(rows, b.reshape(per_sample_weights, [count, 1]))
    # The bag of a position: the number of bags that begin at or before it.
    begins = b.cast(b.reshape(window(b, offsets, 0, 0, bags), [1, bags]), "int64")
    has_begun = b.lesser_or_equal(begins, line(b, 0, count, "int64", [count, 1]))
    bag = b.sub(b.reduce_sum(b.cast(has_begun, "int64"), axes=[1]), as_type(b, 1, "int64"))
    is_real = None
    if padding_idx >= 0:
        is_real = b.reshape(b.not_equal(indices, as_type(b, padding_idx, indices.data_type)), [count, 1])
    lowest = as_type(b, -inf, kind)
    nothing = lowest if mode == 2 else zero
    rows = rows if is_real is None else b.where(is_real, rows, nothing)
    places = b.reshape(bag, [count, 1])
    result = composites.scatter_reduce(
        b, b.expand(nothing, [bags, width]), places, rows, axis=0, reduction="max" if mode == 2 else "add"
    )
    if mode == 0:
        return result, None, None, None
    ones = b.expand(as_type(b, 1, kind), [count, 1])
    ones = ones if is_real is None else b.where(is_real, ones, zero)
    sizes = composites.scatter_reduce(b, b.expand(zero, [bags, 1]), places, ones, axis=0, reduction="add")
    if mode == 2:
        return b.where(b.greater(sizes, zero), result, zero), None, None, None
    return b.div(result, b.max(sizes, as_type(b, 1, kind))), None, None, None


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
    if 0 in index.shape:  # PyTorch takes indices of any rank then
        return b.constant(np.zeros(index.shape, self.data_type))
    x = self
    for k, (size, count) in enumerate(zip(self.shape, index.shape, strict=True)):
        if k != axis and size != count:
            x = window(b, x, k, 0, count)
    return b.gather_elements(x, index, axis=axis)


@converts("aten.scatter.src", "aten.scatter.value")
def _(b: MLGraphBuilder, self: MLOperand, dim: int, index: MLOperand, src: Any) -> MLOperand:
    return b.scatter_elements(self, index, _updates(b, self, index, src), axis=axis_of(dim, self.rank))


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
    # In PyTorch, the axes of adjacent indices replace the indexed axes; the axes of separate indices come first.
    rank = coordinates.rank - 1
    if chosen[0] and chosen == list(range(chosen[0], chosen[-1] + 1)):
        before = chosen[0]
        permutation = [*range(rank, rank + before), *range(rank), *range(rank + before, y.rank)]
        y = b.transpose(y, permutation=permutation)
    return y


def _has_masks(call: AtenCall) -> bool:
    return any(getattr(index, "dtype", None) is torch.bool for index in call.arguments[1] or ())


def _coordinates(b: MLGraphBuilder, indices: Sequence[Any]) -> MLOperand:
    """Indices that are broadcast together, as coordinates along a new last axis."""
    shape: tuple[Any, ...] = ()
    for index in indices:
        shape = broadcast(shape, index.shape)
    columns = []
    for index in indices:
        column = index if index.shape == shape else b.expand(index, shape)
        column = column if column.data_type == "int64" else b.cast(column, "int64")
        columns.append(b.reshape(column, [*shape, 1]))
    return b.concat(columns, len(shape)) if len(columns) > 1 else columns[0]


# Writes at indices ---------------------------------------------------------------------------------------------------


@converts("aten.index_put.default", "aten._unsafe_index_put.default")
def _(
    b: MLGraphBuilder,
    self: MLOperand,
    indices: Sequence[MLOperand | None],
    values: MLOperand,
    accumulate: bool = False,
    *,
    call: AtenCall,
) -> MLOperand:
    chosen = [axis for axis, index in enumerate(indices) if index is not None]
    if _has_masks(call):
        return _put_where(b, self, indices, values, accumulate)
    if not chosen:
        return b.add(self, values) if accumulate else b.expand(values, self.shape)
    order = [*chosen, *(axis for axis in range(self.rank) if axis not in chosen)]
    x = self if order == list(range(self.rank)) else b.transpose(self, permutation=order)
    coordinates = _coordinates(b, [indices[axis] for axis in chosen])
    new = _in_front(b, self, values, coordinates, chosen)
    y = _accumulate(b, x, coordinates, new) if accumulate else b.scatter_nd(x, coordinates, new)
    return y if x is self else b.transpose(y, permutation=[order.index(axis) for axis in range(self.rank)])


def _put_where(
    b: MLGraphBuilder, x: MLOperand, indices: Sequence[MLOperand | None], values: MLOperand, accumulate: bool
) -> MLOperand:
    """Write one value where a mask holds: a mask of the leading axes."""
    (mask,) = [index for index in indices if index is not None][:1]
    refuse_if(len(indices) > 1 or mask is None, "it has a mask among other indices")
    is_one = all(size == 1 for size in values.shape)
    refuse_if(not is_one, "a mask selects elements, whose number depends on values")
    assert mask is not None
    visible = b.reshape(mask, [*mask.shape, *[1] * (x.rank - mask.rank)])
    new = b.reshape(values, [])
    return b.where(visible, b.add(x, new) if accumulate else new, x)


def _in_front(
    b: MLGraphBuilder, x: MLOperand, values: MLOperand, coordinates: MLOperand, chosen: Sequence[int]
) -> MLOperand:
    """The values to write in the order of axes of `scatter_nd`: those of the indices, then the others."""
    index_shape = list(coordinates.shape[:-1])
    rest = [axis for axis in range(x.rank) if axis not in chosen]
    is_adjacent = list(chosen) == list(range(chosen[0], chosen[-1] + 1))
    before = [x.shape[axis] for axis in rest if axis < chosen[0]] if is_adjacent else []
    after = [x.shape[axis] for axis in rest][len(before) :]
    shape = [*before, *index_shape, *after]
    new = values if list(values.shape) == shape else b.expand(values, shape)
    if not before:
        return new
    count, rank = len(before), len(index_shape)
    permutation = [*range(count, count + rank), *range(count), *range(count + rank, len(shape))]
    return b.transpose(new, permutation=permutation)


def _accumulate(b: MLGraphBuilder, x: MLOperand, coordinates: MLOperand, new: MLOperand) -> MLOperand:
    """Add values at coordinates, of which several may be equal."""
    depth = coordinates.shape[-1]
    lead, inner = x.shape[:depth], prod(x.shape[depth:])
    count = prod(coordinates.shape[:-1])
    rows = b.reshape(coordinates, [count, depth])
    position: MLOperand | None = None
    for k, size in enumerate(lead):
        column = b.slice(rows, [0, k], [count, 1])
        limit = as_type(b, size, "int64")
        column = b.where(b.lesser(column, as_type(b, 0, "int64")), b.add(column, limit), column)
        position = column if position is None else b.add(b.mul(position, limit), column)
    assert position is not None
    flat, added = b.reshape(x, [prod(lead), inner]), b.reshape(new, [count, inner])
    return b.reshape(composites.scatter_reduce(b, flat, position, added, axis=0, reduction="add"), x.shape)


def _updates(b: MLGraphBuilder, x: MLOperand, index: MLOperand, src: Any) -> MLOperand:
    """The updates of a scatter, in the shape of the indices."""
    if not isinstance(src, MLOperand):
        return b.expand(as_type(b, src, x.data_type), index.shape)
    for k, (size, count) in enumerate(zip(src.shape, index.shape, strict=True)):
        if size != count:
            src = window(b, src, k, 0, count)
    return src


@converts("aten.scatter_add.default")
def _(b: MLGraphBuilder, self: MLOperand, dim: int, index: MLOperand, src: MLOperand) -> MLOperand:
    return _combine(b, self, dim, index, _updates(b, self, index, src), "add")


@converts("aten.scatter.reduce", "aten.scatter.value_reduce")
def _(b: MLGraphBuilder, self: MLOperand, dim: int, index: MLOperand, src: Any, *, reduce: str) -> MLOperand:
    reductions: dict[str, Any] = {"add": "add", "multiply": "mul"}
    return _combine(b, self, dim, index, _updates(b, self, index, src), reductions[reduce])


@converts("aten.scatter_reduce.two")
def _(
    b: MLGraphBuilder,
    self: MLOperand,
    dim: int,
    index: MLOperand,
    src: MLOperand,
    reduce: str,
    *,
    include_self: bool = True,
    call: AtenCall,
) -> MLOperand:
    return _reduce(b, call, self, dim, index, _updates(b, self, index, src), reduce, include_self)


@converts("aten.index_reduce.default")
def _(
    b: MLGraphBuilder,
    self: MLOperand,
    dim: int,
    index: MLOperand,
    source: MLOperand,
    reduce: str,
    *,
    include_self: bool = True,
    call: AtenCall,
) -> MLOperand:
    if not self.rank:
        index, source = b.reshape(index, []), b.reshape(source, [])
    else:
        index = _column(b, index, axis_of(dim, self.rank), self.rank)
    return _reduce(b, call, self, dim, index, source, reduce, include_self)


_REDUCTIONS: dict[str, Any] = {"sum": "add", "mean": "add", "prod": "mul", "amax": "max", "amin": "min"}


def _reduce(
    b: MLGraphBuilder,
    call: AtenCall,
    x: MLOperand,
    dim: int,
    index: MLOperand,
    new: MLOperand,
    reduce: str,
    include_self: bool,
) -> MLOperand:
    """Combine elements with their updates, or replace them by the reduction of their updates alone."""
    counts: MLOperand | None = None
    if reduce == "mean" or not include_self:
        initial = b.expand(as_type(b, int(include_self), "int32"), x.shape)
        ones = b.expand(as_type(b, 1, "int32"), new.shape)
        counts = _combine(b, initial, dim, index, ones, "add")
    if counts is not None and not include_self:
        neutral = as_type(b, _neutral(reduce, x.data_type), x.data_type)
        x = b.where(b.greater(counts, as_type(b, 0, "int32")), neutral, x)
    result = _combine(b, x, dim, index, new, _REDUCTIONS[reduce])
    if counts is None or reduce != "mean":
        return result
    # Elements without updates are divided by 1. PyTorch rounds means of integers down.
    rounding = None if is_float(x.data_type) else "floor"
    return divide(b, call, result, b.max(counts, as_type(b, 1, "int32")), rounding)


def _neutral(reduce: str, data_type: DataType) -> float:
    """The identity element of a reduction."""
    if reduce in ("amax", "amin"):
        highest = inf if is_float(data_type) else INFO[data_type].highest
        lowest = -inf if is_float(data_type) else INFO[data_type].lowest
        return lowest if reduce == "amax" else highest
    return 1 if reduce == "prod" else 0


def _combine(b: MLGraphBuilder, x: MLOperand, dim: int, index: MLOperand, new: MLOperand, reduction: Any) -> MLOperand:
    if not x.rank:
        x, index, new = (b.reshape(value, [1]) for value in (x, index, new))
        return b.reshape(composites.scatter_reduce(b, x, index, new, axis=0, reduction=reduction), [])
    return composites.scatter_reduce(b, x, index, new, axis=axis_of(dim, x.rank), reduction=reduction)


def _column(b: MLGraphBuilder, index: MLOperand, axis: int, rank: int) -> MLOperand:
    """Indices along one axis."""
    shape: list[Any] = [1] * rank
    shape[axis] = index.shape[0] if index.rank else 1
    return b.reshape(index, shape)


@converts("aten.index_add.default")
def _(
    b: MLGraphBuilder, self: MLOperand, dim: int, index: MLOperand, source: MLOperand, *, alpha: Any = 1
) -> MLOperand:
    axis = axis_of(dim, self.rank)
    new = source if is_one(alpha) else b.mul(source, as_type(b, alpha, source.data_type))
    if not self.rank:
        return _combine(b, self, dim, b.reshape(index, [1]), b.reshape(new, [1]), "add")
    return composites.scatter_reduce(b, self, _column(b, index, axis, self.rank), new, axis=axis, reduction="add")


@converts("aten.index_copy.default")
def _(b: MLGraphBuilder, self: MLOperand, dim: int, index: MLOperand, source: MLOperand) -> MLOperand:
    axis = axis_of(dim, self.rank)
    if not self.rank:
        return b.reshape(source, [])
    if axis == 0:
        return b.scatter_nd(self, b.reshape(index, [source.shape[0], 1]), source)
    positions = b.expand(_column(b, index, axis, self.rank), source.shape)
    return b.scatter_elements(self, positions, source, axis=axis)


@converts("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor")
def _(b: MLGraphBuilder, self: MLOperand, dim: int, index: MLOperand, value: Any) -> MLOperand:
    axis = axis_of(dim, self.rank)
    if not self.rank:
        return b.reshape(as_type(b, value, self.data_type), [])
    column = _column(b, index, axis, self.rank)
    shape = [column.shape[axis] if k == axis else size for k, size in enumerate(self.shape)]
    new = b.expand(as_type(b, value, self.data_type), shape)
    return b.scatter_elements(self, b.expand(column, shape), new, axis=axis)


@converts("aten.masked_scatter.default")
def _(b: MLGraphBuilder, self: MLOperand, mask: MLOperand, source: MLOperand) -> MLOperand:
    """Replace the elements where the mask holds by those of `source`, in order."""
    shape = broadcast(self.shape, mask.shape)
    x, chosen = (y if y.shape == shape else b.expand(y, shape) for y in (self, mask))
    flat = b.cast(b.reshape(chosen, [prod(shape)]), "int64")
    # The n-th chosen element gets source[n - 1]. Elements that are not chosen get any element, which `where` drops.
    places = b.max(b.sub(b.cumulative_sum(flat, 0), as_type(b, 1, "int64")), as_type(b, 0, "int64"))
    new = b.gather(b.reshape(source, [prod(source.shape)]), places, axis=0)
    return b.where(chosen, b.reshape(new, shape), x)


# Parts at positions --------------------------------------------------------------------------------------------------


@converts("aten.take.default")
def _(b: MLGraphBuilder, self: MLOperand, index: MLOperand) -> MLOperand:
    return b.gather(b.reshape(self, [prod(self.shape)]), index, axis=0)


@converts("aten.unfold.default", "aten.unfold_copy.default")
def _(b: MLGraphBuilder, self: MLOperand, dimension: int, size: int, step: int) -> MLOperand:
    x = self if self.rank else b.reshape(self, [1])
    axis = axis_of(dimension, x.rank)
    count = (x.shape[axis] - size) // step + 1
    starts = b.mul(line(b, 0, count, "int64", [count, 1]), as_type(b, step, "int64"))
    windows = b.gather(x, b.add(starts, b.constant(np.arange(size).reshape(1, size))), axis=axis)
    if not self.rank:
        return b.reshape(windows, [size])
    order = [k for k in range(windows.rank) if k != axis + 1]
    return b.transpose(windows, permutation=[*order, axis + 1])


@converts("aten.diagonal.default", "aten.diagonal_copy.default")
def _(b: MLGraphBuilder, self: MLOperand, offset: int = 0, dim1: int = 0, dim2: int = 1) -> MLOperand:
    first, second = axis_of(dim1, self.rank), axis_of(dim2, self.rank)
    rows, columns = self.shape[first], self.shape[second]
    refuse_if(isinstance(rows, Size) or isinstance(columns, Size), "the sizes of its matrices are not known")
    rest = [axis for axis in range(self.rank) if axis not in (first, second)]
    x = b.transpose(self, permutation=[*rest, first, second])
    lead = [self.shape[axis] for axis in rest]
    positions = b.constant(_diagonal(rows, columns, offset))
    return b.gather(b.reshape(x, [*lead, rows * columns]), positions, axis=len(lead))


@converts("aten.diagonal_scatter.default")
def diagonal_scatter(
    b: MLGraphBuilder, self: MLOperand, src: MLOperand, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> MLOperand:
    """Replace a diagonal of the matrices of two axes."""
    first, second = axis_of(dim1, self.rank), axis_of(dim2, self.rank)
    rows, columns = self.shape[first], self.shape[second]
    refuse_if(isinstance(rows, Size) or isinstance(columns, Size), "the sizes of its matrices are not known")
    order = [*(axis for axis in range(self.rank) if axis not in (first, second)), first, second]
    x = b.transpose(self, permutation=order)
    flat = b.reshape(x, [*x.shape[:-2], rows * columns])
    positions = b.constant(_diagonal(rows, columns, offset).reshape([1] * (flat.rank - 1) + [-1]))
    y = b.scatter_elements(flat, b.expand(positions, src.shape), src, axis=flat.rank - 1)
    return b.transpose(b.reshape(y, x.shape), permutation=[order.index(axis) for axis in range(self.rank)])


def _diagonal(rows: int, columns: int, offset: int) -> np.ndarray:
    """The positions of a diagonal in a flattened matrix."""
    count = max(min(rows + min(offset, 0), columns - max(offset, 0)), 0)
    return np.arange(count) * (columns + 1) + max(offset, 0) + max(-offset, 0) * columns


@converts("aten.as_strided.default", "aten.as_strided_copy.default")
def _(
    b: MLGraphBuilder,
    self: MLOperand,
    size: Sequence[Any],
    stride: Sequence[Any],
    storage_offset: Any = None,
    *,
    call: AtenCall,
) -> MLOperand:
    """A view by strides: elements at positions of the flattened tensor, if the tensor fills its memory."""
    tensor = call.arguments[0]
    numbers = [*size, *stride, *self.shape, 0 if storage_offset is None else storage_offset]
    refuse_if(any(isinstance(number, Size) for number in numbers), "its strides or sizes are not known")
    order = sorted(range(self.rank), key=lambda axis: (-tensor.stride(axis), axis))
    y = b.transpose(self, permutation=order) if order != list(range(self.rank)) else self
    plain = tensor.permute(order).is_contiguous() if self.rank else True
    first = 0 if storage_offset is None else storage_offset - tensor.storage_offset()
    positions = np.full((), first, np.int64)
    for count, step in zip(size, stride, strict=True):
        positions = positions[..., None] + np.arange(count, dtype=np.int64) * step
    total = prod(self.shape)
    reaches = positions.size and (positions.min() < 0 or positions.max() >= total)
    refuse_if(not plain or reaches, "it reads memory beyond its tensor")
    flat = b.reshape(y, [total])
    if positions.size == total and np.array_equal(positions.ravel(), np.arange(total)):
        return b.reshape(flat, list(size))
    return b.gather(flat, b.constant(positions), axis=0)


@converts("aten.tril.default", "aten.triu.default")
def _(b: MLGraphBuilder, self: MLOperand, diagonal: int = 0, *, call: AtenCall) -> MLOperand:
    return b.triangular(self, upper="triu" in call.name, diagonal=diagonal)


@converts("aten.one_hot.default")
def _(b: MLGraphBuilder, self: MLOperand, num_classes: int = -1) -> MLOperand:
    refuse_if(not isinstance(num_classes, Size) and num_classes < 0, "the number of classes depends on values")
    return composites.one_hot(b, self, num_classes, data_type="int64")
