"""Parse WebAssembly modules: types of imports and exports, the stack pointer, and position independence.

Engines do not report the stack pointer and position independence, and wasmtime's C interface aborts the process when asked
for the type of a vector. The functions accept *valid* modules of WebAssembly 3.0 without garbage collection and exceptions;
the engine validates modules before they are parsed. https://webassembly.github.io/spec/core/binary/modules.html
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...support.errors import DataError
from ...support.varint import read_varint, varint
from .signature import FunctionType

MAGIC = b"\0asm\1\0\0\0"
STACK_POINTER = "__stack_pointer"

_CUSTOM, _TYPES, _IMPORTS, _FUNCTIONS, _MEMORIES, _GLOBALS, _EXPORTS = 0, 1, 2, 3, 5, 6, 7
_FUNCTION, _TABLE, _MEMORY, _GLOBAL = range(4)
_VALUE_TYPES = {0x7F: "i32", 0x7E: "i64", 0x7D: "f32", 0x7C: "f64", 0x7B: "v128", 0x70: "funcref", 0x6F: "externref"}


class Import(NamedTuple):
    """An import of a module; `kind` is "function", "table", "memory", or the type of a global."""

    module: str
    name: str
    kind: str


class Dylink(NamedTuple):
    """Requirements of a position-independent module, in bytes and elements of the function table.

    https://github.com/WebAssembly/tool-conventions/blob/main/DynamicLinking.md
    """

    memory_size: int
    memory_alignment: int
    table_size: int


@dataclass(frozen=True)
class BinaryLayout:
    """The declarations of a module.

    Attributes:
        data: the module; the global that may be its stack pointer is exported.
        functions: the types of exported functions.
        names: the names of exported functions, by index.
        wide: whether pointers have 64 bits.
        dylink: set for position-independent modules.
        stack_pointer: the exported global that is the stack pointer by LLVM's conventions, of any type.
    """

    data: bytes
    imports: Sequence[Import]
    functions: Mapping[str, FunctionType]
    names: Mapping[int, str]
    wide: bool
    dylink: Dylink | None
    stack_pointer: str | None

    @property
    def pointer(self) -> str:
        return "i64" if self.wide else "i32"


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def __bool__(self) -> bool:
        return self.at < len(self.data)

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def number(self) -> int:
        """Read an unsigned LEB128."""
        value, self.at = read_varint(self.data, self.at)
        return value

    def take(self, count: int) -> bytes:
        self.at += count
        return self.data[self.at - count : self.at]

    def contents(self) -> bytes:
        return self.take(self.number())

    def name(self) -> str:
        return self.contents().decode(errors="replace")

    def type(self) -> str:
        return _VALUE_TYPES.get(self.byte(), "?")

    def types(self) -> tuple[str, ...]:
        return tuple(self.type() for _ in range(self.number()))

    def limits(self) -> int:
        """Skip limits, and return their flags."""
        flags = self.byte()
        for _ in range(1 + (flags & 1) + (flags >> 3 & 1)):
            self.number()
        return flags


def check(data: bytes, name: str) -> None:
    """Require the magic bytes of a WebAssembly module, not text, a component, another version or something else."""
    if data[:8] != MAGIC:
        contents = "a component" if data[:8] == b"\0asm\x0d\0\1\0" else f"bytes that begin with {data[:8]!r}"
        raise DataError(f"{name}: must be a WebAssembly module (version 1), got {contents}")


def read(data: bytes) -> BinaryLayout:
    """Return the declarations of a valid module; `IndexError` if custom sections, which engines skip, are malformed."""
    sections: list[tuple[int, bytes]] = []
    custom: dict[str, _Reader] = {}
    reader = _Reader(data[len(MAGIC) :])
    while reader:
        sections.append((reader.byte(), reader.contents()))
        if sections[-1][0] == _CUSTOM:
            contents = _Reader(sections[-1][1])
            custom.setdefault(contents.name(), contents)

    def section(kind: int) -> _Reader:
        return _Reader(dict(sections).get(kind, b"\0"))

    reader, types = section(_TYPES), []
    for _ in range(reader.number()):
        reader.byte()  # all are functions
        types.append(FunctionType(reader.types(), reader.types()))
    imports, functions, limits = _imports(section(_IMPORTS))
    for kind, numbers, read_one in ((_FUNCTIONS, functions, _Reader.number), (_MEMORIES, limits, _Reader.limits)):
        reader = section(kind)
        numbers += [read_one(reader) for _ in range(reader.number())]
    reader, exported = section(_EXPORTS), {}
    for _ in range(reader.number()):
        name = reader.name()
        exported[name] = reader.byte(), reader.number()
    indices = {name: index for name, (kind, index) in exported.items() if kind == _FUNCTION}
    dylink, stack_pointer = _dylink(custom.get("dylink.0")), None
    # Without a dylink section there are no imported globals, which would precede the module's own.
    if dylink is None:
        globals_ = {name: index for name, (kind, index) in exported.items() if kind == _GLOBAL}
        index = _stack_pointer(globals_, custom.get("name"))
        if exported and index is not None and index < section(_GLOBALS).number():
            stack_pointer = STACK_POINTER
            while stack_pointer in exported:
                stack_pointer += "_"
            sections = [(k, _with_export(c, stack_pointer, index) if k == _EXPORTS else c) for k, c in sections]
            data = MAGIC + b"".join(bytes([kind]) + varint(len(c)) + c for kind, c in sections)
    return BinaryLayout(
        data=data,
        imports=imports,
        functions={name: types[functions[index]] for name, index in indices.items()},
        names={index: name for name, index in reversed(indices.items())},
        wide=any(flags & 4 for flags in limits),
        dylink=dylink,
        stack_pointer=stack_pointer,
    )


def _imports(reader: _Reader) -> tuple[list[Import], list[int], list[int]]:
    """Return the imports, the types of imported functions, and the flags of imported memories."""
    imports, functions, memories = [], [], []
    for _ in range(reader.number()):
        module, name, kind = reader.name(), reader.name(), reader.byte()
        if kind == _FUNCTION:
            label = "function"
            functions.append(reader.number())
        elif kind == _TABLE:
            label = "table"
            reader.byte()
            reader.limits()
        elif kind == _MEMORY:
            label = "memory"
            memories.append(reader.limits())
        else:
            label = reader.type()
            reader.byte()
        imports.append(Import(module, name, label))
    return imports, functions, memories


def _dylink(reader: _Reader | None) -> Dylink | None:
    while reader:
        kind, contents = reader.byte(), _Reader(reader.contents())
        if kind == 1:
            size, alignment, table_size, _ = (contents.number() for _ in range(4))
            return Dylink(size, 1 << min(alignment, 63), table_size)
    return None


def _stack_pointer(exported: Mapping[str, int], names: _Reader | None) -> int | None:
    """Return the index of the stack pointer's global: exported as `__stack_pointer`, or with this name in the name section.

    If globals have no names, return the first global, where wasm-ld puts the stack pointer, unless the first is exported.
    """
    if STACK_POINTER in exported:
        return exported[STACK_POINTER]
    while names:
        kind, contents = names.byte(), _Reader(names.contents())
        if kind == 7:  # names of globals
            named = {contents.number(): contents.name() for _ in range(contents.number())}
            return next((index for index, name in named.items() if name == STACK_POINTER), None)
    return None if 0 in exported.values() else 0


def _with_export(exports: bytes, name: str, index: int) -> bytes:
    reader = _Reader(exports)
    count = reader.number()
    return (
        varint(count + 1) + exports[reader.at :] + varint(len(name)) + name.encode() + bytes([_GLOBAL]) + varint(index)
    )
