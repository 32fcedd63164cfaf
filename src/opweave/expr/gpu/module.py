"""Build modules: bindings, constants, and the library functions in use."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ...core.sizes import Dimension, Size
from ..ir import Input, Stored, Type
from ..linear import Positions
from . import mathematics
from .dialect import (
    DIVISOR_PREFIX,
    IDS,
    SIZE_PREFIX,
    BufferBinding,
    Dialect,
    DialectSource,
    KernelEntry,
    Part,
    Variable,
)
from .elements import cast
from .kernel import Buffer, Features, GpuKernel
from .types import HALVES, TypeLayout, bits, computed_type, is_plain, layout, literal, unpack


class GpuModule:
    """A module under construction: the declared buffers in order, and for each, whether it is written.

    `sizes` are the parameters of the kernel: the sizes that it needs, with the texts of their values, in order of use.
    `divisors` are the indices of those that the text divides by with multipliers.
    """

    def __init__(self, features: Features) -> None:
        self.features = features
        self.bindings: list[Buffer] = []
        self.writes: list[bool] = []
        self.names: dict[Buffer, str] = {}
        self.atomic: set[Buffer] = set()
        self.shared: list[Variable] = []
        self.sizes: dict[Size, str] = {}
        self.divisors: tuple[int, ...] = ()
        self.positions = Positions()
        self._constants: dict[tuple[str, str], str] = {}

    @property
    def dialect(self) -> Dialect:
        return self.features.dialect

    def read(self, source: Input | Stored) -> None:
        self._declare(source, "x" if isinstance(source, Input) else "s", False)

    def write(self, target: Buffer) -> None:
        self._declare(target, "s" if isinstance(target, Stored) else "y", True)

    def _declare(self, buffer: Buffer, letter: str, writes: bool) -> None:
        if buffer in self.names:
            number = self.bindings.index(buffer)
            self.writes[number] = self.writes[number] or writes
            return
        # Number buffers by order of use, so that equal kernels have equal text and are compiled once.
        self.names[buffer] = f"{letter}{sum(name[0] == letter for name in self.names.values())}"
        self.bindings.append(buffer)
        self.writes.append(writes)

    def layout(self, buffer: Buffer) -> TypeLayout:
        return layout(buffer.desc.data_type, self.features)

    def load(self, source: Input | Stored, flat: str) -> str:
        """Generate the load of an element in the type in which it is computed; `flat` is code of its position, i32 or u32."""
        if source not in self.names:
            self.read(source)
        name, data_type, lay = self.names[source], source.desc.data_type, self.layout(source)
        if lay.lanes == 1:
            return self.convert_loaded(source, f"{name}[{flat}]")
        return unpack(name, flat if flat == "flat" else f"u32({flat})", data_type, lay.lanes)

    def load_four(self, source: Input | Stored, flat: str) -> str:
        """Generate the load of four adjacent elements as they are in memory, for a position that is a multiple of 4.

        Empty if the language has no such loads.
        """
        lay = self.layout(source)
        return self.dialect.four(f"{self.names[source]}[{flat}]", lay.element) if lay.lanes == 1 else ""

    def convert_loaded(self, source: Input | Stored, text: str) -> str:
        """Generate the conversion of an unpacked element to the type in which it is computed."""
        type, data_type, element = (
            computed_type(source.desc.data_type),
            source.desc.data_type,
            self.layout(source).element,
        )
        if element == "u16" and data_type in HALVES:
            return f"{HALVES[data_type]}_value(u32({text}))"
        return text if element == type else f"{type}({text})"

    def store(self, target: Buffer, flat: str, value: str) -> str:
        """Generate the statement that stores an unpacked element, from the type in which it is computed."""
        self.write(target)
        lay = self.layout(target)
        assert lay.lanes == 1, f"{target.desc} has {lay.lanes} elements in a word"
        if lay.element == "u16" and target.desc.data_type in HALVES:
            value = f"{HALVES[target.desc.data_type]}_bits({value})"
        if lay.element != computed_type(target.desc.data_type):
            value = f"{lay.element}({value})"
        return f"{self.names[target]}[{flat}] = {value};"

    def number(self, value: Dimension) -> str:
        """Generate an i32: a literal, or the parameter of a size."""
        if not isinstance(value, Size):
            return str(value)
        # Parameters are numbered in order of use: kernels that differ only in the names of sizes have equal text.
        return self.sizes.setdefault(value, f"{SIZE_PREFIX}{len(self.sizes)}")

    def divisor(self, value: Dimension) -> str:
        """Generate a positive number that divides a u32 below 2**31."""
        return self.dialect.divisor(self.number(value)) if isinstance(value, Size) else f"{value}u"

    def unsigned(self, value: Dimension) -> str:
        """Generate a number that is not negative, as a u32."""
        return f"u32({self.number(value)})" if isinstance(value, Size) else f"{value}u"

    def constant(self, value: Any, type: Type, *, opaque: bool = False) -> str:
        """Generate a number, or a size. Numbers that have no literal, and `opaque` ones, become private variables, so
        that compilers do not evaluate them.
        """
        if isinstance(value, Size):
            number = self.number(value)
            # As constants are, a size is not rounded to float16.
            return f"f32({number})" if computed_type(type) == "f32" else cast(number, "index", type, self.dialect)
        plain = is_plain(value, type)
        if plain and not opaque:
            return literal(value, type, self.dialect)
        pattern = "u64" if type == "int64" else "u32"
        of, text = (
            (computed_type(type), literal(value, type, self.dialect))
            if plain
            else (pattern, bits(value, type, self.dialect))
        )
        name = self._constants.setdefault((of, text), f"c{len(self._constants)}")
        return name if plain else f"bitcast<{computed_type(type)}>({name})"

    def entry(self, body: Sequence[str], size: tuple[int, ...]) -> KernelEntry:
        """Return the entry point with these statements, which may use the built-in values of `dialect.IDS`."""
        words = mathematics.words("\n".join(body))
        return KernelEntry(size, tuple(name for name in IDS if name in words), tuple(body))

    def text(
        self,
        comments: Sequence[str],
        parts: Sequence[Part],
        bindings: Sequence[BufferBinding] = (),
        *,
        starts_early: bool = False,
    ) -> str:
        """Generate the code of the module; `bindings` are buffers in addition to the declared ones."""
        constants = [Variable(name, type, value) for (type, value), name in self._constants.items()]
        buffers = [*(self._binding(k) for k in range(len(self.bindings))), *bindings]
        lines = [line for part in parts if not isinstance(part, Variable) for line in part.lines]
        library = mathematics.declarations_of(lines, self.dialect)
        types = [buffer.element for buffer in buffers]
        words = mathematics.words("\n".join([*types, *lines, *library]))
        members = [f"n{k}" for k in range(len(self.sizes))]
        used = {int(number) for line in lines for number in re.findall(rf"\b{re.escape(DIVISOR_PREFIX)}(\d+)", line)}
        self.divisors = tuple(sorted(used))
        divisors = [f"d{k}" for k in self.divisors]
        fields = (comments, buffers, constants, self.shared, library, parts, starts_early, members, divisors)
        return self.dialect.module(DialectSource(*fields), words)

    def kernel(
        self,
        title: str,
        comments: Sequence[str],
        body: Sequence[str],
        workgroup_size: tuple[int, int, int],
        workgroups: tuple[int, int, int],
    ) -> GpuKernel:
        """The complete kernel; `comments` precede the module, see `text` and `GpuKernel` for the others."""
        is_early = self.dialect.starts_early(workgroups)
        source = self.text(comments, [self.entry(body, workgroup_size)], starts_early=is_early)
        bindings, writes, name = tuple(self.bindings), tuple(self.writes), self.dialect.entry_point
        fields = (title, source, bindings, writes, workgroups, name)
        sizes, divisors = tuple(self.sizes), self.divisors
        return GpuKernel(*fields, invocations=workgroup_size, starts_early=is_early, sizes=sizes, divisors=divisors)

    def replace(self, target: Buffer, flat: str, pattern: str) -> list[str]:
        """Statements that atomically replace a packed element, in a word whose other elements other invocations write.

        `pattern` are the bits of the element, as u32 text.
        """
        self.atomic.add(target)
        name, lanes = self.names[target], self.layout(target).lanes
        bits = 32 // lanes
        return [
            f"let shift = u32({flat}) % {lanes}u * {bits}u;",
            f"let pattern = {pattern} << shift;",
            f"let word = u32({flat}) / {lanes}u;",
            "loop {",
            f"    let old = atomicLoad(&{name}[word]);",
            f"    let new_word = (old & ~({(1 << bits) - 1}u << shift)) | pattern;",
            f"    if (atomicCompareExchangeWeak(&{name}[word], old, new_word).exchanged) {{",
            "        break;",
            "    }",
            "}",
        ]

    def _binding(self, number: int) -> BufferBinding:
        buffer = self.bindings[number]
        element = self.layout(buffer).element
        element = f"atomic<{element}>" if buffer in self.atomic else element
        return BufferBinding(self.names[buffer], element, self.writes[number])
