"""Data types in WGSL: how elements are computed and stored."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

from ...dtypes import FLOATS, INFO, DataType
from ..ir import Type
from .kernel import Features

_COMPUTED: dict[Type, str] = {
    **dict.fromkeys(("float32", "float16"), "f32"),  # float16 arithmetic is float32
    **dict.fromkeys(("int32", "int8", "index"), "i32"),
    **dict.fromkeys(("uint32", "uint8"), "u32"),
    "int64": "i64",
    "uint64": "u64",
    "bool": "bool",
}

SUFFIXES = {"f32": "f", "i32": "", "u32": "u", "i64": "li", "u64": "lu"}


def computed(type: Type) -> str:
    """The WGSL type in which elements of a type are computed."""
    return _COMPUTED[type]


@dataclass(frozen=True, slots=True)
class Layout:
    """The memory layout of a buffer's elements.

    Attributes:
        element: the WGSL element type of the buffer.
        lanes: number of elements packed into one of these.
    """

    element: str
    lanes: int = 1


def layout(data_type: DataType, features: Features) -> Layout:
    """The layout of a data type; four 8-bit elements, or two float16 without `f16`, share a word."""
    if data_type == "float16":
        return Layout("f16") if features.float16 else Layout("u32", 2)
    if INFO[data_type].bits == 8:
        return Layout("u32", 4)
    return Layout(computed(data_type))


def zero(type: str) -> str:
    """0 of a WGSL type."""
    return "0.0f" if type == "f32" else f"0{SUFFIXES[type]}"


def is_plain(value: float, type: Type) -> bool:
    """Whether a number has a literal: finite and normal floats except -0, and all integers except the lowest int64."""
    if type == "int64":
        return value != INFO["int64"].lowest
    if type not in FLOATS or (value == 0 and math.copysign(1, value) > 0):
        return True
    return 2.0**-126 <= abs(rounded(value)) < math.inf


def rounded(value: float) -> float:
    """A number rounded to float32."""
    if math.isfinite(value) and abs(value) >= 2.0**128 - 2.0**103:  # half an ULP above the largest float32
        return math.copysign(math.inf, value)
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def bits(value: int | float, type: Type) -> str:
    """The bits of a number as an unsigned literal."""
    if type == "int64":
        return f"{int(value) & 2**64 - 1}lu"
    return f"0x{struct.unpack('<I', struct.pack('<f', rounded(value)))[0]:08x}u"


def literal(value: int | float | bool, type: Type) -> str:
    """A number as a literal of the type it is computed in; floats must be plain."""
    if type == "bool":
        return "true" if value else "false"
    if type in FLOATS:
        return _float(rounded(value))
    target = computed(type)
    whole = int(value)
    suffix = SUFFIXES[target] or "i" * (whole < 0)
    if target == "i32" and whole == INFO["int32"].lowest:
        return f"({whole + 1}i - 1i)"  # the lowest i32 has no literal: a sign is an operator
    return f"{whole}{suffix}"


def _float(value: float) -> str:
    """The shortest decimal text that rounds to `value` in float32."""
    for digits in range(1, 10):
        text = f"{value:.{digits}g}"
        if rounded(float(text)) == value:
            break
    return f"{text}f" if any(c in text for c in ".e") else f"{text}.0f"
