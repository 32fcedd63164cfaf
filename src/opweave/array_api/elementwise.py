"""Arithmetic and comparisons of the standard: operations, and expressions for quotients and remainders of integers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from .. import ops
from ..core.dtypes import FLOAT64
from ..custom import expression
from ..lazy.array import Array
from ..support.errors import ValidationError
from . import host
from .arguments import as_array, convert, require_kind
from .declare import as_operands, binary, is_float, unary
from .types import check_number, promote

_comparison, _test = partial(binary, to_mask=True), partial(unary, to_mask=True)

# ---------------------------------------------------------------------------------------------------------------------
# Arithmetic

add = binary(
    "add",
    "numeric",
    ops.add,
    "Add two arrays, element by element.",
    ([1.0, 2.0], [[10.0], [20.0]]),
    "[[11.0, 12.0], [21.0, 22.0]]",
)
subtract = binary(
    "subtract", "numeric", ops.sub, "Subtract `x2` from `x1`, element by element.", ([5, 7], [1, 2]), "[4, 5]"
)
multiply = binary(
    "multiply", "numeric", ops.mul, "Multiply two arrays, element by element.", ([1, 2], [3, 4]), "[3, 8]"
)
divide = binary(
    "divide", "real floating", ops.div, "Divide `x1` by `x2`, element by element.", ([1.0, 6.0], 4.0), "[0.25, 1.5]"
)
maximum = binary(
    "maximum", "numeric", ops.max, "The larger of two elements; NaN if one of them is NaN.", ([1, 5], [4, 2]), "[4, 5]"
)
minimum = binary(
    "minimum", "numeric", ops.min, "The smaller of two elements; NaN if one of them is NaN.", ([1, 5], [4, 2]), "[1, 2]"
)
pow = binary(
    "pow",
    "numeric",
    ops.pow,
    "Raise `x1` to the power of `x2`, element by element.",
    ([2.0, 4.0], [3.0, -1.0]),
    "[8.0, 0.25]",
)


@expression
def _integer_quotient(a, b):  # type: ignore[no-untyped-def]
    return a // b


@expression
def _integer_remainder(a, b):  # type: ignore[no-untyped-def]
    return a % b


def _float_division(x1: Array, x2: Array) -> tuple[Array, Array]:
    """Return floor(x1 / x2) and the remainder x1 - floor(x1 / x2) * x2, in [0, |x2|] with the sign of x2.

    In float16 both are exact before the last rounding: the quotient is computed in float32, twelve bits at a time, and float32
    holds the product of twelve bits and a float16 number. In float32, the product of quotient and divisor is rounded.
    """
    is_half = x1.data_type == "float16"
    a, b = (ops.cast(x, "float32") for x in (x1, x2)) if is_half else (x1, x2)
    size, divisor = ops.abs(a), ops.abs(b)
    ratio = ops.div(size, divisor)
    whole, remainder = ops.mul(ratio, 0.0), size
    for scale in (2.0**36, 2.0**24, 2.0**12, 1.0) if is_half else (1.0,):
        digits = ops.floor(ops.div(ops.mul(remainder, 1 / scale), divisor))
        part = ops.mul(digits, scale)
        # For an infinite divisor, digits is 0 and part * divisor is NaN: keep the remainder.
        remainder = ops.where(ops.equal(digits, 0.0), remainder, ops.sub(remainder, ops.mul(part, divisor)))
        # If the ratio was rounded up to an integer, subtract one.
        is_beyond = ops.lesser(remainder, 0.0)
        remainder = ops.where(is_beyond, ops.add(remainder, ops.mul(divisor, scale)), remainder)
        whole = ops.add(whole, ops.where(is_beyond, ops.sub(part, scale), part))
    if not is_half:
        is_short = ops.logical_and(ops.greater_or_equal(remainder, divisor), ops.lesser(divisor, math.inf))
        remainder = ops.max(ops.where(is_short, ops.sub(remainder, divisor), remainder), 0.0)
        whole = ops.where(is_short, ops.add(whole, 1.0), whole)
        # Beyond 2^24, neighbouring numbers are about a divisor apart: no digit of the remainder is correct.
        is_vast = ops.greater_or_equal(ratio, 2.0**24)
        remainder = ops.where(is_vast, 0.0, ops.min(remainder, divisor))
        whole = ops.where(is_vast, ratio, whole)
    is_undefined = ops.logical_or(ops.is_nan(ratio), ops.logical_or(ops.is_infinite(a), ops.equal(b, 0.0)))
    remainder = ops.where(is_undefined, math.nan, remainder)
    is_opposite = ops.not_equal(is_negative(a), is_negative(b))
    is_above = ops.logical_and(is_opposite, ops.greater(remainder, 0.0))
    remainder = ops.where(is_above, ops.sub(divisor, remainder), remainder)
    whole = ops.where(is_above, ops.add(whole, 1.0), whole)
    # The standard returns x1 / x2 for x2 = 0 and for infinite x2, not -1.
    whole = ops.where(ops.logical_or(is_undefined, ops.is_infinite(b)), ratio, whole)
    quotient = ops.mul(ops.mul(whole, _sign_factor(a)), _sign_factor(b))
    remainder = ops.mul(remainder, _sign_factor(b))
    return (ops.cast(quotient, "float16"), ops.cast(remainder, "float16")) if is_half else (quotient, remainder)


def _floor_divide(x1: Any, x2: Any) -> Array:
    a, b = as_operands(x1, x2)
    if a.data_type == FLOAT64:
        return host.BINARY["floor_divide"](a, b)  # type: ignore[no-any-return]
    result: Array = _float_division(a, b)[0] if is_float(a) else _integer_quotient(a, b)
    return result


def _remainder(x1: Any, x2: Any) -> Array:
    a, b = as_operands(x1, x2)
    if a.data_type == FLOAT64:
        return host.BINARY["remainder"](a, b)  # type: ignore[no-any-return]
    result: Array = _float_division(a, b)[1] if is_float(a) else _integer_remainder(a, b)
    return result


def is_negative(x: Array) -> Array:
    """Test the sign bit of each element, also of -0."""
    return ops.logical_or(ops.lesser(x, 0.0), ops.lesser(ops.reciprocal(x), 0.0))


def _sign_factor(x: Array) -> Array:
    """Return -1 for negative elements and -0, else 1."""
    return ops.sub(1.0, ops.mul(ops.cast(is_negative(x), x.data_type), 2.0))


def with_sign_of(size: Array, x: Array) -> Array:
    """Return `size` with the sign of `x`: size * ±1, because ONNX Runtime's Where would lose the sign of zero."""
    return ops.mul(size, _sign_factor(x))


def _copysign(x1: Any, x2: Any) -> Array:
    size, sign = as_operands(x1, x2)
    return with_sign_of(ops.abs(size), sign)


copysign = binary(
    "copysign",
    "real floating",
    _copysign,
    "The magnitude of `x1` with the sign of `x2`.",
    ([1.0, 2.0], [-3.0, 3.0]),
    "[-1.0, 2.0]",
)
signbit = _test(
    "signbit",
    "real floating",
    is_negative,
    "Whether the sign bit of each element is set, as for negative numbers and -0.",
    [-2.0, -0.0, 3.0],
    "[True, True, False]",
)


nextafter = binary(
    "nextafter",
    "real floating",
    lambda x1, x2: host.nextafter(*as_operands(x1, x2)),
    "The next number of the data type after `x1`, towards `x2`. It is computed on the processor, also in contexts on GPUs.",
    ([1.0, 0.5], [1.0, 0.5]),
    "[1.0, 0.5]",
)


def _whole(operation: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Make a rounding function, which returns integers unchanged."""
    return lambda x: operation(x) if is_float(x) else x


floor_divide = binary(
    "floor_divide",
    "numeric",
    _floor_divide,
    "Divide `x1` by `x2` and round down; an integer divided by 0 is 0.",
    ([7, -7], 2),
    "[3, -4]",
)
remainder = binary(
    "remainder",
    "numeric",
    _remainder,
    "The remainder of `floor_divide`, with the sign of `x2`.",
    ([7, -7], 4),
    "[3, 1]",
)
conj = unary(
    "conj",
    "numeric",
    lambda x: x,
    "The complex conjugate; numbers without an imaginary part.",
    [1.0, 2.0],
    "[1.0, 2.0]",
)
real = unary("real", "numeric", lambda x: x, "The real part of each element.", [1.0, 2.0], "[1.0, 2.0]")
imag = unary(
    "imag",
    "complex floating",
    lambda x: x,
    "The imaginary part of each element.",
    [1.0 + 2.0j, 3.0],
    "[2.0, 0.0]",
)
positive = unary("positive", "numeric", lambda x: x, "The array itself: unary plus.", [1, -2], "[1, -2]")
negative = unary(
    "negative",
    "numeric",
    lambda x: ops.sub(0, x) if x.dtype.kind == "u" else ops.neg(x),
    "Negate each element; unsigned integers wrap around.",
    [1, -2],
    "[-1, 2]",
)
abs = unary(
    "abs",
    "numeric",
    lambda x: x if x.dtype.kind == "u" else ops.abs(x),
    "The absolute value of each element.",
    [-1.5, 2.0],
    "[1.5, 2.0]",
)
reciprocal = unary(
    "reciprocal", "real floating", ops.reciprocal, "One divided by each element.", [2.0, -4.0], "[0.5, -0.25]"
)
square = unary("square", "numeric", lambda x: ops.mul(x, x), "Each element multiplied by itself.", [3, -4], "[9, 16]")
sqrt = unary(
    "sqrt",
    "real floating",
    ops.sqrt,
    "The square root of each element; NaN for negative ones.",
    [9.0, -1.0],
    "[3.0, nan]",
)
ceil = unary("ceil", "numeric", _whole(ops.ceil), "Each element rounded up to an integer.", [-1.5, 1.5], "[-1.0, 2.0]")
floor = unary(
    "floor", "numeric", _whole(ops.floor), "Each element rounded down to an integer.", [-1.5, 1.5], "[-2.0, 1.0]"
)
round = unary(
    "round",
    "numeric",
    _whole(ops.round_even),
    "Each element rounded to the nearest integer, halves to even.",
    [0.5, 1.5, 1.6],
    "[0.0, 2.0, 2.0]",
)
trunc = unary(
    "trunc",
    "numeric",
    _whole(lambda x: with_sign_of(ops.floor(ops.abs(x)), x)),
    "Each element rounded towards zero.",
    [-1.5, 1.5],
    "[-1.0, 1.0]",
)


def _sign(x: Array) -> Array:
    if x.dtype.kind == "u":
        return ops.cast(ops.not_equal(x, 0), x.data_type)
    return ops.where(ops.is_nan(x), x, ops.sign(x)) if is_float(x) else ops.sign(x)


sign = unary("sign", "numeric", _sign, "The sign of each element: -1, 0 or 1; NaN for NaN.", [-2, 0, 3], "[-1, 0, 1]")


def clip(x: Any, /, min: Any = None, max: Any = None) -> Array:
    """Limit elements to the range from `min` to `max`.

    https://data-apis.org/array-api/latest/API_specification/generated/array_api.clip.html

    Args:
        x: integers or floats.
        min: the lower bound, a number or an array that broadcasts with `x`; default: none.
        max: the upper bound, a number or an array that broadcasts with `x`; default: none.

    Returns: An array of the broadcast shape, in the data type of `x`.
    Raises: `x` is neither integers nor floats, or its data type does not hold that of a bound.

    >>> xp.clip(xp.asarray([-1.0, 0.5, 3.0]), 0.0, 1.0).tolist()
    [0.0, 0.5, 1.0]
    """
    result = as_array(x, "clip")
    require_kind(result, "numeric", "clip")
    dtype = result.dtype
    for bound, limit in ((min, ops.max), (max, ops.min)):
        if bound is None:
            continue
        if isinstance(bound, (int, float)):
            check_number(bound, dtype, "clip")
        else:
            bound = as_array(bound, "clip")
            if promote(bound.dtype, dtype) != dtype:
                raise ValidationError(f"clip: bounds must have a data type that {dtype} of x holds, got {bound.dtype}")
            bound = convert(bound, dtype)
        result = limit(result, bound)
    return result


# ---------------------------------------------------------------------------------------------------------------------
# Comparisons and truth values

equal = _comparison(
    "equal",
    "numeric or bool",
    ops.equal,
    "Whether `x1` is equal to `x2`, by element.",
    ([1, 2, 3], 2),
    "[False, True, False]",
)
not_equal = _comparison(
    "not_equal",
    "numeric or bool",
    ops.not_equal,
    "Whether `x1` differs from `x2`, by element.",
    ([1, 2, 3], 2),
    "[True, False, True]",
)
less = _comparison(
    "less", "numeric", ops.lesser, "Whether `x1` is less than `x2`, by element.", ([1, 2, 3], 2), "[True, False, False]"
)
less_equal = _comparison(
    "less_equal",
    "numeric",
    ops.lesser_or_equal,
    "Whether `x1` is less than or equal to `x2`, by element.",
    ([1, 2, 3], 2),
    "[True, True, False]",
)
greater = _comparison(
    "greater",
    "numeric",
    ops.greater,
    "Whether `x1` is greater than `x2`, by element.",
    ([1, 2, 3], 2),
    "[False, False, True]",
)
greater_equal = _comparison(
    "greater_equal",
    "numeric",
    ops.greater_or_equal,
    "Whether `x1` is greater than or equal to `x2`, by element.",
    ([1, 2, 3], 2),
    "[False, True, True]",
)
logical_and = binary(
    "logical_and",
    "bool",
    ops.logical_and,
    "Whether both elements are true.",
    ([False, True], [True, True]),
    "[False, True]",
)
logical_or = binary(
    "logical_or",
    "bool",
    ops.logical_or,
    "Whether at least one of two elements is true.",
    ([False, True], [False, False]),
    "[False, True]",
)
logical_xor = binary(
    "logical_xor",
    "bool",
    ops.logical_xor,
    "Whether exactly one of two elements is true.",
    ([False, True], [True, True]),
    "[True, False]",
)
logical_not = _test(
    "logical_not", "bool", ops.logical_not, "Whether each element is false.", [False, True], "[True, False]"
)
isnan = _test(
    "isnan",
    "numeric",
    lambda x: ops.is_nan(x) if is_float(x) else ops.not_equal(x, x),
    "Whether each element is NaN.",
    [1.0, math.nan, -math.inf],
    "[False, True, False]",
)
isinf = _test(
    "isinf",
    "numeric",
    lambda x: ops.is_infinite(x) if is_float(x) else ops.not_equal(x, x),
    "Whether each element is infinite.",
    [1.0, math.nan, -math.inf],
    "[False, False, True]",
)
isfinite = _test(
    "isfinite",
    "numeric",
    lambda x: ops.equal(ops.sub(x, x), 0.0) if is_float(x) else ops.equal(x, x),
    "Whether each element is neither NaN nor infinite.",
    [1.0, math.nan, -math.inf],
    "[True, False, False]",
)


__all__ = [
    "abs", "add", "ceil", "clip", "conj", "copysign", "divide", "equal", "floor", "floor_divide", "greater",
    "greater_equal", "imag", "isfinite", "isinf", "isnan", "less", "less_equal", "logical_and", "logical_not", "logical_or",
    "logical_xor", "maximum", "minimum", "multiply", "negative", "nextafter", "not_equal", "positive", "pow", "real",
    "reciprocal", "remainder", "round", "sign", "signbit", "sqrt", "square", "subtract", "trunc",
]  # fmt: skip
