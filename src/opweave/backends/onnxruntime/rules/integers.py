"""ONNX Runtime rules: products and convolutions of 8-bit integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from ....composites import integers as composites, quantized, requantized
from ....core.graph import Operand
from ....core.sizes import is_static
from .. import kernels
from ..backend import ort
from ..emit import MICROSOFT, Emitter, Value
from .quantization import flip_sign


def _without_saturation(ctx: Emitter, a: Value, a_zero_point: Value | None, b: Value) -> tuple[Value, Value | None]:
    """Convert uint8 `a` and its zero point to int8, if the engine might multiply them by int8 in a saturating kernel.

    The engine itself converts constants with one reader.
    """
    can_saturate = a.data_type == "uint8" and b.data_type == "int8" and ctx.array_of(b) is None and not ctx.portable
    if not can_saturate or not kernels.saturates():
        return a, a_zero_point
    zero_point = ctx.constant(0, "uint8") if a_zero_point is None else a_zero_point
    return flip_sign(ctx, a), flip_sign(ctx, zero_point)


def _single(ctx: Emitter, value: Value | None) -> Value | None:
    return None if value is None else ctx.reshape(value, ())


def _per_column(ctx: Emitter, value: Value | None) -> Value | None:
    """One element, or one for each column, in the shape that kernels take."""
    if value is None:
        return None
    columns = prod(value.dims)
    return ctx.reshape(value, () if columns == 1 else (columns,))


def _count(value: Operand | None) -> int:
    return 1 if value is None else prod(value.shape)


def _is_per_column(b: Operand, a_zero_point: Operand | None, b_zero_point: Operand | None) -> bool:
    """Whether the engine supports the zero points: one for `a`, and one for `b`, or one per column of a single matrix."""
    return _count(a_zero_point) == 1 and (_count(b_zero_point) == 1 or _is_along_columns(b, b_zero_point))


def _is_along_columns(b: Operand, value: Operand | None) -> bool:
    """Whether there is an element for each column of a single matrix."""
    return value is not None and b.rank == 2 and value.rank > 0 and prod(value.shape) == value.shape[-1]


@ort.lower(composites.integer_matmul, when=_is_per_column)
def _(ctx: Emitter, a: Value, b: Value, a_zero_point: Value | None, b_zero_point: Value | None) -> Value:
    a, a_zero_point = _without_saturation(ctx, a, a_zero_point, b)
    if a.data_type == "int8" and b.data_type == "uint8":
        # The engine fuses a product that is scaled to floats, and has no kernel of the result for these types.
        b_zero_point = flip_sign(ctx, ctx.constant(0, "uint8") if b_zero_point is None else b_zero_point)
        b = flip_sign(ctx, b)
    zeros = _single(ctx, a_zero_point), _per_column(ctx, b_zero_point)
    return ctx.emit("MatMulInteger", a, b, *zeros, data_type="int32", shape=ctx.output.shape)


def _window(
    filter: Value, padding: Sequence[int], strides: Sequence[int], dilations: Sequence[int], groups: int
) -> dict[str, Any]:
    """The attributes of a convolution."""
    return {
        "kernel_shape": filter.dims[2:] if is_static(filter.dims[2:]) else None,
        "pads": [padding[i] for i in (0, 2, 1, 3)],
        "strides": strides,
        "dilations": dilations,
        "group": groups,
    }


def _has_convolution(input: Operand, filter: Operand, filter_zero_point: Operand | None) -> bool:
    """Whether the engine's kernel is right: it has one zero point for all filters."""
    return _count(filter_zero_point) == 1


@ort.lower(composites.integer_conv2d, when=_has_convolution)
def _(
    ctx: Emitter,
    input: Value,
    filter: Value,
    input_zero_point: Value | None,
    filter_zero_point: Value | None,
    **window: Any,
) -> Value:
    input, input_zero_point = _without_saturation(ctx, input, input_zero_point, filter)
    zeros = _single(ctx, input_zero_point), _single(ctx, filter_zero_point)
    attributes = _window(filter, **window)
    return ctx.emit("ConvInteger", input, filter, *zeros, data_type="int32", shape=ctx.output.shape, **attributes)


def _has_types(left: Operand, right: Operand, zero_point: Operand) -> bool:
    """Whether the engine has a kernel for the data types: a signed left operand needs a signed right one."""
    return left.data_type == zero_point.data_type and (left.data_type == "uint8" or right.data_type == "int8")


def _is_right(left: Operand, right: Operand) -> bool:
    """Whether no kernel would saturate; the result's type forbids to convert the left operand."""
    is_mixed = left.data_type == "uint8" and right.data_type == "int8"
    return not is_mixed or right.is_constant or not kernels.saturates()


def _has_quantized_matmul(
    a: Operand,
    a_scale: Operand,
    a_zero_point: Operand,
    b: Operand,
    b_scale: Operand,
    b_zero_point: Operand,
    scale: Operand,
    zero_point: Operand,
) -> bool:
    singles = all(_count(value) == 1 for value in (a_scale, a_zero_point, scale, zero_point))
    columns = _count(b_scale)
    # The engine takes as many zero points as scales.
    along = columns == 1 or _is_along_columns(b, b_scale)
    zeros = _count(b_zero_point) == columns or (_count(b_zero_point) == 1 and b_zero_point.is_constant)
    return singles and along and zeros and _has_types(a, b, zero_point) and _is_right(a, b)


def _as_many(ctx: Emitter, zero_point: Value, count: int) -> Value:
    """Repeat a single zero point for each scale."""
    array = ctx.array_of(zero_point)
    if count == 1 or prod(zero_point.dims) == count or array is None:
        return _per_column(ctx, zero_point) or zero_point
    return ctx.add_constant(array.reshape(-1).repeat(count))


@ort.lower(quantized.quantized_matmul, when=_has_quantized_matmul)
def _(
    ctx: Emitter,
    a: Value,
    a_scale: Value,
    a_zero_point: Value,
    b: Value,
    b_scale: Value,
    b_zero_point: Value,
    scale: Value,
    zero_point: Value,
) -> Value:
    zeros = _as_many(ctx, b_zero_point, prod(b_scale.dims))
    return ctx.emit(
        "QLinearMatMul",
        a,
        _single(ctx, a_scale),
        _single(ctx, a_zero_point),
        b,
        _per_column(ctx, b_scale),
        zeros,
        _single(ctx, scale),
        _single(ctx, zero_point),
        data_type=ctx.output.data_type,
        shape=ctx.output.shape,
    )


def _has_quantized_conv2d(
    input: Operand, filter: Operand, filter_scale: Operand, filter_zero_point: Operand, zero_point: Operand
) -> bool:
    """The engine requires equal zero points of all filters, which only constants surely have."""
    is_same = _count(filter_zero_point) == 1 or (
        filter_zero_point.is_constant and bool((filter_zero_point.value == filter_zero_point.value.flat[0]).all())
    )
    return is_same and _has_types(input, filter, zero_point) and _is_right(input, filter)


@ort.lower(quantized.quantized_conv2d, when=_has_quantized_conv2d)
def _(
    ctx: Emitter,
    input: Value,
    input_scale: Value,
    input_zero_point: Value,
    filter: Value,
    filter_scale: Value,
    filter_zero_point: Value,
    scale: Value,
    zero_point: Value,
    bias: Value | None,
    **window: Any,
) -> Value:
    zeros = ctx.array_of(filter_zero_point)
    single = filter_zero_point if zeros is None else ctx.add_constant(zeros.reshape(-1)[:1])
    attributes = _window(filter, **window)
    return ctx.emit(
        "QLinearConv",
        input,
        _single(ctx, input_scale),
        _single(ctx, input_zero_point),
        filter,
        _per_column(ctx, filter_scale),
        _single(ctx, single),
        _single(ctx, scale),
        _single(ctx, zero_point),
        bias,
        data_type=ctx.output.data_type,
        shape=ctx.output.shape,
        **attributes,
    )


@ort.lower(quantized.dynamic_quantize_linear)
def _(ctx: Emitter, input: Value) -> tuple[Value, Value, Value]:
    y, scale, zero_point = ctx.emit("DynamicQuantizeLinear", input, outputs=3)
    return Value(y.name, "uint8", input.dims), Value(scale.name, "float32", ()), Value(zero_point.name, "uint8", ())


def _has_float_product(
    a: Operand, b: Operand, b_scale: Operand, a_zero_point: Operand | None, b_zero_point: Operand | None
) -> bool:
    """Whether the engine has a right kernel for a product that it scales."""
    zeros = _count(b_zero_point) == 1 or _is_along_columns(b, b_zero_point)
    scales = _count(b_scale) == 1 or _is_along_columns(b, b_scale)
    has_types = a.data_type == "uint8" or b.data_type == "int8"
    return has_types and _is_right(a, b) and zeros and scales and _count(a_zero_point) == 1


@ort.lower_contrib(quantized.dequantized_matmul, when=_has_float_product)
def _(
    ctx: Emitter,
    a: Value,
    a_scale: Value,
    b: Value,
    b_scale: Value,
    a_zero_point: Value | None,
    b_zero_point: Value | None,
    bias: Value | None,
) -> Value:
    parts = _single(ctx, a_scale), _per_column(ctx, b_scale), _single(ctx, a_zero_point), _per_column(ctx, b_zero_point)
    return ctx.emit(
        "MatMulIntegerToFloat", a, b, *parts, bias, data_type="float32", shape=ctx.output.shape, domain=MICROSOFT
    )


def _of_two(op_type: str) -> Callable[..., Value]:
    def rule(
        ctx: Emitter,
        a: Value,
        a_scale: Value,
        a_zero_point: Value,
        b: Value,
        b_scale: Value,
        b_zero_point: Value,
        scale: Value,
        zero_point: Value,
    ) -> Value:
        sides = (
            a,
            _single(ctx, a_scale),
            _single(ctx, a_zero_point),
            b,
            _single(ctx, b_scale),
            _single(ctx, b_zero_point),
        )
        result = _single(ctx, scale), _single(ctx, zero_point)
        y: Value = ctx.emit(op_type, *sides, *result, shape=ctx.output.shape, domain=MICROSOFT)
        return y

    return rule


for _op, _name in ((quantized.quantized_add, "QLinearAdd"), (quantized.quantized_mul, "QLinearMul")):
    ort.lower_contrib(_op)(_of_two(_name))


def _has_constant_parts(input_scale: Operand, input_zero_point: Operand, scale: Operand, zero_point: Operand) -> bool:
    """Whether the kernel looks results up, in a table of all bytes that it makes once."""
    return all(part.is_constant for part in (input_scale, input_zero_point, scale, zero_point))


@ort.lower_contrib(quantized.quantized_sigmoid, when=_has_constant_parts)
def _(
    ctx: Emitter, input: Value, input_scale: Value, input_zero_point: Value, scale: Value, zero_point: Value
) -> Value:
    parts = [_single(ctx, part) for part in (input_scale, input_zero_point, scale, zero_point)]
    return ctx.emit("QLinearSigmoid", input, *parts, shape=ctx.output.shape, domain=MICROSOFT)


@ort.lower_contrib(quantized.quantized_leaky_relu, when=_has_constant_parts)
def _(
    ctx: Emitter,
    input: Value,
    input_scale: Value,
    input_zero_point: Value,
    scale: Value,
    zero_point: Value,
    alpha: float,
) -> Value:
    parts = [_single(ctx, part) for part in (input_scale, input_zero_point, scale, zero_point)]
    return ctx.emit("QLinearLeakyRelu", input, *parts, shape=ctx.output.shape, domain=MICROSOFT, alpha=alpha)


@ort.lower_contrib(requantized.quantized_concat)
def _(
    ctx: Emitter,
    inputs: Sequence[Value],
    input_scales: Sequence[Value],
    input_zero_points: Sequence[Value],
    scale: Value,
    zero_point: Value,
    axis: int,
) -> Value:
    parts: list[Value | None] = [_single(ctx, scale), _single(ctx, zero_point)]
    for x, x_scale, x_zero_point in zip(inputs, input_scales, input_zero_points, strict=True):
        parts += [x, _single(ctx, x_scale), _single(ctx, x_zero_point)]
    shape, data_type = ctx.output.shape, ctx.output.data_type
    return ctx.emit("QLinearConcat", *parts, axis=axis, shape=shape, data_type=data_type, domain=MICROSOFT)


_LARGEST_MEAN = 2**23
"""Terms of a mean of bytes, whose sum the engine keeps in an int32."""

_FACTORS = 2.0**-32, 256.0
"""The engine has a kernel for factors of the sums from the first number on, below the second; others fail at run time."""


def _is_pooled(
    input: Operand,
    input_scale: Operand,
    input_zero_point: Operand,
    scale: Operand,
    zero_point: Operand,
    axes: Sequence[int],
) -> bool:
    """Whether there is a kernel: for neighbouring axes, behind which is one axis of channels at most, and for its factors."""
    if (
        not axes
        or not is_static(input.shape)
        or 0 in input.shape
        or not _has_constant_parts(input_scale, input_zero_point, scale, zero_point)
    ):
        return False
    count = prod(input.shape[axis] for axis in axes)
    with np.errstate(all="ignore"):
        factor = float(input_scale.value.reshape(()) / (scale.value.reshape(()) * np.float32(count)))
    is_row = list(axes) == list(range(axes[0], axes[0] + len(axes)))
    return is_row and count < _LARGEST_MEAN and _FACTORS[0] <= factor < _FACTORS[1]


@ort.lower_contrib(quantized.quantized_mean, when=_is_pooled)
def _(
    ctx: Emitter,
    input: Value,
    input_scale: Value,
    input_zero_point: Value,
    scale: Value,
    zero_point: Value,
    axes: Sequence[int],
    keep_dimensions: bool,
) -> Value:
    parts = [_single(ctx, part) for part in (input_scale, input_zero_point, scale, zero_point)]
    first, end = axes[0], axes[0] + len(axes)
    before, count, behind = (prod(sizes) for sizes in (input.dims[:first], input.dims[first:end], input.dims[end:]))
    # Rows of channels that follow each other are the engine's channels_last.
    is_last = end < len(input.dims)
    is_image = first == 1 and end == len(input.dims) - 1 if is_last else first == 2 and len(input.dims) > 2
    if is_image:
        image, pooled = input, tuple(1 if axis in axes else size for axis, size in enumerate(input.dims))
    else:
        image = ctx.reshape(input, (before, count, 1, behind) if is_last else (1, before, count, 1))
        pooled = (before, 1, 1, behind) if is_last else (1, before, 1, 1)
    y = ctx.emit(
        "QLinearGlobalAveragePool",
        *(image, *parts),
        shape=pooled,
        data_type=input.data_type,
        domain=MICROSOFT,
        channels_last=int(is_last),
    )
    return ctx.reshape(y, ctx.output.shape)
