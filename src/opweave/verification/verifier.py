"""The child process that verifies other engines (`process`)."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from .. import memory
from ..backends import Backend
from ..backends.isolation import resident
from ..backends.isolation.child import prepare
from ..backends.isolation.messages import receive, send
from ..backends.isolation.pacing import pace_group, stopped_seconds, suspend_pacing
from ..compile import engines, tuning
from ..compile.driver import compile
from ..compile.engines import Measurement
from ..compile.uses import Sample
from ..context.context import MLContext
from ..core.graph import Graph
from ..ops import quantize_linear
from ..support import disk_cache
from ..support.errors import MLError
from ..support.formatting import size
from ..support.names import count_of
from .process import BUSY, LOCK, Begun, GraphTask, Later, Task

if TYPE_CHECKING:
    from ..backends.isolation import EngineProcess

PAUSES = (0.0, 0.1)
"""Pauses before measurements in seconds: programs call a model again at once, or now and then. The slower ratio counts."""

ROUNDS = 9

SLICE_SECONDS = 0.03

REST_SECONDS = 0.09
"""Pause before such calls, and before a warm-up call, so that the program beside it is hardly slower."""

NOISE = 1.05
"""Factor by which a rival must be faster (`tuning.choose`). An estimate: more threads than one change the ratio by as much."""

MEMORY_FACTOR, MEMORY_BYTES = 3, 2**27
"""A rival may take this multiple of the default engine's memory, plus these bytes."""

IDLE_NICENESS = 19

answers: list[BinaryIO] = []


def serve(is_idle: bool, lock: int) -> None:
    """Run the task from the standard input, and answer on the standard output. The end of the input ends the process.

    With `is_idle`, the process has the lowest priority, and pauses. `lock` is the descriptor of a lock that one process
    of the machine may hold; -1 if this process must take the lock.
    """
    with ExitStack() as stack:
        if is_idle:
            stack.enter_context(pace_group())
            _idle()
        _serve(lock)
    os._exit(0)  # without destructors of libraries, whose order at the end of Python is not defined


def _serve(lock: int) -> None:
    requests, stream = prepare()
    answers.append(stream)
    task: Task = receive(requests)
    Thread(target=_end_with_parent, args=(requests,), daemon=True).start()
    held = disk_cache.lock(LOCK) if lock < 0 else lock
    try:
        answer = task.verdict() if held is not None else Later(BUSY)
    except MLError as error:
        answer = f"it fails: {error}"
    send(stream, answer)
    if held is not None:
        disk_cache.unlock(held)


def _idle() -> None:
    """Let this process and its children run only when no other process needs the processor."""
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with suppress(OSError, AttributeError):
        os.nice(IDLE_NICENESS)


def _end_with_parent(requests: BinaryIO) -> None:
    with suppress(OSError):
        requests.read(1)
    os._exit(1)


# ---------------------------------------------------------------------------------------------------------------------
# Graphs


def judge_graph(task: GraphTask) -> Measurement | str:
    """Verify the rivals for a graph, and keep the verdict."""
    graph = task.graph.graph()
    ways = ways_for(task)
    rivals = {name: way for name, way in list(ways.items())[1:] if way.gains(graph)[0]}
    own = next(iter(ways))
    sets = feeds(task.sample)

    def build(name: str, process: EngineProcess | None) -> list[tuning.Run]:
        backend = ways[name] if process is None else process.backend(ways[name])
        preference = task.power_preference
        program = compile(graph, backend, device=task.device, power_preference=preference, fuse=task.fuse)
        runs: list[tuning.Run] = []
        for feed in sets:
            targets = [memory.empty(operand.desc) for operand in graph.outputs.values()]
            runs.append(partial(_call, program.bind([feed[item] for item in graph.inputs], targets), targets))
        return runs

    return judge(
        task,
        "",
        f"a graph of {count_of(len(graph.nodes), 'operation')}",
        engines.digest(graph),
        ways,
        build,
        [own, *rivals],
        list(graph.outputs),
        is_quantised(graph),
    )


def _call(call: Callable[[], None], targets: list[np.ndarray]) -> list[np.ndarray]:
    call()
    return targets


def is_quantised(graph: Graph) -> bool:
    """Whether a graph quantises what it computes."""
    return any(node.op is quantize_linear for node in graph.nodes)


# ---------------------------------------------------------------------------------------------------------------------
# Graphs and models


def ways_for(task: Task) -> dict[str, Backend]:
    """The engines of a task, each with one thread."""
    return {name: way.backend().with_threads(1) for name, way in task.ways.items()}


def context_for(task: Task, ways: Mapping[str, Backend]) -> MLContext:
    """A context like the user's, with one thread."""
    own, *rivals = ways.values()
    device = own.device_named(task.device)
    assert device is not None, task.device
    return MLContext(
        own.beside([rival.name for rival in rivals], device, lambda: rivals), device, task.power_preference
    )


def kept_verdict(task: Task, digest: str, ways: Mapping[str, Backend], subject: str) -> Measurement | None:
    """The verdict that another process has kept meanwhile, or None."""
    return engines.find(lambda: digest, ways, task.machine).get(subject)


def neutral_verdict(task: Task, model: str, subject: str, ways: Mapping[str, Backend], note: str = "") -> Measurement:
    """A verdict that changes nothing."""
    plain = tuning.default_measurement(model, subject, ways)
    return replace(plain, chosen="", machine=task.machine, note=note)


def keep(digest: str, verdict: Measurement) -> Measurement:
    """Keep a verdict."""
    return replace(verdict, is_kept=engines.keep(digest, verdict))


def judge(
    task: Task,
    model: str,
    subject: str,
    digest: str,
    ways: Mapping[str, Backend],
    build: tuning.Build,
    names: Sequence[str],
    outputs: Sequence[str],
    is_quantised: bool,
) -> Measurement:
    """Try the rivals, compare their results and times, and keep the verdict. The default way is the first of `names`."""
    if (verdict := kept_verdict(task, digest, ways, subject)) is not None:
        return verdict
    plain = neutral_verdict(task, model, subject, ways)
    for stream in answers:
        send(stream, Begun(digest, plain, names[1:]))
    builds: dict[str, float] = {}
    taken: dict[str, int] = {}

    def build_and_measure(name: str, process: EngineProcess | None) -> Sequence[tuning.Run]:
        before, start = resident(os.getpid()), _clock()
        calls = build(name, process)
        if process is None:
            calls[0]()
            builds[name], taken[name] = max(_clock() - start, 1e-9), max(resident(os.getpid()) - before, 0)
        return calls

    try:
        runs, refused = tuning.try_ways(names, ways, build_and_measure, outputs, is_quantised)
    except tuning.REFUSALS as error:
        return keep(digest, replace(plain, note=f"{names[0]} fails with such inputs: {error}"))
    verdict = replace(plain, refused=refused)
    if len(runs) > 1:
        with suspend_pacing():
            conditions = _measure(runs)
        chosen, note = _choose(names[0], conditions, builds, taken)
        seconds, kept = tuning.typical_seconds(conditions), {name: taken[name] for name in runs}
        verdict = replace(verdict, chosen=chosen, seconds=seconds, rounds=ROUNDS, note=note, memory=kept)
    return keep(digest, verdict)


def _choose(
    first: str, conditions: Sequence[tuning.Rounds], builds: Mapping[str, float], taken: Mapping[str, int]
) -> tuple[str, str]:
    """The rival that replaces the default engine, empty for none; and the reason why the fastest does not."""
    room = MEMORY_FACTOR * taken[first] + MEMORY_BYTES
    names = list(conditions[0])
    able = [name for name in names if name == first or taken[name] <= room]
    chosen, note = tuning.choose(able, [{name: rounds[name] for name in able} for rounds in conditions], builds, NOISE)
    best, _ = tuning.choose(names, conditions, builds, NOISE)
    if best not in able and not note:
        note = f"{best} takes {size(taken[best])}, more than {size(room)}"
    return ("" if chosen == first else chosen), note


def _measure(runs: Mapping[str, tuning.Run]) -> list[tuning.Rounds]:
    """The seconds of a run in each round, for each of `PAUSES`."""
    conditions: list[tuning.Rounds] = []
    for pause in PAUSES:
        counts = dict.fromkeys(runs, 1) if pause else tuning.count_calls(runs, SLICE_SECONDS, _clock)
        times: dict[str, list[float]] = {name: [] for name in runs}
        for turn in range(ROUNDS):
            for name in tuning.order(runs, turn):
                time.sleep(pause or REST_SECONDS)
                if not pause:
                    runs[name]()
                times[name].append(tuning.seconds_of(runs[name], counts[name], _clock))
        conditions.append(times)
    return conditions


def _clock() -> float:
    """Time without waits of this thread for a processor, and without stops: this process has the lowest priority."""
    waited = _waiting_time()
    while True:
        now = time.perf_counter() - stopped_seconds()
        before, waited = waited, _waiting_time()
        # Read again if the thread has waited between the readings of the clocks: the wait might count or not.
        if waited == before:
            return now - waited


def _waiting_time() -> float:
    """Seconds for which this thread has waited for a processor."""
    if sys.platform == "linux":
        with suppress(OSError, ValueError, IndexError), open("/proc/thread-self/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    return 0.0


# ---------------------------------------------------------------------------------------------------------------------
# Inputs


def feeds(sample: Mapping[str, Sample]) -> list[dict[str, np.ndarray]]:
    """Sets of inputs to compare engines on: the user's, and the user's values in a different order.

    Both sets of a large input are drawn from its sampled values. Integers may be positions, lengths or words, and keep their
    order.
    """
    generator = np.random.default_rng(0)
    sets: list[dict[str, np.ndarray]] = [{}, {}]
    for name, (array, sizes) in sample.items():
        is_whole = array.shape == sizes
        first = array if is_whole else generator.choice(array, sizes)
        second = first
        if first.dtype.kind == "f":
            second = generator.permutation(first.reshape(-1)) if is_whole else generator.choice(array, sizes)
        for feed, value in zip(sets, (first, second), strict=True):
            feed[name] = np.ascontiguousarray(value).reshape(sizes)
    return sets
