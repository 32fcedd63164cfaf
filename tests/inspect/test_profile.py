"""What `graph.profile` tells: steps, times that add up, bytes, copies, memory."""

from __future__ import annotations

import json
import re
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opweave as ow
from opweave.backends import KernelTime
from opweave.inspect.profile import CopyProfile, KernelTotal, Profile
from opweave.support.errors import DataError, InvalidStateError, ValidationError

CPU = ow.ml.create_context(accelerated=False)
N = 1000


@ow.op
def doubled(self: ow.MLGraphBuilder, x: ow.MLOperand) -> ow.Desc:
    return x.desc


runs: list[np.ndarray] = []


@doubled.kernel("cpu")
def _(x: np.ndarray, out: np.ndarray) -> None:
    runs.append(x.copy())
    np.add(x, x, out=out)


def built(context: ow.MLContext = CPU) -> ow.MLGraph:
    """An abs -> doubled '<b>' -> a sum with weights, under two names."""
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", [N])
    total = builder.add(doubled(builder.abs(x), label="<b>"), builder.constant(np.ones(N, "float32")))
    return builder.build({"y": total, "twin": total})


def test_profile_measures_each_step() -> None:
    profile = built().profile(repeat=5)
    size = 4 * N
    assert [(s.segment, s.title, s.reads, s.writes, s.is_copy) for s in profile.steps] == [
        (0, "abs", size, size, False),
        (1, "doubled '<b>'", size, size, False),
        (2, "add", 2 * size, size, False),
        (2, f"copy float32[{N}]: an output under another name", size, size, True),
    ]
    assert [step.how.split(",")[0] for step in profile.steps] == [
        "ONNX Runtime",
        "Python kernel",
        "ONNX Runtime",
        "copy",
    ]
    assert all(0 < step.minimum <= step.median for step in profile.steps)
    assert sum(step.share for step in profile.steps) == pytest.approx(1)
    assert profile.parts == pytest.approx(sum(step.median for step in profile.steps))
    assert profile.overhead == pytest.approx(profile.median - profile.parts)
    assert profile.steps[0].bandwidth == pytest.approx(2 * size / profile.steps[0].median)
    assert (profile.repeat, profile.device, profile.minimum <= profile.median) == (5, "cpu", True)


def test_copies_are_those_of_one_run() -> None:
    assert built().profile(repeat=3).copies == (CopyProfile("an output under another name", 1, 4 * N),)
    builder = ow.MLGraphBuilder(CPU)
    graph = builder.build({"y": doubled(builder.input("x", "float32", [N]))})
    assert graph.profile(repeat=1).copies == ()


def test_memory_of_intermediates() -> None:
    builder = ow.MLGraphBuilder(CPU)
    value = builder.input("x", "float32", [N])
    for _ in range(4):
        value = doubled(value)
    profile = builder.build({"y": value}).profile(repeat=1)
    piece = -(-4 * N // 64) * 64
    assert (profile.pieces, profile.intermediates, profile.intermediates_alone) == (3, 2 * piece, 3 * piece)
    assert "intermediates: 11.8 KiB in 3 pieces, which share 7.9 KiB" in str(profile)


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_profile_of_one_engine_is_one_step(device: str) -> None:
    builder = ow.MLGraphBuilder(ow.ml.create_context(device=device))
    x = builder.input("x", "float32", [2, N])
    weight = builder.constant(np.ones((N, 3), "float32"))
    profile = builder.build({"y": builder.softmax(builder.matmul(x, weight), 1)}).profile(repeat=3)
    (step,) = profile.steps
    assert (step.title, step.reads, step.writes) == ("matmul, softmax", 4 * (2 * N + 3 * N), 4 * 6)
    assert (step.share, step.median) == (1.0, profile.median)
    assert (profile.pieces, profile.overhead) == (0, 0)
    assert "intermediates" not in str(profile)


def test_inputs_and_outputs_may_be_arrays_or_tensors() -> None:
    graph = built()
    data = np.arange(N, dtype="float32")
    out = CPU.create_tensor("float32", [N], readable=True)
    twin = np.zeros(N, "float32")
    runs.clear()
    graph.profile({"x": CPU.tensor_from(data)}, outputs={"y": out, "twin": twin}, repeat=2)
    assert len(runs) == 2 + 2 * 2  # two before, then each run twice: as a whole, and step by step
    assert all((run == data).all() for run in runs)
    np.testing.assert_array_equal(out.numpy(), 2 * data + 1)
    np.testing.assert_array_equal(twin, out.numpy())
    runs.clear()
    graph.profile({"x": data[::-1]}, repeat=1)
    np.testing.assert_array_equal(runs[0], data[::-1])


def test_random_inputs_suit_their_types() -> None:
    builder = ow.MLGraphBuilder(CPU)
    table = builder.input("table", "float16", [2, 4])
    rows = builder.input("rows", "int64", [50])
    graph = builder.build({"y": builder.gather(doubled(table), rows)})
    runs.clear()
    graph.profile(repeat=1)
    graph.profile(repeat=1)
    assert runs[0].dtype == np.float16
    assert runs[0].std() > 0.1
    np.testing.assert_array_equal(runs[0], runs[-1])  # the same for each profile


def test_tables_for_people_and_numbers_for_tools() -> None:
    profile = built().profile(repeat=2)
    lines = str(profile).splitlines()
    assert lines[0].split() == ["step", "runs", "as", "median", "min", "share", "read", "written", "GB/s"]
    assert lines[2].startswith("1  doubled '<b>'  ")
    assert lines[5:7][0] == ""
    assert lines[6].startswith("whole run: ")
    assert lines[-1] == "copies: 1 x an output under another name, 3.9 KiB"
    numbers = json.loads(json.dumps(profile.to_dict()))
    assert numbers["steps"][1]["title"] == "doubled '<b>'"
    assert numbers["copies"] == [{"reason": "an output under another name", "count": 1, "bytes": 4 * N}]
    assert numbers["overhead"] == profile.overhead
    assert repr(profile) == str(profile)  # what a prompt shows
    html = profile._repr_html_()
    assert "doubled &#x27;&lt;b&gt;&#x27;" in html
    assert html.count("<tr>") == 1 + len(profile.steps)

    class Balanced(HTMLParser):
        open: list[str]

        def handle_starttag(self, tag: str, attrs: Any) -> None:
            if tag != "br":
                self.open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

    parser = Balanced()
    parser.open = []
    parser.feed(html)
    assert parser.open == []


def test_long_titles_are_shortened_in_the_table_only() -> None:
    builder = ow.MLGraphBuilder(CPU)
    graph = builder.build({"y": doubled(builder.input("x", "float32", [2]), label="l" * 500)})
    profile = graph.profile(repeat=1)
    assert max(map(len, str(profile).splitlines())) < 200
    assert "l" * 500 in profile.to_dict()["steps"][0]["title"]


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"repeat": 0}, "profile: repeat must be a positive integer, got 0"),
        ({"repeat": True}, "profile: repeat must be a positive integer, got True"),
        ({"inputs": {}}, r"profile: inputs must hold \['x'\]; got none"),
        ({"inputs": 3}, "profile: inputs must map names to arrays or tensors, got 3"),
        ({"inputs": {"x": np.zeros(3, "float32")}}, r"profile: input 'x' must be float32\[1000\], got shape \[3\]"),
        ({"inputs": {"x": np.zeros(N)}}, "profile: input 'x'"),
        ({"outputs": {"z": np.zeros(N)}}, r"profile: outputs must be among \['y', 'twin'\]; unknown: \['z'\]"),
        ({"outputs": {"y": np.zeros(2 * N, "float32")[::2]}}, "profile: output 'y' must be C-contiguous and aligned"),
        ({"outputs": {"y": np.frombuffer(bytes(4 * N), "float32")}}, "profile: output 'y' is read-only memory"),
        (
            {"inputs": {"x": CPU.create_tensor("int32", [N])}},
            r"profile: input 'x' must be float32\[1000\], got a tensor int32\[1000\]",
        ),
    ],
    ids=lambda value: None if isinstance(value, str) else "-".join(value),
)
def test_profile_rejects_invalid_arguments(arguments: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValidationError, match=rule):
        built().profile(**arguments)


def test_outputs_must_not_overlap_inputs() -> None:
    data = np.zeros(N, "float32")
    with pytest.raises(ValidationError, match="overlaps that of"):
        built().profile({"x": data}, outputs={"y": data})


def test_profile_rejects_destroyed_graph() -> None:
    graph = built()
    graph.destroy()
    with pytest.raises(InvalidStateError, match="the graph is destroyed"):
        graph.profile()


def test_engines_measure_their_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    builder = ow.MLGraphBuilder(CPU)
    x = builder.input("x", "float32", [1, 3, 20, 20])
    weight = builder.constant(np.ones((8, 3, 3, 3), "float32"))
    stem = builder.relu(builder.conv2d(x, weight, label="stem"))
    graph = builder.build({"y": builder.softmax(doubled(stem, label="<b>"), 1, label="head"), "stem": stem})
    assert graph.profile(repeat=1).kernels == ()
    runs.clear()
    profile = graph.profile(repeat=2, detail=True)
    assert all((run == runs[0]).all() for run in runs)
    found = {(kernel.segment, kernel.node, kernel.kernel) for kernel in profile.kernels}
    assert {(0, "stem + relu", "Conv"), (2, "head", "Softmax")} <= found
    assert all(0 <= kernel.minimum <= kernel.median < 1 for kernel in profile.kernels)
    assert "float[1, 8, 18, 18]" in str(profile)
    assert json.dumps(profile.to_dict()["kernels"])
    assert "Softmax" in profile._repr_html_()
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def alternating(context: ow.MLContext, count: int) -> ow.MLGraph:
    """Products and softmaxes in turn, labelled by their number; no engine fuses these."""
    builder = ow.MLGraphBuilder(context)
    value = builder.input("x", "float32", [16, 16])
    for number in range(0, count, 2):
        value = builder.matmul(value, builder.constant(np.ones((16, 16), "float32")), label=f"n{number}")
        value = builder.softmax(value, 1, label=f"n{number + 1}")
    return builder.build({"y": value})


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_profile_of_one_step_lists_ten_slowest_kernels(backend: str) -> None:
    profile = alternating(ow.ml.create_context(device="cpu", backend=backend), 14).profile(repeat=2)
    labels = {f"n{number}" for number in range(14)}
    assert labels <= {kernel.node for kernel in profile.kernels}
    assert profile.kernel_run > 0
    lines = str(profile).splitlines()
    start = lines.index(f"{len(profile.kernels)} kernels, the 10 slowest first:")
    rows = [re.split("  +", line) for line in lines[start + 2 : lines.index("", start)]]
    assert len(rows) == 10
    assert {row[1] for row in rows} <= labels
    shares = [float(row[-1].rstrip("%")) for row in rows]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) <= 100.5  # each is rounded
    assert any(line.startswith("kernels: measured by their engine in separate runs of ") for line in lines)
    assert "totals" not in str(profile)
    assert "10 slowest first" in profile._repr_html_()


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_fused_kernels_have_labels_of_all_operations(backend: str) -> None:
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="cpu", backend=backend))
    x = builder.input("x", "float32", [1, 16, 12, 12])
    weight = builder.constant(np.random.default_rng(0).random((16, 16, 3, 3), "float32"))
    stem = builder.conv2d(x, weight, padding=(1, 1, 1, 1), label="stem")
    total = builder.relu(builder.add(stem, x, label="sum"), label="act")
    mean = builder.reshape(builder.average_pool2d(total, label="pool"), [1, 16], label="flat")
    wide = builder.gelu(
        builder.matmul(mean, builder.constant(np.ones((16, 16), "float32")), label="wide"), label="gelu"
    )
    kernels = builder.build({"y": wide}).profile(repeat=1, detail=True).kernels
    nodes = [kernel.node for kernel in kernels if kernel.node]
    assert set(" + ".join(nodes).split(" + ")) == {"stem", "sum", "act", "pool", "flat", "wide", "gelu"}
    assert [node for node in nodes if "stem" in node] in (["stem + sum + act"], ["stem"])
    assert [node for node in nodes if "wide" in node] in (["wide"], ["flat + wide"])


def test_several_steps_have_kernels_with_detail_only() -> None:
    assert built().profile(repeat=1).kernels == ()
    profile = built().profile(repeat=1, detail=True)
    assert [kernel.node for kernel in profile.kernels] == ["abs", "add"]
    assert "2 kernels, in order:" in str(profile)


def test_save_trace_writes_events_inside_of_runs(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("old")
    profile = built().profile(repeat=3, detail=True)
    profile.save_trace(path)
    assert list(tmp_path.iterdir()) == [path]
    trace = json.loads(path.read_text(encoding="utf-8"))
    assert trace.keys() == {"traceEvents", "displayTimeUnit", "otherData"}
    events = trace["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X"}
    assert all(isinstance(event[key], int) for event in events for key in ("pid", "tid"))
    assert all(isinstance(event["name"], str) and isinstance(event["args"], dict) for event in events)
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    assert tracks == {(1, 1): "run", (1, 2): "steps", (1, 3): "copies", (2, 1): "run", (2, 2): "kernels"}
    assert {e["pid"] for e in events if e["name"] == "process_name"} == {1, 2}
    spans: dict[str, list[str]] = {}
    for pid in (1, 2):
        run, *parts = [event for event in events if event["ph"] == "X" and event["pid"] == pid]
        assert (run["name"], run["ts"]) == ("run", 0)
        end = 0.0
        for event in parts:
            assert event["ts"] == pytest.approx(end)
            assert event["dur"] >= 0
            end = event["ts"] + event["dur"]
            spans.setdefault(tracks[pid, event["tid"]], []).append(event["name"])
        assert end <= run["dur"] + 1e-6
    assert spans == {
        "steps": ["abs", "doubled '<b>'", "add"],
        "copies": [f"copy float32[{N}]: an output under another name"],
        "kernels": ["abs", "add"],
    }
    steps = [event["dur"] for event in events if event["ph"] == "X" and event["pid"] == 1][1:]
    assert steps == pytest.approx([step.median * 1e6 for step in profile.steps], abs=1e-3)


def test_save_trace_rejects_other_names_and_missing_folders(tmp_path: Path) -> None:
    profile = built().profile(repeat=1)
    with pytest.raises(ValidationError, match=r"the name of the trace must end with .json, got 'trace.txt'"):
        profile.save_trace("trace.txt")
    with pytest.raises(DataError, match=r"there is no folder .*none"):
        profile.save_trace(tmp_path / "none" / "trace.json")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(DataError, match=r"folder\.json"):
        profile.save_trace(tmp_path / "folder.json")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.json"]


def test_times_of_kernels_are_added_up() -> None:
    times = [("first", "MatMul", 4e-3), ("head", "Softmax", 1e-3), ("second", "MatMul", 3e-3)]
    kernels = tuple(KernelTime(node, kernel, "float[2]", median, median) for node, kernel, median in times)
    profile = Profile("cpu", 1, (), (), 8e-3, 8e-3, kernels=kernels)
    assert profile.kernel_totals == (
        KernelTotal("MatMul", 2, pytest.approx(7e-3), pytest.approx(7 / 8)),
        KernelTotal("Softmax", 1, pytest.approx(1e-3), pytest.approx(1 / 8)),
    )
    rows = [line.split() for line in str(profile).splitlines()]
    start = rows.index(["totals", "of", "kernels:"])
    assert rows[start + 1 : start + 4] == [
        ["kernel", "calls", "total", "share"],
        ["MatMul", "2", "7.00", "ms", "87.5%"],
        ["Softmax", "1", "1.00", "ms", "12.5%"],
    ]
    totals = json.loads(json.dumps(profile.to_dict()))["kernel_totals"]
    assert [(total["kernel"], total["count"]) for total in totals] == [("MatMul", 2), ("Softmax", 1)]
    assert ">7.00 ms</td>" in profile._repr_html_()


def test_profile_without_kernels_has_no_totals() -> None:
    profile = built().profile(repeat=1)
    assert profile.kernel_totals == ()
    assert profile.to_dict()["kernel_totals"] == []
    assert "totals" not in str(profile) + profile._repr_html_()


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_kernels_of_one_engine(device: str) -> None:
    builder = ow.MLGraphBuilder(ow.ml.create_context(device=device))
    graph = builder.build({"y": builder.softmax(builder.input("x", "float32", [2, 3]), 1)})
    kernels = graph.profile(repeat=1, detail=True).kernels
    assert [(kernel.node, kernel.kernel) for kernel in kernels] == ([("softmax", "Softmax")] if device == "cpu" else [])


def with_names() -> ow.MLGraph:
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="cpu", drafts=True))
    x = builder.input("x", "float32", ["n", 4])
    return builder.build({"y": builder.softmax(x, 1, label="head")})


def test_profile_measures_the_sizes_of_shapes_inputs_or_the_last_run() -> None:
    graph = with_names()
    with pytest.raises(ValidationError, match=r"run it first, or pass inputs, or input_shapes=\{'x': \[n, 4\]\}"):
        graph.profile()
    profile = graph.profile(input_shapes={"x": [5, 4]}, repeat=1)
    assert profile.remarks == ("sizes: n = 5",)
    assert profile.steps[0].reads == 5 * 4 * 4
    assert "sizes: n = 5" in str(profile)
    assert graph.profile({"x": np.ones((3, 4), "float32")}, repeat=1).steps[0].reads == 3 * 4 * 4
    assert graph.profile(repeat=1).remarks == ("sizes: n = 3",)


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"input_shapes": {"x": [N]}, "inputs": {}}, "profile: inputs and input_shapes must not be given both"),
        ({"input_shapes": {"x": [3]}}, r"profile: input 'x' must be float32\[1000\], got the shape \[3\]"),
        ({"input_shapes": {}}, r"profile: input_shapes must hold \['x'\]; got none"),
        ({"input_shapes": [N]}, r"profile: input_shapes must map names to shapes, got \[1000\]"),
        ({"input_shapes": {"x": ["n"]}}, r"profile: input_shapes\['x'\] must be a sequence of integers, got \['n'\]"),
    ],
    ids=["both", "other", "missing", "list", "name"],
)
def test_profile_rejects_input_shapes(arguments: dict[str, Any], rule: str) -> None:
    built().profile(input_shapes={"x": [N]}, repeat=1)
    with pytest.raises(ValidationError, match=rule):
        built().profile(**arguments)
