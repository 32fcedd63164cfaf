"""Alternating measurement, and what a row of a table is."""

from __future__ import annotations

import atexit
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any

from rich.progress import Progress

from .peak import peak_mib as peak_mib


@dataclass
class Row:
    """One comparison.

    Attributes:
        what: what was measured.
        unit: of both values.
        ours: our value.
        theirs: the value that it is compared with; None where there is a budget only.
        against: whose value that is.
        budget: the condition that design and documentation promise, as text, and whether it holds.
    """

    what: str
    unit: str
    ours: float
    theirs: float | None
    against: str
    budget: str
    holds: bool

    @property
    def ratio(self) -> float | None:
        return None if self.theirs is None else self.ours / self.theirs


def at_most(ours: float, theirs: float, factor: float) -> bool:
    """Whether a ratio is within its budget, to the two digits that tables show."""
    return round(ours / theirs, 2) <= factor


def per_call(function: Callable[[], object], seconds: float) -> float:
    """Seconds a call, over a stretch of about `seconds`."""
    count, took = 1, 0.0
    while took < seconds / 10:
        start = time.perf_counter()
        for _ in range(count):
            function()
        took = time.perf_counter() - start
        count *= 1 if took >= seconds / 10 else 2
    rounds = max(1, round(count * seconds / took))
    start = time.perf_counter()
    for _ in range(rounds):
        function()
    return (time.perf_counter() - start) / rounds


def alternate(
    functions: dict[str, Callable[[], object]], *, rounds: int = 9, seconds: float = 0.2, title: str = ""
) -> dict[str, float]:
    """The seconds a call of each function, measured in turns (A, B, A, B, …) after a turn to warm up.

    The first one's is its median. Those of others are that times the median of their ratios, turn by turn: what slows down
    the machine for a while slows down both of a pair.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    with Progress(transient=True) as progress:
        task = progress.add_task(title, total=(rounds + 1) * len(functions))
        for turn in range(rounds + 1):
            for name, function in functions.items():
                value = per_call(function, seconds)
                if turn:
                    times[name].append(value)
                progress.advance(task)
    base = next(iter(times.values()))
    middle = statistics.median(base)
    return {
        name: middle * statistics.median(value / first for value, first in zip(values, base, strict=True))
        for name, values in times.items()
    }


def in_process(module: str, *args: str) -> dict[str, Any]:
    """Run `python -m module args` in a process of its own; the JSON of its last line."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": _bytecode()}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", module, *args]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    last: dict[str, Any] = json.loads(result.stdout.strip().splitlines()[-1])
    return last


@cache
def _bytecode() -> str:
    """A folder where compiled modules are kept, as those of installed packages are: to compile takes time and megabytes."""
    folder = TemporaryDirectory(prefix="opweave-bytecode-")
    atexit.register(folder.cleanup)
    return folder.name
