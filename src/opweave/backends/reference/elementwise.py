"""Reference rules of the element-wise operations."""

from __future__ import annotations

import math

import numpy as np

from ...dtypes import DataType
from ...operation import Number
from ...ops import elementwise as ops
from . import Array, reference


@reference.lower(ops.add)
def _(a: Array, b: Array) -> Array:
    return a + b


@reference.lower(ops.sub)
def _(a: Array, b: Array) -> Array:
    return a - b


@reference.lower(ops.mul)
def _(a: Array, b: Array) -> Array:
    return a * b


@reference.lower(ops.div)
def _(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return a / b
    # NumPy rounds down, the specification toward zero: take 1 from the magnitude where they differ. x // 0 is 0 in NumPy.
    quotient = a // b
    return quotient + ((quotient < 0) & (quotient * b != a) & (b != 0))


@reference.lower(ops.max)
def _(a: Array, b: Array) -> Array:
    return np.maximum(a, b)


@reference.lower(ops.min)
def _(a: Array, b: Array) -> Array:
    return np.minimum(a, b)


@reference.lower(ops.pow)
def _(a: Array, b: Array) -> Array:
    if b.dtype.kind != "i":
        return np.power(a, b)
    # 1 / a**-b, truncated: only 1 and -1 have integer inverses; 1 / 0 is 0 as in div.
    inverse = np.where(np.abs(a) == 1, np.power(a, b & 1), 0)
    return np.where(b < 0, inverse, np.power(a, np.maximum(b, 0)))


@reference.lower(ops.abs)
def _(input: Array) -> Array:
    return np.abs(input)


@reference.lower(ops.ceil)
def _(input: Array) -> Array:
    return np.ceil(input)


@reference.lower(ops.cos)
def _(input: Array) -> Array:
    return np.cos(input)


@reference.lower(ops.erf)
def _(input: Array) -> Array:
    return erf(input)


@reference.lower(ops.exp)
def _(input: Array) -> Array:
    return np.exp(input)


@reference.lower(ops.floor)
def _(input: Array) -> Array:
    return np.floor(input)


@reference.lower(ops.identity)
def _(input: Array) -> Array:
    return input


@reference.lower(ops.log)
def _(input: Array) -> Array:
    return np.log(input)


@reference.lower(ops.neg)
def _(input: Array) -> Array:
    return -input


@reference.lower(ops.reciprocal)
def _(input: Array) -> Array:
    return 1 / input


@reference.lower(ops.round_even)
def _(input: Array) -> Array:
    return np.rint(input)


@reference.lower(ops.sign)
def _(input: Array) -> Array:
    # Not np.sign: that of NaN is 0 here.
    return (input > 0).astype(input.dtype) - (input < 0).astype(input.dtype)


@reference.lower(ops.sin)
def _(input: Array) -> Array:
    return np.sin(input)


@reference.lower(ops.sqrt)
def _(input: Array) -> Array:
    return np.sqrt(input)


@reference.lower(ops.tan)
def _(input: Array) -> Array:
    return np.tan(input)


@reference.lower(ops.cast)
def _(input: Array, data_type: DataType) -> Array:
    return input.astype(data_type)


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


def erf(x: Array) -> Array:
    """The error function, which NumPy lacks."""
    return np.vectorize(math.erf, otypes=[np.float64])(x)
