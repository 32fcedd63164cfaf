"""Bindings: a program tied to memory. Intermediates come from the pool of a layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from ..memory.spaces import Memory
from ..support.errors import OperationError
from ..support.identity import ByIdentity

if TYPE_CHECKING:
    from .layout import Layout

Call = Callable[[], None]


class Intermediates(list[Memory]):
    """The memory slots of one run: constants and intermediates; None for inputs and outputs.

    `calls` are the bound calls of the steps that use only these slots, from the first run on. `arena` holds the memory on a
    device during a run, if versions of the program share it.
    """

    __slots__ = ("__weakref__", "arena", "calls")

    def __init__(self, memory: Any) -> None:
        super().__init__(memory)
        self.calls: list[Call | None] | None = None
        self.arena: Any = None


class Binding:
    """A program tied to memory of its inputs and outputs; calling it runs the program once."""

    __slots__ = ("__weakref__", "_calls", "_given", "layout")

    def __init__(self, layout: Layout, inputs: Sequence[Memory], outputs: Sequence[Memory]) -> None:
        self.layout = layout
        self._given = [*inputs, *outputs]
        # Bound steps by their intermediates, for as long as the layout keeps these.
        self._calls: ByIdentity[Intermediates, list[Call]] = ByIdentity()

    def __call__(self) -> None:
        """Run the program once."""
        layout = self.layout
        intermediates = layout.take()
        try:
            calls = self._calls.peek(id(intermediates)) or self._bind(intermediates)
            try:
                for call in calls:
                    call()
            except OperationError as error:
                layout.steps[calls.index(call)].reraise(error)
        finally:
            layout.give_back(intermediates)

    def time_steps(self) -> list[int]:
        """Run the program once, and return the nanoseconds of each step."""
        intermediates, times = self.layout.take(), []
        try:
            calls = self._calls.peek(id(intermediates)) or self._bind(intermediates)
            for step, call in zip(self.layout.steps, calls, strict=True):
                start = perf_counter_ns()
                call()
                step.space.wait()
                times.append(perf_counter_ns() - start)
        finally:
            self.layout.give_back(intermediates)
        return times

    def _bind(self, intermediates: Intermediates) -> list[Call]:
        arguments = self._given
        memory: list[Any] = [*arguments, *intermediates[len(arguments) :]]
        return self._calls.put(intermediates, [step.tie(memory) for step in self.layout.steps])
