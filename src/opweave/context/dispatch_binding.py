"""A graph bound to the memory of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import RLock
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod

from ..support.errors import NotSupportedError, require

if TYPE_CHECKING:
    from ..run.program import Program


class DispatchBinding:
    """A graph bound to tensors, until one of them is destroyed. A run holds `locks`, the locks of the tensors.

    `unbind` is the method of the graph that removes the binding with a key.
    """

    __slots__ = ("__weakref__", "_call", "_key", "_locks", "_unbind", "program")

    def __init__(
        self,
        unbind: WeakMethod[Callable[[tuple[Any, ...]], None]],
        key: tuple[Any, ...],
        call: Callable[[], None],
        locks: Sequence[RLock],
        program: Program,
    ) -> None:
        self.program = program
        self._unbind, self._key, self._call, self._locks = unbind, key, call, locks

    def run(self) -> None:
        """Run the graph once. Not `__call__`, which takes 0.1 us more."""
        # As `Locks` does, but without an object for each call, and for two tensors without a loop: this is the hot path.
        locks = self._locks
        if len(locks) != 2:
            if locks:
                self._call_with(locks, self._call)
            else:
                self._call()
            return
        first, second = locks
        first.acquire()
        try:
            second.acquire()
            try:
                self._call()
            finally:
                second.release()
        finally:
            first.release()

    def encode(self, encoder: Any, timestamps: Any) -> None:
        """Add one run to the caller's command encoder.

        Raises:
            NotSupportedError: the graph is not one piece of work on a WebGPU device.
        """
        encode = getattr(self._call, "encode", None)
        if encode is None:
            hosted = next((step.title for step in self.program.steps if step.space.is_host), "")
            count = len(self.program.steps)
            where = "its single part does not take one" if count == 1 else f"the graph has {count} parts"
            where = f"{hosted} runs on the CPU" if hosted else where
            raise NotSupportedError(f"dispatch: encoder needs a graph that is one part, on a WebGPU device; {where}")
        require(encoder is not None, "dispatch: pass_timestamps needs an encoder")
        self._call_with(self._locks, lambda: encode(encoder, timestamps))

    @staticmethod
    def _call_with(locks: Sequence[RLock], call: Callable[[], None]) -> None:
        taken = 0
        try:
            for lock in locks:
                lock.acquire()
                taken += 1
            call()
        finally:
            for lock in locks[:taken]:
                lock.release()

    def release(self) -> None:
        """Remove the binding from the graph, so that the memory of its tensors can be freed."""
        unbind = self._unbind()
        if unbind is not None:
            unbind(self._key)
