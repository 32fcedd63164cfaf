"""The data types of the specification (`MLOperandDataType`), and their equivalents in NumPy and ONNX."""

from __future__ import annotations

import math
from functools import cache
from inspect import signature
from typing import Any, Literal, TypeVar, get_args, get_origin

from ..support.errors import ValidationError
from ..support.names import short_repr
from ..support.records import record

DataType = Literal["float32", "float16", "int32", "uint32", "int64", "uint64", "int8", "uint8"]

ANY: tuple[DataType, ...] = get_args(DataType)
FLOATS: tuple[DataType, ...] = ("float32", "float16")
INTEGERS: tuple[DataType, ...] = ("int32", "uint32", "int64", "uint64", "int8", "uint8")
SIGNED: tuple[DataType, ...] = ("float32", "float16", "int64", "int32", "int8")
WIDE: tuple[DataType, ...] = ("float32", "float16", "int32", "uint32", "int64", "uint64")
INDICES: tuple[DataType, ...] = ("int32", "uint32", "int64")
QUANTIZED: tuple[DataType, ...] = ("uint8", "int8", "uint32", "int32")
LOGICAL: tuple[DataType, ...] = ("uint8",)


@record
class TypeInfo:
    name: DataType
    kind: Literal["f", "i", "u"]
    bits: int
    onnx: int  # onnx.TensorProto.DataType

    @property
    def byte_length(self) -> int:
        """Size of one element in bytes."""
        return self.bits // 8

    @property
    def lowest(self) -> int:
        return -(1 << (self.bits - 1)) if self.kind == "i" else 0

    @property
    def highest(self) -> int:
        return (1 << (self.bits - (self.kind == "i"))) - 1


INFO: dict[DataType, TypeInfo] = {
    info.name: info
    for info in (
        TypeInfo("float32", "f", 32, 1),
        TypeInfo("float16", "f", 16, 10),
        TypeInfo("int32", "i", 32, 6),
        TypeInfo("uint32", "u", 32, 12),
        TypeInfo("int64", "i", 64, 7),
        TypeInfo("uint64", "u", 64, 13),
        TypeInfo("int8", "i", 8, 3),
        TypeInfo("uint8", "u", 8, 2),
    )
}

ONNX_TYPES: dict[str, int] = {
    **{name: info.onnx for name, info in INFO.items()},
    "bool": 9,
    "float64": 11,
    "int16": 5,
    "uint16": 4,
}
"""`onnx.TensorProto.DataType` by the name of NumPy's type, for the element types that NumPy itself has."""


@cache
def name_of(dtype: Any) -> str:
    """The name of a NumPy dtype, cached: NumPy composes it each time, which takes microseconds."""
    return str(dtype.name)


@cache
def of_array(dtype: Any) -> DataType:
    """The data type of a NumPy dtype in native byte order.

    >>> import numpy as np
    >>> of_array(np.dtype("float32"))
    'float32'
    >>> of_array(np.dtype("float64"))
    Traceback (most recent call last):
    ...
    opweave.support.errors.ValidationError: float64 is not a data type of WebNN (...); array.astype('float32') converts it
    """
    name: str = dtype.name
    if name not in INFO:
        wide = {"float64": "float32", "bfloat16": "float32", "bool": "uint8"}.get(name)
        hint = f"; array.astype({wide!r}) converts it" if wide else ""
        raise ValidationError(f"{name} is not a data type of WebNN ({', '.join(ANY)}){hint}")
    if not dtype.isnative:
        raise ValidationError(
            f"{name} must be in native byte order, got {dtype.str!r}; array.astype({name!r}) converts it"
        )
    return INFO[name].name


def check(data_type: object) -> DataType:
    """Require one of the specification's data types."""
    if not isinstance(data_type, str) or data_type not in INFO:
        raise ValidationError(
            f"data type must be one of {', '.join(ANY)}, got {short_repr(data_type)}{suggestion_of(data_type)}"
        )
    return data_type


_NEAREST = {"float": "float32", "float64": "float32", "double": "float32", "bfloat16": "float32", "half": "float16"} | {
    "int": "int32", "int16": "int32", "uint16": "int32", "long": "int64", "bool": "uint8", "byte": "uint8"
}  # fmt: skip
"""Names of data types elsewhere -> the nearest one here."""


def suggestion_of(data_type: object) -> str:
    """Suggest the data type for one of another library (a name or an object), as the end of a message."""
    name = data_type if isinstance(data_type, str) else ""
    if isinstance(data_type, type):
        name = data_type.__name__
    elif "dtype" in type(data_type).__name__.lower():
        # Of NumPy, PyTorch, …; the text of other objects may be huge, or fail.
        name = str(data_type)
    name = name.rpartition(".")[2].lower()
    nearest = name if name in INFO else _NEAREST.get(name, "")
    return f"; did you mean {nearest!r}?" if nearest else ""


def cast_number(value: float, data_type: DataType) -> int | float:
    """Convert a number to a value of `data_type`: rounded to nearest, ties to even, and clamped to its range.

    https://www.w3.org/TR/webnn/#cast (which casts uint32 to the *signed* range, evidently by mistake).

    >>> cast_number(300, "uint8"), cast_number(2.5, "int32"), cast_number(float("nan"), "int8")
    (255, 2, 0)
    >>> cast_number(1e30, "float16")
    inf
    """
    info = INFO[data_type]
    if info.kind == "f":
        import numpy as np

        try:
            wide = np.float64(value)
        except OverflowError:  # an integer of more than 308 digits
            wide = np.float64(math.inf if value > 0 else -math.inf)
        with np.errstate(over="ignore"):
            return float(wide.astype(data_type))
    if value != value:  # NaN; `math.isnan` refuses large integers
        return 0
    return round(min(max(value, info.lowest), info.highest))


C = TypeVar("C", bound=type)


def completable(cls: C) -> C:
    """Class decorator: replace `Literal` with `str` in annotations, so that notebooks complete attributes of an instance.

    jedi 0.20 completes nothing after a property annotated with `Literal`. Signatures still show the declared types.
    """
    for value in vars(cls).values():
        if isinstance(value, property) and value.fget is not None:
            annotations = value.fget.__annotations__
            return_type = value.fget.__globals__.get(str(annotations.get("return")))
            if get_origin(return_type) is Literal:
                value.fget.__signature__ = signature(value.fget)  # type: ignore[attr-defined]
                annotations["return"] = "str"
    return cls
