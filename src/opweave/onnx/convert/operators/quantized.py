"""Operators on quantised tensors: products of integers, and ONNX Runtime's operators that dequantise and quantise.

Sums of products are exact integers. ONNX Runtime's operators on two tensors (QLinearAdd, QLinearMul) add the zero point before
they round, which ONNX's QuantizeLinear does after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from ....composites.integers import integer_conv2d, integer_matmul
from ....composites.quantized import (
    dequantized_matmul,
    dynamic_quantize_linear,
    quantized_add,
    quantized_conv2d,
    quantized_leaky_relu,
    quantized_matmul,
    quantized_mean,
    quantized_mul,
    quantized_sigmoid,
    requantize,
)
from ....composites.requantized import quantized_concat
from ....context.builder import MLGraphBuilder
from ....core.dtypes import DataType
from ....core.graph import MLOperand
from ....custom import CustomOp
from ...model.registry import (
    MICROSOFT,
    Tensor,
    Unsupported,
    as_type,
    constant_or_same,
    converts,
    data_type_of,
    normalize_axis,
    operand,
    shape_of,
    unsupported_if,
)
from .microsoft import channels_as_before, channels_first
from .normalization import mask_index
from .pooling import average_pool
from .quantization import WHOLE, align
from .recurrent import FORWARD, CellAttributes, lstm
from .windows import PLAIN, WindowAttributes, options, reshape, with_two_axes, without_added_axis


def _or_zero(value: Tensor | None, like: Tensor) -> Tensor:
    """A zero point, 0 if it is absent."""
    return np.zeros((), data_type_of(like)) if value is None else value


def _optional(b: MLGraphBuilder, zero_point: Tensor | None) -> MLOperand | None:
    """A zero point as an operand; None for constant zeros."""
    if zero_point is None:
        return None
    value = constant_or_same(zero_point)
    return None if isinstance(value, np.ndarray) and not value.any() else operand(b, zero_point)


# Products ------------------------------------------------------------------------------------------------------------


def integer_product(
    b: MLGraphBuilder, x: MLOperand, y: MLOperand, x_zero_point: Tensor | None, y_zero_point: Tensor | None
) -> MLOperand:
    """The product of matrices, stacks or vectors of integers, with zero points for each row of `x` or column of `y`."""
    unsupported_if(not x.rank or not y.rank, "a scalar is not a matrix")
    row = b.reshape(x, [1, *x.shape]) if x.rank == 1 else x
    column = b.reshape(y, [*y.shape, 1]) if y.rank == 1 else y
    zeros = [
        None if zero_point is None else align(b, zero_point, whole.shape, axis)
        for whole, zero_point, axis in ((row, x_zero_point, -2), (column, y_zero_point, -1))
    ]
    total: MLOperand = integer_matmul(b, row, column, *(_optional(b, zero) for zero in zeros))
    shape = list(total.shape)
    if x.rank == 1:
        del shape[-2]
    if y.rank == 1:
        del shape[-1]
    return total if len(shape) == total.rank else b.reshape(total, shape)


@converts("MatMulInteger")
def _(
    b: MLGraphBuilder,
    A: MLOperand,
    B: MLOperand,
    a_zero_point: Tensor | None = None,
    b_zero_point: Tensor | None = None,
) -> MLOperand:
    return integer_product(b, A, B, a_zero_point, b_zero_point)


@converts("QLinearMatMul")
def _quantised_product(
    b: MLGraphBuilder,
    a: MLOperand,
    a_scale: Tensor,
    a_zero_point: Tensor,
    other: MLOperand,
    b_scale: Tensor,
    b_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
) -> MLOperand:
    a_scale, b_scale, y_scale = (as_type(b, scale, "float32") for scale in (a_scale, b_scale, y_scale))
    unsupported_if(a.rank < 2 or other.rank < 2, "a factor is a vector")
    sides = [
        [operand(b, align(b, part, whole.shape, axis)) for part in parts]
        for whole, axis, parts in (
            (a, -2, (a_scale, a_zero_point)),
            (other, -1, (b_scale, b_zero_point)),
        )
    ]
    rank = max(a.rank, other.rank)
    results = [operand(b, align(b, part, [1] * rank, -2)) for part in (y_scale, y_zero_point)]
    y: MLOperand = quantized_matmul(b, a, *sides[0], other, *sides[1], *results)
    return y


def _to_floats(
    b: MLGraphBuilder,
    x: MLOperand,
    y: MLOperand,
    scales: Sequence[Tensor],
    zero_points: Sequence[Tensor | None],
    bias: Tensor | None = None,
) -> MLOperand:
    """A product of quantised matrices as floats."""
    unsupported_if(x.rank < 2 or y.rank < 2, "a factor is a vector")
    zeros = [
        None if zero_point is None else align(b, zero_point, whole.shape, axis)
        for whole, zero_point, axis in ((x, zero_points[0], -2), (y, zero_points[1], -1))
    ]
    sides = [operand(b, reshape(b, scale, [-1]) if len(shape_of(scale)) > 1 else scale) for scale in scales]
    added = None if bias is None else operand(b, bias)
    result: MLOperand = dequantized_matmul(b, x, sides[0], y, sides[1], *(_optional(b, zero) for zero in zeros), added)
    return result


@converts("DynamicQuantizeMatMul", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    A: MLOperand,
    B: MLOperand,
    b_scale: Tensor,
    b_zero_point: Tensor | None = None,
    bias: Tensor | None = None,
) -> MLOperand:
    a, a_scale, a_zero_point = dynamic_quantize_linear(b, A)
    return _to_floats(b, a, B, (a_scale, b_scale), (a_zero_point, b_zero_point), bias)


@converts("MatMulIntegerToFloat", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    A: MLOperand,
    B: MLOperand,
    a_scale: Tensor,
    b_scale: Tensor,
    a_zero_point: Tensor | None = None,
    b_zero_point: Tensor | None = None,
    bias: Tensor | None = None,
) -> MLOperand:
    result_type: DataType = "float16" if data_type_of(a_scale) == "float16" else "float32"
    scales = [as_type(b, scale, "float32") for scale in (a_scale, b_scale)]
    wide = None if bias is None else as_type(b, bias, "float32")
    y = _to_floats(b, A, B, scales, (a_zero_point, b_zero_point), wide)
    return operand(b, as_type(b, y, result_type))


@converts("QGemm", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    A: MLOperand,
    a_scale: Tensor,
    a_zero_point: Tensor,
    B: MLOperand,
    b_scale: Tensor,
    b_zero_point: Tensor,
    C: Tensor | None = None,
    y_scale: Tensor | None = None,
    y_zero_point: Tensor | None = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> MLOperand:
    rows = b.transpose(A) if transA else A
    columns = b.transpose(B) if transB else B
    scale = a_scale if alpha == 1 else b.mul(a_scale, np.float32(alpha))
    if C is None and y_scale is None:
        return _to_floats(b, rows, columns, (scale, b_scale), (a_zero_point, b_zero_point))
    if C is None and y_scale is not None:
        result = np.zeros((), A.data_type) if y_zero_point is None else y_zero_point
        left, right = (rows, scale, a_zero_point), (columns, b_scale, b_zero_point)
        y: MLOperand = _quantised_product(b, *left, *right, y_scale, result)
        return y
    total = integer_product(b, rows, columns, a_zero_point, b_zero_point)
    if C is not None:
        total = b.add(total, C)
    factor = b.mul(scale, b_scale)
    if y_scale is None:
        return b.mul(b.cast(total, "float32"), factor)
    zero_point = np.zeros((), A.data_type) if y_zero_point is None else y_zero_point
    return requantize(b, total, b.div(factor, y_scale), operand(b, zero_point))


# Convolutions --------------------------------------------------------------------------------------------------------


def _convolve(
    b: MLGraphBuilder,
    convolve: Callable[..., MLOperand],
    x: Tensor,
    w: Tensor,
    group: int,
    window: WindowAttributes,
) -> MLOperand:
    """Call `convolve(image, filter, ...)` with operands of rank 4, and return the result in the rank of `x`."""
    axes = window.of_filter(x, w)
    image, filter = (operand(b, with_two_axes(b, value)) for value in (x, w))
    return without_added_axis(b, convolve(image, filter, groups=group, **options(axes)), x)


@converts("ConvInteger")
def _(
    b: MLGraphBuilder,
    x: Tensor,
    w: Tensor,
    x_zero_point: Tensor | None = None,
    w_zero_point: Tensor | None = None,
    *,
    group: int = 1,
    window: WindowAttributes = PLAIN,
) -> MLOperand:
    zeros = [_optional(b, zero_point) for zero_point in (x_zero_point, w_zero_point)]

    def convolve(image: MLOperand, filter: MLOperand, **window: Any) -> MLOperand:
        y: MLOperand = integer_conv2d(b, image, filter, *zeros, **window)
        return y

    return _convolve(b, convolve, x, w, group, window)


@converts("QLinearConv")
@converts("QLinearConv", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
    B: Tensor | None = None,
    *,
    channels_last: int = 0,
    group: int = 1,
    window: WindowAttributes = PLAIN,
) -> MLOperand:
    def convolve(image: MLOperand, filter: MLOperand, **window: Any) -> MLOperand:
        y: MLOperand = quantized_conv2d(
            b,
            *(image, operand(b, x_scale), operand(b, x_zero_point)),
            *(filter, operand(b, w_scale), operand(b, w_zero_point)),
            *(operand(b, y_scale), operand(b, y_zero_point), None if B is None else operand(b, B)),
            **window,
        )
        return y

    return channels_as_before(
        b, _convolve(b, convolve, channels_first(b, x, channels_last), w, group, window), channels_last
    )


# Element-wise operators ----------------------------------------------------------------------------------------------


def _of_two(op: CustomOp[Any]) -> Callable[..., MLOperand]:
    """Make the converter of an operator on two tensors."""

    def convert(
        b: MLGraphBuilder,
        A: MLOperand,
        A_scale: Tensor,
        A_zero_point: Tensor | None,
        B: MLOperand,
        B_scale: Tensor,
        B_zero_point: Tensor | None,
        C_scale: Tensor,
        C_zero_point: Tensor | None = None,
    ) -> MLOperand:
        zeros = [operand(b, _or_zero(zero, A)) for zero in (A_zero_point, B_zero_point, C_zero_point)]
        scales = [operand(b, scale) for scale in (A_scale, B_scale, C_scale)]
        y: MLOperand = op(b, A, scales[0], zeros[0], B, scales[1], zeros[1], scales[2], zeros[2])
        return y

    return convert


converts("QLinearAdd", domain=MICROSOFT)(_of_two(quantized_add))
converts("QLinearMul", domain=MICROSOFT)(_of_two(quantized_mul))


def _of_one(
    b: MLGraphBuilder,
    op: CustomOp[Any],
    X: MLOperand,
    X_scale: Tensor,
    X_zero_point: Tensor | None,
    Y_scale: Tensor,
    Y_zero_point: Tensor | None,
    **options: Any,
) -> MLOperand:
    zeros = [operand(b, _or_zero(zero, X)) for zero in (X_zero_point, Y_zero_point)]
    y: MLOperand = op(b, X, operand(b, X_scale), zeros[0], operand(b, Y_scale), zeros[1], **options)
    return y


def _through_floats(
    b: MLGraphBuilder,
    function: Callable[[MLOperand], MLOperand],
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor | None,
) -> MLOperand:
    """Dequantise, apply a function, and quantise."""
    y = function(WHOLE.dequantize(b, x, x_scale, _or_zero(x_zero_point, x)))
    return WHOLE.quantize(b, y, y_scale, _or_zero(y_zero_point, x))


@converts("QLinearSigmoid", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    X: MLOperand,
    X_scale: Tensor,
    X_zero_point: Tensor | None,
    Y_scale: Tensor,
    Y_zero_point: Tensor | None = None,
) -> MLOperand:
    return _of_one(b, quantized_sigmoid, X, X_scale, X_zero_point, Y_scale, Y_zero_point)


@converts("QLinearLeakyRelu", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    X: MLOperand,
    X_scale: Tensor,
    X_zero_point: Tensor | None,
    Y_scale: Tensor,
    Y_zero_point: Tensor | None = None,
    *,
    alpha: float = 0.01,
) -> MLOperand:
    return _of_one(b, quantized_leaky_relu, X, X_scale, X_zero_point, Y_scale, Y_zero_point, alpha=alpha)


@converts("QLinearSoftmax", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    X: Tensor,
    X_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    axis: int = -1,
    opset: int = 13,  # the operator set of the Softmax that was quantised
) -> MLOperand:
    shape = shape_of(X)
    axis = normalize_axis(axis, len(shape))

    def softmax(x: MLOperand) -> MLOperand:
        if opset >= 13:
            return b.softmax(x, axis=axis)
        # Older versions flatten all dimensions from the axis on.
        return b.reshape(b.softmax(b.reshape(x, [prod(shape[:axis]), prod(shape[axis:])]), axis=1), shape)

    return _through_floats(b, softmax, X, X_scale, x_zero_point, y_scale, y_zero_point)


@converts("QLinearWhere", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    condition: Tensor,
    X: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    Y: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
    z_scale: Tensor,
    z_zero_point: Tensor,
) -> MLOperand:
    x = _requantise(b, X, x_scale, x_zero_point, z_scale, z_zero_point)
    y = _requantise(b, Y, y_scale, y_zero_point, z_scale, z_zero_point)
    return b.where(condition, x, y)


def _requantise(
    b: MLGraphBuilder, x: Tensor, scale: Tensor, zero_point: Tensor, new_scale: Tensor, new_zero_point: Tensor
) -> MLOperand:
    """Change the scale and the zero point of a tensor."""
    pairs = ((scale, new_scale), (zero_point, new_zero_point))
    arrays = [[constant_or_same(value) for value in pair] for pair in pairs]
    if all(isinstance(one, np.ndarray) and np.array_equal(one, other) for one, other in arrays):
        return operand(b, x)
    return _through_floats(b, lambda y: y, x, scale, zero_point, new_scale, new_zero_point)


@converts("QLinearConcat", domain=MICROSOFT)
def _(b: MLGraphBuilder, Y_scale: Tensor, Y_zero_point: Tensor, *inputs: Tensor | None, axis: int) -> MLOperand:
    unsupported_if(
        len(inputs) % 3 or any(value is None for value in inputs), "an input, a scale or a zero point is absent"
    )
    parts = [operand(b, value) for value in inputs if value is not None]
    along = normalize_axis(axis, parts[0].rank)
    return quantized_concat(b, parts[::3], parts[1::3], parts[2::3], Y_scale, Y_zero_point, along)


# Poolings and reductions ---------------------------------------------------------------------------------------------


@converts("QLinearAveragePool", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    X: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    ceil_mode: int = 0,
    channels_last: int = 0,
    count_include_pad: int = 0,
    window: WindowAttributes = PLAIN,
) -> MLOperand:
    def pool(x: MLOperand) -> MLOperand:
        y: MLOperand = average_pool(b, x, ceil_mode=ceil_mode, count_include_pad=count_include_pad, window=window)
        return y

    image = channels_first(b, X, channels_last)
    y = _through_floats(b, pool, image, x_scale, x_zero_point, y_scale, y_zero_point)
    return channels_as_before(b, y, channels_last)


@converts("QLinearGlobalAveragePool", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    X: MLOperand,
    x_scale: Tensor,
    x_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
    *,
    channels_last: int = 0,
) -> MLOperand:
    unsupported_if(X.rank < 3, f"it has no spatial axes, for its input has rank {X.rank}")
    axes = range(1, X.rank - 1) if channels_last else range(2, X.rank)
    parts = [operand(b, value) for value in (x_scale, x_zero_point, y_scale, y_zero_point)]
    return quantized_mean(b, X, *parts, axes, keep_dimensions=True)


@converts("QLinearReduceMean", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    data: MLOperand,
    data_scale: Tensor,
    data_zero_point: Tensor | None,
    reduced_scale: Tensor,
    reduced_zero_point: Tensor | None = None,
    *,
    axes: Sequence[int],
    keepdims: int,
) -> MLOperand:
    places = sorted({normalize_axis(axis, data.rank) for axis in axes}) or range(data.rank)
    zeros = _or_zero(data_zero_point, data), _or_zero(reduced_zero_point, data)
    parts = [operand(b, value) for value in (data_scale, zeros[0], reduced_scale, zeros[1])]
    return quantized_mean(b, data, *parts, places, keep_dimensions=bool(keepdims))


@converts("ReduceSumInteger", domain=MICROSOFT)
def _(b: MLGraphBuilder, data: MLOperand, *, axes: Sequence[int], keepdims: int) -> MLOperand:
    wide: DataType = "uint32" if data.data_type == "uint8" else "int32"
    places = [normalize_axis(axis, data.rank) for axis in axes] or None
    return b.reduce_sum(b.cast(data, wide), axes=places, keep_dimensions=bool(keepdims))


@converts("MulInteger", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    A: MLOperand,
    A_zero_point: Tensor | None,
    B: MLOperand,
    B_zero_point: Tensor | None = None,
) -> MLOperand:
    sides = [
        b.sub(b.cast(x, "int32"), as_type(b, _or_zero(zero, x), "int32"))
        for x, zero in ((A, A_zero_point), (B, B_zero_point))
    ]
    return b.mul(*sides)


# Dynamic quantisation, embeddings, recurrent networks ----------------------------------------------------------------


@converts("DynamicQuantizeLinear")
def _(b: MLGraphBuilder, value: MLOperand) -> tuple[MLOperand, MLOperand, MLOperand]:
    y, scale, zero_point = dynamic_quantize_linear(b, value)
    return y, scale, zero_point


def _dequantise(b: MLGraphBuilder, x: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    """Dequantise `x` by scales that broadcast; a constant if all of them are."""
    values = [constant_or_same(value) for value in (x, scale, zero_point)]
    if all(isinstance(value, np.ndarray) for value in values):
        array, s, z = (np.asarray(value) for value in values)
        result: np.ndarray = (array.astype(np.int32) - z).astype(np.float32) * s
        return result
    number, zero = (as_type(b, value, "float32") for value in (x, zero_point))
    return b.mul(b.sub(number, zero), scale)


@converts("DynamicQuantizeLSTM", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    X: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None,
    sequence_lens: Tensor | None,
    initial_h: Tensor | None,
    initial_c: Tensor | None,
    P: Tensor | None,
    W_scale: Tensor,
    W_zero_point: Tensor,
    R_scale: Tensor,
    R_zero_point: Tensor,
    *,
    cells: CellAttributes = FORWARD,
    input_forget: int = 0,
) -> tuple[MLOperand, ...]:
    # The weights are integers, and the sequence and the states stay floats, which ONNX Runtime rounds to 8 bits.
    factors = []
    for weight, scale, zero_point in ((W, W_scale, W_zero_point), (R, R_scale, R_zero_point)):
        directions = shape_of(weight)[0]
        parts = [
            reshape(b, part, [directions, 1, -1 if len(shape_of(part)) > 1 else 1]) for part in (scale, zero_point)
        ]
        real = _dequantise(b, weight, *parts)
        if isinstance(real, np.ndarray):
            factors.append(np.ascontiguousarray(real.swapaxes(1, 2)))
        else:
            factors.append(b.transpose(real, permutation=[0, 2, 1]))
    plain = replace(cells, layout=0)
    inputs = (X, *factors, B, sequence_lens, initial_h, initial_c, P)
    results: tuple[MLOperand, ...] = lstm(b, *inputs, cells=plain, input_forget=input_forget)
    return results


@converts("QEmbedLayerNormalization", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    input_ids: MLOperand,
    segment_ids: Tensor | None,
    word_embedding: Tensor,
    position_embedding: Tensor,
    segment_embedding: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    mask: Tensor | None,
    word_scale: Tensor,
    position_scale: Tensor,
    segment_scale: Tensor | None,
    gamma_scale: Tensor,
    beta_scale: Tensor,
    word_zero_point: Tensor,
    position_zero_point: Tensor,
    segment_zero_point: Tensor | None,
    gamma_zero_point: Tensor,
    beta_zero_point: Tensor,
    *,
    epsilon: float = 1e-12,
) -> tuple[Tensor, ...]:
    def real(x: Tensor, scale: Tensor, zero_point: Tensor) -> MLOperand:
        return operand(b, WHOLE.dequantize(b, x, scale, zero_point))

    length = input_ids.shape[1]
    rows = b.gather(operand(b, word_embedding), input_ids, axis=0)
    total = real(rows, word_scale, word_zero_point)
    places = b.slice(operand(b, position_embedding), [0, 0], [length, shape_of(position_embedding)[1]])
    total = b.add(total, real(places, position_scale, position_zero_point))
    if segment_ids is not None and segment_embedding is not None:
        if segment_scale is None or segment_zero_point is None:
            raise Unsupported("its segments have no scale or zero point")
        segments = b.gather(operand(b, segment_embedding), operand(b, segment_ids), axis=0)
        total = b.add(total, real(segments, segment_scale, segment_zero_point))
    scale, bias = real(gamma, gamma_scale, gamma_zero_point), real(beta, beta_scale, beta_zero_point)
    y = b.layer_normalization(total, scale=scale, bias=bias, axes=[2], epsilon=epsilon)
    return y, mask_index(b, mask, input_ids)
