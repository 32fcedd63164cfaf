"""Products and convolutions of 8-bit integers, exact on every device, and quantised forms of both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..core.dtypes import INFO, DataType
from ..core.graph import Builder, Desc, Operand, check_shape
from ..core.operation import Limits, N
from ..core.shapes import broadcast, broadcasts_to
from ..core.sizes import may_equal
from ..ops.constants import constant
from ..ops.convolution import conv2d
from ..support.errors import require
from .declare import column, declare

if TYPE_CHECKING:
    from ..ops import Operations

BYTES: tuple[DataType, ...] = ("int8", "uint8")

EXACT_SUM = 2**24
"""Largest magnitude up to which float32 holds all integers, so that partial sums up to it are exact in any order."""
FARTHEST = 255
"""Largest difference of two bytes."""
EXACT_TERMS = EXACT_SUM // FARTHEST**2
"""Number of products of byte differences whose partial sums are all exact in float32, whatever the bytes are."""


@declare(
    a=Limits(BYTES, ranks=(2, N)),
    b=Limits(BYTES, ranks=(2, N)),
    a_zero_point=Limits("a"),
    b_zero_point=Limits("b"),
    output=Limits(("int32",), ranks=(2, N)),
)
def integer_matmul(
    self: Builder,
    a: Operand,
    b: Operand,
    a_zero_point: Operand | None = None,
    b_zero_point: Operand | None = None,
    *,
    label: str = "",
) -> Desc:
    """Multiply matrices of 8-bit integers, or stacks of them, exactly.

    Args:
        a: int8 or uint8 [..., rows, inner].
        b: int8 or uint8 [..., inner, columns]; the leading dimensions of both broadcast to each other.
        a_zero_point: the data type of `a`, subtracted from it first, in a shape that broadcasts to it. Default: 0.
        b_zero_point: the data type of `b`, subtracted from it first, in a shape that broadcasts to it. Default: 0.

    Returns: An int32 operand [..., rows, columns]; sums beyond int32 wrap around.
    Raises: shapes that do not fit.

    ONNX's MatMulInteger.

    >>> a, b = np.uint8([[1, 255]]), np.int8([[2], [-3]])
    >>> integer_matmul(a, b, np.uint8(0), np.int8(0)).tolist()
    [[-763]]
    """
    fits = may_equal(a.shape[-1], b.shape[-2])
    require(fits, f"the last dimension of a must be the last but one of b, got {a.desc} and {b.desc}")
    _check_broadcasts(a=(a_zero_point, a), b=(b_zero_point, b))
    batches = broadcast(a.shape[:-2], b.shape[:-2], names="the stacks a and b")
    return Desc("int32", (*batches, a.shape[-2], b.shape[-1]))


def _check_broadcasts(**pairs: tuple[Operand | None, Operand]) -> None:
    """Require that zero points broadcast to the operands that they are subtracted from."""
    for name, (zero_point, operand) in pairs.items():
        if zero_point is not None:
            stretched = broadcasts_to(zero_point.shape, operand.shape)
            require(stretched, f"{name}_zero_point must broadcast to {operand.desc}, got {zero_point.desc}")


@integer_matmul.decompose
def _(
    builder: Operations, a: Operand, b: Operand, a_zero_point: Operand | None, b_zero_point: Operand | None
) -> Operand:
    """Sum as many products at a time in float32 as are exact, and add the partial sums as integers."""
    x, y = _difference(builder, a, a_zero_point), _difference(builder, b, b_zero_point)
    known = _constant_difference(b, b_zero_point)
    most = None if known is None else np.abs(known).max(axis=(*range(b.rank - 2), b.rank - 1), initial=0)
    total = None
    for start, end in _exact_parts(x.shape[-1], most, 1):
        columns = builder.slice(x, [*[0] * (x.rank - 1), start], [*x.shape[:-1], end - start])
        rows = builder.slice(y, [*[0] * (y.rank - 2), start, 0], [*y.shape[:-2], end - start, y.shape[-1]])
        part = builder.cast(builder.matmul(columns, rows), "int32")
        total = part if total is None else total + part
    # No dimension is 0.
    assert total is not None
    return total


def _difference(b: Operations, x: Operand, zero_point: Operand | None) -> Operand:
    """`x - zero_point` in float32."""
    wide = b.cast(x, "float32")
    return wide if zero_point is None else wide - b.cast(zero_point, "float32")


def _constant_difference(x: Operand, zero_point: Operand | None) -> np.ndarray | None:
    """`x - zero_point`, if both are constants."""
    if not x.is_constant or (zero_point is not None and not zero_point.is_constant):
        return None
    wide: np.ndarray = x.value.astype(np.int32)
    return wide if zero_point is None else wide - zero_point.value


def _exact_parts(count: int, most: np.ndarray | None, times: int) -> Iterator[tuple[int, int]]:
    """Divide `count` terms into parts whose sums of products by byte differences are exact in float32.

    Each term stands for `times` products. `most` is an upper bound of the sum of the other factors of each term, if known.
    """
    if most is None:
        step = max(EXACT_TERMS // times, 1)
        yield from ((start, min(start + step, count)) for start in range(0, count, step))
        return
    start, total = 0, 0
    for term, factor in enumerate(most.tolist()):
        if total + factor > EXACT_SUM // FARTHEST and term > start:
            yield start, term
            start, total = term, 0
        total += factor
    yield start, count


@declare(
    input=Limits(BYTES, ranks=(4, 4)),
    filter=Limits(BYTES, ranks=(4, 4)),
    input_zero_point=Limits("input"),
    filter_zero_point=Limits("filter"),
    output=Limits(("int32",), ranks=(4, 4)),
)
def integer_conv2d(
    self: Builder,
    input: Operand,
    filter: Operand,
    input_zero_point: Operand | None = None,
    filter_zero_point: Operand | None = None,
    *,
    padding: Sequence[int] = (0, 0, 0, 0),
    strides: Sequence[int] = (1, 1),
    dilations: Sequence[int] = (1, 1),
    groups: int = 1,
    label: str = "",
) -> Desc:
    """Convolve images of 8-bit integers with filters of 8-bit integers, exactly.

    Args:
        input: int8 or uint8 [batches, input channels, height, width].
        filter: int8 or uint8 [output channels, input channels / groups, height, width].
        input_zero_point: the data type of `input`, one element, subtracted from it first. Default: 0.
        filter_zero_point: the data type of `filter`, subtracted from it first: one element, or a vector with one for each
            output channel. Default: 0.
        padding: rows and columns of zeros (that is, of the zero point) around the input: [top, bottom, left, right].
        strides: [height, width] of the steps between windows.
        dilations: [height, width] of the steps between elements of a window.
        groups: number of groups of input and output channels that are convolved separately.

    Returns: An int32 operand [batches, output channels, height, width], of the sizes of `conv2d`; sums beyond int32 wrap
        around.
    Raises: options out of range, channels that do not fit, or a filter larger than the padded input.

    ONNX's ConvInteger.

    >>> image = np.uint8([[1, 2, 3], [4, 5, 6], [7, 8, 9]]).reshape(1, 1, 3, 3)
    >>> integer_conv2d(image, np.ones([1, 1, 2, 2], "int8"), np.uint8(1)).tolist()
    [[[[8, 12], [20, 24]]]]
    """
    window = {"padding": padding, "strides": strides, "dilations": dilations, "groups": groups}
    image: Desc = conv2d.function(self, input, filter, **window)
    if input_zero_point is not None:
        _check_single(input_zero_point=input_zero_point)
    if filter_zero_point is not None:
        _check_per_channel(filter.shape[0], filter_zero_point=filter_zero_point)
    return Desc("int32", image.shape)


def _check_single(**operands: Operand) -> None:
    for name, operand in operands.items():
        is_single = all(may_equal(size, 1) for size in operand.shape)
        require(is_single, f"{name} must have one element, got {operand.desc}")


def _check_per_channel(channels: int, **operands: Operand) -> None:
    for name, operand in operands.items():
        is_single = all(may_equal(size, 1) for size in operand.shape)
        fits = is_single or (operand.rank == 1 and may_equal(operand.shape[0], channels))
        require(fits, f"{name} must have one element, or one for each of {channels} channels, got {operand.desc}")


def per_channel(b: Operations, value: Operand, axis: int, rank: int) -> Operand:
    """Reshape one element, or one for each channel, so that it broadcasts along `axis`."""
    shape = column(axis, value.desc.element_count, rank)
    if tuple(shape) == value.shape:
        return value
    return constant(b, value.value.reshape(shape), value.data_type) if value.is_constant else b.reshape(value, shape)


@integer_conv2d.decompose
def _(
    b: Operations,
    input: Operand,
    filter: Operand,
    input_zero_point: Operand | None,
    filter_zero_point: Operand | None,
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    groups: int,
) -> Operand:
    """Convolve as many channels at a time in float32 as give exact sums, and add the partial sums as integers."""
    input_zero_point = None if input_zero_point is None else per_channel(b, input_zero_point, 0, 4)
    filter_zero_point = None if filter_zero_point is None else per_channel(b, filter_zero_point, 0, 4)
    x, w = _difference(b, input, input_zero_point), _difference(b, filter, filter_zero_point)
    outputs, channels, height, width = filter.shape
    factors = _constant_difference(filter, filter_zero_point)
    most = None if factors is None else np.abs(factors).sum(axis=(2, 3)).max(axis=0, initial=0)
    is_whole = height * width <= EXACT_TERMS if most is None else most.max(initial=0) <= EXACT_SUM // FARTHEST
    taps = [(0, height, 0, width)]
    if not is_whole:  # windows so large that the sums of a single channel are not exact
        rows = max(EXACT_TERMS // width, 1)
        columns = min(width, EXACT_TERMS)
        taps = [
            (top, min(top + rows, height), left, min(left + columns, width))
            for top in range(0, height, rows)
            for left in range(0, width, columns)
        ]
        most = None
        top, bottom, left, right = padding
        x, padding = b.pad(x, [0, 0, top, left], [0, 0, bottom, right]), (0, 0, 0, 0)
    batches, _, tall, wide = x.shape
    sizes = conv2d.function(b, x, w, padding=padding, strides=strides, dilations=dilations, groups=groups).shape[2:]
    total = None
    for top, bottom, left, right in taps:
        for start, end in _exact_parts(channels, most, (bottom - top) * (right - left)):
            part, kernel = x, w
            if end - start < channels:
                split = b.reshape(x, [batches, groups, channels, tall, wide])
                split = b.slice(split, [0, 0, start, 0, 0], [batches, groups, end - start, tall, wide])
                part = b.reshape(split, [batches, groups * (end - start), tall, wide])
            if end - start < channels or not is_whole:
                kernel = b.slice(w, [0, start, top, left], [outputs, end - start, bottom - top, right - left])
            if not is_whole:
                begins = top * dilations[0], left * dilations[1]
                extents = [
                    (size - 1) * stride + (count - 1) * dilation + 1
                    for size, stride, count, dilation in zip(
                        sizes, strides, (bottom - top, right - left), dilations, strict=True
                    )
                ]
                part = b.slice(part, [0, 0, *begins], [*part.shape[:2], *extents])
            y = b.conv2d(part, kernel, padding=padding, strides=strides, dilations=dilations, groups=groups)
            summed = b.cast(y, "int32")
            total = summed if total is None else total + summed
    # No dimension is 0.
    assert total is not None
    return total


# Quantised results ---------------------------------------------------------------------------------------------------

_SCALE = Limits(("float32",))


def requantize(b: Operations, total: Operand, factor: Operand, zero_point: Operand) -> Operand:
    """Scale int32 sums, round them to even, add a zero point, and saturate."""
    info = INFO[zero_point.data_type]
    steps = b.round_even(b.cast(total, "float32") * factor) + b.cast(zero_point, "float32")
    return b.cast(b.clamp(steps, min_value=info.lowest, max_value=info.highest), zero_point.data_type)


def _unless_zero(zero_point: Operand) -> Operand | None:
    return None if zero_point.is_constant and not zero_point.value.any() else zero_point


@declare(
    a=Limits(BYTES, ranks=(2, N)),
    a_scale=_SCALE,
    a_zero_point=Limits("a"),
    b=Limits(BYTES, ranks=(2, N)),
    b_scale=_SCALE,
    b_zero_point=Limits("b"),
    scale=_SCALE,
    zero_point=Limits(BYTES),
    output=Limits("zero_point", ranks=(2, N)),
)
def quantized_matmul(
    self: Builder,
    a: Operand,
    a_scale: Operand,
    a_zero_point: Operand,
    b: Operand,
    b_scale: Operand,
    b_zero_point: Operand,
    scale: Operand,
    zero_point: Operand,
    *,
    label: str = "",
) -> Desc:
    """Multiply quantised matrices, or stacks of them, and quantise the product; the sums are exact integers.

    Args:
        a: int8 or uint8 [..., rows, inner].
        a_scale: float32, multiplied with `a - a_zero_point`: one element, or one for each row [..., rows, 1].
        a_zero_point: the data type of `a`, in a shape that broadcasts to it.
        b: int8 or uint8 [..., inner, columns]; the leading dimensions of both broadcast to each other.
        b_scale: float32, multiplied with `b - b_zero_point`: one element, or one for each column [..., 1, columns].
        b_zero_point: the data type of `b`, in a shape that broadcasts to it.
        scale: float32, of the result; it broadcasts to the result.
        zero_point: int8 or uint8, added to the result; it broadcasts to the result.

    Returns: `round(sums * (a_scale * b_scale / scale)) + zero_point`, saturated, of the data type of `zero_point`
        [..., rows, columns]. Ties are rounded to even.
    Raises: shapes that do not fit.

    ONNX's QLinearMatMul.

    >>> a, b = np.uint8([[4, 8]]), np.int8([[2], [-3]])
    >>> half, zero = np.float32(0.5), np.uint8(0)
    >>> quantized_matmul(a, half, zero, b, half, np.int8(0), np.float32(1), np.int8(5)).tolist()
    [[1]]
    """
    product: Desc = integer_matmul.function(self, a, b, a_zero_point, b_zero_point)
    for name, part, operand, axis in (("a", a_scale, a, -1), ("b", b_scale, b, -2)):
        is_constant_along = part.rank < -axis or may_equal(part.shape[axis], 1)
        fits = broadcasts_to(part.shape, operand.shape) and is_constant_along
        subject = "row" if name == "a" else "column"
        require(
            fits, f"{name}_scale must have one element, or one for each {subject} of {operand.desc}, got {part.desc}"
        )
    for name, part in (("scale", scale), ("zero_point", zero_point)):
        require(
            broadcasts_to(part.shape, product.shape), f"{name} must broadcast to {list(product.shape)}, got {part.desc}"
        )
    return Desc(zero_point.data_type, product.shape)


@quantized_matmul.decompose
def _(
    builder: Operations,
    a: Operand,
    a_scale: Operand,
    a_zero_point: Operand,
    b: Operand,
    b_scale: Operand,
    b_zero_point: Operand,
    scale: Operand,
    zero_point: Operand,
) -> Operand:
    total = integer_matmul(builder, a, b, _unless_zero(a_zero_point), _unless_zero(b_zero_point))
    return requantize(builder, total, a_scale * b_scale / scale, zero_point)


@declare(
    input=Limits(BYTES, ranks=(4, 4)),
    input_scale=_SCALE,
    input_zero_point=Limits("input"),
    filter=Limits(BYTES, ranks=(4, 4)),
    filter_scale=_SCALE,
    filter_zero_point=Limits("filter"),
    scale=_SCALE,
    zero_point=Limits(BYTES),
    bias=Limits(("int32",), ranks=(1, 1)),
    output=Limits("zero_point", ranks=(4, 4)),
)
def quantized_conv2d(
    self: Builder,
    input: Operand,
    input_scale: Operand,
    input_zero_point: Operand,
    filter: Operand,
    filter_scale: Operand,
    filter_zero_point: Operand,
    scale: Operand,
    zero_point: Operand,
    bias: Operand | None = None,
    *,
    padding: Sequence[int] = (0, 0, 0, 0),
    strides: Sequence[int] = (1, 1),
    dilations: Sequence[int] = (1, 1),
    groups: int = 1,
    label: str = "",
) -> Desc:
    """Convolve quantised images with quantised filters, and quantise the result; the sums are exact integers.

    Args:
        input: int8 or uint8 [batches, input channels, height, width].
        input_scale: float32, one element, multiplied with `input - input_zero_point`.
        input_zero_point: the data type of `input`, one element.
        filter: int8 or uint8 [output channels, input channels / groups, height, width].
        filter_scale: float32, multiplied with `filter - filter_zero_point`: one element, or a vector with one for each output
            channel.
        filter_zero_point: the data type of `filter`: one element, or a vector with one for each output channel.
        scale: float32, one element, of the result.
        zero_point: int8 or uint8, one element, added to the result.
        bias: int32, added to the sums [output channels]; its scale is `input_scale * filter_scale`.
        padding: rows and columns of zeros (that is, of the zero point) around the input: [top, bottom, left, right].
        strides: [height, width] of the steps between windows.
        dilations: [height, width] of the steps between elements of a window.
        groups: number of groups of input and output channels that are convolved separately.

    Returns: `round((sums + bias) * (input_scale * filter_scale / scale)) + zero_point`, saturated, of the data type of
        `zero_point` and the sizes of `conv2d`. Ties are rounded to even.
    Raises: options out of range, or shapes that do not fit.

    ONNX's QLinearConv.

    >>> image, one = np.uint8([[1, 2, 3], [4, 5, 6], [7, 8, 9]]).reshape(1, 1, 3, 3), np.float32(1)
    >>> ones, zero = np.ones([1, 1, 2, 2], "int8"), np.uint8(0)
    >>> quantized_conv2d(image, one, zero, ones, one, np.int8(0), np.float32(8), np.uint8(100)).tolist()
    [[[[102, 102], [103, 104]]]]
    """
    window = {"padding": padding, "strides": strides, "dilations": dilations, "groups": groups}
    result: Desc = integer_conv2d.function(self, input, filter, input_zero_point, filter_zero_point, **window)
    _check_single(input_scale=input_scale, scale=scale, zero_point=zero_point)
    _check_per_channel(filter.shape[0], filter_scale=filter_scale)
    check_shape([filter.shape[0]], "the number of output channels", bias=bias)
    return Desc(zero_point.data_type, result.shape)


@quantized_conv2d.decompose
def _(
    b: Operations,
    input: Operand,
    input_scale: Operand,
    input_zero_point: Operand,
    filter: Operand,
    filter_scale: Operand,
    filter_zero_point: Operand,
    scale: Operand,
    zero_point: Operand,
    bias: Operand | None,
    padding: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    groups: int,
) -> Operand:
    window = {"padding": padding, "strides": strides, "dilations": dilations, "groups": groups}
    zeros = _unless_zero(input_zero_point), _unless_zero(filter_zero_point)
    total = integer_conv2d(b, input, filter, *zeros, **window)
    if bias is not None:
        total = total + per_channel(b, bias, 1, 4)
    factor = per_channel(b, input_scale, 1, 4) * per_channel(b, filter_scale, 1, 4) / per_channel(b, scale, 1, 4)
    return requantize(b, total, factor, per_channel(b, zero_point, 1, 4))


@declare(input=Limits(("float32",)), output0=Limits(("uint8",)), output1=_SCALE, output2=Limits(("uint8",)))
def dynamic_quantize_linear(self: Builder, input: Operand, *, label: str = "") -> tuple[Desc, Desc, Desc]:
    """Quantise floats to uint8, with a scale and a zero point that cover their range.

    Args:
        input: float32, of any shape.

    Returns: The quantised elements, uint8 of the shape of `input`; their scale, a float32 scalar,
        `(max(input, 0) - min(input, 0)) / 255`, or 1 if all elements are 0; and their zero point, a uint8 scalar,
        `round(-min(input, 0) / scale)`.

    ONNX's DynamicQuantizeLinear.

    >>> y, scale, zero_point = dynamic_quantize_linear(np.float32([-51, 0, 204]))
    >>> y.tolist(), scale.item(), zero_point.item()
    ([0, 51, 255], 1.0, 51)
    """
    return Desc("uint8", input.shape), Desc("float32", ()), Desc("uint8", ())


@dynamic_quantize_linear.decompose
def _(b: Operations, input: Operand) -> tuple[Operand, Operand, Operand]:
    zero, one = constant(b, 0, "float32"), constant(b, 1, "float32")
    low, high = b.min(b.reduce_min(input), zero), b.max(b.reduce_max(input), zero)
    scale = b.where(b.equal(high, low), one, (high - low) / 255)
    zero_point = b.cast(b.clamp(b.round_even(b.neg(low) / scale), min_value=0, max_value=255), "uint8")
    shape = [1] * input.rank
    y = b.quantize_linear(input, b.reshape(scale, shape), b.reshape(zero_point, shape))
    return y, scale, zero_point
