"""Convolutions and resampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from ..core.dtypes import FLOATS, cast_number, is_float
from ..core.graph import Builder, Desc, Operand, check_shape
from ..core.operation import Limits, op
from ..core.shapes import (
    check_window,
    conv_size,
    conv_transpose_size,
    nearest_positions,
    sample_positions,
    window_extent,
)
from ..support.errors import ValidationError, require
from .constants import constant

if TYPE_CHECKING:
    from .operations import Operations

InputOperandLayout = Literal["nchw", "nhwc"]
Conv2dFilterOperandLayout = Literal["oihw", "hwio", "ohwi", "ihwo"]
ConvTranspose2dFilterOperandLayout = Literal["iohw", "hwoi", "ohwi"]
InterpolationMode = Literal["nearest-neighbor", "linear"]


@op(input=Limits(FLOATS, ranks=(4, 4)), filter=Limits("input", ranks=(4, 4)), bias=Limits("input", ranks=(1, 1)))
def conv2d(
    self: Builder,
    input: Operand,
    filter: Operand,
    *,
    padding: Sequence[int] = (0, 0, 0, 0),
    strides: Sequence[int] = (1, 1),
    dilations: Sequence[int] = (1, 1),
    groups: int = 1,
    input_layout: InputOperandLayout = "nchw",
    filter_layout: Conv2dFilterOperandLayout = "oihw",
    bias: Operand | None = None,
    label: str = "",
) -> Desc:
    """Convolve a batch of images with a bank of filters.

    Args:
        input: float32 or float16 [batches, input channels, height, width], in the order of `input_layout`.
        filter: [output channels, input channels / groups, height, width], in the order of `filter_layout`.
        padding: rows and columns of zeros around the input: [top, bottom, left, right].
        groups: number of groups of input and output channels that are convolved separately; a depthwise convolution has
            one group per channel.
        filter_layout: "oihw", "hwio", "ohwi" or "ihwo".
        bias: [output channels], added to the result.

    Returns: An operand of the data type of `input`, [batches, output channels, height, width] in `input_layout`, where a
        size is floor((size + paddings - (filter size - 1) * dilation - 1) / stride) + 1.
    Raises: options out of range, channels that do not fit, or a filter larger than the padded input.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-conv2d

    >>> image = np.float32([[1, 2, 3], [4, 5, 6], [7, 8, 9]]).reshape(1, 1, 3, 3)
    >>> sums = np.ones([1, 1, 2, 2], "float32")
    >>> ow.ops.conv2d(image, sums).tolist()
    [[[[12.0, 16.0], [24.0, 28.0]]]]
    >>> ow.ops.conv2d(image, sums, padding=[1, 1, 1, 1], strides=[2, 2]).shape
    (1, 1, 2, 2)
    """
    check_window(padding, strides, dilations)
    image = dict(zip(input_layout, input.shape, strict=True))
    taps = dict(zip(filter_layout, filter.shape, strict=True))
    require(groups > 0, f"groups must be greater than 0, got {groups}")
    if image["c"] != taps["i"] * groups:
        per_group = f" for each of {groups} groups, {taps['i'] * groups} in all" if groups > 1 else ""
        one = " (groups=1)" if groups == 1 else ""
        raise ValidationError(f"the filter has {taps['i']} input channels{per_group}, the input {image['c']}{one}")
    require(taps["o"] % groups == 0, f"groups must divide the {taps['o']} output channels, got {groups}")
    require(
        all(taps[a] > 0 for a in "hw"), f"the filter must have a height and a width of at least 1, got {filter.desc}"
    )
    result = {"n": image["n"], "c": taps["o"]}
    check_shape([result["c"]], bias=bias)
    for a, *window in zip("hw", padding[::2], padding[1::2], strides, dilations, strict=True):
        result[a] = conv_size(image[a], taps[a], *window)
        if result[a] <= 0:
            raise ValidationError(f"the filter must fit into the padded input, got {filter.desc} and {input.desc}")
    return Desc(input.data_type, tuple(result[a] for a in input_layout))


@op(input=Limits(FLOATS, ranks=(4, 4)), filter=Limits("input", ranks=(4, 4)), bias=Limits("input", ranks=(1, 1)))
def conv_transpose2d(
    self: Builder,
    input: Operand,
    filter: Operand,
    *,
    padding: Sequence[int] = (0, 0, 0, 0),
    strides: Sequence[int] = (1, 1),
    dilations: Sequence[int] = (1, 1),
    output_padding: Sequence[int] = (0, 0),
    output_sizes: Sequence[int] | None = None,
    groups: int = 1,
    input_layout: InputOperandLayout = "nchw",
    filter_layout: ConvTranspose2dFilterOperandLayout = "iohw",
    bias: Operand | None = None,
    label: str = "",
) -> Desc:
    """Transposed convolution of a batch of images, the gradient of `conv2d` with respect to its input.

    Args:
        input: float32 or float16 [batches, input channels, height, width], in the order of `input_layout`.
        filter: [input channels, output channels / groups, height, width], in the order of `filter_layout`.
        padding: rows and columns removed from the result: [top, bottom, left, right].
        strides: stride in the result along [height, width], each at least 1.
        output_padding: rows and columns added at the end of the result, [height, width], each less than the stride.
        output_sizes: [height, width] of the result; overrides `output_padding`.
        groups: number of groups of input and output channels that are convolved separately; divides the input channels.
        filter_layout: "iohw", "hwoi" or "ohwi".
        bias: [output channels], added to the result.

    Returns: An operand of the data type of `input`, [batches, output channels, height, width] in `input_layout`, where a
        size is (size - 1) * stride + (filter size - 1) * dilation + 1 - paddings + output padding, unless
        `output_sizes` is given.
    Raises: options out of range, channels that do not fit, or sizes of the result that strides cannot
        reach.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-convtranspose2d

    >>> image = np.float32([[1, 2], [3, 4]]).reshape(1, 1, 2, 2)
    >>> ow.ops.conv_transpose2d(image, np.ones([1, 1, 1, 2], "float32"), strides=[1, 2]).tolist()
    [[[[1.0, 1.0, 2.0, 2.0], [3.0, 3.0, 4.0, 4.0]]]]
    """
    check_window(padding, strides, dilations)
    require(len(output_padding) == 2, f"output_padding must have 2 values, got {list(output_padding)}")
    assert output_sizes is not None  # its default is declared below
    require(len(output_sizes) == 2, f"output_sizes must have 2 values, got {list(output_sizes)}")
    require(groups > 0, f"groups must be greater than 0, got {groups}")
    image = dict(zip(input_layout, input.shape, strict=True))
    taps = dict(zip(filter_layout, filter.shape, strict=True))
    require(
        image["c"] == taps["i"],
        f"the filter must have as many input channels as the input, {image['c']}, got {taps['i']}",
    )
    # The specification lacks this check, without which a group may have a fraction of a channel.
    require(image["c"] % groups == 0, f"groups must divide the {image['c']} input channels, got {groups}")
    for name, operand, sizes in (("filter", filter, taps), ("input", input, image)):
        require(
            all(sizes[a] > 0 for a in "hw"),
            f"the {name} must have a height and a width of at least 1, got {operand.desc}",
        )
    result = {"n": image["n"], "c": taps["o"] * groups, "h": output_sizes[0], "w": output_sizes[1]}
    check_shape([result["c"]], bias=bias)
    for a, *window in zip("hw", padding[::2], padding[1::2], strides, dilations, strict=True):
        low = conv_transpose_size(image[a], taps[a], *window)
        high = low + strides["hw".index(a)]
        require(low <= result[a] < high, f"output_sizes must be in [{low}, {high}) along {a}, got {list(output_sizes)}")
    return Desc(input.data_type, tuple(result[a] for a in input_layout))


@conv_transpose2d.default("output_sizes")
def _(
    input: Operand,
    filter: Operand,
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    output_padding: Sequence[int],
    input_layout: str,
    filter_layout: str,
) -> tuple[int, ...]:
    check_window(padding, strides, dilations)
    require(len(output_padding) == 2, f"output_padding must have 2 values, got {list(output_padding)}")
    less = all(p < s for p, s in zip(output_padding, strides, strict=True))
    require(less, f"output_padding must be less than strides, {list(strides)}, got {list(output_padding)}")
    sizes = []
    for a, *window, more in zip("hw", padding[::2], padding[1::2], strides, dilations, output_padding, strict=True):
        image, taps = input.shape[input_layout.index(a)], filter.shape[filter_layout.index(a)]
        sizes.append(conv_transpose_size(image, taps, *window) + more)
    return tuple(sizes)


@conv_transpose2d.decompose
def _(
    b: Operations,
    input: Operand,
    filter: Operand,
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    output_sizes: Sequence[int],
    groups: int,
    input_layout: str,
    filter_layout: str,
    bias: Operand | None,
) -> Operand:
    """Insert strides - 1 zeros between the elements of the input, and convolve with the reversed filter."""
    x = b.transpose(input, permutation=[input_layout.index(a) for a in "nchw"])
    w = b.transpose(filter, permutation=[filter_layout.index(a) for a in "iohw"])
    (n, c, *image), (_, o, *taps), (down, right) = x.shape, w.shape, strides
    spread = b.pad(b.reshape(x, [n, c, image[0], 1, image[1], 1]), [0] * 6, [0, 0, 0, down - 1, 0, right - 1])
    sizes = [image[0] * down, image[1] * right]
    extents = [window_extent(size, dilation) for size, dilation in zip(taps, dilations, strict=True)]
    before = [extent - 1 - pad for extent, pad in zip(extents, padding[::2], strict=True)]
    after = [
        output + extent - 1 - size - pad
        for output, extent, size, pad in zip(output_sizes, extents, sizes, before, strict=True)
    ]
    # Negative padding removes the outermost elements.
    starts = [max(-pad, 0) for pad in before]
    lengths = [size - start - max(-pad, 0) for size, start, pad in zip(sizes, starts, after, strict=True)]
    x = b.slice(b.reshape(spread, [n, c, *sizes]), [0, 0, *starts], [n, c, *lengths])
    w = b.transpose(b.reshape(w, [groups, c // groups, o, *taps]), permutation=[0, 2, 1, 3, 4])
    y = b.conv2d(
        x,
        b.reverse(b.reshape(w, [groups * o, c // groups, *taps]), axes=[2, 3]),
        padding=[max(pad, 0) for pair in zip(before, after, strict=True) for pad in pair],
        dilations=dilations,
        groups=groups,
        bias=bias,
    )
    return b.transpose(y, permutation=["nchw".index(a) for a in input_layout])


@op(input=Limits((*FLOATS, "uint8", "int8"), ranks=(4, 4)))
def resample2d(
    self: Builder,
    input: Operand,
    *,
    mode: InterpolationMode = "nearest-neighbor",
    scales: Sequence[float] = (1.0, 1.0),
    sizes: Sequence[int] | None = None,
    axes: Sequence[int] = (2, 3),
    label: str = "",
) -> Desc:
    """Resize two axes by interpolation.

    An element whose coefficient is 0 may be left out or multiplied by 0, so that NaN and infinity may or may not spread to
    results at the positions of their neighbours.

    Args:
        input: float32, float16, uint8 or int8 of rank 4.
        mode: "nearest-neighbor" (the lower element at a tie), or "linear" between four neighbours; integers are rounded
            to nearest, ties to even.
        scales: a factor greater than 0 for each of `axes`, which determines the size only.
        sizes: the new size of each of `axes`; overrides `scales`.
        axes: the two axes, in the order of `scales` or `sizes`.

    Returns: An operand of the data type and shape of `input`, except along `axes`, where a size is `sizes` or floor(size *
        scale).
    Raises: options out of range, an axis named twice, or a size of 0.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-resample2d-method

    >>> image = np.float32([[1, 2], [3, 4]]).reshape(1, 1, 2, 2)
    >>> ow.ops.resample2d(image, scales=[1, 2]).tolist()
    [[[[1.0, 1.0, 2.0, 2.0], [3.0, 3.0, 4.0, 4.0]]]]
    >>> ow.ops.resample2d(image, mode="linear", sizes=[1, 1]).tolist()
    [[[[2.5]]]]
    """
    _check_scales(scales)
    assert sizes is not None  # its default is declared below
    require(
        len(sizes) == 2 and all(size > 0 for size in sizes), f"sizes must be 2 positive integers, got {list(sizes)}"
    )
    _check_pair(axes, input.rank)
    require(all(input.shape[axis] for axis in axes), f"axes {list(axes)} of {input.desc} must have elements to sample")
    new = dict(zip(axes, sizes, strict=True))
    return Desc(input.data_type, tuple(new.get(axis, size) for axis, size in enumerate(input.shape)))


def _check_scales(scales: Sequence[float]) -> None:
    require(len(scales) == 2 and min(scales) > 0, f"scales must be 2 positive numbers, got {list(scales)}")


def _check_pair(axes: Sequence[int], rank: int) -> None:
    distinct = len(axes) == 2 and axes[0] != axes[1] and max(axes) < rank
    require(distinct, f"axes must be 2 different integers in [0, {rank}), got {list(axes)}")


@resample2d.default("sizes")
def _(input: Operand, scales: Sequence[float], axes: Sequence[int]) -> tuple[int, ...]:
    _check_scales(scales)
    _check_pair(axes, input.rank)
    # Scales are float32 in the IDL, and the product is exact: 10 * 0.7 is 6, because the float32 is 0.69999999.
    single = [cast_number(scale, "float32") for scale in scales]
    require(
        all(0 < scale < math.inf for scale in single),
        f"scales must be within the range of float32, got {list(scales)}",
    )
    ratios = [scale.as_integer_ratio() for scale in single]
    sizes = tuple(input.shape[axis] * above // below for axis, (above, below) in zip(axes, ratios, strict=True))
    require(
        all(size >= 1 for size in sizes), f"scales must give sizes of at least 1, got {list(scales)} for {input.desc}"
    )
    return sizes


@resample2d.decompose
def _(b: Operations, input: Operand, mode: str, sizes: Sequence[int], axes: Sequence[int]) -> Operand:
    if mode == "nearest-neighbor":
        sampled = input
        for axis, size in zip(axes, sizes, strict=True):
            nearest = nearest_positions(input.shape[axis], size)
            sampled = b.gather(sampled, constant(b, nearest, "uint32"), axis=axis)
        return sampled
    # Use integer weights and divide at the end, which is exact for integers.
    total, divisor = b.cast(input, "float32"), 1
    for axis, size in zip(axes, sizes, strict=True):
        numerators, denominator = sample_positions(input.shape[axis], size)
        before = [numerator // denominator for numerator in numerators]
        after = [-(-numerator // denominator) for numerator in numerators]
        parts = constant(b, [numerator % denominator for numerator in numerators], "float32")
        weight = b.reshape(parts, [size if a == axis else 1 for a in range(4)])
        low = b.gather(total, constant(b, before, "uint32"), axis=axis)
        high = b.gather(total, constant(b, after, "uint32"), axis=axis)
        total = low * (denominator - weight) + high * weight
        divisor *= denominator
    mean = total / divisor
    return b.cast(mean if is_float(input.data_type) else b.round_even(mean), input.data_type)
