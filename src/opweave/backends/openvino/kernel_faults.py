"""Convolutions for which the engine's 8-bit and 16-bit kernels are wrong.

The faults were found with 39,307 random convolutions in bfloat16 and in 8 bits, and 2,477 more with wide windows, on
processors with AMX. Other processors may have them too, so these convolutions never run in 8 or 16 bits.
"""

from __future__ import annotations

from ...core.graph import Node
from ...core.shapes import Window, window_extent
from .windows import count_inside

_CHANNELS = (("input", "nc"), ("filter", "oi"))
"""Axes before the spatial ones, for convolutions without layouts."""

ROW_BYTES = 64
"""Bytes in a row of an AMX tile."""


def why_not(node: Node, size: int) -> str:
    """Return the reason why a kernel must not compute a `conv2d` or a `convolution`; empty if it may.

    `size` is the bytes per element of the kernel's operands: 1 or 2.
    """
    arguments = node.arguments
    axes = "dhw"[2 - node.outputs[0].rank :]
    input_layout, filter_layout = (arguments.get(f"{name}_layout", f"{c}{axes}") for name, c in _CHANNELS)
    image = dict(zip(input_layout, arguments["input"].shape, strict=True))
    filter = dict(zip(filter_layout, arguments["filter"].shape, strict=True))
    counts = dict(zip(input_layout, node.outputs[0].shape, strict=True))
    for index, axis in enumerate(axes):
        before, after = arguments["padding"][2 * index : 2 * index + 2]
        taps, dilation = filter[axis], arguments["dilations"][index]
        window = Window(
            image[axis], taps, before, arguments["strides"][index], dilation if taps > 1 else 1, counts[axis]
        )
        if max(before, after) >= window_extent(taps, window.dilation) or not count_inside(window).all():
            return "windows of padding alone"  # the kernel reads beyond the input, or ends the process
        if axis == "w" and _is_regrouped(window, filter["i"] * size):
            return "widths and strides with a common factor"
        if axis == "w" and _fills_rows(window, filter["i"] * size):
            return "windows whose rows fill several rows of a tile"
    is_depthwise = filter["i"] == 1 and filter["o"] == arguments["groups"]
    if size == 1 and arguments["groups"] > 1 and not is_depthwise:
        return "groups of several channels in 8 bits"
    return ""


def _is_regrouped(window: Window, depth: int) -> bool:
    """Whether the kernel may read neighbours along the width as channels of one position, which fill several rows of a tile.

    `depth` is the bytes of all channels at one position.
    """
    if window.dilation > 1 or depth >= ROW_BYTES:
        return False
    factors = (factor for factor in range(2, window.taps + 1) if window.taps % factor == 0)
    rows = (depth * factor for factor in factors if window.stride % factor == 0 or window.count == 1)
    return any(row > ROW_BYTES and row % ROW_BYTES == 0 for row in rows)


def _fills_rows(window: Window, depth: int) -> bool:
    """Whether a row of a window fills several whole rows of a tile, while few channels are read at one position."""
    row = depth * window.taps
    return window.dilation == 1 and window.count > 1 and 2 * depth < ROW_BYTES < row and row % ROW_BYTES == 0
