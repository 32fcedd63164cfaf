"""The small models of the gate agree with ONNX Runtime; `make models` measures all of them, times and memory as well."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.webgpu_device import gpu_context

from benchmarks.budgets import GATE
from benchmarks.measure import PAUSE_SECONDS
from gate import catalog, measure
from gate.measure import loader
from gate.verdict import HEADER, Verdict
from opweave.support.agreement import difference

ENTRIES = catalog.entries()
SHAPES = 2
"""How many shapes of a model are run here: the first one, and a new one."""


@pytest.mark.long
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("entry", [e for e in ENTRIES if e.small], ids=lambda entry: entry.name)
def test_small_models_agree_with_onnx_runtime(entry: catalog.Entry, backend: str) -> None:
    if backend == "openvino":
        pytest.importorskip("openvino", reason="openvino is not installed")
    try:
        with entry.path(catalog.PACKAGES) as path:
            ours, theirs = loader(f"opweave:{backend}")(path), loader("onnxruntime")(path)
    except FileNotFoundError as error:
        pytest.skip(f"{error}, or python -m gate.packages --small")
    for feed in entry.feeds(theirs.types)[:SHAPES]:
        expected = theirs.call(feed)
        for _ in range(2):  # a shape that comes again may take another way
            found = ours.call(feed)
            assert len(found) == len(expected)
            assert all(difference(a, b) <= GATE["difference"] for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", ["DTLN 2", "Silero VAD"])
def test_on_device_result(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPWEAVE_CACHE", "")
    monkeypatch.setattr(measure, "CALLS", 2)
    try:
        found = measure.on_device(gpu_context().device.name, catalog.entry(name), catalog.PACKAGES)
    except FileNotFoundError as error:
        pytest.skip(f"{error}, or python -m gate.packages --small")
    assert found["difference"] <= GATE["difference"]
    assert found["kernels"] > 5
    assert found["elsewhere"] == []
    assert found["build"] * 1e3 > found["clock"] > 0


def test_catalogue_is_consistent() -> None:
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES)
    assert set(catalog.requirements(small=True)) < set(catalog.requirements(small=False))
    for entry in ENTRIES:
        assert len(entry.sizes) in (1, catalog.SHAPES), entry.name
        for name, input in entry.inputs.items():
            assert all(isinstance(size, int) or size in entry.sizes[0] for size in input.shape), (entry.name, name)


def test_catalogue_inputs_are_reproducible() -> None:
    entry = next(entry for entry in ENTRIES if entry.name == "Piper voice")
    types = {"input": "tensor(int64)", "input_lengths": "tensor(int64)", "scales": "tensor(float)"}
    feeds = entry.feeds(types)
    assert [feed["input"].shape[1] for feed in feeds] == [feed["input_lengths"][0] for feed in feeds]
    assert feeds[0]["scales"].tolist() == [0, 1, 0]
    assert feeds[0]["input"].dtype == np.int64
    assert all(np.array_equal(a, b) for a, b in zip(feeds[0].values(), entry.feeds(types)[0].values(), strict=True))


def test_settle_waits_for_background_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "SETTLE_SECONDS", 0)
    left = [True, True, False]
    measure.Loaded(lambda feed: [], {}, lambda: left.pop(0)).settle()
    assert left == []
    monkeypatch.setattr(measure, "COMPILE_SECONDS", -1)
    with pytest.raises(TimeoutError, match="still being compiled"):
        measure.Loaded(lambda feed: [], {}, lambda: True).settle()


def test_verdict_names_exceeded_limits(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        folder.mkdir()
    np.save(theirs / "0-0-0.npy", np.ones(3, np.float32))
    np.save(ours / "0-0-0.npy", np.full(3, 1.01, np.float32))
    verdict = Verdict("a model")
    verdict.judge_runs(
        {"load": 1.0, "peak_mib": 160.0, "threads": 500}, {"load": 1.0, "peak_mib": 100.0, "threads": 4}, (ours, theirs)
    )
    rested = {"30": [[1.05, 1.0]] * 5, "100": [[1.1, 1.0]] * 4 + [[1.0, 1.0]]}
    steady, new = [[1.2, 1.0]] * 5, [[[2.0, 1.0], [4.0, 1.0], [1.9, 1.0]]]
    verdict.judge_times({"steady": steady, "rested": rested, "new": new})
    assert verdict.faults == [
        "results differ by 0.01",
        "memory 1.60x",
        "500 threads",
        "steady 1.20x",
        "after 100 ms 1.10x",
        "new shapes 2.00x",
        "a new shape 4.00x",
    ]
    assert len(verdict.cells()) == len(HEADER)
    assert dict(zip(HEADER, verdict.cells(), strict=True))["after 30 ms, 100 ms"] == "1.05x, 1.10x"


def test_gate_measures_calls_after_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    calls: list[int] = []

    def call(feed: dict[str, np.ndarray]) -> list[np.ndarray]:
        calls.append(len(pauses))
        return []

    assert measure.rested_call(call, {}, 0.1) >= 0
    assert pauses == [PAUSE_SECONDS, *[0.1] * measure.RESTED_CALLS]
    assert calls == [k + 2 for k in range(measure.RESTED_CALLS)]  # each after its pause


def test_verdict_reports_incomparable_results(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        folder.mkdir()
    np.save(theirs / "0-0-0.npy", np.array([1, np.nan], np.float32))
    verdict = Verdict("a model")
    report = {"load": 1.0, "peak_mib": 100.0, "threads": 4}
    verdict.judge_runs(report, report, (ours, theirs))  # nothing was written
    assert verdict.faults == ["results differ by nan"]
    assert difference(np.array([1.0, np.nan]), np.array([1.0, np.nan])) == 0
    assert difference(np.array([1.0, np.nan]), np.array([1.0, 2.0])) == float("inf")
    assert difference(np.array([1.0, 2.0]), np.array([1.0, np.nan])) == float("inf")
