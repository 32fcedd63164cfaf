"""Run the rest of a command in a child process, which signals reach through its parent only.

Ray installs a handler for SIGTERM in C++ while it starts, which aborts the process and leaves its children running. So the
process that users and service managers signal does not load Ray: for each signal, it sends SIGINT to the child.
"""

from __future__ import annotations

import os
import signal
import sys
from os import _exit as exit_at_once
from threading import Thread

STOPPING: tuple[signal.Signals, ...] = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""The signals that stop a server."""


def continue_in_child() -> None:
    """Return in a child process, and wait for it in this one, which exits with its status: 128 + n after signal n.

    The child gets SIGINT for each signal of `STOPPING`, and if this process ends without waiting for it. It has a new
    session, so that Ctrl-C in a terminal does not reach it twice. If processes cannot fork (Windows), this one continues.
    """
    if not hasattr(os, "fork"):
        return
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    numbers = _signals_to_handle()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)  # signals that come now are handled once the child exists
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.setsid()
        Thread(target=_stop_at_end, args=(reader,), daemon=True).start()
        return
    os.close(reader)
    for number in numbers:
        signal.signal(number, lambda *_: os.kill(child, signal.SIGINT))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    sys.stdout.flush()
    exit_at_once(status if status >= 0 else 128 - status)


def _signals_to_handle() -> list[signal.Signals]:
    """The signals of `STOPPING` to handle: not those that this process was started to ignore, as `nohup` ignores SIGHUP.

    SIGINT is handled always: shells ignore it for a job in the background, and the parent stops its child by it.
    """
    return [n for n in STOPPING if n == signal.SIGINT or signal.getsignal(n) is not signal.SIG_IGN]


def _stop_at_end(reader: int) -> None:
    """Wait until the other end of a pipe is closed, by the end of its process, and send SIGINT to this one."""
    os.read(reader, 1)
    os.kill(os.getpid(), signal.SIGINT)


class Stop:
    """Handlers of signals: the first of `STOPPING` raises KeyboardInterrupt once `check` was called; others do nothing."""

    def __init__(self) -> None:
        self.is_asked, self._raises = False, False
        self._before = {number: signal.getsignal(number) for number in STOPPING}
        self._handlers = dict.fromkeys(STOPPING, signal.SIG_IGN) | dict.fromkeys(_signals_to_handle(), self._handle)
        self.install()

    def install(self) -> None:
        """Install the handlers, again after others have replaced them."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal has come, and from now on when one comes."""
        self._raises = True
        if self.is_asked:
            raise KeyboardInterrupt

    def restore(self) -> None:
        """Install the handlers that were there before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, *_: object) -> None:
        is_first, self.is_asked = not self.is_asked, True
        if is_first and self._raises:
            raise KeyboardInterrupt
