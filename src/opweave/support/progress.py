"""Progress of compilation: work that takes more than a second is logged, or shown by a display of the program."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Lock, Timer
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:

    class Display(Protocol):
        """Shows that work is in progress."""

        def start(self) -> object:
            """Show the work. Called on a different thread than the work."""

        def stop(self) -> object:
            """End the display."""


PATIENCE_SECONDS = 1.0
"""Work that takes no longer than this is not reported."""


class _Logged:
    def __init__(self, work: str) -> None:
        self._work, self._begin = work, perf_counter() - PATIENCE_SECONDS

    def start(self) -> None:
        self._log("%s takes more than a second", self._work)

    def stop(self) -> None:
        self._log("%s took %.1f s", self._work, perf_counter() - self._begin)

    def _log(self, message: str, *values: object) -> None:
        import logging  # imported late, because it would add 2 ms to `import opweave`

        logging.getLogger("opweave").info(message, *values)


_make: Callable[[str], Display] = _Logged


def show_with(make: Callable[[str], Display] | None) -> None:
    """Show long work with the display that `make` returns for its title; None for messages in the log "opweave"."""
    global _make
    _make = make or _Logged


class _Work:
    """Work in progress, due to be shown after `PATIENCE_SECONDS`. `is_shown` is set once the display has started."""

    __slots__ = ("display", "due", "is_shown", "title")

    def __init__(self, title: str) -> None:
        self.title, self.due = title, monotonic() + PATIENCE_SECONDS
        self.display: Display | None = None
        self.is_shown = Event()

    def show(self) -> None:
        try:
            self.display = _make(self.title)
            self.display.start()
        except Exception:
            import logging

            logging.getLogger("opweave").exception("the display of long work failed")
        finally:
            self.is_shown.set()


class _Reports:
    """Shows work that takes long.

    A timer runs until the earliest work is due. Successive builds share it, since a timer takes a thread: work that ends
    leaves the timer, which starts again when it ends only if there is other work.
    """

    def __init__(self) -> None:
        self._lock = Lock()  # guards the attributes below
        self._pending: list[_Work] = []  # not shown yet, the earliest first
        self._shown: _Work | None = None  # a terminal shows one at a time
        self._timer: Timer | None = None

    def begin(self, work: _Work) -> None:
        with self._lock:
            self._pending.append(work)
            if self._timer is None:
                self._start_timer(PATIENCE_SECONDS)

    def end(self, work: _Work) -> None:
        with self._lock:
            if work in self._pending:
                self._pending.remove(work)
            if self._shown is not work:
                return
        work.is_shown.wait()  # it may be starting now
        try:
            if work.display is not None:
                work.display.stop()
        finally:
            with self._lock:
                self._shown = None

    def _start_timer(self, seconds: float) -> None:
        timer = Timer(seconds, self._show_due)
        timer.name, timer.daemon = "opweave.support.progress", True
        with suppress(RuntimeError):  # at the exit of the interpreter, or too many threads: then nothing is shown
            timer.start()
            self._timer = timer

    def _show_due(self) -> None:
        """Show the earliest work if it is due, and start the timer for the next."""
        work: _Work | None = None
        with self._lock:
            self._timer = None
            while self._pending and self._pending[0].due <= monotonic():
                late = self._pending.pop(0)
                if self._shown is None:
                    self._shown = work = late
            if self._pending:
                self._start_timer(self._pending[0].due - monotonic())
        if work is not None:
            work.show()


_reports = _Reports()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reports.__init__)  # type: ignore[misc]


@contextmanager
def report_work(work: str) -> Iterator[None]:
    """Report the work inside the `with`, by its title, if it takes more than a second.

    Nested work is not reported, nor is work in other threads while this work is shown.
    """
    pending = _Work(work)
    _reports.begin(pending)
    try:
        yield
    finally:
        _reports.end(pending)
