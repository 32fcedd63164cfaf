"""Languages of kernels.

Statements and expressions are the same text in all of them: that of WGSL (https://www.w3.org/TR/WGSL/), of which each other
language gets the types, functions and words by declarations in front of the kernel. A `Dialect` prints the rest: literals,
functions, memory, and the entry point with its built-in values.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

IDS = ("global", "group", "local", "lane")
"""Built-in values: the numbers of an invocation in the dispatch, of its workgroup, and of the invocation in it (`vec3<u32>`);
the same as one number (`u32`)."""


UNROLLED_ITERATIONS = 8
"""Iterations of short loops that are written out."""
MAX_UNROLLED_LINES = 12
"""Lines of a loop whose iterations are written out; longer ones have several loads of their own. An estimate."""


MAX_EARLY_WORKGROUPS = 1024
"""Most workgroups of a kernel that starts while the one before ends, which saves about 1 us. Each of them waits: an H100
takes 38 us longer for it with 65,536 workgroups, and 3 us longer with 6,272."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A constant of a module, the memory of a workgroup, or a parameter of a function.

    Attributes:
        name: its name.
        type: its type, as in WGSL.
        value: of a constant.
    """

    name: str
    type: str
    value: str = ""


@dataclass(frozen=True, slots=True)
class Binding:
    """A buffer that a kernel is bound to.

    Attributes:
        name: its name.
        element: type of its elements, as in WGSL.
        writes: whether the kernel writes to it.
    """

    name: str
    element: str
    writes: bool


@dataclass(frozen=True, slots=True)
class Function:
    """A function, which may use buffers and the memory of the workgroup.

    Attributes:
        name: its name.
        parameters: its parameters.
        result: type of what it returns; empty for nothing.
        lines: its statements.
    """

    name: str
    parameters: tuple[Variable, ...]
    result: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """The entry point of a kernel.

    Attributes:
        size: invocations of a workgroup in each dimension.
        ids: the built-in values that its statements use, in the order of `IDS`.
        lines: its statements.
    """

    size: tuple[int, ...]
    ids: tuple[str, ...]
    lines: tuple[str, ...]

    @property
    def invocations(self) -> int:
        """Invocations of a workgroup."""
        count = 1
        for size in self.size:
            count *= size
        return count


Part: TypeAlias = Function | Variable | Entry
"""A part of a module after its declarations: a function, memory of the workgroup, or the entry point, which is the last."""


@dataclass(frozen=True, slots=True)
class Source:
    """A module, before it is printed.

    Attributes:
        comments: lines that precede it.
        bindings: its buffers, in order.
        constants: its constants.
        shared: memory of the workgroup.
        library: texts of library functions, in this language.
        parts: functions, further memory of the workgroup, and the entry point.
        starts_early: whether it may start while the kernel before ends.
    """

    comments: Sequence[str]
    bindings: Sequence[Binding]
    constants: Sequence[Variable]
    shared: Sequence[Variable]
    library: Sequence[str]
    parts: Sequence[Part]
    starts_early: bool = False

    @property
    def entry(self) -> Entry:
        """The entry point."""
        (found,) = (part for part in self.parts if isinstance(part, Entry))
        return found


class Library(ABC):
    """A language that functions of the library (`mathematics`) are printed in.

    Attributes:
        suffixes: of the literals of each type.
        negative: the suffix of negative literals of i32, which WGSL would take for a sign and a number of any type.
        overrides: library functions in this language that replace the common ones, by name.
    """

    suffixes: Mapping[str, str]
    negative: str = ""
    overrides: Mapping[str, str] = MappingProxyType({})

    @abstractmethod
    def library_function(self, comments: Sequence[str], function: Function) -> str:
        """A function of the library, with the lines of comments before it; empty if the language cannot express it."""

    @abstractmethod
    def library_constant(self, text: str, constant: Variable) -> str:
        """A constant of the library; `text` is the one in WGSL. Empty if the language cannot express it."""


class Dialect(Library):
    """A language of kernels.

    Attributes:
        name: its name.
        entry_point: the name of the entry point.
        has_bytes: whether buffers can have elements of 8 bits; otherwise four share a word.
        wraps: whether arithmetic of signed integers wraps around; otherwise the functions `wrapped_*` do it.
        is_lazy: whether `select` computes what it chooses only; loads from places that always exist then come before it, so
            that they do not wait for the condition.
        casts_halves: whether `bitcast` takes vectors of f16.
        unrolling: a line before a loop that says how many of its iterations are written out, `{}`; empty if there is none.
        warp: invocations with adjacent numbers that run together, and that exchange registers by `subgroupShuffleXor`; 0 if
            their number is not known.
        kept: elements of a row that an invocation keeps in registers, because it reads them again; 0 if it reads them twice.
        await_previous: the function that a kernel which starts early calls before it reads what other kernels of the graph
            write, and before it writes. An entry point that does not call it is printed with a call at its begin. Empty if no
            kernel does.
    """

    name: str
    entry_point: str
    has_bytes: bool = False
    wraps: bool = True
    is_lazy: bool = False
    casts_halves: bool = False
    unrolling: str = ""
    warp: int = 0
    kept: int = 0
    await_previous: str = ""

    @abstractmethod
    def module(self, source: Source, words: Collection[str]) -> str:
        """The complete text of a module; `words` are its identifiers."""

    def starts_early(self, workgroups: Sequence[int]) -> bool:
        """Whether a kernel with this many workgroups in each dimension starts while the one before ends."""
        return bool(self.await_previous) and math.prod(workgroups) <= MAX_EARLY_WORKGROUPS

    def unrolled(self, count: int) -> list[str]:
        """The line before a loop of which `count` iterations are written out; none if the compiler cannot be told."""
        return [self.unrolling.format(count)] if self.unrolling else []

    def loop(self, head: str, lines: Sequence[str]) -> list[str]:
        """A block whose first line is `head`. Several iterations of short loops load their elements at the same time."""
        is_short = len(lines) <= MAX_UNROLLED_LINES and not any("for (" in line for line in lines)
        hint = self.unrolled(UNROLLED_ITERATIONS) if is_short and head.startswith("for (") else []
        return [*hint, head, *(f"    {line}" for line in lines), "}"]


def statements(lines: Sequence[str]) -> str:
    """Lines with the indentation of a function's body."""
    return "".join(f"    {line}\n" if line else "\n" for text in lines for line in text.split("\n"))


__all__ = [
    "IDS",
    "Binding",
    "Dialect",
    "Entry",
    "Function",
    "Library",
    "Part",
    "Source",
    "Variable",
    "statements",
]
