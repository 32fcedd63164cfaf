"""The functions, casts and reductions of expressions in NumPy.

All rules compute in the type of their arguments: float32, or float64 for reference results. Rules that are ufuncs accept
`out=`. Callers suppress NumPy's floating-point warnings.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from ..core.dtypes import FLOATS, INFO
from .ir import FUNCTIONS, INTEGERS, Reduce, Type

Array = np.ndarray[Any, Any]
Rule = Callable[..., Any]
Precision = Literal["float32", "float64"]


def function(name: str, type: Type) -> Rule:
    """The rule of a function for arguments of a type."""
    rules = _INTEGER_RULES if type in INTEGERS else _FLOAT_RULES
    rule = rules.get(name) or _RULES.get(name) or FUNCTIONS[name].ufunc
    assert rule is not None, name
    return rule


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
    *(0.353530995643, -0.1765762358, 0.131675117776, -0.107710292887, 0.0902089413434),
    *(-0.0747304867956, 0.0598878295757, -0.0457443126854, 0.033053291739, -0.0225625582546),
    *(0.0143810386036, -0.00838404435637, 0.00477494648917, -0.00290971286159, 0.00141015259813),
    *(-0.000325519685609, 0.000173229676308, -0.00024642199981, 9.40381240247e-05),
)
"""Polynomial coefficients of erf(x) / x on [-4, 4] in x² / 8 - 1; the relative error is below 1e-9."""

# Replacements for functions of NumPy (`FUNCTIONS[name].ufunc`) that give different results, or do not exist.
_INTEGER_RULES: dict[str, Rule] = {"div": _integer_div, "pow": _integer_pow}
_FLOAT_RULES: dict[str, Rule] = {"pow": _float_pow}
_RULES: dict[str, Rule] = {"sign": _sign, "sigmoid": _sigmoid, "erf": _erf, "where": np.where}


def to_float32(value: float) -> np.float32:
    """Round a number to float32, without NumPy's warning for numbers beyond its range."""
    with np.errstate(over="ignore"):
        return np.float32(value)


def dtype_of(type: Type, precision: Precision) -> np.dtype[Any]:
    """The NumPy type in which values of `type` are computed."""
    if type in FLOATS:
        return np.dtype(precision)
    return np.dtype({"bool": "bool", "index": "int64"}.get(type, type))


def conversion(source: Type, target: Type, precision: Precision) -> Rule:
    dtype = dtype_of(target, precision)
    if target == "bool":
        return lambda x: np.not_equal(x, 0)
    if target == "float16":
        return lambda x: x.astype(np.float16).astype(dtype)
    if source in FLOATS and target in INTEGERS:
        return lambda x: _saturate(x, dtype)
    return lambda x: x.astype(dtype)


def bit_conversion(source: Type, target: Type, precision: Precision) -> Rule:
    """The rule of `ir.Bitcast`. Floats have the bits of their float32, in any precision."""

    def rule(x: Array) -> Any:
        narrow = x.astype(source, order="C", copy=False)  # float32, also where floats are computed in float64
        return narrow.view(target).astype(dtype_of(target, precision))  # a copy: later instructions write to it

    return rule


def _saturate(x: Array, dtype: np.dtype[Any]) -> Any:
    """Truncate floats to integers, clamped to the range of `dtype`; NaN becomes 0."""
    info = INFO[dtype.name]
    limit = x.dtype.type(2.0 ** (info.bits - (info.kind == "i")))  # `highest` itself may not be a float
    inside = (x > x.dtype.type(info.lowest)) & (x < limit)
    whole = np.where(inside, x, x.dtype.type(0)).astype(dtype)
    ends = np.where(x >= limit, dtype.type(info.highest), dtype.type(info.lowest))
    return np.where(inside | np.isnan(x), whole, ends)


def reduction(node: Reduce, axes: tuple[int, ...]) -> Rule:
    """The rule of a reduction over axes, which are kept with size 1."""
    match node.reduction:
        case "arg_max" | "arg_min" as name:
            position = np.argmax if name == "arg_max" else np.argmin
            return lambda x: position(x, axes[0], keepdims=True).astype(np.int32)
        case "max" | "min" as name:
            extreme = np.max if name == "max" else np.min
            return lambda x: extreme(x, axes, keepdims=True)
    fold = np.sum if node.reduction == "sum" else np.prod

    def rule(x: Array) -> Any:
        # Accumulate floats in float64. For integers, pass the type: NumPy would widen them, but they must wrap around.
        wide = np.dtype(np.float64) if x.dtype.kind == "f" and node.reduction == "sum" else x.dtype
        return fold(x, axes, dtype=wide, keepdims=True).astype(x.dtype, copy=False)

    return rule
