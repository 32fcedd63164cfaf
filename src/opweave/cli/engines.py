"""Engines that run one model in separate processes, and are measured alternately."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter, process_time, sleep
from typing import TYPE_CHECKING, Any

import numpy as np

from ..backends.isolation import EngineFailureError, ending, max_memory, resident, watch
from ..support.agreement import difference
from ..support.errors import MLError, NotSupportedError, OperationError
from ..support.processors import chosen_threads
from ..support.ratios import Quartiles, factor, quartiles
from .common import declare

if TYPE_CHECKING:
    from ..onnx.session.session import InferenceSession

Run = Callable[[Mapping[str, Any]], Sequence[Any]]
Choices = Callable[[], Mapping[str, Mapping[str, Any]]]

BASE_LINE = "ONNX Runtime itself"
"""The engine that the others are compared with: ONNX Runtime, without Opweave."""

PROGRAM_BASE_LINE = "PyTorch itself"
"""The engine that the others are compared with for a program of PyTorch: eager PyTorch."""

AUTO = "auto"
"""The session of a program that passes nothing but the model. Other engines compile the model, whatever its shapes."""

ROUNDS = 7
"""Number of turns of each engine."""

BUILD_SECONDS = 120.0
"""An engine hangs if its first run takes longer than `BUILD_SECONDS + BUILD_FACTOR * t`, where t is the time of ONNX Runtime's
first run. An estimate: compilers for GPUs take seconds, and software in place of a GPU runs a thousand times slower."""

BUILD_FACTOR = 2000
"""See `BUILD_SECONDS`."""

ENDING_SECONDS = 5.0
"""Time to wait for the end of a process that has closed its connection."""

QUIET_SECONDS, QUIET_SHARE = 0.1, 0.02
"""An engine is quiet if its process takes at most QUIET_SHARE of a processor for QUIET_SECONDS. Measured: idle processes of
engines take 0.1%. After a run, a thread of ONNX Runtime takes 35 to 60 ms of a processor while it waits for more work; on a
busy machine this takes up to 200 ms, and the process gets no processor for 20 ms in between."""

SETTLE_SECONDS = 3.0
"""Maximum wait for an engine to become quiet; one whose threads never stop is measured anyway."""


@dataclass(frozen=True)
class EngineRow:
    """An engine that may run a model: the name that `--engines` takes, the device, and the back end that drives it."""

    name: str
    device: str = ""
    backend: str = ""


@dataclass(frozen=True)
class Job:
    """A model to run.

    Attributes:
        feeds: the inputs of the calls, in turn.
        options: of Opweave's session.
        operations: the module of the user's operations.
        threads: maximum number of threads of an operation; None for the default of each engine.
        fixed: sizes of dimensions by name that `fix_shapes` in `options` leads to, for ONNX Runtime itself.
    """

    model: str
    feeds: Sequence[Mapping[str, Any]]
    options: Mapping[str, Any]
    precision: str
    operations: str | None = None
    threads: int | None = None
    fixed: Mapping[str, int] = field(default_factory=dict)


@dataclass
class Result:
    """The measurements of an engine, or the reason why it cannot run the model.

    `turns` are the times of the runs of each turn; a run of several shapes in turn counts as their mean. `choices` has the
    way in which `auto` runs each of the shapes, as text (`SessionChoice.to_dict`). `build` are the seconds until the first
    result; `memory` are the bytes by which its process grew; `difference` is the largest from the first engine's outputs
    (`agreement.difference`), or None if they cannot be compared.
    """

    engine: EngineRow
    reason: str = ""
    error: type[MLError] = OperationError
    turns: list[Sequence[float]] = field(default_factory=list)
    choices: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    build: float = 0.0
    memory: int = 0
    outputs: Sequence[Any] = ()
    difference: float | None = None

    @property
    def chosen(self) -> str:
        """The engines that `auto` has chosen, and whether the model is uncompiled; empty for other engines."""
        return " and ".join(dict.fromkeys(choice["label"] for choice in self.choices.values()))

    @property
    def label(self) -> str:
        """The name of the engine, and of the one that it has chosen."""
        return f"{self.engine.name} = {self.chosen}" if self.chosen else self.engine.name

    @property
    def title(self) -> str:
        """The name of the engine for a sentence."""
        return f"{self.engine.name} ({self.chosen})" if self.chosen else self.engine.name

    @property
    def times(self) -> list[float]:
        """The times of all runs, in seconds."""
        return [seconds for turn in self.turns for seconds in turn]

    @property
    def quartiles(self) -> Quartiles:
        """The lower quartile, the median and the upper quartile of the times."""
        return quartiles(self.times)

    def ratios(self, other: Result) -> Quartiles:
        """The quartiles of the ratios to another engine; each ratio compares the median times of one round."""
        return quartiles([float(np.median(a) / np.median(b)) for a, b in zip(self.turns, other.turns, strict=False)])

    def factor(self, other: Result) -> float:
        """The factor by which the engine is slower than another one, below 1 if it is faster; 1 if that is noise.

        It is noise if the other one is `auto`, and has chosen this engine, or by the rule of `ratios.factor`.
        """
        return 1.0 if other.chosen == self.engine.name else factor(self.ratios(other))


def verdict(results: Sequence[Result]) -> str:
    """The result of a comparison in one sentence: between `auto`, or else the first engine, and the others.

    >>> results = [Result(EngineRow(name), turns=[[seconds]] * 3) for name, seconds in [("a", 2.0), ("b", 1.0), ("c", 1.02)]]
    >>> verdict(results)
    'b is 2.00x faster than a'
    >>> verdict(results[1:])
    'no difference beyond noise between b and c'
    """
    able = [result for result in results if result.turns]
    if len(able) < 2:
        return ""
    own = next((result for result in able if result.engine.name == AUTO), able[0])
    factors = {result.title: result.factor(own) for result in able if result is not own}
    best = min(factors, key=factors.__getitem__)
    equal = [label for label, factor in factors.items() if factor == 1]
    if factors[best] < 1:
        return f"{best} is {1 / factors[best]:.2f}x faster than {own.title}"
    if not equal:
        return f"{own.title} is {factors[best]:.2f}x faster than {best}"
    slower = {label: factor for label, factor in factors.items() if factor > 1}
    rest = "".join(f"; {label} is {factor:.2f}x slower" for label, factor in slower.items())
    return f"no difference beyond noise between {', '.join([own.title, *equal[:-1]])} and {equal[-1]}{rest}"


def engines(
    wanted: Sequence[str] | None, device_name: str | None = None, base_line: str = BASE_LINE
) -> list[EngineRow]:
    """The engines to compare, the base line first, if it has a name; `auto` on a session's device, or on `device_name`.

    `wanted` are names of back ends, of devices, or "auto"; None leaves out software in place of hardware, which is slow, and
    other devices than `device_name`.
    """
    from ..backends import devices

    available = [device for device in devices() if device.available]
    candidates = [EngineRow(AUTO, device_name or "", "auto" if device_name else "")]
    if wanted is None and device_name is not None:
        wanted = [AUTO, device_name]
    for device in available:
        name = device.backend if device.name == "cpu" else device.name
        names = {name, device.name} | (set() if device.provider else {device.backend})
        if (not device.is_software) if wanted is None else not names.isdisjoint(wanted):
            candidates.append(EngineRow(name, device.name, device.backend))
    if wanted is not None:
        choices = {AUTO, *(label for device in available for label in (device.name, device.backend))}
        if unknown := [name for name in wanted if name not in choices]:
            raise NotSupportedError(f"there is no engine {unknown[0]!r} here; there are {', '.join(sorted(choices))}")
        candidates = [engine for engine in candidates if engine.name != AUTO or AUTO in wanted]
    return [EngineRow(base_line), *candidates] if base_line else candidates


def order(count: int) -> list[int]:
    """The index of the engine in each turn: each round begins with another engine, and every other round is reversed.

    So no engine always runs after the same engine.

    >>> order(3)
    [0, 1, 2, 1, 0, 2, 2, 0, 1, 0, 2, 1, 1, 2, 0, 2, 1, 0, 0, 1, 2]
    """
    rounds = [(first, -1 if first % 2 else 1) for first in range(ROUNDS)]
    return [(first + step * place) % count for first, step in rounds for place in range(count)]


def measure(
    candidates: Sequence[EngineRow],
    job: Job,
    seconds: float,
    progress: Callable[[float], None],
    results: list[Result] | None = None,
) -> list[Result]:
    """Run a job on engines alternately, each in a separate process. A turn begins when the engine before is quiet.

    After Ctrl-C, `results` has what was measured until then.
    """
    spawn = get_context("spawn")  # engines must not be forked
    results, workers = [] if results is None else results, []
    try:
        for engine in candidates:
            connection, child_end = spawn.Pipe()
            worker = spawn.Process(target=_work, args=(child_end, engine, job), daemon=True)
            worker.start()
            child_end.close()
            workers.append((worker, connection))
            result = Result(engine)
            _receive(worker, connection, result, "the first run", _seconds_to_build(results))
            results.append(result)
        able = [(result, *item) for result, item in zip(results, workers, strict=True) if not result.reason]
        turns = order(len(able))
        for turn, number in enumerate(turns, 1):
            result, worker, connection = able[number]
            if not result.reason:
                connection.send(seconds / len(turns))
                _receive(worker, connection, result, "a run", seconds + _seconds_to_build(results))
            progress(turn / len(turns))
    finally:
        for worker, connection in workers:
            connection.close()  # the process ends when its connection closes
            worker.join(5)
            if worker.is_alive():
                worker.kill()
    _compare(results)
    return results


def _seconds_to_build(results: Sequence[Result]) -> float:
    return BUILD_SECONDS + BUILD_FACTOR * (results[0].build if results else 0.0)


def _receive(worker: Any, connection: Any, result: Result, work: str, seconds: float) -> None:
    """Take the message of a worker, or the reason why there is none: it ends, hangs, or takes too much memory."""
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
    if times := sent.pop("times", ()):
        result.turns.append(times)
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


def _work(connection: Any, engine: EngineRow, job: Job) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # engines print to them
        os.dup2(nowhere, stream)
    _serve(connection, engine, job)


def _serve(connection: Any, engine: EngineRow, job: Job) -> None:
    """`_work` without the streams. A message is sent once the engine is quiet, so that the next one can run."""
    try:
        before, start = resident(os.getpid()), perf_counter()
        run, choices = _prepare(engine, job)
        outputs = list(run(job.feeds[0]))
        build = perf_counter() - start
        outputs += [output for feed in job.feeds[1:] for output in run(feed)]
        run(job.feeds[0])  # the second call with the same shapes may start to compile them
        _settle()
        first = {"build": build, "outputs": outputs}
        connection.send({**first, "choices": choices(), "memory": resident(os.getpid()) - before})
        while True:
            seconds = connection.recv()
            run(job.feeds[-1])  # caches are cold after the turns of other engines
            times: list[float] = []
            start = perf_counter()
            while not times or perf_counter() - start < seconds:
                before_run = perf_counter()
                for feed in job.feeds:
                    run(feed)
                times.append((perf_counter() - before_run) / len(job.feeds))
            _settle()
            connection.send({"times": times, "choices": choices(), "memory": resident(os.getpid()) - before})
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
    except Exception as error:  # whatever an engine raises is the reason why it cannot run the model
        kind = NotSupportedError if isinstance(error, NotSupportedError) else OperationError
        connection.send({"reason": " ".join(str(error).split()) or type(error).__name__, "error": kind})


def _settle() -> None:
    """Wait until no thread of this process is busy, for a run or spinning while it waits for one."""
    end = perf_counter() + SETTLE_SECONDS
    while perf_counter() < end:
        before, start = process_time(), perf_counter()
        sleep(QUIET_SECONDS)
        if process_time() - before <= QUIET_SHARE * (perf_counter() - start):
            return


def _prepare(engine: EngineRow, job: Job) -> tuple[Run, Choices]:
    """A function that runs the model once, and one that returns the choices of `auto` by shapes."""
    if engine.name == PROGRAM_BASE_LINE:
        from .programs import eager

        declare(job.operations)
        return eager(job.model, job.threads or chosen_threads()), dict
    if engine.name == BASE_LINE:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        if (threads := job.threads or chosen_threads()) is not None:
            options.intra_op_num_threads = threads
        for name, size in job.fixed.items():
            options.add_free_dimension_override_by_name(name, size)
        itself = onnxruntime.InferenceSession(job.model, options, providers=["CPUExecutionProvider"])
        return lambda feed: list(itself.run(None, feed)), dict
    from ..context.context import ml
    from ..onnx.session.session import InferenceSession
    from .graphs import GraphSession, is_saved_graph
    from .programs import ProgramSession, is_program

    declare(job.operations)
    path = Path(job.model)
    target: dict[str, Any] = {"device": engine.device or None, "backend": engine.backend or None}
    target |= {"precision": job.precision, "threads": job.threads}
    if is_program(path):
        program = ProgramSession(path, {}, **target)
        return lambda feed: program.run(None, feed), dict
    if is_saved_graph(path):
        graph = GraphSession(path, {}, **target)
        return lambda feed: graph.run(None, feed), dict
    context = ml.create_context(**target)
    session_options = dict(job.options)
    if engine.name != AUTO:  # "auto" keeps the defaults of sessions
        session_options["specialise"] = "always"
    session = InferenceSession(path, context, **session_options)
    return lambda feed: session.run(None, feed), lambda: _choices_of(session, job) if engine.name == AUTO else {}


def _choices_of(session: InferenceSession, job: Job) -> dict[str, dict[str, Any]]:
    """The ways in which a session runs the feeds of a job, by their shapes."""
    from ..onnx.model.shape_keys import text_of
    from ..onnx.session.parts import parts_of

    parts = parts_of(session)
    shapes = [parts.shapes_in(feed) for feed in job.feeds]
    return {text_of(tuple(sizes.items())): parts.choice(sizes).to_dict() for sizes in shapes}
