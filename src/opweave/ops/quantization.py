"""Quantisation: floats as small integers with a scale and a zero point for each block of elements."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from ..core.dtypes import FLOATS, INFO, QUANTIZED, DataType
from ..core.graph import Builder, Desc, Operand
from ..core.operation import Limits, op
from ..core.shapes import blockwise_broadcasts_to
from ..core.size_possibilities import may_equal_shape
from ..support.errors import require
from .reduction import narrow, widen

if TYPE_CHECKING:
    from .operations import Operations


def _check_blocks(input: Operand, scale: Operand, zero_point: Operand) -> None:
    require(
        may_equal_shape(scale.shape, zero_point.shape),
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
    """Convert quantised integers to floats: `(input - zero_point) * scale`.

    Args:
        scale: float32 or float16, positive, the rank of `input`; each dimension divides that of `input`, so that an
            element applies to a block of the input.
        zero_point: the data type of `input` and the shape of `scale`.

    Returns: An operand of the data type of `scale` and the shape of `input`; the difference is exact, even if it exceeds the
        range of the data type of `input`.
    Raises: `zero_point` does not have the shape of `scale`, or that does not divide the shape of `input`.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-dequantizelinear

    >>> ow.ops.dequantize_linear(np.uint8([0, 128, 130]), np.float32([0.5]), np.uint8([128])).tolist()
    [-64.0, 0.0, 1.0]
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
    """Quantise floats: `input / scale`, rounded to nearest even, plus `zero_point`, saturated.

    Args:
        scale: positive, the data type of `input` and the same rank; each dimension divides that of `input`, so that an element
            applies to a block of the input.
        zero_point: uint8, int8, uint32 or int32, the shape of `scale`.

    Returns: An operand of the data type of `zero_point` and the shape of `input`, clamped to the range of the data type; the
        result of NaN is unspecified.
    Raises: `zero_point` does not have the shape of `scale`, or that does not divide the shape of `input`.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-quantizelinear

    >>> ow.ops.quantize_linear(np.float32([-64, 0.3, 1, 100]), np.float32([0.5]), np.uint8([128])).tolist()
    [0, 129, 130, 255]
    """
    _check_blocks(input, scale, zero_point)
    return Desc(zero_point.data_type, input.shape)


# ---------------------------------------------------------------------------------------------------------------------
# Decompositions


def _repeat_blocks(b: Operations, operand: Operand, shape: tuple[int, ...]) -> Operand:
    """Repeat elements of `operand` so that it broadcasts to `shape`; dimensions of size 1 are left to broadcasting."""
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
    # Subtract in an integer type that is wide enough; float32 would round 32-bit integers.
    info, factor = INFO[input.data_type], widen(b, s)
    exact: DataType = "float32" if info.kind == "f" else "int32" if info.bits <= 16 else "int64"
    difference = b.cast(input, exact) - b.cast(z, exact)
    return narrow(b, b.cast(difference, factor.data_type) * factor, scale)


@quantize_linear.decompose
def _(b: Operations, input: Operand, scale: Operand, zero_point: Operand) -> Operand:
    s, z = (_repeat_blocks(b, operand, input.shape) for operand in (scale, zero_point))
    info = INFO[zero_point.data_type]
    quotient = widen(b, input) / widen(b, s)
    if info.kind == "f":
        shifted = quotient + b.cast(z, quotient.data_type)
        return b.cast(b.clamp(shifted, min_value=-info.largest, max_value=info.largest), zero_point.data_type)
    steps = b.round_even(quotient)
    if info.bits <= 16:
        shifted = steps + b.cast(z, steps.data_type)
    else:
        # Add in int64, because float32 would round. Beyond 2**33, the result saturates with any zero point.
        steps = b.clamp(steps, min_value=-(2.0**33), max_value=2.0**33)
        shifted = b.cast(steps, "int64") + b.cast(z, "int64")
    return b.cast(b.clamp(shifted, min_value=info.lowest, max_value=info.highest), zero_point.data_type)
