"""Compile in a background thread, which ends before the interpreter does."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from threading import RLock, Thread, get_ident

IDLE_SECONDS, IDLE_SHARE = 0.05, 0.1
"""A process is idle if its threads compute for less than `IDLE_SHARE` of `IDLE_SECONDS`. An estimate."""

MAX_WAIT_SECONDS = 2.0
"""Longest wait for the process to become idle before a task begins anyway, and longest sum of the pauses of a task."""

WORK_SECONDS, PAUSE_SECONDS = 2e-3, 5e-4
"""A task that waits pauses for `PAUSE_SECONDS` after `WORK_SECONDS` of work, and again while other threads compute. Python
takes its lock from a thread after 5 ms only, and callers release the lock in each call of a device's driver: beside a task
without pauses, calls of 3 ms took 150 ms. Estimates."""


class BackgroundThread:
    """A thread that compiles, which starts with the first task."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Callable[[], object], bool] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._lock = RLock()
        self._pending = 0
        self._ends = False
        self._polite: int | None = None  # the thread, while its task pauses for others
        self._next_pause = self._pause_budget = 0.0

    def put(self, task: Callable[[], object], *, waits: bool = False) -> None:
        """Add a task to the queue. If it `waits`, it begins when the process is idle, or after `MAX_WAIT_SECONDS`.

        Such a task also pauses in `give_way`.
        """
        with self._lock:
            if self._ends:
                return
            self._pending += 1
            self._queue.put((task, waits))
            if self._thread is None or not self._thread.is_alive():
                self._thread = Thread(target=self._work, name="opweave-compiler", daemon=True)
                self._thread.start()

    def wait(self) -> None:
        """Wait until the queue is empty."""
        while (thread := self._thread) is not None and thread.is_alive() and self._pending:
            thread.join(0.002)

    def give_way(self) -> None:
        """Pause while other threads compute, in the thread of a task that `waits`. Other threads return at once.

        Functions that compile call this once for each operation.
        """
        if self._polite is None or self._polite != get_ident() or time.monotonic() < self._next_pause:
            return
        begin = time.monotonic()
        while self._is_busy_for(PAUSE_SECONDS) and time.monotonic() - begin < self._pause_budget:
            pass
        self._pause_budget -= time.monotonic() - begin
        self._next_pause = time.monotonic() + WORK_SECONDS

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
            task, waits = item
            if waits and not self._is_idle_soon():
                break
            if waits:
                self._next_pause, self._pause_budget, self._polite = 0.0, MAX_WAIT_SECONDS, get_ident()
            try:
                task()
            except BaseException:
                # Report the error like an uncaught one, and continue with the next task.
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
            finally:
                self._polite = None
                # After `wait`, nothing may refer to what a task compiles.
                del task, item
                with self._lock:
                    self._pending -= 1

    def _is_idle_soon(self) -> bool:
        """Wait until the process is idle, at most `MAX_WAIT_SECONDS`. Return False if the thread must end."""
        latest = time.monotonic() + MAX_WAIT_SECONDS
        while not self._ends and time.monotonic() < latest and self._is_busy_for(IDLE_SECONDS):
            pass
        return not self._ends

    def _is_busy_for(self, seconds: float) -> bool:
        """Sleep, and return whether other threads compute meanwhile, and this thread need not end."""
        begin = time.process_time()
        time.sleep(seconds)
        return time.process_time() - begin >= IDLE_SHARE * seconds and not self._ends


background = BackgroundThread()
atexit.register(background.end)
if hasattr(os, "register_at_fork"):
    # After a fork, the child process has neither the thread nor the threads that hold the locks.
    os.register_at_fork(after_in_child=background.__init__)  # type: ignore[misc]
