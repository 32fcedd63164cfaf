"""ONNX Runtime rules: pooling.

The engine requires padding smaller than the window, and at least one element in each window; otherwise a Pad precedes the
kernel. Windows beyond the end are also padding, because the engine's `ceil_mode` omits some. With padding, the maximum of a
window that contains only -inf would be the lowest finite float.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, reduce
from math import prod
from typing import Any

import numpy as np

from ....core.dtypes import FLOATS
from ....core.graph import Operand
from ....core.shapes import Window
from ....core.sizes import is_same_size
from ....ops import pooling as ops
from ..backend import ort
from ..emit import Emitter, Value
from .shared import row_of


class _Axis(Window):
    """Windows along one axis."""

    @cached_property
    def positions(self) -> np.ndarray:
        """Positions as [window, tap]; a position outside of [0, size) is padding."""
        starts = np.arange(int(self.count)) * self.stride - self.before
        return starts[:, None] + np.arange(int(self.taps)) * self.dilation

    @property
    def inside(self) -> np.ndarray:
        return (self.positions >= 0) & (self.positions < int(self.size))

    @property
    def inside_padding(self) -> np.ndarray:
        """Positions in the input or in its padding, as a mask; a partial last window may have others."""
        return self.positions < int(self.size) + int(self.ending)

    @property
    def is_whole(self) -> bool:
        """Whether a single window covers the input exactly."""
        return is_same_size(self.taps, self.size) and self.dilation == 1 and not (self.before or self.after)

    @property
    def regular(self) -> bool:
        if self.is_whole:
            return True
        if not max(self.before, self.after) < self.taps:
            return False
        return self.dilation == 1 or bool(self.inside.any(1).all())


def _on_nchw(rule: Callable[[Emitter, Value, list[_Axis]], Value]) -> Callable[..., Value]:
    """Wrap a rule for images with channels first. Those of composites have no layout, and up to three spatial axes."""

    def rule_of_layout(ctx: Emitter, input: Value, layout: str = "", **attributes: Any) -> Value:
        x = ctx.relayout(input, layout, "nchw") if layout else input
        axes, shape = _Axis.along(x.dims[2:], attributes), (*x.dims[:2], *attributes["output_sizes"])
        if axes[0].is_whole and (row := row_of(ctx, x)) is not None:
            y = rule(ctx, row, axes[1:])
            y = ctx.reshape(Value(y.name, y.data_type, (*shape[:2], shape[3])), shape)
        else:
            y = rule(ctx, x, axes)
            y = Value(y.name, y.data_type, shape)
        return ctx.relayout(y, "nchw", layout) if layout else y

    return rule_of_layout


def _pool(ctx: Emitter, op_type: str, x: Value, axes: Sequence[_Axis], fill: float, **attributes: Any) -> Value:
    """Emit a pooling operator; pad the input with `fill` first if the operator does not support the padding."""
    if x.data_type == "float32" and all(a.is_whole for a in axes):
        return ctx.emit(f"Global{op_type}", x)
    before, after = [a.before for a in axes], [a.after for a in axes]
    place: dict[str, Any] = {"pads": before + after}
    if not all(a.regular for a in axes):
        x = ctx.emit("Pad", x, ctx.constant([0, 0, *before, 0, 0, *after]), ctx.scalar(fill, x))
        place = {"auto_pad": "VALID"}  # with explicit zeros in `pads`, the engine's optimiser would fuse the Pad again
    return ctx.emit(
        op_type,
        x,
        kernel_shape=[a.taps for a in axes],
        **place,
        strides=[a.stride for a in axes],
        dilations=[a.dilation for a in axes] if any(a.dilation > 1 for a in axes) else None,
        **attributes,
    )


@ort.lower(ops.average_pool2d)
@_on_nchw
def _mean(ctx: Emitter, x: Value, axes: list[_Axis]) -> Value:
    y = _pool(ctx, "AveragePool", x, axes, 0)
    if not all(a.regular for a in axes):  # the explicit padding was counted
        y = _divide_by(ctx, y, axes, [a.inside.sum(1) for a in axes])
    return y


def _divide_by(ctx: Emitter, y: Value, axes: Sequence[_Axis], counts: Sequence[np.ndarray]) -> Value:
    """Correct a mean of all taps to that of some, which are counted for each window along each axis."""
    taps = prod(int(axis.taps) for axis in axes)
    counted = reduce(np.multiply.outer, counts)
    if (counted == taps).all():
        return y
    with np.errstate(divide="ignore"):
        quotient: Value = ctx.emit("Mul", y, ctx.constant(taps / counted, y.data_type))
    return quotient


@_on_nchw
def _mean_with_padding(ctx: Emitter, x: Value, axes: list[_Axis]) -> Value:
    y = _pool(ctx, "AveragePool", x, axes, 0, count_include_pad=1)
    return _divide_by(ctx, y, axes, [a.inside_padding.sum(1) for a in axes])


@ort.lower("average_pool")
def _(ctx: Emitter, input: Value, include_padding: bool, **attributes: Any) -> Value:
    return (_mean_with_padding if include_padding else _mean)(ctx, input, **attributes)


# The engine's LpPool takes 50 times as long.
@ort.lower(ops.l2_pool2d)
@_on_nchw
def _(ctx: Emitter, x: Value, axes: list[_Axis]) -> Value:
    wide = ctx.cast(x, "float32")  # squares overflow in float16
    mean = _pool(ctx, "AveragePool", ctx.emit("Mul", wide, wide), axes, 0, count_include_pad=1)
    total = ctx.emit("Mul", mean, ctx.scalar(prod(a.taps for a in axes), mean))
    return ctx.cast(ctx.emit("Sqrt", total), x.data_type)


@ort.lower(ops.max_pool2d, "max_pool")
@_on_nchw
def _(ctx: Emitter, x: Value, axes: list[_Axis]) -> Value:
    if x.data_type in ("int64", "uint64"):
        y = _max_of_int64(ctx, x, axes)
    elif x.data_type in ("int16", "uint16", "int32", "uint32"):  # exact in float64
        y = _pool(ctx, "MaxPool", ctx.cast(x, "float64"), axes, np.iinfo(x.data_type).min)
    elif x.data_type in ("int8", "uint8"):
        y = _pool(ctx, "MaxPool", x, axes, np.iinfo(x.data_type).min)
    else:
        y = _fill(ctx, _pool(ctx, "MaxPool", x, axes, -np.inf), axes, -np.inf)
    return ctx.cast(y, x.data_type)


_WITH_INDICES = (*FLOATS, "int8", "uint8")
"""Data types of the kernel that returns positions, too; float16 is converted to float32."""


def _has_indices(input: Operand, **attributes: Any) -> bool:
    axes = _Axis.along(input.shape[2:], attributes)
    return input.data_type in _WITH_INDICES and all(axis.is_whole or axis.regular for axis in axes)


@ort.lower("max_pool_with_indices", when=_has_indices)
def _(ctx: Emitter, input: Value, order: str, index_type: str, **attributes: Any) -> tuple[Value, Value]:
    axes, shape = _Axis.along(input.dims[2:], attributes), ctx.output.shape
    values, positions = ctx.emit(
        "MaxPool",
        ctx.cast(input, "float32") if input.data_type == "float16" else input,
        outputs=2,
        shape=shape,
        kernel_shape=[a.taps for a in axes],
        pads=[*(a.before for a in axes), *(a.after for a in axes)],
        strides=[a.stride for a in axes],
        dilations=[a.dilation for a in axes] if any(a.dilation > 1 for a in axes) else None,
        storage_order=int(order == "column-major"),
    )
    return ctx.cast(values, input.data_type), ctx.cast(Value(positions.name, "int64", shape), index_type)


@ort.lower("max_unpool", when=lambda input: input.data_type in FLOATS)
def _(ctx: Emitter, input: Value, indices: Value) -> Value:
    axes, shape = len(input.dims) - 2, ctx.output.shape
    ones = [1] * axes
    positions = ctx.cast(indices, "int64")
    return ctx.emit("MaxUnpool", input, positions, ctx.constant(shape), shape=shape, kernel_shape=ones, strides=ones)


def _fill(ctx: Emitter, y: Value, axes: Sequence[_Axis], lowest: float) -> Value:
    if all(axis.regular for axis in axes):
        return y
    filled = reduce(np.logical_and.outer, [axis.inside.any(1) for axis in axes])
    if filled.all():
        return y
    return ctx.emit("Where", ctx.constant(filled, "bool"), y, ctx.scalar(lowest, y))


def _max_of_int64(ctx: Emitter, x: Value, axes: Sequence[_Axis]) -> Value:
    """Compute maxima of 64-bit integers: for each axis, gather the elements of all windows, and reduce."""
    lowest = ctx.constant(np.iinfo(np.int64).min)
    unsigned = x.data_type == "uint64"
    # The engine cannot reduce uint64; flipping the top bit maps its order to that of int64.
    y = ctx.emit("BitwiseXor", ctx.cast(x, "int64"), lowest) if unsigned else x
    for number, axis in enumerate(axes, start=2):
        # Replace padding by another element of the same window, which does not change the maximum.
        substitute = np.where(axis.inside, axis.positions, 0).max(1, keepdims=True)
        places = ctx.constant(np.where(axis.inside, axis.positions, substitute))
        elements = ctx.emit("Gather", y, places, axis=number)
        # Unlike ReduceMax, ArgMax compares int64 correctly: https://github.com/microsoft/onnxruntime/pull/32475
        first = ctx.emit("ArgMax", elements, axis=number + 1, keepdims=1, data_type="int64")
        y = ctx.emit(
            "Squeeze", ctx.emit("GatherElements", elements, first, axis=number + 1), ctx.constant([number + 1])
        )
    y = _fill(ctx, y, axes, np.iinfo(np.int64).min)
    return ctx.cast(ctx.emit("BitwiseXor", y, lowest), "uint64") if unsigned else y
