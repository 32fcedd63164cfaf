"""What comes again is compiled: at its second time in a background thread, or at its first time where that is asked for."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from threading import RLock, Thread
from typing import TYPE_CHECKING

from ..errors import MLError, ValidationError

if TYPE_CHECKING:
    from ..run.program import Program

VARIABLE = "OPWEAVE_COMPILE"
"""The environment variable that says when graphs are compiled: "now", at the first time, or "background", at the second."""


@dataclass
class Statistics:
    """What has been done since the start, or the last `reset`.

    Attributes:
        graphs: reads that ran a compiled graph.
        operations: operations that ran one by one.
        compiled: graphs that were compiled.
        specialised: graphs that were compiled once more, with inputs that stay the same as constants.
        refused: graphs that the engine did not take as a whole; they run one operation at a time.
        values: results that were written, because they were asked for or could be asked for later.
        dropped: results that nobody could ask for, which were never written to an array of their own.
    """

    graphs: int = 0
    operations: int = 0
    compiled: int = 0
    specialised: int = 0
    refused: int = 0
    values: int = 0
    dropped: int = 0

    def reset(self) -> None:
        """Start again from zero."""
        self.__init__()  # type: ignore[misc]


statistics = Statistics()


def _at_first() -> bool:
    value = os.environ.get(VARIABLE, "background")
    if value not in ("now", "background"):
        raise ValidationError(f"the environment variable {VARIABLE} must be 'now' or 'background', got {value!r}")
    return value == "now"


_now = _at_first()


def compile_now(value: bool = True) -> bool:
    """Compile graphs when they are first read, instead of in the background when they come again.

    Args:
        value: False for the background again.

    Returns:
        What it was before.
    """
    global _now
    before, _now = _now, value
    return before


class Recurring:
    """Something that may come again, and its program once that is compiled.

    Attributes:
        seen: how often it has come.
        program: what runs it as a whole, None as long as it is not compiled.
        refusal: why the engine does not take it as a whole, None where that is not known.
    """

    __slots__ = ("_lock", "_queued", "program", "refusal", "seen")

    counter = "compiled"
    """The member of `statistics` that counts it."""

    def __init__(self) -> None:
        self.seen = 0
        self.program: Program | None = None
        self.refusal: MLError | None = None
        self._queued, self._lock = False, RLock()

    def come(self, make: Callable[[], Program]) -> Program | None:
        """It has come once more: its program, None where it must be done without.

        Args:
            make: compiles it; called now, later in another thread, or never.
        """
        self.seen += 1
        if self.program is None and self.refusal is None and (_now or self.seen > 1):
            self.start(make)
        return self.program

    def start(self, make: Callable[[], Program]) -> None:
        """Compile it, now or in the background."""
        if _now:
            self.compile(make)
        elif not self._queued:
            self._queued = True
            background.put(self, make)

    def compile(self, make: Callable[[], Program]) -> None:
        """Compile it, if that has not been done."""
        with self._lock:
            if self.program is not None or self.refusal is not None:
                return
            try:
                self.program = make()
                setattr(statistics, self.counter, getattr(statistics, self.counter) + 1)
            except MLError as error:
                self.refusal = error
                statistics.refused += 1


class _Background:
    """A thread that compiles; it begins when there is something to do, and ends before the interpreter does."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Recurring, Callable[[], Program]] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._lock = RLock()
        self._pending = 0
        self._ends = False

    def put(self, what: Recurring, make: Callable[[], Program]) -> None:
        """Compile something when there is time."""
        with self._lock:
            if self._ends:
                return
            self._pending += 1
            self._queue.put((what, make))
            if self._thread is None or not self._thread.is_alive():
                self._thread = Thread(target=self._work, name="opweave-compiler", daemon=True)
                self._thread.start()

    def wait(self) -> None:
        """Wait until all is compiled that has been asked for."""
        while (thread := self._thread) is not None and thread.is_alive() and self._pending:
            thread.join(0.002)

    def end(self) -> None:
        """Finish what is being compiled, and nothing more: a thread inside of an engine must not outlive the interpreter."""
        with self._lock:
            self._ends = True
            self._queue.put(None)
            thread = self._thread
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while (item := self._queue.get()) is not None and not self._ends:
            what, make = item
            try:
                what.compile(make)
            finally:  # also where it raises what it must not: that is shown, and the next one gets a new thread
                with self._lock:
                    self._pending -= 1
            del what, make, item


background = _Background()
atexit.register(background.end)
if hasattr(os, "register_at_fork"):
    # A child has neither the thread, nor anybody who would give its locks back.
    os.register_at_fork(after_in_child=background.__init__)  # type: ignore[misc]


__all__ = ["VARIABLE", "Recurring", "Statistics", "background", "compile_now", "statistics"]
