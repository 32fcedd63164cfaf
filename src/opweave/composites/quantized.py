"""Operations on quantised tensors: products, sums and functions of 8-bit integers with scales and zero points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ..core.dtypes import INFO
from ..core.graph import Builder, Desc, Operand, check_shape
from ..core.operation import Limits, N
from ..core.shapes import broadcast, broadcasts_to, reduced_shape
from ..core.size_possibilities import may_equal
from ..core.sizes import is_static
from ..ops.constants import constant
from ..support.errors import require
from .declare import declare
from .integers import (
    BYTES,
    check_per_channel,
    check_single,
    integer_conv2d,
    integer_matmul,
    per_channel,
)

if TYPE_CHECKING:
    from ..ops import Operations

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
    check_single(input_scale=input_scale, scale=scale, zero_point=zero_point)
    check_per_channel(filter.shape[0], filter_scale=filter_scale)
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


@declare(
    a=Limits(BYTES, ranks=(2, N)),
    a_scale=_SCALE,
    b=Limits(BYTES, ranks=(2, N)),
    b_scale=_SCALE,
    a_zero_point=Limits("a"),
    b_zero_point=Limits("b"),
    bias=Limits(("float32",), ranks=(1, 1)),
    output=Limits(("float32",), ranks=(2, N)),
)
def dequantized_matmul(
    self: Builder,
    a: Operand,
    a_scale: Operand,
    b: Operand,
    b_scale: Operand,
    a_zero_point: Operand | None = None,
    b_zero_point: Operand | None = None,
    bias: Operand | None = None,
    *,
    label: str = "",
) -> Desc:
    """Multiply quantised matrices, or stacks of them, to floats; the sums are exact integers.

    Args:
        a: int8 or uint8 [..., rows, inner].
        a_scale: float32, one element, multiplied with `a - a_zero_point`.
        b: int8 or uint8 [..., inner, columns]; the leading dimensions of both broadcast to each other.
        b_scale: float32, multiplied with `b - b_zero_point`: one element, or a vector with one for each column.
        a_zero_point: the data type of `a`, in a shape that broadcasts to it. Default: 0.
        b_zero_point: the data type of `b`, in a shape that broadcasts to it. Default: 0.
        bias: float32, added to the product [columns].

    Returns: `sums * (a_scale * b_scale) + bias`, a float32 operand [..., rows, columns].
    Raises: shapes that do not fit.

    ONNX Runtime's MatMulIntegerToFloat.

    >>> a, b, half = np.uint8([[4, 8]]), np.int8([[2], [-3]]), np.float32(0.5)
    >>> dequantized_matmul(a, half, b, half).tolist()
    [[-4.0]]
    """
    product: Desc = integer_matmul.function(self, a, b, a_zero_point, b_zero_point)
    check_single(a_scale=a_scale)
    check_per_channel(b.shape[-1], b_scale=b_scale)
    check_shape([b.shape[-1]], "the number of columns", bias=bias)
    return Desc("float32", product.shape)


@dequantized_matmul.decompose
def _(
    builder: Operations,
    a: Operand,
    a_scale: Operand,
    b: Operand,
    b_scale: Operand,
    a_zero_point: Operand | None,
    b_zero_point: Operand | None,
    bias: Operand | None,
) -> Operand:
    total = integer_matmul(builder, a, b, a_zero_point, b_zero_point)
    one = builder.reshape(a_scale, [])
    y = builder.cast(total, "float32") * (one * per_channel(builder, b_scale, total.rank - 1, total.rank))
    return y if bias is None else y + bias


# Element-wise --------------------------------------------------------------------------------------------------------

_TWO = {
    "a": Limits(BYTES),
    "a_scale": _SCALE,
    "a_zero_point": Limits("a"),
    "b": Limits("a"),
    "b_scale": _SCALE,
    "b_zero_point": Limits("a"),
    "scale": _SCALE,
    "zero_point": Limits("a"),
    "output": Limits("a"),
}
_ARGUMENTS_OF_TWO = {
    "a": "int8 or uint8, of any shape.",
    "a_scale": "float32, one element, multiplied with `a - a_zero_point`.",
    "a_zero_point": "the data type of `a`, one element.",
    "b": "the data type of `a`, in a shape that broadcasts with it.",
    "b_scale": "float32, one element, multiplied with `b - b_zero_point`.",
    "b_zero_point": "the data type of `a`, one element.",
    "scale": "float32, one element, of the result.",
    "zero_point": "the data type of `a`, one element, added before rounding.",
}
"""Descriptions of the operands of operations on two quantised tensors."""

_ONE = {
    "input": Limits(BYTES),
    "input_scale": _SCALE,
    "input_zero_point": Limits("input"),
    "scale": _SCALE,
    "zero_point": Limits("input"),
    "output": Limits("input", ranks="input"),
}


def _saturate(b: Operations, steps: Operand, like: Operand) -> Operand:
    """Round to even, and saturate to the data type of `like`."""
    info = INFO[like.data_type]
    rounded = b.clamp(b.round_even(steps), min_value=info.lowest, max_value=info.highest)
    return b.cast(rounded, like.data_type)


def _scalar(b: Operations, value: Operand) -> Operand:
    """A single element as a float32 scalar."""
    if value.is_constant:
        return constant(b, value.value.reshape(()), "float32")
    return b.reshape(b.cast(value, "float32"), [])


@declare(_ARGUMENTS_OF_TWO, **_TWO)
def quantized_add(
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
    """Add quantised tensors, and quantise the sum.

    Returns: `round(a_scale / scale * (a - a_zero_point) + b_scale / scale * (b - b_zero_point) + zero_point)`, saturated, of
        the data type of `a`. Ties are rounded to even.
    Raises: shapes that do not broadcast, or several scales or zero points.

    ONNX Runtime's QLinearAdd.

    >>> one, zero = np.float32(1), np.uint8(0)
    >>> quantized_add(np.uint8([1, 200]), one, zero, np.uint8([2, 100]), one, zero, one, zero).tolist()
    [3, 255]
    """
    check_single(a_scale=a_scale, a_zero_point=a_zero_point, b_scale=b_scale, b_zero_point=b_zero_point)
    check_single(scale=scale, zero_point=zero_point)
    return Desc(a.data_type, broadcast(a.shape, b.shape, names="a and b"))


@quantized_add.decompose
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
    # As ONNX Runtime's kernel: the terms of the zero points are added first.
    result = _scalar(builder, scale)
    of_a, of_b = _scalar(builder, a_scale) / result, _scalar(builder, b_scale) / result
    za, zb, zero = (_scalar(builder, point) for point in (a_zero_point, b_zero_point, zero_point))
    fixed = zero - (of_a * za + of_b * zb)
    steps = fixed + builder.cast(a, "float32") * of_a + builder.cast(b, "float32") * of_b
    return _saturate(builder, steps, a)


@declare(_ARGUMENTS_OF_TWO, **_TWO)
def quantized_mul(
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
    """Multiply quantised tensors element by element, and quantise the product.

    Returns: `round((a - a_zero_point) * (b - b_zero_point) * (a_scale * b_scale / scale) + zero_point)`, saturated, of the
        data type of `a`. Ties are rounded to even.
    Raises: shapes that do not broadcast, or several scales or zero points.

    ONNX Runtime's QLinearMul.

    >>> one, zero = np.float32(1), np.int8(0)
    >>> quantized_mul(np.int8([3, -20]), one, zero, np.int8([2, 10]), one, zero, one, zero).tolist()
    [6, -128]
    """
    check_single(a_scale=a_scale, a_zero_point=a_zero_point, b_scale=b_scale, b_zero_point=b_zero_point)
    check_single(scale=scale, zero_point=zero_point)
    return Desc(a.data_type, broadcast(a.shape, b.shape, names="a and b"))


@quantized_mul.decompose
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
    za, zb, zero = (_scalar(builder, point) for point in (a_zero_point, b_zero_point, zero_point))
    product = (builder.cast(a, "float32") - za) * (builder.cast(b, "float32") - zb)
    factor = _scalar(builder, a_scale) * _scalar(builder, b_scale) / _scalar(builder, scale)
    return _saturate(builder, product * factor + zero, a)


def through_floats(
    b: Operations,
    input: Operand,
    input_scale: Operand,
    input_zero_point: Operand,
    scale: Operand,
    zero_point: Operand,
    function: Callable[[Operand], Operand],
) -> Operand:
    """Dequantise, apply a function, and quantise."""
    real = (b.cast(input, "float32") - _scalar(b, input_zero_point)) * _scalar(b, input_scale)
    steps = b.round_even(function(real) / _scalar(b, scale)) + _scalar(b, zero_point)
    return _saturate(b, steps, input)


@declare(**_ONE)
def quantized_sigmoid(
    self: Builder,
    input: Operand,
    input_scale: Operand,
    input_zero_point: Operand,
    scale: Operand,
    zero_point: Operand,
    *,
    label: str = "",
) -> Desc:
    """Compute the sigmoid of a quantised tensor, and quantise it.

    Args:
        input: int8 or uint8, of any shape.
        input_scale: float32, one element, multiplied with `input - input_zero_point`.
        input_zero_point: the data type of `input`, one element.
        scale: float32, one element, of the result.
        zero_point: the data type of `input`, one element, added to the result.

    Returns: `round(sigmoid(real) / scale) + zero_point` of the dequantised `input`, saturated, of the data type and shape of
        `input`. Ties are rounded to even.
    Raises: several scales or zero points.

    ONNX Runtime's QLinearSigmoid.

    >>> zero = np.uint8(0)
    >>> quantized_sigmoid(np.uint8([0, 255]), np.float32(0.1), zero, np.float32(1 / 256), zero).tolist()
    [128, 255]
    """
    check_single(input_scale=input_scale, input_zero_point=input_zero_point, scale=scale, zero_point=zero_point)
    return input.desc


@quantized_sigmoid.decompose
def _(
    b: Operations, input: Operand, input_scale: Operand, input_zero_point: Operand, scale: Operand, zero_point: Operand
) -> Operand:
    return through_floats(b, input, input_scale, input_zero_point, scale, zero_point, b.sigmoid)


@declare(**_ONE)
def quantized_leaky_relu(
    self: Builder,
    input: Operand,
    input_scale: Operand,
    input_zero_point: Operand,
    scale: Operand,
    zero_point: Operand,
    *,
    alpha: float = 0.01,
    label: str = "",
) -> Desc:
    """Multiply the negative elements of a quantised tensor by a number, and quantise the result.

    Args:
        input: int8 or uint8, of any shape.
        input_scale: float32, one element, multiplied with `input - input_zero_point`.
        input_zero_point: the data type of `input`, one element.
        scale: float32, one element, of the result.
        zero_point: the data type of `input`, one element, added to the result.
        alpha: the factor of negative elements.

    Returns: `round(leaky_relu(real) / scale) + zero_point` of the dequantised `input`, saturated, of the data type and shape
        of `input`. Ties are rounded to even.
    Raises: several scales or zero points.

    ONNX Runtime's QLinearLeakyRelu.

    >>> one, zero = np.float32(1), np.int8(0)
    >>> quantized_leaky_relu(np.int8([-8, 8]), one, zero, one, zero, alpha=0.5).tolist()
    [-4, 8]
    """
    check_single(input_scale=input_scale, input_zero_point=input_zero_point, scale=scale, zero_point=zero_point)
    return input.desc


@quantized_leaky_relu.decompose
def _(
    b: Operations,
    input: Operand,
    input_scale: Operand,
    input_zero_point: Operand,
    scale: Operand,
    zero_point: Operand,
    alpha: float,
) -> Operand:
    def activate(x: Operand) -> Operand:
        return b.leaky_relu(x, alpha=alpha)

    return through_floats(b, input, input_scale, input_zero_point, scale, zero_point, activate)


@declare(**_ONE)
def quantized_mean(
    self: Builder,
    input: Operand,
    input_scale: Operand,
    input_zero_point: Operand,
    scale: Operand,
    zero_point: Operand,
    axes: Sequence[int],
    *,
    keep_dimensions: bool = False,
    label: str = "",
) -> Desc:
    """Average a quantised tensor along axes, and quantise the result; the sums are exact integers.

    Args:
        input: int8 or uint8, of any shape.
        input_scale: float32, one element, multiplied with `input - input_zero_point`.
        input_zero_point: the data type of `input`, one element.
        scale: float32, one element, of the result.
        zero_point: the data type of `input`, one element, added to the result.
        axes: the dimensions to average along, each in [0, rank) and named once.
        keep_dimensions: whether these dimensions stay, with size 1.

    Returns: `round(sum * input_scale / (scale * count)) + zero_point`, saturated, of the data type of `input`, where `sum` is
        that of `input - input_zero_point`, an int32, and `count` the number of its terms. Ties are rounded to even.
    Raises: an axis does not exist, or is named twice; several scales or zero points.

    ONNX Runtime's QLinearGlobalAveragePool and QLinearReduceMean.

    >>> one, zero = np.float32(1), np.uint8(0)
    >>> quantized_mean(np.uint8([[1, 3], [200, 255]]), one, zero, one, zero, [1]).tolist()
    [2, 228]
    """
    check_single(input_scale=input_scale, input_zero_point=input_zero_point, scale=scale, zero_point=zero_point)
    return Desc(input.data_type, reduced_shape(input.shape, axes, keep_dimensions))


@quantized_mean.decompose
def _(
    b: Operations,
    input: Operand,
    input_scale: Operand,
    input_zero_point: Operand,
    scale: Operand,
    zero_point: Operand,
    axes: Sequence[int],
    keep_dimensions: bool,
) -> Operand:
    count = prod(input.shape[axis] for axis in axes)
    zero = b.reshape(input_zero_point, ())
    if axes and list(axes) == list(range(axes[0], input.rank)):
        # A product with ones, for which engines have kernels of 8 bits, which sums of int32 have not.
        rows = b.reshape(input, [prod(input.shape[: axes[0]]), count])
        one = np.ones((count, 1)) if is_static((count,)) else 1
        ones = b.expand(constant(b, one, input.data_type), [count, 1])
        total = integer_matmul(b, rows, ones, zero)
        total = b.reshape(total, reduced_shape(input.shape, axes, keep_dimensions))
    else:
        difference = b.cast(input, "int32") - b.cast(zero, "int32")
        total = b.reduce_sum(difference, axes=axes, keep_dimensions=keep_dimensions)
    factor = b.reshape(input_scale, ()) / (b.reshape(scale, ()) * constant(b, count, "float32"))
    return requantize(b, total, factor, b.reshape(zero_point, ()))
