"""Exponents, logarithms, angles and distances of the standard, as composites and formulas of WebNN's operations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .. import composites, ops
from ..core.dtypes import FLOAT64
from ..lazy.array import Array
from . import host
from .declare import as_operands, binary, unary
from .elementwise import is_negative, with_sign_of


def _of(name: str) -> Callable[[Array], Array]:
    """Return the composite of a name; in float64, NumPy computes the function."""
    composite: Callable[[Array], Array] = getattr(composites, name)
    return lambda x: host.UNARY[name](x) if x.data_type == FLOAT64 else composite(x)


def _of_two(name: str, compute: Callable[..., Array]) -> Callable[[Any, Any], Array]:
    """Return a function of two operands, one of which may be a number; in float64, NumPy computes the function."""

    def function(x1: Any, x2: Any) -> Array:
        a, b = as_operands(x1, x2)
        result: Array = host.BINARY[name](a, b) if a.data_type == FLOAT64 else _in_float32(compute)(a, b)
        return result

    return function


def _in_float32(compute: Callable[..., Array]) -> Callable[..., Array]:
    """Compute a function of float16 in float32, because parts of its formula overflow or underflow before the result."""

    def function(*arguments: Array) -> Array:
        data_type = arguments[0].data_type
        if data_type in ("float32", FLOAT64):
            return compute(*arguments)
        return ops.cast(compute(*(ops.cast(x, "float32") for x in arguments)), data_type)

    return function


def _log2(x: Array) -> Array:
    return ops.div(ops.log(x), math.log(2))


def _log10(x: Array) -> Array:
    return ops.div(ops.log(x), math.log(10))


def _logarithm(name: str, compute: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda x: host.UNARY[name](x) if x.data_type == FLOAT64 else _in_float32(compute)(x)


exp = unary("exp", "real floating", ops.exp, "e to the power of each element.", [0.0, 1.0], "[1.0, 2.718...]")
log = unary("log", "real floating", ops.log, "The natural logarithm of each element.", [1.0, 10.0], "[0.0, 2.302...]")
log2 = unary(
    "log2",
    "real floating",
    _logarithm("log2", _log2),
    "The base-2 logarithm of each element.",
    [1.0, 10.0],
    "[0.0, 3.321...]",
)
log10 = unary(
    "log10",
    "real floating",
    _logarithm("log10", _log10),
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


def _logaddexp(a: Array, b: Array) -> Array:
    # The difference of equal infinities is NaN, not 0.
    apart = ops.where(ops.equal(a, b), 0.0, ops.abs(ops.sub(a, b)))
    return ops.add(ops.max(a, b), composites.log1p(ops.exp(ops.neg(apart))))


def _hypot(x1: Array, x2: Array) -> Array:
    a, b = ops.abs(x1), ops.abs(x2)
    large, small = ops.max(a, b), ops.min(a, b)
    part = ops.div(small, large)
    result = ops.mul(large, ops.sqrt(ops.add(ops.mul(part, part), 1.0)))
    result = ops.where(ops.equal(large, 0.0), large, result)
    is_infinite = ops.logical_or(ops.is_infinite(a), ops.is_infinite(b))
    return ops.where(is_infinite, math.inf, result)


def _atan2(y: Array, x: Array) -> Array:
    """Compute the angle of min / max in [0, pi / 4], and reflect it into the octant of (x, y)."""
    a, b = ops.abs(y), ops.abs(x)
    large = ops.max(a, b)
    ratio = ops.div(ops.min(a, b), large)
    both = ops.logical_and(ops.is_infinite(a), ops.is_infinite(b))
    ratio = ops.where(ops.equal(large, 0.0), 0.0, ops.where(both, 1.0, ratio))
    angle = composites.atan(ratio)
    angle = ops.where(ops.greater(a, b), ops.sub(math.pi / 2, angle), angle)
    return with_sign_of(ops.where(is_negative(x), ops.sub(math.pi, angle), angle), y)


log1p = unary(
    "log1p",
    "real floating",
    _of("log1p"),
    "The logarithm of 1 + x, accurate for small x.",
    [0.0, 1.0],
    "[0.0, 0.693...]",
)
expm1 = unary(
    "expm1", "real floating", _of("expm1"), "exp(x) - 1, accurate for small x.", [0.0, 1.0], "[0.0, 1.718...]"
)
sinh = unary(
    "sinh", "real floating", _of("sinh"), "The hyperbolic sine of each element.", [0.0, 1.0], "[0.0, 1.175...]"
)
cosh = unary(
    "cosh", "real floating", _of("cosh"), "The hyperbolic cosine of each element.", [0.0, 1.0], "[1.0, 1.543...]"
)
asinh = unary(
    "asinh",
    "real floating",
    _of("asinh"),
    "The inverse hyperbolic sine of each element.",
    [0.0, 1.0],
    "[0.0, 0.881...]",
)
acosh = unary(
    "acosh",
    "real floating",
    _of("acosh"),
    "The inverse hyperbolic cosine of each element; NaN below 1.",
    [1.0, 2.0],
    "[0.0, 1.316...]",
)
atanh = unary(
    "atanh",
    "real floating",
    _of("atanh"),
    "The inverse hyperbolic tangent of each element; NaN outside of [-1, 1].",
    [0.0, 0.5],
    "[0.0, 0.549...]",
)
logaddexp = binary(
    "logaddexp",
    "real floating",
    _of_two("logaddexp", _logaddexp),
    "The logarithm of exp(x1) + exp(x2), without overflow of the exponentials.",
    ([0.0, 500.0], [0.0, 500.0]),
    "[0.693..., 500.693...]",
)
acos = unary(
    "acos",
    "real floating",
    _of("acos"),
    "The inverse cosine of each element, in [0, π]; NaN outside of [-1, 1].",
    [1.0, -1.0],
    "[0.0, 3.141...]",
)
asin = unary(
    "asin",
    "real floating",
    _of("asin"),
    "The inverse sine of each element, in [-π/2, π/2]; NaN outside of [-1, 1].",
    [0.0, 1.0],
    "[0.0, 1.570...]",
)
atan = unary(
    "atan",
    "real floating",
    _of("atan"),
    "The inverse tangent of each element, in [-π/2, π/2].",
    [0.0, 1.0],
    "[0.0, 0.785...]",
)
atan2 = binary(
    "atan2",
    "real floating",
    _of_two("atan2", _atan2),
    "The angle of the point (`x2`, `x1`) from the positive x axis, in [-π, π].",
    ([1.0, 1.0], [1.0, -1.0]),
    "[0.785..., 2.356...]",
)
hypot = binary(
    "hypot",
    "real floating",
    _of_two("hypot", _hypot),
    "The square root of x1² + x2², without overflow of the squares.",
    ([3.0, 5.0], [4.0, 12.0]),
    "[5.0, 13.0]",
)

__all__ = [
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "exp", "expm1", "hypot", "log",
    "log1p", "log2", "log10", "logaddexp", "sin", "sinh", "tan", "tanh",
]  # fmt: skip
