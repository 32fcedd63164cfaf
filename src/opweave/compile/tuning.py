"""Measure engines against each other, and keep which one is faster."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..backends import Backend
from ..support.agreement import difference
from ..support.errors import NotSupportedError, OperationError, require
from ..support.formatting import duration
from ..support.names import short_repr
from ..support.progress import report_work
from . import engines
from .engines import Measurement

if TYPE_CHECKING:
    from ..backends.isolation import EngineProcess

Run = Callable[[], Sequence[Any]]
"""Runs a graph once, and returns its outputs."""

Build = Callable[[str, "EngineProcess | None"], Sequence[Run]]
"""Makes the functions that run a graph in a named way, one for each set of inputs. If a process is passed, the engine runs
there."""

REFUSALS = (NotSupportedError, OperationError)

PAUSE_SECONDS = 0.1
"""The pause before each measurement, in which threads of the engine that ran before stop spinning."""

SLICE_SECONDS = 0.1
"""Approximate time for which an engine is called in each round."""

MIN_ROUNDS = 3
"""The fewest rounds to keep: with fewer, a moment in which the machine is slower would decide."""

MARGIN = 0.97
"""An engine replaces another if it takes at most this share of the other's time. A smaller gain is within the noise."""

PAYBACK_RUNS, PAYBACK_SECONDS = 200, 0.5
"""A longer build must pay for itself within this many runs, or within runs of this duration if these are more, as for small
models, which programs run more often. An estimate: the models in docs/engines.md compile tens to hundreds of
milliseconds longer. A model that gains milliseconds a run pays for that in tens of runs; one that gains a few percent of 3 ms,
in hundreds."""

MAX_DIFFERENCE = 1e-3
"""Engines whose results differ by more (`agreement.difference`) are not chosen. An estimate: float32 sums in another order
differ by far less, and most wrong rewrites by more. A dropped rounding to float16, 2^-11 of a number, may pass."""

TRIAL_SECONDS = 30.0
"""An engine hangs if it takes longer than this to compile a graph or to run it, and `TRIAL_FACTOR` times what the first way
took. An estimate."""

TRIAL_FACTOR = 30

TRIAL_RUNS = 2
"""Runs in a trial: an engine may leave something behind that changes the next one."""

MAX_QUANTISED_DIFFERENCE = 0.25
"""`MAX_DIFFERENCE` where intermediates are quantised. An engine that rounds a value to the next step is as accurate, and steps
are large: two engines' results for MiniLM in 8 bits differed by 6 to 20%, and both as much from the results in float32."""


def measure(
    model: str,
    subject: str,
    digest: str,
    ways: Mapping[str, Backend],
    build: Build,
    names: Sequence[str],
    outputs: Sequence[str],
    seconds: float,
    is_quantised: bool = False,
    current: str = "",
    builds: Mapping[str, float] | None = None,
) -> Measurement:
    """Measure the ways to run a graph alternately, each after a pause, and keep which one is the fastest.

    Among the ways within 3% of the fastest, the `current` one stays, or else the first of `names`. If `builds` is given, ways
    are compared by the time of one build and of the runs in which a longer build should pay for itself, and of the ways
    within 3% of the best, the one that builds fastest is chosen. Refusals by `try_ways` are kept, too.

    Args:
        model: the name of the model; empty for a graph.
        subject: the graph, or the shapes of the model's inputs, in a few words.
        digest: of the graph.
        ways: the result of `Backend.tunable`.
        build: makes the function that runs the graph in one of the ways; raises `OperationError` if that is refused.
        names: the names of the ways; the results of each are compared with the results of the first.
        outputs: the names of the outputs, in the order in which all ways return them.
        seconds: approximate time to measure all ways, without compiling.
        is_quantised: whether the graph quantises what it computes; results may differ more then.
        current: the name of the way that has run the graph until now; empty for none of them.
        builds: the seconds that a process needs to build each of the ways; they are read once all are made.

    Raises:
        OperationError: the first way is refused.
        KeyboardInterrupt: the user interrupts it. Measurements until then are kept if they are enough.
    """
    first = names[0]
    plain = replace(default_measurement(model, subject, ways), chosen=first)
    if len(names) == 1:
        return plain
    with report_work(f"tuning {plain.title}: compiling for {', '.join(names)}"):
        runs, refused = try_ways(names, ways, build, outputs, is_quantised)
    plain = replace(plain, refused=refused)
    if len(runs) == 1:
        return replace(plain, is_kept=engines.keep(digest, plain))
    times: dict[str, list[float]] = {name: [] for name in runs}
    try:
        with report_work(f"tuning {plain.title}: measuring {', '.join(runs)}"):
            _alternate(runs, times, seconds)
    finally:
        rounds = min(map(len, times.values()))
        measurement = plain
        if rounds >= MIN_ROUNDS:
            medians = {name: float(np.median(item[:rounds])) for name, item in times.items()}
            ranked = [name for name in (current, *names) if name in medians]
            chosen, note = choose(ranked, medians, builds or {})
            measurement = replace(plain, chosen=chosen, seconds=medians, rounds=rounds, note=note)
            measurement = replace(measurement, is_kept=engines.keep(digest, measurement))
    return measurement


def try_ways(
    names: Sequence[str], ways: Mapping[str, Backend], build: Build, outputs: Sequence[str], is_quantised: bool
) -> tuple[dict[str, Run], dict[str, str]]:
    """Build a graph in several ways, and compare the results for all sets of inputs with the results of the first way.

    Another engine than that of the first way is first tried in a separate process, and refused if it ends the process, hangs,
    takes too much memory or returns other results. If the graph quantises, results may differ more.

    Return the functions that run the ways on the first set of inputs, and why the other ways must not be used.
    """
    most = MAX_QUANTISED_DIFFERENCE if is_quantised else MAX_DIFFERENCE
    refused: dict[str, str] = {}
    first, *others = names
    begin = time.perf_counter()
    built = build(first, None)
    runs = {first: built[0]}
    expected = [dict(zip(outputs, map(np.array, run()), strict=True)) for run in built]
    limit = TRIAL_SECONDS + TRIAL_FACTOR * (time.perf_counter() - begin)
    for name in others:
        try:
            why = _trial(partial(build, name), expected, most, limit) if engines.is_unverified(name, ways) else ""
            if not why:
                built = build(name, None)
                runs[name] = built[0]
                why = _wrong(built, expected, most)
        except REFUSALS as error:
            why = str(error)
        if why:
            refused[name] = why
            runs.pop(name, None)
    return runs, refused


def default_measurement(model: str, subject: str, ways: Mapping[str, Backend]) -> Measurement:
    """The entry of a graph that is not measured: the first of the ways runs it."""
    return Measurement(model, subject, next(iter(ways)), {}, {}, 0, engines.machine(ways), engines.versions(ways))


def check_seconds(seconds: float) -> None:
    """Require a time to measure for."""
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    require(
        is_number and 0 <= seconds < float("inf"), f"tune: seconds must be a number >= 0, got {short_repr(seconds)}"
    )


def choose(ranked: Sequence[str], seconds: Mapping[str, float], builds: Mapping[str, float]) -> tuple[str, str]:
    """Choose the way to run a graph, of which `ranked` has the preferred one first.

    Also say why it is not the fastest, if that is because of the time to build it.
    """
    fastest = min(seconds, key=lambda name: seconds[name])
    runs = max(PAYBACK_RUNS, round(PAYBACK_SECONDS / max(seconds[fastest], 1e-9)))
    totals = {name: runs * item + builds.get(name, 0.0) for name, item in seconds.items()}
    noise = {name: (1 - MARGIN) * runs * item for name, item in seconds.items()}
    equal = [name for name in ranked if totals[name] - noise[name] <= min(totals.values())]
    chosen = min(equal, key=lambda name: builds.get(name, 0.0))  # the first of them where builds do not count
    longer, less = builds.get(fastest, 0.0) - builds.get(chosen, 0.0), seconds[chosen] - seconds[fastest]
    if MARGIN * seconds[chosen] <= seconds[fastest] or longer <= 0:
        return chosen, ""
    return chosen, f"{fastest} takes {duration(longer)} longer to build, and {runs} runs save {duration(runs * less)}"


def _alternate(runs: Mapping[str, Run], times: Mapping[str, list[float]], seconds: float) -> None:
    """Measure functions alternately for about `seconds`, and add the seconds of a call in each round to `times`."""
    counts = count_calls(runs, SLICE_SECONDS)
    end, turn = time.perf_counter() + seconds, 0
    while turn < MIN_ROUNDS or time.perf_counter() < end:
        for name in [*runs][:: 1 if turn % 2 else -1]:  # the first of a pair finds colder caches
            time.sleep(PAUSE_SECONDS)
            times[name].append(seconds_of(runs[name], counts[name]))
        turn += 1


def count_calls(
    runs: Mapping[str, Run], seconds: float, clock: Callable[[], float] = time.perf_counter
) -> dict[str, int]:
    """The number of calls of each function that take about `seconds`."""
    once = {name: min(seconds_of(run, 1, clock), seconds_of(run, 1, clock)) for name, run in runs.items()}
    return {name: max(1, round(seconds / max(item, 1e-7))) for name, item in once.items()}


def seconds_of(run: Run, count: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """The mean time of a call."""
    start = clock()
    for _ in range(count):
        run()
    return max(clock() - start, 1e-9) / count


def _trial(
    build: Callable[[EngineProcess], Sequence[Run]],
    expected: Sequence[Mapping[str, np.ndarray]],
    most: float,
    seconds: float,
) -> str:
    """Compile and run a graph in a separate process, for each set of inputs.

    Return the reason why the engine must not be used, in words that follow its name; empty if it may be. After
    `seconds`, the engine counts as hanging. Results may differ from `expected` by `most`.
    """
    from ..backends.isolation import EngineFailureError, EngineProcess, ProcessLimits  # few programs tune

    with EngineProcess(ProcessLimits(seconds)) as process:
        try:
            built = build(process)
            for _ in range(TRIAL_RUNS):
                if wrong := _wrong(built, expected, most):
                    return wrong
            process.close()
        except EngineFailureError as failure:
            return str(failure)
    return ""


def _wrong(runs: Sequence[Run], expected: Sequence[Mapping[str, np.ndarray]], most: float) -> str:
    """Describe how the results of runs differ from `expected` by more than `most`; empty if they agree."""
    for run, outputs in zip(runs, expected, strict=True):
        for result, (name, correct) in zip(run(), outputs.items(), strict=True):
            array, output = np.asarray(result), f"output {short_repr(name)}"
            if array.shape != correct.shape:
                return f"{output} has shape {list(array.shape)}, not {list(correct.shape)}"
            distance = difference(array, correct)
            if distance == float("inf"):
                return f"{output} has NaN or infinities elsewhere"
            if distance > most:
                mantissa, _, exponent = f"{distance:.0e}".partition("e")
                unit = "of the largest number" if array.dtype.kind == "f" else "of its elements"
                return f"{output} differs by {mantissa}e{int(exponent)} {unit}"
    return ""
