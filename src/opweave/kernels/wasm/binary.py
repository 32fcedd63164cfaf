"""What has to be read in a module's own bytes, because no engine tells: its stack pointer, and whether it can be moved.

https://webassembly.github.io/spec/core/binary/modules.html
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...errors import DataError

MAGIC = b"\0asm\1\0\0\0"
STACK_POINTER = "__stack_pointer"

_CUSTOM, _IMPORT, _MEMORY_SECTION, _GLOBAL, _EXPORT = 0, 2, 5, 6, 7
_FUNCTION, _TABLE, _MEMORY, _GLOBAL_KIND, _TAG = range(5)
_POINTER_TYPES = (0x7F, 0x7E)  # i32, i64


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

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise IndexError("a section ends early")
        self.at += count
        return self.data[self.at - count : self.at]

    def name(self) -> bytes:
        return self.take(self.number())

    def value_type(self) -> int:
        """The first byte of a type; references to declared types have more."""
        kind = self.byte()
        if kind in (0x63, 0x64):
            self.number()  # the heap type, whose sign does not matter here
        return kind

    def limits(self) -> int:
        """Passes over limits; the flags tell of what kind they are."""
        flags = self.byte()
        self.number()
        if flags & 1:
            self.number()
        if flags & 8:  # a page size of its own
            self.number()
        return flags


def _leb(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


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
        yield kind, start, reader.name()


def _custom(data: bytes, name: bytes) -> _Reader | None:
    """The custom section of that name."""
    for kind, _, contents in _sections(data):
        reader = _Reader(contents)
        if kind == _CUSTOM and reader.name() == name:
            return reader
    return None


def dylink(data: bytes) -> Dylink | None:
    """What a position-independent module needs; None for all others."""
    reader = _custom(data, b"dylink.0")
    while reader:
        kind, contents = reader.byte(), _Reader(reader.name())
        if kind == 1:
            size, alignment, table_size, _ = (contents.number() for _ in range(4))
            return Dylink(size, 1 << alignment, table_size)
    return None


def _imports(contents: bytes) -> tuple[int, list[int]]:
    """Of an import section: the number of globals, and the flags of memories."""
    reader, globals_, memories = _Reader(contents), 0, []
    for _ in range(reader.number()):
        reader.name(), reader.name()
        kind = reader.byte()
        if kind == _GLOBAL_KIND:
            globals_ += 1
            reader.value_type()
            reader.byte()
        elif kind in (_FUNCTION, _TAG):
            if kind == _TAG:
                reader.byte()
            reader.number()
        elif kind == _TABLE:
            reader.value_type()
            reader.limits()
        else:
            memories.append(reader.limits())
    return globals_, memories


def has_wide_memory(data: bytes) -> bool:
    """Whether pointers into the module's memory have 64 bits."""
    flags: list[int] = []
    for kind, _, contents in _sections(data):
        if kind == _IMPORT:
            flags += _imports(contents)[1]
        elif kind == _MEMORY_SECTION:
            reader = _Reader(contents)
            flags += [reader.limits() for _ in range(reader.number())]
    return any(flag & 4 for flag in flags)


def _named_global(data: bytes, name: bytes) -> int | None:
    """The index of the global that the name section calls so."""
    reader = _custom(data, b"name")
    while reader:
        kind, contents = reader.byte(), _Reader(reader.name())
        if kind == 7:
            names = {contents.number(): contents.name() for _ in range(contents.number())}
            return next((index for index, found in names.items() if found == name), None)
    return None


def with_stack_pointer(data: bytes) -> bytes:
    """The module, with its stack pointer exported as `__stack_pointer`, so that it can be put back after a trap.

    Compilers that follow LLVM's conventions keep a stack in the linear memory, whose pointer is a private global. It is the
    one that the name section calls `__stack_pointer`; in a module without names, the first global, where wasm-ld puts it,
    if that is mutable, private, and of the type of a pointer.
    """
    found = {kind: (start, contents) for kind, start, contents in _sections(data) if kind != _CUSTOM}
    if _EXPORT not in found or _GLOBAL not in found:
        return data
    start, contents = found[_EXPORT]
    reader = _Reader(contents)
    count = reader.number()
    first = reader.at
    exported = set()
    for _ in range(count):
        name, kind, index = reader.name(), reader.byte(), reader.number()
        if kind == _GLOBAL_KIND:
            exported.add(index)
        if name == STACK_POINTER.encode():
            return data
    index = _imports(found[_IMPORT][1])[0] if _IMPORT in found else 0
    named = _named_global(data, STACK_POINTER.encode())
    globals_ = _Reader(found[_GLOBAL][1])
    if not globals_.number():
        return data
    value_type, mutable = globals_.value_type(), globals_.byte()
    if named is None and (
        _custom(data, b"name") or index in exported or value_type not in _POINTER_TYPES or not mutable
    ):
        return data
    name = STACK_POINTER.encode()
    entry = _leb(len(name)) + name + bytes([_GLOBAL_KIND]) + _leb(index if named is None else named)
    section = _leb(count + 1) + contents[first:] + entry
    end = start + 1 + len(_leb_as_written(data, start + 1)) + len(contents)
    return data[:start] + bytes([_EXPORT]) + _leb(len(section)) + section + data[end:]


def _leb_as_written(data: bytes, start: int) -> bytes:
    """The bytes of a number, which need not be the fewest."""
    end = start
    while data[end] > 0x7F:
        end += 1
    return data[start : end + 1]
