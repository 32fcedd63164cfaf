"""Control groups of Linux, which limit the processors and the memory of containers and services."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

ROOT, MEMBERSHIP = "/sys/fs/cgroup", "/proc/self/cgroup"
"""The folder of control groups, and the file that lists those of this process."""


@cache
def processor_limit(root: str | Path = ROOT, membership: str | Path = MEMBERSHIP) -> float:
    """The processor time that control groups allow this process, in processors; infinite without a limit."""
    return min(map(_quota, _groups("cpu", root, membership)), default=math.inf)


@cache
def memory_limit(root: str | Path = ROOT, membership: str | Path = MEMBERSHIP) -> float:
    """The bytes that control groups allow this process; infinite without a limit."""
    return min(map(_memory_limit, _groups("memory", root, membership)), default=math.inf)


def free_memory(root: str | Path = ROOT, membership: str | Path = MEMBERSHIP) -> float:
    """The bytes that control groups still allow this process; infinite without a limit."""
    return min(map(_free_memory, _groups("memory", root, membership)), default=math.inf)


def _groups(controller: str, root: str | Path, membership: str | Path) -> Iterator[str]:
    """The folders of the groups that this process is in, from the innermost outwards."""
    if not os.path.exists(membership):
        return
    for line in _text(membership).splitlines():
        number, names, path = line.split(":", 2)
        if number != "0" and controller not in names.split(","):
            continue
        # Version 2 has one tree (number 0); in version 1, each controller has its own tree.
        tree = os.path.join(root, "" if number == "0" else controller).rstrip("/")
        group = os.path.join(tree, path.strip("/")).rstrip("/")
        # In a container, the path may be that of the host; then the root of the tree is the container's group.
        folder = group if os.path.isdir(group) else tree
        yield folder
        while len(folder) > len(tree):
            folder = os.path.dirname(folder)
            yield folder


def _quota(folder: str) -> float:
    try:
        if os.path.exists(both := os.path.join(folder, "cpu.max")):
            limit, period = _text(both).split()
        else:
            limit, period = (_text(os.path.join(folder, f"cpu.cfs_{name}_us")) for name in ("quota", "period"))
        if limit != "max" and int(limit) > 0:
            return int(limit) / int(period)
    except (OSError, ValueError):  # there is no such file in the root of a tree
        pass
    return math.inf


def _memory_limit(folder: str) -> float:
    for name in ("max", "limit_in_bytes"):
        try:
            return int(_text(os.path.join(folder, f"memory.{name}")))
        except (OSError, ValueError):  # "max" is no integer, and there is no such file in the root of a tree
            pass
    return math.inf


def _free_memory(folder: str) -> float:
    limit = _memory_limit(folder)
    if limit == math.inf:
        return limit
    is_new = os.path.exists(os.path.join(folder, "memory.current"))
    name, field = ("current", "inactive_file ") if is_new else ("usage_in_bytes", "total_inactive_file ")
    try:
        taken = int(_text(os.path.join(folder, f"memory.{name}")))
        lines = _text(os.path.join(folder, "memory.stat")).splitlines()
    except (OSError, ValueError):
        return limit
    cached = next((int(line.split()[1]) for line in lines if line.startswith(field)), 0)  # the system can drop it
    return max(limit - taken + cached, 0)


def _text(path: str | Path) -> str:
    with open(path, encoding="utf-8") as file:  # without pathlib, which takes longer to import than this module
        return file.read()
