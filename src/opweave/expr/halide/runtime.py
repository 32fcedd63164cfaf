"""Halide's runtime, which owns the threads and the error handler of all compiled code in this process.

The runtime is an object file, compiled once and cached on disk. Cached code runs without importing Halide, so cache keys
consist of the system's description of the processor and of the versions of the packages.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
from functools import cache
from pathlib import Path

from ...support import settings
from ...support.digests import digest
from ...support.disk_cache import load_or_make
from ...support.distributions import version_of
from ...support.errors import import_extra
from ...support.processors import chosen_threads, processor_lines, processor_name, processors
from .image import Code, load, pack


@cache
def version() -> str:
    """A digest of the versions that compiled code depends on: those of Halide and llvmlite, and our own code."""
    hasher = digest(f"{_version_of('halide')} {_version_of('llvmlite')}".encode())
    folder = Path(__file__).parent
    for path in (*sorted(folder.glob("*.py")), *sorted(folder.parent.glob("*.py"))):
        hasher.update(path.read_bytes())
    return hasher.hexdigest()


def _version_of(package: str) -> str:
    return version_of(package) or str(import_extra(package, "halide", "compiling expressions").__version__)


@cache
def machine() -> str:
    """Describe the machine for cache keys: operating system, processor, and features of the processor."""
    features = next(processor_lines("flags"), "")
    if not features:  # not on Linux
        from .objects import target

        features = str(target())
    return f"{sys.platform} {processor_name()} {features}"


def key(*words: object) -> str:
    """The key of code for this machine in the cache on disk."""
    return digest(" ".join(map(str, (*words, machine(), version()))).encode()).hexdigest()


def runtime_key() -> str:
    """The key of the runtime for this machine in the cache on disk."""
    return f"runtime-{key()[:32]}"


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
_runtime: Code | None = None


def runtime() -> Code:
    """Halide's runtime, loaded once for the life of the process, because its threads run in it."""
    global _runtime
    with _lock:
        if _runtime is None:
            code = load(load_or_make(runtime_key(), _compile), _system_function)
            ctypes.CFUNCTYPE(None, _Handler)(code.address("halide_set_error_handler"))(_handler)
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(code))  # never unloaded: threads may still run in it at exit
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(_handler))
            atexit.register(ctypes.CFUNCTYPE(None)(code.address("halide_shutdown_thread_pool")))
            _set_threads(code, default_threads())
            _runtime = code
        return _runtime


def address(name: str) -> int:
    """The address of a function of the runtime, or of the C library, whose memset LLVM calls; 0 if there is none."""
    return runtime().address(name) or _system_function(name)


def _compile() -> bytes:
    from .objects import compile_runtime

    return pack([compile_runtime()])


def _system_function(name: str) -> int:
    """The address of a function of the C library; 0 if there is none."""
    if sys.platform == "win32":  # LLVM's loader finds them there
        return 0
    try:
        return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value or 0
    except AttributeError:
        return 0


def default_threads() -> int:
    """`$HL_NUM_THREADS`, `$OPWEAVE_THREADS`, or the number of processors available to this process."""
    # Halide's own variable; like Halide, ignore values that are no number.
    chosen = os.environ.get("HL_NUM_THREADS", "")
    if chosen.isdecimal() and 0 < len(chosen) <= settings.MAX_DIGITS and int(chosen) > 0:
        return int(chosen)
    return chosen_threads() or processors()


def _set_threads(code: Code, count: int) -> None:
    ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(code.address("halide_set_num_threads"))(count)


def set_threads(count: int) -> None:
    _set_threads(runtime(), count)


def threads() -> int:
    return int(ctypes.CFUNCTYPE(ctypes.c_int)(runtime().address("halide_get_num_threads"))())
