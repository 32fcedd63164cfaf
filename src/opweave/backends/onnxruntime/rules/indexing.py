"""ONNX Runtime rules: gather and scatter.

The engine raises an error for indices out of range, which WebNN clamps, so the rules clamp indices where necessary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ....core.sizes import is_static
from ....ops import indexing as ops
from ..backend import ort
from ..emit import Emitter, Value

FLOAT32_INTEGERS = 2**24
"""float32 holds all integers up to this one, and rounds larger ones to no smaller numbers."""


def clamp_indices(ctx: Emitter, indices: Value, sizes: int | Sequence[int], *types: str) -> Value:
    """Clamp `indices` to [-size, size - 1] and cast them to one of `types`; `sizes` is one size, or one per coordinate."""
    data_type = indices.data_type if indices.data_type in types else types[0]
    array = ctx.array_of(indices)
    if not is_static(sizes if isinstance(sizes, Sequence) else [sizes]):
        return _clamp_to_names(ctx, indices, sizes, data_type)
    low, high = np.negative(sizes), np.subtract(sizes, 1)
    if array is not None:
        clamped = np.clip(array.astype(np.int64), low, high)
        fits = data_type == indices.data_type and np.array_equal(clamped, array)
        return indices if fits else ctx.constant(clamped, data_type)
    uniform = low.min() == low.max()
    exact = _type_to_clamp(ctx, indices)
    if exact == "float64" and -low.min() <= FLOAT32_INTEGERS:
        exact, data_type = "float32", "int32" if "int32" in types else data_type
    least = None if exact == "uint32" else ctx.parameter(low.max() if uniform else low, exact)
    maximum = ctx.parameter(high.max() if uniform else high, exact)
    moved = ctx.cast(indices, exact)
    if uniform:
        return ctx.cast(ctx.emit("Clip", moved, least, maximum), data_type)
    moved = ctx.emit("Min", moved, maximum)
    return ctx.cast(moved if least is None else ctx.emit("Max", moved, least), data_type)


def _type_to_clamp(ctx: Emitter, indices: Value) -> str:
    """The data type in which indices are clamped.

    The engine's kernels compare int64 incorrectly. float64 holds all sizes, and is faster than Less and Where.
    """
    return "float64" if indices.data_type == "int64" and not ctx.portable else indices.data_type


def _clamp_to_names(ctx: Emitter, indices: Value, sizes: Any, data_type: str) -> Value:
    """`clamp_indices` to sizes that are known when the graph runs."""
    is_list = isinstance(sizes, Sequence)
    low, high = ([-size for size in sizes], [size - 1 for size in sizes]) if is_list else (-sizes, sizes - 1)
    exact = _type_to_clamp(ctx, indices)
    moved = ctx.cast(indices, exact)
    least = None if exact == "uint32" else ctx.constant(low, exact)
    if not is_list:
        return ctx.cast(ctx.emit("Clip", moved, least, ctx.constant(high, exact)), data_type)
    moved = ctx.emit("Min", moved, ctx.constant(high, exact))
    return ctx.cast(moved if least is None else ctx.emit("Max", moved, least), data_type)


def _along(ctx: Emitter, indices: Value, input: Value, axis: int, *types: str) -> Value:
    return clamp_indices(ctx, indices, input.dims[axis], *(types or ("int64", "int32")))


def _coordinates(ctx: Emitter, indices: Value, input: Value) -> Value:
    return clamp_indices(ctx, indices, input.dims[: indices.dims[-1]], "int64")


@ort.lower(ops.gather)
def _(ctx: Emitter, input: Value, indices: Value, axis: int) -> Value:
    return ctx.emit("Gather", input, _along(ctx, indices, input, axis), axis=axis)


@ort.lower(ops.gather_elements)
def _(ctx: Emitter, input: Value, indices: Value, axis: int) -> Value:
    return ctx.emit("GatherElements", input, _along(ctx, indices, input, axis), axis=axis)


@ort.lower(ops.gather_nd)
def _(ctx: Emitter, input: Value, indices: Value) -> Value:
    return ctx.emit("GatherND", input, _coordinates(ctx, indices, input))


@ort.lower(ops.scatter_elements)
def _(ctx: Emitter, input: Value, indices: Value, updates: Value, axis: int) -> Value:
    return ctx.emit("ScatterElements", input, _along(ctx, indices, input, axis), updates, axis=axis)


@ort.lower(ops.scatter_nd)
def _(ctx: Emitter, input: Value, indices: Value, updates: Value) -> Value:
    return ctx.emit("ScatterND", input, _coordinates(ctx, indices, input), updates)


@ort.lower("scatter_reduce")
def _(ctx: Emitter, input: Value, indices: Value, updates: Value, axis: int, reduction: str) -> Value:
    # The kernels cannot reduce 16-bit floats.
    wide = "float32" if input.data_type in ("float16", "bfloat16") else input.data_type
    data, more = ctx.cast(input, wide), ctx.cast(updates, wide)
    if _are_rows(ctx, input, indices, updates, axis):
        result = ctx.emit("ScatterND", data, _along(ctx, indices, input, 0, "int64"), more, reduction=reduction)
    else:
        # ScatterND would lose updates: its threads race for elements with several updates.
        positions = _along(ctx, indices, input, axis)
        if indices.dims != updates.dims:
            positions = ctx.emit("Expand", positions, ctx.constant(updates.dims), shape=updates.dims)
        result = ctx.emit("ScatterElements", data, positions, more, axis=axis, reduction=reduction)
    return ctx.cast(result, input.data_type)


def _are_rows(ctx: Emitter, input: Value, indices: Value, updates: Value, axis: int) -> bool:
    """Whether updates are whole rows of a matrix, at distinct constant positions."""
    array = ctx.array_of(indices)
    if array is None or axis or len(input.dims) != 2 or indices.dims[1] != 1 or updates.dims[1] != input.dims[1]:
        return False
    size = input.dims[0]
    return len(np.unique(np.clip(array.astype(np.int64), -size, size - 1) % size)) == array.size
