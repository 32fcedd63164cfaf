"""Link object files into an image: one block of memory that runs at any address.

Only sections and relocations that LLVM emits for position-independent x86-64 code are supported. The format is that of the
"System V Application Binary Interface, AMD64 Architecture Processor Supplement", https://gitlab.com/x86-psABIs/x86-64-ABI,
chapter 4. `image` fills in the addresses that differ between processes: of the image, and of imported functions. Destructors
of libraries (`.fini_array`) are not called.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence

import numpy as np

from ...support.errors import OperationError
from .image import Image

MAGIC = b"\x7fELF\x02\x01"
"""The start of an object file of 64 bits, least significant byte first."""

_RELOCATABLE, _X86_64 = 1, 62  # type and machine of a file
_SYMBOLS, _RELOCATIONS, _ZEROS, _DESTRUCTORS = 2, 4, 8, 15  # types of sections
_WRITABLE, _ALLOCATED, _THREAD_LOCAL = 1, 2, 0x400  # flags of sections
_UNDEFINED, _FIRST_RESERVED = 0, 0xFF00  # section numbers of symbols
_LOCAL = 0  # binding of symbols
# R_X86_64_64, _PC32, _PLT32, _GOTPCREL and its relaxable forms
_ADDRESS, _RELATIVE, _CALL, _SLOTS = 1, 2, 4, (9, 41, 42)

_JUMP = b"\xff\x25"
"""`jmp *disp32(%rip)`: calls reach functions outside of the image through it."""

_Section = np.dtype(
    {
        "names": ["name", "type", "flags", "address", "offset", "size", "link", "info", "align", "entry"],
        "formats": ["<u4", "<u4", "<u8", "<u8", "<u8", "<u8", "<u4", "<u4", "<u8", "<u8"],
    }
)
_Symbol = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
_Relocation = np.dtype([("offset", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])


def is_elf(data: bytes) -> bool:
    """Whether `link` supports this kind of object file."""
    return data.startswith(MAGIC) and _number(data, 16, 2) == _RELOCATABLE and _number(data, 18, 2) == _X86_64


def link(files: Sequence[bytes]) -> Image:
    """Lay out position-independent object files in an image, and resolve the references between them.

    Of several definitions of a name, the first counts.
    """
    return _Linker([_Object(data) for data in files]).image()


def _rows(table: np.ndarray) -> list[dict[str, int]]:
    return [dict(zip(table.dtype.names or (), row, strict=True)) for row in table.tolist()]


def _number(data: bytes, offset: int, size: int) -> int:
    return int.from_bytes(data[offset : offset + size], "little")


class _Object:
    """The tables of an object file, and the offset in the image of each section that is placed, by number (`places`)."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.sections = _rows(np.frombuffer(data, _Section, _number(data, 60, 2), _number(data, 40, 8)))
        (table,) = (section for section in self.sections if section["type"] == _SYMBOLS)
        self.symbols = _rows(np.frombuffer(self.content(table), _Symbol))
        strings = self.sections[table["link"]]
        self.names = [self._text(strings, symbol["name"]) for symbol in self.symbols]
        self.places: dict[int, int] = {}

    def name(self, section: dict[str, int]) -> str:
        return self._text(self.sections[_number(self._data, 62, 2)], section["name"])

    def content(self, section: dict[str, int]) -> bytes:
        if section["type"] == _ZEROS:
            return bytes(section["size"])
        return self._data[section["offset"] : section["offset"] + section["size"]]

    def definitions(self) -> Iterator[tuple[str, int]]:
        """Yield each name that other files may use, with its offset in the image."""
        for name, symbol in zip(self.names, self.symbols, strict=True):
            if symbol["info"] >> 4 != _LOCAL and symbol["section"] in self.places:
                yield name, self.places[symbol["section"]] + symbol["value"]

    def _text(self, strings: dict[str, int], offset: int) -> str:
        start = strings["offset"] + offset
        return self._data[start : self._data.index(b"\0", start)].decode()


class _Linker:
    """An image under construction: variables, then code and constants, then slots and jumps."""

    def __init__(self, objects: Sequence[_Object]) -> None:
        self._memory = bytearray()
        self._pointers: list[int] = []
        self._imports: dict[str, list[int]] = {}
        self._slots: dict[str | int, int] = {}
        self._jumps: dict[str, int] = {}
        for item in objects:
            self._place(item, writable=True)
        self._align(mmap.PAGESIZE)
        self._variables = len(self._memory)
        for item in objects:
            self._place(item, writable=False)
        self._exports: dict[str, int] = {}
        for item in objects:
            for name, offset in item.definitions():
                self._exports.setdefault(name, offset)
        for item in objects:
            for section in item.sections:
                if section["type"] == _RELOCATIONS and section["info"] in item.places:
                    for relocation in _rows(np.frombuffer(item.content(section), _Relocation)):
                        self._relocate(item, item.places[section["info"]], relocation)

    def image(self) -> Image:
        imports = {name: tuple(offsets) for name, offsets in self._imports.items()}
        return Image(bytes(self._memory), self._variables, self._exports, imports, tuple(self._pointers))

    def _place(self, item: _Object, writable: bool) -> None:
        for number, section in enumerate(item.sections):
            if not section["flags"] & _ALLOCATED or section["type"] == _DESTRUCTORS:
                continue
            if section["flags"] & _THREAD_LOCAL:
                raise OperationError(f"compiled code has variables of threads, in {item.name(section)}")
            # Constants that contain addresses are marked writable, but are written before the memory is protected.
            is_constant = not section["flags"] & _WRITABLE or item.name(section).startswith(".data.rel.ro")
            if is_constant != writable:
                self._align(section["align"])
                item.places[number] = self._append(item.content(section))

    def _relocate(self, item: _Object, place: int, relocation: dict[str, int]) -> None:
        at, kind, addend = place + relocation["offset"], relocation["type"], relocation["addend"]
        target = self._target(item, relocation["symbol"])
        if kind == _ADDRESS:
            self._address(at, target, addend)
        elif kind in _SLOTS:
            self._write(at, self._slot(target) + addend - at, 4)
        elif kind == _CALL and isinstance(target, str):
            self._write(at, self._jump(target) + addend - at, 4)
        elif kind in (_RELATIVE, _CALL) and isinstance(target, int):
            self._write(at, target + addend - at, 4)
        else:
            raise OperationError(f"compiled code refers to {target} in an unknown way, relocation {kind}")

    def _target(self, item: _Object, number: int) -> str | int:
        """Resolve a symbol: to an offset in the image, or to a name outside of the image."""
        symbol, name = item.symbols[number], item.names[number]
        section = symbol["section"]
        if symbol["info"] >> 4 != _LOCAL and name in self._exports:
            return self._exports[name]
        if section == _UNDEFINED and name:
            return name
        if section not in item.places:
            raise OperationError(f"compiled code refers to {name or 'a section'}, which is not part of it")
        return item.places[section] + int(symbol["value"])

    def _address(self, at: int, target: str | int, addend: int = 0) -> None:
        """Record a place where loading must write the address of a target."""
        if isinstance(target, int):
            self._write(at, target + addend, 8)
            self._pointers.append(at)
        elif addend:
            raise OperationError(f"compiled code refers to a place inside of {target}, which is not part of it")
        else:
            self._imports.setdefault(target, []).append(at)

    def _slot(self, target: str | int) -> int:
        """The offset of the slot that holds the address of a target."""
        if target not in self._slots:
            self._align(8)
            self._slots[target] = self._append(bytes(8))
            self._address(self._slots[target], target)
        return self._slots[target]

    def _jump(self, name: str) -> int:
        """The offset of an instruction that jumps to a function outside of the image."""
        if name not in self._jumps:
            slot = self._slot(name)
            self._jumps[name] = self._append(_JUMP + bytes(4))
            end = len(self._memory)
            self._write(end - 4, slot - end, 4)
        return self._jumps[name]

    def _align(self, alignment: int) -> None:
        self._memory += bytes(-len(self._memory) % max(alignment, 1))

    def _append(self, content: bytes) -> int:
        self._memory += content
        return len(self._memory) - len(content)

    def _write(self, at: int, value: int, size: int) -> None:
        self._memory[at : at + size] = value.to_bytes(size, "little", signed=True)
