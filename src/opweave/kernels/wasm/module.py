"""WebAssembly modules: functions and the memory that they use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...support.errors import MLError
from .arena import Arena
from .binary import BinaryLayout
from .engine import explain
from .signature import FunctionType

if TYPE_CHECKING:
    import wasmtime

    from ...core.graph import Desc


class MemoryRange(NamedTuple):
    """Address and current size of a linear memory, in bytes."""

    address: int
    size: int


class Module:
    """A WebAssembly module, loaded by `opweave.wasm.load`.

    Attributes:
        name: the file name.
        timeout: maximum duration of a call, in seconds.
        arena: the module's memory, which other modules may share.
        functions: the engine's handles of the exported functions.

    >>> from opweave.kernels.wasm import library
    >>> module = library.load()
    >>> module.name, module.timeout, "relu" in module.functions
    ('kernels.wasm', 60.0, True)
    """

    is_host = True

    def __init__(
        self,
        name: str,
        arena: Arena,
        layout: BinaryLayout,
        functions: Mapping[str, wasmtime.Func],
        *,
        stack: wasmtime.Global | None,
        timeout: float | None,
        home: Module | None = None,
        blocks: Sequence[np.ndarray] = (),
    ) -> None:
        self.name, self.arena, self.timeout, self.functions = name, arena, timeout, functions
        self._home, self._layout = home, layout
        self._stack, self._stack_top = stack, None if stack is None else stack.value(arena.store)
        self._blocks = blocks  # data and stack of a position-independent module

    @property
    def home(self) -> Module:
        """The module that owns the memory: this module, or the one passed as `memory=`."""
        # No reference to itself: a reference cycle would delay freeing the memory.
        return self._home or self

    @property
    def exports(self) -> Mapping[str, FunctionType]:
        return MappingProxyType(self._layout.functions)

    @property
    def memory(self) -> MemoryRange:
        """Address and size of the linear memory. The address never changes; the size can grow."""
        return MemoryRange(self.arena.base, self.arena.size)

    def allocate(self, desc: Desc) -> np.ndarray:
        """Allocate a zeroed NumPy array in linear memory, C-contiguous and aligned to 64 bytes.

        The memory is freed with the last view of the array. Until then, the module stays alive.
        """
        return self.arena.allocate(desc)

    def owns(self, given: Any) -> bool:
        return isinstance(given, np.ndarray) and self.arena.owns(given)

    def wait(self) -> None:
        """Do nothing: a module has no background work."""

    def recover(self, error: Exception, subject: str) -> MLError:
        """Restore the stack pointer, and return Opweave's error for an exception of a function."""
        if self._stack is not None:
            # A trap leaves the stack pointer inside the function; between calls it has the initial value.
            self._stack.set_value(self.arena.store, self._stack_top)
        return explain(error, subject, self.timeout, self._layout.names)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        """Pickle the bytes of the module. Unpickling loads them again, so static variables have their initial values."""
        from .loader import reload

        return reload, (self.name, self._layout.data, self.arena.limit, self.timeout, self._home)

    def __repr__(self) -> str:
        functions = ", ".join(f"{name}{kind}" for name, kind in self.exports.items())
        return f"<Module {self.name}: {functions or 'no functions'}; {self.memory.size} bytes of memory>"
