"""Load and store floats and 32-bit integers, one or four at a time.

Floats of 16 bits are computed in float32. Without `f16`, a word packs two float16 elements; it always packs two of bfloat16.
"""

from __future__ import annotations

from ....expr.gpu import Buffer, Features
from ....expr.gpu.dialect import DialectFunction
from ....expr.gpu.types import HALVES, unpack
from .text import function

_WORDS = {"int32": "i32", "uint32": "u32"}


class _ElementAccess:
    """A separate binding for an array, accessed one element (`width` 1) or four elements at a time."""

    def __init__(self, buffer: Buffer, features: Features, width: int) -> None:
        self.buffer, self.width = buffer, width
        self.half = buffer.desc.data_type == "float16"
        data_type: str = buffer.desc.data_type
        self.packed = data_type == "bfloat16" or (self.half and not features.float16)
        self._has_bytes = features.dialect.has_bytes

    @property
    def single(self) -> bool:
        """Whether packed elements are read alone: reading a word beyond the end of an array is an error in CUDA."""
        return self.packed and self.width == 1 and self._has_bytes

    @property
    def element(self) -> str:
        if self.width == 8:
            return "vec4<u32>"
        if self.packed:
            return "vec2<u32>" if self.width == 4 else "u16" if self.single else "u32"
        element = _WORDS.get(self.buffer.desc.data_type) or ("f16" if self.half else "f32")
        return f"vec4<{element}>" if self.width == 4 else element


class ElementReader(_ElementAccess):
    """Loads an operand through a separate binding: 1 or 4 elements at a time, or 8 of float16."""

    def __init__(self, name: str, source: Buffer, features: Features, width: int = 1) -> None:
        super().__init__(source, features, width)
        self.name = name

    @property
    def parts(self) -> list[ElementReader]:
        """The readers of all arrays that an element is computed from, in the order of the kernel's bindings."""
        return [self]

    def load(self, at: str, width: int) -> str:
        """Element `at`, or the four elements from 4 * `at`, as float32. Eight elements from 8 * `at` are raw bits."""
        if self.packed:
            return f"halves_{self.name}({at})"
        if not self.half or width == 8:
            return f"{self.name}[{at}]"
        return f"vec4<f32>({self.name}[{at}])" if width == 4 else f"f32({self.name}[{at}])"

    def fours(self, name: str) -> list[str]:
        """Split a variable with the result of `load` into vectors of four elements."""
        if self.width < 8:
            return [name]
        return [f"vec4<f32>(bitcast<vec4<f16>>(vec2<u32>({name}.{a}, {name}.{b})))" for a, b in ("xy", "zw")]

    @property
    def helpers(self) -> list[DialectFunction]:
        """The function that unpacks words, if elements are packed."""
        if not self.packed:
            return []
        name, data_type = f"halves_{self.name}", self.buffer.desc.data_type
        value_of = f"{HALVES[data_type]}_value"
        if self.single:
            return [function(name, ["at: u32"], [f"return {value_of}(u32({self.name}[at]));"], "f32")]
        if self.width == 1:
            value = unpack(self.name, "at", data_type, 2)
            return [function(name, ["at: u32"], [f"return {value};"], "f32")]
        words = ", ".join(f"{value_of}(w.{c} {half})" for c in "xy" for half in ("& 0xffffu", ">> 16u"))
        lines = [f"let w = {self.name}[at];", f"return vec4<f32>({words});"]
        return [function(name, ["at: u32"], lines, "vec4<f32>")]


class ElementWriter(_ElementAccess):
    """Stores a result through a separate binding, in vectors of four elements if aligned."""

    def __init__(self, target: Buffer, features: Features, contiguous: bool, name: str = "result") -> None:
        super().__init__(target, features, 4 if contiguous else 1)
        self.name = name

    @staticmethod
    def can_store(data_type: str, features: Features, contiguous: bool) -> bool:
        """Whether the kernel can store a data type: a single invocation must write each word."""
        return data_type in ("float32", "int32") or (data_type == "float16" and (features.float16 or contiguous))

    def store(self, at: str, value: str) -> str:
        """The statement that stores element `at`, or four elements from 4 * `at`."""
        if self.packed:
            halves = (f"half_bits({value}.{a}) | (half_bits({value}.{b}) << 16u)" for a, b in ("xy", "zw"))
            value = f"vec2<u32>({', '.join(halves)})"
        elif self.half:
            value = f"vec4<f16>({value})" if self.width == 4 else f"f16({value})"
        return f"{self.name}[{at}] = {value};"
