"""ONNX Runtime rules: reductions.

The engine reduces integers in float64 and saturates, but they should wrap around
(https://github.com/microsoft/onnxruntime/pull/28743). Its extremes of int64 are wrong if numbers differ in bit 31 but not
above (https://github.com/microsoft/onnxruntime/pull/32475). Such reductions are composed.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....core.dtypes import DataType, is_float
from ....core.graph import Operand
from ....core.operation import Op
from ....ops import reduction as ops
from ..backend import ort
from ..emit import Emitter, Value

_FLOAT_KERNELS = {
    ops.reduce_l1: "ReduceL1",
    ops.reduce_l2: "ReduceL2",
    ops.reduce_log_sum: "ReduceLogSum",
    ops.reduce_mean: "ReduceMean",
    ops.reduce_product: "ReduceProd",
    ops.reduce_sum: "ReduceSum",
    ops.reduce_sum_square: "ReduceSumSquare",
}
_ORDER_KERNELS = {ops.reduce_max: "ReduceMax", ops.reduce_min: "ReduceMin"}

MAX_EXACT_COUNT = 2**21
"""Number of 32-bit integers whose sum is exact in float64."""


def _reduce(ctx: Emitter, op_type: str, input: Value, axes: Sequence[int], keep_dimensions: bool) -> Value:
    return ctx.emit(op_type, input, ctx.constant(list(axes)), keepdims=int(keep_dimensions), noop_with_empty_axes=1)


def _is_float(input: Operand) -> bool:
    return is_float(input.data_type)


def _is_ordered(input: Operand) -> bool:
    return input.data_type not in ("uint32", "int64", "uint64")


def _native(op: Op[..., Operand], op_type: str) -> None:
    @ort.lower(op, when=_is_ordered if op in _ORDER_KERNELS else _is_float)
    def _(ctx: Emitter, input: Value, axes: Sequence[int], keep_dimensions: bool) -> Value:
        return _reduce(ctx, op_type, input, axes, keep_dimensions)


for _op, _op_type in {**_FLOAT_KERNELS, **_ORDER_KERNELS}.items():
    _native(_op, _op_type)


@ort.lower(ops.reduce_log_sum_exp)
def _(ctx: Emitter, input: Value, axes: Sequence[int], keep_dimensions: bool) -> Value:
    if axes and len(axes) == input.rank:
        # If all axes are reduced, the kernel ignores a NaN after an infinity; with another axis it does not.
        row = ctx.reshape(input, [1, prod(input.dims)])
        return ctx.reshape(_reduce(ctx, "ReduceLogSumExp", row, [1], keep_dimensions), ctx.output.shape)
    return _reduce(ctx, "ReduceLogSumExp", input, axes, keep_dimensions)


# ---------------------------------------------------------------------------------------------------------------------
# Integers


def _as_one_axis(ctx: Emitter, input: Value, axes: Sequence[int]) -> Value:
    """Reshape `input` to [before, reduced, after]; transpose only if the axes are not adjacent."""
    first, *_ = ordered = sorted(axes) or [input.rank]
    if axes and ordered != list(range(first, first + len(axes))):
        others = [axis for axis in range(input.rank) if axis not in axes]
        input, first = ctx.transpose(input, [*others, *ordered]), len(others)
    last = first + len(axes)
    return ctx.reshape(input, [prod(input.dims[:first]), prod(input.dims[first:last]), prod(input.dims[last:])])


def _fold(ctx: Emitter, op_type: str, input: Value, axes: Sequence[int]) -> Value:
    """Combine the integers along `axes` pairwise in their own data type, so that they wrap around."""
    x = _as_one_axis(ctx, input, axes)
    before, size, after = x.dims
    rests: list[Value] = []
    while size > 1:
        size, odd = divmod(size, 2)
        lengths = [size, size, 1][: 2 + odd]
        low, high, *rest = ctx.emit("Split", x, ctx.constant(lengths), axis=1, outputs=len(lengths))
        x = ctx.emit(op_type, low, high, shape=(before, size, after))
        rests += rest
    for rest in rests:
        x = ctx.emit(op_type, x, rest, shape=(before, 1, after))
    return ctx.reshape(x, ctx.output.shape)


@ort.lower(ops.reduce_sum)
def _(ctx: Emitter, input: Value, axes: Sequence[int], keep_dimensions: bool) -> Value:
    if input.data_type in ("int32", "uint32") and prod(input.dims[axis] for axis in axes) <= MAX_EXACT_COUNT:
        wide = _reduce(ctx, "ReduceSum", ctx.cast(input, "int64"), axes, keep_dimensions)
        return ctx.cast(wide, input.data_type)
    return _fold(ctx, "Add", input, axes)


@ort.lower(ops.reduce_product)
def _(ctx: Emitter, input: Value, axes: Sequence[int]) -> Value:
    return _fold(ctx, "Mul", input, axes)


# ---------------------------------------------------------------------------------------------------------------------
# Positions, and extremes by position


def _positions(ctx: Emitter, op_type: str, input: Value, axis: int, keep_dimensions: bool) -> Value:
    """Return the first position of the extreme value along `axis`, as int64."""
    if input.data_type == "uint64":  # flipping the top bit maps the order of uint64 to that of int64
        input = ctx.cast(ctx.emit("BitwiseXor", input, ctx.scalar(2**63, input)), "int64")
    return ctx.emit(op_type, input, data_type="int64", axis=axis, keepdims=int(keep_dimensions))


def _by_position(op_type: str, positions: Op[..., Operand], extremes: Op[..., Operand]) -> None:
    @ort.lower(positions)
    def _(ctx: Emitter, input: Value, axis: int, keep_dimensions: bool, output_data_type: DataType) -> Value:
        return ctx.cast(_positions(ctx, op_type, input, axis, keep_dimensions), output_data_type)

    @ort.lower(extremes)
    def _(ctx: Emitter, input: Value, axes: Sequence[int]) -> Value:
        # Gather the value at its position: ArgMin and ArgMax of int64 are correct, ReduceMin and ReduceMax are not.
        x = _as_one_axis(ctx, input, axes)
        before, _, after = x.dims
        places = _positions(ctx, op_type, x, axis=1, keep_dimensions=True)
        return ctx.reshape(ctx.emit("GatherElements", x, places, axis=1, shape=(before, 1, after)), ctx.output.shape)


_by_position("ArgMin", ops.arg_min, ops.reduce_min)
_by_position("ArgMax", ops.arg_max, ops.reduce_max)


# ---------------------------------------------------------------------------------------------------------------------
# Cumulative sums (the kernel wraps around)


@ort.lower(ops.cumulative_sum)
def _(ctx: Emitter, input: Value, axis: int, exclusive: bool, reversed: bool) -> Value:
    x = ctx.cast(input, "int64") if input.data_type == "uint64" else input
    sums = ctx.emit("CumSum", x, ctx.constant(axis), exclusive=int(exclusive), reverse=int(reversed))
    return ctx.cast(sums, input.data_type)
