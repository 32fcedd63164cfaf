"""Modules: functions and the memory that they work in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...errors import MLError
from .arena import Arena, Block
from .binary import Layout
from .engine import explain
from .signature import FunctionType

if TYPE_CHECKING:
    import wasmtime

    from ...graph import Desc


class MemoryRange(NamedTuple):
    """Where linear memory lies in this process, and how many bytes it has now."""

    address: int
    size: int


class Module:
    """A WebAssembly module, loaded into this process: made by `opweave.wasm.load`.

    Attributes:
        name: the file's name.
        timeout: seconds that a call may take.
        arena: the memory, where other modules may live, too.
    """

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
        blocks: Sequence[Block] = (),
    ) -> None:
        self.name, self.arena, self.timeout = name, arena, timeout
        self._home = home
        self._types, self._names, self._functions = layout.functions, layout.names, functions
        self._stack, self._stack_top = stack, None if stack is None else stack.value(arena.store)
        self._blocks = blocks  # data and stack of a position-independent module

    @property
    def home(self) -> Module:
        """The module that came with the memory: this one, or the one that was given as `memory=`."""
        return self._home or self  # not an attribute: a module in a cycle would keep its memory until it is collected

    @property
    def exports(self) -> Mapping[str, FunctionType]:
        """The functions that it exports, with what they take and return."""
        return MappingProxyType(self._types)

    @property
    def memory(self) -> MemoryRange:
        """Address and size of its linear memory. The address never changes, the size grows."""
        return MemoryRange(self.arena.base, self.arena.size)

    def allocate(self, desc: Desc) -> np.ndarray:
        """A new array of zeros in linear memory, C-contiguous and aligned to 64 bytes.

        It is an ordinary array for everybody else. The memory is given back when the last view of it is gone; the module
        lives at least as long.

        Raises:
            OperationError: the memory would exceed its limit.
        """
        return self.arena.allocate(desc)

    def owns(self, array: np.ndarray) -> bool:
        """Whether all of an array's memory lies in the linear memory of this module."""
        return self.arena.owns(array)

    def function(self, name: str) -> Any:
        """The engine's handle of an exported function."""
        return self._functions[name]._func

    def failed(self, error: Exception, what: str) -> MLError:
        """Our error for one that a function raised, after putting the module in order for the next call."""
        if self._stack is not None:
            # Between calls it stands where it stood at first; the trap left it wherever the function was.
            self._stack.set_value(self.arena.store, self._stack_top)
        return explain(error, what, self.timeout, self._names)

    def __repr__(self) -> str:
        functions = ", ".join(f"{name}{kind}" for name, kind in self._types.items())
        return f"<Module {self.name}: {functions or 'no functions'}; {self.memory.size} bytes of memory>"
