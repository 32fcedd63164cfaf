"""OpenVINO rules: pooling of floats.

The engine's kernels pad if padding is smaller than the window, and each window has an input element; otherwise a Pad precedes
the kernel. Averages with dilations have no rule: the engine has no kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from ....core.graph import Operand
from ....core.shapes import Window
from ....ops import pooling as ops
from ..backend import openvino
from ..emit import Emitter, Value
from ..windows import count_inside
from .shared import is_float


def _is_regular(window: Window) -> bool:
    return max(window.before, window.after) < window.taps and bool(count_inside(window).all())


def _pool(ctx: Emitter, name: str, x: Value, windows: list[Window], fill: float, **attributes: Any) -> Value:
    before, after = [w.before for w in windows], [w.after for w in windows]
    if not all(map(_is_regular, windows)):
        padding = (ctx.constant([0, 0, *sizes]) for sizes in (before, after))
        x, before, after = (
            ctx.emit("pad", x, *padding, "constant", ctx.scalar(fill, x)),
            [0] * len(before),
            [0] * len(after),
        )
    attributes |= {"pads_begin": before, "pads_end": after, "kernel_shape": [w.taps for w in windows]}
    return ctx.emit(name, x, [w.stride for w in windows], **attributes)


def _on_nchw(rule: Callable[[Emitter, Value, list[Window]], Value]) -> Callable[..., Value]:
    """Wrap a rule for images with channels first. Those of composites have no layout, and up to three spatial axes."""

    def rule_of_layout(ctx: Emitter, input: Value, layout: str = "", **attributes: Any) -> Value:
        x = ctx.relayout(input, layout, "nchw") if layout else input
        y = rule(ctx, x, Window.along(x.shape[2:], attributes))
        return ctx.relayout(y, "nchw", layout) if layout else y

    return rule_of_layout


@openvino.lower(ops.max_pool2d, "max_pool", when=is_float)
@_on_nchw
def _(ctx: Emitter, x: Value, windows: list[Window]) -> Value:
    y = _pool(ctx, "max_pool", x, windows, -np.inf, dilations=[w.dilation for w in windows])
    filled = reduce(np.logical_and.outer, [count_inside(w) > 0 for w in windows])
    if not filled.all():  # the engine returns the lowest finite float for a window of -inf alone
        y = ctx.emit("select", ctx.constant(filled, "bool"), y, ctx.scalar(-np.inf, y), data_type=y.data_type)
    return y


def _is_dense(input: Operand, window_dimensions: Any, dilations: Any) -> bool:
    return is_float(input) and all(d == 1 or taps == 1 for taps, d in zip(window_dimensions, dilations, strict=True))


@openvino.lower(ops.average_pool2d, when=_is_dense)
@_on_nchw
def _mean(ctx: Emitter, x: Value, windows: list[Window]) -> Value:
    y = _pool(ctx, "avg_pool", x, windows, 0, exclude_pad=True)
    if not all(map(_is_regular, windows)):  # the explicit padding was counted
        with np.errstate(divide="ignore"):
            factor = prod(w.taps for w in windows) / reduce(np.multiply.outer, map(count_inside, windows))
        y = ctx.emit("multiply", y, ctx.number(factor, y))
    return y


@openvino.lower("average_pool", when=_is_dense)
def _(ctx: Emitter, input: Value, padding: Sequence[int], include_padding: bool, **attributes: Any) -> Value:
    if include_padding and any(padding):
        pads = (ctx.constant([0, 0, *sizes]) for sizes in (padding[::2], padding[1::2]))
        input = ctx.emit("pad", input, *pads, "constant", ctx.scalar(0, input))
        padding = [0] * len(padding)
    return _mean(ctx, input, padding=padding, **attributes)
