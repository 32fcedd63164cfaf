"""Other engines are verified by a child process beside a program, and later builds and sessions follow the verdict."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.rival_engine import add_rival

import opweave as ow
from opweave.compile import engines, uses
from opweave.compile.engines import Measurement
from opweave.compile.uses import Use
from opweave.context.graph import state_of
from opweave.support import disk_cache
from opweave.verification import verifier, watch

TESTS = Path(__file__).parent.parent


def command(options: dict[str, Any]) -> list[str]:
    return [sys.executable, str(Path(__file__).with_name("verified_program.py")), json.dumps(options)]


def environment(cache: Path, **variables: str) -> dict[str, str]:
    path = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
    return {**os.environ, "OPWEAVE_CACHE": str(cache), "OPWEAVE_VERIFY": "1", "PYTHONPATH": path, **variables}


def program(cache: Path, options: dict[str, Any], **variables: str) -> dict[str, Any]:
    """What became of a program; it must be quiet."""
    done = subprocess.run(command(options), capture_output=True, text=True, env=environment(cache, **variables))
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def engine(explained: str) -> str:
    return "".join(line for line in explained.splitlines() if line.startswith("engine"))


def children(mark: str) -> list[int]:
    """The processes whose command has a mark."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "cmdline").read_bytes()
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if b"verifier.serve" in text and mark.encode() in text and state != "Z":
            found.append(int(folder.name))
    return found


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


REFUSED = {
    "wrong": ({"error": 0.3, "wrong_output": 1}, "output 'z' differs by 3e-1 of the largest number"),
    "ends": ({"fault": "signal"}, "ended its process by a signal, SIGSEGV, during compilation"),
    "hangs": ({"fault": "wait", "faulty_run": True}, "hung: a run was not done after 2.00 s"),
    "eats": ({"fault": "memory"}, "is too large: it took "),
    "ends later": (
        {"fault": "signal", "where": "opweave.verification.verifier"},
        "ended its process by a signal, SIGSEGV, while it was measured",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "kind"),
    [("wrong", "graph"), ("ends", "static"), ("hangs", "dynamic"), ("eats", "graph"), ("ends later", "static")],
)
def test_verification_refuses_an_engine_that_fails(fault: str, kind: str, cache: Path) -> None:
    rival, reason = REFUSED[fault]
    trial = 2 if fault == "hangs" else 60
    found = program(cache, {"kind": kind, "rival": rival, "trial": trial})
    assert found["state"]["rival"].startswith(reason), found
    assert f"rival refused: {reason}" in found["explained"]
    assert "what is built from now on follows this" in found["explained"]
    os.environ["OPWEAVE_CACHE"], before = str(cache), os.environ.get("OPWEAVE_CACHE")
    try:
        (kept,) = engines.kept_measurements()
    finally:
        os.environ.pop("OPWEAVE_CACHE") if before is None else os.environ.update(OPWEAVE_CACHE=before)
    assert (kept.chosen, list(kept.refused)) == ("", ["rival"])
    if kind != "dynamic":  # which tells of shapes once they are used
        assert f"rival refused: {reason}" in found["later"]
        assert "from now on" not in found["later"]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "passing"), [("dispatch", "memory"), ("static", "path"), ("dynamic", "bytes")])
def test_verified_engine_is_used_by_later_graphs(kind: str, passing: str, cache: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"kind": kind, "rival": {"remembers": True}}
    if passing == "path":
        options["path"] = str(tmp_path / "model.onnx")
    found = program(cache, options)
    assert (found["is_watched"], found["begun"], found["state"]) == (True, True, {}), found
    assert not engine(found["explained"]).startswith("engine: rival")  # what exists keeps its engine
    assert "rival verified, 0." in found["explained"]
    again = program(cache, options | {"seconds": 1})
    assert not again["begun"]  # it is verified once
    assert "rival, verified, 0." in again["explained"], again["explained"]
    assert "memory: " in again["explained"]
    assert again["is_watched"] == (kind == "dynamic")  # which may get other shapes


def test_clock_does_not_count_a_wait_between_its_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for a processor is read first, and the time after it: a wait between the two ended up in the time alone."""
    waits, now = [0.0, 4.0, 4.0], iter([14.0, 14.5])
    monkeypatch.setattr(verifier, "_waiting_time", lambda: waits.pop(0))
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    monkeypatch.setattr(verifier, "stopped_seconds", lambda: 0.5)
    assert verifier._clock() == 10
    assert not waits


def test_watch_logs_engines_that_fail_to_load(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        use = None

        def watch(self) -> None:
            raise ImportError("there is no such engine")

    monkeypatch.setattr(watch, "PERIOD_SECONDS", 0.01)
    owner, own = Broken(), watch._Watch()
    own.add_later(owner)  # type: ignore[arg-type]
    thread = own._thread
    assert thread is not None
    thread.join(60)
    assert "other engines are not verified: ImportError: there is no such engine" in caplog.text
    assert own._thread is None


@pytest.mark.long
def test_verification_does_not_begin_for_short_use(cache: Path) -> None:
    for kind in ("graph", "static"):
        found = program(cache, {"kind": kind, "threshold": 1000, "seconds": 0.3})
        assert (found["is_watched"], found["begun"]) == (True, False)
        assert "rival not verified yet" in found["explained"]
        names = {"opweave.verification.process", "opweave.onnx.session.verifier", "opweave.backends.isolation"}
        assert names.isdisjoint(found["modules"])


@pytest.mark.long
@pytest.mark.parametrize("how", ["variable", "context"])
def test_verification_can_be_switched_off(how: str, cache: Path) -> None:
    options: dict[str, Any] = {"kind": "graph", "context": {"verify": how == "variable"}}
    found = program(cache, options, OPWEAVE_VERIFY="0" if how == "variable" else "1")
    assert (found["is_watched"], found["begun"]) == (False, False)
    assert "rival not verified: switched off" in found["explained"]


@pytest.mark.long
def test_verification_does_not_begin_without_a_cache(tmp_path: Path) -> None:
    tmp_path.joinpath("file").write_text("")
    found = program(tmp_path / "file", {"kind": "static", "mark": str(tmp_path)})
    assert (found["begun"], found["state"]) == (False, "not verified: there is no cache to keep the verdict")
    found = program(tmp_path / "cache", {"kind": "graph"}, OPWEAVE_CACHE_BYTES="0")
    assert (found["begun"], found["state"]) == (False, "not verified: there is no cache to keep the verdict")


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("ending", ["exit", "kill"])
def test_verification_child_ends_with_program(ending: str, cache: Path, tmp_path: Path) -> None:
    mark = str(tmp_path)
    options: dict[str, Any] = {"kind": "static", "rival": {"fault": "spin"}, "mark": mark, "ends": ending == "exit"}
    if ending == "exit":
        assert program(cache, options)["begun"]
        assert children(mark) == []
    else:
        process = subprocess.Popen(command(options), env=environment(cache))
        while not children(mark):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        deadline = time.monotonic() + 60
        while children(mark) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert children(mark) == []
    assert [path.name for path in cache.iterdir()] == ["verification.lock"]
    os.environ["OPWEAVE_CACHE"], before = str(cache), os.environ.get("OPWEAVE_CACHE")
    try:
        lock = disk_cache.lock("verification")
        assert lock is not None
        assert disk_cache.lock("verification") is None
        disk_cache.unlock(lock)
    finally:
        os.environ.pop("OPWEAVE_CACHE") if before is None else os.environ.update(OPWEAVE_CACHE=before)


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_verification_runs_one_child_per_machine(cache: Path, tmp_path: Path) -> None:
    mark = str(tmp_path)
    options = {"kind": "graph", "rival": {"error": 0.3}, "mark": mark}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command(options), env=environment(cache), **pipes) for _ in range(4)]
    most = 0
    while any(process.poll() is None for process in processes):
        most = max(most, len(children(mark)))
        time.sleep(0.05)
    for process in processes:
        text, errors = process.communicate()
        assert (process.returncode, errors) == (0, "")
        assert list(json.loads(text)["state"]) == ["rival"]
    assert most == 1


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_verification_child_survives_exit_of_fork(cache: Path) -> None:
    found = program(cache, {"kind": "graph", "rival": {"error": 0.3}, "forks": True})
    assert found["state"] == {"rival": "output 'y' differs by 3e-1 of the largest number"}


# ---------------------------------------------------------------------------------------------------------------------
# In this process


class Owner:
    def ask_use(self) -> None:
        pass

    def verification(self, key: Any, sample: Any) -> str:
        return "never"


def test_use_samples_inputs_after_threshold() -> None:
    owner = Owner()
    use, x = Use(owner, 1), np.float32([1, 2])
    use.note("a", ["x"], [x])
    assert (use.pop_use(), use.pop_use(), use.sample) == ("a", None, None)
    use.count("a", uses.THRESHOLD_SECONDS / 2)
    use.note("a", ["x"], [x])
    assert use.sample is None
    use.count("a", uses.THRESHOLD_SECONDS / 2)
    use.note("b", ["x"], [x])
    assert use.sample is None
    use.note("a", ["x"], [x])
    x[0] = 7
    assert use.sample is not None
    array, shape = use.sample[1]["x"]
    assert (array.tolist(), shape) == ([1, 2], (2,))
    assert not use.is_over
    use.end("a", "not verified: why")
    assert (use.state("a"), use.sample, use.is_over) == ("not verified: why", None, True)


def test_use_of_unique_shapes_ends() -> None:
    owner = Owner()
    use = Use(owner, 4)
    for number in range(uses.MAX_PERIODS + 1):
        assert not use.is_over
        use.count(number, 1.0)
    assert (use.is_over, len(use._seconds)) == (True, uses.MAX_SHAPES)
    del owner
    assert use.owner() is None


def test_large_inputs_are_drawn_from_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uses, "SAMPLE_BYTES", 4096)
    monkeypatch.setattr(uses, "DRAWN_ELEMENTS", 100)
    large = np.random.default_rng(0).integers(5, 9, (50, 60)).astype(np.int64)
    floats = np.random.default_rng(0).uniform(2, 3, (8, 16)).astype(np.float32)
    sample = uses.sample_of({"large": large, "floats": floats, "one": np.float32(4)})
    assert sample["large"][0].size <= 100
    first, second = verifier.feeds(sample)
    for feed in (first, second):
        assert {name: (a.dtype, a.shape) for name, a in feed.items()} == {
            "large": (np.int64, (50, 60)),
            "floats": (np.float32, (8, 16)),
            "one": (np.float32, ()),
        }
        assert (feed["large"].min(), feed["large"].max()) == (5, 8)
        assert sorted(feed["floats"].ravel()) == sorted(floats.ravel())
    assert (first["floats"] == floats).all()
    assert (second["floats"] != floats).any()


def test_operations_of_the_user_are_not_verified(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    add_rival(monkeypatch, tmp_path)

    @ow.op
    def own(self: Any, x: ow.MLOperand) -> ow.Desc:
        return x.desc

    own.kernel("cpu", lambda x, out: np.copyto(out, x))
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="cpu"))
    x = builder.input("x", "float32", [4])
    graph = builder.build({"y": builder.neg(own(x, label="here"))})
    assert state_of(graph).verification((), {}) == "own 'here' is an operation of your own; tune() verifies it"


@pytest.mark.parametrize(
    ("seconds", "builds", "memory", "chosen"),
    [
        ({"own": 1e-3, "rival": 0.5e-3}, (0.1, 0.1), (10, 20), "rival"),
        ({"own": 1e-3, "rival": 0.97e-3}, (0.1, 0.1), (10, 20), ""),  # too little
        ({"own": 1e-3, "rival": 0.9e-3}, (0.1, 2.0), (10, 20), ""),  # the build takes longer than that saves
        ({"own": 1e-3, "rival": 0.5e-3}, (0.1, 0.1), (10, 900), ""),
    ],
)
def test_verification_counts_time_building_and_memory(
    seconds: dict[str, float], builds: tuple[float, float], memory: tuple[int, int], chosen: str
) -> None:
    names = ("own", "rival")
    built, taken = dict(zip(names, builds, strict=True)), {n: m * 2**20 for n, m in zip(names, memory, strict=True)}
    rounds = {name: [each] * verifier.ROUNDS for name, each in seconds.items()}
    found, note = verifier._choose("own", [rounds, rounds], built, taken)
    assert (found, bool(note)) == (chosen, builds[1] > 1 or memory[1] > 100)


@pytest.mark.parametrize("value", ["2", "yes"])
def test_opweave_verify_must_be_0_or_1(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPWEAVE_VERIFY", value)
    with pytest.raises(ow.ValidationError, match=f"OPWEAVE_VERIFY must be 0 or 1, got '{value}'"):
        ow.ml.create_context(device="reference")
    monkeypatch.delenv("OPWEAVE_VERIFY")
    with pytest.raises(ow.ValidationError, match="verify must be True or False, got 2"):
        ow.ml.create_context(device="reference", verify=2)  # type: ignore[arg-type]


def test_measurement_states() -> None:
    plain = Measurement("", "a graph", "", {}, {}, 0, "", "", note="rival not verified: not expected to be faster: 1")
    assert plain.reason_on("own") == "own; rival not verified: not expected to be faster: 1"
    found = Measurement("", "", "rival", {"own": 1.0, "rival": 0.7, "slow": 1.5}, {"wrong": "it is"}, 3, "", "")
    times = "own 1.00 s, rival 700.00 ms, slow 1.50 s"
    assert found.reason == f"rival, verified, 0.7x; slow verified, 1.5x; {times}; wrong refused: it is"


def test_use_is_watched_while_it_waits_for_a_child() -> None:
    """Another program's child may take longer than all periods."""
    owner = Owner()
    use, x = Use(owner, 1), np.float32([1, 2])
    use.count("a", uses.THRESHOLD_SECONDS)
    use.note("a", ["x"], [x])
    assert use.sample is not None
    for _ in range(uses.MAX_PERIODS + 1):
        use.count("a", 1.0)
    assert not use.is_over
    use.end("a", "not verified: why")
    assert use.is_over
