"""Modules: functions and the memory that they use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...support.errors import MLError
from .arena import Arena
from .binary import Layout
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
        arena: its memory, which other modules may share.
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
        layout: Layout,
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
        """The module that owns the memory: this one, or the one passed as `memory=`."""
        return self._home or self  # no reference to itself: a reference cycle would delay freeing the memory

    @property
    def exports(self) -> Mapping[str, FunctionType]:
        """The exported functions and their types."""
        return MappingProxyType(self._layout.functions)

    @property
    def memory(self) -> MemoryRange:
        """Address and size of the linear memory. The address never changes; the size can grow."""
        return MemoryRange(self.arena.base, self.arena.size)

    def allocate(self, desc: Desc) -> np.ndarray:
        """A new array of zeros in linear memory, C-contiguous and aligned to 64 bytes.

        It is an ordinary NumPy array. The memory is freed with the last view of it, and keeps the module alive.

        Raises:
            OperationError: the memory would exceed its limit.
        """
        return self.arena.allocate(desc)

    def owns(self, given: Any) -> bool:
        """Whether all of an array's memory lies in the linear memory of this module."""
        return isinstance(given, np.ndarray) and self.arena.owns(given)

    def wait(self) -> None:
        """Nothing runs in the background."""

    def failed(self, error: Exception, what: str) -> MLError:
        """Restore the stack pointer, and convert an error of a function to one of ours."""
        if self._stack is not None:
            # A trap leaves the stack pointer where the function was; between calls it has its initial value.
            self._stack.set_value(self.arena.store, self._stack_top)
        return explain(error, what, self.timeout, self._layout.names)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        """Modules are pickled by their bytes. They are loaded again: static variables have the values of the start."""
        from .loader import reload

        return reload, (self.name, self._layout.data, self.arena.limit, self.timeout, self._home)

    def __repr__(self) -> str:
        functions = ", ".join(f"{name}{kind}" for name, kind in self.exports.items())
        return f"<Module {self.name}: {functions or 'no functions'}; {self.memory.size} bytes of memory>"
