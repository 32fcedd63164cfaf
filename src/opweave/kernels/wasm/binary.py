"""What is read in a module's own bytes: the types of what it exports, its stack pointer, and whether it can be moved.

Engines do not tell the last two, and asking wasmtime for a type that its C interface does not have (a vector) ends the
process. Everything here takes *valid* modules of WebAssembly 3.0 without garbage collection and exceptions; `load` lets the
engine validate them first. https://webassembly.github.io/spec/core/binary/modules.html
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from ...errors import DataError
from .signature import FunctionType

MAGIC = b"\0asm\1\0\0\0"
STACK_POINTER = "__stack_pointer"

_CUSTOM, _TYPES, _IMPORTS, _FUNCTIONS, _MEMORIES, _GLOBALS, _EXPORTS = 0, 1, 2, 3, 5, 6, 7
_FUNCTION, _TABLE, _MEMORY, _GLOBAL = range(4)
_KINDS: tuple[Literal["function", "table", "memory", "global"], ...] = ("function", "table", "memory", "global")
_VALUE_TYPES = {0x7F: "i32", 0x7E: "i64", 0x7D: "f32", 0x7C: "f64", 0x7B: "v128", 0x70: "funcref", 0x6F: "externref"}


@dataclass(frozen=True, slots=True)
class GlobalType:
    """The type of a global, and whether it can change."""

    type: str
    mutable: bool


@dataclass(frozen=True, slots=True)
class Import:
    """What a module wants from outside; `type` is that of a global."""

    module: str
    name: str
    kind: Literal["function", "table", "memory", "global"]
    type: GlobalType | None


@dataclass(frozen=True, slots=True)
class Dylink:
    """What a position-independent module needs (https://github.com/WebAssembly/tool-conventions/blob/main/DynamicLinking.md).

    Attributes:
        memory_size: bytes of its data.
        memory_alignment: of these bytes.
        table_size: elements of the function table.
    """

    memory_size: int
    memory_alignment: int
    table_size: int


@dataclass
class Layout:
    """What a module declares.

    Attributes:
        imports: what it wants from outside.
        functions: the exported functions.
        names: the names of exported functions by their indices.
        wide: whether pointers into its memory have 64 bits.
        dylink: what it needs if it is position-independent.
        stack_pointer: the index of the global that is the stack pointer, if it has one.
        exports_stack_pointer: whether that is exported under its own name.
    """

    imports: list[Import] = field(default_factory=list)
    functions: dict[str, FunctionType] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    wide: bool = False
    dylink: Dylink | None = None
    stack_pointer: int | None = None
    exports_stack_pointer: bool = False


class _Reader:
    """Reads values of the binary format, one after the other."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def __bool__(self) -> bool:
        return self.at < len(self.data)

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def number(self) -> int:
        """An unsigned LEB128."""
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
            if shift > 63:
                raise IndexError("a number without end")

    def take(self, count: int) -> bytes:
        self.at += count
        return self.data[self.at - count : self.at]

    def contents(self) -> bytes:
        """As many bytes as the number before them says."""
        return self.take(self.number())

    def name(self) -> str:
        return self.contents().decode(errors="replace")

    def types(self) -> tuple[str, ...]:
        return tuple(_VALUE_TYPES.get(self.byte(), "?") for _ in range(self.number()))

    def global_type(self) -> GlobalType:
        return GlobalType(_VALUE_TYPES.get(self.byte(), "?"), self.byte() == 1)

    def limits(self) -> int:
        """Passes over limits; the flags tell of what kind they are."""
        flags = self.byte()
        for _ in range(1 + (flags & 1) + (flags >> 3 & 1)):
            self.number()
        return flags

    def expression(self) -> None:
        """Passes over a constant expression."""
        sizes = {0x43: 4, 0x44: 8}  # f32.const, f64.const
        while (code := self.byte()) != 0x0B:
            if code in sizes:
                self.take(sizes[code])
            elif code == 0xFD:  # v128.const
                self.number()
                self.take(16)
            elif code in (0x41, 0x42, 0x23, 0xD0, 0xD2):  # i32.const, i64.const, global.get, ref.null, ref.func
                self.number()


def check(data: bytes, name: str) -> None:
    """Require the first bytes of a WebAssembly module.

    Raises:
        DataError: it is something else: text, a component, another version.
    """
    if data[:8] != MAGIC:
        what = "a component" if data[:8] == b"\0asm\x0d\0\1\0" else f"bytes that begin with {data[:8]!r}"
        raise DataError(f"{name}: must be a WebAssembly module (version 1), got {what}")


def _sections(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Identifier, offset and contents of each section."""
    reader = _Reader(data)
    reader.at = len(MAGIC)
    while reader:
        start, kind = reader.at, reader.byte()
        yield kind, start, reader.contents()


def read(data: bytes) -> Layout:
    """What a valid module declares.

    Raises:
        IndexError: a custom section, which engines do not look into, is broken.
    """
    layout = Layout()
    sections: dict[int, bytes] = {}
    custom: dict[str, _Reader] = {}
    for kind, _, contents in _sections(data):
        if kind == _CUSTOM:
            reader = _Reader(contents)
            custom.setdefault(reader.name(), reader)
        else:
            sections[kind] = contents
    empty = b"\0"
    reader = _Reader(sections.get(_TYPES, empty))
    types = []
    for _ in range(reader.number()):
        reader.byte()  # all are functions
        types.append(FunctionType(reader.types(), reader.types()))
    functions: list[int] = []
    globals_: list[GlobalType] = []
    flags = _read_imports(_Reader(sections.get(_IMPORTS, empty)), layout, functions, globals_)
    reader = _Reader(sections.get(_FUNCTIONS, empty))
    functions += [reader.number() for _ in range(reader.number())]
    reader = _Reader(sections.get(_MEMORIES, empty))
    flags += [reader.limits() for _ in range(reader.number())]
    layout.wide = any(flag & 4 for flag in flags)
    imported = len(globals_)
    reader = _Reader(sections.get(_GLOBALS, empty))
    for _ in range(reader.number()):
        globals_.append(reader.global_type())
        reader.expression()
    exported: dict[int, str] = {}
    taken = False
    reader = _Reader(sections.get(_EXPORTS, empty))
    for _ in range(reader.number()):
        name, kind, index = reader.name(), reader.byte(), reader.number()
        taken |= name == STACK_POINTER and kind != _GLOBAL
        if kind == _FUNCTION:
            layout.functions[name] = types[functions[index]]
            layout.names.setdefault(index, name)
        elif kind == _GLOBAL:
            exported[index] = name
    layout.dylink = _dylink(custom.get("dylink.0"))
    candidate = _stack_pointer(exported, custom.get("name"), imported)
    if not taken and not layout.dylink and candidate is not None and imported <= candidate < len(globals_):
        kind_of = globals_[candidate]
        if kind_of.mutable and kind_of.type == ("i64" if layout.wide else "i32"):
            layout.stack_pointer = candidate
            layout.exports_stack_pointer = exported.get(candidate) == STACK_POINTER
    return layout


def _read_imports(reader: _Reader, layout: Layout, functions: list[int], globals_: list[GlobalType]) -> list[int]:
    """Fill in what is imported; the flags of memories."""
    memories = []
    for _ in range(reader.number()):
        module, name, kind = reader.name(), reader.name(), reader.byte()
        type_ = None
        if kind == _FUNCTION:
            functions.append(reader.number())
        elif kind == _TABLE:
            reader.byte()
            reader.limits()
        elif kind == _MEMORY:
            memories.append(reader.limits())
        else:
            type_ = reader.global_type()
            globals_.append(type_)
        layout.imports.append(Import(module, name, _KINDS[kind], type_))
    return memories


def _dylink(reader: _Reader | None) -> Dylink | None:
    """What a position-independent module needs; None for all others."""
    while reader:
        kind, contents = reader.byte(), _Reader(reader.contents())
        if kind == 1:
            size, alignment, table_size, _ = (contents.number() for _ in range(4))
            return Dylink(size, 1 << min(alignment, 63), table_size)
    return None


def _stack_pointer(exported: dict[int, str], names: _Reader | None, first: int) -> int | None:
    """The index of the global that is the stack pointer, if the module follows LLVM's conventions.

    It is the one that is exported as `__stack_pointer`, or called so by the name section; in a module without names of
    globals the first that is not imported, where wasm-ld puts it, if it is private.
    """
    by_export = next((index for index, name in exported.items() if name == STACK_POINTER), None)
    if by_export is not None:
        return by_export
    while names:
        kind, contents = names.byte(), _Reader(names.contents())
        if kind == 7:  # names of globals
            named = {contents.number(): contents.name() for _ in range(contents.number())}
            return next((index for index, name in named.items() if name == STACK_POINTER), None)
    return None if first in exported else first


def with_stack_pointer(data: bytes, layout: Layout) -> bytes:
    """The module with its stack pointer exported as `__stack_pointer`, so that it can be put back after a trap."""
    if layout.stack_pointer is None or layout.exports_stack_pointer:
        return data
    for kind, start, contents in _sections(data):
        if kind != _EXPORTS:
            continue
        reader = _Reader(contents)
        count = reader.number()
        entry = _leb(len(STACK_POINTER)) + STACK_POINTER.encode() + bytes([_GLOBAL]) + _leb(layout.stack_pointer)
        section = _leb(count + 1) + contents[reader.at :] + entry
        end = _Reader(data)
        end.at = start + 1
        end.contents()
        return data[:start] + bytes([_EXPORTS]) + _leb(len(section)) + section + data[end.at :]
    return data


def _leb(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
