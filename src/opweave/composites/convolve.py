"""Convolutions over one, two or three spatial axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..core.dtypes import FLOATS
from ..core.graph import Builder, Desc, Operand, check_shape
from ..core.operation import Limits
from ..core.shapes import check_window, conv_size, conv_transpose_size, window_extent
from ..support.errors import require
from .declare import declare

if TYPE_CHECKING:
    from ..expr import Traced
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


def _check_filter(input: Operand, filter: Operand, groups: int) -> None:
    require(groups > 0, f"groups must be greater than 0, got {groups}")
    for name, operand in (("filter", filter), ("input", input)):
        require(
            all(size > 0 for size in spatial(operand)),
            f"the {name} must have spatial axes of at least 1, got {operand.desc}",
        )


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
        input: float32 or float16 [batches, input channels, *axes], with up to three axes: width, or height and width, or
            depth, height and width.
        filter: [output channels, input channels / groups, *axes].
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
    _check_filter(input, filter, groups)
    (batches, channels), (outputs, inputs) = input.shape[:2], filter.shape[:2]
    per_group = f" for each of {groups} groups, {inputs * groups} in all" if groups > 1 else ""
    require(channels == inputs * groups, f"the filter has {inputs} input channels{per_group}, the input {channels}")
    require(outputs % groups == 0, f"groups must divide the {outputs} output channels, got {groups}")
    check_shape([outputs], bias=bias)
    windows = zip(spatial(input), spatial(filter), padding[::2], padding[1::2], strides, dilations, strict=True)
    sizes = [conv_size(*window) for window in windows]
    fits = all(size > 0 for size in sizes)
    require(fits, f"the filter must fit into the padded input, got {filter.desc} and {input.desc}")
    return Desc(input.data_type, (batches, outputs, *sizes))


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
    options = {"padding": padding, "strides": strides, "dilations": dilations, "groups": groups, "bias": bias}
    if input.rank == 4:
        return b.conv2d(input, filter, **options)
    if input.rank == 3:
        options |= {"padding": (0, 0, *padding), "strides": (1, *strides), "dilations": (1, *dilations)}
        x, w = (b.reshape(each, [*each.shape[:2], 1, each.shape[2]]) for each in (input, filter))
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
        input: float32 or float16 [batches, input channels, *axes], with up to three axes.
        filter: [input channels, output channels / groups, *axes].
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
    _check_filter(input, filter, groups)
    (batches, channels), (inputs, outputs) = input.shape[:2], filter.shape[:2]
    require(channels == inputs, f"the filter must have {channels} input channels as the input, got {inputs}")
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
    """Convolve the input, with strides - 1 zeros between its elements, with the reversed filter."""
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
    seen = [size - start - max(-pad, 0) for size, start, pad in zip(sizes, starts, ends, strict=True)]
    if seen != sizes:
        x = b.slice(x, [0, 0, *starts], [n, c, *seen])
    w = b.transpose(b.reshape(filter, [groups, c // groups, o, *taps]), permutation=[0, 2, 1, *range(3, 3 + len(taps))])
    w = b.reverse(b.reshape(w, [groups * o, c // groups, *taps]), axes=list(range(2, 2 + len(taps))))
    pads = [max(pad, 0) for pair in zip(begins, ends, strict=True) for pad in pair]
    return convolution(x, w, bias, padding=pads, dilations=dilations, groups=groups)
