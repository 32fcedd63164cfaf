"""Number of processors for this process, and of threads for an operation."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

from . import settings

if TYPE_CHECKING:
    from pathlib import Path

_share: float = math.inf  # see `share_processors`

CGROUPS = "/sys/fs/cgroup"
"""Directory in which Linux describes control groups, and so the limits of containers."""


def processors() -> int:
    """Number of processors that this process may use: its affinity, bounded by the limit of its container and its share."""
    affinity = getattr(os, "sched_getaffinity", None)  # not everywhere
    count = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    limit = min(container_limit(CGROUPS, "/proc/self/cgroup"), _share)
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


@cache
def container_limit(root: str | Path, membership: str | Path) -> float:
    """The processor time that control groups allow this process, in processors; infinite without a limit.

    `root` is where control groups are mounted; the file `membership` lists the groups of the process.
    """
    return min(_quotas(root, membership), default=math.inf) if os.path.exists(membership) else math.inf


def throttle_count() -> int:
    """Number of times that the system stopped the processes of this container for using up its processor time."""
    with suppress(OSError, ValueError), open(f"{CGROUPS}/cpu.stat") as file:
        return next((int(line.split()[1]) for line in file if line.startswith("nr_throttled ")), 0)
    return 0


def _quotas(root: str | Path, membership: str | Path) -> Iterator[float]:
    """The limits of all groups that this process is in, in processors."""
    for line in _text(membership).splitlines():
        number, names, path = line.split(":", 2)
        if number != "0" and "cpu" not in names.split(","):
            continue
        # Version 2 has one tree (number 0); in version 1, the controller "cpu" has its own tree.
        tree = os.path.join(root, "" if number == "0" else "cpu").rstrip("/")
        group = os.path.join(tree, path.strip("/")).rstrip("/")
        # In a container, the path may be that of the host; then the root of the tree is the container's group.
        folder = group if os.path.isdir(group) else tree
        yield from _quota(folder)
        while len(folder) > len(tree):
            folder = os.path.dirname(folder)
            yield from _quota(folder)


def _quota(folder: str) -> Iterator[float]:
    try:
        if os.path.exists(both := os.path.join(folder, "cpu.max")):
            limit, period = _text(both).split()
        else:
            limit, period = (_text(os.path.join(folder, f"cpu.cfs_{name}_us")) for name in ("quota", "period"))
        if limit != "max" and int(limit) > 0:
            yield int(limit) / int(period)
    except (OSError, ValueError):  # there is no such file in the root of a tree
        return


def _text(path: str | Path) -> str:
    with open(path, encoding="utf-8") as file:  # without pathlib, which takes longer to import than this module
        return file.read()


__all__ = [
    "chosen_threads",
    "container_limit",
    "processor_lines",
    "processor_name",
    "processors",
    "share_processors",
    "throttle_count",
]
