"""Convolutions over one, two or three spatial axes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.dtypes import FLOATS
from ..core.graph import Builder, Desc, Operand, check_shape
from ..core.operation import Limits
from ..core.shapes import check_positive, check_window, conv_size, conv_transpose_size, window_extent
from ..expr import Traced, cast, clamp, compute, floor, logical_and, sum_over, where
from ..expr.ir import storage
from ..ops.constants import constant
from ..support.errors import require
from .declare import declare

if TYPE_CHECKING:
    from ..ops import Operations

IMAGES = (3, 5)
"""Ranks of images [batches, channels, *axes]."""


def spatial(input: Operand | Traced) -> tuple[int, ...]:
    """Return the sizes of the spatial axes of an image or a filter."""
    return input.shape[2:]


def ones(input: Operand) -> tuple[int, ...]:
    """Return the default of strides and dilations."""
    return (1,) * (input.rank - 2)


def zeros(input: Operand) -> tuple[int, ...]:
    """Return the default of output paddings."""
    return (0,) * (input.rank - 2)


def no_padding(input: Operand) -> tuple[int, ...]:
    """Return the default of paddings."""
    return (0,) * (2 * (input.rank - 2))


def _check_filter(groups: int, **operands: Operand) -> None:
    require(groups > 0, f"groups must be greater than 0, got {groups}")
    for name, operand in operands.items():
        require(
            all(size > 0 for size in spatial(operand)),
            f"the {name} must have spatial axes of at least 1, got {operand.desc}",
        )


def _output_sizes(
    input: Operand, filter: Operand, padding: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[int]:
    """Return the sizes of the spatial axes of the result of a convolution, which must be at least 1."""
    windows = zip(spatial(input), spatial(filter), padding[::2], padding[1::2], strides, dilations, strict=True)
    sizes = [conv_size(*window) for window in windows]
    fits = all(size > 0 for size in sizes)
    require(fits, f"the filter must fit into the padded input, got {filter.desc} and {input.desc}")
    return sizes


@declare(input=Limits(FLOATS, ranks=IMAGES), filter=Limits("input", ranks="input"), bias=Limits("input", ranks=(1, 1)))
def convolution(
    self: Builder,
    input: Operand,
    filter: Operand,
    bias: Operand | None = None,
    *,
    padding: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    groups: int = 1,
    label: str = "",
) -> Desc:
    """Convolve a batch of images with one, two or three spatial axes with a bank of filters.

    Args:
        input: float32 or float16 [batches, input channels, width], [batches, input channels, height, width], or
            [batches, input channels, depth, height, width].
        filter: an operand with the rank of `input`: output channels, input channels / groups, and the sizes of the window.
        bias: [output channels], added to the result.
        padding: zeros before and after each axis: [before, after, before, after, …]. Default: none.
        strides: for each axis, at least 1. Default: 1.
        dilations: for each axis, at least 1. Default: 1.
        groups: number of groups of input and output channels that are convolved separately; a depthwise convolution has
            one group per channel.

    Returns: An operand of the data type of `input` [batches, output channels, *axes], where a size is
        floor((size + paddings - (filter size - 1) * dilation - 1) / stride) + 1.
    Raises: options out of range, channels that do not fit, or a filter larger than the padded input.

    ONNX's Conv. `conv2d` has layouts, too.

    >>> convolution(np.float32([[[1, 2, 4]]]), np.ones([1, 1, 2], "float32")).tolist()
    [[[3.0, 6.0]]]
    >>> convolution(np.ones([1, 2, 4, 4, 4], "float32"), np.ones([3, 2, 3, 3, 3], "float32")).shape
    (1, 3, 2, 2, 2)
    """
    # The defaults are filled in.
    assert padding is not None
    assert strides is not None
    assert dilations is not None
    check_window(padding, strides, dilations, input.rank - 2)
    _check_filter(groups, filter=filter)
    (batches, channels), (outputs, inputs) = input.shape[:2], filter.shape[:2]
    per_group = f" for each of {groups} groups, {inputs * groups} in all" if groups > 1 else ""
    require(channels == inputs * groups, f"the filter has {inputs} input channels{per_group}, the input {channels}")
    require(outputs % groups == 0, f"groups must divide the {outputs} output channels, got {groups}")
    check_shape([outputs], bias=bias)
    return Desc(input.data_type, (batches, outputs, *_output_sizes(input, filter, padding, strides, dilations)))


convolution.default("padding")(no_padding)
convolution.default("strides")(ones)
convolution.default("dilations")(ones)


@convolution.decompose
def _(
    b: Operations,
    input: Operand,
    filter: Operand,
    bias: Operand | None,
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    groups: int,
) -> Operand:
    """Convolve with `conv2d`: an image of one axis has one row; the taps along the depth are channels."""
    options: dict[str, Any] = {"padding": padding, "strides": strides, "dilations": dilations}
    options |= {"groups": groups, "bias": bias}
    if input.rank == 4:
        return b.conv2d(input, filter, **options)
    if input.rank == 3:
        options |= {"padding": (0, 0, *padding), "strides": (1, *strides), "dilations": (1, *dilations)}
        x, w = (b.reshape(operand, [*operand.shape[:2], 1, operand.shape[2]]) for operand in (input, filter))
        y = b.conv2d(x, w, **options)
        return b.reshape(y, [*y.shape[:2], y.shape[3]])
    x = b.pad(input, [0, 0, padding[0], 0, 0], [0, 0, padding[1], 0, 0]) if any(padding[:2]) else input
    (batches, channels, depth, *image), (outputs, inputs, taps, *window) = x.shape, filter.shape
    count = conv_size(depth, taps, 0, 0, strides[0], dilations[0])
    reach = (count - 1) * strides[0] + 1
    slices = [
        b.slice(
            x,
            [0, 0, tap * dilations[0], 0, 0],
            [batches, channels, reach, *image],
            strides=[1, 1, strides[0], 1, 1],
        )
        for tap in range(taps)
    ]
    # [batches * count, channels * taps, height, width]
    parts = [b.reshape(part, [batches, channels, 1, count, *image]) for part in slices]
    x = b.transpose(parts[0] if taps == 1 else b.concat(parts, 2), permutation=[0, 3, 1, 2, 4, 5])
    x = b.reshape(x, [batches * count, channels * taps, *image])
    options |= {"padding": padding[2:], "strides": strides[1:], "dilations": dilations[1:]}
    y = b.conv2d(x, b.reshape(filter, [outputs, inputs * taps, *window]), **options)
    y = b.reshape(y, [batches, count, *y.shape[1:]])
    return b.transpose(y, permutation=[0, 2, 1, 3, 4])


@declare(input=Limits(FLOATS, ranks=IMAGES), filter=Limits("input", ranks="input"), bias=Limits("input", ranks=(1, 1)))
def conv_transpose(
    self: Builder,
    input: Operand,
    filter: Operand,
    bias: Operand | None = None,
    *,
    padding: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    output_sizes: Sequence[int] | None = None,
    groups: int = 1,
    label: str = "",
) -> Desc:
    """Transposed convolution over one, two or three spatial axes: the gradient of `convolution` with respect to its input.

    Args:
        input: float32 or float16 [batches, input channels, width], [batches, input channels, height, width], or
            [batches, input channels, depth, height, width].
        filter: an operand with the rank of `input`: input channels, output channels / groups, and the sizes of the window.
        bias: [output channels], added to the result.
        padding: elements removed from the result before and after each axis: [before, after, before, after, …]. Default: none.
        strides: in the result for each axis, at least 1. Default: 1.
        dilations: for each axis, at least 1. Default: 1.
        output_padding: elements added at the end of each axis, each less than the stride. Default: 0.
        output_sizes: the sizes of the axes of the result; overrides `output_padding`.
        groups: number of groups of input and output channels that are convolved separately; divides the input channels.

    Returns: An operand of the data type of `input` [batches, output channels, *axes], where a size is
        (size - 1) * stride + (filter size - 1) * dilation + 1 - paddings + output padding, unless `output_sizes` is given.
    Raises: options out of range, channels that do not fit, or sizes of the result that strides cannot reach.

    ONNX's ConvTranspose. `conv_transpose2d` has layouts, too.

    >>> conv_transpose(np.float32([[[1, 2]]]), np.ones([1, 1, 2], "float32"), strides=[2]).tolist()
    [[[1.0, 1.0, 2.0, 2.0]]]
    """
    # The defaults are filled in.
    assert padding is not None
    assert strides is not None
    assert dilations is not None
    assert output_padding is not None
    assert output_sizes is not None
    axes = input.rank - 2
    check_window(padding, strides, dilations, axes)
    for name, values in (("output_padding", output_padding), ("output_sizes", output_sizes)):
        require(len(values) == axes, f"{name} must have {axes} values, got {list(values)}")
    _check_filter(groups, filter=filter, input=input)
    (batches, channels), (inputs, outputs) = input.shape[:2], filter.shape[:2]
    require(channels == inputs, f"the filter must have as many input channels as the input, {channels}, got {inputs}")
    require(channels % groups == 0, f"groups must divide the {channels} input channels, got {groups}")
    check_shape([outputs * groups], bias=bias)
    windows = zip(spatial(input), spatial(filter), padding[::2], padding[1::2], strides, dilations, strict=True)
    for axis, (window, size) in enumerate(zip(windows, output_sizes, strict=True)):
        low = conv_transpose_size(*window)
        high = low + strides[axis]
        rule = f"output_sizes must be in [{low}, {high}) along spatial axis {axis}, got {list(output_sizes)}"
        require(low <= size < high, rule)
    return Desc(input.data_type, (batches, outputs * groups, *output_sizes))


conv_transpose.default("padding")(no_padding)
conv_transpose.default("strides")(ones)
conv_transpose.default("dilations")(ones)
conv_transpose.default("output_padding")(zeros)


@conv_transpose.default("output_sizes")
def _(
    input: Operand,
    filter: Operand,
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    output_padding: Sequence[int],
) -> tuple[int, ...]:
    axes = input.rank - 2
    check_window(padding, strides, dilations, axes)
    require(len(output_padding) == axes, f"output_padding must have {axes} values, got {list(output_padding)}")
    less = all(more < stride for more, stride in zip(output_padding, strides, strict=True))
    require(less, f"output_padding must be less than strides, {list(strides)}, got {list(output_padding)}")
    windows = zip(spatial(input), spatial(filter), padding[::2], padding[1::2], strides, dilations, strict=True)
    return tuple(conv_transpose_size(*window) + more for window, more in zip(windows, output_padding, strict=True))


@conv_transpose.decompose
def _(
    b: Operations,
    input: Operand,
    filter: Operand,
    bias: Operand | None,
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    output_sizes: Sequence[int],
    groups: int,
) -> Operand:
    """Insert strides - 1 zeros between the elements of the input, and convolve with the reversed filter."""
    n, c, *image = input.shape
    _, o, *taps = filter.shape
    x, sizes = input, [size * stride for size, stride in zip(image, strides, strict=True)]
    if max(strides) > 1:
        pairs = [number for size in image for number in (size, 1)]
        after = [number for stride in strides for number in (0, stride - 1)]
        x = b.pad(b.reshape(x, [n, c, *pairs]), [0] * (2 + len(pairs)), [0, 0, *after])
        x = b.reshape(x, [n, c, *sizes])
    extents = [window_extent(size, dilation) for size, dilation in zip(taps, dilations, strict=True)]
    begins = [extent - 1 - pad for extent, pad in zip(extents, padding[::2], strict=True)]
    ends = [
        output + extent - 1 - size - pad
        for output, extent, size, pad in zip(output_sizes, extents, sizes, begins, strict=True)
    ]
    # Negative padding removes the outermost elements.
    starts = [max(-pad, 0) for pad in begins]
    lengths = [size - start - max(-pad, 0) for size, start, pad in zip(sizes, starts, ends, strict=True)]
    if lengths != sizes:
        x = b.slice(x, [0, 0, *starts], [n, c, *lengths])
    w = b.transpose(b.reshape(filter, [groups, c // groups, o, *taps]), permutation=[0, 2, 1, *range(3, 3 + len(taps))])
    w = b.reverse(b.reshape(w, [groups * o, c // groups, *taps]), axes=list(range(2, 2 + len(taps))))
    pads = [max(pad, 0) for pair in zip(begins, ends, strict=True) for pad in pair]
    return convolution(x, w, bias, padding=pads, dilations=dilations, groups=groups)


@declare(
    input=Limits(FLOATS, ranks=(4, 4)),
    filter=Limits("input", ranks=(4, 4)),
    offset=Limits("input", ranks=(4, 4)),
    mask=Limits("input", ranks=(4, 4)),
    bias=Limits("input", ranks=(1, 1)),
)
def deform_conv(
    self: Builder,
    input: Operand,
    filter: Operand,
    offset: Operand,
    mask: Operand | None = None,
    bias: Operand | None = None,
    *,
    padding: Sequence[int] = (0, 0, 0, 0),
    strides: Sequence[int] = (1, 1),
    dilations: Sequence[int] = (1, 1),
    groups: int = 1,
    offset_groups: int = 1,
    label: str = "",
) -> Desc:
    """Convolve a batch of images with a bank of filters whose taps are moved by offsets that are computed.

    An element between pixels is interpolated linearly; pixels outside the image are 0.

    Args:
        input: float32 or float16 [batches, input channels, height, width].
        filter: [output channels, input channels / groups, height, width].
        offset: [batches, offset_groups * filter height * filter width * 2, output height, output width]: how far each tap is
            moved down and to the right.
        mask: [batches, offset_groups * filter height * filter width, output height, output width], factors of the taps.
        bias: [output channels], added to the result.
        padding: rows and columns of zeros around the input: [top, bottom, left, right].
        strides: [vertical, horizontal], each at least 1.
        dilations: [vertical, horizontal], each at least 1.
        groups: number of groups of input and output channels that are convolved separately.
        offset_groups: number of groups of input channels, each with its own offsets and mask.

    Returns: An operand of the data type of `input` [batches, output channels, output height, output width], sizes as in
        `convolution`. An offset that is NaN or infinite moves a tap out of the image.
    Raises: options out of range, channels that do not fit, or a filter larger than the padded input.

    ONNX's DeformConv; Zhu et al., Deformable ConvNets v2 (2018), arXiv:1811.11168.

    >>> image = np.float32([[1, 2], [3, 4]]).reshape(1, 1, 2, 2)
    >>> half = np.zeros([1, 2, 2, 2], "float32")
    >>> half[:, 1] = 0.5
    >>> deform_conv(image, np.ones([1, 1, 1, 1], "float32"), half).tolist()
    [[[[1.5, 1.0], [3.5, 2.0]]]]
    """
    check_window(padding, strides, dilations)
    _check_filter(groups, filter=filter)
    (batches, channels), (outputs, inputs) = input.shape[:2], filter.shape[:2]
    per_group = f" for each of {groups} groups, {inputs * groups} in all" if groups > 1 else ""
    require(channels == inputs * groups, f"the filter has {inputs} input channels{per_group}, the input {channels}")
    require(outputs % groups == 0, f"groups must divide the {outputs} output channels, got {groups}")
    require(
        offset_groups > 0 and channels % offset_groups == 0,
        f"offset_groups must divide the {channels} input channels, got {offset_groups}",
    )
    check_shape([outputs], bias=bias)
    sizes = _output_sizes(input, filter, padding, strides, dilations)
    moved = offset_groups * prod(spatial(filter))
    rule = "two numbers, and one of the mask, for each tap of a group and position of the result"
    check_shape([batches, moved * 2, *sizes], rule, offset=offset)
    check_shape([batches, moved, *sizes], rule, mask=mask)
    return Desc(input.data_type, (batches, outputs, *sizes))


@deform_conv.decompose
def _(
    b: Operations,
    input: Operand,
    filter: Operand,
    offset: Operand,
    mask: Operand | None,
    bias: Operand | None,
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    groups: int,
    offset_groups: int,
) -> Operand:
    """Sample the pixels of all taps as channels, which a filter of 1x1 adds up."""
    outputs, inputs, *taps = filter.shape
    options = {"taps": taps, "padding": padding, "strides": strides, "dilations": dilations}
    columns = deform_columns(input, offset, mask, offset_groups=offset_groups, **options)
    return b.conv2d(columns, b.reshape(filter, [outputs, inputs * prod(taps), 1, 1]), groups=groups, bias=bias)


@declare(input=Limits(FLOATS, ranks=(4, 4)), offset=Limits("input", ranks=(4, 4)), mask=Limits("input", ranks=(4, 4)))
def deform_columns(
    self: Builder,
    input: Operand,
    offset: Operand,
    mask: Operand | None = None,
    *,
    taps: Sequence[int],
    padding: Sequence[int] = (0, 0, 0, 0),
    strides: Sequence[int] = (1, 1),
    dilations: Sequence[int] = (1, 1),
    offset_groups: int = 1,
    label: str = "",
) -> Desc:
    """Sample the pixels that the taps of `deform_conv` read, as channels.

    Args:
        input: float32 or float16 [batches, channels, height, width].
        offset: [batches, offset_groups * taps * 2, output height, output width]: how far each tap is moved down and to the
            right.
        mask: [batches, offset_groups * taps, output height, output width], factors of the taps.
        taps: [height, width] of the filter.
        padding: rows and columns of zeros around the input: [top, bottom, left, right].
        strides: [vertical, horizontal], each at least 1.
        dilations: [vertical, horizontal], each at least 1.
        offset_groups: number of groups of channels, each with its own offsets and mask.

    Returns: An operand of the data type of `input` [batches, channels * taps, output height, output width]; channels count by
        channel and then by tap. An offset that is NaN or infinite moves a tap out of the image, where pixels are 0.
    Raises: options out of range, or offsets of another shape.

    >>> image = np.float32([[1, 2], [3, 4]]).reshape(1, 1, 2, 2)
    >>> deform_columns(image, np.zeros([1, 8, 1, 1], "float32"), taps=[2, 2]).ravel().tolist()
    [1.0, 2.0, 3.0, 4.0]
    """
    check_window(padding, strides, dilations)
    check_positive(2, taps=taps)
    batches, channels = input.shape[:2]
    require(
        offset_groups > 0 and channels % offset_groups == 0,
        f"offset_groups must divide the {channels} channels, got {offset_groups}",
    )
    windows = zip(spatial(input), taps, padding[::2], padding[1::2], strides, dilations, strict=True)
    sizes = [conv_size(*window) for window in windows]
    fits = all(size > 0 for size in sizes)
    require(fits, f"taps {list(taps)} must fit into the padded input, got {input.desc}")
    moved = offset_groups * prod(taps)
    check_shape([batches, moved * 2, *sizes], offset=offset)
    check_shape([batches, moved, *sizes], mask=mask)
    return Desc(input.data_type, (batches, channels * prod(taps), *sizes))


@deform_columns.expression
def _(
    input: Traced,
    offset: Traced,
    mask: Traced | None,
    taps: Sequence[int],
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    offset_groups: int,
) -> Traced:
    (batches, channels, height, width), count = input.shape, prod(taps)
    per_group = channels // offset_groups

    def element(n: Traced, column: Traced, y: Traced, x: Traced) -> Traced:
        channel, tap = column // count, column % count
        moved = channel // per_group * count + tap
        rows = cast(y * strides[0] + tap // taps[1] * dilations[0] - padding[0], "float32")
        columns = cast(x * strides[1] + tap % taps[1] * dilations[1] - padding[2], "float32")
        down = rows + cast(offset.clamped[n, moved * 2, y, x], "float32")
        right = columns + cast(offset.clamped[n, moved * 2 + 1, y, x], "float32")
        # False for NaN.
        is_inside = logical_and(logical_and(down > -1, down < height), logical_and(right > -1, right < width))
        # Outside, any position will do: the result is 0.
        down, right = where(is_inside, down, 0), where(is_inside, right, 0)
        top, left = floor(down), floor(right)
        i, j = cast(top, "int32"), cast(left, "int32")
        below, after = down - top, right - left

        def pixel(row: Traced, column: Traced) -> Traced:
            return cast(input.padded(0)[n, channel, row, column], "float32")

        above = pixel(i, j) * (1 - after) + pixel(i, j + 1) * after
        under = pixel(i + 1, j) * (1 - after) + pixel(i + 1, j + 1) * after
        value = where(is_inside, above * (1 - below) + under * below, 0)
        if mask is not None:
            value = value * cast(mask.clamped[n, moved, y, x], "float32")
        return cast(value, storage(input.data_type))

    return compute((batches, channels * count, *offset.shape[2:]), element)


@declare(input=Limits(FLOATS, ranks=(3, 3)))
def col2im(
    self: Builder,
    input: Operand,
    image_sizes: Sequence[int],
    window_dimensions: Sequence[int],
    *,
    padding: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    label: str = "",
) -> Desc:
    """Add up blocks that overlap in an image: the inverse of the rearrangement of windows as columns.

    Args:
        input: float32 or float16 [batches, channels * taps, windows]; its second axis counts by channel and then by tap.
        image_sizes: the sizes of the image, one for each spatial axis, up to three.
        window_dimensions: the sizes of a block; their product is the number of taps.
        padding: elements around the image that are dropped: [before, after, before, after, …]. Default: none.
        strides: distances of blocks along each axis, at least 1. Default: 1.
        dilations: distances of the elements of a block, at least 1. Default: 1.

    Returns: An operand of the data type of `input` [batches, channels, *image_sizes].
    Raises: options out of range, or an input of another number of taps or windows.

    ONNX's Col2Im, PyTorch's `fold`.

    >>> col2im(np.float32([[[1, 2], [3, 4]]]), [3], [2]).tolist()
    [[[1.0, 5.0, 4.0]]]
    """
    axes = len(image_sizes)
    require(1 <= axes <= 3, f"image_sizes must have 1 to 3 values, got {list(image_sizes)}")
    check_positive(axes, image_sizes=image_sizes, window_dimensions=window_dimensions)
    counts = _block_counts(image_sizes, window_dimensions, padding, strides, dilations)
    batches, columns, windows = input.shape
    taps = prod(window_dimensions)
    require(
        columns % taps == 0, f"axis 1 of the input must be a multiple of the {taps} taps of a block, got {input.desc}"
    )
    require(
        windows == prod(counts),
        f"the last axis of the input must be {prod(counts)}, the number of blocks, got {input.desc}",
    )
    return Desc(input.data_type, (batches, columns // taps, *image_sizes))


@col2im.default("padding")
def _(image_sizes: Sequence[int]) -> tuple[int, ...]:
    return (0,) * (2 * len(image_sizes))


@col2im.default("strides")
def _(image_sizes: Sequence[int]) -> tuple[int, ...]:
    return (1,) * len(image_sizes)


@col2im.default("dilations")
def _(image_sizes: Sequence[int]) -> tuple[int, ...]:
    return (1,) * len(image_sizes)


def _block_counts(
    image_sizes: Sequence[int],
    window_dimensions: Sequence[int],
    padding: Sequence[int] | None,
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
) -> list[int]:
    """Check the options of `col2im`, and return the number of blocks along each axis. The defaults are filled in."""
    assert padding is not None
    assert strides is not None
    assert dilations is not None
    check_window(padding, strides, dilations, len(image_sizes))
    windows = zip(image_sizes, window_dimensions, padding[::2], padding[1::2], strides, dilations, strict=True)
    counts = [conv_size(*window) for window in windows]
    fits = all(count > 0 for count in counts)
    require(
        fits,
        f"a block of {list(window_dimensions)} must fit into the padded image of {list(image_sizes)}, dilations "
        f"{list(dilations)}",
    )
    return counts


@col2im.expression
def _(
    input: Traced,
    image_sizes: Sequence[int],
    window_dimensions: Sequence[int],
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> Traced:
    counts = _block_counts(image_sizes, window_dimensions, padding, strides, dilations)
    taps, data_type = prod(window_dimensions), storage(input.data_type)

    def element(n: Traced, channel: Traced, *position: Traced) -> Traced:
        def term(*tap: Traced) -> Traced:
            """The element of a block at this position, if a block begins so far before it."""
            row, column, exists = channel, None, []
            for axis, (at, step) in enumerate(zip(position, tap, strict=True)):
                row = row * window_dimensions[axis] + step
                before = at + padding[2 * axis] - step * dilations[axis]
                block = before // strides[axis]
                exists += [before % strides[axis] == 0, block >= 0, block < counts[axis]]
                block = clamp(block, 0, counts[axis] - 1)
                column = block if column is None else column * counts[axis] + block
            value = cast(input.clamped[n, row, column], "float32")
            return where(reduce(logical_and, exists), value, 0)

        return cast(sum_over(window_dimensions, term), data_type)

    return compute((input.shape[0], input.shape[1] // taps, *image_sizes), element)


@col2im.decompose
def _(
    b: Operations,
    input: Operand,
    image_sizes: Sequence[int],
    window_dimensions: Sequence[int],
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> Operand:
    """Convolve with a filter for each tap that copies it there."""
    counts = _block_counts(image_sizes, window_dimensions, padding, strides, dilations)
    (batches, columns, _), taps = input.shape, prod(window_dimensions)
    copies = np.tile(np.eye(taps, dtype=np.float32), (columns // taps, 1))
    filter = constant(b, copies.reshape(columns, 1, *window_dimensions), input.data_type)
    x = b.reshape(input, [batches, columns, *counts])
    options = {"padding": padding, "strides": strides, "dilations": dilations, "output_sizes": image_sizes}
    result: Operand = conv_transpose(x, filter, groups=columns // taps, **options)
    return result
