"""ONNX Runtime rules: pooling.

The engine's kernels want less padding than the window is wide, and each window to hold an element. Where that is not so,
the input is padded first. Windows at the end that stick out count as padding too: the engine's own rounding up leaves some
of them out.

Of NaN the engine's maximum keeps some and loses others (the specification says nothing about them), and where it pads, a
window of nothing but -inf gives the lowest finite float.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from ....ops import pooling as ops
from ....shapes import window_extent
from .. import ort
from ..emit import Emitter, Value


@dataclass(frozen=True)
class _Axis:
    """Windows along one axis: `count` of them over `size` elements."""

    size: int
    taps: int
    before: int
    stride: int
    dilation: int
    count: int

    @property
    def after(self) -> int:
        """How much padding the last window reaches into."""
        needed = (self.count - 1) * self.stride + window_extent(self.taps, self.dilation)
        return max(needed - self.size - self.before, 0)

    @cached_property
    def positions(self) -> np.ndarray:
        """Where each window looks, [window, tap]; positions outside of [0, size) lie in the padding."""
        starts = np.arange(self.count) * self.stride - self.before
        return starts[:, None] + np.arange(self.taps) * self.dilation

    @property
    def inside(self) -> np.ndarray:
        """Which of the positions lie in the input."""
        return (self.positions >= 0) & (self.positions < self.size)

    @property
    def is_whole(self) -> bool:
        """Whether there is one window, and it is the input."""
        return self.taps == self.size and self.dilation == 1 and not (self.before or self.after)

    @property
    def regular(self) -> bool:
        """Whether the engine's kernels can do it."""
        return max(self.before, self.after) < self.taps and bool(self.inside.any(1).all())


def _axes(
    x: Value,
    window: Sequence[int],
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    sizes: Sequence[int],
) -> list[_Axis]:
    return [_Axis(*a) for a in zip(x.dims[2:], window, padding[::2], strides, dilations, sizes, strict=True)]


def _pool(ctx: Emitter, op_type: str, x: Value, axes: Sequence[_Axis], fill: float, **attributes: Any) -> Value:
    """One of the engine's poolings, over an input that is padded with `fill` first where the engine would not do it."""
    if x.data_type == "float32" and all(a.is_whole for a in axes):
        whole: Value = ctx.emit(f"Global{op_type}", x)
        return whole
    before, after = [a.before for a in axes], [a.after for a in axes]
    place: dict[str, Any] = {"pads": before + after}
    if not all(a.regular for a in axes):
        x = ctx.emit("Pad", x, ctx.constant([0, 0, *before, 0, 0, *after]), ctx.scalar(fill, x))
        place = {"auto_pad": "VALID"}  # zeros in `pads` would let the engine's optimiser merge the two again
    pooled: Value = ctx.emit(
        op_type,
        x,
        kernel_shape=[a.taps for a in axes],
        **place,
        strides=[a.stride for a in axes],
        dilations=[a.dilation for a in axes] if any(a.dilation > 1 for a in axes) else None,
        **attributes,
    )
    return pooled


@ort.lower(ops.average_pool2d)
def _(
    ctx: Emitter,
    input: Value,
    window_dimensions: Sequence[int],
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    layout: str,
    output_sizes: Sequence[int],
) -> Value:
    x = ctx.relayout(input, layout, "nchw")
    axes = _axes(x, window_dimensions, padding, strides, dilations, output_sizes)
    y = _pool(ctx, "AveragePool", x, axes, 0)
    if not all(a.regular for a in axes):  # then it counted the padding, too
        counts = np.multiply.outer(*(a.inside.sum(1) for a in axes))
        with np.errstate(divide="ignore"):
            y = ctx.emit("Mul", y, ctx.constant(prod(window_dimensions) / counts, x.data_type))
    return ctx.relayout(Value(y.name, y.data_type, (*x.dims[:2], *output_sizes)), "nchw", layout)


# The engine's LpPool takes 50 times as long.
@ort.lower(ops.l2_pool2d)
def _(
    ctx: Emitter,
    input: Value,
    window_dimensions: Sequence[int],
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    layout: str,
    output_sizes: Sequence[int],
) -> Value:
    x = ctx.cast(ctx.relayout(input, layout, "nchw"), "float32")  # squares overflow in float16
    axes = _axes(x, window_dimensions, padding, strides, dilations, output_sizes)
    mean = _pool(ctx, "AveragePool", ctx.emit("Mul", x, x), axes, 0, count_include_pad=1)
    y = ctx.emit("Sqrt", ctx.emit("Mul", mean, ctx.scalar(prod(window_dimensions), mean)))
    y = ctx.cast(y, input.data_type)
    return ctx.relayout(Value(y.name, y.data_type, (*x.dims[:2], *output_sizes)), "nchw", layout)


@ort.lower(ops.max_pool2d)
def _(
    ctx: Emitter,
    input: Value,
    window_dimensions: Sequence[int],
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    layout: str,
    output_sizes: Sequence[int],
) -> Value:
    x = ctx.relayout(input, layout, "nchw")
    axes = _axes(x, window_dimensions, padding, strides, dilations, output_sizes)
    if x.data_type in ("int64", "uint64"):
        y = _max_of_int64(ctx, x, axes)
    elif x.data_type in ("int32", "uint32"):  # float64 holds them all
        y = _pool(ctx, "MaxPool", ctx.cast(x, "float64"), axes, np.iinfo(x.data_type).min)
    elif x.data_type in ("int8", "uint8"):
        y = _pool(ctx, "MaxPool", x, axes, np.iinfo(x.data_type).min)
    else:
        y = _fill(ctx, _pool(ctx, "MaxPool", x, axes, -np.inf), axes, -np.inf)
    y = ctx.cast(y, x.data_type)
    return ctx.relayout(Value(y.name, y.data_type, (*x.dims[:2], *output_sizes)), "nchw", layout)


def _fill(ctx: Emitter, y: Value, axes: Sequence[_Axis], lowest: float) -> Value:
    """The maxima, with `lowest` for windows without elements."""
    filled = np.logical_and.outer(*(axis.inside.any(1) for axis in axes))
    if filled.all():
        return y
    made: Value = ctx.emit("Where", ctx.constant(filled, "bool"), y, ctx.scalar(lowest, y))
    return made


def _max_of_int64(ctx: Emitter, x: Value, axes: Sequence[_Axis]) -> Value:
    """The maxima of 64-bit integers: gathers the elements of all windows along an axis and reduces, axis by axis."""
    lowest = ctx.constant(np.iinfo(np.int64).min)
    unsigned = x.data_type == "uint64"
    # The engine reduces no uint64; with the highest bit turned they are in the order of int64.
    y = ctx.emit("BitwiseXor", ctx.cast(x, "int64"), lowest) if unsigned else x
    for number, axis in enumerate(axes, start=2):
        # In the place of padding stands another element of the same window, which does not change the maximum.
        substitute = np.where(axis.inside, axis.positions, 0).max(1, keepdims=True)
        places = ctx.constant(np.where(axis.inside, axis.positions, substitute))
        elements = ctx.emit("Gather", y, places, axis=number)
        # ReduceMax compares int64 wrongly, ArgMax rightly: https://github.com/microsoft/onnxruntime/pull/32475
        first = ctx.emit("ArgMax", elements, axis=number + 1, keepdims=1, data_type="int64")
        y = ctx.emit(
            "Squeeze", ctx.emit("GatherElements", elements, first, axis=number + 1), ctx.constant([number + 1])
        )
    y = _fill(ctx, y, axes, np.iinfo(np.int64).min)
    return ctx.cast(ctx.emit("BitwiseXor", y, lowest), "uint64") if unsigned else y
