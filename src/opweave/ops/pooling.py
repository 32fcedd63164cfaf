"""Pooling: one number for each window of an image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from ..core.dtypes import ANY, FLOATS
from ..core.graph import Builder, Desc, Operand
from ..core.operation import Limits, op
from ..core.shapes import Window, check_window, conv_size
from ..core.sizes import is_same_shape
from ..support.errors import require
from .convolution import InputOperandLayout

if TYPE_CHECKING:
    from .operations import Operations

RoundingType = Literal["floor", "ceil"]


@op(input=Limits(FLOATS, ranks=(4, 4)))
def _pool2d(
    self: Builder,
    input: Operand,
    *,
    window_dimensions: Sequence[int] | None = None,
    padding: Sequence[int] = (0, 0, 0, 0),
    strides: Sequence[int] = (1, 1),
    dilations: Sequence[int] = (1, 1),
    layout: InputOperandLayout = "nchw",
    output_shape_rounding: RoundingType = "floor",
    output_sizes: Sequence[int] | None = None,
    label: str = "",
) -> Desc:
    """Reduce each window of each channel to one number.

    Padding, and positions of a partial last window beyond it, are ignored.

    Args:
        input: {input} [batches, channels, height, width], in the order of `layout`.
        window_dimensions: [height, width] of the window; default: [height, width] of the input (global pooling).
        padding: rows and columns around the input that windows may cover: [top, bottom, left, right].
        layout: "nchw" or "nhwc", of the input and of the result.
        output_shape_rounding: whether a partial last window is left out ("floor") or included ("ceil").
        output_sizes: [height, width] of the result, one of the two roundings; overrides `output_shape_rounding`.

    Returns: An operand of the data type of `input`, [batches, channels, height, width] in `layout`, where a size is
        1 + (size + paddings - (window size - 1) * dilation - 1) / stride, rounded.
    Raises: options out of range, or a window larger than the padded input.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-pool2d
    """
    # The specification sets the padding to 0 if outputSizes is given, and requires outputSizes < strides. Both are mistakes:
    # the conformance tests and browsers use both options together, and sizes are rarely smaller than strides.
    check_window(padding, strides, dilations)
    assert window_dimensions is not None  # the defaults are declared below
    assert output_sizes is not None
    _check_dimensions(window_dimensions)
    require(len(output_sizes) == 2, f"output_sizes must have 2 values, got {list(output_sizes)}")
    image = dict(zip(layout, input.shape, strict=True))
    windows = list(zip("hw", window_dimensions, padding[::2], padding[1::2], strides, dilations, strict=True))
    whole, partial = ([conv_size(image[a], *w, ceil=ceil) for a, *w in windows] for ceil in (False, True))
    # The defaults need no comparison, whose answer would differ between odd and even sizes.
    if not any(is_same_shape(output_sizes, sizes) for sizes in (whole, partial)):
        allowed = [whole] if whole == partial else [whole, partial]
        fits = list(output_sizes) in allowed
        require(fits, f"output_sizes must be {' or '.join(map(str, allowed))}, got {list(output_sizes)}")
    image["h"], image["w"] = output_sizes
    return Desc(input.data_type, tuple(image[a] for a in layout))


def _check_dimensions(window_dimensions: Sequence[int]) -> None:
    valid = len(window_dimensions) == 2 and all(size > 0 for size in window_dimensions)
    require(valid, f"window_dimensions must be 2 positive integers, got {list(window_dimensions)}")


@_pool2d.default("window_dimensions")
def _(input: Operand, layout: str) -> tuple[int, int]:
    return input.shape[layout.index("h")], input.shape[layout.index("w")]


@_pool2d.default("output_sizes")
def _(
    input: Operand,
    window_dimensions: Sequence[int],
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    layout: str,
    output_shape_rounding: str,
) -> tuple[int, ...]:
    check_window(padding, strides, dilations)
    _check_dimensions(window_dimensions)
    sizes = []
    for a, *window in zip("hw", window_dimensions, padding[::2], padding[1::2], strides, dilations, strict=True):
        sizes.append(conv_size(input.shape[layout.index(a)], *window, ceil=output_shape_rounding == "ceil"))
    fits = all(size > 0 for size in sizes)
    require(fits, f"a window of {list(window_dimensions)} must fit into the padded input, got {input.desc}")
    return tuple(sizes)


average_pool2d = _pool2d.named(
    "average_pool2d",
    "Average each window of each channel; NaN for windows without elements.",
    """
    >>> image = np.float32([[1, 2], [3, 6]]).reshape(1, 1, 2, 2)
    >>> ow.ops.average_pool2d(image).tolist()
    [[[[3.0]]]]
    """,
)
l2_pool2d = _pool2d.named(
    "l2_pool2d",
    "Take the square root of the sum of squares of each window of each channel.",
    """
    >>> image = np.float32([[3, 4], [5, 12]]).reshape(1, 1, 2, 2)
    >>> ow.ops.l2_pool2d(image, window_dimensions=[1, 2]).tolist()
    [[[[5.0], [13.0]]]]
    """,
)
max_pool2d = _pool2d.named(
    "max_pool2d",
    "Take the maximum of each window of each channel; the lowest value of the data type for windows without elements.",
    """
    >>> image = np.float32([[1, 2, 3], [4, 5, 6], [7, 8, 9]]).reshape(1, 1, 3, 3)
    >>> ow.ops.max_pool2d(image, window_dimensions=[2, 2]).tolist()
    [[[[5.0, 6.0], [8.0, 9.0]]]]
    """,
    input=Limits(ANY, ranks=(4, 4)),
)


@l2_pool2d.decompose
def _(b: Operations, input: Operand, layout: InputOperandLayout, **attributes: Any) -> Operand:
    # Pad with zeros, so that all windows are complete and the sum is the average times the window size.
    axes = [layout.index("h"), layout.index("w")]
    before, after = [0] * 4, [0] * 4
    for axis, window in zip(axes, Window.along([input.shape[axis] for axis in axes], attributes), strict=True):
        before[axis], after[axis] = window.before, window.after
    x = b.pad(b.cast(input, "float32"), before, after)
    options = {name: attributes[name] for name in ("window_dimensions", "strides", "dilations")}
    mean = b.average_pool2d(x * x, layout=layout, **options)
    return b.cast(b.sqrt(mean * math.prod(attributes["window_dimensions"])), input.data_type)
