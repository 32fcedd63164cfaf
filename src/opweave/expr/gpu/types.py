"""Data types in kernels: how elements are computed and stored."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...core.dtypes import FLOATS, INFO, DataType
from ..elements import to_float32
from ..ir import Type
from .dialect import DialectLibrary
from .kernel import Features

_COMPUTED: dict[str, str] = {
    **dict.fromkeys(("float32", "float16", "bfloat16"), "f32"),  # float16 arithmetic is float32
    **dict.fromkeys(("int32", "int16", "int8", "index"), "i32"),
    **dict.fromkeys(("uint32", "uint16", "uint8"), "u32"),
    "int64": "i64",
    "uint64": "u64",
    "bool": "bool",
}


def computed_type(type: Type) -> str:
    """The type in which elements of a type are computed."""
    return _COMPUTED[type]


HALVES: dict[str, str] = {"float16": "half", "bfloat16": "bfloat"}
"""Floats of 16 bits -> the name that their library functions begin with, which convert bits."""


@dataclass(frozen=True, slots=True)
class TypeLayout:
    """The memory layout of a buffer's elements: `lanes` elements are packed into one `element`."""

    element: str
    lanes: int = 1


def layout(data_type: DataType, features: Features) -> TypeLayout:
    """The layout of a data type. Four 8-bit elements, or two of 16 bits, share a word if buffers cannot have such elements.

    Elements of bfloat16 are their bits.
    """
    if data_type == "float16":
        return TypeLayout("f16") if features.float16 else TypeLayout("u32", 2)
    if INFO[data_type].bits == 16:
        signed = data_type.startswith("int")
        return TypeLayout("i16" if signed else "u16") if features.dialect.has_bytes else TypeLayout("u32", 2)
    if INFO[data_type].bits == 8:
        return TypeLayout("i8" if data_type == "int8" else "u8") if features.dialect.has_bytes else TypeLayout("u32", 4)
    return TypeLayout(computed_type(data_type))


def is_plain(value: float, type: Type) -> bool:
    """Whether a number has a literal: finite and normal floats except -0, and all integers except the lowest int64."""
    if type == "int64":
        return value != INFO["int64"].lowest
    if type not in FLOATS or (value == 0 and math.copysign(1, value) > 0):
        return True
    return bool(2.0**-126 <= abs(to_float32(value)) < math.inf)


def bits(value: int | float, type: Type, dialect: DialectLibrary) -> str:
    """The bits of a number as an unsigned literal."""
    if type == "int64":
        return f"{int(value) & 2**64 - 1}{dialect.suffixes['u64']}"
    return f"0x{to_float32(value).view(np.uint32):08x}u"


def literal(value: int | float | bool, type: Type, dialect: DialectLibrary) -> str:
    """A number as a literal of the type it is computed in; floats must be plain."""
    if type == "bool":
        return "true" if value else "false"
    if type in FLOATS:
        return f"{to_float32(value)}f"
    target = computed_type(type)
    whole = int(value)
    suffix = dialect.suffixes[target] or dialect.negative * (whole < 0)
    if target == "i32" and whole == INFO["int32"].lowest:
        return f"({whole + 1}{suffix} - 1{suffix})"  # the lowest i32 has no literal: a sign is an operator
    return f"{whole}{suffix}"


def unpack(name: str, number: str, data_type: DataType, lanes: int, *, atomic: bool = False) -> str:
    """An element of a buffer of words, in the type it is computed in.

    `number` is the u32 text of its number, without operators of lower precedence than `&`.
    """
    word = f"{name}[{number} / {lanes}u]"
    word = f"atomicLoad(&{word})" if atomic else word
    shift = f"{number} % {lanes}u * {32 // lanes}u"
    if data_type in HALVES:
        return f"{HALVES[data_type]}_value(({word} >> ({shift})) & 0xffffu)"
    signed = data_type.startswith("int")
    return f"extractBits({f'bitcast<i32>({word})' if signed else word}, {shift}, {32 // lanes}u)"
