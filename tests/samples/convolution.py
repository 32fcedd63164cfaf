"""Calls of the operations in `opweave.ops.convolution`.

Values lie on a grid on which sums of products are exact in float32, so results hardly differ. Infinities and NaN are left
out of convolutions: whether a weight meets the zeros of the padding is up to the engine, and 0 times infinity is NaN.
"""

from __future__ import annotations

from typing import Any

from opweave.core.shapes import conv_transpose_size, window_extent
from opweave.ops import convolution as ops

from . import Call, Make, sample

INPUT_LAYOUTS = ("nchw", "nhwc")


def window(make: Make) -> tuple[list[int], dict[str, Any]]:
    """The size of a window, and options that say how it slides, each given or left out."""
    options: dict[str, Any] = {}
    if make.boolean():
        options["padding"] = [make.integer(0, 3) for _ in range(4)]
    if make.boolean():
        options["strides"] = [make.integer(1, 3) for _ in range(2)]
    if make.boolean():
        options["dilations"] = [make.integer(1, 2) for _ in range(2)]
    return [make.integer(1, 3), make.integer(1, 3)], options


def extents(taps: list[int], options: dict[str, Any]) -> list[int]:
    """What the window spans, [height, width]."""
    dilations = options.get("dilations", [1, 1])
    return [window_extent(size, dilation) for size, dilation in zip(taps, dilations, strict=True)]


def ordered(sizes: dict[str, int], layout: str) -> list[int]:
    return [sizes[letter] for letter in layout]


@sample(ops.conv2d)
def _(make: Make) -> Call:
    taps, options = window(make)
    padding, groups = options.get("padding", [0] * 4), make.integer(1, 3)
    o, i = groups * make.integer(1, 3), make.integer(1, 3)
    h, w = (
        max(extent - before - after, 1) + make.integer(0, 4)
        for extent, before, after in zip(extents(taps, options), padding[::2], padding[1::2], strict=True)
    )
    input_layout, filter_layout = make.choice(INPUT_LAYOUTS), make.choice(("oihw", "hwio", "ohwi", "ihwo"))
    if make.boolean():
        options["bias"] = make.array("bias", [o])
    return Call(
        make.array("input", ordered({"n": make.integer(1, 2), "c": i * groups, "h": h, "w": w}, input_layout)),
        make.array("filter", ordered({"o": o, "i": i, "h": taps[0], "w": taps[1]}, filter_layout)),
        groups=groups,
        input_layout=input_layout,
        filter_layout=filter_layout,
        **options,
    )


@sample(ops.conv_transpose2d)
def _(make: Make) -> Call:
    taps, options = window(make)
    padding, strides = options.get("padding", [0] * 4), options.get("strides", [1, 1])
    dilations, groups = options.get("dilations", [1, 1]), make.integer(1, 3)
    c, o = groups * make.integer(1, 3), make.integer(1, 3)
    image, smallest = [], []
    for rule in zip(taps, padding[::2], padding[1::2], strides, dilations, strict=True):
        size = make.integer(1, 4)
        while conv_transpose_size(size, *rule) < 1:
            size += 1
        image.append(size)
        smallest.append(conv_transpose_size(size, *rule))
    more = [make.integer(0, stride - 1) for stride in strides]
    if make.boolean():
        options["output_padding"] = more
    if make.boolean():
        options["output_sizes"] = [size + extra for size, extra in zip(smallest, more, strict=True)]
        options["output_padding"] = [7, 7]  # ignored
    if make.boolean():
        options["bias"] = make.array("bias", [o * groups])
    input_layout, filter_layout = make.choice(INPUT_LAYOUTS), make.choice(("iohw", "hwoi", "ohwi"))
    sizes = {"n": make.integer(1, 2), "c": c, "h": image[0], "w": image[1]}
    return Call(
        make.array("input", ordered(sizes, input_layout)),
        make.array("filter", ordered({"i": c, "o": o, "h": taps[0], "w": taps[1]}, filter_layout)),
        groups=groups,
        input_layout=input_layout,
        filter_layout=filter_layout,
        **options,
    )


# The engine computes positions in float32: errors of 1e-6 times the difference of neighbours, which is up to 8.
@sample(ops.resample2d, rtol=1e-6, atol=1e-5, half=400)
def _(make: Make) -> Call:
    mode, shape = make.choice(("nearest-neighbor", "linear")), [make.integer(1, 6) for _ in range(4)]
    options: dict[str, Any] = {"mode": mode} if mode == "linear" or make.boolean() else {}
    axes = [2, 3]
    if make.boolean():
        axes = options["axes"] = make.permutation(4)[:2]
    if make.boolean():
        factors = [make.choice([0.25, 0.5, 1.0, 1.5, 2.0, 0.7, 1.3, 1 / 3, 3.0]) for _ in axes]
        options["scales"] = [max(f, 1 / shape[axis]) for f, axis in zip(factors, axes, strict=True)]
    if make.boolean():
        options["sizes"] = [make.integer(1, 9) for _ in axes]
    # Nothing is said about an infinity that is multiplied with a weight of zero: only the nearest neighbour gets some.
    most = 4 if make.types["input"].startswith("float") else 127
    return Call(make.array("input", shape, -most, most, special=mode != "linear"), **options)
