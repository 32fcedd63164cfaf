"""Let a group of processes work for a share of the time only, so that the program beside them is hardly slower.

The lowest priority does not suffice: processors share caches, memory and, as threads of one core, execution units.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from mmap import mmap

WORK_SECONDS = 0.03
"""How long the group works at a time."""

REST_SECONDS = 0.09
"""How long it is stopped after that. An estimate: two thirds of the calls of 10 ms meet no work then."""

_STOPPED, _IS_HELD = struct.Struct("d"), 8
"""The state that both processes share: the seconds for which the group was stopped, and a byte that holds it at work."""

_state = mmap(-1, 16)


def stopped() -> float:
    """Seconds for which a pacer has stopped this process and those of its group."""
    return float(_STOPPED.unpack_from(_state)[0])


@contextmanager
def paced() -> Generator[None]:
    """Pace the process group of this process, which must be its first and have one thread; nothing happens on Windows.

    The process that does so ends with this one.
    """
    group = os.getpid()
    if sys.platform == "win32" or os.getpgrp() != group:
        yield
        return
    pacer = os.fork()
    if pacer == 0:
        _pace(group)
    try:
        yield
    finally:
        with suppress(OSError):
            os.kill(pacer, signal.SIGKILL)
            os.waitpid(pacer, 0)


@contextmanager
def unpaced() -> Generator[None]:
    """Work without being stopped, to measure time; who does so pauses instead."""
    _state[_IS_HELD] = 1
    time.sleep(WORK_SECONDS)  # the pacer may be about to stop this process
    try:
        yield
    finally:
        _state[_IS_HELD] = 0


def _pace(group: int) -> None:
    """Stop a process group again and again, until its first process ends."""
    try:
        os.setpgid(0, 0)
        os.closerange(0, os.sysconf("SC_OPEN_MAX"))  # pipes and locks, whose last owner matters
        while os.getppid() == group:
            time.sleep(WORK_SECONDS)
            if _state[_IS_HELD]:
                continue
            begin = time.monotonic()
            os.killpg(group, signal.SIGSTOP)
            try:
                time.sleep(REST_SECONDS)
                _STOPPED.pack_into(_state, 0, stopped() + time.monotonic() - begin)
            finally:
                os.killpg(group, signal.SIGCONT)
    finally:
        os._exit(0)
