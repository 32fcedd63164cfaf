"""OpenVINO rules: sampling of images at the positions of a grid.

Compiled loops run `grid_sample` of fewer than `MIN_CHANNELS` channels, for which OpenVINO's GridSample is not faster. They run
`resize`, too: in most forms, OpenVINO's Interpolate is not faster.
"""

from __future__ import annotations

from ....composites import grid as grids
from ....core.graph import Operand
from ..backend import openvino
from ..emit import Emitter, Value

MIN_CHANNELS = 8
"""With 16 or 64 channels, GridSample takes 0.2 to 0.7 times as long as a loop, but 1.0 to 1.9 times for cubic sampling with
reflection. With 3 channels it takes 0.7 to 1.7 times as long."""

_MODES = {"linear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}


def _has_kernel(input: Operand, mode: str, padding_mode: str) -> bool:
    """Whether OpenVINO's kernel is correct and faster. Its cubic sampling does not move positions inside the image."""
    return input.rank == 4 and input.shape[1] >= MIN_CHANNELS and (mode != "cubic" or padding_mode == "zeros")


@openvino.lower(grids.grid_sample, when=_has_kernel)
def _(ctx: Emitter, input: Value, grid: Value, mode: str, padding_mode: str, align_corners: bool) -> Value:
    # Positions that are NaN, infinite or far outside are the first edge, -1. `less` is false for NaN.
    *_, height, width = input.shape
    far = ctx.constant([2 * grids.FAR / size for size in (width, height)], "float32")
    is_near = ctx.emit("less", ctx.emit("abs", grid, data_type="float32"), far, data_type="bool")
    places = ctx.emit("select", is_near, grid, ctx.constant(-1, "float32"), data_type="float32")
    options = {"mode": _MODES[mode], "padding_mode": padding_mode, "align_corners": bool(align_corners)}
    return ctx.emit("grid_sample", input, places, options)
