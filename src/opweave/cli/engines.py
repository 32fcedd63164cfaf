"""Engines that run one model in processes of their own, and are measured alternately."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from ..agreement import difference
from ..backends.isolation import EngineFailureError, ending, max_memory, resident, watch
from ..errors import MLError, NotSupportedError, OperationError
from .common import declare

BASE_LINE = "ONNX Runtime itself"
"""The engine that the others are compared with: ONNX Runtime, without Opweave."""

ROUNDS = 5
"""How many turns each engine has."""

BUILD_SECONDS = 120.0
"""An engine hangs if its first run takes longer than this and `BUILD_FACTOR` times that of ONNX Runtime. An estimate:
compilers for GPUs take seconds, and software in place of a GPU runs a thousand times slower."""

BUILD_FACTOR = 2000
"""See `BUILD_SECONDS`."""

ENDING_SECONDS = 5.0
"""How long to wait for a process that has closed its connection."""

PAUSE = 0.05
"""Seconds before each turn. Threads of the engine before may wait for more work, and take the processors meanwhile."""


@dataclass(frozen=True)
class Engine:
    """What may run a model.

    Attributes:
        name: what `--engines` takes.
        device: the device of its context; empty for ONNX Runtime without Opweave.
        backend: the back end that drives the device.
    """

    name: str
    device: str = ""
    backend: str = ""


@dataclass(frozen=True)
class Job:
    """What to run.

    Attributes:
        model: the path of the .onnx file.
        feed: an array for each input, by name.
        options: for Opweave's session.
        precision: of the context.
        operations: the module that declares operations of the user; None if there is none.
    """

    model: str
    feed: Mapping[str, Any]
    options: Mapping[str, Any]
    precision: str
    operations: str | None = None


@dataclass
class Result:
    """How an engine ran a model.

    Attributes:
        engine: the engine.
        reason: why it cannot run it; empty if it can.
        error: the class of the error that is the reason.
        times: of the runs, in seconds.
        build: seconds until the result of the first run.
        memory: bytes that its process has grown by.
        outputs: of the model.
        difference: the largest from the first engine's outputs (`agreement.difference`); None if they cannot be compared.
    """

    engine: Engine
    reason: str = ""
    error: type[MLError] = OperationError
    times: list[float] = field(default_factory=list)
    build: float = 0.0
    memory: int = 0
    outputs: Sequence[Any] = ()
    difference: float | None = None

    @property
    def quartiles(self) -> tuple[float, float, float]:
        """The lower quartile, the median and the upper quartile of the times."""
        lower, middle, upper = np.percentile(self.times, [25, 50, 75])
        return float(lower), float(middle), float(upper)


def engines(wanted: Sequence[str] | None) -> list[Engine]:
    """The engines to compare, ONNX Runtime itself first.

    Args:
        wanted: names of back ends, of devices, or "auto"; None for all but those that are software in place of hardware
            (`Device.is_software`), which are slow.

    Raises:
        NotSupportedError: there is no such engine here.
    """
    from ..backends import devices

    here = [device for device in devices() if device.available]
    found = [Engine("auto", "cpu", "auto")] if len([d for d in here if d.name == "cpu"]) > 1 else []
    for device in here:
        name = device.backend if device.name == "cpu" else device.name
        names = {name, device.name} | (set() if device.provider else {device.backend})
        if (not device.is_software) if wanted is None else not names.isdisjoint(wanted):
            found.append(Engine(name, device.name, device.backend))
    if wanted is not None:
        known = {"auto", *(each for device in here for each in (device.name, device.backend))}
        if unknown := [name for name in wanted if name not in known]:
            raise NotSupportedError(f"there is no engine {unknown[0]!r} here; there are {', '.join(sorted(known))}")
        found = [engine for engine in found if engine.name != "auto" or "auto" in wanted]
    return [Engine(BASE_LINE), *found]


def measure(
    found: Sequence[Engine],
    job: Job,
    seconds: float,
    progress: Callable[[float], None],
    results: list[Result] | None = None,
) -> list[Result]:
    """Run a job on engines, each in a process of its own, alternately.

    Args:
        found: the engines.
        job: what to run.
        seconds: how long to measure, all engines together.
        progress: called with the share that is done.
        results: a list to fill, which has the results until then if the user interrupts it.

    Raises:
        KeyboardInterrupt: the user interrupts it.
    """
    spawn = get_context("spawn")  # engines must not be forked
    results, workers = [] if results is None else results, []
    try:
        for engine in found:
            here, there = spawn.Pipe()
            worker = spawn.Process(target=_work, args=(there, engine, job), daemon=True)
            worker.start()
            there.close()
            workers.append((worker, here))
            result = Result(engine)
            _receive(worker, here, result, "the first run", _seconds_to_build(results))
            results.append(result)
        able = [(result, *each) for result, each in zip(results, workers, strict=True) if not result.reason]
        turns = ROUNDS * len(able)
        for turn in range(turns):
            round_number, place = divmod(turn, len(able))
            result, worker, here = able[(place + round_number) % len(able)]  # another one is first in each round
            if not result.reason:
                time.sleep(PAUSE)
                here.send(seconds / turns)
                _receive(worker, here, result, "a run", seconds + _seconds_to_build(results))
            progress((turn + 1) / turns)
    finally:
        for worker, here in workers:
            here.close()  # ends it
            worker.join(5)
            if worker.is_alive():
                worker.kill()
    _compare(results)
    return results


def _seconds_to_build(results: Sequence[Result]) -> float:
    """The time after which an engine that is not done with its first run hangs."""
    return BUILD_SECONDS + BUILD_FACTOR * (results[0].build if results else 0.0)


def _receive(worker: Any, connection: Any, result: Result, work: str, seconds: float) -> None:
    """Take what a worker sends, or the reason why it sends nothing: it ends, hangs, or takes too much memory."""
    sent: dict[str, Any]
    try:
        watch(worker.pid, connection.poll, work, seconds, max_memory())
        sent = connection.recv()
    except EngineFailureError as failure:
        worker.kill()
        sent = {"reason": str(failure)}
    except (EOFError, OSError):
        worker.join(ENDING_SECONDS)
        sent = {"reason": f"{ending(worker.exitcode or 0)} during {work}"}
    result.times += sent.pop("times", [])
    for name, value in sent.items():
        setattr(result, name, value)


def _compare(results: Sequence[Result]) -> None:
    able = [result for result in results if not result.reason]
    for result in able:
        pairs = list(zip(result.outputs, able[0].outputs, strict=False))
        arrays = [(a, b) for a, b in pairs if isinstance(b, np.ndarray) and b.dtype.kind in "fiub"]
        if arrays and all(a.shape == b.shape for a, b in arrays):
            result.difference = max(difference(a, b) for a, b in arrays)


# ---------------------------------------------------------------------------------------------------------------------
# In the process of an engine


def _work(connection: Any, engine: Engine, job: Job) -> None:
    """Run a job whenever the connection asks for it, until that is closed."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # engines print to them
        os.dup2(nowhere, stream)
    try:
        before, start = resident(os.getpid()), perf_counter()
        run = _prepared(engine, job)
        outputs = run()
        connection.send({"build": perf_counter() - start, "outputs": outputs, "memory": resident(os.getpid()) - before})
        while True:
            seconds = connection.recv()
            run()  # caches are cold after the turns of others
            times: list[float] = []
            start = perf_counter()
            while not times or perf_counter() - start < seconds:
                before_run = perf_counter()
                run()
                times.append(perf_counter() - before_run)
            connection.send({"times": times, "memory": resident(os.getpid()) - before})
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
    except Exception as error:  # whatever an engine raises is the reason why it cannot run the model
        kind = NotSupportedError if isinstance(error, NotSupportedError) else OperationError
        connection.send({"reason": " ".join(str(error).split()) or type(error).__name__, "error": kind})


def _prepared(engine: Engine, job: Job) -> Callable[[], list[Any]]:
    """What runs the model once."""
    if engine.name == BASE_LINE:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        itself = onnxruntime.InferenceSession(job.model, options, providers=["CPUExecutionProvider"])
        return lambda: list(itself.run(None, job.feed))
    from ..context import ml
    from ..onnx.session import InferenceSession

    declare(job.operations)
    context = ml.create_context(device=engine.device, backend=engine.backend, precision=job.precision)  # type: ignore[arg-type]
    session = InferenceSession(Path(job.model), context, specialise="always", **job.options)
    return lambda: list(session.run(None, job.feed))
