"""The functions, casts and reductions of expressions in NumPy.

Each computes in the type of its arguments: float32, or float64 for reference results. Rules that are ufuncs accept
`out=`. Callers suppress NumPy's floating-point warnings.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from ..dtypes import FLOATS, INFO
from .ir import INTEGERS, Reduce, Type

Array = np.ndarray[Any, Any]
Rule = Callable[..., Any]
Precision = Literal["float32", "float64"]

_UFUNCS: dict[str, Rule] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "floor_div": np.floor_divide,  # x // 0 is 0, and so is x % 0
    "mod": np.remainder,
    "bit_and": np.bitwise_and,
    "bit_or": np.bitwise_or,
    "bit_xor": np.bitwise_xor,
    "shift_left": np.left_shift,  # by as many bits as there are or more: 0, or the sign
    "shift_right": np.right_shift,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "greater": np.greater,
    "greater_or_equal": np.greater_equal,
    "lesser": np.less,
    "lesser_or_equal": np.less_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "logical_not": np.logical_not,
    "is_nan": np.isnan,
    "is_infinite": np.isinf,
    "abs": np.absolute,
    "neg": np.negative,
    "ceil": np.ceil,
    "floor": np.floor,
    "round_even": np.rint,
    "sqrt": np.sqrt,
    "reciprocal": np.reciprocal,
    "exp": np.exp,
    "log": np.log,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "tanh": np.tanh,
}


def function(name: str, type: Type) -> Rule:
    """The rule of a function for arguments of a type."""
    if type in INTEGERS:
        return _INTEGER_RULES.get(name) or _UFUNCS[name]
    return _FLOAT_RULES.get(name) or _UFUNCS[name]


def _integer_div(a: Array, b: Array) -> Any:
    # NumPy rounds down, WebNN toward zero: add 1 to quotients that are negative and inexact.
    quotient = a // b
    return quotient + ((quotient < 0) & (quotient * b != a) & (b != 0))


def _integer_pow(a: Array, b: Array) -> Any:
    if b.dtype.kind != "i":
        return np.power(a, b)
    # 1 / a ** -b, truncated: only 1 and -1 have integer inverses; 1 / 0 is 0, as in div.
    zero = a.dtype.type(0)
    inverse = np.where((a == 1) | (a == -1), np.power(a, b & b.dtype.type(1)), zero)
    return np.where(b < 0, inverse, np.power(a, np.maximum(b, zero)))


def _float_pow(a: Array, b: Array) -> Any:
    power, half = np.power(a, b), b == 0.5
    # If all exponents are 0.5, NumPy computes a square root, whose results for -0 and -∞ differ from those of power.
    return np.where(half & ((a == 0) | (a == -np.inf)), np.abs(a), power) if np.any(half) else power


def _sign(x: Array) -> Any:
    return (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype)  # np.sign(NaN) is NaN, not 0


def _sigmoid(x: Array) -> Any:
    # exp of a non-positive number cannot overflow, so that small results stay accurate.
    return np.exp(np.minimum(x, 0)) / (1 + np.exp(-np.abs(x)))


def _erf(x: Array) -> Any:
    if x.dtype == np.float64:
        return np.asarray(_exact_erf(x), np.float64)
    wide = np.clip(x.astype(np.float64), -4, 4)  # erf(4) is 1 in float32
    position = wide * wide / 8 - 1
    value = np.full_like(wide, _ERF[-1])
    for coefficient in _ERF[-2::-1]:
        value *= position
        value += coefficient
    value *= wide
    return value.astype(np.float32)


_exact_erf = np.frompyfunc(math.erf, 1, 1)
_ERF = (
    0.35353099564340495,
    -0.17657623580039056,
    0.13167511777580795,
    -0.1077102928865076,
    0.09020894134343026,
    -0.07473048679557817,
    0.05988782957568627,
    -0.04574431268539967,
    0.033053291738967594,
    -0.022562558254619065,
    0.014381038603613836,
    -0.008384044356366693,
    0.0047749464891676035,
    -0.0029097128615879733,
    0.001410152598130207,
    -0.00032551968560941486,
    0.00017322967630806508,
    -0.00024642199980983505,
    9.403812402468554e-05,
)
"""Polynomial coefficients of erf(x) / x on [-4, 4] in x² / 8 - 1; the relative error is below 1e-9."""

_INTEGER_RULES: dict[str, Rule] = {"div": _integer_div, "pow": _integer_pow, "sign": np.sign, "where": np.where}
_FLOAT_RULES: dict[str, Rule] = {
    "div": np.divide,
    "pow": _float_pow,
    "sign": _sign,
    "sigmoid": _sigmoid,
    "erf": _erf,
    "where": np.where,
}


def dtype_of(type: Type, precision: Precision) -> np.dtype[Any]:
    """The NumPy type in which values of `type` are computed."""
    if type in FLOATS:
        return np.dtype(precision)
    return np.dtype({"bool": "bool", "index": "int64"}.get(type, type))


def conversion(source: Type, target: Type, precision: Precision) -> Rule:
    """The rule of a cast."""
    dtype = dtype_of(target, precision)
    if target == "bool":
        return lambda x: np.not_equal(x, 0)
    if target == "float16":
        return lambda x: x.astype(np.float16).astype(dtype)
    if source in FLOATS and target in INTEGERS:
        return lambda x: _saturated(x, dtype)
    return lambda x: x.astype(dtype)


def _saturated(x: Array, dtype: np.dtype[Any]) -> Any:
    """Truncate floats to integers, clamped to the range of `dtype`; NaN becomes 0."""
    info = INFO[dtype.name]  # type: ignore[index]
    limit = x.dtype.type(2.0 ** (info.bits - (info.kind == "i")))  # `highest` itself may not be a float
    inside = (x > x.dtype.type(info.lowest)) & (x < limit)
    whole = np.where(inside, x, x.dtype.type(0)).astype(dtype)
    ends = np.where(x >= limit, dtype.type(info.highest), dtype.type(info.lowest))
    return np.where(inside | np.isnan(x), whole, ends)


def reduction(node: Reduce, axes: tuple[int, ...]) -> Rule:
    """The rule of a reduction over axes, which are kept with size 1."""
    if node.reduction == "arg_max":
        return lambda x: np.argmax(x, axes[0], keepdims=True).astype(np.int32)
    if node.reduction == "arg_min":
        return lambda x: np.argmin(x, axes[0], keepdims=True).astype(np.int32)
    if node.reduction == "max":
        return lambda x: np.max(x, axes, keepdims=True)
    if node.reduction == "min":
        return lambda x: np.min(x, axes, keepdims=True)
    fold = np.sum if node.reduction == "sum" else np.prod

    def rule(x: Array) -> Any:
        # Accumulate floats in float64. For integers, pass the type: NumPy would widen them, but they must wrap around.
        wide = np.dtype(np.float64) if x.dtype.kind == "f" and node.reduction == "sum" else x.dtype
        return fold(x, axes, dtype=wide, keepdims=True).astype(x.dtype, copy=False)

    return rule
