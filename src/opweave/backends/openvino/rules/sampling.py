"""OpenVINO rules: sampling of images at the positions of a grid.

`resize` has no rule: in most forms, loops are at least as fast as the engine's Interpolate. With fewer channels than
`MIN_CHANNELS`, loops are as fast as its GridSample, too.
"""

from __future__ import annotations

from ....composites import grid as grids
from ....core.graph import Operand
from ..backend import openvino
from ..emit import Emitter, Value

MIN_CHANNELS = 8
"""With 16 or 64 channels, the kernel takes 0.2 to 0.7 of the time of a loop; with 3 channels 0.7 to 1.7.
Cubic sampling with reflection takes 1.0 to 1.9 with many channels, too."""

_MODES = {"linear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}


def _has_kernel(input: Operand, mode: str, padding_mode: str) -> bool:
    """Whether the engine has a kernel that is right, and faster: "cubic" does not move positions to the border."""
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
