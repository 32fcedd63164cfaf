"""Models with dynamic dimensions in traffic, in Opweave's session and in ONNX Runtime's: `python -m benchmarks traffic`.

Calls come with shapes that are drawn from a heavy-tailed distribution: some recur, many come once. Each engine runs the same
calls in a new process, alternately (A, B, B, A, …), with a pause before each call; ratios are those of pairs of processes.
A session that has nothing to give to a model must cost nothing, whatever its shapes. Beside it, a small model is called with
two to ten shapes in turn. Writes docs/benchmarks-traffic.md and docs/benchmarks-traffic.json.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer

from .budgets import CUSTOM_TRAFFIC, TRAFFIC
from .dynamic_models import MODELS, DynamicModel, Sizes, register
from .measure import RESTS, Parts, Ratio, Way, alternate, in_process, per_call, tell
from .page import DOCS, Table, machine, replace_part, yes
from .record import record_of
from .rows import HEADER as ROW_HEADER, Row

PAGE, RECORD = DOCS / "benchmarks-traffic.md", DOCS / "benchmarks-traffic.json"

ENGINES = ("opweave", "onnxruntime")

CALLS, PAIRS, SEED = 60, 5, 0

WARM_CALLS = 6
"""The calls of processes that are not measured, and compile the modules that a model needs."""

SECONDS = 600
"""The longest time of a process."""

TURNS = (2, 3, 5, 10)
"""The numbers of shapes that come in turn."""

SETTLE_SECONDS = 1.0
"""In which shapes that recur are compiled, where a session does so."""

HEADER = ["model", "pause", "ONNX Runtime, all calls", *TRAFFIC, "holds"]

Report = dict[str, Any]
"""A process prints the "times" of calls in seconds, and the "sums" of their results."""


@dataclass(frozen=True)
class Traffic:
    """A model in traffic.

    Attributes:
        model: its title.
        pause: seconds before each call.
        seconds: the median time of all calls but the first, in Opweave and in ONNX Runtime.
        ratios: by the names of `TRAFFIC`; those that the calls allow.
        is_custom: whether the model has custom operations, and the limits of `CUSTOM_TRAFFIC`.
    """

    model: str
    pause: float
    seconds: tuple[float, float]
    ratios: Mapping[str, Ratio]
    is_custom: bool = False

    @property
    def holds(self) -> bool:
        """Whether all ratios are within the limits."""
        limits = CUSTOM_TRAFFIC if self.is_custom else TRAFFIC
        return all(limits[name].holds(ratio=ratio) for name, ratio in self.ratios.items() if name in limits)

    def cells(self) -> list[str]:
        """The row as text, see `HEADER`."""
        figures = [str(self.ratios.get(name, "")) for name in TRAFFIC]
        return [self.model, f"{self.pause * 1e3:.0f} ms", f"{self.seconds[1] * 1e3:.3g} ms", *figures, yes(self.holds)]


def second_calls(sizes: Sequence[Sizes]) -> list[int]:
    """The positions of calls whose sizes came once before.

    >>> second_calls([{"n": 1}, {"n": 2}, {"n": 1}, {"n": 1}])
    [2]
    """
    return [k for k, each in enumerate(sizes) if sizes[:k].count(each) == 1]


def ratios(ours: Sequence[Report], theirs: Sequence[Report], sizes: Sequence[Sizes]) -> dict[str, Ratio]:
    """The ratios of reports that come in pairs, by the names of `TRAFFIC`."""

    def ratio(value: Callable[[Report], float]) -> Ratio:
        return Ratio.of([value(each) for each in ours], [value(each) for each in theirs])

    found = {
        "total": ratio(lambda report: sum(report["times"][1:])),
        "with the first": ratio(lambda report: sum(report["times"])),
        "95th percentile": ratio(lambda report: quantiles(report["times"][1:], n=20, method="inclusive")[-1]),
    }
    # Position by position, since the largest ratio of each pair would be noise.
    seconds = [ratio(lambda report, k=k: report["times"][k]) for k in second_calls(sizes)]  # type: ignore[misc]
    if seconds:
        found["worst second call"] = max(seconds, key=lambda each: each.low)
    return found


def measure(
    model: DynamicModel, ask: Callable[[str, int, float], Report], *, pause: float, calls: int, pairs: int, seed: int
) -> Traffic:
    """Run a model in traffic.

    Args:
        model: the model.
        ask: runs it in a process, given the engine, the number of calls, and the pause.
        pause: seconds before each call.
        calls: the number of calls.
        pairs: the number of processes of each engine.
        seed: of the shapes.

    Raises:
        ValueError: the results of the engines differ.
    """
    reports: dict[str, list[Report]] = {engine: [] for engine in ENGINES}
    for turn in range(pairs):
        for engine in ENGINES[:: -1 if turn % 2 else 1]:
            tell(f"{model.title}, pauses of {pause * 1e3:.0f} ms, pair {turn + 1} of {pairs}, {engine}")
            reports[engine].append(ask(engine, calls, pause))
    ours, theirs = (reports[engine] for engine in ENGINES)
    _compare(ours[0]["sums"], theirs[0]["sums"])
    all_but_first = [median(sum(report["times"][1:]) for report in each) for each in (ours, theirs)]
    return Traffic(
        model.title,
        pause,
        (all_but_first[0], all_but_first[1]),
        ratios(ours, theirs, model.sizes(seed, calls)),
        is_custom=model.beside is not None,
    )


def _compare(ours: Sequence[float], theirs: Sequence[float]) -> None:
    differing = [k for k, pair in enumerate(zip(ours, theirs, strict=True)) if not np.isclose(*pair, rtol=1e-3)]
    if differing:
        (k, *_) = differing
        raise ValueError(f"results of call {k + 1} differ: their sums are {ours[k]:.6g} and {theirs[k]:.6g}")


# In separate processes --------------------------------------------------------------------------------------------


def session_of(engine: str, path: Path) -> Any:
    """A session with the defaults of an engine; its modules have been imported."""
    if engine == "opweave":
        import opweave as ow

        return ow.InferenceSession(path, providers=["CPUExecutionProvider"])
    import onnxruntime

    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def alone(engine: str, name: str, path: str, seed: str, calls: str, pause: str) -> None:
    """Run a model in traffic in this process, and print a report."""
    model = MODELS[name]
    feeds = model.feeds(int(seed), int(calls))
    import onnxruntime  # noqa: F401  (so that imports are no part of loading)

    if engine == "opweave":
        import opweave.backends.onnxruntime.model
        import opweave.onnx.session.session  # noqa: F401

        if model.beside:
            register()
    session = session_of(engine, Path(path))
    report: Report = {"times": [], "sums": []}
    for feed in feeds:
        time.sleep(float(pause))
        start = time.perf_counter()
        results = session.run(None, feed)
        report["times"].append(time.perf_counter() - start)
        report["sums"].append(sum(float(np.abs(result).sum(dtype=np.float64)) for result in results))
        del results
    print(json.dumps(report))


def in_turn(path: str, seed: str, pairs: str) -> None:
    """Call the small model with several shapes in turn in this process, and print the seconds a call of each pair."""
    feeds: list[dict[str, np.ndarray]] = []
    for feed in MODELS["small"].feeds(int(seed), 1000):
        if len(feed["x"]) not in [len(each["x"]) for each in feeds]:
            feeds.append(feed)
    sessions = {engine: session_of(engine, Path(path)) for engine in ENGINES}
    found = {}
    for count in TURNS:
        ways = {engine: _cycle(session, feeds[:count]) for engine, session in sessions.items()}
        for way in ways.values():
            per_call(way, 5)
        time.sleep(SETTLE_SECONDS)
        times = alternate(ways, pairs=int(pairs), seconds=0.03)
        found[str(count)] = {engine: [each / count for each in values] for engine, values in times.items()}
    print(json.dumps(found))


def _cycle(session: Any, feeds: Sequence[Mapping[str, np.ndarray]]) -> Way:
    def run() -> None:
        for feed in feeds:
            session.run(None, feed)

    return run


# The page -------------------------------------------------------------------------------------------------------------


def turn_rows(found: Mapping[str, Mapping[str, Sequence[float]]]) -> Iterator[Row]:
    """The rows of the small model."""
    for count, times in found.items():
        what = f"{MODELS['small'].title}, {count} shapes in turn"
        yield Row.of(what, "us", times["opweave"], times["onnxruntime"], "ONNX Runtime, run()", "shapes in turn")


def markdown(rows: Sequence[Traffic], turns: Sequence[Row], calls: int, pairs: int, seed: int) -> str:
    """The tables of docs/benchmarks-traffic.md."""
    limits, custom = (
        ", ".join(f"{name} {budget}" for name, budget in each.items()) for each in (TRAFFIC, CUSTOM_TRAFFIC)
    )
    return f"""On: {machine()}; {calls} calls with seed {seed}, {pairs} pairs of processes.

{Table(HEADER, [row.cells() for row in rows], range(2, len(HEADER) - 1))}

Limits: {limits}; with a custom operation: {custom}.

{Table(ROW_HEADER, [row.cells() for row in turns])}"""


def main(
    model: Annotated[
        list[str] | None, typer.Option(help=f"Of {', '.join(MODELS)}. Default: all; then the page is written.")
    ] = None,
    pause: Annotated[
        list[int] | None,
        typer.Option(min=0, help="Milliseconds before each call. Default: 0, 30 and 100; then the page is written."),
    ] = None,
    calls: Annotated[int, typer.Option(min=3, help="The number of calls of a process.")] = CALLS,
    pairs: Annotated[int, typer.Option(min=1, help="The number of processes of each engine.")] = PAIRS,
    seed: Annotated[int, typer.Option(min=0, help="Of the shapes, and of the values of inputs.")] = SEED,
    turns: Annotated[bool, typer.Option(help="Measure the small model with several shapes in turn, too.")] = True,
) -> None:
    """Compare sessions of models with dynamic dimensions in traffic; exits with 1 if a limit is exceeded.

    Takes about 20 minutes. The page is written with the defaults of --model, --pause and --turns.
    """
    if unknown := set(model or ()) - set(MODELS):
        raise typer.BadParameter(f"there is no model {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}")
    pauses = RESTS if pause is None else [each / 1e3 for each in pause]
    rows: list[Traffic] = []
    parts, steady = Parts(), list[Row]()
    with TemporaryDirectory(prefix="opweave-traffic-") as name:
        folder = Path(name)
        # Nothing is tuned, and nothing tried in the background: the engines alone are compared.
        folder.joinpath("cache").mkdir(mode=0o700)
        extra = {"OPWEAVE_CACHE": str(folder / "cache"), "OPWEAVE_VERIFY": "0"}

        def traffic(each: str) -> None:
            ours = MODELS[each].write(folder / f"{each}.onnx")
            theirs = beside(folder / f"{each}_beside.onnx") if (beside := MODELS[each].beside) else ours
            paths = dict(zip(ENGINES, (ours, theirs), strict=True))

            def ask(engine: str, calls: int, pause: float) -> Report:
                given = (engine, each, str(paths[engine]), str(seed), str(calls), str(pause))
                return in_process("benchmarks.traffic", "alone", *given, timeout=SECONDS, extra=extra)

            for engine in ENGINES:
                ask(engine, min(calls, WARM_CALLS), 0)
            for seconds in pauses:
                rows.append(measure(MODELS[each], ask, pause=seconds, calls=calls, pairs=pairs, seed=seed))

        def several_shapes() -> None:
            path = MODELS["small"].write(folder / "small.onnx")
            given = ("in_turn", str(path), str(seed), str(3 * pairs))
            steady.extend(turn_rows(in_process("benchmarks.traffic", *given, timeout=SECONDS, extra=extra)))

        for each in model or MODELS:
            parts.run(MODELS[each].title, lambda each=each: traffic(each))  # type: ignore[misc]
        if turns:
            parts.run("shapes in turn", several_shapes)
    judged: list[Traffic | Row] = [*rows, *steady]
    for header, kind in ((HEADER, Traffic), (ROW_HEADER, Row)):
        shown = [row for row in judged if isinstance(row, kind)]
        Table(header, [row.cells() for row in shown]).show([row.holds for row in shown])
    parts.end()
    if model is None and pause is None and turns:
        replace_part(PAGE, markdown(rows, steady, calls, pairs, seed))
        record_of(judged, calls=calls, pairs=pairs, seed=seed).write(RECORD)
    raise typer.Exit(not all(row.holds for row in judged))


if __name__ == "__main__":
    functions: dict[str, Callable[..., None]] = {"alone": alone, "in_turn": in_turn}
    functions[sys.argv[1]](*sys.argv[2:])
