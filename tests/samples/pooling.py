"""Calls of the operations in `opweave.ops.pooling`."""

from __future__ import annotations

from typing import Any

import numpy as np

from opweave.core.shapes import conv_size
from opweave.ops import pooling as ops

from . import Call, Make, sample
from .convolution import INPUT_LAYOUTS, ordered, window


def pooling(make: Make) -> tuple[list[int], dict[str, Any]]:
    """The shape of an input, and options; paddings may be wider than the window, and windows may miss the input."""
    taps, options = window(make)
    layout = make.choice(INPUT_LAYOUTS)
    if layout == "nhwc" or make.boolean():
        options["layout"] = layout
    sizes = {"n": make.integer(1, 2), "c": make.integer(1, 3)}
    if make.boolean():  # global pooling: only the default dilations are sure to fit
        options.pop("dilations", None)
        sizes |= {"h": make.integer(1, 5), "w": make.integer(1, 5)}
        taps = [sizes["h"], sizes["w"]]
    else:
        options["window_dimensions"] = taps
    ceil = make.boolean()
    rounding = {"ceil": ceil}
    padding, strides = options.get("padding", [0] * 4), options.get("strides", [1, 1])
    rules = zip("hw", taps, padding[::2], padding[1::2], strides, options.get("dilations", [1, 1]), strict=True)
    found = {}
    for a, *rule in rules:
        size = sizes.setdefault(a, make.integer(1, 6))
        while conv_size(size, *rule, **rounding) < 1:
            size += 1
        sizes[a], found[a] = size, conv_size(size, *rule, **rounding)
    if make.boolean():
        options["output_sizes"] = [found["h"], found["w"]]
        options["output_shape_rounding"] = make.choice(["floor", "ceil"])  # ignored
    elif ceil or make.boolean():
        options["output_shape_rounding"] = "ceil" if ceil else "floor"
    return ordered(sizes, layout), options


def tame(array: np.ndarray) -> np.ndarray:
    """Without the largest floats, whose sums and squares overflow in float32, but not in the reference."""
    array[np.isfinite(array) & (abs(array.astype(np.float64)) > 1e30)] = 1
    return array


@sample(ops.average_pool2d, ops.l2_pool2d)
def _(make: Make) -> Call:
    shape, options = pooling(make)
    return Call(tame(make.array("input", shape, special=True)), **options)


@sample(ops.max_pool2d)
def _(make: Make) -> Call:
    shape, options = pooling(make)
    array = make.array("input", shape, -100, 100, special=True)
    if array.dtype.kind == "f":
        # What the maximum with NaN is, is not specified. ONNX Runtime gives the lowest finite float for -inf beside padding.
        array[np.isnan(array) | (array == -np.inf)] = 0
    return Call(array, **options)
