"""Exponents, logarithms, angles and distances of the standard, made of WebNN's operations.

Formulas keep the accuracy of their parts also near zero (`log1p`, `expm1`) and do not overflow early (`hypot`).
"""

from __future__ import annotations

import math
from typing import Any

from .. import ops
from ..lazy.array import Array
from .declare import as_operands, binary, unary
from .elementwise import with_sign_of

exp = unary("exp", "real floating", ops.exp, "e to the power of each element.")
log = unary("log", "real floating", ops.log, "The natural logarithm of each element.")
log2 = unary("log2", "real floating", lambda x: ops.div(ops.log(x), math.log(2)), "The logarithm to base 2.")
log10 = unary("log10", "real floating", lambda x: ops.div(ops.log(x), math.log(10)), "The logarithm to base 10.")
sin = unary("sin", "real floating", ops.sin, "The sine of each element, in radians.")
cos = unary("cos", "real floating", ops.cos, "The cosine of each element, in radians.")
tan = unary("tan", "real floating", ops.tan, "The tangent of each element, in radians.")
tanh = unary("tanh", "real floating", ops.tanh, "The hyperbolic tangent of each element.")


def _log1p(x: Array) -> Array:
    """Compute x * log(u) / (u - 1) for u = 1 + x, rounded: the error of u cancels (Kahan; Goldberg 1991, theorem 4)."""
    u = ops.add(x, 1.0)
    is_limit = ops.logical_or(ops.equal(u, 1.0), ops.equal(u, math.inf))
    return ops.mul(x, ops.where(is_limit, 1.0, ops.div(ops.log(u), ops.sub(u, 1.0))))


def _expm1(x: Array) -> Array:
    """Compute x * (u - 1) / log(u) for u = exp(x), rounded: the error of u cancels (Kahan; Higham 2002, section 1.14.1)."""
    x = ops.max(x, -30.0)  # below, the result is -1, and log(u) would become infinite
    u = ops.exp(x)
    slope = ops.div(ops.sub(u, 1.0), ops.log(u))
    slope = ops.where(ops.is_infinite(u), math.inf, ops.where(ops.equal(u, 1.0), 1.0, slope))
    return ops.mul(x, slope)


def _sinh(x: Array) -> Array:
    """Of halves of the exponent, so that the result overflows where it should."""
    size = ops.abs(x)
    grown = _expm1(size)
    small = ops.mul(ops.add(grown, ops.div(grown, ops.add(grown, 1.0))), 0.5)
    half = ops.exp(ops.mul(size, 0.5))
    large = ops.mul(ops.mul(half, 0.5), half)
    return with_sign_of(ops.where(ops.greater(size, 20.0), large, small), x)


def _cosh(x: Array) -> Array:
    half = ops.exp(ops.mul(ops.abs(x), 0.5))
    return ops.add(ops.mul(ops.mul(half, 0.5), half), ops.div(ops.div(0.5, half), half))


def _asinh(x: Array) -> Array:
    size = ops.abs(x)
    near = ops.add(size, ops.div(ops.mul(size, size), ops.add(ops.sqrt(ops.add(ops.mul(size, size), 1.0)), 1.0)))
    far = ops.add(ops.log(size), math.log(2))
    return with_sign_of(ops.where(ops.greater(size, _far(x)), far, _log1p(near)), x)


def _acosh(x: Array) -> Array:
    above = ops.sub(x, 1.0)
    near = ops.add(above, ops.sqrt(ops.add(ops.mul(above, 2.0), ops.mul(above, above))))
    return ops.where(ops.greater(x, _far(x)), ops.add(ops.log(x), math.log(2)), _log1p(near))


def _far(x: Array) -> float:
    """A size whose square is finite, and to which one more makes no difference after squaring."""
    return 1e4 if x.data_type == "float32" else 100.0


def _atanh(x: Array) -> Array:
    size = ops.abs(x)
    return with_sign_of(ops.mul(_log1p(ops.div(ops.mul(size, 2.0), ops.sub(1.0, size))), 0.5), x)


def _logaddexp(x1: Any, x2: Any) -> Array:
    a, b = as_operands(x1, x2)
    apart = ops.where(ops.equal(a, b), 0.0, ops.abs(ops.sub(a, b)))  # 0 also for two infinities
    return ops.add(ops.max(a, b), _log1p(ops.exp(ops.neg(apart))))


def _hypot(x1: Any, x2: Any) -> Array:
    a, b = (ops.abs(x) for x in as_operands(x1, x2))
    large, small = ops.max(a, b), ops.min(a, b)
    part = ops.div(small, large)
    made = ops.mul(large, ops.sqrt(ops.add(ops.mul(part, part), 1.0)))
    made = ops.where(ops.equal(large, 0.0), large, made)
    is_infinite = ops.logical_or(ops.is_infinite(a), ops.is_infinite(b))
    return ops.where(is_infinite, math.inf, made)


log1p = unary("log1p", "real floating", _log1p, "The logarithm of 1 + x, accurate near zero.")
expm1 = unary("expm1", "real floating", _expm1, "exp(x) - 1, accurate near zero.")
sinh = unary("sinh", "real floating", _sinh, "The hyperbolic sine of each element.")
cosh = unary("cosh", "real floating", _cosh, "The hyperbolic cosine of each element.")
asinh = unary("asinh", "real floating", _asinh, "The inverse hyperbolic sine of each element.")
acosh = unary("acosh", "real floating", _acosh, "The inverse hyperbolic cosine of each element; NaN below 1.")
atanh = unary("atanh", "real floating", _atanh, "The inverse hyperbolic tangent of each element; NaN beyond 1.")
logaddexp = binary("logaddexp", "real floating", _logaddexp, "The logarithm of exp(x1) + exp(x2), without overflow.")
hypot = binary("hypot", "real floating", _hypot, "The square root of x1² + x2², without overflow.")

__all__ = [
    "acosh",
    "asinh",
    "atanh",
    "cos",
    "cosh",
    "exp",
    "expm1",
    "hypot",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "sin",
    "sinh",
    "tan",
    "tanh",
]
