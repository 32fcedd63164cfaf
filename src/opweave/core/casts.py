"""Casts between data types as they are stored, for those that NumPy lacks: the definition of rounding and saturation.

Floats are rounded to the nearest value, ties to even. Values beyond the largest one become infinite, NaN in types without
infinities, and the largest one in float4_e2m1fn, which has neither (https://onnx.ai/onnx/technical/float8.html, without
`saturate`). float8_e8m0fnu has powers of two only, to which positive numbers are rounded up. Integers of less than 8 bits keep
their lowest bits; floats become them by rounding to the nearest integer, ties to even (https://onnx.ai/onnx/technical/int4.html).
"""

from __future__ import annotations

import numpy as np

from .dtypes import INFO, POWERS, TypeInfo, numpy_type


def compute_form(array: np.ndarray) -> np.ndarray:
    """An array in a data type that NumPy computes with: float32 for floats of `ml_dtypes`, int8 or uint8 for its integers."""
    info = INFO.get(array.dtype.name)
    if info is None or info.is_numpys:
        return array
    result: np.ndarray = array.astype(np.float32 if info.kind == "f" else np.int8 if info.kind == "i" else np.uint8)
    return result


def cast_array(array: np.ndarray, data_type: str) -> np.ndarray:
    """Cast an array of any data type to another one.

    >>> x = np.float32([2.5, 3.5, 1000, np.nan])
    >>> cast_array(x, "float8_e4m3fn").tolist(), cast_array(x[:2], "int4").tolist()
    ([2.5, 3.5, nan, nan], [2, 4])
    """
    info: TypeInfo = INFO[data_type]
    target = numpy_type(data_type)
    if array.dtype == target:
        return array
    values = compute_form(array)
    with np.errstate(all="ignore"):
        if info.is_numpys:
            return values.astype(target)
        if info.kind != "f":
            return _to_integers(values, info).astype(target)
        if values.dtype.kind != "f":
            values = values.astype(np.float64)
        if info.bits == 16:
            return (_to_odd(values) if values.dtype.itemsize > 4 else values).astype(target)
        if info.name == POWERS:
            values = _to_powers(values).astype(np.float32)
        return values.astype(target)


def _to_integers(values: np.ndarray, info: TypeInfo) -> np.ndarray:
    """The lowest bits of integers, in int8 or uint8; floats are rounded first, and those without a value become 0."""
    count = 1 << info.bits
    if values.dtype.kind == "f":
        whole = np.rint(np.where(np.isfinite(values), values, 0).astype(np.float64))
        values = np.mod(whole, count).astype(np.int64)
    low = values.astype(np.int64) & (count - 1)
    if info.kind == "u":
        return low.astype(np.uint8)
    return np.where(low > info.highest, low - count, low).astype(np.int8)


def _to_odd(values: np.ndarray) -> np.ndarray:
    """float64 as float32 whose last bit is set if digits were lost, so that rounding again gives what rounding once would."""
    near = values.astype(np.float32)
    bits = near.view(np.uint32)
    is_too_large = np.abs(near.astype(np.float64)) > np.abs(values)
    cut = bits - is_too_large.astype(np.uint32)  # toward zero; an overflow becomes the largest number
    is_inexact = np.isfinite(values) & (cut.view(np.float32).astype(np.float64) != values)
    return np.where(np.isnan(values), bits, cut | is_inexact).astype(np.uint32).view(np.float32)


def _to_powers(values: np.ndarray) -> np.ndarray:
    """Round up to powers of two from 2**-127 to 2**127; 0, infinities and negative numbers become NaN."""
    values = values.astype(np.float64)
    is_number = (values > 0) & np.isfinite(values)
    fractions, exponents = np.frexp(np.where(is_number, values, 1))
    powers = np.maximum(np.ldexp(1.0, exponents - (fractions == 0.5)), 2.0**-127)
    return np.where(is_number & (powers <= 2.0**127), powers, np.nan)
