"""Quantisation: floats as small integers with a scale and a zero point, for blocks of elements of any shape."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from ..dtypes import FLOATS, INFO, QUANTIZED, DataType
from ..errors import require
from ..graph import Builder, Desc, Operand
from ..operation import Limits, op
from ..shapes import blockwise_broadcasts_to
from .reduction import narrowed, widened

if TYPE_CHECKING:
    from . import Operations


def _check_blocks(input: Operand, scale: Operand, zero_point: Operand) -> None:
    require(
        scale.shape == zero_point.shape,
        f"zero_point must have the shape of scale, got {zero_point.desc} and {scale.desc}",
    )
    require(
        blockwise_broadcasts_to(scale.shape, input.shape),
        f"the dimensions of scale must divide those of input, got {list(scale.shape)} and {list(input.shape)}",
    )


@op(
    input=Limits(QUANTIZED),
    scale=Limits(FLOATS, ranks="input"),
    zero_point=Limits("input", ranks="input"),
    output=Limits("scale", ranks="input"),
)
def dequantize_linear(self: Builder, input: Operand, scale: Operand, zero_point: Operand, *, label: str = "") -> Desc:
    """Turn quantised integers back into floats: `(input - zero_point) * scale`.

    Args:
        input: uint8, int8, uint32 or int32, any rank.
        scale: float32 or float16, the rank of `input`, each dimension a divisor of that of `input`: an element counts for
            a block of the input. Other values than positive ones give unspecified results.
        zero_point: the data type of `input` and the shape of `scale`.
        label: a name for messages and tables.

    Returns:
        An operand of the data type of `scale` and the shape of `input`; the difference is exact, also where it does not
        fit the data type of `input`.

    Raises:
        ValidationError: `zero_point` has not the shape of `scale`, or that does not divide the shape of `input`.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-dequantizelinear
    """
    _check_blocks(input, scale, zero_point)
    return Desc(scale.data_type, input.shape)


@op(
    input=Limits(FLOATS),
    scale=Limits("input", ranks="input"),
    zero_point=Limits(QUANTIZED, ranks="input"),
    output=Limits("zero_point", ranks="input"),
)
def quantize_linear(self: Builder, input: Operand, scale: Operand, zero_point: Operand, *, label: str = "") -> Desc:
    """Turn floats into quantised integers: `input / scale` rounded to even, plus `zero_point`, saturated.

    Args:
        input: float32 or float16, any rank.
        scale: the data type and rank of `input`, each dimension a divisor of that of `input`: an element counts for a
            block of the input. Other values than positive ones give unspecified results.
        zero_point: uint8, int8, uint32 or int32, the shape of `scale`.
        label: a name for messages and tables.

    Returns:
        An operand of the data type of `zero_point` and the shape of `input`. What is beyond the data type's range becomes
        its smallest or largest value; of NaN the result is unspecified.

    Raises:
        ValidationError: `zero_point` has not the shape of `scale`, or that does not divide the shape of `input`.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-quantizelinear
    """
    _check_blocks(input, scale, zero_point)
    return Desc(zero_point.data_type, input.shape)


# ---------------------------------------------------------------------------------------------------------------------
# Decompositions


def _repeat_blocks(b: Operations, operand: Operand, shape: tuple[int, ...]) -> Operand:
    """`operand` with its elements repeated until it broadcasts to `shape`; dimensions of 1 are left to broadcasting."""
    for axis, (part, whole) in enumerate(zip(operand.shape, shape, strict=True)):
        if 1 < part < whole:
            before, after = operand.shape[:axis], operand.shape[axis + 1 :]
            rows, row = prod(before) * part, prod(after)
            repeated = b.expand(b.reshape(operand, [rows, 1, row]), [rows, whole // part, row])
            operand = b.reshape(repeated, [*before, whole, *after])
    return operand


@dequantize_linear.decompose
def _(b: Operations, input: Operand, scale: Operand, zero_point: Operand) -> Operand:
    s, z = (_repeat_blocks(b, operand, input.shape) for operand in (scale, zero_point))
    # Subtracted as integers that hold every difference: float32 would round those of 32 bits.
    exact: DataType = "int32" if INFO[input.data_type].bits == 8 else "int64"
    difference = b.cast(input, exact) - b.cast(z, exact)
    return narrowed(b, b.cast(difference, "float32") * widened(b, s), scale)


@quantize_linear.decompose
def _(b: Operations, input: Operand, scale: Operand, zero_point: Operand) -> Operand:
    s, z = (_repeat_blocks(b, operand, input.shape) for operand in (scale, zero_point))
    info = INFO[zero_point.data_type]
    steps = b.round_even(widened(b, input) / widened(b, s))
    if info.bits == 8:
        shifted = steps + b.cast(z, "float32")
    else:
        # Added as int64, because float32 would round. Beyond 2**33 every zero point leaves the result saturated.
        steps = b.clamp(steps, min_value=-(2.0**33), max_value=2.0**33)
        shifted = b.cast(steps, "int64") + b.cast(z, "int64")
    return b.cast(b.clamp(shifted, min_value=info.lowest, max_value=info.highest), zero_point.data_type)
