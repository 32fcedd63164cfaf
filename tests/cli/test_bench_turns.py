"""`opweave bench` measures engines alternately, each while the others are quiet: planted clocks and engines."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.onnx import model, node

import opweave as ow
from opweave.cli import engines
from opweave.cli.engines import (
    AUTO,
    BASE_LINE,
    QUIET_SECONDS,
    ROUNDS,
    SETTLE_SECONDS,
    EngineRow,
    Job,
    Result,
    order,
    verdict,
)

RUN_SECONDS = 0.004
CHOICES = {"x [1]": {"label": "openvino"}}
BUSY = 0.06
"""How long threads of the planted engine wait in a loop after a run."""


class Machine:
    """A clock, and the processor time of this process, whose threads compute for a while after each run.

    Args:
        share: of a processor that they get meanwhile.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, share: float = 1.0) -> None:
        self.now = self.processor = self.busy_until = 0.0
        self.share = share
        monkeypatch.setattr(engines, "perf_counter", lambda: self.now)
        monkeypatch.setattr(engines, "process_time", lambda: self.processor)
        monkeypatch.setattr(engines, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        busy = min(max(self.busy_until - self.now, 0.0), seconds)
        self.processor += busy * self.share
        self.now += seconds

    def run(self, feed: Any = None) -> list[Any]:
        self.now += RUN_SECONDS
        self.processor += RUN_SECONDS
        self.busy_until = self.now + BUSY / self.share
        return [np.float32([1])]

    @property
    def is_quiet(self) -> bool:
        return self.now >= self.busy_until


class Connection:
    """What a worker answers: each answer with whether the machine was quiet when it was sent."""

    def __init__(self, machine: Machine, turns: Sequence[float]) -> None:
        self.machine, self.turns = machine, list(turns)
        self.sent: list[dict[str, Any]] = []

    def recv(self) -> float:
        if not self.turns:
            raise EOFError
        return self.turns.pop(0)

    def send(self, answer: dict[str, Any]) -> None:
        self.sent.append(answer | {"is_quiet": self.machine.is_quiet})


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6])
def test_bench_order_alternates(count: int) -> None:
    rounds = [order(count)[start : start + count] for start in range(0, ROUNDS * count, count)]
    assert len(rounds) == ROUNDS
    assert all(sorted(each) == list(range(count)) for each in rounds)
    assert {each[0] for each in rounds} == set(range(min(count, ROUNDS)))
    assert len({each[0] for each in rounds[:count]}) == min(count, ROUNDS)


@pytest.mark.parametrize("count", [3, 4, 5, 6])
def test_bench_order_varies(count: int) -> None:
    turns = order(count)
    before: dict[int, list[int]] = {number: [] for number in range(count)}
    for last, number in pairwise(turns):
        before[number].append(last)
    for number, others in before.items():
        most = max(others.count(other) for other in others)
        assert most <= ROUNDS // 2 + 1, f"{number} has its turn after the same engine {most} times"


@pytest.mark.parametrize("share", [1.0, 0.25, 0.1])
def test_bench_settles_when_threads_have_stopped(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a busy machine, where they get a share of a processor, and take longer."""
    machine = Machine(monkeypatch, share)
    machine.run()
    engines._settle()
    assert machine.is_quiet
    assert machine.now <= machine.busy_until + 2 * QUIET_SECONDS


def test_bench_settles_at_once_if_nothing_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    engines._settle()
    assert machine.now == QUIET_SECONDS


def test_bench_settles_on_threads_that_never_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    machine.busy_until = float("inf")
    engines._settle()
    assert SETTLE_SECONDS <= machine.now <= SETTLE_SECONDS + QUIET_SECONDS


@pytest.mark.parametrize("share", [1.0, 0.1])
def test_bench_answers_when_the_engine_is_quiet(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, share)
    monkeypatch.setattr(engines, "_prepare", lambda engine, job: (machine.run, lambda: CHOICES))
    connection = Connection(machine, [2.5 * RUN_SECONDS, 0.0, 10.5 * RUN_SECONDS])
    engines._serve(connection, EngineRow("planted"), Job("", [{}], {}, "float32"))
    first, *turns = connection.sent
    assert all(answer["is_quiet"] and answer["choices"] == CHOICES for answer in connection.sent)
    assert first["build"] == pytest.approx(RUN_SECONDS)  # without pauses
    assert [len(turn["times"]) for turn in turns] == [3, 1, 11]
    assert [seconds for turn in turns for seconds in turn["times"]] == pytest.approx([RUN_SECONDS] * 15)


class Spawn:
    """A context of `multiprocessing` whose processes are planted: they answer at once, and their turns are recorded.

    Args:
        ends: the turn of the second engine in which it ends its process; None for never.
    """

    def __init__(self, ends: int | None = None) -> None:
        self.ends = ends
        self.log: list[str] = []
        self.started = 0

    def Pipe(self) -> tuple[Any, Any]:
        return PlantedConnection(self, self.started), PlantedConnection(self, self.started)

    def Process(self, target: Callable[..., None], args: tuple[Any, ...], daemon: bool) -> Spawn:
        self.started += 1
        return self

    pid, exitcode = os.getpid(), 3

    def start(self) -> None: ...

    def join(self, seconds: float) -> None: ...

    def is_alive(self) -> bool:
        return False


class PlantedConnection:
    def __init__(self, spawn: Spawn, number: int) -> None:
        self.spawn, self.number = spawn, number
        self.turns = 0
        self.asked = True  # for the first run

    def poll(self, seconds: float) -> bool:
        return True

    def send(self, seconds: float) -> None:
        assert not self.asked
        self.spawn.log.append(f"{self.number} begins")
        self.asked = True

    def recv(self) -> dict[str, Any]:
        assert self.asked
        self.asked = False
        self.turns += 1
        if self.number == 1 and self.spawn.ends == self.turns - 1:
            raise EOFError
        self.spawn.log.append(f"{self.number} is quiet")
        outputs = {"outputs": [np.float32([1])]} if self.turns == 1 else {"times": [1.0 + self.number] * 3}
        return {"memory": 1, "choices": {}, **outputs}

    def close(self) -> None: ...


def measured(spawn: Spawn, count: int, monkeypatch: pytest.MonkeyPatch) -> list[Result]:
    monkeypatch.setattr(engines, "get_context", lambda method: spawn)
    found = [EngineRow(BASE_LINE), *(EngineRow(f"engine {number}") for number in range(1, count))]
    return engines.measure(found, Job("", [{}], {}, "float32"), 0.1, lambda share: None)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_bench_waits_until_previous_engine_is_idle(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    spawn = Spawn()
    results = measured(spawn, count, monkeypatch)
    first, turns = spawn.log[:count], spawn.log[count:]
    assert first == [f"{number} is quiet" for number in range(count)]
    assert turns == [f"{number} {what}" for number in order(count) for what in ("begins", "is quiet")]
    assert [len(result.turns) for result in results] == [ROUNDS] * count


def test_bench_continues_without_ended_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    results = measured(Spawn(ends=3), 3, monkeypatch)
    assert [len(result.turns) for result in results] == [ROUNDS, 2, ROUNDS]
    assert results[1].reason == "ended its process with status 3 during a run"


def test_bench_ratios_are_those_of_rounds() -> None:
    """The machine became ten times slower after a round, and the second engine ran more often before: medians mislead."""
    first = Result(EngineRow("a"), turns=[[1.0, 1.0, 9.0], [10.0], [10.0, 11.0, 9.0]])
    second = Result(EngineRow("b"), turns=[[2.0] * 9, [20.0], [20.0]])
    assert second.ratios(first) == (2.0, 2.0, 2.0)
    assert first.ratios(first) == (1.0, 1.0, 1.0)
    assert second.quartiles[1] == 2.0
    assert first.quartiles[1] == 9.0
    second.turns.pop()  # an interrupted round
    assert second.ratios(first) == (2.0, 2.0, 2.0)


@pytest.mark.parametrize("size", [3, "n"])
def test_bench_auto_is_a_session_with_its_defaults(
    size: int | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = model([node("Relu", "x", "y")], {"x": f"float32[{size}]"}, {"y": f"float32[{size}]"})
    path = tmp_path / "relu.onnx"
    path.write_bytes(proto.SerializeToString())
    given: list[dict[str, Any]] = []
    create = ow.InferenceSession.__init__

    def note(self: ow.InferenceSession, model: Any, context: Any, **options: Any) -> None:
        given.append(options)
        create(self, model, context, **options)

    monkeypatch.setattr(ow.InferenceSession, "__init__", note)
    feed = {"x": np.float32([-1, 2, 3])}
    job = Job(str(path), [feed], {}, "float32", threads=1)
    run, choices = engines._prepare(EngineRow(AUTO), job)
    assert run(feed)[0].tolist() == [0, 2, 3]
    (choice,) = choices().values()
    assert (choice["engine"], choice["device"], choice["threads"]) == ("onnxruntime", "cpu", 1)
    run, choices = engines._prepare(EngineRow("onnxruntime", "cpu", "onnxruntime"), job)
    assert run(feed)[0].tolist() == [0, 2, 3]
    assert choices() == {}
    assert given == [{}, {"specialise": "always"}]


@pytest.mark.parametrize(
    ("labels", "label"),
    [
        ([], "auto"),
        (["openvino"], "auto = openvino"),
        (["openvino", "onnxruntime, uncompiled", "openvino"], "auto = openvino and onnxruntime, uncompiled"),
    ],
)
def test_bench_labels_auto_with_chosen_engine(labels: list[str], label: str) -> None:
    choices = {f"x [{number}]": {"label": text} for number, text in enumerate(labels)}
    assert Result(EngineRow(AUTO), choices=choices).label == label


def turns(name: str, ratio: float, noise: float, seed: int, chosen: str = "") -> Result:
    """An engine whose rounds vary, in a machine whose rounds vary more."""
    own, machine = np.random.default_rng(seed), np.random.default_rng(99)
    times = [[ratio * math.exp(own.normal(0, noise) + machine.normal(0, 0.5))] for _ in range(ROUNDS)]
    return Result(EngineRow(name), turns=times, choices={"x [1]": {"label": chosen}} if chosen else {})


@pytest.mark.parametrize("noise", [0.005, 0.05, 0.2])
def test_bench_verdict_of_equal_engines(noise: float) -> None:
    count = sum(
        not verdict([turns("a", 1, noise, seed), turns("b", 1, noise, -seed - 1 + 2**20)]).startswith("no difference")
        for seed in range(300)
    )
    assert count <= 0.03 * 300


def test_bench_verdict_compares_auto() -> None:
    itself, other = turns(BASE_LINE, 1, 0.01, 1), turns("openvino", 0.7, 0.01, 2)
    uncompiled = turns(AUTO, 1, 0.01, 3, "onnxruntime, uncompiled")
    assert verdict([itself, uncompiled, other]) == "openvino is 1.41x faster than auto (onnxruntime, uncompiled)"
    chosen = turns(AUTO, 0.9, 0.01, 4, "openvino")
    equal = "no difference beyond noise between auto (openvino) and openvino; ONNX Runtime itself is 1.12x slower"
    assert verdict([itself, chosen, other]) == equal, "the same engine, whatever was measured"
    assert verdict([itself, chosen]) == "auto (openvino) is 1.12x faster than ONNX Runtime itself"
    assert verdict([itself]) == ""


def test_bench_runs_shapes_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, feeds = Machine(monkeypatch), list[Any]()

    def run(feed: Any) -> list[Any]:
        feeds.append(feed)
        return machine.run()

    monkeypatch.setattr(engines, "_prepare", lambda engine, job: (run, dict))
    connection = Connection(machine, [3 * RUN_SECONDS])
    engines._serve(connection, EngineRow("planted"), Job("", ["a", "b", "c"], {}, "float32"))  # type: ignore[list-item]
    assert feeds == ["a", "b", "c", "a", "c", "a", "b", "c"]
    assert connection.sent[1]["times"] == pytest.approx([RUN_SECONDS])
    assert len(connection.sent[0]["outputs"]) == 3
