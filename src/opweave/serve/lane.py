"""Run the tasks of a context in order, on the lane's thread or on the caller's."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Condition, RLock, Thread

from .stream import DisconnectedError

MAX_WAITING = 1024
"""Maximum number of waiting tasks. Beyond it the caller waits, so that the client's messages stay in the socket."""

IDLE_SECONDS = 1.0
"""Time that a thread waits for another task before it ends: pages leave many contexts behind."""

CHECK_SECONDS = 1.0
"""Interval at which a waiting caller checks that the client is still connected. An estimate."""


class Lane:
    """Runs tasks one after the other. One thread, the caller, submits them.

    An inline task runs at once on the caller's thread if no other task waits or runs: switching threads takes longer than
    most messages. A caller that waits for tasks receives nothing, so `has_ended` checks whether the client has gone.
    """

    def __init__(self, name: str, has_ended: Callable[[], bool]) -> None:
        self._name, self._has_ended = name, has_ended
        self._tasks: deque[Callable[[], None]] = deque()
        self._lock = RLock()
        self._changed = Condition(self._lock)
        self._is_busy = self._is_finishing = self._is_closed = False
        self._thread: Thread | None = None

    def submit(self, task: Callable[[], None], *, inline: bool) -> None:
        """Run a task, which must not raise, after all earlier ones. Raises `DisconnectedError` if the client goes."""
        with self._lock:
            if self._is_ending():
                return
            if not inline or self._tasks or self._is_busy:
                self._wait(lambda: len(self._tasks) < MAX_WAITING or self._is_ending())
                if self._is_ending():
                    return
                self._tasks.append(task)
                self._start()
                self._changed.notify_all()
                return
            self._is_busy = True
        task()
        with self._lock:
            self._is_busy = False
            # Only `finish` adds tasks meanwhile. Waking the thread for nothing takes longer than most tasks.
            if self._tasks:
                self._changed.notify_all()

    def settle(self) -> None:
        """Wait until all tasks have run. Raises `DisconnectedError` if the client goes meanwhile."""
        with self._lock:
            self._wait(lambda: self._is_closed or not (self._tasks or self._is_busy))

    def _wait(self, is_over: Callable[[], bool]) -> None:
        while not self._changed.wait_for(is_over, CHECK_SECONDS):
            if self._has_ended():
                raise DisconnectedError

    def finish(self, last: Callable[[], None]) -> None:
        """Drop the waiting tasks, and run a last one after the running one; callable from any thread."""
        with self._lock:
            if self._is_closed:
                return
            self._tasks.clear()
            self._tasks.append(last)
            self._is_finishing = True
            self._start()
            self._changed.notify_all()

    def close(self) -> None:
        """Drop the waiting tasks; a running one continues."""
        with self._lock:
            self._is_closed = True
            self._tasks.clear()
            self._changed.notify_all()

    def join(self) -> None:
        """Wait for the thread, after `close`."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def _is_ending(self) -> bool:
        return self._is_closed or self._is_finishing

    def _start(self) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                # A task that runs on the caller's thread comes first.
                has_task = self._changed.wait_for(
                    lambda: self._is_closed or (self._tasks and not self._is_busy), IDLE_SECONDS
                )
                if self._is_closed or not (has_task or self._tasks):
                    self._thread = None
                    return
                if not has_task:
                    continue
                self._is_busy = True
                task = self._tasks.popleft()
            task()
            with self._lock:
                self._is_busy = False
                self._is_closed |= self._is_finishing and not self._tasks
                self._changed.notify_all()
