"""Reference rules of the element-wise operations."""

from __future__ import annotations

import math

import numpy as np

from ....composites.bits import bit_cast
from ....core.casts import cast_array
from ....core.conversion import Number
from ....core.dtypes import DataType, numpy_type
from ....ops import elementwise as ops
from ..backend import Array, reference


def erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


reference.apply(
    {
        ops.add: np.add,
        ops.sub: np.subtract,
        ops.mul: np.multiply,
        ops.max: np.maximum,
        ops.min: np.minimum,
        ops.modulus_floor: np.remainder,
        ops.modulus_truncate: np.fmod,
        ops.abs: np.abs,
        ops.ceil: np.ceil,
        ops.cos: np.cos,
        ops.erf: erf,
        ops.exp: np.exp,
        ops.floor: np.floor,
        ops.identity: lambda x: x,
        ops.log: np.log,
        ops.neg: np.negative,
        ops.reciprocal: lambda x: 1 / x,
        ops.round_even: np.rint,
        ops.sin: np.sin,
        ops.sqrt: np.sqrt,
        ops.tan: np.tan,
    }
)


@reference.lower(ops.div)
def _(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return a / b
    # NumPy rounds down, the specification toward zero: add 1 to quotients that are negative and inexact. x // 0 is 0.
    quotient = a // b
    return quotient + ((quotient < 0) & (quotient * b != a) & (b != 0))


@reference.lower(ops.pow)
def _(a: Array, b: Array) -> Array:
    if b.dtype.kind != "i":
        # With one exponent for many elements, NumPy takes square roots for 0.5: NaN for -inf, where the power is inf.
        return np.power(a, np.array(np.broadcast_to(b, np.broadcast_shapes(a.shape, b.shape))))
    # 1 / a ** -b, truncated: only 1 and -1 have integer inverses; 1 / 0 is 0, as in div.
    inverse = np.where(np.abs(a) == 1, np.power(a, b & 1), 0)
    return np.where(b < 0, inverse, np.power(a, np.maximum(b, 0)))


@reference.lower(ops.sign)
def _(input: Array) -> Array:
    # np.sign(NaN) is NaN; the specification requires 0.
    return (input > 0).astype(input.dtype) - (input < 0).astype(input.dtype)


@reference.lower_stored(ops.cast)
def _(input: Array, data_type: DataType) -> Array:
    return cast_array(input, data_type)


@reference.lower_stored(bit_cast)
def _(input: Array, data_type: DataType) -> Array:
    return np.ascontiguousarray(input).view(numpy_type(data_type)).reshape(input.shape)


@reference.lower(ops.clamp)
def _(input: Array, min_value: Number | None, max_value: Number | None) -> Array:
    if ops.is_bound(min_value):
        input = np.maximum(input, input.dtype.type(min_value))
    if ops.is_bound(max_value):
        input = np.minimum(input, input.dtype.type(max_value))
    return input


@reference.lower(ops.where)
def _(condition: Array, true_value: Array, false_value: Array) -> Array:
    return np.where(condition != 0, true_value, false_value)
