"""Functions that run at the same time, each in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from threading import Barrier, Thread

SECONDS = 300
"""After this time, a thread is taken to wait for ever."""


def together(*works: Callable[[], object]) -> None:
    """Call functions at the same time, and wait until all have ended; raise an error if one of them did, or does not end."""
    start, failed = Barrier(len(works)), list[BaseException]()

    def run(work: Callable[[], object]) -> None:
        try:
            start.wait()
            work()
        except BaseException as error:
            failed.append(error)

    threads = [Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    for error in failed:
        raise error
    assert not any(thread.is_alive() for thread in threads), f"threads have not ended after {SECONDS} seconds"
