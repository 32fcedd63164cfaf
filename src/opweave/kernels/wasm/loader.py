"""Load modules: read, validate, instantiate."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...memory import ALIGNMENT, physical
from ...support.errors import DataError, ValidationError, require
from . import binary
from .arena import Arena
from .engine import PAGE, TABLE_ELEMENTS, deadline, engine, explain_load, library, new_store, reason
from .module import Module
from .signature import FunctionType

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
        memory_limit: maximum size of the module's linear memory in bytes, including tensors; None: the address space of
            the module's pointers (4 GiB for 32-bit ones), but no more than the physical memory.
        timeout: seconds after which a call is stopped with an error, to a few hundredths of a second; None: never, which
            makes functions up to a fifth faster.
        memory: a module that shares its memory with the new one, so that both can use the same tensors. Only for
            position-independent modules.

    Returns:
        The module, ready to be called.

    Raises:
        DataError: the source is not a valid module, has unknown imports, or does not export its memory.
        OperationError: the module needs more memory than allowed, or its start function traps or times out.
        ValidationError: an argument is wrong.
        MissingExtraError: wasmtime is not installed.

    >>> import numpy as np, opweave as ow, wasmtime
    >>> code = '''(module (memory (export "memory") 1) (func (export "double") (param $x i32) (param $out i32)
    ...     (f32.store (local.get $out) (f32.mul (f32.const 2) (f32.load (local.get $x))))))'''
    >>> module = ow.wasm.load(wasmtime.wat2wasm(code), memory_limit=2**20, timeout=1)
    >>> @ow.op
    ... def double(self, x: ow.MLOperand):
    ...     return x.desc
    >>> double.kernel("wasm", module, "double", signature="x*:float32, out*")
    >>> double(np.float32([3])).tolist()
    [6.0]
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


def reload(name: str, data: bytes, memory_limit: int, timeout: float | None, home: Module | None) -> Module:
    """Load a module from the contents of its pickle."""
    return _Loader(name, data, memory_limit, timeout, home).load()


def _read(source: str | os.PathLike[str] | bytes) -> tuple[str, bytes]:
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
    """Loads one module; `home` is the module whose memory it shares, None for a memory that belongs to the new module."""

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
        self.limit = min(memory_limit or physical(), WIDE if wide else NARROW)
        if home is None:
            reservation = max(self.limit + -self.limit % PAGE, PAGE) if wide else NARROW
            self.store = new_store(timeout, reservation)
            self.store.set_limits(memory_size=self.limit, table_elements=TABLE_ELEMENTS, memories=1)
        else:
            self.store = home.arena.store

    def load(self) -> Module:
        """Compile and instantiate the module, and call the initialisation functions of the toolchain."""
        self._check_imports()
        if self.dylink is not None and "memory" not in [item.kind for item in self.layout.imports]:
            raise DataError(f"{self.name}: must import env.memory, as it is position-independent")
        if self.home is not None and self.dylink is None:
            raise DataError(
                f"{self.name}: only a position-independent module can share the memory of {self.home.name}, others would "
                "overwrite its data; compile it with -fPIC, link it with --experimental-pic -shared"
            )
        try:
            module = self._instantiate()
            for name in _INITIALISERS:
                if module.exports.get(name) == FunctionType((), ()):
                    with self._guard(module.arena):
                        module.functions[name](self.store)
        except (self.wasm.WasmtimeError, self.wasm.Trap) as error:
            raise explain_load(error, self.name, self.timeout, self.layout.names, self.limit) from None
        return module

    def _instantiate(self) -> Module:
        compiled = self.wasm.Module(self.store.engine, self.layout.data)
        memory_type = next((item.type for item in compiled.imports if item.name == "memory"), None)
        arena = None
        if memory_type is not None:
            arena = self.home.arena if self.home is not None else self._arena(self.wasm.Memory(self.store, memory_type))
        blocks, externs, imported = self._provide_imports(arena, compiled.imports)
        with self._guard(arena):
            exports = self.wasm.Instance(self.store, compiled, externs).exports(self.store)
        if arena is None:
            memory = next((item for item in exports.values() if isinstance(item, self.wasm.Memory)), None)
            if memory is None:
                raise DataError(
                    f"{self.name}: must export its memory, or import env.memory; tensors have no other place"
                )
            arena = self._arena(memory)
        return Module(
            self.name,
            arena,
            self.layout,
            functions={name: exports[name] for name in self.layout.functions},
            stack=imported or self._exported_stack_pointer(exports),
            timeout=self.timeout,
            home=self.home,
            blocks=blocks,
        )

    def _arena(self, memory: wasmtime.Memory) -> Arena:
        return Arena(self.name, self.store, memory, self.limit)

    def _check_imports(self) -> None:
        """Require that a module imports only a memory, and the globals and table of position-independent modules."""
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
        allowed = {"memory": "memory"}
        if self.dylink is not None:
            allowed |= {"__indirect_function_table": "table", **dict.fromkeys(_BASES, self.layout.pointer)}
        return item.module == "env" and allowed.get(item.name) == item.kind

    def _provide_imports(
        self, arena: Arena | None, imports: Sequence[Any]
    ) -> tuple[list[np.ndarray], list[Any], wasmtime.Global | None]:
        """Return the module's blocks of linear memory, the values to import in their order, and the imported stack pointer."""
        if arena is None or self.dylink is None:
            return [], [arena.memory for _ in imports if arena is not None], None
        alignment = max(self.dylink.memory_alignment, ALIGNMENT)
        blocks = [
            arena.block(self.dylink.memory_size + alignment - ALIGNMENT, f"the data of {self.name}"),
            arena.block(STACK_SIZE, f"the stack of {self.name}"),
        ]
        data, stack = map(arena.offset, blocks)
        numbers = dict(zip(_BASES, (data + -data % alignment, 0, stack + STACK_SIZE), strict=True))
        table = self.wasm.Limits(self.dylink.table_size, None)
        externs: list[Any] = []
        stack_pointer: wasmtime.Global | None = None
        for item in imports:
            if item.name == "memory":
                externs.append(arena.memory)
            elif item.name in numbers:
                externs.append(self.wasm.Global(self.store, item.type, numbers[item.name]))
                if item.name == binary.STACK_POINTER and item.type.mutable:
                    stack_pointer = externs[-1]
            else:
                externs.append(self.wasm.Table(self.store, self.wasm.TableType(item.type.element, table), None))
        return blocks, externs, stack_pointer

    def _exported_stack_pointer(self, exports: Any) -> wasmtime.Global | None:
        """Return the stack pointer of a module that is not position-independent: a mutable global that holds a pointer."""
        if self.layout.stack_pointer is None:
            return None
        candidate: wasmtime.Global = exports[self.layout.stack_pointer]
        try:
            is_number = isinstance(candidate.value(self.store), int)
        except self.wasm.WasmtimeError:  # a vector
            is_number = False
        # The engine ends the process when asked for the type of a vector.
        kind = candidate.type(self.store)
        return candidate if is_number and kind.mutable and str(kind.content) == self.layout.pointer else None

    @contextmanager
    def _guard(self, arena: Arena | None) -> Iterator[None]:
        """Run code of the module with a timeout, and with its store locked if other modules may use the store."""
        with arena.lock if arena is not None else nullcontext(), deadline(self.store, self.timeout):
            if arena is not None:
                arena.armed = -1, 0
            yield
