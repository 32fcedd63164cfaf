"""Compile recurring graphs: in a background thread on the second use, or on the first use after `compile_now()`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING

from ..support import settings
from ..support.background import background
from ..support.compilations import statistics as statistics
from ..support.errors import MLError

if TYPE_CHECKING:
    from ..run.program import Program

VARIABLE = "OPWEAVE_COMPILE"


def _compiles_at_first() -> bool:
    return settings.choice(VARIABLE, ("now", "background"), "background") == "now"


_now = _compiles_at_first()


def compile_now(value: bool = True) -> bool:
    """Compile graphs when they are first read, instead of in the background on the second read.

    Args:
        value: False for compilation in the background.

    Returns:
        The previous setting.

    >>> import opweave as ow
    >>> before = ow.lazy.compile_now()
    >>> (ow.array([1.0, -2.0]).neg() + 1).tolist()  # compiled as one graph, which then runs
    [0.0, 3.0]
    >>> ow.lazy.compile_now(before)
    True
    """
    global _now
    before, _now = _now, value
    return before


class Recurring:
    """A graph that is compiled on its second use. `refusal` is the error of an engine that could not compile it.

    `waits`: background compilation waits until the process is idle, so that it does not compete with other work.
    """

    __slots__ = ("_lock", "_queued", "program", "refusal", "seen", "waits")

    counter = "compiled"

    def __init__(self, waits: bool = False) -> None:
        self.seen, self.waits = 0, waits
        self.program: Program | None = None
        self.refusal: MLError | None = None
        self._queued, self._lock = False, RLock()

    def count_use(self, make: Callable[[], Program]) -> Program | None:
        """Count one use, and return the program, or None before `make` has compiled it, now or in another thread."""
        self.seen += 1
        if self.program is None and self.refusal is None and (_now or self.seen > 1):
            self.start(make)
        return self.program

    def start(self, make: Callable[[], Program]) -> None:
        """Compile the graph, now or in the background."""
        if _now:
            self.compile(make)
        elif not self._queued:
            self._queued = True
            background.put(partial(self.compile, make), waits=self.waits)

    def compile(self, make: Callable[[], Program]) -> None:
        """Compile the graph, unless this has been tried before."""
        with self._lock:
            if self.program is not None or self.refusal is not None:
                return
            try:
                self.program = make()
                setattr(statistics, self.counter, getattr(statistics, self.counter) + 1)
            except MLError as error:
                self.refusal = error
                statistics.refused += 1


def wait() -> None:
    """Wait until the graphs that are being compiled in the background are ready (for measurements and tests).

    >>> import opweave as ow
    >>> for _ in range(2):
    ...     values = (ow.array([1.0, -2.0]).abs() + 1).tolist()
    >>> ow.lazy.wait()  # from now on the compiled graph runs
    >>> (ow.array([3.0, -4.0]).abs() + 1).tolist()
    [4.0, 5.0]
    """
    background.wait()
