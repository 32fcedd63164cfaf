"""Products and convolutions of 8-bit integers, exact on every device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..core.dtypes import DataType
from ..core.graph import Builder, Desc, Operand
from ..core.operation import Limits, N
from ..core.shapes import broadcast, broadcasts_to
from ..core.size_possibilities import may_equal
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
    difference = _constant_difference(b, b_zero_point)
    most = None if difference is None else np.abs(difference).max(axis=(*range(b.rank - 2), b.rank - 1), initial=0)
    total = None
    for start, end in _exact_parts(x.shape[-1], most, 1):
        columns = builder.slice(x, [*[0] * (x.rank - 1), start], [*x.shape[:-1], end - start])
        rows = builder.slice(y, [*[0] * (y.rank - 2), start, 0], [*y.shape[:-2], end - start, y.shape[-1]])
        part = builder.cast(builder.matmul(columns, rows), "int32")
        total = part if total is None else total + part
    if total is None:  # no terms, in a dimension of 0
        total = builder.cast(builder.matmul(x, y), "int32")
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
        check_single(input_zero_point=input_zero_point)
    if filter_zero_point is not None:
        check_per_channel(filter.shape[0], filter_zero_point=filter_zero_point)
    return Desc("int32", image.shape)


def check_single(**operands: Operand) -> None:
    for name, operand in operands.items():
        is_single = all(may_equal(size, 1) for size in operand.shape)
        require(is_single, f"{name} must have one element, got {operand.desc}")


def check_per_channel(channels: int, **operands: Operand) -> None:
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
    if total is None:  # no terms, in a dimension of 0
        y = b.conv2d(x, w, padding=padding, strides=strides, dilations=dilations, groups=groups)
        return b.cast(y, "int32")
    return total
