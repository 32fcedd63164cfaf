"""Data types of the array API standard: kinds, promotion, limits, and `__array_namespace_info__`.

Data types are NumPy's `dtype` objects, as in `Array.dtype`. WebNN has no 16-bit integers. It has no complex numbers either, so
that a `ComplexArray` is two arrays of floats. float64, which WebNN does not have, is computed on processors only. WebNN's
float16, which the standard does not define, is a real floating-point type below float32.
"""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any

import numpy as np

from ..context.context import MLContext, current_context
from ..core.desc import MAX_RANK
from ..core.dtypes import ANY, FLOAT64, INFO, DataType
from ..lazy.array import Array
from ..support.errors import ValidationError
from ..support.names import short_repr
from .complex_array import ComplexArray

DType = np.dtype[Any]

bool = np.dtype("bool")
int8, int32, int64 = np.dtype("int8"), np.dtype("int32"), np.dtype("int64")
uint8, uint32, uint64 = np.dtype("uint8"), np.dtype("uint32"), np.dtype("uint64")
float16, float32, float64 = np.dtype("float16"), np.dtype("float32"), np.dtype("float64")
complex64, complex128 = np.dtype("complex64"), np.dtype("complex128")

COMPLEX = (complex64, complex128)
ALL: tuple[DType, ...] = (bool, *map(np.dtype, sorted((*ANY, FLOAT64))))

_CODES = {"bool": "b", "signed integer": "i", "unsigned integer": "u", "integral": "iu", "real floating": "f"}
KINDS: dict[str, str] = {**_CODES, "complex floating": "c", "numeric": "iufc"}
"""NumPy's letters for each kind of data types of the standard."""


def as_dtype(value: Any, name: str, takes_complex: builtins.bool = False) -> DType:
    """Return the data type for a value: a data type of this module, or anything that NumPy accepts as one."""
    if isinstance(value, np.dtype):
        dtype: DType = value
    else:
        try:
            dtype = np.dtype(value)
        except TypeError:
            raise ValidationError(f"{name}: dtype must be a data type, got {short_repr(value)}") from None
    if takes_complex and dtype in COMPLEX:
        return dtype
    if dtype not in ALL:
        raise ValidationError(f"{name}: WebNN has no {dtype}; there are {', '.join(map(str, ALL))}")
    return dtype


def takes_float64(context: MLContext) -> builtins.bool:
    """Whether a context computes float64: those on processors do, in rules of their engines or with NumPy."""
    return context.backend.space.is_host


def check_context(dtype: DType, context: MLContext, name: str) -> None:
    """Require a context that computes a data type."""
    if dtype == float64 and not takes_float64(context):
        raise ValidationError(
            f"{name}: {context} has no float64; dtype=float32, or a context on a CPU, have their numbers"
        )


def data_type_of(dtype: DType) -> DataType:
    """Return WebNN's data type; uint8 for bool."""
    return "uint8" if dtype == bool else INFO[dtype.name].name


def isdtype(dtype: Any, kind: Any) -> Any:
    """Whether a data type is of a kind.

    Args:
        dtype: the data type.
        kind: another data type, the name of a kind ("bool", "signed integer", "unsigned integer", "integral",
            "real floating", "complex floating", "numeric"), or a tuple of these: one must match.

    Raises: there is no such kind.

    >>> xp.isdtype(xp.float32, "numeric"), xp.isdtype(xp.uint8, ("bool", "signed integer"))
    (True, False)
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, item) for item in kind)
    if isinstance(kind, str):
        if kind not in KINDS:
            raise ValidationError(f"isdtype: kind must be one of {', '.join(KINDS)}, got {kind!r}")
        return np.dtype(dtype).kind in KINDS[kind]
    return np.dtype(dtype) == np.dtype(kind)


@cache
def promote(a: DType, b: DType) -> DType | None:
    """Return the data type that two data types promote to; None if the standard or WebNN has none.

    >>> promote(int8, int32), promote(uint8, int32), promote(uint8, int8), promote(int32, float32)
    (dtype('int32'), dtype('int32'), None, None)
    """
    if a == b:
        return a
    kinds = {a.kind, b.kind}
    if kinds not in ({"i"}, {"u"}, {"f"}, {"i", "u"}, {"c"}, {"c", "f"}):
        return None
    common = np.promote_types(a, b)
    return common if common in (*ALL, *COMPLEX) and (common.kind != "f" or kinds == {"f"}) else None


def result_type(*arrays_and_dtypes: Any) -> DType:
    """Compute the data type of the result of an operation on arrays, data types and Python numbers.

    Args:
        arrays_and_dtypes: the operands, or their data types; at least one must not be a Python number.

    Returns: The promoted data type. Python numbers take the data type of the others.
    Raises: all arguments are Python numbers, or there is no common data type.

    >>> xp.result_type(xp.int8, xp.uint32), xp.result_type(xp.float16, 2.5)
    (dtype('int64'), dtype('float16'))
    """
    name = "result_type"
    scalars = [value for value in arrays_and_dtypes if isinstance(value, (int, float, complex))]
    dtypes = [dtype_of(value, name) for value in arrays_and_dtypes if not isinstance(value, (int, float, complex))]
    if not dtypes:
        raise ValidationError(f"{name}: takes at least one array or data type, got {list(scalars)}")
    dtype = reduce(lambda a, b: _common(a, b, name), dtypes)
    for number in scalars:
        if isinstance(number, complex) and dtype.kind == "f":
            dtype = complex128 if dtype == float64 else complex64
        check_number(number, dtype, name)
    return dtype


def dtype_of(value: Any, name: str) -> DType:
    """Return the data type of an array, or the one that a value stands for."""
    is_array = isinstance(value, (Array, ComplexArray))
    dtype: DType = value.dtype if is_array else as_dtype(value, name, takes_complex=True)
    return dtype


def _common(a: DType, b: DType, name: str) -> DType:
    common = promote(a, b)
    if common is None:
        raise ValidationError(f"{name}: {a} and {b} have no common data type; astype converts one of them")
    return common


def check_number(value: Any, dtype: DType, name: str) -> None:
    """Require that a Python number has the kind of an array that it is combined with, or a simpler kind.

    Truth values are no numbers: they combine with each other alone.
    """
    kinds = "b" if isinstance(value, builtins.bool) else "iufc" if isinstance(value, int) else "fc"
    kinds = "c" if isinstance(value, complex) else kinds
    if dtype.kind not in kinds:
        raise ValidationError(
            f"{name}: {short_repr(value)} cannot be combined with an array of {dtype}; astype converts that"
        )


def can_cast(from_: Any, to: Any, /) -> Any:
    """Whether type promotion can convert one data type to another.

    Args:
        from_: an array or a data type.
        to: the data type.

    Raises: WebNN does not have a data type.

    >>> xp.can_cast(xp.int8, xp.int32), xp.can_cast(xp.int32, xp.int8)
    (True, False)
    """
    source = dtype_of(from_, "can_cast")
    target = as_dtype(to, "can_cast", takes_complex=True)
    common = promote(source, target)
    # `None == float64` holds in NumPy.
    return common is not None and common == target


@dataclass(frozen=True)
class FloatInfo:
    """Limits of a floating-point type, as Python numbers.

    Attributes:
        bits: the number of bits.
        eps: the distance from 1 to the next larger number.
        max: the largest finite number.
        min: the smallest finite number, `-max`.
        smallest_normal: the smallest positive normal number.
        dtype: the type.
    """

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


@dataclass(frozen=True)
class IntegerInfo:
    """Limits of an integer type.

    Attributes:
        bits: the number of bits.
        max: the largest value.
        min: the smallest value.
        dtype: the type.
    """

    bits: int
    max: int
    min: int
    dtype: DType


def finfo(type: Any, /) -> FloatInfo:
    """Get the limits of a floating-point data type.

    Args:
        type: a floating-point type, real or complex, or an array.

    Returns: An object with `bits`, `eps`, `max`, `min`, `smallest_normal` and `dtype`: for a complex type, those of its parts.
    Raises: it is not a floating-point type of WebNN.

    >>> xp.finfo(xp.float32).eps
    1.1920928955078125e-07
    """
    dtype = dtype_of(type, "finfo")
    if dtype in COMPLEX:
        dtype = float64 if dtype == complex128 else float32
    dtype = _of_kind(dtype, "real floating", "finfo")
    info = np.finfo(dtype)
    lowest, highest = float(info.min), float(info.max)
    return FloatInfo(info.bits, float(info.eps), highest, lowest, float(info.smallest_normal), dtype)


def iinfo(type: Any, /) -> IntegerInfo:
    """Get the limits of an integer data type.

    Args:
        type: an integer type, or an array.

    Returns: An object with `bits`, `max`, `min` and `dtype`.
    Raises: it is not an integer type of WebNN.

    >>> xp.iinfo(xp.int8).max
    127
    """
    dtype = _of_kind(type, "integral", "iinfo")
    info = np.iinfo(dtype)
    return IntegerInfo(info.bits, int(info.max), int(info.min), dtype)


def _of_kind(value: Any, kind: str, name: str) -> DType:
    dtype = dtype_of(value, name)
    if not isdtype(dtype, kind):
        raise ValidationError(f"{name}: takes a type of kind {kind!r}, got {dtype}")
    return dtype


class Info:
    """Result of `__array_namespace_info__`: https://data-apis.org/array-api/latest/API_specification/inspection.html"""

    def capabilities(self) -> dict[str, Any]:
        """Get the capabilities. What a shape depends on is computed at once, such as a mask in `x[mask]`."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": MAX_RANK}

    def default_device(self) -> MLContext:
        """Get the current context."""
        return current_context()

    def devices(self) -> list[MLContext]:
        """List the current context. `opweave.ml.create_context` makes others."""
        return [current_context()]

    def default_dtypes(self, *, device: MLContext | None = None) -> dict[str, DType]:
        """Get the default data types of new arrays, by kind."""
        return {"real floating": float32, "complex floating": complex64, "integral": int32, "indexing": int32}

    def dtypes(self, *, device: MLContext | None = None, kind: str | tuple[str, ...] | None = None) -> dict[str, DType]:
        """Get the data types of the standard, by name: all, or those of a kind."""
        left_out = {float16} if takes_float64(device or current_context()) else {float16, float64, complex128}
        listed = [dtype for dtype in (*ALL, *COMPLEX) if dtype not in left_out]
        return {dtype.name: dtype for dtype in listed if kind is None or isdtype(dtype, kind)}
