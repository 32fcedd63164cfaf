"""What calls of a model cost while a child process verifies another engine, beside what they cost without.

`python -m benchmarks verification` makes calls in a process of two processors, one after the other and with pauses: before the
child begins, while it works, and after that. Calls without pauses take both processors, and leave the child next to nothing:
then it does not end in the time that is measured. It writes the table in docs/engines.md. Needs the extra `openvino`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer

from .measure import Parts, in_process

MODELS = ("squeezenet", "resnet50")
"""Image classifiers, with random weights: calls of milliseconds, and of tens of milliseconds."""

BUDGET = 1.1
"""The median of a call while the child works, as a multiple of that without."""

PROCESSORS = 2

CALLS = 400
"""How many calls are measured before, and after, at most."""

SECONDS = 8.0
"""How long calls are measured before, and after, at most."""

TIMEOUT = 60.0
"""How long calls are measured while the child works, at most."""

PAUSES = (0.0, 0.03)
"""Seconds before each call."""

HEADER = [
    "model",
    "pause",
    "calls",
    "median without",
    "median beside",
    "ratio",
    "95th percentile",
    "ratio",
    "verdict",
    "holds",
]


def calls(session: Any, feed: Mapping[str, np.ndarray], pause: float, goes_on: Any) -> list[float]:
    """The seconds of calls, each after a pause, for as long as `goes_on` says."""
    times: list[float] = []
    begin = time.perf_counter()
    while goes_on(len(times), time.perf_counter() - begin):
        time.sleep(pause)
        start = time.perf_counter()
        session.run(None, feed)
        times.append(time.perf_counter() - start)
    return times


def measure(path: str, pause: float) -> dict[str, Any]:
    """In a separate process: the calls of a model without the child, and beside it."""
    import opweave as ow
    from opweave.compile import uses
    from opweave.verification.watch import watch

    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:PROCESSORS])
    uses.THRESHOLD_SECONDS = float("inf")  # not yet
    session = ow.InferenceSession(path, providers=["CPUExecutionProvider"])
    (input,) = session.get_inputs()
    shape = [size for size in input.shape if isinstance(size, int)]
    feed = {input.name: np.random.default_rng(0).random(shape, np.float32)}
    some = lambda count, passed: count < CALLS and passed < SECONDS  # noqa: E731
    calls(session, feed, pause, lambda count, passed: passed < 1)
    without = calls(session, feed, pause, some)
    uses.THRESHOLD_SECONDS = 0.0
    calls(session, feed, pause, lambda count, passed: watch._child is None and passed < TIMEOUT)
    beside = calls(session, feed, pause, lambda count, passed: watch._child is not None and passed < TIMEOUT)
    if watch._child is None:
        without += calls(session, feed, pause, some)
    assert session._parts.use is not None
    verdict = next(iter(session._parts.use.states.values()), "not done")
    text = verdict if isinstance(verdict, str) else "; ".join(verdict.verdicts()[:1])
    return {"without": without, "beside": beside, "verdict": text}


def row(name: str, pause: float, found: Mapping[str, Any]) -> list[str]:
    """A row of the table."""
    without, beside = found["without"], found["beside"]

    def late(times: Sequence[float]) -> float:
        return quantiles(times, n=20, method="inclusive")[-1]

    ratio, later = median(beside) / median(without), late(beside) / late(without)
    numbers = [f"{median(times) * 1e3:.3g} ms" for times in (without, beside)]
    tail = [f"{late(beside) * 1e3:.3g} ms", f"{later:.2f}x"]
    return [
        name,
        f"{pause * 1e3:.0f} ms",
        str(len(beside)),
        *numbers,
        f"{ratio:.2f}x",
        *tail,
        found["verdict"],
        "yes" if ratio <= BUDGET else "NO",
    ]


def main(write: Annotated[bool, typer.Option(help="Whether to write docs/engines.md.")] = True) -> None:
    """Measure calls while a child process verifies another engine, and write docs/engines.md."""
    from tests.support.onnx_architectures import randomise

    from .page import DOCS, Table, machine, replace_part, versions

    rows, parts = [], Parts()
    for name, pause in product(MODELS, PAUSES):
        with TemporaryDirectory() as folder:
            given = str(randomise(name, Path(folder))), str(pause)
            variables = {"OPWEAVE_VERIFY": "1", "OPWEAVE_CACHE": str(Path(folder, "cache"))}  # nothing is verified yet
            os.environ.update(variables)
            title = f"{name}, pauses of {pause * 1e3:.0f} ms"
            found = parts.run(title, lambda given=given: in_process("benchmarks.verification", *given, timeout=600))  # type: ignore[misc]
            if found is not None:
                rows.append(row(name, pause, found))
    text = f"On: {machine()}; {versions('openvino')}.\n\n{Table(HEADER, rows)}"
    print(text)
    if write and not parts.failures:
        replace_part(DOCS / "engines.md", text, "verification")
    parts.end()


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], float(sys.argv[2]))))
