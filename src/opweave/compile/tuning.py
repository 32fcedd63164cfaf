"""Measure the engines that can run a graph, and store which is the fastest."""

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
from ..support.ratios import NOISE, Quartiles, factor, quartiles
from . import engines
from .engines import Measurement

if TYPE_CHECKING:
    from ..backends.isolation import EngineProcess

Run = Callable[[], Sequence[Any]]
"""Runs a graph once, and returns its outputs."""

Rounds = Mapping[str, Sequence[float]]
"""The seconds of a run in each round, by way: all ways are measured once in a round."""

Build = Callable[[str, "EngineProcess | None"], Sequence[Run]]
"""Builds a graph in the named way, and returns one function for each set of inputs. If a process is passed, the engine runs in
that process."""

REFUSALS = (NotSupportedError, OperationError)

PAUSE_SECONDS = 0.1
"""The pause before each measurement. Threads of the previous engine stop spinning in this time."""

SLICE_SECONDS = 0.03
"""Approximate time for which an engine is called in each round. Rounds count for more than calls, since the load of a machine
changes: in 4 s there are 10 rounds of three ways."""

MIN_ROUNDS = 5
"""The fewest rounds of a stored measurement: with fewer, slow moments of the machine could decide (`ratios.NOISE`)."""

PAYBACK_RUNS, PAYBACK_SECONDS = 200, 0.5
"""A longer build must pay for itself within this many runs or this total run time, whichever is more runs: programs run small
models more often. An estimate: the models in docs/engines.md take tens to hundreds of milliseconds longer to compile. Models
that gain milliseconds a run pay for that in tens of runs, and models that gain a few percent of 3 ms in hundreds."""

MAX_DIFFERENCE = 1e-3
"""Largest difference (`agreement.difference`) between the results of a chosen engine and of the first. An estimate: float32
sums in a different order differ by far less, and most wrong rewrites by more. A missing rounding to float16 may pass: it
changes a number by a relative 2^-11 at most."""

TRIAL_SECONDS = 30.0
"""An engine hangs if it takes longer than `TRIAL_SECONDS + TRIAL_FACTOR * t` to compile a graph or to run it, where t is the
time of both with the first way. An estimate."""

TRIAL_FACTOR = 30

TRIAL_RUNS = 2
"""Runs in a trial: the first run may leave state behind that changes the second."""

MAX_QUANTISED_DIFFERENCE = 0.25
"""`MAX_DIFFERENCE` for graphs that quantise intermediates. Engines may round an intermediate to either of two steps with equal
accuracy, and a step is large: the results of two engines for MiniLM in 8 bits differed by 6 to 20%, and both were as far
from the float32 results."""


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
    builds: Mapping[str, float] | None = None,
    keep_further: Callable[[Measurement], None] | None = None,
) -> Measurement:
    """Measure the ways to run a graph alternately, each after a pause, and store which `choose` takes.

    Refusals by `try_ways` are stored, too.

    Args:
        model: the name of the model; empty for a graph.
        subject: the graph, or the shapes of the model's inputs, in a few words.
        digest: the digest of the graph.
        ways: the result of `Backend.tunable`.
        build: makes the function that runs the graph in one of the ways; raises `OperationError` if that is refused.
        names: the names of the ways, the default first, then the simplest. The results of the default are the reference for
            the others.
        outputs: the names of the outputs, in the order in which all ways return them.
        seconds: approximate time to measure all ways, without compiling.
        is_quantised: whether the graph quantises what it computes; results may differ more then.
        builds: the seconds that a process needs to build each of the ways. They are read after all ways are built.
        keep_further: called with what is stored, also after an interruption.

    Raises:
        OperationError: the first way is refused, or a way fails after all; nothing is stored.
        KeyboardInterrupt: the user interrupts the measurement. Completed rounds are stored if there are enough.
    """
    first = names[0]
    plain = replace(default_measurement(model, subject, ways), chosen=first)
    if len(names) == 1:
        return plain

    def keep(measurement: Measurement) -> Measurement:
        if (is_kept := engines.keep(digest, measurement)) and keep_further is not None:
            keep_further(measurement)
        return replace(measurement, is_kept=is_kept)

    with report_work(f"tuning {plain.title}: compiling for {', '.join(names)}"):
        runs, refused = try_ways(names, ways, build, outputs, is_quantised)
    plain = replace(plain, refused=refused)
    if len(runs) == 1:
        return keep(plain)
    times: dict[str, list[float]] = {name: [] for name in runs}

    def conclude() -> Measurement:
        rounds = min(map(len, times.values()))
        if rounds < MIN_ROUNDS:
            return plain
        condition = {name: item[:rounds] for name, item in times.items()}
        chosen, note = choose(list(runs), [condition], builds or {})
        return keep(replace(plain, chosen=chosen, seconds=typical_seconds([condition]), rounds=rounds, note=note))

    try:
        with report_work(f"tuning {plain.title}: measuring {', '.join(runs)}"):
            _alternate(runs, times, seconds)
    except KeyboardInterrupt:
        conclude()
        raise
    return conclude()


def try_ways(
    names: Sequence[str], ways: Mapping[str, Backend], build: Build, outputs: Sequence[str], is_quantised: bool
) -> tuple[dict[str, Run], dict[str, str]]:
    """Build a graph in several ways, and compare all results with the results of the first way.

    Engines other than the first way's are tried in a separate process before they run in this one. They are refused if they
    crash, hang, take too much memory or return different results. If the graph quantises, results may differ more.

    Return the functions that run the accepted ways on the first set of inputs, and the reason for each refused way.
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
            why = _try_way(partial(build, name), expected, most, limit) if engines.is_unverified(name, ways) else ""
            if not why:
                built = build(name, None)
                runs[name] = built[0]
                why = _mismatch(built, expected, most)
        except REFUSALS as error:
            why = str(error)
        if why:
            refused[name] = why
            runs.pop(name, None)
    return runs, refused


def default_measurement(model: str, subject: str, ways: Mapping[str, Backend]) -> Measurement:
    """A stand-in for a measurement, which chooses the first of the ways."""
    return Measurement(model, subject, next(iter(ways)), {}, {}, 0, engines.machine(ways), engines.versions(ways))


def check_seconds(seconds: float) -> None:
    """Require a valid number of seconds for a measurement."""
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    require(
        is_number and 0 <= seconds < float("inf"), f"tune: seconds must be a number >= 0, got {short_repr(seconds)}"
    )


def choose(
    names: Sequence[str], conditions: Sequence[Rounds], builds: Mapping[str, float], noise: float = NOISE
) -> tuple[str, str]:
    """Choose the way to run a graph: the first of `names`, unless another way is faster by more than noise.

    In the order of the names, a way replaces the way that is chosen so far if the quartiles of the ratios of their times in
    each round say so (`ratios.factor`), in all conditions. So among equal ways, the default is chosen, or else the simplest.
    A way that takes longer to build must save this time within `PAYBACK_RUNS` or `PAYBACK_SECONDS`. A shorter build is no
    reason to replace a way: builds are measured only once or twice.

    Args:
        names: the names of the ways, the default first, then the simplest.
        conditions: the rounds that were measured in each condition, such as with and without pauses.
        builds: the seconds that a process needs to build each of the ways; empty if builds do not count.
        noise: the argument of `ratios.factor`.

    Returns:
        The name, and a note if the fastest way is not chosen because it takes longer to build, or because its lead is noise.
    """
    seconds = typical_seconds(conditions)
    fastest = min(names, key=seconds.__getitem__)
    runs = max(PAYBACK_RUNS, round(PAYBACK_SECONDS / seconds[fastest]))

    def compare(name: str, other: str, longer: float) -> tuple[float, Quartiles]:
        """The factor between two ways, of which the first takes `longer` to build, and the quartiles of their ratios."""
        extra = max(longer, 0) / runs
        ratios = (
            quartiles([(a + extra) / b for a, b in zip(rounds[name], rounds[other], strict=True)])
            for rounds in conditions
        )
        return max((factor(item, noise), item) for item in ratios)

    def longer_build(name: str, other: str) -> float:
        return builds.get(name, 0.0) - builds.get(other, 0.0)

    chosen = names[0]
    for name in names[1:]:
        if compare(name, chosen, longer_build(name, chosen))[0] < 1:
            chosen = name
    lead, (low, middle, high) = compare(fastest, chosen, 0)
    longer, less = longer_build(fastest, chosen), seconds[chosen] - seconds[fastest]
    note = ""
    if lead < 1 and longer > 0:
        note = f"{fastest} takes {duration(longer)} longer to build, and {runs} runs save {duration(runs * less)}"
        if runs * less > longer:
            note += ": the difference is within noise"
    elif middle < 1 / noise:
        note = f"the lead of {fastest} is noise: {middle:.2f}x ({low:.2f} to {high:.2f})"
    return chosen, note


def typical_seconds(conditions: Sequence[Rounds]) -> dict[str, float]:
    """The seconds of a run in each way.

    For the first way, this is the median in the first condition; for others, it is multiplied by the median of the ratios to
    the first way in rounds, in the worst condition.
    """
    first = next(iter(conditions[0]))
    own = float(np.median(conditions[0][first]))
    ratios = {
        name: [np.median(np.divide(rounds[name], rounds[first])) for rounds in conditions] for name in conditions[0]
    }
    return {name: own * float(max(item)) for name, item in ratios.items()}


def _alternate(runs: Mapping[str, Run], times: Mapping[str, list[float]], seconds: float) -> None:
    """Measure functions alternately for about `seconds`, and add the median seconds of a call in each round to `times`."""
    counts = count_calls(runs, SLICE_SECONDS)
    end, turn = time.perf_counter() + seconds, 0
    while turn < MIN_ROUNDS or time.perf_counter() < end:
        for name in order(runs, turn):
            time.sleep(PAUSE_SECONDS)
            times[name].append(_median_seconds(runs[name], counts[name]))
        turn += 1


def order(runs: Mapping[str, Run], turn: int) -> list[str]:
    """The names of functions in the order of a round; every other round is reversed: the first one finds colder caches."""
    return [*runs][:: 1 if turn % 2 else -1]


def count_calls(
    runs: Mapping[str, Run], seconds: float, clock: Callable[[], float] = time.perf_counter
) -> dict[str, int]:
    """Estimate how many calls of each function take about `seconds`."""
    once = {name: min(seconds_of(run, 1, clock), seconds_of(run, 1, clock)) for name, run in runs.items()}
    return {name: max(1, round(seconds / max(item, 1e-7))) for name, item in once.items()}


def seconds_of(run: Run, count: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """The mean time of a call."""
    start = clock()
    for _ in range(count):
        run()
    return max(clock() - start, 1e-9) / count


def _median_seconds(run: Run, count: int) -> float:
    """The median time of a call: on a busy machine, waits for a processor multiply the mean time of calls."""
    return float(np.median([seconds_of(run, 1) for _ in range(count)]))


def _try_way(
    build: Callable[[EngineProcess], Sequence[Run]],
    expected: Sequence[Mapping[str, np.ndarray]],
    most: float,
    seconds: float,
) -> str:
    """Compile and run a graph in a separate process, for each set of inputs.

    Return the reason why the engine must not be used, as a phrase that follows its name; empty if the engine may be used. The
    engine counts as hanging after `seconds`. Results may differ by `most` from `expected`.
    """
    from ..backends.isolation import EngineFailureError, EngineProcess, ProcessLimits  # few programs tune

    with EngineProcess(ProcessLimits(seconds)) as process:
        try:
            built = build(process)
            for _ in range(TRIAL_RUNS):
                if mismatch := _mismatch(built, expected, most):
                    return mismatch
            process.close()
        except EngineFailureError as failure:
            return str(failure)
    return ""


def _mismatch(runs: Sequence[Run], expected: Sequence[Mapping[str, np.ndarray]], most: float) -> str:
    """Describe the first difference of more than `most` between results and `expected`; empty if there is none."""
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
