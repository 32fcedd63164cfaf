"""ONNX Runtime rules: operations of drafts whose operands give sizes.

In a run, their decompositions have the numbers. A model in a file computes them, with operators that take operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....core.conversion import Number
from ....core.dtypes import DataType, is_float
from ....core.graph import Operand
from ....core.sizes import Size, is_static, is_symbolic
from ....ops import dynamic as ops
from ....ops.constants import HostFunction, computed, sizes
from ....ops.movement import PaddingMode
from ..backend import ort
from ..emit import Emitter, Value


@ort.lower(sizes, when=lambda values: not is_static(values))
def _(ctx: Emitter, values: Sequence[int], data_type: DataType, shape: Sequence[int]) -> Value:
    constant = ctx.constant(list(values), data_type) if shape else ctx.constant(values[0], data_type)
    return constant if len(shape) < 2 else ctx.emit("Reshape", constant, ctx.constant(shape), shape=shape)


@ort.lower(computed, when=lambda arguments: is_symbolic(arguments))
def _(ctx: Emitter, function: HostFunction, arguments: Any, data_type: DataType, shape: Sequence[int]) -> Value:
    return ctx.computed(function, arguments, data_type, shape)


@ort.lower_in_files(ops.shape)
def _(ctx: Emitter, input: Value) -> Value:
    return ctx.cast(ctx.emit("Shape", input, data_type="int64"), "uint32")


def _has_unknown_length(start: Operand, limit: Operand, delta: Operand) -> bool:
    return isinstance(ops.length_of_range(start, limit, delta), Size)


@ort.lower(ops.range, when=_has_unknown_length)
def _(ctx: Emitter, start: Value, limit: Value, delta: Value) -> Value:
    if ctx.portable:
        bounds = [ctx.cast(value, "int64") for value in (start, limit, delta)]
        return ctx.cast(ctx.emit("Range", *bounds), start.data_type)
    # Steps and ends of uint64 may exceed int64: the host counts, and products wrap around.
    length = ctx.constant(ops.length_of_range(*ctx.node.operands))
    numbers = ctx.cast(ctx.emit("Range", ctx.constant(0), length, ctx.constant(1)), start.data_type)
    return ctx.emit("Add", ctx.emit("Mul", numbers, delta), start)


@ort.lower_in_files(ops.squeeze)
def _(ctx: Emitter, input: Value, axes: Sequence[int] | None) -> Value:
    if axes is None:
        axes = [axis for axis, size in enumerate(input.dims) if not isinstance(size, Size) and size == 1]
    return ctx.emit("Squeeze", input, ctx.constant(axes)) if axes else input


@ort.lower_in_files(ops.unsqueeze)
def _(ctx: Emitter, input: Value, axes: Sequence[int]) -> Value:
    return ctx.emit("Unsqueeze", input, ctx.constant(axes)) if axes else input


@ort.lower_in_files(ops.reshape_to_2d)
def _(ctx: Emitter, input: Value, axis: int) -> Value:
    return ctx.emit("Flatten", input, axis=axis)


@ort.lower_in_files(ops.reshape_dynamic)
def _(ctx: Emitter, input: Value, new_shape: Value) -> Value:
    return ctx.emit("Reshape", input, ctx.cast(new_shape, "int64"))


@ort.lower_in_files(ops.expand_dynamic)
def _(ctx: Emitter, input: Value, new_shape: Value) -> Value:
    return ctx.emit("Expand", input, ctx.cast(new_shape, "int64"))


@ort.lower_in_files(ops.slice_dynamic)
def _(ctx: Emitter, input: Value, starts: Value, sizes: Value, strides: Sequence[int]) -> Value:
    first, count = ctx.cast(starts, "int64"), ctx.cast(sizes, "int64")
    axes = ctx.constant(range(input.rank))
    return ctx.emit("Slice", input, first, ctx.emit("Add", first, count), axes, ctx.constant(strides))


@ort.lower_in_files(ops.pad_dynamic)
def _(
    ctx: Emitter, input: Value, beginning_padding: Value, ending_padding: Value, mode: PaddingMode, value: Number
) -> Value:
    fill = ctx.scalar(value, input) if mode == "constant" else None
    paddings = [ctx.cast(padding, "int64") for padding in (beginning_padding, ending_padding)]
    pads = ctx.emit("Concat", *paddings, axis=0)
    return ctx.emit("Pad", input, pads, fill, mode="reflect" if mode == "reflection" else mode)


@ort.lower_in_files(ops.split_dynamic)
def _(ctx: Emitter, input: Value, splits: Value, axis: int) -> Sequence[Value]:
    count = len(ctx.node.outputs)
    return [input] if count == 1 else ctx.emit("Split", input, ctx.cast(splits, "int64"), axis=axis, outputs=count)


@ort.lower_in_files(ops.resample2d_dynamic)
def _(ctx: Emitter, input: Value, sizes: Value, mode: str, axes: Sequence[int]) -> Value:
    # Engines interpolate over the last two axes only.
    order = [axis for axis in range(4) if axis not in axes] + list(axes)
    x = ctx.transpose(input, order)
    is_integer = mode == "linear" and not is_float(input.data_type)
    others = ctx.emit("Slice", ctx.emit("Shape", x, data_type="int64"), ctx.constant([0]), ctx.constant([2]))
    shape = ctx.emit("Concat", others, ctx.cast(sizes, "int64"), axis=0)
    y = ctx.emit(
        "Resize",
        ctx.cast(x, "float32") if is_integer else x,
        None,
        None,
        shape,
        mode="linear" if mode == "linear" else "nearest",
        coordinate_transformation_mode="half_pixel",
        nearest_mode=None if mode == "linear" else "round_prefer_floor",
        shape=[ctx.output.shape[axis] for axis in order],
    )
    if is_integer:
        y = ctx.cast(ctx.emit("Round", y, shape=y.shape), input.data_type)
    return ctx.transpose(y, [order.index(axis) for axis in range(4)])


@ort.lower_in_files(ops.tile_dynamic)
def _(ctx: Emitter, input: Value, repetitions: Value) -> Value:
    return ctx.emit("Tile", input, ctx.cast(repetitions, "int64"))
