"""Compile in a background thread, which ends before the interpreter does."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from threading import RLock, Thread

IDLE_SECONDS, IDLE_SHARE = 0.05, 0.1
"""A process is idle if its threads compute for less than `IDLE_SHARE` of `IDLE_SECONDS`. An estimate."""

MAX_WAIT_SECONDS = 2.0
"""Longest wait for the process to become idle before a recurring graph is compiled anyway."""


class BackgroundThread:
    """A thread that compiles, which starts with the first task."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Callable[[], object], bool] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._lock = RLock()
        self._pending = 0
        self._ends = False

    def put(self, task: Callable[[], object], *, waits: bool = False) -> None:
        """Add a task to the queue. If it `waits`, it begins when the process is idle, or after `MAX_WAIT_SECONDS`."""
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
            try:
                task()
            except BaseException:
                # Report the error like an uncaught one, and continue with the next task.
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
            finally:
                # After `wait`, nothing may refer to what a task compiles.
                del task, item
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


background = BackgroundThread()
atexit.register(background.end)
if hasattr(os, "register_at_fork"):
    # After a fork, the child process has neither the thread nor the threads that hold the locks.
    os.register_at_fork(after_in_child=background.__init__)  # type: ignore[misc]
