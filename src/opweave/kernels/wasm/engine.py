"""The WebAssembly engine (wasmtime): configuration, timeouts, and error messages."""

from __future__ import annotations

import atexit
import ctypes
import math
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from ...support.errors import DataError, MLError, OperationError, import_extra

if TYPE_CHECKING:
    import wasmtime

PAGE = 65536
"""Bytes of a page of linear memory."""
TICK = 0.01
"""Resolution of timeouts, in seconds."""
STACK = 256 * 1024
"""Bytes of the thread's native stack that WebAssembly may use before it traps. Threads need at least twice as much."""
TABLE_ELEMENTS = 1_000_000

_REFUSED = ("component_model", "exceptions", "function_references", "gc", "multi_memory", "stack_switching", "threads")
"""Disabled features: kernels do not need them, and the engine's C interface does not support their types."""


def library() -> Any:
    return import_extra("wasmtime", "wasm", "a WebAssembly module")


@cache
def engine(interruptible: bool, reservation: int) -> wasmtime.Engine:
    """Return the engine for modules with or without a timeout, whose memory may grow to `reservation` bytes."""
    config = library().Config()
    # With signal-based traps, a handler that is installed later (such as `faulthandler.enable()`) gets the signal first, and
    # ends the process. Explicit checks take 2 to 20% more time.
    config.signals_based_traps = False
    config.epoch_interruption = interruptible
    # Reserve all addresses at the start, so that the memory does not move when it grows: NumPy views point into it.
    config.memory_may_move = False
    config.memory_reservation = reservation
    config.max_wasm_stack = STACK
    for feature in _REFUSED:
        setattr(config, f"wasm_{feature}", False)
    instance: wasmtime.Engine = library().Engine(config)
    _owners.add(instance)
    if interruptible:
        ticker.engines.append(instance)
    return instance


def new_store(timeout: float | None, reservation: int) -> wasmtime.Store:
    store: wasmtime.Store = library().Store(engine(timeout is not None, reservation))
    _owners.add(store)
    return store


_owners: WeakSet[Any] = WeakSet()
"""Engines and stores, which own memory of the engine's library."""


@atexit.register
def _keep() -> None:
    """Keep the owners until the process ends: their destructors fail after the interpreter has cleared wasmtime's modules."""
    for owner in list(_owners):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))


class Ticker:
    """A thread that increments the epochs of `engines` while functions with a timeout run, and sleeps otherwise.

    `now` is the number of ticks so far, never ahead of the engines; `running` has an object for each active call.
    """

    def __init__(self) -> None:
        self.engines: list[wasmtime.Engine] = []
        self.now = 0
        self.running: set[object] = set()
        self.forget_thread()

    def forget_thread(self) -> None:
        """Reset the thread, which a forked child does not have."""
        self._thread: threading.Thread | None = None
        self._lock, self.awake = threading.Lock(), threading.Event()
        self.running.clear()

    def start(self, call: object) -> None:
        """Tick at least until `call` is removed from `running`."""
        self.running.add(call)
        if not self.awake.is_set():
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="opweave-wasm-ticker", daemon=True)
                    self._thread.start()
                self.awake.set()

    def tick(self) -> None:
        for engine in self.engines:
            engine.increment_epoch()
        self.now += 1

    def _run(self) -> None:
        while True:
            self.awake.wait()
            time.sleep(TICK)
            self.tick()
            if not self.running:
                self.awake.clear()
                if self.running:  # a call has started between the two lines above
                    self.awake.set()


ticker = Ticker()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=ticker.forget_thread)


def ticks(timeout: float) -> int:
    """Return the number of ticks that takes at least `timeout` seconds; the first tick may come immediately, or be missed."""
    return min(math.ceil(timeout / TICK) + 2, 1 << 62)


@contextmanager
def deadline(store: wasmtime.Store, timeout: float | None) -> Iterator[None]:
    """Trap the functions called inside after `timeout` seconds."""
    if timeout is None:
        yield
        return
    call = object()
    store.set_epoch_deadline(ticks(timeout))
    ticker.start(call)
    try:
        yield
    finally:
        ticker.running.discard(call)


@cache
def call_unchecked() -> Any:
    """Return `wasmtime_func_call_unchecked(context, function, values, count, trap) -> error`, with addresses as integers.

    It takes a twentieth of the time of `Func.__call__`, which checks and converts arguments. The GIL is released.
    """
    from wasmtime import _ffi

    address, size = ctypes.c_void_p, ctypes.c_size_t
    prototype = ctypes.CFUNCTYPE(address, address, address, address, size, address)
    return prototype(("wasmtime_func_call_unchecked", _ffi.dll))


def address_of(pointer: Any) -> int:
    return ctypes.addressof(pointer.contents)


def exception_of(error: int, trap: int) -> Exception:
    """Return the exception for the engine's error, or trap if the error is 0, at an address; it owns the memory."""
    from wasmtime import Trap, WasmtimeError, _bindings

    exception: Exception
    if error:
        exception = WasmtimeError._from_ptr(ctypes.cast(error, ctypes.POINTER(_bindings.wasmtime_error_t)))
    else:
        exception = Trap._from_ptr(ctypes.cast(trap, ctypes.POINTER(_bindings.wasm_trap_t)))
    return exception


def explain(error: Exception, subject: str, timeout: float | None, names: Mapping[int, str]) -> MLError:
    """Convert a trap or an error of the engine; `subject` begins the message, `names` are of exported functions by index."""
    module = library()
    if not isinstance(error, module.Trap):
        return OperationError(f"{subject}: {reason(error)}")
    code = error.trap_code
    if code is module.TrapCode.INTERRUPT:
        return OperationError(
            f"{subject} ran longer than its timeout of {timeout} s and was stopped{_where(error, names)}"
        )
    kind = code.name.lower().replace("_", " ") if code is not None else reason(error)
    return OperationError(f"{subject} trapped: {kind}{_where(error, names)}")


def explain_load(error: Exception, name: str, timeout: float | None, names: Mapping[int, str], limit: int) -> MLError:
    """Convert an error of instantiating a module."""
    if isinstance(error, library().Trap):
        if error.frames:
            return explain(error, f"{name}: its start function", timeout, names)
        return DataError(f"{name}: a segment lies outside of its memory or table: {reason(error)}")
    text = reason(error)
    # Only the engine's message distinguishes a limit from an invalid module.
    kind = OperationError if "limit" in text or "allocate" in text or "mmap" in text else DataError
    return kind(f"{name}: {text}{f' of {limit} bytes' if 'memory limits' in text else ''}")


def reason(error: Exception) -> str:
    """Return the message of an engine error without its trace; causes are joined on one line."""
    lines = [line.strip() for line in str(error).split("\n\nStack backtrace")[0].splitlines()]
    reasons = [line.split(": ", 1)[-1] if line[:1].isdigit() else line for line in lines]
    return "; ".join(reason for reason in reasons if reason and not reason.startswith("Caused by"))


def _where(trap: wasmtime.Trap, exported: Mapping[int, str]) -> str:
    frames = [(frame.func_index, frame.func_name) for frame in trap.frames]
    names = [name or exported.get(index, f"function {index}") for index, name in frames]
    if not names:
        return ""
    shown = [*names[:3], "…"] if len(names) > 4 else names
    return f" (in {', called by '.join(shown)})"
