"""Compiled object files, loaded into this process.

Halide compiles ahead of time, into object files without its runtime. They are kept on disk (`disk_cache`) and linked by
LLVM's loader (llvmlite). All share one runtime, also an object file, which owns the threads and the error handler.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import hashlib
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ...disk_cache import kept
from ...errors import OperationError, import_extra
from ...processors import chosen_threads, processors
from .mathematics import hl

llvm = import_extra("llvmlite.binding", "halide", "loading compiled expressions")
llvm.initialize_native_target()
llvm.initialize_native_asmprinter()

MAX_WRITTEN_BYTES = 2**26
"""Free space to require before Halide writes an object file: Halide ends the process if a write fails."""


@cache
def version() -> str:
    """A digest of what objects depend on besides the program and the machine: Halide, llvmlite, and this code."""
    from importlib.metadata import version as version_of

    digest = hashlib.sha256(f"{version_of('halide')} {version_of('llvmlite')}".encode())
    here = Path(__file__).parent
    for path in (*sorted(here.glob("*.py")), *sorted(here.parent.glob("*.py"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def temporary_bytes(write: Callable[[str], object]) -> bytes:
    """Return what `write(path)` writes to a file.

    Raises:
        OperationError: there is not enough space.
    """
    try:
        _check_file_sizes()
        if hasattr(os, "memfd_create"):  # an anonymous file in memory
            descriptor = os.memfd_create("opweave")
            with os.fdopen(descriptor, "rb") as file:
                write(f"/proc/self/fd/{descriptor}")
                return file.read()
        with tempfile.TemporaryDirectory(prefix="opweave-") as folder:
            free = shutil.disk_usage(folder).free
            if free < MAX_WRITTEN_BYTES:
                raise OSError(errno.ENOSPC, f"{folder} has {free:,} bytes left, and {MAX_WRITTEN_BYTES:,} are wanted")
            path = Path(folder) / "object.o"
            write(str(path))
            return path.read_bytes()
    except OSError as error:
        raise OperationError(f"no room for compiled code: {error.strerror or error}") from None


def _check_file_sizes() -> None:
    """Raise if the process limits file sizes (`ulimit -f`), which also applies to files in memory."""
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY and limit < MAX_WRITTEN_BYTES:
        raise OSError(errno.EFBIG, f"files are limited to {limit:,} bytes, and {MAX_WRITTEN_BYTES:,} are wanted")


@cache
def target() -> Any:
    """The Halide target of this machine."""
    return hl.get_host_target().with_feature(hl.TargetFeature.StrictFloat)


def assembled(code: str) -> bytes:
    """Compile LLVM code to an object file.

    Raises:
        RuntimeError: this LLVM cannot parse it.
    """
    machine = llvm.Target.from_default_triple().create_target_machine(opt=3, reloc="pic", codemodel="default")
    return bytes(machine.emit_object(llvm.parse_assembly(code)))


class Library:
    """Object files in memory, unloaded when the object is collected."""

    def __init__(self, files: Sequence[bytes]) -> None:
        machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
        module = llvm.parse_assembly("")
        # llvmlite's own memory manager takes one block for all sections. LLVM's maps each for itself, near the last one if it
        # can; with the reservations of WebAssembly memories between them, 32-bit relocations overflow, which ends the process.
        self._engine = llvm.create_mcjit_compiler(module, machine, use_lmm=True)
        for data in files:
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(data))
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        """The address of a function; 0 if it does not exist."""
        return int(self._engine.get_function_address(name))


# ---------------------------------------------------------------------------------------------------------------------
# The runtime

_messages: list[str] = []
_Handler = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)


def _note(_: int, message: bytes) -> None:
    """Keep an error message; Halide's own handler would abort the process."""
    _messages.append(message.decode(errors="replace").strip())
    del _messages[:-20]


_handler = _Handler(_note)


def last_error() -> str:
    """The last error message of the runtime."""
    return _messages.pop() if _messages else "unknown error"


_lock = threading.Lock()
_runtime: Library | None = None


def runtime() -> Library:
    """Halide's runtime, loaded once for the life of the process, because its threads run in it."""
    global _runtime
    with _lock:
        if _runtime is None:
            host = hl.get_host_target()
            name = f"runtime-{hashlib.sha256(f'{host} {version()}'.encode()).hexdigest()[:32]}"
            data = kept(name, lambda: temporary_bytes(lambda path: hl.compile_standalone_runtime(path, host)))
            library = Library([data])
            for symbol in sorted({m.decode() for m in re.findall(rb"halide_\w+", data)}):
                address = library.address(symbol)
                if address:
                    llvm.add_symbol(symbol, address)
            ctypes.CFUNCTYPE(None, _Handler)(library.address("halide_set_error_handler"))(_handler)
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(library))  # never unloaded: threads may still run in it at exit
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(_handler))
            atexit.register(ctypes.CFUNCTYPE(None)(library.address("halide_shutdown_thread_pool")))
            _set_threads(library, default_threads())
            _runtime = library
        return _runtime


def default_threads() -> int:
    """`$HL_NUM_THREADS`, `$OPWEAVE_THREADS`, or the number of processors available to this process."""
    chosen = os.environ.get("HL_NUM_THREADS", "")
    if chosen.isdigit() and int(chosen) > 0:
        return int(chosen)
    return chosen_threads() or processors()


def _set_threads(library: Library, count: int) -> None:
    ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(library.address("halide_set_num_threads"))(count)


def set_threads(count: int) -> None:
    """Set the number of threads of compiled expressions in this process."""
    _set_threads(runtime(), count)


def threads() -> int:
    """The number of threads of compiled expressions."""
    return int(ctypes.CFUNCTYPE(ctypes.c_int)(runtime().address("halide_get_num_threads"))())
