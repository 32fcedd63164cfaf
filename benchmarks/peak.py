"""The peak memory of a process; a module of its own, for processes that load little else."""

from __future__ import annotations


def peak_mib() -> float:
    """The most memory that this process has had resident, in MiB."""
    with open("/proc/self/status") as file:  # getrusage would tell the parent's, where that was larger at the fork
        (line,) = (line for line in file if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024
