"""ONNX operators that read or replace elements by index.

An index out of range is an error in ONNX. WebNN clamps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ....composites import one_hot, scatter_reduce, tensor_scatter, top_k
from ....context.builder import MLGraphBuilder
from ....core.graph import MLOperand
from ...model.protobuf import TensorProto
from ...model.registry import (
    MICROSOFT,
    Tensor,
    Unsupported,
    as_type,
    check_count,
    constant_or_same,
    converts,
    integer,
    normalize_axis,
    operand,
    shape_of,
    unsupported_if,
)
from .windows import reshape


@converts("Gather")
def _(b: MLGraphBuilder, data: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    return b.gather(data, indices, axis=normalize_axis(axis, len(shape_of(data))))


@converts("GatherElements")
def _(b: MLGraphBuilder, data: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    axis = normalize_axis(axis, len(shape_of(data)))
    # ONNX's indices may be shorter than the data along other axes, WebNN's may not: cut the data to their length.
    sizes = list(shape_of(indices))
    sizes[axis] = shape_of(data)[axis]
    if sizes != list(shape_of(data)):
        data = b.slice(data, [0] * len(sizes), sizes)
    return b.gather_elements(data, indices, axis=axis)


@converts("GatherND")
@converts("GatherND", domain=MICROSOFT)
def _(b: MLGraphBuilder, data: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    if not batch_dims:
        return b.gather_nd(data, indices)
    # The position in each batch dimension comes before the other coordinates.
    batches = np.moveaxis(np.indices(shape_of(indices)[:-1], np.int64)[:batch_dims], 0, -1)
    return b.gather_nd(data, _join(b, [batches, indices]))


def _join(b: MLGraphBuilder, columns: Sequence[Tensor]) -> Tensor:
    """Join coordinates along the last axis; arrays give an array."""
    arrays = [column for column in columns if isinstance(column, np.ndarray)]
    if len(arrays) == len(columns):
        return np.concatenate(arrays, -1)
    return b.concat([as_type(b, column, "int64") for column in columns], len(shape_of(columns[0])) - 1)


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
    axis = normalize_axis(axis, len(shape))
    if reduction != "none":
        return _combine(b, data, indices, updates, axis, _reduction(reduction, types[0]))
    if all(a == axis or size == whole for a, (size, whole) in enumerate(zip(counts, shape, strict=True))):
        return b.scatter_elements(data, indices, updates, axis=axis)
    # WebNN's indices must be as long as the data along other axes. For shorter ones, give each element all coordinates.
    count = prod(counts)
    columns: list[Tensor] = list(np.indices(counts, np.int64).reshape(len(counts), count, 1))
    columns[axis] = reshape(b, indices, [count, 1])
    return b.scatter_nd(data, _join(b, columns), b.reshape(updates, [count]))


def _reduction(name: str, element_type: int) -> Any:
    """The reduction of `scatter_reduce`. For bool (0 and 1), add becomes max, and mul becomes min."""
    reduction = {"add": "max", "mul": "min"}.get(name, name) if element_type == TensorProto.BOOL else name
    unsupported_if(reduction not in ("add", "mul", "min", "max"), f"its reduction is {name!r}")
    return reduction


def _combine(b: MLGraphBuilder, data: Tensor, indices: Tensor, updates: Tensor, axis: int, reduction: Any) -> MLOperand:
    return scatter_reduce(b, operand(b, data), operand(b, indices), operand(b, updates), axis, reduction=reduction)


@converts("ScatterND")
def _(
    b: MLGraphBuilder, data: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none", types: list[int]
) -> Tensor:
    if reduction == "none":
        return b.scatter_nd(data, indices, updates)
    # View the data as rows; a row's number is its flat position in the dimensions that have coordinates.
    shape, (*counts, coordinates) = shape_of(data), shape_of(indices)
    unsupported_if(coordinates > len(shape), f"it has {coordinates} coordinates for {len(shape)} dimensions")
    sizes, count = shape[:coordinates], prod(counts)
    rows, width = prod(sizes), prod(shape[coordinates:])
    positions = reshape(b, _row_numbers(b, reshape(b, indices, [count, coordinates]), sizes), [count, 1])
    flat, wanted = reshape(b, data, [rows, width]), reshape(b, updates, [count, width])
    return reshape(b, _combine(b, flat, positions, wanted, 0, _reduction(reduction, types[0])), shape)


def _row_numbers(b: MLGraphBuilder, indices: Tensor, sizes: Sequence[int]) -> Tensor:
    """Flatten coordinates [count, dimensions] to positions in an array of shape `sizes`."""
    if len(sizes) == 1:
        return indices
    if isinstance(indices, np.ndarray):
        places = np.clip(indices, np.negative(sizes), np.subtract(sizes, 1)) % np.array(sizes)
        numbers: np.ndarray = np.ravel_multi_index(tuple(places.T), tuple(sizes))
        return numbers
    limits = np.array(sizes, np.int64)
    clamped = b.max(b.min(indices, limits - 1), -limits)
    from_start = b.where(b.lesser(clamped, 0), b.add(clamped, limits), clamped)
    strides = np.append(np.cumprod(limits[:0:-1])[::-1], 1)
    return b.reduce_sum(b.mul(from_start, strides), axes=[1])


@converts("OneHot")
def _(b: MLGraphBuilder, indices: Tensor, depth: Tensor, values: Tensor, *, axis: int = -1) -> Tensor:
    count = check_count(integer(depth, "the depth"))
    off, on = values if isinstance(values, np.ndarray) else b.split(values, 2)
    positions, along = as_type(b, indices, "int64"), normalize_axis(axis, len(shape_of(indices)) + 1)
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
    sorted: int = 1,  # not read: the result is always sorted
) -> tuple[MLOperand, MLOperand]:
    count = k if K is None else integer(K, "the number of elements")  # an attribute until opset 9
    values, positions = top_k(b, x, count, normalize_axis(axis, x.rank), largest=bool(largest))
    return values, positions


@converts("TensorScatter")
def _(
    b: MLGraphBuilder,
    past: Tensor,
    update: Tensor,
    write_indices: Tensor | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
) -> MLOperand:
    unsupported_if(mode not in ("linear", "circular"), f"its mode is {mode!r}")
    along = normalize_axis(axis, len(shape_of(past)))
    start = None if write_indices is None else operand(b, as_type(b, write_indices, "int64"))
    return tensor_scatter(b, operand(b, past), operand(b, update), start, along, mode=mode)


DEPENDS = "the size of its result depends on data"


@converts("Compress")
def _(b: MLGraphBuilder, input: Tensor, condition: Tensor, *, axis: int | None = None) -> Tensor:
    selects = constant_or_same(condition)
    if isinstance(selects, MLOperand):
        raise Unsupported(DEPENDS)
    (positions,) = np.nonzero(selects)
    unsupported_if(not positions.size, "its output is empty")
    flat = reshape(b, input, [prod(shape_of(input))]) if axis is None else input
    return b.gather(flat, positions, axis=normalize_axis(axis or 0, len(shape_of(flat))))


@converts("NonZero", "Unique", "NonMaxSuppression")
def _(b: MLGraphBuilder, *inputs: Tensor | None, axis: int = 0, sorted: int = 1, center_point_box: int = 0) -> Tensor:
    raise Unsupported(DEPENDS)
