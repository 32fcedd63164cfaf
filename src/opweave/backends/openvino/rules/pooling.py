"""OpenVINO rules: pooling of floats.

The engine's kernels pad if padding is smaller than the window, and each window has an input element; otherwise a Pad precedes
the kernel. Averages with dilations have no rule: the engine has no kernel.
"""

from __future__ import annotations

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
        x, before, after = ctx.emit("pad", x, *padding, "constant", ctx.scalar(fill, x)), [0, 0], [0, 0]
    attributes |= {"pads_begin": before, "pads_end": after, "kernel_shape": [w.taps for w in windows]}
    return ctx.emit(name, x, [w.stride for w in windows], **attributes)


@openvino.lower(ops.max_pool2d, when=is_float)
def _(ctx: Emitter, input: Value, layout: str, **attributes: Any) -> Value:
    x = ctx.relayout(input, layout, "nchw")
    windows = Window.along(x.shape[2:], attributes)
    y = _pool(ctx, "max_pool", x, windows, -np.inf, dilations=[w.dilation for w in windows])
    filled = np.logical_and.outer(*(count_inside(w) > 0 for w in windows))
    if not filled.all():  # the engine returns the lowest finite float for a window of -inf alone
        y = ctx.emit("select", ctx.constant(filled, "bool"), y, ctx.scalar(-np.inf, y), data_type=y.data_type)
    return ctx.relayout(y, "nchw", layout)


def _is_dense(input: Operand, window_dimensions: Any, dilations: Any) -> bool:
    return is_float(input) and all(d == 1 or taps == 1 for taps, d in zip(window_dimensions, dilations, strict=True))


@openvino.lower(ops.average_pool2d, when=_is_dense)
def _(ctx: Emitter, input: Value, layout: str, **attributes: Any) -> Value:
    x = ctx.relayout(input, layout, "nchw")
    windows = Window.along(x.shape[2:], attributes)
    y = _pool(ctx, "avg_pool", x, windows, 0, exclude_pad=True)
    if not all(map(_is_regular, windows)):  # the explicit padding was counted
        with np.errstate(divide="ignore"):
            factor = prod(w.taps for w in windows) / np.multiply.outer(*map(count_inside, windows))
        y = ctx.emit("multiply", y, ctx.number(factor, y))
    return ctx.relayout(y, "nchw", layout)
