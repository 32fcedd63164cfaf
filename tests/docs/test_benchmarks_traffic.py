"""The benchmarks of sessions in traffic, and of small models: that they run, and how they judge; in small."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from contextlib import redirect_stdout
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from benchmarks import dynamic_models, measure, sizes, small, traffic
from benchmarks.budgets import CUSTOM_TRAFFIC, TRAFFIC
from benchmarks.measure import Ratio
from benchmarks.page import replace_part
from benchmarks.traffic import Report, Traffic, ratios, second_calls


def report(*times: float) -> Report:
    return {"times": list(times), "sums": [1.0] * len(times)}


def command(module: Any) -> Any:
    import typer

    app = typer.Typer()
    app.command()(module.main)
    return app


@pytest.mark.parametrize("name", dynamic_models.MODELS)
def test_traffic_has_the_same_calls_for_the_same_seed(name: str) -> None:
    model = dynamic_models.MODELS[name]
    sizes = model.sizes(7, 60)
    assert sizes == model.sizes(7, 60) != model.sizes(8, 60)
    assert sizes[:20] == model.sizes(7, 20)
    for feed, again, each in zip(model.feeds(7, 3), model.feeds(7, 3), sizes, strict=False):
        for key, (dtype, shape) in model.inputs.items():
            np.testing.assert_array_equal(feed[key], again[key])
            assert feed[key].dtype == dtype
            assert feed[key].shape == tuple(each.get(size, size) for size in shape)


@pytest.mark.parametrize("name", sorted(dynamic_models.MODELS.keys() - {"decoder"}))
@pytest.mark.parametrize("seed", range(3))
def test_traffic_has_recurring_and_unique_shapes(name: str, seed: int) -> None:
    sizes = dynamic_models.MODELS[name].sizes(seed, 60)
    counts = sorted(Counter(map(str, sizes)).values(), reverse=True)
    assert counts[0] >= 10
    assert counts.count(1) >= 5
    assert second_calls(sizes)


def test_traffic_of_a_decoder_grows_by_one_token() -> None:
    sizes = dynamic_models.MODELS["decoder"].sizes(0, 60)
    assert sum(each["past"] == 0 for each in sizes) >= 2  # texts
    for last, each in pairwise(sizes):
        assert each["all"] == each["past"] + each["tokens"]
        assert each["past"] == 0 or (each["tokens"], each["past"]) == (1, last["all"])


@pytest.mark.parametrize("name", dynamic_models.MODELS)
def test_traffic_models_are_valid_and_dynamic(name: str, tmp_path: Path) -> None:
    model = dynamic_models.MODELS[name]
    for write in filter(None, (model.write, model.beside)):
        path = write(tmp_path / "model.onnx")
        if write is model.beside or model.beside is None:
            onnx.checker.check_model(str(path), full_check=True)
        inputs = onnx.load(path, load_external_data=False).graph.input
        assert any(each.dim_param for info in inputs for each in info.type.tensor_type.shape.dim)


def test_traffic_ratios_are_those_of_pairs() -> None:
    sizes = [{"n": n} for n in (1, 2, 1, 2, 1)]
    theirs = [report(9, 1, 1, 1, 1), report(9, 2, 2, 2, 2), report(9, 1, 1, 1, 1)]
    ours = [report(90, 1, 3, 1, 1), report(90, 2, 6, 2, 2), report(90, 1, 3, 1, 1)]
    found = ratios(ours, theirs, sizes)
    assert found["total"] == Ratio(1.5, 1.5, 1.5)  # without the first call
    assert found["with the first"] == Ratio.of([96, 102, 96], [13, 17, 13])
    assert found["95th percentile"].median == pytest.approx(2.7)
    assert found["worst second call"] == Ratio(3, 3, 3)  # at the third position
    assert second_calls(sizes) == [2, 3]
    assert "worst second call" not in ratios(ours, theirs, [{"n": n} for n in range(5)])


def test_traffic_worst_second_call_is_no_outlier_of_one_pair() -> None:
    sizes = [{"n": n} for n in (1, 2, 1, 2)]
    theirs = [report(1, 1, 1, 1)] * 5
    ours = [report(1, 1, 1.2, 1)] * 4 + [report(1, 1, 1.2, 50)]
    assert ratios(ours, theirs, sizes)["worst second call"] == Ratio(1.2, 1.2, 1.2)


@pytest.mark.parametrize("name", TRAFFIC)
def test_traffic_holds_by_the_lower_quartile(name: str) -> None:
    within = {each: Ratio(budget.limit, 9, 9) for each, budget in TRAFFIC.items()}
    beyond = within | {name: Ratio(TRAFFIC[name].limit + 0.01, 9, 9)}
    assert Traffic("m", 0.03, (1e-3, 2e-3), within).cells()[-1] == "yes"
    assert Traffic("m", 0.03, (1e-3, 2e-3), beyond).cells()[-1] == "NO"
    limit = CUSTOM_TRAFFIC["total"].limit
    for low, holds in ((limit, True), (limit + 0.01, False)):
        figures = {"total": Ratio(low, low, low), "with the first": Ratio(9, 9, 9)}
        custom = Traffic("m", 0.03, (1e-3, 2e-3), figures, is_custom=True)
        assert (custom.holds, custom.cells()[-1]) == (holds, "yes" if holds else "NO")
    assert custom.cells()[:3] == ["m", "30 ms", "2 ms"]


def test_traffic_alternates_processes_with_the_same_pause() -> None:
    asked: list[tuple[str, int, float]] = []

    def ask(*what: Any) -> Report:
        asked.append(what)
        return report(*[2.0 if what[0] == "opweave" else 1.0] * 5)

    model = dynamic_models.MODELS["small"]
    found = traffic.measure(model, ask, pause=0.03, calls=5, pairs=3, seed=0)
    ours, theirs = (("opweave", 5, 0.03), ("onnxruntime", 5, 0.03))
    assert asked == [ours, theirs, theirs, ours, ours, theirs]
    assert found.ratios["total"] == Ratio(2, 2, 2)
    assert found.seconds == (8, 4)


def test_traffic_rejects_other_results() -> None:
    def ask(engine: str, calls: int, pause: float) -> Report:
        return report(1, 1, 1) | {"sums": [1.0, 2.0 if engine == "opweave" else 2.1, 3.0]}

    with pytest.raises(ValueError, match=r"results of call 2 differ: their sums are 2 and 2\.1"):
        traffic.measure(dynamic_models.MODELS["small"], ask, pause=0, calls=3, pairs=1, seed=0)


def test_traffic_waits_before_each_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pauses: list[float] = []
    path = dynamic_models.MODELS["small"].write(tmp_path / "small.onnx")
    monkeypatch.setattr("time.sleep", pauses.append)
    traffic.alone("onnxruntime", "small", str(path), "0", "4", "0.1")
    found = json.loads(capsys.readouterr().out)
    assert pauses == [0.1] * 4
    assert len(found["times"]) == len(found["sums"]) == 4


def planted(monkeypatch: pytest.MonkeyPatch, module: Any, functions: dict[str, Any]) -> list[Any]:
    """Measure in this process in place of others; the list gets what each was asked for, and with which variables."""
    asked: list[Any] = []

    def in_process(name: str, function: str, *args: str, timeout: float, extra: dict[str, str]) -> Any:
        assert name == module.__name__
        asked.append((function, *args[:2], extra["OPWEAVE_VERIFY"]))
        text = io.StringIO()
        with redirect_stdout(text):
            functions[function](*args)
        return json.loads(text.getvalue().splitlines()[-1])

    monkeypatch.setattr(module, "in_process", in_process)
    return asked


@pytest.mark.parametrize("name", dynamic_models.MODELS)
def test_traffic_runs_in_small(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results of both engines agree, those of the model with a custom operation, too; nothing is tried in the background."""
    asked = planted(monkeypatch, traffic, {"alone": traffic.alone})
    arguments = ["--model", name, "--pause", "1", "--calls", "4", "--pairs", "1", "--seed", "3", "--no-turns"]
    done = CliRunner().invoke(command(traffic), arguments, env={"COLUMNS": "200"})
    assert done.exit_code in (0, 1), done.output
    assert re.search(rf"{dynamic_models.MODELS[name].title} +1 ms .*\dx \(", done.output)
    assert asked == [("alone", engine, name, "0") for engine in ("opweave", "onnxruntime")] * 2


@pytest.mark.long
def test_small_runs_in_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "SETTLE_SECONDS", 0.0)
    asked = planted(monkeypatch, small, {"alone": small.alone})
    arguments = ["--model", "relu", "--pause", "0", "--pause", "1", "--pairs", "1"]
    done = CliRunner().invoke(command(small), arguments, env={"COLUMNS": "200"})
    assert done.exit_code in (0, 1), done.output
    assert "Relu of 16 elements, in a row" in done.output
    assert "Relu of 16 elements, after 1 ms" in done.output
    assert [(each[0], each[1], each[-1]) for each in asked] == [("alone", "relu", "0")]


def test_traffic_names_unknown_models() -> None:
    for module in (traffic, small):
        done = CliRunner().invoke(command(module), ["--model", "nothing"], env={"COLUMNS": "200"})
        assert done.exit_code == 2
        assert "there is no model nothing" in done.output


def test_traffic_of_shapes_in_turn_has_a_row_for_each_number() -> None:
    found = {"2": {"opweave": [12e-6] * 3, "onnxruntime": [10e-6] * 3}, "3": {"opweave": [9e-6], "onnxruntime": [6e-6]}}
    rows = list(traffic.turn_rows(found))
    assert [row.what for row in rows] == ["two dense layers, 2 shapes in turn", "two dense layers, 3 shapes in turn"]
    assert [row.holds for row in rows] == [True, False]


def test_traffic_calls_shapes_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes: list[tuple[int, ...]] = []

    class Session:
        def run(self, names: None, feed: dict[str, np.ndarray]) -> None:
            shapes.append(feed["x"].shape)

    monkeypatch.setattr(traffic, "session_of", lambda engine, path: Session())
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr(measure, "calls_within", lambda way, seconds: 1)
    monkeypatch.setattr(traffic, "TURNS", (2, 5))
    traffic.in_turn(str(tmp_path / "small.onnx"), "0", "2")
    assert json.loads(capsys.readouterr().out).keys() == {"2", "5"}
    assert len(set(shapes[:20])) == 2
    assert len(set(shapes)) == 5
    assert shapes[-5:] == list(dict.fromkeys(shapes[-5:]))


@pytest.mark.long(rows=2)
@pytest.mark.parametrize("name", small.MODELS)
def test_small_models_agree(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In both engines, measured once."""
    monkeypatch.setattr(small, "SETTLE_SECONDS", 0.0)
    small.alone(name, str(tmp_path / "model.onnx"), "1", "0.0", "0.001")
    onnx.checker.check_model(str(tmp_path / "model.onnx"), full_check=True)


def test_small_rows_have_a_limit_by_how_long_a_call_takes() -> None:
    found = {
        "0.0": {"ours": [12e-6] * 3, "theirs": [10e-6] * 3},
        "0.03": {"ours": [104e-6] * 3, "theirs": [100e-6] * 3},
        "0.1": {"ours": [106e-6] * 3, "theirs": [100e-6] * 3},
    }
    rows = list(small.rows_of("a", found))
    assert [row.what for row in rows] == ["a, in a row", "a, after 30 ms", "a, after 100 ms"]
    assert [row.cells()[-2:] for row in rows] == [["<= 2 us more", "yes"], ["<= 1.05x", "yes"], ["<= 1.05x", "NO"]]


@pytest.mark.parametrize(("calls_within", "expected"), [(1, 1), (2, 2), (1000, measure.RESTED_CALLS)])
def test_alternate_rests_before_each_call(calls_within: int, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    monkeypatch.setattr(measure, "calls_within", lambda way, seconds: calls_within)
    calls: list[str] = []
    ways: Any = {name: lambda name=name: calls.append(name) for name in "ab"}
    times = measure.alternate(ways, pairs=2, rest=0.1)
    assert pauses == [measure.PAUSE_SECONDS, *[0.1] * expected] * 4
    assert "".join(calls[::expected]) in ("abba", "baab")
    assert len(calls) == 4 * expected
    assert [len(values) for values in times.values()] == [2, 2]


@pytest.mark.parametrize("module", [traffic, small])
def test_page_of_sessions_has_written_part(module: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(module.PAGE.read_text())
    replace_part(page, "the figures")
    assert "the figures" in page.read_text()


def test_sizes_are_compared_with_the_static_graph_and_with_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(sizes, "PAIRS", 1)
    rows = [*sizes.repeated(), *(sizes.new(case, 3) for case in sizes.CASES[:3])]
    assert [row.against for row in rows] == ["the static graph"] * 2 + ["ONNX Runtime, run()"] * 3
    assert [row.what for row in rows[2:4]] == [
        "4 dense layers, 12 operations: new sizes, an operation",
        "30 dense layers, 90 operations: new sizes, an operation",
    ]
    assert all(row.budget is not None for row in rows)


@pytest.mark.parametrize("case", sizes.CASES, ids=lambda case: case.title)
def test_sizes_of_a_case_are_different(case: sizes.Case) -> None:
    shapes = case.input_shapes(16)
    assert len(set(shapes)) == 16
    assert all(len(shape) == len(case.shape) for shape in shapes)
