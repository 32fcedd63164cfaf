"""Languages of kernels.

Statements and expressions are WGSL (https://www.w3.org/TR/WGSL/) in all languages. Kernels in other languages start with
declarations of WGSL's types, functions and keywords. A `Dialect` prints what differs: literals, functions, memory, and the
entry point with its built-in values.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from ...core.guards import estimate

IDS = ("global", "group", "local", "lane")
"""Built-in values: the global invocation ID, the workgroup ID and the local invocation ID (`vec3<u32>`), and the local
invocation index (`u32`)."""


UNROLLED_ITERATIONS = 8
"""Iterations to unroll in short loops."""
MAX_UNROLLED_LINES = 12
"""Maximum lines of loops to unroll; an iteration of a longer loop has several loads in flight anyway. An estimate."""


MAX_EARLY_WORKGROUPS = 1024
"""Maximum workgroups of a kernel that starts early: before the previous kernel ends. That saves about 1 us, but each workgroup
has to wait: an H100 takes 38 us longer with 65,536 workgroups, and 3 us longer with 6,272."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A constant of a module, memory of a workgroup, or a parameter of a function; `type` is as in WGSL."""

    name: str
    type: str
    value: str = ""


@dataclass(frozen=True, slots=True)
class BufferBinding:
    """A buffer that a kernel is bound to; `element` is the type of an element as in WGSL."""

    name: str
    element: str
    writes: bool


@dataclass(frozen=True, slots=True)
class DialectFunction:
    """A function, which may use buffers and the memory of the workgroup; `result` is empty if there is none."""

    name: str
    parameters: tuple[Variable, ...]
    result: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KernelEntry:
    """The entry point of a kernel: invocations in each dimension, built-in values in the order of `IDS`, and statements."""

    size: tuple[int, ...]
    ids: tuple[str, ...]
    lines: tuple[str, ...]

    @property
    def invocations(self) -> int:
        return math.prod(self.size)


Part: TypeAlias = DialectFunction | Variable | KernelEntry
"""A part of a module after its declarations: a function, memory of the workgroup, or the entry point, which is the last."""


SIZE_PREFIX, DIVISOR_PREFIX = "sizes.n", "sizes.d"
"""The names of parameters: those of numbers, and those with multipliers, which have the index of the number."""


@dataclass(frozen=True, slots=True)
class DialectSource:
    """A module, before it is printed; `comments` precede it.

    Attributes:
        shared: memory of the workgroup.
        library: texts of library functions, in this language.
        parts: functions, further memory of the workgroup, and the entry point.
        starts_early: whether the kernel may start before the previous one ends.
        sizes: names of the kernel's i32 parameters, the members of the struct `sizes`. The struct has the last binding.
        divisors: further members, with multipliers, if the language `multiplies`.
    """

    comments: Sequence[str]
    bindings: Sequence[BufferBinding]
    constants: Sequence[Variable]
    shared: Sequence[Variable]
    library: Sequence[str]
    parts: Sequence[Part]
    starts_early: bool = False
    sizes: Sequence[str] = ()
    divisors: Sequence[str] = ()

    @property
    def entry(self) -> KernelEntry:
        (entry,) = (part for part in self.parts if isinstance(part, KernelEntry))
        return entry


class DialectLibrary(ABC):
    """A language that functions of the library (`mathematics`) are printed in.

    Attributes:
        suffixes: the suffix of literals, by type.
        negative: the suffix of negative i32 literals. Without a suffix, WGSL reads `-1` as a sign and an untyped literal.
        overrides: library functions in this language that replace the common ones, by name.
    """

    suffixes: Mapping[str, str]
    negative: str = ""
    overrides: Mapping[str, str] = MappingProxyType({})

    @abstractmethod
    def library_function(self, comments: Sequence[str], function: DialectFunction) -> str:
        """A function of the library, with the lines of comments before it; empty if the language cannot express it."""

    @abstractmethod
    def library_constant(self, text: str, constant: Variable) -> str:
        """A constant of the library; `text` is the one in WGSL. Empty if the language cannot express it."""


class Dialect(DialectLibrary):
    """A language of kernels.

    Attributes:
        multiplies: whether kernels divide by sizes with multipliers, which follow the sizes in the parameters.
        has_bytes: whether buffers can have elements of 8 bits; otherwise a word holds four elements.
        wraps: whether arithmetic of signed integers wraps around; otherwise the functions `wrapped_*` wrap around.
        is_lazy: whether `select` evaluates only the chosen value. Loads that are known to be in bounds then precede
            `select`, so that the loads do not wait for the condition.
        casts_halves: whether `bitcast` takes vectors of f16.
        unrolling: the hint before a loop to unroll `{}` iterations; empty if the language has none.
        warp: invocations of a warp, which exchange registers by `subgroupShuffleXor`; 0 if the size of a warp is not known.
        kept: maximum elements of a row that an invocation keeps in registers for a second use; 0 to load elements again.
        await_previous: the function that waits for the previous kernel; empty if kernels cannot start early. An early kernel
            calls the function before it writes, and before it reads arrays that other kernels of the graph write. If the entry
            point has no call, `module` adds one at the start.
        prefetch: the function that starts to fetch bytes of a buffer, from an element on, into the device's cache; empty if
            the language has none.
    """

    name: str
    entry_point: str
    multiplies: bool = False
    has_bytes: bool = False
    wraps: bool = True
    is_lazy: bool = False
    casts_halves: bool = False
    unrolling: str = ""
    warp: int = 0
    kept: int = 0
    await_previous: str = ""
    prefetch: str = ""

    @abstractmethod
    def module(self, source: DialectSource, words: Collection[str]) -> str:
        """The complete text of a module; `words` are its identifiers."""

    def starts_early(self, workgroups: Sequence[int]) -> bool:
        """Whether a kernel with this many workgroups in each dimension starts before the previous kernel ends."""
        return bool(self.await_previous) and estimate(math.prod(workgroups)) <= MAX_EARLY_WORKGROUPS

    def in_register(self, number: str) -> str:
        """The text of a u32 constant to keep in a register, since an instruction takes only one immediate constant."""
        return number

    def carried(self, value: str) -> str:
        """The text of a value that is loaded for the next iteration of a loop; compilers must not sink the load into it."""
        return value

    def wide(self, index: str) -> str:
        """The text of a u32 index in 64 bits: sums with constants cannot wrap around, so they become offsets of loads."""
        return index

    def unroll_hint(self, count: int) -> list[str]:
        """The hint before a loop to unroll `count` iterations; none if the language has no such hint."""
        return [self.unrolling.format(count)] if self.unrolling else []

    def four(self, place: str, element: str) -> str:
        """The load of the four elements from a `place` in a buffer on, aligned to all four; empty if there is none."""
        return ""

    def divisor(self, parameter: str) -> str:
        """The text by which kernels divide a u32 below 2**31, for the parameter of a positive size."""
        if self.multiplies and parameter.startswith(SIZE_PREFIX):
            return DIVISOR_PREFIX + parameter.removeprefix(SIZE_PREFIX)
        return f"u32({parameter})"

    def loop(self, head: str, lines: Sequence[str]) -> list[str]:
        """A block whose first line is `head`. Short loops are unrolled, so that several loads are in flight."""
        is_short = len(lines) <= MAX_UNROLLED_LINES and not any("for (" in line for line in lines)
        hint = self.unroll_hint(UNROLLED_ITERATIONS) if is_short and head.startswith("for (") else []
        return [*hint, head, *(f"    {line}" for line in lines), "}"]


def statements(lines: Sequence[str]) -> str:
    """Lines with the indentation of a function's body."""
    return "".join(f"    {line}\n" if line else "\n" for text in lines for line in text.split("\n"))
