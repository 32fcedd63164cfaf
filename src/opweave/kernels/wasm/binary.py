"""Parse WebAssembly modules: types of exports, the stack pointer, and position independence.

Engines do not report the last two, and querying a type that wasmtime's C interface does not have (a vector) aborts the
process. The functions accept *valid* modules of WebAssembly 3.0 without garbage collection and exceptions; `load` lets
the engine validate them first. https://webassembly.github.io/spec/core/binary/modules.html
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
    """The type of a global, and whether it is mutable."""

    type: str
    mutable: bool


@dataclass(frozen=True, slots=True)
class Import:
    """An import of a module; `type` is set for globals."""

    module: str
    name: str
    kind: Literal["function", "table", "memory", "global"]
    type: GlobalType | None


@dataclass(frozen=True, slots=True)
class Dylink:
    """Requirements of a position-independent module.

    https://github.com/WebAssembly/tool-conventions/blob/main/DynamicLinking.md

    Attributes:
        memory_size: size of its data, in bytes.
        memory_alignment: alignment of its data, in bytes.
        table_size: elements of the function table.
    """

    memory_size: int
    memory_alignment: int
    table_size: int


@dataclass
class Layout:
    """The declarations of a module.

    Attributes:
        imports: its imports.
        functions: the types of exported functions.
        names: the names of exported functions, by index.
        wide: whether pointers have 64 bits.
        dylink: set for position-independent modules.
        stack_pointer: index of the global that is the stack pointer, if there is one.
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
    """Reads values of the binary format."""

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
        """A byte string preceded by its length."""
        return self.take(self.number())

    def name(self) -> str:
        return self.contents().decode(errors="replace")

    def types(self) -> tuple[str, ...]:
        return tuple(_VALUE_TYPES.get(self.byte(), "?") for _ in range(self.number()))

    def global_type(self) -> GlobalType:
        return GlobalType(_VALUE_TYPES.get(self.byte(), "?"), self.byte() == 1)

    def limits(self) -> int:
        """Skip limits; return their flags."""
        flags = self.byte()
        for _ in range(1 + (flags & 1) + (flags >> 3 & 1)):
            self.number()
        return flags

    def expression(self) -> None:
        """Skip a constant expression."""
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
    """Require the magic bytes of a WebAssembly module.

    Raises:
        DataError: it is something else: text, a component, another version.
    """
    if data[:8] != MAGIC:
        what = "a component" if data[:8] == b"\0asm\x0d\0\1\0" else f"bytes that begin with {data[:8]!r}"
        raise DataError(f"{name}: must be a WebAssembly module (version 1), got {what}")


def _sections(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Kind, offset and contents of each section."""
    reader = _Reader(data)
    reader.at = len(MAGIC)
    while reader:
        start, kind = reader.at, reader.byte()
        yield kind, start, reader.contents()


def read(data: bytes) -> Layout:
    """The declarations of a valid module.

    Raises:
        IndexError: a custom section, which engines do not validate, is malformed.
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
    """Add the imports to `layout`, `functions` and `globals_`; return the flags of the memories."""
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
    while reader:
        kind, contents = reader.byte(), _Reader(reader.contents())
        if kind == 1:
            size, alignment, table_size, _ = (contents.number() for _ in range(4))
            return Dylink(size, 1 << min(alignment, 63), table_size)
    return None


def _stack_pointer(exported: dict[int, str], names: _Reader | None, first: int) -> int | None:
    """The index of the stack pointer's global, by LLVM's conventions.

    It is exported as `__stack_pointer`, or has this name in the name section. Without names of globals, it is the first
    global that is not imported, where wasm-ld puts it, unless that is exported.
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
    """Export the stack pointer as `__stack_pointer`, so that it can be restored after a trap."""
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
