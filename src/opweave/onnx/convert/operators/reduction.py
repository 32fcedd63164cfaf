"""ONNX reductions, positions of extremes, and normalisations that consist of reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod, sqrt
from typing import Any

import numpy as np

from .... import ops
from ....context.builder import MLGraphBuilder
from ....core.dtypes import INFO
from ....core.graph import MLOperand
from ....core.operation import Op
from ....ops.reduction import narrow, widen
from ...model.registry import Tensor, by_name, converts, integers, normalize_axis, unsupported_if
from .elementwise import is_float

# Without axes to reduce, WebNN applies the function to each element, as ONNX does. For `keepdims` and `noop_with_empty_axes`,
# ONNX Runtime and ONNX's shape inference treat only 1 as true.


def _mean(b: MLGraphBuilder, x: MLOperand, axes: Sequence[int], keep_dimensions: bool) -> MLOperand:
    if is_float(x):
        return b.reduce_mean(x, axes=axes, keep_dimensions=keep_dimensions)
    count = prod(x.shape[axis] for axis in axes)
    if count == 1:
        return b.reduce_sum(x, axes=axes, keep_dimensions=keep_dimensions)
    # `_integer_mean` needs sums of remainders, which are below count**2.
    if count**2 <= INFO[x.data_type].highest:
        return _integer_mean(b, x, count, axes, keep_dimensions)
    return b.cast(_integer_mean(b, b.cast(x, "int64"), count, axes, keep_dimensions), x.data_type)


def _integer_mean(b: MLGraphBuilder, x: MLOperand, count: int, axes: Sequence[int], keep_dimensions: bool) -> MLOperand:
    """Compute the mean of integers, rounded towards zero as in ONNX Runtime.

    The sum of x may exceed the data type. For x = count * q + r, the mean is Σq + Σr / count, and |Σr| < count².
    """
    quotients = b.div(x, count)
    remainders = b.sub(x, b.mul(quotients, count))
    total, excess = (b.reduce_sum(part, axes=axes, keep_dimensions=keep_dimensions) for part in (quotients, remainders))
    carry = b.div(excess, count)
    mean = b.add(total, carry)
    if x.data_type.startswith("u"):
        return mean
    # `carry` is rounded by itself: if the remainder and the mean have different signs, the mean is 1 too far from 0.
    remainder = b.sub(excess, b.mul(carry, count))
    is_too_high = b.logical_and(b.greater(mean, 0), b.lesser(remainder, 0))
    is_too_low = b.logical_and(b.lesser(mean, 0), b.greater(remainder, 0))
    return b.sub(b.add(mean, b.cast(is_too_low, x.data_type)), b.cast(is_too_high, x.data_type))


def _reduction_converter(op: Callable[..., Any]) -> Callable[..., Any]:
    def convert(
        b: MLGraphBuilder,
        x: MLOperand,
        axes: Tensor | None = None,
        *,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> Tensor:
        axis_list = [] if axes is None else integers(axes, "the list of axes")
        reduced = sorted({normalize_axis(axis, x.rank) for axis in axis_list})
        if not axis_list and noop_with_empty_axes != 1:
            reduced = list(range(x.rank))
        result: Tensor = op(b, x, axes=reduced, keep_dimensions=keepdims == 1)
        return result

    return convert


_REDUCTIONS = {
    **by_name(ops.reduce_l1, ops.reduce_l2, ops.reduce_log_sum, ops.reduce_log_sum_exp, ops.reduce_max, ops.reduce_min),
    **by_name(ops.reduce_sum, ops.reduce_sum_square, ReduceMean=_mean, ReduceProd=ops.reduce_product),
}
for _op_type, _op in _REDUCTIONS.items():
    converts(_op_type, moved=["axes"])(_reduction_converter(_op))


def _extreme_converter(op: Op[..., Any]) -> Callable[..., Any]:
    def convert(
        b: MLGraphBuilder, x: MLOperand, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
    ) -> Tensor:
        along = normalize_axis(axis, x.rank)
        options: dict[str, Any] = {"keep_dimensions": keepdims == 1, "output_data_type": "int64"}
        if not select_last_index:
            return op(b, x, along, **options)  # type: ignore[no-any-return]
        # The last extreme is the first one from the end.
        from_end = op(b, b.reverse(x, axes=[along]), along, **options)
        return b.sub(np.array(x.shape[along] - 1), from_end)

    return convert


converts("ArgMax")(_extreme_converter(ops.arg_max))
converts("ArgMin")(_extreme_converter(ops.arg_min))


@converts("LpNormalization")
def _(b: MLGraphBuilder, input: MLOperand, *, axis: int = -1, p: int = 2) -> Tensor:
    # In float32: the norm of float16 numbers may exceed their range.
    x = widen(b, input)
    unsupported_if(p not in (1, 2), f"p is {p}, not 1 or 2")
    reduce = b.reduce_l1 if p == 1 else b.reduce_l2
    norm = reduce(x, axes=[normalize_axis(axis, x.rank)], keep_dimensions=True)
    # Where all elements are 0, the result is 0, not 0 / 0.
    result = b.div(x, b.clamp(norm, min_value=float(np.finfo("float32").tiny)))
    return narrow(b, result, input)


@converts("MeanVarianceNormalization")
def _(b: MLGraphBuilder, X: MLOperand, *, axes: Sequence[int] = (0, 2, 3)) -> Tensor:
    # In float32: the norm of float16 numbers may exceed their range.
    x = widen(b, X)
    reduced = [normalize_axis(axis, x.rank) for axis in axes]
    centred = b.sub(x, b.reduce_mean(x, axes=reduced, keep_dimensions=True))
    length = b.reduce_l2(centred, axes=reduced, keep_dimensions=True)
    count = prod(x.shape[axis] for axis in reduced)
    result = b.div(centred, b.linear(length, alpha=1 / sqrt(count), beta=1e-9))
    return narrow(b, result, X)
