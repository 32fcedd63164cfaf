"""OpenVINO rules: gather and scatter.

The rules clamp indices, as WebNN does: the engine returns 0 for indices out of range.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....core.graph import Operand
from ....ops import indexing as ops
from ..backend import openvino
from ..emit import WIDE, Emitter, Value
from .quantization import dequantise_hidden

_HIGHEST = 2**31 - 1  # of int32


def _int32(ctx: Emitter, indices: Value) -> Value:
    """Convert indices to int32; values out of its range become its highest or lowest value."""
    if indices.data_type == "int64":
        low, high = ctx.lane(indices, 0), ctx.lane(indices, 1)
        sign = ctx.emit("bitwise_right_shift", low, ctx.constant(31))
        fits = ctx.emit("equal", ctx.emit("bitwise_xor", high, sign), ctx.constant(0), data_type="bool")
        outermost = ctx.emit(
            "bitwise_xor", ctx.emit("bitwise_right_shift", high, ctx.constant(31)), ctx.constant(_HIGHEST)
        )
        return ctx.choice(fits, low, outermost)
    moved = ctx.cast(indices, "int32")
    if indices.data_type == "uint32":
        beyond = ctx.emit("less", moved, ctx.constant(0), data_type="bool")
        return ctx.choice(beyond, ctx.constant(_HIGHEST), moved)
    return moved


def positions_of(ctx: Emitter, indices: Value, sizes: int | Sequence[int]) -> Value:
    """Convert indices to positions in [0, size); `sizes` is one size, or one per index on the last axis of `indices`."""
    low, high = np.negative(sizes), np.subtract(sizes, 1)
    if indices.array is not None:
        clamped = np.clip(indices.array.astype(np.int64), low, high)
        return ctx.constant(np.where(clamped < 0, clamped + sizes, clamped))
    moved = _int32(ctx, indices)
    moved = ctx.emit("maximum", ctx.emit("minimum", moved, ctx.constant(high)), ctx.constant(low))
    negative = ctx.emit("bitwise_right_shift", moved, ctx.constant(31))  # all bits set, or none
    return ctx.emit("add", moved, ctx.emit("bitwise_and", negative, ctx.constant(sizes)))


@openvino.lower(ops.gather)
def _(ctx: Emitter, input: Value, indices: Value, axis: int) -> Value:
    positions = positions_of(ctx, indices, input.shape[axis])
    operand = ctx.node.inputs["input"]
    table = ctx.tables.get(operand.node) if isinstance(operand, Operand) and operand.node is not None else None
    if table is None:
        return ctx.emit("gather", input, positions, ctx.constant(axis))

    def rows(part: Value) -> Value:
        if part.shape[axis] == 1 < input.shape[axis]:  # one scale or zero point for all rows
            return ctx.reshape(part, [*part.shape[:axis], *[1] * indices.rank, *part.shape[axis + 1 :]])
        return ctx.emit("gather", part, positions, ctx.constant(axis))

    numbers, *parts = map(rows, table)
    return dequantise_hidden(ctx, ctx.cast(numbers, "float32"), *parts)


@openvino.lower(ops.gather_elements, when=lambda input: input.data_type not in WIDE)
def _(ctx: Emitter, input: Value, indices: Value, axis: int) -> Value:
    return ctx.emit("gather_elements", input, positions_of(ctx, indices, input.shape[axis]), axis)


@openvino.lower(ops.gather_nd)
def _(ctx: Emitter, input: Value, indices: Value) -> Value:
    return ctx.emit("gather_nd", input, positions_of(ctx, indices, input.shape[: indices.shape[-1]]))


@openvino.lower(ops.scatter_elements, when=lambda input: input.data_type not in WIDE)
def _(ctx: Emitter, input: Value, indices: Value, updates: Value, axis: int) -> Value:
    positions = positions_of(ctx, indices, input.shape[axis])
    return ctx.emit("scatter_elements_update", input, positions, updates, ctx.constant(axis))


@openvino.lower(ops.scatter_nd)
def _(ctx: Emitter, input: Value, indices: Value, updates: Value) -> Value:
    return ctx.emit("scatter_nd_update", input, positions_of(ctx, indices, input.shape[: indices.shape[-1]]), updates)


_REDUCTIONS = {"add": "sum", "mul": "prod", "min": "min", "max": "max"}


@openvino.lower("scatter_reduce", when=lambda input: input.data_type in ("float32", "float16", "int32"))
def _(ctx: Emitter, input: Value, indices: Value, updates: Value, axis: int, reduction: str) -> Value:
    positions = positions_of(ctx, indices, input.shape[axis])
    if positions.shape != updates.shape:
        positions = ctx.emit("broadcast", positions, ctx.constant(updates.shape))
    result = ctx.emit(
        "scatter_elements_update", input, positions, updates, ctx.constant(axis), reduction=_REDUCTIONS[reduction]
    )
    return ctx.round_to_float16(result) if input.data_type == "float16" else result
