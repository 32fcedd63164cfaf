"""Element-wise operations: arithmetic of two operands, functions of one, cast, clamp, where."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeGuard

from .. import expr
from ..core.conversion import Number
from ..core.dtypes import ANY, FLOATS, LOGICAL, SIGNED, DataType, is_float
from ..core.graph import Builder, Desc, Operand
from ..core.operation import Limits, Op, op
from ..core.shapes import broadcast
from ..expr.array import cast_to_storage
from ..support.errors import require
from .constants import constant

if TYPE_CHECKING:
    from .operations import Operations


def on_arguments(function: Callable[..., expr.Traced]) -> Callable[..., expr.Traced]:
    """The expression of an operation that calls `function` with operands and attributes in order."""
    return lambda **arguments: function(*arguments.values())


@op(a=Limits(ANY), b=Limits("a"), output=Limits("a"))
def _binary(self: Builder, a: Operand, b: Operand, *, label: str = "") -> Desc:
    """Combine `a` and `b` element by element.

    Args:
        b: the data type of `a`; `a` and `b` broadcast to each other.

    Returns: An operand of the data type of `a` and the broadcast shape.
    Raises: the data types differ, or the shapes do not broadcast.

    Integers wrap around on overflow. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-binary
    """
    return Desc(a.data_type, broadcast(a.shape, b.shape))


add = _binary.named(
    "add",
    "Add `a` and `b`, element by element.",
    ">>> ow.ops.add(np.float32([1, 2]), np.float32([[10], [20]])).tolist()\n[[11.0, 12.0], [21.0, 22.0]]",
)
sub = _binary.named(
    "sub",
    "Subtract `b` from `a`, element by element.",
    ">>> ow.ops.sub(np.float32([5, 7]), np.float32([1, 2])).tolist()\n[4.0, 5.0]",
)
mul = _binary.named(
    "mul",
    "Multiply `a` and `b`, element by element.",
    ">>> ow.ops.mul(np.float32([1, 2]), np.float32([3, 4])).tolist()\n[3.0, 8.0]",
)
div = _binary.named(
    "div",
    "Divide `a` by `b`, element by element.\n\nIntegers are truncated toward zero; an integer divided by 0 is 0.",
    ">>> ow.ops.div(np.int32([7, -7, 1]), np.int32([2, 2, 0])).tolist()\n[3, -3, 0]",
)
max = _binary.named(
    "max",
    "Maximum of `a` and `b`, element by element.\n\nThe result is NaN where either of them is.",
    ">>> ow.ops.max(np.float32([1, 5]), np.float32([4, 2])).tolist()\n[4.0, 5.0]",
)
min = _binary.named(
    "min",
    "Minimum of `a` and `b`, element by element.\n\nThe result is NaN where either of them is.",
    ">>> ow.ops.min(np.float32([1, 5]), np.float32([4, 2])).tolist()\n[1.0, 2.0]",
)
pow = _binary.named(
    "pow",
    "Raise `a` to the power of `b`, element by element.\n\n"
    "A negative power of an integer is 1 / a**-b, truncated toward zero.",
    ">>> ow.ops.pow(np.float32([2, 4]), np.float32([3, -1])).tolist()\n[8.0, 0.25]",
)
modulus_floor = _binary.named(
    "modulus_floor",
    "Remainder of `a` / `b` with the sign of `b`, element by element, as Python's `%`.\n\n"
    "An integer modulo 0 is 0, a float modulo 0 NaN. Where "
    "an engine composes the remainder of floats, it is 0 for quotients from 2**46.",
    ">>> import numpy as np, opweave as ow\n"
    '>>> builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference", drafts=True))\n'
    '>>> graph = builder.build({"y": builder.modulus_floor(builder.input("x", "int32", [3]), 3)})\n'
    '>>> graph.context.compute(graph, {"x": np.int32([7, -7, 3])})["y"].tolist()\n[1, 2, 0]',
)
modulus_truncate = _binary.named(
    "modulus_truncate",
    "Remainder of `a` / `b` with the sign of `a`, element by element, as `%` in C.\n\n"
    "An integer modulo 0 is 0, a float modulo 0 NaN. Where "
    "an engine composes the remainder of floats, it is 0 for quotients from 2**46.",
    ">>> import numpy as np, opweave as ow\n"
    '>>> builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference", drafts=True))\n'
    '>>> graph = builder.build({"y": builder.modulus_truncate(builder.input("x", "int32", [3]), 3)})\n'
    '>>> graph.context.compute(graph, {"x": np.int32([7, -7, 3])})["y"].tolist()\n[1, -1, 0]',
)


@op(input=Limits(FLOATS))
def _unary(self: Builder, input: Operand, *, label: str = "") -> Desc:
    """Map a function over the elements of `input`.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary
    """
    return input.desc


ceil = _unary.named(
    "ceil", "Round each element up to an integer.", ">>> ow.ops.ceil(np.float32([-1.5, 1.5])).tolist()\n[-1.0, 2.0]"
)
cos = _unary.named(
    "cos",
    "Cosine of each element, in radians.",
    ">>> print(np.round(ow.ops.cos(np.float32([0, np.pi])), 3))\n[ 1. -1.]",
)
erf = _unary.named(
    "erf", "Error function of each element.", ">>> print(np.round(ow.ops.erf(np.float32([0, 1])), 3))\n[0.    0.843]"
)
exp = _unary.named(
    "exp",
    "Raise e to the power of each element.",
    ">>> print(np.round(ow.ops.exp(np.float32([0, 1])), 3))\n[1.    2.718]",
)
floor = _unary.named(
    "floor", "Round each element down to an integer.", ">>> ow.ops.floor(np.float32([-1.5, 1.5])).tolist()\n[-2.0, 1.0]"
)
log = _unary.named(
    "log",
    "Natural logarithm of each element.",
    ">>> print(np.round(ow.ops.log(np.float32([1, 10])), 3))\n[0.    2.303]",
)
reciprocal = _unary.named(
    "reciprocal", "One divided by each element.", ">>> ow.ops.reciprocal(np.float32([2, -4])).tolist()\n[0.5, -0.25]"
)
round_even = _unary.named(
    "round_even",
    "Round each element to the nearest integer, halves to the even one.",
    ">>> ow.ops.round_even(np.float32([0.5, 1.5, 1.6])).tolist()\n[0.0, 2.0, 2.0]",
)
sin = _unary.named(
    "sin",
    "Sine of each element, in radians.",
    ">>> print(np.round(ow.ops.sin(np.float32([0, np.pi / 2])), 3))\n[0. 1.]",
)
sqrt = _unary.named(
    "sqrt",
    "Square root of each element; NaN for negative ones.",
    ">>> ow.ops.sqrt(np.float32([9, -1])).tolist()\n[3.0, nan]",
)
tan = _unary.named(
    "tan",
    "Tangent of each element, in radians.",
    ">>> print(np.round(ow.ops.tan(np.float32([0, np.pi / 4])), 3))\n[0. 1.]",
)


@ceil.decompose
def _(b: Operations, input: Operand) -> Operand:
    return -b.floor(-input)


@reciprocal.decompose
def _(b: Operations, input: Operand) -> Operand:
    return 1 / input


@tan.decompose
def _(b: Operations, input: Operand) -> Operand:
    return b.sin(input) / b.cos(input)


abs = _unary.named(
    "abs",
    "Absolute value of each element.\n\nThe lowest integer stays as it is: its positive counterpart does not exist.",
    ">>> ow.ops.abs(np.int8([-3, 3, -128])).tolist()\n[3, 3, -128]",
    input=Limits(SIGNED),
)
neg = _unary.named(
    "neg",
    "Negate each element.\n\nThe lowest integer stays as it is: its positive counterpart does not exist.",
    ">>> ow.ops.neg(np.int8([-3, 3, -128])).tolist()\n[3, -3, -128]",
    input=Limits(SIGNED),
)
sign = _unary.named(
    "sign",
    "Sign of each element: 1 if it is greater than 0, -1 if it is less, 0 if neither (0 and NaN).",
    ">>> ow.ops.sign(np.float32([-2, 0, 3])).tolist()\n[-1.0, 0.0, 1.0]",
    input=Limits(SIGNED),
)


@abs.decompose
def _(b: Operations, input: Operand) -> Operand:
    return b.max(input, -input)


@neg.decompose
def _(b: Operations, input: Operand) -> Operand:
    return input * -1


@sign.decompose
def _(b: Operations, input: Operand) -> Operand:
    zero = constant(b, 0, input.data_type)
    return b.cast(b.greater(input, zero), input.data_type) - b.cast(b.lesser(input, zero), input.data_type)


@op(input=Limits(ANY))
def identity(self: Builder, input: Operand, *, label: str = "") -> Desc:
    """Return `input` unchanged.

    Returns: An operand of the data type, shape and values of `input`.
    Raises: `input` is not an operand of this builder, an array or a number.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary

    >>> ow.ops.identity(np.float32([1, 2])).tolist()
    [1.0, 2.0]
    """
    return input.desc


@identity.decompose
def _(b: Operations, input: Operand) -> Operand:
    return input


@identity.expression
def _(input: expr.Traced) -> expr.Traced:
    return input


@op(input=Limits(ANY), output=Limits(ANY, ranks="input"))
def cast(self: Builder, input: Operand, data_type: DataType, *, label: str = "") -> Desc:
    """Convert each element to another data type.

    Integers become floats by rounding to the nearest one (or infinity), floats become integers by truncation toward
    zero. Integers that the new type cannot hold wrap around: their lowest bits are kept. The result for a float
    outside of the range of the integer type, and for NaN, depends on the back end.

    Args:
        data_type: the data type of the result.

    Returns: An operand of `data_type` and the shape of `input`.
    Raises: `data_type` is not a data type of WebNN.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-cast

    >>> ow.ops.cast(np.float32([1.7, -1.7]), "int32").tolist()
    [1, -1]
    >>> ow.ops.cast(np.int32([-1, 300]), "uint8").tolist()
    [255, 44]
    """
    return Desc(data_type, input.shape)


@cast.expression
def _(input: expr.Traced, data_type: DataType) -> expr.Traced:
    # Users' expressions have the specification's data types only.
    return expr.cast(input, data_type) if data_type in ANY else cast_to_storage(input, data_type)


@op(input=Limits(ANY))
def clamp(
    self: Builder,
    input: Operand,
    *,
    min_value: Number | None = None,
    max_value: Number | None = None,
    label: str = "",
) -> Desc:
    """Limit each element to the range from `min_value` to `max_value`.

    Args:
        min_value: the lowest result, converted to the data type of `input`; None (or NaN, where that is a float): no
            bound.
        max_value: the highest result, converted as `min_value` is; None or NaN: no bound.

    Returns: An operand of the data type and shape of `input`; NaN where that is NaN.
    Raises: `min_value` is greater than `max_value`, after conversion to the data type of `input`.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-clamp

    >>> ow.ops.clamp(np.float32([-1, 0.5, 3]), min_value=0, max_value=1).tolist()
    [0.0, 0.5, 1.0]
    """
    if min_value is not None and max_value is not None:
        require(
            not min_value > max_value, f"min_value must not be greater than max_value, got {min_value} and {max_value}"
        )
    return input.desc


clamp.cast("min_value", "max_value", like="input")


def is_bound(value: Number | None) -> TypeGuard[Number]:
    """Whether a `min_value` or `max_value` of clamp has an effect; None and NaN have none."""
    return value is not None and not math.isnan(value)


@clamp.decompose
def _(b: Operations, input: Operand, min_value: Number | None, max_value: Number | None) -> Operand:
    if is_bound(min_value):
        input = b.max(input, constant(b, min_value, input.data_type))
    return b.min(input, constant(b, max_value, input.data_type)) if is_bound(max_value) else input


@clamp.expression
def _(input: expr.Traced, min_value: Number | None, max_value: Number | None) -> expr.Traced:
    low, high = (value if is_bound(value) else None for value in (min_value, max_value))
    return expr.clamp(input, low, high)


@op(
    condition=Limits(LOGICAL),
    true_value=Limits(ANY),
    false_value=Limits("true_value"),
    output=Limits("true_value"),
)
def where(self: Builder, condition: Operand, true_value: Operand, false_value: Operand, *, label: str = "") -> Desc:
    """Choose between `true_value` and `false_value`, element by element.

    Args:
        condition: uint8, any rank; any value but 0 is true.
        true_value: the values where `condition` is true, any data type and rank.
        false_value: the values elsewhere, in the data type of `true_value`. The three shapes broadcast to each other.

    Returns: An operand of the data type of `true_value` and the broadcast shape.
    Raises: the data types differ, or the shapes do not broadcast.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-where

    >>> ow.ops.where(np.uint8([1, 0]), np.float32([1, 2]), np.float32([3, 4])).tolist()
    [1.0, 4.0]
    """
    values = broadcast(true_value.shape, false_value.shape, names="true_value and false_value")
    return Desc(true_value.data_type, broadcast(condition.shape, values, names="condition and the values"))


@where.decompose
def _(b: Operations, condition: Operand, true_value: Operand, false_value: Operand) -> Operand:
    # Gather instead of the specification's sum of products, which is NaN if the other value is infinite or NaN.
    shape = broadcast(condition.shape, true_value.shape, false_value.shape)
    row = [1, math.prod(shape)]
    choices = b.concat([b.reshape(b.expand(value, shape), row) for value in (false_value, true_value)], 0)
    is_true = b.cast(b.not_equal(b.expand(condition, shape), constant(b, 0, "uint8")), "int32")
    return b.reshape(b.gather_elements(choices, b.reshape(is_true, row), axis=0), shape)


_op: Op[..., Any]
for _op in (
    *(add, sub, mul, div, max, min, pow),
    *(ceil, cos, erf, exp, floor, log, reciprocal, round_even, sin, sqrt, tan),
    *(abs, neg, sign, where),
):
    _op.expression(on_arguments(partial(expr.apply, _op.name)))


# Remainders: `f` is a builder, or `opweave.expr`, whose functions have the same names.


def truncated_remainder(f: Any, a: Any, b: Any) -> Any:
    """The remainder with the sign of a."""
    if not is_float(a.data_type):
        return f.where(f.equal(b, 0), b, a - a / b * b)
    wide = "float64" if a.data_type == "float64" else "float32"
    return f.cast(_float_remainder(f, f.cast(a, wide), f.cast(b, wide)), a.data_type)


def floored_remainder(f: Any, a: Any, b: Any) -> Any:
    """The remainder with the sign of b."""
    return floor_remainder(f, truncated_remainder(f, a, b), b)


def floor_remainder(f: Any, remainder: Any, b: Any) -> Any:
    """Give a remainder with the sign of the dividend the sign of the divisor b."""
    differs = f.not_equal(f.lesser(remainder, 0), f.lesser(b, 0))
    return f.where(f.logical_and(f.not_equal(remainder, 0), differs), remainder + b, remainder)


def _float_remainder(f: Any, a: Any, b: Any) -> Any:
    """The remainder of float32 with the sign of a. It is exact up to a quotient of 2**46, and 0 for larger ones."""
    # Halves of larger numbers overflow.
    is_large = f.greater(f.abs(b), 2.0**90)
    x, y = (f.where(is_large, number * 2.0**-32, number) for number in (a, b))
    # The quotient may be rounded to more than 24 bits, so that the first remainder is still larger than the divisor.
    remainder = _exact_remainder(f, _exact_remainder(f, x, y), y)
    is_negative, size = f.lesser(a, 0), f.abs(y)
    step = f.where(is_negative, -size, size)
    remainder = f.where(f.lesser(remainder * step, 0), remainder + step, remainder)
    remainder = f.where(f.greater_or_equal(f.abs(remainder), size), remainder - step, remainder)
    # NaN for infinite a, and for b = 0.
    is_huge = f.greater_or_equal(f.abs(x / y), 2.0**46)
    remainder = f.where(is_huge, (a - a) / b, f.where(is_large, remainder * 2.0**32, remainder))
    return f.where(f.lesser(f.abs(a), f.abs(b)), a, remainder)


def _exact_remainder(f: Any, x: Any, y: Any) -> Any:
    """The remainder x - trunc(x / y) * y of float32, with the rounding error of the product (Dekker's product)."""
    ratio = x / y
    quotient = f.where(f.lesser(ratio, 0), f.ceil(ratio), f.floor(ratio))
    product = quotient * y
    (q_high, q_low), (y_high, y_low) = _halves(quotient), _halves(y)
    error = ((q_high * y_high - product) + q_high * y_low + q_low * y_high) + q_low * y_low
    return (x - product) - error


def _halves(x: Any) -> tuple[Any, Any]:
    """Two numbers of 12 bits each, whose sum is x."""
    scaled = x * 4097.0
    high = scaled - (scaled - x)
    return high, x - high


@modulus_floor.decompose
def _(builder: Operations, a: Operand, b: Operand) -> Operand:
    return floored_remainder(builder, a, b)  # type: ignore[no-any-return]


@modulus_truncate.decompose
def _(builder: Operations, a: Operand, b: Operand) -> Operand:
    return truncated_remainder(builder, a, b)  # type: ignore[no-any-return]
