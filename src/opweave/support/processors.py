"""Number of processors for this process, and of threads for an operation."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator
from contextlib import suppress
from functools import cache

from . import control_groups, settings

_share: float = math.inf  # see `share_processors`


def processors() -> int:
    """Number of processors that this process may use: its affinity, bounded by the limit of its container and its share."""
    affinity = getattr(os, "sched_getaffinity", None)  # not everywhere
    count = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    limit = min(control_groups.processor_limit(), _share)
    return count if limit >= count else max(1, math.ceil(limit))


def share_processors(count: float) -> None:
    """Use at most `count` processors from now on: the scheduler of a cluster gave the others to other processes."""
    global _share
    _share = count


@cache
def processor_name() -> str:
    """The name of the processor."""
    return next(processor_lines("model name"), "") or platform.processor() or platform.machine()


def processor_lines(name: str) -> Iterator[str]:
    """The values of a field of /proc/cpuinfo, one for each processor; none on other systems."""
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith(name):
                    yield line.partition(":")[2].strip()
    except OSError:
        return


MAX_THREADS = 1024
"""Maximum number of threads that users may ask for. Engines start all of them at once: 100,000 take 13 GiB and minutes."""


def chosen_threads() -> int | None:
    """The value of `$OPWEAVE_THREADS`; None if it is not set."""
    return settings.number("OPWEAVE_THREADS", 0) or None


def throttle_count() -> int:
    """Number of times that the system stopped the processes of this container for using up its processor time."""
    with suppress(OSError, ValueError), open(f"{control_groups.ROOT}/cpu.stat") as file:
        return next((int(line.split()[1]) for line in file if line.startswith("nr_throttled ")), 0)
    return 0


__all__ = [
    "chosen_threads",
    "processor_lines",
    "processor_name",
    "processors",
    "share_processors",
    "throttle_count",
]
