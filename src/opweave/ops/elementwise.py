"""Element-wise operations: arithmetic of two operands, functions of one, cast, clamp, where."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeGuard

from .. import expr
from ..conversion import Number
from ..dtypes import ANY, FLOATS, LOGICAL, SIGNED, DataType
from ..errors import require
from ..graph import Builder, Desc, Operand
from ..operation import Limits, Op, op
from ..shapes import broadcast

if TYPE_CHECKING:
    from . import Operations


def on_arguments(function: Callable[..., expr.Array]) -> Callable[..., expr.Array]:
    """The expression of an operation that calls `function` with operands and attributes in order."""
    return lambda **arguments: function(*arguments.values())


@op(a=Limits(ANY), b=Limits("a"), output=Limits("a"))
def _binary(self: Builder, a: Operand, b: Operand, *, label: str = "") -> Desc:
    """Combine `a` and `b` element by element.

    Args:
        a: any data type, any rank.
        b: the data type of `a`; its shape and that of `a` broadcast to each other.
        label: a name for messages and tables.

    Returns:
        An operand of the data type of `a` and the broadcast shape.

    Raises:
        ValidationError: the data types differ, or the shapes do not broadcast.

    Integers wrap around on overflow. https://www.w3.org/TR/webnn/#api-mlgraphbuilder-binary
    """
    return Desc(a.data_type, broadcast(a.shape, b.shape))


add = _binary.named("add", "Add `a` and `b`, element by element.")
sub = _binary.named("sub", "Subtract `b` from `a`, element by element.")
mul = _binary.named("mul", "Multiply `a` and `b`, element by element.")
div = _binary.named(
    "div", "Divide `a` by `b`, element by element.\n\nIntegers are truncated toward zero; an integer divided by 0 is 0."
)
max = _binary.named("max", "Maximum of `a` and `b`, element by element.\n\nThe result is NaN where either of them is.")
min = _binary.named("min", "Minimum of `a` and `b`, element by element.\n\nThe result is NaN where either of them is.")
pow = _binary.named(
    "pow",
    "Raise `a` to the power of `b`, element by element.\n\n"
    "A negative power of an integer is 1 / a**-b, truncated toward zero.",
)


@op(input=Limits(FLOATS))
def _unary(self: Builder, input: Operand, *, label: str = "") -> Desc:
    """Map a function over the elements of `input`.

    Args:
        input: float32 or float16, any rank.
        label: a name for messages and tables.

    Returns:
        An operand of the data type and shape of `input`.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary
    """
    return input.desc


ceil = _unary.named("ceil", "Round each element up to an integer.")
cos = _unary.named("cos", "Cosine of each element, in radians.")
erf = _unary.named("erf", "Error function of each element.")
exp = _unary.named("exp", "Raise e to the power of each element.")
floor = _unary.named("floor", "Round each element down to an integer.")
log = _unary.named("log", "Natural logarithm of each element.")
reciprocal = _unary.named("reciprocal", "One divided by each element.")
round_even = _unary.named("round_even", "Round each element to the nearest integer, halves to the even one.")
sin = _unary.named("sin", "Sine of each element, in radians.")
sqrt = _unary.named("sqrt", "Square root of each element; NaN for negative ones.")
tan = _unary.named("tan", "Tangent of each element, in radians.")


@ceil.decompose
def _(b: Operations, input: Operand) -> Operand:
    return -b.floor(-input)


@reciprocal.decompose
def _(b: Operations, input: Operand) -> Operand:
    return 1 / input


@tan.decompose
def _(b: Operations, input: Operand) -> Operand:
    return b.sin(input) / b.cos(input)


@op(input=Limits(SIGNED))
def _signed_unary(self: Builder, input: Operand, *, label: str = "") -> Desc:
    """Map a function over the elements of `input`.

    Args:
        input: float32, float16, int64, int32 or int8, any rank.
        label: a name for messages and tables.

    Returns:
        An operand of the data type and shape of `input`.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary
    """
    return input.desc


abs = _signed_unary.named(
    "abs",
    "Absolute value of each element.\n\nThe lowest integer stays as it is: its positive counterpart does not exist.",
)
neg = _signed_unary.named(
    "neg", "Negate each element.\n\nThe lowest integer stays as it is: its positive counterpart does not exist."
)
sign = _signed_unary.named(
    "sign", "Sign of each element: 1 if it is greater than 0, -1 if it is less, 0 if neither (0 and NaN)."
)


@abs.decompose
def _(b: Operations, input: Operand) -> Operand:
    return b.max(input, -input)


@neg.decompose
def _(b: Operations, input: Operand) -> Operand:
    return input * -1


@sign.decompose
def _(b: Operations, input: Operand) -> Operand:
    zero = b.as_operand(0, input.data_type)
    return b.cast(b.greater(input, zero), input.data_type) - b.cast(b.lesser(input, zero), input.data_type)


@op(input=Limits(ANY))
def identity(self: Builder, input: Operand, *, label: str = "") -> Desc:
    """Return `input` unchanged.

    Args:
        input: any data type, any rank.
        label: a name for messages and tables.

    Returns:
        An operand of the data type, shape and values of `input`.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-unary
    """
    return input.desc


@identity.decompose
def _(b: Operations, input: Operand) -> Operand:
    return input


@identity.expression
def _(input: expr.Array) -> expr.Array:
    return input


@op(input=Limits(ANY), output=Limits(ANY, ranks="input"))
def cast(self: Builder, input: Operand, data_type: DataType, *, label: str = "") -> Desc:
    """Convert each element to another data type.

    Integers become floats by rounding to the nearest one (or infinity), floats become integers by truncation toward
    zero. Integers that the new type cannot hold wrap around: their lowest bits are kept. The result for a float
    outside of the range of the integer type, and for NaN, depends on the back end.

    Args:
        input: any data type, any rank.
        data_type: of the result.
        label: a name for messages and tables.

    Returns:
        An operand of `data_type` and the shape of `input`.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-cast
    """
    return Desc(data_type, input.shape)


cast.expression(on_arguments(expr.cast))


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
        input: any data type, any rank.
        min_value: the lowest result, converted to the data type of `input`; None (or NaN, where that is a float): no
            bound.
        max_value: the highest result, likewise.
        label: a name for messages and tables.

    Returns:
        An operand of the data type and shape of `input`; NaN where that is NaN.

    Raises:
        ValidationError: `min_value` is greater than `max_value`, after conversion to the data type of `input`.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-clamp
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
        input = b.max(input, b.as_operand(min_value, input.data_type))
    return b.min(input, b.as_operand(max_value, input.data_type)) if is_bound(max_value) else input


@clamp.expression
def _(input: expr.Array, min_value: Number | None, max_value: Number | None) -> expr.Array:
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
        label: a name for messages and tables.

    Returns:
        An operand of the data type of `true_value` and the broadcast shape.

    Raises:
        ValidationError: the data types differ, or the shapes do not broadcast.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-where
    """
    values = broadcast(true_value.shape, false_value.shape, names="true_value and false_value")
    return Desc(true_value.data_type, broadcast(condition.shape, values, names="condition and the values"))


@where.decompose
def _(b: Operations, condition: Operand, true_value: Operand, false_value: Operand) -> Operand:
    # Gather instead of the specification's sum of products, which is NaN if the other value is infinite or NaN.
    shape = broadcast(condition.shape, true_value.shape, false_value.shape)
    row = [1, math.prod(shape)]
    choices = b.concat([b.reshape(b.expand(value, shape), row) for value in (false_value, true_value)], 0)
    is_true = b.cast(b.not_equal(b.expand(condition, shape), b.as_operand(0, "uint8")), "int32")
    return b.reshape(b.gather_elements(choices, b.reshape(is_true, row), axis=0), shape)


_op: Op[..., Any]
for _op in (
    *(add, sub, mul, div, max, min, pow),
    *(ceil, cos, erf, exp, floor, log, reciprocal, round_even, sin, sqrt, tan),
    *(abs, neg, sign, where),
):
    _op.expression(on_arguments(partial(expr.apply, _op.name)))
