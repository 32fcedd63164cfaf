"""Progress of compilation: what takes more than a second is logged, or shown by the program that wants to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock, Timer
from time import perf_counter
from typing import Protocol

PATIENCE_SECONDS = 1.0
"""Work that takes no longer than this is not reported."""


class Display(Protocol):
    """Shows that some work goes on."""

    def start(self) -> object:
        """Show it. Called in another thread than the one that works."""

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
_shown = Lock()  # held while a display is open: a terminal shows one


def show_with(make: Callable[[str], Display] | None) -> None:
    """Show long work in another way than by messages in the log "opweave".

    Args:
        make: makes the display of some work, which it is told in a few words; None for the log.
    """
    global _make
    _make = make or _Logged


@contextmanager
def reported(work: str) -> Iterator[None]:
    """Report the work inside the `with` if it takes more than a second.

    Work inside of other work that is reported, and in other threads meanwhile, is not reported.

    Args:
        work: what is done, in a few words.
    """
    display: Display | None = None

    def show() -> None:
        nonlocal display
        if _shown.acquire(blocking=False):
            display = _make(work)
            display.start()

    timer = Timer(PATIENCE_SECONDS, show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # it may be showing the work now; and no thread is left of it
        if display is not None:
            display.stop()
            _shown.release()
