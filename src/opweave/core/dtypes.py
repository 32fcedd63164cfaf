"""The data types of the specification (`MLOperandDataType`) and those that models bring; their equivalents in NumPy and ONNX.

A type says how elements are stored. Back ends say which types they compute (`Backend.computes`); the other types are cast to
one that they compute, or run elsewhere. Types beyond the specification's have NumPy's names, or those of `ml_dtypes`.
"""

from __future__ import annotations

import math
from functools import cache
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

from ..support.errors import ValidationError
from ..support.names import short_repr
from ..support.records import record

if TYPE_CHECKING:
    import numpy as np

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
    """A data type.

    Attributes:
        name: the name of its NumPy data type.
        kind: float, signed or unsigned integer.
        bits: width of a value, such as 4 for int4.
        onnx: its `onnx.TensorProto.DataType`.
        largest: of floats of at most 8 bits, the largest finite value.
    """

    name: DataType
    kind: Literal["f", "i", "u"]
    bits: int
    onnx: int
    largest: float = math.inf

    @property
    def byte_length(self) -> int:
        """Size of one element in memory, in bytes. Elements of less than 8 bits take one byte each, as in `ml_dtypes`."""
        return max(self.bits // 8, 1)

    @property
    def is_numpys(self) -> bool:
        """Whether NumPy itself has the type; `ml_dtypes` has the others."""
        return self.name in ANY or self.name in ("float64", "int16", "uint16")

    @property
    def is_narrow(self) -> bool:
        """Whether values are only stored, moved and cast, but not computed with: floats of 8 bits, and all of less."""
        return self.bits < 8 or (self.bits == 8 and self.kind == "f")

    @property
    def lowest(self) -> int:
        return -(1 << (self.bits - 1)) if self.kind == "i" else 0

    @property
    def highest(self) -> int:
        return (1 << (self.bits - (self.kind == "i"))) - 1


INFO: dict[str, TypeInfo] = {
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
        # Beyond the specification. `DataType` has the specification's only: it is the annotation of public parameters.
        *(
            TypeInfo(*row)
            for row in (
                ("float64", "f", 64, 11),
                ("int16", "i", 16, 5),
                ("uint16", "u", 16, 4),
                ("bfloat16", "f", 16, 16),
                ("float8_e4m3fn", "f", 8, 17, 448.0),
                ("float8_e4m3fnuz", "f", 8, 18, 240.0),
                ("float8_e5m2", "f", 8, 19, 57344.0),
                ("float8_e5m2fnuz", "f", 8, 20, 57344.0),
                ("float8_e8m0fnu", "f", 8, 24, 2.0**127),
                ("float4_e2m1fn", "f", 4, 23, 6.0),
                ("uint4", "u", 4, 21),
                ("int4", "i", 4, 22),
                ("uint2", "u", 2, 25),
                ("int2", "i", 2, 26),
            )
        ),
    )
}

BEYOND: tuple[DataType, ...] = tuple(info.name for info in INFO.values() if info.name not in ANY)
"""Data types that the specification lacks: those of drafts, and those that ONNX models bring."""

DRAFTS = ("bfloat16", "int4", "uint4", "float8_e4m3fn")
"""Data types of drafts and proposals of the group (https://github.com/webmachinelearning/webnn/issues/956)."""

FLOAT64: str = "float64"
POWERS: str = "float8_e8m0fnu"
"""Names that code compares with: the float wider than those of the specification, and the type of powers of two."""

SPELLINGS: dict[str, str] = {
    "float8e4m3": "float8_e4m3fn",
    "float8e4m3fn": "float8_e4m3fn",
    "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz",
    "float8e8m0": "float8_e8m0fnu",
    "float4e2m1": "float4_e2m1fn",
}
"""Spellings of ONNX and of drafts -> the name of the data type."""

ONNX_TYPES: dict[str, int] = {**{name: info.onnx for name, info in INFO.items()}, "bool": 9}
"""`onnx.TensorProto.DataType` by the name of NumPy's type."""


@cache
def numpy_type(name: str) -> np.dtype[Any]:
    """The NumPy data type of a name; it loads `ml_dtypes` only for types that NumPy lacks.

    >>> numpy_type("int16"), numpy_type("bfloat16")
    (dtype('int16'), dtype(bfloat16))
    """
    import numpy

    if name in INFO and not INFO[name].is_numpys:
        import ml_dtypes  # registers its names with NumPy

        assert ml_dtypes.__name__
    return numpy.dtype(name)


WIDENED: dict[str, DataType] = {"bfloat16": "float32", "int16": "int32", "uint16": "uint32"}
"""Data types of 16 bits beyond the specification -> those that compute them where only these are computed."""


def is_float(data_type: str) -> bool:
    """Whether values of a data type are floats of any width."""
    return INFO[data_type].kind == "f"


@cache
def extend_types(data_types: tuple[DataType, ...], takes_narrow: bool = False) -> tuple[DataType, ...]:
    """Allowed data types with those beyond the specification: float64 and bfloat16 wherever float16, 16-bit integers wherever
    integers of 8 and 32 bits of the same sign, narrow types for operations that take all data types and only move them.

    >>> extend_types(("float32", "float16")), extend_types(("int32", "int64")), "int4" in extend_types(ANY, True)
    (('float32', 'float16', 'float64', 'bfloat16'), ('int32', 'int64'), True)
    """
    more: list[str] = ["float64", "bfloat16"] if "float16" in data_types else []
    for sign in ("int", "uint"):
        more += [f"{sign}16"] if {f"{sign}8", f"{sign}32"} <= {*data_types} else []
    if takes_narrow:
        more += [name for name in BEYOND if INFO[name].is_narrow]
    return (*data_types, *(INFO[name].name for name in more))


@cache
def name_of(dtype: Any) -> str:
    """The name of a NumPy dtype, cached: NumPy composes it each time, which takes microseconds."""
    return str(dtype.name)


@cache
def of_array(dtype: Any, takes_all: bool = False) -> DataType:
    """The data type of a NumPy dtype in native byte order; with `takes_all`, also one beyond the specification.

    >>> import numpy as np
    >>> of_array(np.dtype("float32"))
    'float32'
    >>> of_array(np.dtype("float64"))
    Traceback (most recent call last):
    ...
    opweave.support.errors.ValidationError: float64 is not a data type of WebNN (...); array.astype('float32') converts it
    """
    name: str = dtype.name
    if name not in (INFO if takes_all else ANY):
        wide = {"float64": "float32", "bfloat16": "float32", "bool": "uint8"}.get(name)
        hint = f"; array.astype({wide!r}) converts it" if wide else ""
        if dtype.kind == "c":
            hint = "; array.real and array.imag are its parts"
        rule = (
            f"a data type of WebNN or ONNX ({', '.join(INFO)})"
            if takes_all
            else f"a data type of WebNN ({', '.join(ANY)})"
        )
        raise ValidationError(f"{name} is not {rule}{hint}")
    if not dtype.isnative:
        raise ValidationError(
            f"{name} must be in native byte order, got {dtype.str!r}; array.astype({name!r}) converts it"
        )
    return INFO[name].name


def check(data_type: object, takes_all: bool = False) -> DataType:
    """Require one of the specification's data types, or with `takes_all` any; return its name.

    >>> check("float8e4m3fn", takes_all=True)
    'float8_e4m3fn'
    """
    allowed = tuple(INFO) if takes_all else ANY
    name = SPELLINGS.get(data_type, data_type) if takes_all and isinstance(data_type, str) else data_type
    if not isinstance(name, str) or name not in allowed:
        hint = suggestion_of(data_type) + ("" if takes_all else needs_drafts(data_type))
        raise ValidationError(f"data type must be one of {', '.join(allowed)}, got {short_repr(data_type)}{hint}")
    if name not in ANY:
        numpy_type(name)  # from here on, NumPy knows the name
    return name  # type: ignore[return-value]


def needs_drafts(data_type: object) -> str:
    """Say that a data type needs the switch for drafts, as the end of a message; empty for others."""
    is_draft = isinstance(data_type, str) and SPELLINGS.get(data_type, data_type) in DRAFTS
    return "; create_context(drafts=True) allows it" if is_draft else ""


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
    nearest = name if name in ANY else _NEAREST.get(name, "")
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
            return float(wide.astype(numpy_type(data_type)))
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
