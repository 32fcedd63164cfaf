"""What the gate measures of one model, in a process of its own; the last line that it prints is JSON.

`python -m gate.measure run ENGINE MODEL PACKAGES FOLDER` runs a model at all its shapes in one engine, writes the results
into the folder, and reports peak memory and threads. It loads nothing that this engine does not need. The engine is
`onnxruntime`, or `opweave:BACKEND`: Opweave on one of its back ends.

`python -m gate.measure times BACKEND MODEL PACKAGES` runs both engines alternately, and reports the times of each pair of
calls.

`python -m gate.measure device DEVICE MODEL PACKAGES` builds a model on a device for its first shape, without the cache on
disk, and reports how long that and a call take, and how far the results are from ONNX Runtime's on the processor.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.measure import PAUSE_SECONDS, RESTS, after_rests, per_call, status

from . import catalog
from .verdict import compare

if TYPE_CHECKING:
    import opweave as ow

ROUNDS = 3
"""How often each shape is run while memory is measured: a session may compile shapes that recur, and keep what it compiled."""

SLOW_SECONDS = 5.0
"""Models whose first round takes longer get no more than two rounds."""

SETTLE_SECONDS = 0.1
"""The pause after each round, beside the time that shapes take which are compiled in the background."""

COMPILE_SECONDS = 60.0
"""How long these may take."""

FRESH_SESSIONS = 3
"""How many pairs of new sessions the times of new shapes come from."""

PAIRS = 15
"""How many pairs of calls the ratio of steady times comes from."""

SECONDS = 8.0
"""After this long, slow models get no more new sessions, and no more pairs than `FEWEST_PAIRS`."""

FEWEST_PAIRS = 5

RESTED_CALLS = 3
"""How many calls, each after a pause, one measurement of them is the median of."""

CALLS = 30
"""How many calls the time of a call on a device is the median of."""

BURST_SECONDS = 0.03
"""How long calls of a small model are repeated for one measurement."""

Run = Callable[[dict[str, np.ndarray]], list[Any]]


@dataclass(frozen=True)
class Loaded:
    """A model in one engine.

    Attributes:
        call: runs it.
        types: what ONNX Runtime calls the types of its inputs, by name.
        is_compiling: whether shapes are being compiled in the background.
    """

    call: Run
    types: dict[str, str]
    is_compiling: Callable[[], bool] = lambda: False

    def settle(self) -> None:
        """Wait until nothing is compiled any more."""
        time.sleep(SETTLE_SECONDS)
        end = time.perf_counter() + COMPILE_SECONDS
        while self.is_compiling():
            if time.perf_counter() > end:
                raise TimeoutError(f"shapes are still being compiled after {COMPILE_SECONDS:.0f} s")
            time.sleep(SETTLE_SECONDS)


def opweave(path: Path, backend: str) -> Loaded:
    """The model in Opweave, on one of its back ends."""
    import opweave as ow

    # On the processor, whatever else there is: that is what the other engine runs on.
    session = ow.InferenceSession(path, context=ow.ml.create_context(device="cpu", backend=backend))
    return Loaded(
        lambda feed: session.run(None, feed),
        {i.name: i.type for i in session.get_inputs()},
        lambda: "compiling" in session.shapes().values(),
    )


def onnxruntime(path: Path) -> Loaded:
    """The same in ONNX Runtime, as its users do it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return Loaded(lambda feed: session.run(None, feed), {i.name: i.type for i in session.get_inputs()})


def loader(engine: str) -> Callable[[Path], Loaded]:
    """What loads a model in an engine: "onnxruntime", or "opweave:BACKEND"."""
    _, _, backend = engine.partition(":")
    return partial(opweave, backend=backend) if backend else onnxruntime


MODULES = {"opweave": "opweave.onnx.session.session", "onnxruntime": "onnxruntime"}
"""What is imported before the loading of a model is timed."""


def run(engine: str, entry: catalog.Entry, packages: Path, folder: Path) -> dict[str, Any]:
    """Run all shapes in one engine. Results of the first call and of the last are kept: they may come by different ways."""
    threads = 0
    import_module(MODULES[engine.partition(":")[0]])
    with entry.path(packages) as path:
        start = time.perf_counter()
        model = loader(engine)(path)
        load = time.perf_counter() - start
        feeds = entry.feeds(model.types)
        rounds, start = ROUNDS, time.perf_counter()
        for turn in range(ROUNDS):
            if turn == 1 and time.perf_counter() - start > SLOW_SECONDS:
                rounds = 2
            if turn == rounds:
                break
            for k, feed in enumerate(feeds):
                results = model.call(feed)
                threads = max(threads, status("Threads"))
                if turn in (0, rounds - 1):
                    for n, result in enumerate(results):
                        np.save(folder / f"{min(turn, 1)}-{k}-{n}.npy", result)
            model.settle()
        threads = max(threads, status("Threads"))
    return {"load": load, "peak_mib": status("VmHWM") / 1024, "threads": threads}


def times(backend: str, entry: catalog.Entry, packages: Path) -> dict[str, Any]:
    """Times of Opweave, on one of its back ends, and of ONNX Runtime.

    Returns:
        "steady": pairs (ours, theirs) of seconds a call at the first shape.
        "rested": such pairs of calls that each come after a pause, by its milliseconds.
        "new": for each fresh pair of sessions, such pairs for the first call of each shape but the first one.
    """
    new: list[list[list[float]]] = []
    start = time.perf_counter()
    with entry.path(packages) as path:
        while len(new) < FRESH_SESSIONS and (not new or time.perf_counter() - start < SECONDS):
            models = [loader(engine)(path) for engine in (f"opweave:{backend}", "onnxruntime")]
            calls = [model.call for model in models]
            feeds = entry.feeds(models[1].types)
            for call in calls:
                call(feeds[0])
            new.append([[timed(call, feed, 1) for call in calls] for feed in feeds[1:]])
        feed = feeds[0]
        for model in models:
            for _ in range(3):
                model.call(feed)
            model.settle()
        once = min(timed(calls[1], feed, 1) for _ in range(3))
        count = max(1, round(BURST_SECONDS / once))
        steady = _pairs(lambda k: timed(calls[k], feed, count))
        rested: dict[str, list[list[float]]] = {}
        for rest in filter(None, RESTS):
            rested[f"{rest * 1e3:.0f}"] = _pairs(lambda k, rest=rest: rested_call(calls[k], feed, rest))  # type: ignore[misc]
    return {"steady": steady, "rested": rested, "new": new}


def _pairs(measured: Callable[[int], float]) -> list[list[float]]:
    """Pairs of values of both engines, measured one after the other: the first of a pair finds colder caches."""
    pairs: list[list[float]] = []
    start = time.perf_counter()
    while len(pairs) < PAIRS and (len(pairs) < FEWEST_PAIRS or time.perf_counter() - start < SECONDS):
        values = {k: measured(k) for k in ((0, 1) if len(pairs) % 2 else (1, 0))}
        pairs.append([values[0], values[1]])
    return pairs


def on_device(device: str, entry: catalog.Entry, packages: Path) -> dict[str, Any]:
    """What becomes of a model on a device.

    Returns:
        "build": seconds to make the session and its first results; compilers begin to load when the context is made, right
            before.
        "clock": milliseconds a call, from arrays to arrays.
        "kernels": how many the program has.
        "elsewhere": what runs on the processor: operators that WebNN cannot express, and operations that the device has not.
        "difference": the largest one of the first results, and of those of the last call.
    """
    import opweave as ow

    with entry.path(packages) as path, TemporaryDirectory(prefix="opweave-gate-") as cache:
        os.environ["OPWEAVE_CACHE"] = cache
        theirs = onnxruntime(path)
        feed = entry.feeds(theirs.types)[0]
        expected = theirs.call(feed)
        context = ow.ml.create_context(device=device)
        start = time.perf_counter()
        session = ow.InferenceSession(path, context=context, specialise="always")
        first = session.run(None, feed)
        build = time.perf_counter() - start
        clock = median(per_call(partial(session.run, None, feed), 1) for _ in range(CALLS))
        last = session.run(None, feed)
    kernels, elsewhere = placements_of(session)
    return {
        "build": build,
        "clock": clock * 1e3,
        "kernels": kernels,
        "elsewhere": elsewhere,
        "difference": max(compare(a, b) for given in (first, last) for a, b in zip(given, expected, strict=True)),
    }


def placements_of(session: ow.InferenceSession) -> tuple[int, list[str]]:
    """Return how many kernels the last program of a session has, and what of it does not run on the session's device."""
    from opweave.onnx.session.compiled import CompiledModel

    found = session._parts.shape_cache.last()
    assert found is not None
    compiled = found[1]
    assert isinstance(compiled, CompiledModel)
    elsewhere = [node.node.op_type for part in compiled.sections if part.kind == "fallback" for node in part.nodes]
    for number in range(len(compiled.sections)):
        elsewhere += [p.op.name for p in compiled.placements[number] if p.device != session.context.device.name]
    runners: list[Any] = [step.part.runner for step in compiled.program.steps if step.part]
    return sum(len(getattr(runner, "steps", ())) for runner in runners), elsewhere


def timed(call: Run, feed: dict[str, np.ndarray], count: int) -> float:
    """Seconds a call, after a pause."""
    time.sleep(PAUSE_SECONDS)
    return per_call(lambda: call(feed), count)


def rested_call(call: Run, feed: dict[str, np.ndarray], rest: float) -> float:
    """Seconds a call after a pause, in which the engine's own threads go to sleep; those of the other one do so before."""
    time.sleep(PAUSE_SECONDS)
    return after_rests(lambda: call(feed), rest, RESTED_CALLS)


def main(what: str, *args: str) -> None:
    if what == "run":
        engine, name, packages, folder = args
        found = run(engine, catalog.entry(name), Path(packages), Path(folder))
    elif what == "device":
        device, name, packages = args
        found = on_device(device, catalog.entry(name), Path(packages))
    else:
        backend, name, packages = args
        found = times(backend, catalog.entry(name), Path(packages))
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
