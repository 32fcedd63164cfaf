"""How all benchmarks measure: in pairs (A, B, A, B, …), each alone after a pause, compared by the ratios of the pairs.

What slows down the machine for a while slows down both of a pair, and threads of an engine that ran before have stopped
spinning. A ratio is told as its median with quartiles. Only the standard library is imported here, so that processes whose
memory is measured load little else.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, TypeVar

T = TypeVar("T")

ROOT = Path(__file__).parent.parent

PAUSE_SECONDS = 0.2
"""The pause before each measurement. After 0.02 s, spinning threads still made another engine's calls up to 1.6x as slow."""

RESTED_CALLS = 5
"""The number of calls of a turn that begin after a rest each."""

RESTS = (0.0, 0.03, 0.1)
"""The seconds before each call where they matter: threads of an engine wait in a loop for about 50 ms, then they sleep."""

Way = Callable[[], object]
"""One way to do something; a call does it once."""

Clock = Callable[[], float]

os.environ.setdefault("OPWEAVE_VERIFY", "0")  # no child process beside what is measured

_START = time.monotonic()


def elapsed() -> float:
    """Seconds since the benchmark began."""
    return time.monotonic() - _START


def tell(text: str) -> None:
    """Print how far a benchmark is, on stderr."""
    print(f"{elapsed():5.0f} s  {text}", file=sys.stderr, flush=True)


class Parts:
    """The parts of a benchmark that takes minutes. Each says when it begins; one that fails leaves the others their results.

    Args:
        seconds: begin nothing that would probably end later than this after the start of the benchmark.

    Attributes:
        failures: what failed, and why.
    """

    def __init__(self, seconds: float = float("inf")) -> None:
        self.failures: list[str] = []
        self._seconds = seconds
        self._took: dict[str, list[float]] = {}

    def fits(self, name: str) -> bool:
        """Whether there is time to run a part again, if it takes as long as before; there always is for the first time."""
        took = self._took.get(name)
        return took is None or elapsed() + took[-1] <= self._seconds

    def run(self, name: str, measure: Callable[[], T]) -> T | None:
        """What `measure` returns; None if it fails, which is told."""
        took = self._took.setdefault(name, [])
        tell(f"{name}, turn {len(took) + 1}" if took else name)
        start = elapsed()
        try:
            return measure()
        except Exception as error:
            self.failures.append(f"{name}: {error}")
            tell(f"FAILED: {self.failures[-1]}")
            return None
        finally:
            took.append(elapsed() - start)

    def end(self) -> None:
        """End the benchmark with an error if parts failed."""
        if self.failures:
            raise SystemExit("\n".join(["these parts failed:", *self.failures]))


@dataclass(frozen=True)
class Ratio:
    """The quartiles of the ratios of pairs."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
        """The ratio of values that were measured in pairs.

        >>> Ratio.of([2, 3, 4], [1, 1, 1])
        Ratio(low=2.5, median=3.0, high=3.5)
        """
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        if len(ratios) == 1:
            return cls(ratios[0], ratios[0], ratios[0])
        return cls(*quantiles(ratios, n=4, method="inclusive"))

    def __str__(self) -> str:
        return f"{self.median:.2f}x ({self.low:.2f} to {self.high:.2f})"


def per_call(way: Way, count: int, clock: Clock = time.perf_counter) -> float:
    """Seconds a call, over `count` calls."""
    start = clock()
    for _ in range(count):
        way()
    return (clock() - start) / count


def until_done(way: Way, wait: Way, count: int) -> float:
    """Milliseconds from a call of `way`, which starts work on a device, until `wait` returns; the median of `count`."""
    for _ in range(3):
        way()
    wait()

    def both() -> None:
        way()
        wait()

    return median(per_call(both, 1) for _ in range(count)) * 1e3


def calls_within(way: Way, seconds: float) -> int:
    """How many calls take about `seconds`, at least 1."""
    way()  # the first call of many takes longer than all others
    count, took = 1, per_call(way, 1)
    while took * count < seconds / 10:
        count *= 2
        took = per_call(way, count)
    return max(1, round(seconds / took))


def after_rests(way: Way, rest: float, calls: int = RESTED_CALLS) -> float:
    """Seconds a call after a rest, the median of several calls."""
    times = []
    for _ in range(calls):
        time.sleep(rest)
        times.append(per_call(way, 1))
    return median(times)


def alternate(
    ways: Mapping[str, Way],
    *,
    pairs: int = 15,
    seconds: float = 0.1,
    pause: float = PAUSE_SECONDS,
    rest: float = 0.0,
) -> dict[str, list[float]]:
    """Measure ways alternately, after a turn to warm up.

    Args:
        ways: by name.
        pairs: how many turns there are.
        seconds: about how long a way is called in a turn.
        pause: seconds to wait before each measurement.
        rest: seconds to wait before each call; if there are any, a turn is the median of at most `RESTED_CALLS`.

    Returns:
        Seconds a call in each turn, by name. Values at one position were measured one after the other.
    """
    counts = {name: calls_within(way, seconds) for name, way in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(pairs):
        for name in list(ways)[:: 1 if turn % 2 else -1]:  # the first of a pair finds colder caches
            time.sleep(pause)
            way, count = ways[name], counts[name]
            times[name].append(after_rests(way, rest, min(count, RESTED_CALLS)) if rest else per_call(way, count))
    return times


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other processes of a benchmark, which have the same folder, from measuring at the same time."""
    import fcntl

    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def script(name: str) -> ModuleType:
    """Import a script of tools/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # for its dataclasses
    spec.loader.exec_module(module)
    return module


def peak_mib() -> float:
    """The most memory that this process has had resident, in MiB."""
    return status("VmHWM") / 1024  # getrusage would tell the parent's, where that was larger at the fork


def status(field: str) -> int:
    """A number that Linux tells about this process: "VmHWM" (peak memory in KiB) or "Threads"."""
    with open("/proc/self/status") as file:
        (line,) = (line for line in file if line.startswith(f"{field}:"))
    return int(line.split()[1])


def environment(source: Path | None = None, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment variables of a measuring process.

    Args:
        source: a folder to import `opweave` from, None for the installed one.
        extra: variables of this process alone.
    """
    variables = {**os.environ, "PYTHONPYCACHEPREFIX": _bytecode(), **(extra or {})}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    if source is not None:
        variables["PYTHONPATH"] = str(source)
    return variables


def in_process(
    module: str, *args: str, timeout: float | None = None, extra: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run `python -m module args` in a separate process, with these `extra` environment variables.

    Returns:
        The JSON of the last line that it prints.

    Raises:
        RuntimeError: it ended with an error; the message ends with what it wrote.
        TimeoutError: it took more than `timeout` seconds.
    """
    command = [sys.executable, "-m", module, *args]
    try:
        variables = environment(extra=extra)
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=variables, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"takes more than {timeout:g} s") from None
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[2:])} ends with {done.returncode}: {done.stderr.strip()[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def processes(module: str, ways: Mapping[str, Sequence[str]], *, turns: int = 5) -> dict[str, dict[str, list[Any]]]:
    """Ask processes for values alternately, after a turn that compiles what they import.

    Args:
        module: what to run, see `in_process`.
        ways: the arguments of each way, by name.
        turns: how many processes there are of each.

    Returns:
        By name of the way and of the value, the value in each turn.
    """
    found: dict[str, dict[str, list[Any]]] = {name: {} for name in ways}
    for turn in range(turns + 1):
        for name, args in ways.items():
            tell(f"{module.partition('.')[2]} {' '.join(args)}, {f'{turn} of {turns}' if turn else 'to warm up'}")
            for key, value in in_process(module, *args).items():
                if turn:
                    found[name].setdefault(key, []).append(value)
    return found


@cache
def _bytecode() -> str:
    """A folder for compiled modules, as those of installed packages have: compiling takes time and megabytes."""
    folder = TemporaryDirectory(prefix="opweave-bytecode-")
    atexit.register(folder.cleanup)
    return folder.name
