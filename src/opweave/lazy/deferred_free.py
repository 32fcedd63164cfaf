"""Lock of reads, and actions that drop programs while no thread reads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import RLock

lock = RLock()

_waiting: deque[Callable[[], object]] = deque()


def drop_later(action: Callable[[], object]) -> None:
    """Call `action`, which drops programs, now, or on the next read if another thread is reading. Never waits."""
    _waiting.append(action)
    if lock.acquire(blocking=False):
        try:
            drop_waiting()
        finally:
            lock.release()


def drop_waiting() -> None:
    """Call the postponed actions of `drop_later`. The caller holds the lock."""
    while _waiting:
        _waiting.popleft()()


def after_fork() -> None:
    """Replace the lock, which another thread of the parent process may have held."""
    global lock
    lock = RLock()
