"""Load modules: read, validate, instantiate."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import DataError, ValidationError, require
from ...memory import ALIGNMENT, physical
from . import binary
from .arena import Arena, Block
from .engine import PAGE, TABLE_ELEMENTS, deadline, engine, explain_load, library, reason
from .module import Module

if TYPE_CHECKING:
    import wasmtime

TIMEOUT = 60.0
"""Default timeout of a call, in seconds."""
STACK_SIZE = 65536
"""Stack size of a position-independent module in linear memory, in bytes; other modules contain their stack."""
NARROW = 1 << 32
"""Address space of 32-bit pointers, in bytes."""
WIDE = 1 << 44
"""Maximum address space to reserve for 64-bit pointers, in bytes."""
_BASES = ("__memory_base", "__table_base", binary.STACK_POINTER)
"""Globals that position-independent modules import."""
_INITIALISERS = ("__wasm_apply_data_relocs", "__wasm_call_ctors", "_initialize")
"""Exports that toolchains expect to be called first."""


def load(
    source: str | os.PathLike[str] | bytes,
    *,
    memory_limit: int | None = None,
    timeout: float | None = TIMEOUT,
    memory: Module | None = None,
) -> Module:
    """Load a WebAssembly module, whose functions can then be kernels: `op.kernel("wasm", module, "name")`.

    Args:
        source: the path of a `.wasm` file, or its bytes.
        memory_limit: maximum size of its linear memory in bytes, including tensors; None: the address space of its
            pointers (4 GiB for 32-bit ones), but no more than the physical memory.
        timeout: seconds after which a call is stopped with an error, to a few hundredths; None: never, which makes
            functions up to a fifth faster.
        memory: a module whose memory to share, so that both can use the same tensors. Only for position-independent
            modules.

    Returns:
        The module, ready to be called.

    Raises:
        DataError: it is not a valid module, has unknown imports, or does not export its memory.
        OperationError: it needs more memory than allowed, or its start function traps or times out.
        ValidationError: an argument is wrong.
        MissingExtraError: wasmtime is not installed.
    """
    fits = memory_limit is None or (type(memory_limit) is int and memory_limit > 0)
    require(fits, f"wasm.load: memory_limit must be a positive number of bytes or None, got {memory_limit!r}")
    fits = timeout is None or (type(timeout) in (int, float) and 0 < timeout < math.inf)
    require(fits, f"wasm.load: timeout must be a positive number of seconds or None, got {timeout!r}")
    require(memory is None or isinstance(memory, Module), f"wasm.load: memory must be a module, got {memory!r}")
    if memory is not None:
        home = memory.home
        require(memory_limit is None, "wasm.load: memory_limit is that of the module whose memory is shared")
        require(
            (timeout is None) == (home.timeout is None),
            f"wasm.load: timeout must be None for all modules in one memory or for none; {home.name} has {home.timeout}",
        )
    name, data = _read(source)
    binary.check(data, name)
    return _Loader(name, data, memory_limit, timeout, memory and memory.home).load()


def _read(source: str | os.PathLike[str] | bytes) -> tuple[str, bytes]:
    """Name and contents of a module."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        data = bytes(source)
        return f"the module of {len(data)} bytes", data
    if not isinstance(source, (str, os.PathLike)):
        raise ValidationError(f"wasm.load: source must be a path or bytes, got {type(source).__name__}")
    try:
        return Path(source).name, Path(source).read_bytes()
    except (OSError, ValueError) as error:
        raise DataError(f"{os.fspath(source)}: {getattr(error, 'strerror', None) or error}") from None


class _Loader:
    """Loads one module."""

    def __init__(
        self, name: str, data: bytes, memory_limit: int | None, timeout: float | None, home: Module | None
    ) -> None:
        self.wasm = library()
        self.name, self.timeout, self.home = name, timeout, home
        try:
            self.wasm.Module.validate(engine(False, NARROW), data)
        except self.wasm.WasmtimeError as error:
            raise DataError(f"{name}: is not a valid module: {reason(error)}") from None
        try:
            self.layout = binary.read(data)
        except IndexError:
            raise DataError(f"{name}: is not a valid module: its section dylink.0 or name is broken") from None
        self.dylink, wide = self.layout.dylink, self.layout.wide
        self.data = binary.with_stack_pointer(data, self.layout)
        self.limit = min(memory_limit or physical(), WIDE if wide else NARROW)
        if home is None:
            reservation = max(self.limit + -self.limit % PAGE, PAGE) if wide else NARROW
            self.store = self.wasm.Store(engine(timeout is not None, reservation))
            self.store.set_limits(memory_size=self.limit, table_elements=TABLE_ELEMENTS, memories=1)
        else:
            self.store = home.arena.store

    def load(self) -> Module:
        """Compile and instantiate the module."""
        self._check_imports()
        if self.dylink is not None and "memory" not in [item.kind for item in self.layout.imports]:
            raise DataError(f"{self.name}: must import env.memory, as it is position-independent")
        if self.home is not None and self.dylink is None:
            raise DataError(
                f"{self.name}: only a position-independent module can share the memory of {self.home.name}, others would "
                "overwrite its data; compile it with -fPIC, link it with --experimental-pic -shared"
            )
        try:
            compiled = self.wasm.Module(self.store.engine, self.data)
            arena = self._given_arena(compiled)
            provided, blocks = self._provided(arena)
            externs = [provided[item.name](item.type) for item in compiled.imports]
            instance = self._guarded(arena, lambda: self.wasm.Instance(self.store, compiled, externs))
        except (self.wasm.WasmtimeError, self.wasm.Trap) as error:
            raise explain_load(error, self.name, self.timeout, self.layout.names, self.limit) from None
        exports = instance.exports(self.store)
        if arena is None:
            arena = self._own_arena(exports)
        functions = {name: exports[name] for name in self.layout.functions}
        stack = self._stack if self.layout.stack_pointer is None else exports[binary.STACK_POINTER]
        module = Module(
            self.name,
            arena,
            self.layout,
            functions,
            stack=stack,
            timeout=self.timeout,
            home=self.home,
            blocks=blocks,
        )
        self._initialise(module, functions)
        return module

    def _check_imports(self) -> None:
        """Require that a module imports only a memory, and the globals and table of position-independent ones."""
        unknown = [f"{item.module}.{item.name}" for item in self.layout.imports if not self._is_known(item)]
        if not unknown:
            return
        shown = ", ".join([*unknown[:8], *(["…"] if len(unknown) > 8 else [])])
        hint = ""
        if any(name.startswith("wasi_") for name in unknown):
            hint = "; WASI is not offered, build it without a system (wasm32-unknown-unknown, wasm32-freestanding)"
        elif self.dylink and any(name.startswith("GOT.") for name in unknown):
            hint = "; compile with -fvisibility=hidden, so that the module resolves its own symbols"
        raise DataError(f"{self.name}: imports {shown}; there is nothing to import but env.memory{hint}")

    def _is_known(self, item: binary.Import) -> bool:
        if item.module != "env":
            return False
        if item.kind == "memory":
            return item.name == "memory"
        if self.dylink is None:
            return False
        pointer = "i64" if self.layout.wide else "i32"
        if item.type is not None:
            return item.name in _BASES and item.type.type == pointer
        return (item.kind, item.name) == ("table", "__indirect_function_table")

    def _given_arena(self, compiled: wasmtime.Module) -> Arena | None:
        """The memory that the module imports: shared or new; None if it brings its own."""
        wanted = next((item.type for item in compiled.imports if item.name == "memory"), None)
        if not isinstance(wanted, self.wasm.MemoryType):
            return None
        if self.home is not None:
            return self.home.arena
        return Arena(self.name, self.store, self.wasm.Memory(self.store, wanted), self.limit)

    def _own_arena(self, exports: Any) -> Arena:
        """The memory that the module exports."""
        memory = next((item for item in exports.values() if isinstance(item, self.wasm.Memory)), None)
        if memory is None:
            raise DataError(f"{self.name}: must export its memory, or import env.memory; tensors have no other place")
        return Arena(self.name, self.store, memory, self.limit)

    def _provided(self, arena: Arena | None) -> tuple[dict[str, Callable[[Any], Any]], list[Block]]:
        """A constructor for each import, which takes its type, and the blocks of linear memory they use."""
        if arena is None:
            return {}, []
        provided: dict[str, Callable[[Any], Any]] = {"memory": lambda _: arena.memory}
        if self.dylink is None:
            return provided, []
        alignment = max(self.dylink.memory_alignment, ALIGNMENT)
        blocks = [
            arena.block(self.dylink.memory_size + alignment - ALIGNMENT, f"the data of {self.name}"),
            arena.block(STACK_SIZE, f"the stack of {self.name}"),
        ]
        data = blocks[0].offset + -blocks[0].offset % alignment
        limits = self.wasm.Limits(self.dylink.table_size, None)
        values = {"__memory_base": data, "__table_base": 0, binary.STACK_POINTER: blocks[1].offset + STACK_SIZE}
        for name, value in values.items():
            provided[name] = partial(self._global, value)
        provided["__indirect_function_table"] = lambda kind: self.wasm.Table(
            self.store, self.wasm.TableType(kind.element, limits), None
        )
        return provided, blocks

    def _global(self, value: int, kind: wasmtime.GlobalType) -> wasmtime.Global:
        made: wasmtime.Global = self.wasm.Global(self.store, kind, value)
        if kind.mutable:
            self._stack = made
        return made

    _stack: wasmtime.Global | None = None
    """The stack pointer of a position-independent module."""

    def _initialise(self, module: Module, functions: dict[str, wasmtime.Func]) -> None:
        """Call the initialisation functions of the toolchain."""
        for name in _INITIALISERS:
            kind = module.exports.get(name)
            if kind is None or kind.parameters or kind.results:
                continue
            function = functions[name]
            try:
                self._guarded(module.arena, partial(function, self.store))
            except (self.wasm.WasmtimeError, self.wasm.Trap) as error:
                raise explain_load(error, self.name, self.timeout, self.layout.names, self.limit) from None

    def _guarded(self, arena: Arena | None, action: Callable[[], Any]) -> Any:
        """Run code of the module, with the store locked and a timeout."""
        if arena is None:
            with deadline(self.store, self.timeout):
                return action()
        with arena.lock:
            arena.armed = -1, 0
            with deadline(self.store, self.timeout):
                return action()
