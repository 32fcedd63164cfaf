"""Exponents, logarithms, angles and distances of the standard, as formulas of WebNN's operations.

The formulas stay accurate near zero (`log1p`, `expm1`) and do not overflow early (`hypot`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from .. import ops
from ..lazy.array import Array
from .declare import as_operands, binary, unary
from .elementwise import is_negative, with_sign_of


def _in_float32(compute: Callable[..., Array]) -> Callable[..., Array]:
    """Compute a function of float16 in float32, because parts of its formula overflow or underflow before the result."""

    def function(*arguments: Array) -> Array:
        data_type = arguments[0].data_type
        if data_type == "float32":
            return compute(*arguments)
        return ops.cast(compute(*(ops.cast(x, "float32") for x in arguments)), data_type)

    return function


def _log2(x: Array) -> Array:
    return ops.div(ops.log(x), math.log(2))


def _log10(x: Array) -> Array:
    return ops.div(ops.log(x), math.log(10))


exp = unary("exp", "real floating", ops.exp, "e to the power of each element.", [0.0, 1.0], "[1.0, 2.718...]")
log = unary("log", "real floating", ops.log, "The natural logarithm of each element.", [1.0, 10.0], "[0.0, 2.302...]")
log2 = unary(
    "log2", "real floating", _in_float32(_log2), "The base-2 logarithm of each element.", [1.0, 10.0], "[0.0, 3.321...]"
)
log10 = unary(
    "log10",
    "real floating",
    _in_float32(_log10),
    "The base-10 logarithm of each element.",
    [1.0, 2.0],
    "[0.0, 0.301...]",
)
sin = unary("sin", "real floating", ops.sin, "The sine of each element, in radians.", [0.0, 1.0], "[0.0, 0.841...]")
cos = unary("cos", "real floating", ops.cos, "The cosine of each element, in radians.", [0.0, 1.0], "[1.0, 0.540...]")
tan = unary("tan", "real floating", ops.tan, "The tangent of each element, in radians.", [0.0, 1.0], "[0.0, 1.557...]")
tanh = unary(
    "tanh", "real floating", ops.tanh, "The hyperbolic tangent of each element.", [0.0, 1.0], "[0.0, 0.761...]"
)


def _log1p(x: Array) -> Array:
    """Compute x * log(u) / (u - 1) for u = 1 + x, rounded: the error of u cancels (Kahan; Goldberg 1991, theorem 4)."""
    u = ops.add(x, 1.0)
    is_limit = ops.logical_or(ops.equal(u, 1.0), ops.equal(u, math.inf))
    return ops.mul(x, ops.where(is_limit, 1.0, ops.div(ops.log(u), ops.sub(u, 1.0))))


def _expm1(x: Array) -> Array:
    """Compute x * (u - 1) / log(u) for u = exp(x), rounded: the error of u cancels (Kahan; Higham 2002, section 1.14.1)."""
    # Below -30 the result is -1. Further below, u would be 0 and log(u) infinite.
    x = ops.max(x, -30.0)
    u = ops.exp(x)
    slope = ops.div(ops.sub(u, 1.0), ops.log(u))
    slope = ops.where(ops.is_infinite(u), math.inf, ops.where(ops.equal(u, 1.0), 1.0, slope))
    return ops.mul(x, slope)


def _sinh(x: Array) -> Array:
    """Compute exp(x) / 2 as exp(x / 2) / 2 * exp(x / 2) for large x, which overflows no earlier than the result."""
    size = ops.abs(x)
    grown = _expm1(size)
    small = ops.mul(ops.add(grown, ops.div(grown, ops.add(grown, 1.0))), 0.5)
    half = ops.exp(ops.mul(size, 0.5))
    large = ops.mul(ops.mul(half, 0.5), half)
    return with_sign_of(ops.where(ops.greater(size, 20.0), large, small), x)


def _cosh(x: Array) -> Array:
    half = ops.exp(ops.mul(ops.abs(x), 0.5))
    return ops.add(ops.mul(ops.mul(half, 0.5), half), ops.div(ops.div(0.5, half), half))


_FAR = 1e4
"""From here on, sqrt(x^2 ± 1) = x in float32, and x^2 is still finite."""


def _asinh(x: Array) -> Array:
    size = ops.abs(x)
    near = ops.add(size, ops.div(ops.mul(size, size), ops.add(ops.sqrt(ops.add(ops.mul(size, size), 1.0)), 1.0)))
    far = ops.add(ops.log(size), math.log(2))
    return with_sign_of(ops.where(ops.greater(size, _FAR), far, _log1p(near)), x)


def _acosh(x: Array) -> Array:
    above = ops.sub(x, 1.0)
    near = ops.add(above, ops.sqrt(ops.add(ops.mul(above, 2.0), ops.mul(above, above))))
    result = ops.where(ops.greater(x, _FAR), ops.add(ops.log(x), math.log(2)), _log1p(near))
    # Far below 1, `near` is rounded to 0, not NaN.
    return ops.where(ops.lesser(x, 1.0), math.nan, result)


def _atanh(x: Array) -> Array:
    size = ops.abs(x)
    return with_sign_of(ops.mul(_log1p(ops.div(ops.mul(size, 2.0), ops.sub(1.0, size))), 0.5), x)


def _logaddexp(a: Array, b: Array) -> Array:
    # The difference of equal infinities is NaN, not 0.
    apart = ops.where(ops.equal(a, b), 0.0, ops.abs(ops.sub(a, b)))
    return ops.add(ops.max(a, b), _log1p(ops.exp(ops.neg(apart))))


def _hypot(x1: Array, x2: Array) -> Array:
    a, b = ops.abs(x1), ops.abs(x2)
    large, small = ops.max(a, b), ops.min(a, b)
    part = ops.div(small, large)
    result = ops.mul(large, ops.sqrt(ops.add(ops.mul(part, part), 1.0)))
    result = ops.where(ops.equal(large, 0.0), large, result)
    is_infinite = ops.logical_or(ops.is_infinite(a), ops.is_infinite(b))
    return ops.where(is_infinite, math.inf, result)


def _polynomial(z: Array, *coefficients: float) -> Array:
    """Evaluate the polynomial with these coefficients, highest power first."""
    result: Array = ops.mul(z, coefficients[0])
    for coefficient in coefficients[1:-1]:
        result = ops.mul(ops.add(result, coefficient), z)
    return ops.add(result, coefficients[-1])


def _atan_of_size(size: Array) -> Array:
    """Compute atan(size) for size >= 0, with intervals and polynomial of Cephes, atanf (Moshier 1992)."""
    is_middle, is_large = ops.greater(size, math.tan(math.pi / 8)), ops.greater(size, math.tan(3 * math.pi / 8))
    middle = ops.div(ops.sub(size, 1.0), ops.add(size, 1.0))
    x = ops.where(is_large, ops.neg(ops.reciprocal(size)), ops.where(is_middle, middle, size))
    start = ops.mul(ops.cast(ops.add(is_middle, is_large), "float32"), math.pi / 4)
    z = ops.mul(x, x)
    bend = _polynomial(z, 8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
    return ops.add(start, ops.add(ops.mul(ops.mul(bend, z), x), x))


def _atan(x: Array) -> Array:
    return with_sign_of(_atan_of_size(ops.abs(x)), x)


def _asin_of_size(size: Array) -> Array:
    """Compute asin(size) for size in [0, 0.5], with the polynomial of Cephes, asinf."""
    z = ops.mul(size, size)
    bend = _polynomial(z, 4.2163199048e-2, 2.4181311049e-2, 4.5470025998e-2, 7.4953002686e-2, 1.6666752422e-1)
    return ops.add(ops.mul(ops.mul(bend, z), size), size)


def _rest(size: Array) -> Array:
    """Compute acos(size) = 2 * asin(sqrt((1 - size) / 2)) for size in [0.5, 1]; NaN beyond 1."""
    return ops.mul(_asin_of_size(ops.sqrt(ops.mul(ops.sub(1.0, size), 0.5))), 2.0)


def _asin(x: Array) -> Array:
    size = ops.abs(x)
    angle = ops.where(ops.greater(size, 0.5), ops.sub(math.pi / 2, _rest(size)), _asin_of_size(size))
    return with_sign_of(angle, x)


def _acos(x: Array) -> Array:
    size = ops.abs(x)
    rest = _rest(size)
    outside = ops.where(ops.lesser(x, 0.0), ops.sub(math.pi, rest), rest)
    return ops.where(ops.greater(size, 0.5), outside, ops.sub(math.pi / 2, with_sign_of(_asin_of_size(size), x)))


def _atan2(y: Array, x: Array) -> Array:
    """Compute the angle of min / max in [0, pi / 4], and reflect it into the octant of (x, y)."""
    a, b = ops.abs(y), ops.abs(x)
    large = ops.max(a, b)
    ratio = ops.div(ops.min(a, b), large)
    both = ops.logical_and(ops.is_infinite(a), ops.is_infinite(b))
    ratio = ops.where(ops.equal(large, 0.0), 0.0, ops.where(both, 1.0, ratio))
    angle = _atan_of_size(ratio)
    angle = ops.where(ops.greater(a, b), ops.sub(math.pi / 2, angle), angle)
    return with_sign_of(ops.where(is_negative(x), ops.sub(math.pi, angle), angle), y)


log1p = unary(
    "log1p",
    "real floating",
    _in_float32(_log1p),
    "The logarithm of 1 + x, accurate for small x.",
    [0.0, 1.0],
    "[0.0, 0.693...]",
)
expm1 = unary(
    "expm1", "real floating", _in_float32(_expm1), "exp(x) - 1, accurate for small x.", [0.0, 1.0], "[0.0, 1.718...]"
)
sinh = unary(
    "sinh", "real floating", _in_float32(_sinh), "The hyperbolic sine of each element.", [0.0, 1.0], "[0.0, 1.175...]"
)
cosh = unary(
    "cosh", "real floating", _in_float32(_cosh), "The hyperbolic cosine of each element.", [0.0, 1.0], "[1.0, 1.543...]"
)
asinh = unary(
    "asinh",
    "real floating",
    _in_float32(_asinh),
    "The inverse hyperbolic sine of each element.",
    [0.0, 1.0],
    "[0.0, 0.881...]",
)
acosh = unary(
    "acosh",
    "real floating",
    _in_float32(_acosh),
    "The inverse hyperbolic cosine of each element; NaN below 1.",
    [1.0, 2.0],
    "[0.0, 1.316...]",
)
atanh = unary(
    "atanh",
    "real floating",
    _in_float32(_atanh),
    "The inverse hyperbolic tangent of each element; NaN outside of [-1, 1].",
    [0.0, 0.5],
    "[0.0, 0.549...]",
)
logaddexp = binary(
    "logaddexp",
    "real floating",
    lambda x1, x2: _in_float32(_logaddexp)(*as_operands(x1, x2)),
    "The logarithm of exp(x1) + exp(x2), without overflow of the exponentials.",
    ([0.0, 500.0], [0.0, 500.0]),
    "[0.693..., 500.693...]",
)
acos = unary(
    "acos",
    "real floating",
    _in_float32(_acos),
    "The inverse cosine of each element, in [0, π]; NaN outside of [-1, 1].",
    [1.0, -1.0],
    "[0.0, 3.141...]",
)
asin = unary(
    "asin",
    "real floating",
    _in_float32(_asin),
    "The inverse sine of each element, in [-π/2, π/2]; NaN outside of [-1, 1].",
    [0.0, 1.0],
    "[0.0, 1.570...]",
)
atan = unary(
    "atan",
    "real floating",
    _in_float32(_atan),
    "The inverse tangent of each element, in [-π/2, π/2].",
    [0.0, 1.0],
    "[0.0, 0.785...]",
)
atan2 = binary(
    "atan2",
    "real floating",
    lambda x1, x2: _in_float32(_atan2)(*as_operands(x1, x2)),
    "The angle of the point (`x2`, `x1`) from the positive x axis, in [-π, π].",
    ([1.0, 1.0], [1.0, -1.0]),
    "[0.785..., 2.356...]",
)
hypot = binary(
    "hypot",
    "real floating",
    lambda x1, x2: _in_float32(_hypot)(*as_operands(x1, x2)),
    "The square root of x1² + x2², without overflow of the squares.",
    ([3.0, 5.0], [4.0, 12.0]),
    "[5.0, 13.0]",
)

__all__ = [
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "exp", "expm1", "hypot", "log",
    "log1p", "log2", "log10", "logaddexp", "sin", "sinh", "tan", "tanh",
]  # fmt: skip
