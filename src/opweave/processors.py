"""How many processors this process may use."""

from __future__ import annotations

import os


def processors() -> int:
    """How many processors this process may use, which can be fewer than the machine has."""
    affinity = getattr(os, "sched_getaffinity", None)  # not everywhere
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


__all__ = ["processors"]
