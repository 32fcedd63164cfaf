"""Reductions: sums, products, norms, extremes and their positions, cumulative sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING

from .. import expr
from ..core.dtypes import ANY, FLOATS, INFO, WIDE, DataType
from ..core.graph import Builder, Desc, Operand
from ..core.operation import Limits, N, Op, op
from ..core.shapes import reduced_shape
from ..support.errors import require
from .constants import constant

if TYPE_CHECKING:
    from .operations import Operations


@op(input=Limits(ANY, ranks=(1, N)), output=Limits(("int32", "int64"), ranks=(0, N)))
def _arg_extreme(
    self: Builder,
    input: Operand,
    axis: int,
    *,
    keep_dimensions: bool = False,
    output_data_type: DataType = "int32",
    label: str = "",
) -> Desc:
    """Find the position of an extreme value along `axis`.

    Args:
        keep_dimensions: whether `axis` stays, with size 1.
        output_data_type: int32 or int64.

    Returns: Positions in [0, size of the axis), of `output_data_type`: the first of equal values, and any position if there
        is a NaN.
    Raises: there is no such axis, or the data type is neither int32 nor int64.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-argminmax
    """
    require(axis < input.rank, f"axis must be in [0, {input.rank}), got {axis}")
    require(input.shape[axis] > 0, f"axis must have elements, got axis {axis} of {input.desc}")
    require(output_data_type in ("int32", "int64"), f"output_data_type must be int32 or int64, got {output_data_type}")
    # Dimensions are limited to int32, so both types can hold every position.
    return Desc(output_data_type, reduced_shape(input.shape, (axis,), keep_dimensions))


arg_min = _arg_extreme.named(
    "arg_min",
    "Find the position of the smallest value along `axis`.",
    ">>> ow.ops.arg_min(np.float32([[3, 1], [2, 4]]), 0).tolist()\n[1, 0]",
)
arg_max = _arg_extreme.named(
    "arg_max",
    "Find the position of the largest value along `axis`.",
    ">>> ow.ops.arg_max(np.float32([[3, 1], [2, 4]]), 1).tolist()\n[0, 1]",
)


@op(input=Limits(WIDE, ranks=(1, N)))
def cumulative_sum(
    self: Builder, input: Operand, axis: int, *, exclusive: bool = False, reversed: bool = False, label: str = ""
) -> Desc:
    """Compute the partial sums along `axis`.

    Args:
        exclusive: whether each sum excludes its own element: [1, 2, 3] gives [0, 1, 3] instead of [1, 3, 6].
        reversed: whether to start from the end: [1, 2, 3] gives [6, 5, 3].

    Returns: An operand of the data type and shape of `input`. Integers wrap around on overflow.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-cumulativesum

    >>> ow.ops.cumulative_sum(np.float32([1, 2, 3]), 0).tolist()
    [1.0, 3.0, 6.0]
    """
    require(axis < input.rank, f"axis must be in [0, {input.rank}), got {axis}")
    return input.desc


@op(input=Limits(WIDE), output=Limits("input", ranks=(0, N)))
def _reduce(
    self: Builder,
    input: Operand,
    *,
    axes: Sequence[int] | None = None,
    keep_dimensions: bool = False,
    label: str = "",
) -> Desc:
    """Reduce `input` along `axes`.

    Args:
        axes: the dimensions to reduce, each in [0, rank) and named once; default: all. `[]` applies the function to
            each element separately.
        keep_dimensions: whether the reduced dimensions stay, with size 1.

    Returns: An operand of the data type of `input`. Integers wrap around on overflow.
    Raises: an axis does not exist, or is named twice.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-reduce
    """
    assert axes is not None  # the default below
    return Desc(input.data_type, reduced_shape(input.shape, axes, keep_dimensions))


@_reduce.default("axes")
def _(input: Operand) -> tuple[int, ...]:
    return tuple(range(input.rank))


_ONLY_FLOATS = Limits(FLOATS)

reduce_l1 = _reduce.named(
    "reduce_l1",
    "Sum the absolute values along `axes`.",
    ">>> ow.ops.reduce_l1(np.float32([[-1, 2], [3, -4]]), axes=[1]).tolist()\n[3.0, 7.0]",
)
reduce_l2 = _reduce.named(
    "reduce_l2",
    "Take the square root of the sum of squares along `axes`.",
    ">>> ow.ops.reduce_l2(np.float32([[3, 4], [5, 12]]), axes=[1]).tolist()\n[5.0, 13.0]",
    input=_ONLY_FLOATS,
)
reduce_log_sum = _reduce.named(
    "reduce_log_sum",
    "Take the natural logarithm of the sum along `axes`.",
    ">>> print(np.round(ow.ops.reduce_log_sum(np.float32([[0.25, 0.75], [4, 6]]), axes=[1]), 3))\n[0.    2.303]",
    input=_ONLY_FLOATS,
)
reduce_log_sum_exp = _reduce.named(
    "reduce_log_sum_exp",
    "Take the natural logarithm of the sum of exponentials along `axes`, without intermediate overflow.",
    ">>> print(np.round(ow.ops.reduce_log_sum_exp(np.float32([[0, 0], [500, 500]]), axes=[1]), 3))\n[  0.693 500.693]",
    input=_ONLY_FLOATS,
)
reduce_max = _reduce.named(
    "reduce_max",
    "Find the largest value along `axes`; where one is NaN, NaN may be ignored.",
    ">>> ow.ops.reduce_max(np.float32([[1, 2], [3, 4]]), axes=[0]).tolist()\n[3.0, 4.0]",
    input=Limits(ANY),
)
reduce_mean = _reduce.named(
    "reduce_mean",
    "Average the values along `axes`.",
    ">>> ow.ops.reduce_mean(np.float32([[1, 2], [3, 4]]), axes=[0]).tolist()\n[2.0, 3.0]",
    input=_ONLY_FLOATS,
)
reduce_min = _reduce.named(
    "reduce_min",
    "Find the smallest value along `axes`; where one is NaN, NaN may be ignored.",
    ">>> ow.ops.reduce_min(np.float32([[1, 2], [3, 4]]), axes=[0]).tolist()\n[1.0, 2.0]",
    input=Limits(ANY),
)
reduce_product = _reduce.named(
    "reduce_product",
    "Multiply the values along `axes`.",
    ">>> ow.ops.reduce_product(np.float32([[1, 2], [3, 4]]), axes=[0]).tolist()\n[3.0, 8.0]",
)
reduce_sum = _reduce.named(
    "reduce_sum",
    "Sum the values along `axes`.",
    """
    >>> ow.ops.reduce_sum(np.float32([[1, 2], [3, 4]]), axes=[0]).tolist()
    [4.0, 6.0]
    >>> ow.ops.reduce_sum(np.float32([[1, 2], [3, 4]]), keep_dimensions=True).tolist()
    [[10.0]]
    """,
)
reduce_sum_square = _reduce.named(
    "reduce_sum_square",
    "Sum the squares of the values along `axes`.",
    ">>> ow.ops.reduce_sum_square(np.float32([[1, 2], [3, 4]]), axes=[0]).tolist()\n[10.0, 20.0]",
)


def widen(b: Operations, input: Operand) -> Operand:
    """Convert 16-bit floats to float32: sums and squares overflow, or lose precision, before their mean does."""
    return b.cast(input, "float32") if INFO[input.data_type].bits == 16 else input


def narrow(b: Operations, result: Operand, input: Operand) -> Operand:
    """Convert the result of a computation on `widen(b, input)` to the data type of `input`."""
    return b.cast(result, input.data_type) if INFO[input.data_type].bits == 16 else result


@reduce_l1.decompose
def _(b: Operations, input: Operand, axes: Sequence[int], keep_dimensions: bool) -> Operand:
    is_unsigned = input.data_type.startswith("u")
    return b.reduce_sum(input if is_unsigned else b.abs(input), axes=axes, keep_dimensions=keep_dimensions)


@reduce_l2.decompose
def _(b: Operations, input: Operand, axes: Sequence[int], keep_dimensions: bool) -> Operand:
    squares = b.reduce_sum_square(widen(b, input), axes=axes, keep_dimensions=keep_dimensions)
    return narrow(b, b.sqrt(squares), input)


@reduce_log_sum.decompose
def _(b: Operations, input: Operand, axes: Sequence[int], keep_dimensions: bool) -> Operand:
    total = b.reduce_sum(widen(b, input), axes=axes, keep_dimensions=keep_dimensions)
    return narrow(b, b.log(total), input)


@reduce_log_sum_exp.decompose
def _(b: Operations, input: Operand, axes: Sequence[int], keep_dimensions: bool) -> Operand:
    # log Σ eˣ = m + log Σ eˣ⁻ᵐ: with m = max(x) no exponential overflows. An infinite m would give ∞ - ∞.
    x = widen(b, input)
    largest = b.reduce_max(x, axes=axes, keep_dimensions=True)
    m = b.where(b.is_infinite(largest), constant(b, 0, x.data_type), largest)
    total = m + b.log(b.reduce_sum(b.exp(x - m), axes=axes, keep_dimensions=True))
    return narrow(b, b.reshape(total, reduced_shape(input.shape, axes, keep_dimensions)), input)


@reduce_mean.decompose
def _(b: Operations, input: Operand, axes: Sequence[int], keep_dimensions: bool) -> Operand:
    count = prod(input.shape[axis] for axis in axes)
    return narrow(b, b.reduce_sum(widen(b, input), axes=axes, keep_dimensions=keep_dimensions) / count, input)


@reduce_sum_square.decompose
def _(b: Operations, input: Operand, axes: Sequence[int], keep_dimensions: bool) -> Operand:
    return b.reduce_sum(input * input, axes=axes, keep_dimensions=keep_dimensions)


# ---------------------------------------------------------------------------------------------------------------------
# Formulas, in float32 for float16. Sums, extremes and means have no formula: ONNX Runtime has fast kernels for these
# operations, and fuses the means of normalisations.


def _total(x: expr.Traced, axes: Sequence[int], keep_dimensions: bool) -> expr.Traced:
    return expr.reduce_sum(x, axes, keep_dimensions=keep_dimensions)


def _log_sum_exp(x: expr.Traced, axes: Sequence[int], keep_dimensions: bool) -> expr.Traced:
    def offset(keep: bool) -> expr.Traced:
        largest = expr.reduce_max(x, axes, keep_dimensions=keep)
        return expr.where(expr.is_infinite(largest), 0.0, largest)

    total = expr.reduce_sum(expr.exp(x - offset(True)), axes, keep_dimensions=keep_dimensions)
    return expr.log(total) + offset(keep_dimensions)


_FORMULAS: dict[Op[..., Operand], Callable[..., expr.Traced]] = {
    reduce_l1: lambda x, axes, keep: _total(x if x.data_type.startswith("u") else abs(x), axes, keep),
    reduce_l2: lambda x, axes, keep: expr.sqrt(_total(x * x, axes, keep)),
    reduce_log_sum: lambda x, axes, keep: expr.log(_total(x, axes, keep)),
    reduce_log_sum_exp: _log_sum_exp,
    reduce_product: lambda x, axes, keep: expr.reduce_product(x, axes, keep_dimensions=keep),
    reduce_sum_square: lambda x, axes, keep: _total(x * x, axes, keep),
}


def _declare(op: Op[..., Operand], function: Callable[..., expr.Traced]) -> None:
    @op.alternative
    def _(input: expr.Traced, axes: Sequence[int], keep_dimensions: bool) -> expr.Traced:
        if input.data_type != "float16":
            return function(input, axes, keep_dimensions)
        return expr.cast(function(expr.cast(input, "float32"), axes, keep_dimensions), "float16")


for _op, _function in _FORMULAS.items():
    _declare(_op, _function)


@arg_max.alternative
def _(input: expr.Traced, axis: int, keep_dimensions: bool, output_data_type: DataType) -> expr.Traced:
    return expr.cast(expr.arg_max(input, axis, keep_dimensions=keep_dimensions), output_data_type)


@arg_min.alternative
def _(input: expr.Traced, axis: int, keep_dimensions: bool, output_data_type: DataType) -> expr.Traced:
    return expr.cast(expr.arg_min(input, axis, keep_dimensions=keep_dimensions), output_data_type)
