"""Arithmetic, comparisons and bits of the standard: operations, and expressions for bits and remainders of integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import ops
from ..declaration import expression
from ..errors import ValidationError
from ..lazy.array import Array
from .arguments import as_array, converted, require_kind
from .declare import as_operands, binary, is_float, unary
from .types import check_number

# ---------------------------------------------------------------------------------------------------------------------
# Arithmetic

add = binary("add", "numeric", ops.add, "The sum of two arrays, element by element.")
subtract = binary("subtract", "numeric", ops.sub, "The difference of two arrays, element by element.")
multiply = binary("multiply", "numeric", ops.mul, "The product of two arrays, element by element.")
divide = binary("divide", "real floating", ops.div, "The quotient of two arrays of floats, element by element.")
maximum = binary("maximum", "numeric", ops.max, "The larger one of two elements; NaN if either is.")
minimum = binary("minimum", "numeric", ops.min, "The smaller one of two elements; NaN if either is.")
pow = binary("pow", "numeric", ops.pow, "`x1` to the power of `x2`, element by element.")


@expression
def _integer_quotient(a, b):  # type: ignore[no-untyped-def]
    return a // b


@expression
def _integer_remainder(a, b):  # type: ignore[no-untyped-def]
    return a % b


def _floor_divide(x1: Any, x2: Any) -> Array:
    a, b = as_operands(x1, x2)
    made: Array = ops.floor(ops.div(a, b)) if is_float(a) else _integer_quotient(a, b)
    return made


def _remainder(x1: Any, x2: Any) -> Array:
    a, b = as_operands(x1, x2)
    if not is_float(a):
        whole: Array = _integer_remainder(a, b)
        return whole
    # A quotient beyond the last place of `a` leaves no digit of the remainder; an infinite divisor leaves `a`, or itself.
    rest = ops.sub(a, ops.mul(ops.floor(ops.div(a, b)), b))
    same_side = ops.logical_or(ops.equal(a, 0.0), ops.equal(ops.lesser(a, 0.0), ops.lesser(b, 0.0)))
    wide = ops.logical_and(ops.is_infinite(b), ops.logical_not(ops.is_infinite(a)))
    bounded = ops.where(wide, ops.where(same_side, a, b), rest)
    return ops.where(ops.is_nan(a), a, bounded)


def _is_negative(x: Array) -> Array:
    """Whether each element has the sign bit, also -0."""
    return ops.logical_or(ops.lesser(x, 0.0), ops.lesser(ops.reciprocal(x), 0.0))


def with_sign_of(size: Array, x: Array) -> Array:
    """`size` with the sign of `x`. It is multiplied by 1 or -1: ONNX Runtime's Where would lose the sign of zero."""
    return ops.mul(size, ops.sub(1.0, ops.mul(ops.cast(_is_negative(x), x.data_type), 2.0)))


def _copysign(x1: Any, x2: Any) -> Array:
    size, sign = as_operands(x1, x2)
    return with_sign_of(ops.abs(size), sign)


copysign = binary("copysign", "real floating", _copysign, "Elements of the size of `x1` and the sign of `x2`.")
signbit = unary("signbit", "real floating", _is_negative, "Whether each element is negative, or -0.", to_mask=True)


def _whole(operation: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """A rounding function: integers stay as they are."""
    return lambda x: operation(x) if is_float(x) else x


floor_divide = binary(
    "floor_divide", "numeric", _floor_divide, "The quotient, rounded down; of integers, 0 for x // 0."
)
remainder = binary(
    "remainder", "numeric", _remainder, "The remainder that belongs to `floor_divide`, of the sign of `x2`."
)
conj = unary("conj", "numeric", lambda x: x, "The conjugate, which is the array itself: there are no complex numbers.")
positive = unary("positive", "numeric", lambda x: x, "The array itself.")
negative = unary(
    "negative",
    "numeric",
    lambda x: ops.sub(0, x) if x.dtype.kind == "u" else ops.neg(x),
    "Each element with the other sign.",
)
abs = unary("abs", "numeric", lambda x: x if x.dtype.kind == "u" else ops.abs(x), "The absolute value of each element.")
reciprocal = unary("reciprocal", "real floating", ops.reciprocal, "One divided by each element.")
square = unary("square", "numeric", lambda x: ops.mul(x, x), "Each element multiplied by itself.")
sqrt = unary("sqrt", "real floating", ops.sqrt, "The square root of each element; NaN for negative ones.")
ceil = unary("ceil", "numeric", _whole(ops.ceil), "Each element rounded up to an integer.")
floor = unary("floor", "numeric", _whole(ops.floor), "Each element rounded down to an integer.")
round = unary(
    "round", "numeric", _whole(ops.round_even), "Each element rounded to the nearest integer, halves to even."
)
trunc = unary(
    "trunc",
    "numeric",
    _whole(lambda x: with_sign_of(ops.floor(ops.abs(x)), x)),
    "Each element rounded towards zero.",
)


def _sign(x: Array) -> Array:
    if x.dtype.kind == "u":
        return ops.cast(ops.not_equal(x, 0), x.data_type)
    return ops.where(ops.is_nan(x), x, ops.sign(x)) if is_float(x) else ops.sign(x)


sign = unary("sign", "numeric", _sign, "-1, 0 or 1, as each element is below, at or above zero; NaN for NaN.")


def clip(x: Any, /, min: Any = None, max: Any = None) -> Array:
    """Each element limited to the range from `min` to `max`: numbers or arrays that broadcast to `x`; None for no bound.

    See https://data-apis.org/array-api/latest/API_specification/generated/array_api.clip.html

    Raises:
        ValidationError: a bound is of another kind than `x`, or of a type that `x` would have to be promoted to.
    """
    made = as_array(x, "clip")
    require_kind(made, "numeric", "clip")
    dtype = made.dtype
    for bound, limit in ((min, ops.max), (max, ops.min)):
        if bound is None:
            continue
        if isinstance(bound, (int, float)):
            check_number(bound, dtype, "clip")
        else:
            bound = as_array(bound, "clip")
            if bound.dtype.kind != dtype.kind:
                raise ValidationError(f"clip: bounds must be of the kind of x, {dtype}, got {bound.dtype}")
            bound = converted(bound, dtype)
        made = limit(made, bound)
    return made


# ---------------------------------------------------------------------------------------------------------------------
# Comparisons and truth values

equal = binary("equal", "numeric or bool", ops.equal, "Whether two elements are equal.", to_mask=True)
not_equal = binary("not_equal", "numeric or bool", ops.not_equal, "Whether two elements differ.", to_mask=True)
less = binary("less", "numeric", ops.lesser, "Whether elements are less.", to_mask=True)
less_equal = binary("less_equal", "numeric", ops.lesser_or_equal, "Whether elements are less or equal.", to_mask=True)
greater = binary("greater", "numeric", ops.greater, "Whether elements are greater.", to_mask=True)
greater_equal = binary(
    "greater_equal", "numeric", ops.greater_or_equal, "Whether elements are greater or equal.", to_mask=True
)
logical_and = binary("logical_and", "bool", ops.logical_and, "Whether both elements are true.")
logical_or = binary("logical_or", "bool", ops.logical_or, "Whether one of two elements is true, or both are.")
logical_xor = binary("logical_xor", "bool", ops.logical_xor, "Whether exactly one of two elements is true.")
logical_not = unary("logical_not", "bool", ops.logical_not, "Whether each element is false.", to_mask=True)
isnan = unary(
    "isnan",
    "numeric",
    lambda x: ops.is_nan(x) if is_float(x) else ops.not_equal(x, x),
    "Whether each element is NaN.",
    to_mask=True,
)
isinf = unary(
    "isinf",
    "numeric",
    lambda x: ops.is_infinite(x) if is_float(x) else ops.not_equal(x, x),
    "Whether each element is infinite.",
    to_mask=True,
)
isfinite = unary(
    "isfinite",
    "numeric",
    lambda x: ops.equal(ops.sub(x, x), 0.0) if is_float(x) else ops.equal(x, x),
    "Whether each element is neither NaN nor infinite.",
    to_mask=True,
)

# ---------------------------------------------------------------------------------------------------------------------
# Bits


@expression
def _bits_and(a, b):  # type: ignore[no-untyped-def]
    return a & b


@expression
def _bits_or(a, b):  # type: ignore[no-untyped-def]
    return a | b


@expression
def _bits_xor(a, b):  # type: ignore[no-untyped-def]
    return a ^ b


@expression
def _shifted_left(a, b):  # type: ignore[no-untyped-def]
    return a << b


@expression
def _shifted_right(a, b):  # type: ignore[no-untyped-def]
    return a >> b


def _bits(of_integers: Any, of_truths: Callable[[Any, Any], Array] | None = None) -> Callable[[Any, Any], Array]:
    """A function of bits: an expression for integers, an operation for truth values."""

    def compute(x1: Any, x2: Any) -> Array:
        a, b = as_operands(x1, x2)
        made: Array = of_truths(a, b) if of_truths is not None and a.dtype.kind == "b" else of_integers(a, b)
        return made

    return compute


_EITHER = "integral or bool"
bitwise_and = binary("bitwise_and", _EITHER, _bits(_bits_and, ops.logical_and), "The bits that both elements have.")
bitwise_or = binary("bitwise_or", _EITHER, _bits(_bits_or, ops.logical_or), "The bits that either element has.")
bitwise_xor = binary("bitwise_xor", _EITHER, _bits(_bits_xor, ops.logical_xor), "The bits that one element has.")
bitwise_left_shift = binary("bitwise_left_shift", "integral", _bits(_shifted_left), "Bits moved to higher places.")
bitwise_right_shift = binary(
    "bitwise_right_shift", "integral", _bits(_shifted_right), "Bits moved to lower places; the sign is kept."
)


def bitwise_invert(x: Any, /) -> Array:
    """All bits inverted.

    See https://data-apis.org/array-api/latest/API_specification/generated/array_api.bitwise_invert.html

    Raises:
        ValidationError: `x` is neither of integers nor of truth values.
    """
    bits = as_array(x, "bitwise_invert")
    require_kind(bits, _EITHER, "bitwise_invert")
    if bits.dtype.kind == "b":
        return logical_not(bits)
    return ops.sub((1 << 8 * bits.dtype.itemsize) - 1 if bits.dtype.kind == "u" else -1, bits)


__all__ = [
    "abs",
    "add",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "ceil",
    "clip",
    "conj",
    "copysign",
    "divide",
    "equal",
    "floor",
    "floor_divide",
    "greater",
    "greater_equal",
    "isfinite",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "multiply",
    "negative",
    "not_equal",
    "positive",
    "pow",
    "reciprocal",
    "remainder",
    "round",
    "sign",
    "signbit",
    "sqrt",
    "square",
    "subtract",
    "trunc",
]
