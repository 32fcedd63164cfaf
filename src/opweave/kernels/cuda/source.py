"""CUDA C++ written by users, and the names declared for it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Any

import numpy as np

from ...core.dtypes import DataType
from ...core.graph import Desc
from ...support import digests
from ...support.errors import require
from ..wgsl.declarations import Bound, DeclarationScope
from ..wgsl.shader import Buffer, check_scratch, extents_of, sizes
from ..wgsl.syntax import Fault, line_at

USER, OWN = "kernel", "opweave"
"""File names in messages: of the user's source, and of the text that Opweave adds."""

STRUCTURE, NUMBER, ENTRY = "opweave_operation", "opweave_number", "opweave_kernel"
"""Names in the text that Opweave adds for `void main`: the structure whose members are the functions of the source, the number
of the element, and the kernel."""

NAMESPACE = "opweave_names"
"""The namespace of a source with a constant that is called like a function of CUDA, as `min`, and hides it there."""

_FUNCTIONS = """
    abs acos acosh all any asin asinh assert atan atan2 atanh atomicAdd brkpt cbrt ceil clock clock64 copysign cos
    cosh cospi cyl_bessel_i0 cyl_bessel_i1 div erf erfc erfcinv erfcx erfinv exit exp exp10 exp2 expm1 fabs fdim
    fdivide floor fma fmax fmin fmod free frexp hypot ilogb isfinite isinf isnan j0 j1 jn labs ldexp lgamma llabs
    llmax llmin llrint llround log log10 log1p log2 logb lrint lround malloc max memcpy memset min modf nan
    nearbyint nextafter norm norm3d norm4d normcdf normcdfinv pow powi printf rcbrt remainder remquo rhypot rint
    rnorm rnorm3d rnorm4d round rsqrt scalbln scalbn signbit sin sincos sincospi sinh sinpi sqrt tan tanh tanpi
    tgamma trap trunc ullmax ullmin umax umin y0 y1 yn
"""
FUNCTIONS = frozenset(name + suffix for name in _FUNCTIONS.split() for suffix in ("", "f"))
"""Names of functions at file scope in CUDA C++."""

TYPES: Mapping[DataType, str] = {
    "float32": "float",
    "float16": "f16",
    "int32": "int",
    "uint32": "unsigned",
    "int8": "signed char",
    "uint8": "unsigned char",
    "int64": "long long",
    "uint64": "unsigned long long",
}
"""Element types. `f16` is a structure that converts to and from float, with the layout of `__half`."""

HALF = """struct f16 {
    unsigned short bits;
    f16() = default;
#ifdef __CUDA_ARCH__
    f16(float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x)); }
    operator float() const {
        float x;
        asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
        return x;
    }
#else
    f16(float x) {
        _Float16 half = x;
        memcpy(&bits, &half, 2);
    }
    operator float() const {
        _Float16 half;
        memcpy(&half, &bits, 2);
        return half;
    }
#endif
};"""

_WORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t class compl const const_cast
    constexpr continue decltype default delete do double dynamic_cast else enum explicit export extern false float for friend
    goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public
    register reinterpret_cast return short signed sizeof static static_assert static_cast struct switch template this
    thread_local throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq
    NULL blockDim blockIdx gridDim threadIdx
    main f16
"""
_RESERVED = frozenset([*_WORDS.split(), STRUCTURE, NUMBER, ENTRY])
"""Keywords of C++, names of CUDA that kernels cannot do without, and names that Opweave itself uses."""

_TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*[\s\S]*?(?:\*/|\Z)')
_WORD = re.compile(r"[^\W\d]\w*")
_MAIN = re.compile(r"\bvoid\s+main\s*\(([^()]*)\)\s*\{")
_GLOBAL = re.compile(r"\b__global__\b[^;{}]*?\b(\w+)\s*\(([^()]*)\)\s*\{")
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b(.*)$", re.MULTILINE)
_QUOTED = re.compile(r"""(?<=")[^"]+(?=")""")
_HEADER = re.compile(r"""^[ \t]*#[ \t]*include[ \t]*[<"]([^<>"\n]+)[>"]""", re.MULTILINE)
_LINKAGE = re.compile(r'extern\s*"C"\s*(?:\{[^{}]*)?$')

_MAX_FLOAT = float(np.finfo(np.float32).max)

SCALARS = {
    "bool": np.bool_, "char": np.int8, "signed char": np.int8, "unsigned char": np.uint8, "short": np.int16,
    "unsigned short": np.uint16, "int": np.int32, "unsigned": np.uint32, "unsigned int": np.uint32,
    "long long": np.int64, "unsigned long long": np.uint64, "float": np.float32, "double": np.float64,
    "int8_t": np.int8, "uint8_t": np.uint8, "int16_t": np.int16, "uint16_t": np.uint16, "int32_t": np.int32,
    "uint32_t": np.uint32, "int64_t": np.int64, "uint64_t": np.uint64, "size_t": np.uint64,
}  # fmt: skip
"""Types of numeric parameters. (The size of `long` differs between systems.)"""


def spelling_of(name: str) -> str:
    return f"{name}_" if name in _RESERVED else name


class CudaBuffer(Buffer):
    """A tensor that a kernel can use.

    Attributes:
        name: the parameter, `out`, or the scratch buffer.
        desc: data type and shape.
        type: the C++ type in which elements are computed, such as "float" for float16.
        element: the type of the elements in memory.
        packed: 1: elements are stored one by one.

    >>> x = CudaBuffer("x", Desc("float16", (2, 3)), "float", "f16")
    >>> x.variable, x.data_type, x.shape, x.rank, x.size
    ('x', 'float16', (2, 3), 2, 6)
    """

    __slots__ = ()

    @property
    def variable(self) -> str:
        return spelling_of(self.name)


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel; `type` is without `const` and `__restrict__`."""

    type: str
    name: str

    @property
    def is_pointer(self) -> bool:
        return "*" in self.type


@dataclass(frozen=True)
class Source:
    """CUDA C++ with its launch options.

    Args:
        source: CUDA C++; `opweave.cuda` documents the names it can use.
        invocations: number of calls of `void main(…)`, or the extents of its positions; default: the elements, or the shape,
            of the (first) result.
        grid: number of blocks, in up to three dimensions; for kernels with `__global__`.
        block: threads of a block; for `void main(…)` in one dimension, for kernels with `__global__` in up to three.
        constants: additional constants: numbers, booleans, or tuples of numbers.
        scratch: buffers shared by the passes of a node: data type and shape (`opweave.Desc`) by name.

    Raises:
        ValidationError: a value has the wrong type.

    >>> Source("void main(unsigned i) { out[i] = 2 * x[i]; }", block=128).block
    128
    >>> Source("void main(unsigned i) { }", block=0)
    Traceback (most recent call last):
    opweave.support.errors.ValidationError: ...
    """

    source: str
    invocations: int | Sequence[int] | None = None
    grid: int | Sequence[int] | None = None
    block: int | Sequence[int] = 256
    constants: Mapping[str, Any] = field(default_factory=dict)
    scratch: Mapping[str, Desc] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(isinstance(self.source, str), f"source must be CUDA C++, a string, got {self.source!r}")
        check_sizes(grid=self.grid, block=self.block)
        counts = sizes(self.invocations or 1)
        require(all(map(is_count, counts)), f"invocations must be positive integers, got {self.invocations!r}")
        check_scratch(self.scratch)

    @cached_property
    def plain(self) -> str:
        """The source with comments and string contents replaced by spaces, which keeps all positions."""
        return _TOKEN.sub(lambda match: match[0] if match[0] == '"C"' else re.sub(r"\S", " ", match[0]), self.source)

    @cached_property
    def words(self) -> frozenset[str]:
        return frozenset(_WORD.findall(self.plain))

    @cached_property
    def fault(self) -> Fault | None:
        """A missing entry point; the compiler reports other faults."""
        if _GLOBAL.search(self.plain) or _MAIN.search(self.plain):
            return None
        start = len(self.plain) - len(self.plain.lstrip()) if self.plain.strip() else 0
        message = "no entry point: void main(unsigned i), or a kernel with __global__"
        return Fault(start, 1, message, "there is none in this text")

    @property
    def entry(self) -> tuple[str, list[Parameter]] | None:
        """Name and parameters of the only kernel with `__global__`; None if there is none."""
        matches = list(_GLOBAL.finditer(self.plain))
        require(
            len(matches) <= 1,
            f"a source has one kernel, got {', '.join(m[1] for m in matches)}; give a Source for each",
        )
        if not matches:
            require(self.grid is None, "grid= is for kernels with __global__; void main takes invocations=")
            return None
        name = matches[0][1]
        require(self.invocations is None, f"invocations= is for void main; {name} with __global__ takes grid=")
        require(self.grid is not None, f"{name} with __global__ takes grid=, the number of blocks")
        return name, [_parameter(text) for text in matches[0][2].split(",") if text.strip()]

    @property
    def includes(self) -> list[str]:
        """The directives that include headers, to stand before the declarations, each with its line in the source.

        The text of a kernel identifies its binary, so it names the contents of headers in the working directory.
        """
        lines: list[str] = []
        headers: dict[Path, bytes] = {}
        for match in _INCLUDE.finditer(self.plain):
            directive = f"#include{self.source[match.start(1) : match.end(1)]}"
            _add_headers(headers, directive, Path())
            # The process that compiles may have another working directory.
            directive = _QUOTED.sub(
                lambda name: Path(name[0]).resolve().as_posix() if Path(name[0]).is_file() else name[0], directive
            )
            lines += [line_directive(USER, line_at(self.plain, match.start())), directive]
        contents = [f"// {name}, {digests.digest(data).hexdigest()}" for name, data in headers.items()]
        return [*contents, *lines, line_directive(OWN, 1)]

    @property
    def body(self) -> str:
        """The source without `includes`, and with C linkage for the kernel, so that the compiler keeps its name."""
        text = self.source
        for match in _INCLUDE.finditer(self.plain):
            text = f"{text[: match.start()]}{' ' * len(match[0])}{text[match.end() :]}"
        kernel = _GLOBAL.search(self.plain)
        if kernel is None or _LINKAGE.search(self.plain[: kernel.start()]):
            return text
        before, rest = text[: kernel.start()], text[kernel.start() :]
        # The compiler counts columns in bytes.
        indent = re.sub(rb"[^\t]", b" ", before[before.rfind("\n") + 1 :].encode()).decode()
        again = line_directive(USER, line_at(text, kernel.start()))
        return "\n".join([before, line_directive(OWN, 1), 'extern "C"', again, indent + rest])

    @property
    def main_line(self) -> int:
        """The line of `void main`."""
        match = _MAIN.search(self.plain)
        return 0 if match is None else line_at(self.plain, match.start())

    @property
    def positions(self) -> int:
        match = _MAIN.search(self.plain)
        assert match is not None, "only sources without a fault are looked into"
        count = len([part for part in match[1].split(",") if part.strip()])
        require(count > 0, "void main takes the number of an element, or its position on each axis, got ()")
        return count

    def extents(self, out: Buffer) -> tuple[int, ...]:
        """Return the number of positions for each parameter of `void main`."""
        return extents_of("void main", self.positions, self.invocations, out)


def line_directive(file: str, number: int) -> str:
    """Return the directive after which the compiler counts lines from `number` of `file`."""
    return f'#line {number} "{file}"'


def _add_headers(headers: dict[Path, bytes], text: str, folder: Path) -> None:
    """Add the files that a text of `folder` includes, directly or not, from its folder or the working directory."""
    for name in _HEADER.findall(text):
        for path in (folder / name, Path(name)):
            if path not in headers and path.is_file():
                headers[path] = path.read_bytes()
                _add_headers(headers, headers[path].decode(errors="replace"), path.parent)


def _parameter(text: str) -> Parameter:
    words = re.sub(r"\b(const|__restrict__|restrict|volatile)\b", " ", text)
    name = re.findall(r"\w+", words)[-1]
    type = re.sub(r"\s+", " ", words[: words.rindex(name)]).strip()
    return Parameter(re.sub(r"\s*\*\s*", "*", type), name)


def check_sizes(**numbers: Any) -> None:
    """Require numbers of blocks or threads, in up to three dimensions."""
    for name, value in numbers.items():
        if value is not None:
            counts = sizes(value)
            fits = 0 < len(counts) <= 3 and all(map(is_count, counts))
            require(fits, f"{name} must be 1 to 3 positive integers, got {value!r}")


def is_count(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(value > 0)


class CudaScope(DeclarationScope):
    """The names declared for the sources of a node, as constants of C++."""

    __slots__ = ()

    def constants(self, source: Source) -> dict[str, str]:
        """Return the declarations of constants, by name."""
        texts: dict[str, str] = {}
        for item in self.bound:
            for name, value in shape_constants(item.buffer).items():
                texts[name] = declaration(name, value) or ""
        self.add_constants(texts, source.constants, spelling_of, declaration)
        return texts

    def tensors_of(self, words: frozenset[str]) -> list[Bound]:
        return [item for item in self.bound if item.buffer.variable in words]

    def value(self, name: str) -> Any:
        """Return the number that a kernel's parameter stands for; None if there is none."""
        for item in self.bound:
            number = shape_constants(item.buffer).get(name)
            if isinstance(number, int):
                return number
        attribute = self.attributes.get(name.removesuffix("_") if name not in self.attributes else name)
        return attribute if isinstance(attribute, (int, float)) else None

    def hint(self, name: str) -> str:
        if name in self.absent:
            return f"the operand {name} is absent here; a function can give another text then"
        if name in self.attributes:
            return (
                f"{name} is {self.attributes[name]!r}, which is no constant of C++; a function can put it into the text"
            )
        names = [item.buffer.variable for item in self.bound]
        names += [spelling_of(n) for n, value in self.attributes.items() if declaration(n, value) is not None]
        return f"declared are {', '.join(names)}, and sizes, as opweave.cuda says"


def shape_constants(buffer: Buffer) -> dict[str, int | tuple[int, ...]]:
    name, shape = buffer.name, buffer.shape
    constants: dict[str, int | tuple[int, ...]] = {f"{name}_size": buffer.size, f"{name}_rank": buffer.rank}
    if shape:  # C++ has no empty arrays
        constants[f"{name}_shape"] = shape
        constants[f"{name}_strides"] = tuple(accumulate((1, *shape[:0:-1]), mul))[::-1]
    return constants


def declaration(name: str, value: Any) -> str | None:
    """Declare a constant of C++; return None if the value has none."""
    items = list(value) if isinstance(value, (tuple, list)) else [value]
    if not items or not all(isinstance(item, (bool, int, float)) for item in items):
        return None
    if any(isinstance(item, float) for item in items):
        if not all(abs(item) <= _MAX_FLOAT for item in items):
            return None
        type, texts = "float", [f"{float(item)!r}f" for item in items]
    elif all(isinstance(item, bool) for item in items):
        type, texts = "bool", [str(item).lower() for item in items]
    elif all(-(2**31) < item < 2**31 for item in items):
        type, texts = "int", [str(int(item)) for item in items]
    elif all(-(2**63) < item < 2**63 for item in items):
        type, texts = "long long", [f"{int(item)}ll" for item in items]
    else:
        return None
    if isinstance(value, (tuple, list)):
        return f"constexpr {type} {name}[{len(items)}] = {{{', '.join(texts)}}};"
    return f"constexpr {type} {name} = {texts[0]};"
