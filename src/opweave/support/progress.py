"""Progress of compilation: work that takes more than a second is logged, or shown by a display of the program."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition, Event, Thread
from time import monotonic, perf_counter
from typing import Protocol

PATIENCE_SECONDS = 1.0
"""Work that takes no longer than this is not reported."""


class Display(Protocol):
    """Shows that work is in progress."""

    def start(self) -> object:
        """Show it. Called in another thread than that of the work."""

    def stop(self) -> object:
        """End the display."""


class _Logged:
    """Logs the beginning and the end of some work."""

    def __init__(self, work: str) -> None:
        self._work, self._begin = work, perf_counter() - PATIENCE_SECONDS

    def start(self) -> None:
        self._log("%s takes more than a second", self._work)

    def stop(self) -> None:
        self._log("%s took %.1f s", self._work, perf_counter() - self._begin)

    def _log(self, message: str, *values: object) -> None:
        import logging  # here, since it would be 2 ms of `import opweave`

        logging.getLogger("opweave").info(message, *values)


_make: Callable[[str], Display] = _Logged


def show_with(make: Callable[[str], Display] | None) -> None:
    """Show long work with a display instead of messages in the log "opweave".

    Args:
        make: makes the display for a title of the work; None for the log.
    """
    global _make
    _make = make or _Logged


class _Work:
    """Work in progress.

    Attributes:
        title: the work in a few words.
        due: when to show it, on the monotonic clock.
        display: None until the work is shown, and if `_make` has failed.
        is_shown: set once `display` has started.
    """

    __slots__ = ("display", "due", "is_shown", "title")

    def __init__(self, title: str) -> None:
        self.title, self.due = title, monotonic() + PATIENCE_SECONDS
        self.display: Display | None = None
        self.is_shown: Event | None = None

    def show(self, is_shown: Event) -> None:
        """Start the display, in the watching thread."""
        try:
            self.display = _make(self.title)
            self.display.start()
        except Exception:
            import logging

            logging.getLogger("opweave").exception("the display of long work failed")
        finally:
            is_shown.set()


class _ProgressWatch:
    """Shows work that takes long.

    One thread watches all work. The thread starts with the first work and sleeps until the earliest is due, so short work
    never wakes it. It ends when no work is left and none has begun for `PATIENCE_SECONDS`, so successive builds share it.
    """

    def __init__(self) -> None:
        self._changed = Condition()  # guards the attributes below
        self._pending: list[_Work] = []  # not shown yet
        self._shown: _Work | None = None  # a terminal shows one at a time
        self._wakes: float | None = None  # when the thread looks again; None if there is no thread
        self._ends = 0.0  # when the thread ends, if there is no work then

    def begin(self, work: _Work) -> None:
        with self._changed:
            self._pending.append(work)
            self._ends = work.due
            if self._wakes is None:
                self._wakes = work.due
                try:
                    Thread(target=self._run, name="opweave.support.progress", daemon=True).start()
                except RuntimeError:  # at the exit of the interpreter, or too many threads: then nothing is shown
                    self._wakes = None
            elif work.due < self._wakes:
                self._changed.notify()

    def end(self, work: _Work) -> None:
        with self._changed:
            if work in self._pending:
                self._pending.remove(work)
            is_shown = work.is_shown if self._shown is work else None
        if is_shown is None:
            return
        is_shown.wait()  # it may be starting now
        try:
            if work.display is not None:
                work.display.stop()
        finally:
            with self._changed:
                self._shown = None

    def _run(self) -> None:
        with self._changed:
            try:
                while self._pending or monotonic() < self._ends:
                    self._look()
            finally:
                self._wakes = None

    def _look(self) -> None:
        """Show the first work that is due, or wait until some may be."""
        now = monotonic()
        late = next((work for work in self._pending if work.due <= now), None)
        if late is None:
            # Not later than the due time of work that begins from now on.
            self._wakes = min([now + PATIENCE_SECONDS, *(work.due for work in self._pending)])
            self._changed.wait(self._wakes - now)
            return
        self._pending.remove(late)
        if self._shown is None:
            self._shown, late.is_shown = late, Event()
            self._changed.release()  # a display may take its time
            try:
                late.show(late.is_shown)
            finally:
                self._changed.acquire()


_watch = _ProgressWatch()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_watch.__init__)  # type: ignore[misc]


@contextmanager
def reported(work: str) -> Iterator[None]:
    """Report the work inside the `with` if it takes more than a second.

    Nested work is not reported, nor is work in other threads while this work is shown.

    Args:
        work: a title of the work.
    """
    watched = _Work(work)
    _watch.begin(watched)
    try:
        yield
    finally:
        _watch.end(watched)
