"""Element-wise ONNX operators: arithmetic, functions of one input, casts, clipping, cumulative sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from .... import ops
from ....context.builder import MLGraphBuilder
from ....core import dtypes
from ....core.casts import cast_array
from ....core.dtypes import INFO, DataType
from ....core.graph import MLOperand
from ....core.operation import Op
from ...model.protobuf import TensorProto
from ...model.registry import (
    DATA_TYPES,
    Tensor,
    Unsupported,
    as_type,
    by_name,
    converts,
    data_type_of,
    integer,
    normalize_axis,
    operand,
    register,
    unsupported_if,
)


def is_float(value: Tensor) -> bool:
    """Whether the elements are floats."""
    return dtypes.is_float(data_type_of(value))


def is_unsigned(value: MLOperand) -> bool:
    """Whether the elements are unsigned integers."""
    return INFO[value.data_type].kind == "u"


register(by_name(ops.add, ops.sub, ops.mul, ops.div, ops.where, ops.ceil, ops.floor, ops.neg, ops.sqrt))
register(by_name(ops.exp, ops.log, ops.erf, ops.sin, ops.cos, ops.tan, ops.reciprocal, Round=ops.round_even))


def _variadic(op: Op[..., Any]) -> Callable[..., Any]:
    return lambda b, *values: reduce(lambda x, y: op(b, x, y), values)


for _op_type, _op in {"Max": ops.max, "Min": ops.min, "Sum": ops.add}.items():
    converts(_op_type)(_variadic(_op))


@converts("Mean")
def _(b: MLGraphBuilder, *data_0: Tensor) -> Tensor:
    total = reduce(lambda x, y: b.add(x, y), data_0)
    return total if len(data_0) == 1 else b.div(total, len(data_0))


# Functions of one input ----------------------------------------------------------------------------------------------


@converts("Abs")
def _(b: MLGraphBuilder, x: MLOperand) -> Tensor:
    return x if is_unsigned(x) else b.abs(x)


@converts("Sign")
def _(b: MLGraphBuilder, x: MLOperand) -> Tensor:
    return b.min(x, 1) if is_unsigned(x) else b.sign(x)


# Functions of two inputs ---------------------------------------------------------------------------------------------


@converts("Mod")
def _(b: MLGraphBuilder, a: MLOperand, B: Tensor, *, fmod: int = 0) -> Tensor:
    return b.modulus_truncate(a, B) if fmod else b.modulus_floor(a, B)


@converts("Pow")
def _(b: MLGraphBuilder, x: MLOperand, exponent: Tensor) -> Tensor:
    if is_float(x) and isinstance(exponent, np.ndarray) and not _keeps_parity(exponent, x.data_type):
        return _pow_in_double(b, x, exponent)
    if isinstance(exponent, np.ndarray) and is_float(exponent):
        is_whole = bool((exponent == np.trunc(exponent)).all())
        if is_whole and (is_float(x) or bool((abs(exponent) < 2.0**63).all())):
            exponent = exponent.astype(x.data_type if is_float(x) else np.int64)
    y = operand(b, exponent)
    if x.data_type == y.data_type:
        return b.pow(x, y)
    if is_float(x):
        return b.pow(x, as_type(b, exponent, x.data_type))
    if is_float(y):
        # NumPy and ONNX Runtime compute in float64, which has all digits of int32, and truncate the result.
        return _pow_in_double(b, x, exponent)
    # In a type wide enough for both, signed as the exponent: the bits of a product are the same for signed and unsigned bases.
    bits = max(32, INFO[x.data_type].bits, INFO[y.data_type].bits)
    wide: Any = f"uint{bits}" if is_unsigned(y) else f"int{bits}"
    return b.cast(b.pow(b.cast(x, wide), as_type(b, exponent, wide)), x.data_type)


def _keeps_parity(exponent: np.ndarray, data_type: DataType) -> bool:
    """Whether the same exponents are odd in another data type: those decide the signs of powers."""
    with np.errstate(invalid="ignore"):
        before, after = (array.astype(np.float64) % 2 == 1 for array in (exponent, cast_array(exponent, data_type)))
    return np.array_equal(before, after)


def _pow_in_double(b: MLGraphBuilder, x: MLOperand, exponent: Tensor) -> Tensor:
    double = INFO[dtypes.FLOAT64].name
    return b.cast(b.pow(b.cast(x, double), as_type(b, exponent, double)), x.data_type)


# Casts ---------------------------------------------------------------------------------------------------------------


@converts("Cast")
def _(
    b: MLGraphBuilder,
    x: MLOperand,
    *,
    to: int,
    saturate: int = 1,
    round_mode: str = "up",
    types: list[int],
) -> Tensor:
    return convert_type(b, x, types[0], to, saturate, round_mode)


@converts("CastLike")
def _(
    b: MLGraphBuilder,
    x: Tensor,
    like: Tensor,
    *,
    saturate: int = 1,
    round_mode: str = "up",
    types: list[int],
) -> Tensor:
    if isinstance(x, np.ndarray) and types[1] != TensorProto.BOOL:
        target = INFO[DATA_TYPES[types[1]]]
        if not target.is_narrow and (target.kind == "f" or not is_float(x)):
            return cast_array(x, target.name)  # a number for what reads it, such as the value of Pad
    return convert_type(b, operand(b, x), types[0], types[1], saturate, round_mode)


def convert_type(
    b: MLGraphBuilder, x: MLOperand, source: int, to: int, saturate: int = 1, round_mode: str = "up"
) -> MLOperand:
    """Cast to an ONNX element type: `saturate` is for floats of 8 bits, `round_mode` for float8e8m0."""
    data_type = DATA_TYPES.get(to)
    if data_type is None:
        raise Unsupported(f"WebNN has no {TensorProto.DataType.Name(to).lower()}")
    if source == to:
        return b.identity(x)
    x = _before_float64(x)
    if to == TensorProto.BOOL:
        return b.not_equal(x, 0)
    # A bool is stored as uint8, so that only the declared type changes: the result is another operand with the same bytes.
    if x.data_type == data_type:
        return b.identity(x)
    info = INFO[data_type]
    if x.data_type == dtypes.FLOAT64 and x.is_constant and data_type in dtypes.FLOATS:
        # Devices without float64 would leave this cast to the processor, in each run.
        return b.constant(cast_array(x.value, data_type))
    if info.is_narrow and info.bits == 8:
        if data_type == dtypes.POWERS:
            unsupported_if(round_mode != "up", f"it rounds {round_mode}")
            x = b.cast(x, "float32")  # float16 has no bounds as large
        if saturate:
            x = clamp_to_range(b, x, data_type)
    return b.cast(x, data_type)


def _before_float64(x: MLOperand) -> MLOperand:
    """The operand of a cast to float64 that keeps all digits; any other operand as it is."""
    while x.data_type == dtypes.FLOAT64 and x.node is not None and x.node.op is ops.cast:
        source = x.node.operands[0]
        if source.data_type in ("int64", "uint64"):
            break
        x = source
    return x


def clamp_to_range(b: MLGraphBuilder, x: MLOperand, data_type: DataType) -> MLOperand:
    """Clamp numbers to the range of a float of 8 bits."""
    largest = INFO[data_type].largest
    if INFO[x.data_type].is_narrow or not is_float(x):
        x = b.cast(x, "float32")
    return b.clamp(x, min_value=2.0**-127 if data_type == dtypes.POWERS else -largest, max_value=largest)


# Clip ----------------------------------------------------------------------------------------------------------------


def _number(bound: Tensor | None) -> int | float | None:
    value = bound.value if isinstance(bound, MLOperand) else bound
    number: int | float | None = None if value is None else np.asarray(value).reshape(()).item()
    return number


MAX_FLOAT32 = float(np.finfo(np.float32).max)
"""The default of the upper bound of Clip before operator set 11, for all types; that of the lower one is its negative."""

LARGEST = {
    "float16": 65504.0,
    "bfloat16": 2.0**128 - 2.0**120,
    "float32": MAX_FLOAT32,
    "float64": float(np.finfo(np.float64).max),
}
"""The default from operator set 11 on: the largest finite number of the type."""


@converts("Clip", moved=["min", "max"])
def _(b: MLGraphBuilder, x: MLOperand, min: Tensor | None = None, max: Tensor | None = None, *, opset: int) -> Tensor:
    if is_float(x):  # the defaults are finite, so that they cut off infinity
        largest = MAX_FLOAT32 if opset < 11 else LARGEST[x.data_type]
        min, max = np.array(-largest) if min is None else min, np.array(largest) if max is None else max
    low, high = _number(min), _number(max)
    is_computed = (min is not None and low is None) or (max is not None and high is None)
    if not is_computed and (low is None or high is None or not low > high):
        return b.clamp(x, min_value=low, max_value=high)
    # Where the lower bound exceeds the upper one, the result is the upper one.
    if min is not None:
        x = b.max(x, _bound(b, x, min, low, -math.inf))
    if max is not None:
        x = b.min(x, _bound(b, x, max, high, math.inf))
    return x


def _bound(b: MLGraphBuilder, x: MLOperand, bound: Tensor, number: int | float | None, none: float) -> Tensor | float:
    """A bound of Clip, or `none`, an infinity, in place of NaN: NaN is no bound in ONNX Runtime, nor in `clamp`."""
    if number is not None:
        return none if math.isnan(number) else number
    return b.where(b.is_nan(bound), np.array(none, x.data_type), bound) if is_float(x) else bound


# Cumulative sums -------------------------------------------------------------------------------------------------------


@converts("CumSum")
def _(b: MLGraphBuilder, x: Tensor, axis: Tensor, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    along = normalize_axis(integer(axis, "the axis"), len(x.shape))
    return b.cumulative_sum(operand(b, x), along, exclusive=bool(exclusive), reversed=bool(reverse))
