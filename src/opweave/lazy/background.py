"""Compile recurring graphs: in a background thread on the second use, or on the first use after `compile_now()`."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from threading import RLock, Thread
from typing import TYPE_CHECKING

from ..support import settings
from ..support.compilations import statistics as statistics
from ..support.errors import MLError

if TYPE_CHECKING:
    from ..run.program import Program

IDLE_SECONDS, IDLE_SHARE = 0.05, 0.1
"""A process is idle if its threads compute for less than `IDLE_SHARE` of `IDLE_SECONDS`. An estimate."""

MAX_WAIT_SECONDS = 2.0
"""Longest wait for the process to become idle before a recurring graph is compiled anyway."""

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
            background.put(self, make)

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


class _Background:
    """The compiler thread, which starts with the first task."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Recurring, Callable[[], Program]] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._lock = RLock()
        self._pending = 0
        self._ends = False

    def put(self, graph: Recurring, make: Callable[[], Program]) -> None:
        """Add a task to the queue."""
        with self._lock:
            if self._ends:
                return
            self._pending += 1
            self._queue.put((graph, make))
            if self._thread is None or not self._thread.is_alive():
                self._thread = Thread(target=self._work, name="opweave-compiler", daemon=True)
                self._thread.start()

    def wait(self) -> None:
        """Wait until the queue is empty."""
        while (thread := self._thread) is not None and thread.is_alive() and self._pending:
            thread.join(0.002)

    def end(self) -> None:
        """Finish only the current task, and end the thread: a thread inside an engine must not outlive the interpreter."""
        with self._lock:
            self._ends = True
            self._queue.put(None)
            thread = self._thread
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while (item := self._queue.get()) is not None and not self._ends:
            graph, make = item
            if graph.waits and not self._is_idle_soon():
                break
            try:
                graph.compile(make)
            except BaseException:
                # Report the error like an uncaught one, and continue with the next task.
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
            finally:
                # After `wait`, nothing may refer to the graph any more.
                del graph, make, item
                with self._lock:
                    self._pending -= 1

    def _is_idle_soon(self) -> bool:
        """Wait until the process is idle, at most `MAX_WAIT_SECONDS`. Return False if the thread must end."""
        latest = time.monotonic() + MAX_WAIT_SECONDS
        is_idle = False
        while not (is_idle or self._ends) and time.monotonic() < latest:
            begin = time.process_time()
            time.sleep(IDLE_SECONDS)
            is_idle = time.process_time() - begin < IDLE_SHARE * IDLE_SECONDS
        return not self._ends


background = _Background()
atexit.register(background.end)
if hasattr(os, "register_at_fork"):
    # After a fork, the child process has neither the thread nor the threads that hold the locks.
    os.register_at_fork(after_in_child=background.__init__)  # type: ignore[misc]


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
