"""Pace a group of processes: let it work for a share of the time, so that the program beside it is hardly slower.

The lowest priority does not suffice: processes share caches, memory bandwidth and, as threads of one core, execution units.
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
"""Seconds for which the group works at a time."""

REST_SECONDS = 0.09
"""Seconds for which the group is stopped after that. An estimate: two thirds of the calls of 10 ms then meet no work."""

_STOPPED, _IS_HELD = struct.Struct("d"), 8
"""State shared by both processes: the seconds for which the group was stopped, and a byte that suspends pacing."""

_state = mmap(-1, 16)


def stopped_seconds() -> float:
    """Return the seconds for which a pacer has stopped the group of this process."""
    return float(_STOPPED.unpack_from(_state)[0])


@contextmanager
def pace_group() -> Generator[None]:
    """Pace the process group that this process leads. It must have a single thread; on Windows nothing happens.

    A forked process does the pacing, and ends with this one.
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
def suspend_pacing() -> Generator[None]:
    """Suspend pacing, to measure time; the caller must rest as much itself."""
    _state[_IS_HELD] = 1
    time.sleep(WORK_SECONDS)  # the pacer may be about to stop this process
    try:
        yield
    finally:
        _state[_IS_HELD] = 0


def _close_all() -> None:
    """Close all descriptors: copies of pipes and locks must not stay open. The limit of descriptors may be a billion."""
    with suppress(OSError):
        for name in os.listdir("/dev/fd"):
            with suppress(OSError):
                os.close(int(name))


def _pace(group: int) -> None:
    try:
        os.setpgid(0, 0)
        _close_all()
        while os.getppid() == group:
            time.sleep(WORK_SECONDS)
            if _state[_IS_HELD]:
                continue
            begin = time.monotonic()
            os.killpg(group, signal.SIGSTOP)
            try:
                time.sleep(REST_SECONDS)
                _STOPPED.pack_into(_state, 0, stopped_seconds() + time.monotonic() - begin)
            finally:
                os.killpg(group, signal.SIGCONT)
    finally:
        os._exit(0)
