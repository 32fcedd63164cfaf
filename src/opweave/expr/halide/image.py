"""Compiled code as bytes that any process can load: a linked image, or object files that LLVM's loader links.

Loading an image takes neither Halide nor LLVM. The memory of an image is first writable, then executable, never both.
On systems other than Linux on x86-64, llvmlite links the object files at each load.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from ...support.errors import OperationError, import_extra
from ...support.records import record

_LENGTH_BYTES = 4
"""Size of the length field in front of a header."""


def with_header(header: Any, data: bytes) -> bytes:
    """Put a header, which JSON can represent, in front of data."""
    text = json.dumps(header, separators=(",", ":")).encode()
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text + data


def without_header(data: bytes) -> tuple[Any, bytes]:
    """The header and the data that `with_header` put together."""
    end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    return json.loads(data[_LENGTH_BYTES:end]), data[end:]


@record(eq=True, slots=False)
class Image:
    """Code, constants and variables with position-independent references.

    Attributes:
        variables: size of the writable part at the start; a multiple of the page size.
        exports: offset of each named function and variable.
        imports: for each function outside of the image, the offsets at which its address must be written.
        pointers: offsets of 64-bit numbers to which the address of the image must be added.
    """

    memory: bytes
    variables: int
    exports: dict[str, int]
    imports: dict[str, tuple[int, ...]]
    pointers: tuple[int, ...]


class Code(Protocol):
    """Compiled code in this process, unloaded when the object is collected."""

    def address(self, name: str) -> int:
        """The address of a function; 0 if it does not exist."""


def pack(files: Sequence[bytes]) -> bytes:
    """Serialise object files, linked if `elf` supports their kind."""
    from .elf import is_elf, link

    if not all(map(is_elf, files)):
        return with_header({"objects": [len(data) for data in files]}, b"".join(files))
    header = asdict(link(files))
    memory = header.pop("memory")
    return with_header(header, memory)


def load(data: bytes, outside: Callable[[str], int]) -> Code:
    """Load the result of `pack`; `outside` returns the address of a function by its name, or 0 if it does not exist."""
    header, memory = without_header(data)
    if "objects" not in header:
        return _MappedImage(Image(memory, **header), outside)
    files, start = [], 0
    for size in header["objects"]:
        files.append(memory[start : start + size])
        start += size
    return _LinkedObjects(files, outside)


class _MappedImage:
    def __init__(self, image: Image, outside: Callable[[str], int]) -> None:
        self._exports = image.exports
        size = -(-len(image.memory) // mmap.PAGESIZE) * mmap.PAGESIZE
        # Private: a process that is forked must not share variables with this one.
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._memory = memory = mmap.mmap(-1, size, flags=private, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        self._start = start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        memory[: len(image.memory)] = image.memory
        for place in image.pointers:
            address = start + int.from_bytes(memory[place : place + 8], "little", signed=True)
            memory[place : place + 8] = address.to_bytes(8, "little")
        for name, offsets in image.imports.items():
            address = outside(name)
            if not address:
                raise OperationError(f"compiled code needs {name}, which this system does not have")
            for place in offsets:
                memory[place : place + 8] = address.to_bytes(8, "little")
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        protect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        if protect(start + image.variables, size - image.variables, mmap.PROT_READ | mmap.PROT_EXEC):
            reason = os.strerror(ctypes.get_errno())
            raise OperationError(f"this system does not let memory be made executable: {reason}")

    def address(self, name: str) -> int:
        offset = self._exports.get(name)
        return 0 if offset is None else self._start + offset


class _LinkedObjects:
    """Object files that LLVM's loader links."""

    def __init__(self, files: Sequence[bytes], outside: Callable[[str], int]) -> None:
        llvm = import_extra("llvmlite.binding", "halide", "loading compiled expressions")
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
        # Use llvmlite's memory manager, which allocates one block for all sections. LLVM's maps sections separately. With
        # reservations of WebAssembly memories between sections, 32-bit relocations overflow, which ends the process.
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine, use_lmm=True)
        for name in {symbol.decode() for data in files for symbol in re.findall(rb"halide_\w+", data)}:
            if address := outside(name):
                llvm.add_symbol(name, address)
        for data in files:
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(data))
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        return int(self._engine.get_function_address(name))
