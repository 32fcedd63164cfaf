"""The commands for ONNX models."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import onnxruntime
import pytest
import support.onnx
from onnx import TensorProto, helper
from PIL import Image
from typer.testing import CliRunner

import opweave as ow
from opweave import cli
from opweave.cli import bench, engines as bench_engines
from opweave.cli.chart import chart
from opweave.cli.common import CliSettings
from opweave.cli.engines import EngineRow, Result, engines
from opweave.cli.inputs import assumption, shapes_in_turn
from opweave.onnx.session.parts import parts_of


def write(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, list[int | str]]],
    outputs: list[str],
    **constants: np.ndarray,
) -> Path:
    values = [(name, *declared) for name, declared in inputs.items()]
    onnx.save(support.onnx.model(nodes, values, dict.fromkeys(outputs, ""), constants), path)
    return path


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """Y = relu(x) + n with a dynamic batch; n is an integer input that is cast."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Cast", ["n"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["r", "f"], ["y"]),
    ]
    inputs: dict[str, tuple[int, list[int | str]]] = {
        "x": (TensorProto.FLOAT, ["batch", 3]),
        "n": (TensorProto.INT64, [3]),
    }
    return write(tmp_path / "pair.onnx", nodes, inputs, ["y"])


@pytest.fixture(params=["nchw", "nhwc"])
def picture(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The mean of each channel of an image."""
    first = request.param == "nchw"
    shape: list[int | str] = ["batch", 3, 4, 6] if first else ["batch", 4, 6, 3]
    node = helper.make_node("ReduceMean", ["image", "axes"], ["means"], keepdims=0)
    axes = np.array([2, 3] if first else [1, 2])
    return write(tmp_path / "picture.onnx", [node], {"image": (TensorProto.FLOAT, shape)}, ["means"], axes=axes)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """Run the command line in this process; what it prints."""
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(CliSettings, "verbose", False)

    def call(*args: object, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["opweave", *map(str, args)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        out, err = capfd.readouterr()
        assert (left.value.code or 0) == code, out + err
        return err if code else out

    return call


def test_run_takes_arrays_and_writes_outputs(run, pair: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    np.save(tmp_path / "x.npy", np.float32([[-1, 0, 2], [3, -4, 5]]))
    np.savez(tmp_path / "all.npz", x=np.float32([[-1, 0, 2]]), n=np.array([10, 20, 30]))
    out = tmp_path / "out.npz"
    text = run("run", pair, "-i", f"x={tmp_path / 'x.npy'}", "-i", f"n={tmp_path / 'all.npz'}", "-o", out)
    np.testing.assert_array_equal(np.load(out)["y"], [[10, 20, 32], [13, 20, 35]])
    assert "[2, 3]" in text
    run("run", pair, "-i", tmp_path / "all.npz", "-o", out)
    np.testing.assert_array_equal(np.load(out)["y"], [[10, 20, 32]])


def test_run_writes_strings_and_any_name(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    values = {name: (TensorProto.STRING, [2]) for name in ("a", "b")}
    nodes = [helper.make_node("Identity", [a], [b]) for a, b in (("a", "file"), ("b", "allow_pickle"))]
    path = write(tmp_path / "s.onnx", nodes, values, ["file", "allow_pickle"])
    np.savez(tmp_path / "in.npz", a=np.array(["x", "yy"]), b=np.array(["", "ü"]))
    text = run("run", path, "-i", tmp_path / "in.npz", "-o", tmp_path / "OUT.NPZ")
    assert re.search(r"file +string +\[2\]", text)
    written = np.load(tmp_path / "OUT.NPZ")
    assert {name: written[name].tolist() for name in written.files} == {
        "file": ["x", "yy"],
        "allow_pickle": ["", "ü"],
    }
    for option in (["run", path, "-o"], ["info", path, "--draw"], ["convert", path], ["compile", path, "-o"]):
        suffix = {"run": "npz", "info": "svg", "convert": "js", "compile": "opweave"}[option[0]]
        assert "there is no folder none" in run(*option, f"none/x.{suffix}", code=1)


def test_info_of_models_without_operations_or_ranks(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    inputs = {"x": (TensorProto.FLOAT, [0, "a b"])}
    empty = write(tmp_path / "empty.onnx", [helper.make_node("Relu", ["x"], ["y"])], inputs, ["y"])
    proto = onnx.load(empty)
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    onnx.save(proto, empty)
    text = run("info", empty)
    assert re.search(r"output +y +tensor\(float\) +not declared\n", text)
    assert "--fix-shapes x=0xSIZE" in text
    constant = write(tmp_path / "constant.onnx", [helper.make_node("Identity", ["c"], ["y"])], {}, ["y"], c=np.zeros(1))
    text = run("info", constant)
    assert "operators\n  none\n" in text
    assert "what runs where, compiled\n" in text
    run("convert", tmp_path / "empty.onnx", tmp_path / "out.onnx", "--fix-shapes", "a b=3")
    session = onnxruntime.InferenceSession(tmp_path / "out.onnx", providers=["CPUExecutionProvider"])
    assert session.run(None, {})[0].shape == (0, 3)


def test_random_inputs_depend_on_the_seed(run, pair: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    results = []
    for seed in (1, 1, 2):
        run("run", pair, "-i", "random", "--seed", seed, "--fix-shapes", "batch=4", "-o", tmp_path / "y.npz")
        results.append(np.load(tmp_path / "y.npz")["y"])
    assert results[0].shape == (4, 3)
    np.testing.assert_array_equal(results[0], results[1])
    assert (results[0] != results[2]).any()


def test_images_are_scaled_to_the_input(run, picture: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    Image.new("RGB", (13, 9), (255, 51, 0)).save(tmp_path / "image.png")
    out = tmp_path / "y.npz"
    run("run", picture, "-i", tmp_path / "image.png", "-o", out)
    np.testing.assert_allclose(np.load(out)["means"], [[1, 0.2, 0]], atol=1e-6)
    run("run", picture, "-i", tmp_path / "image.png", "--mean", "0.5,0.1,0", "--std", "0.5", "-o", out)
    np.testing.assert_allclose(np.load(out)["means"], [[1, 0.2, 0]], atol=1e-6)


def test_labels_name_the_best_classes(run, pair: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    np.savez(tmp_path / "in.npz", x=np.float32([[0, 0, 0]]), n=np.array([1, 5, 3]))
    (tmp_path / "labels.txt").write_text("cat\ndog\nfish\n")
    text = run("run", pair, "-i", tmp_path / "in.npz", "--labels", tmp_path / "labels.txt", "--top", "2")
    lines = [line.split() for line in text.splitlines() if "%" in line]
    scores = np.exp([5, 3]) / np.exp([1, 5, 3]).sum()
    assert lines == [[f"{scores[0]:.2%}", "dog"], [f"{scores[1]:.2%}", "fish"]]
    (tmp_path / "labels.txt").write_text("cat\n")
    text = run("run", pair, "-i", tmp_path / "in.npz", "--labels", tmp_path / "labels.txt", code=1)
    assert "has 1 labels for 3 scores" in text


def test_info_lists_fallback_with_reasons(run, pair: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    text = run("info", pair)
    for words in (
        "[batch, 3]",
        "tensor(int64)",
        "ai.onnx 21",
        "Relu 1",
        "3 nodes, WebNN on cpu",
        "  runs whole on cpu\n",
    ):
        assert words in text
    note = text.index("Dynamic dimensions were taken as 1. Set their sizes: --fix-shapes batch=SIZE")
    assert (
        text.index("what runs where") < note < text.index("sections and reasons may differ") < text.index("section 0")
    )
    assert "taken as 1" not in run("info", pair, "--fix-shapes", "batch=2")
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Unique", ["r"], ["y"])]
    weights = np.ones((5, 7), np.float32)
    path = write(tmp_path / "d.onnx", nodes, {"x": (TensorProto.FLOAT, [3, 3])}, ["y"], weights=weights)
    text = run("info", path)
    whole = "1 of 2 nodes falls back to ONNX Runtime: Unique (the size of its result depends on data)"
    for words in ("35 in 1 tensor", "1 node, ONNX Runtime (fallback)", "1 x Unique: ", whole):
        assert words in text
    assert "runs whole" not in text
    nodes += [helper.make_node("NonZero", ["r"], ["z"])]
    path = write(tmp_path / "e.onnx", nodes, {"x": (TensorProto.FLOAT, [3, 3])}, ["y", "z"])
    text = run("info", path)
    assert "  2 of 3 nodes fall back to ONNX Runtime\n" in text, "each reason is below, once"
    assert text.count("1 x NonZero: ") == 1


def test_info_says_what_a_device_would_run_that_is_not_here(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """The same line as for a device that is here; nothing is compiled."""
    double = helper.make_node("Cast", ["x"], ["d"], to=TensorProto.DOUBLE)
    ends = [helper.make_node("Exp", [name], [f"{name}_end"]) for name in "rd"]
    nodes = [helper.make_node("Relu", ["x"], ["r"]), double, *ends]
    inputs = {"x": (TensorProto.FLOAT, ["rows", 3])}
    mixed = write(tmp_path / "mixed.onnx", nodes, inputs, ["r_end", "d_end"])
    whole = write(tmp_path / "whole.onnx", [nodes[0], ends[0]], inputs, ["r_end"])
    reason = "kernels of this device have no float64"
    line = f"2 of 4 nodes on the processor: Cast ({reason}), Exp ({reason})"
    absent = [device.name for device in ow.devices() if device.name in ("cuda", "gpu") and not device.available]
    if not absent:
        pytest.skip("all devices are here")
    for name in absent:
        first, note, last = run("info", mixed, "--device", name).splitlines()
        assert first == line
        assert note == "Dynamic dimensions were taken as 1. Set their sizes: --fix-shapes rows=SIZE"
        assert last.startswith(f"{name} is not available, so nothing was compiled: ")
        assert run("info", whole, "--device", name, "--fix-shapes", "rows=2").splitlines()[0] == f"runs whole on {name}"
        text = run("info", whole, "--device", name, "--draw", tmp_path / "g.svg", code=1)
        assert "g.svg was not written: only compiled models are drawn" in text
    assert "there is no device 'nothing'" in run("info", whole, "--device", "nothing", code=1)


def test_names_of_models_are_shown_as_they_are(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    name = "[red]x[/red] :boom:"
    nodes = [helper.make_node("Relu", [name], ["[bold]"]), helper.make_node("Neg", ["[bold]"], ["\x1b[31my"])]
    path = write(tmp_path / "[b]m.onnx", nodes, {name: (TensorProto.FLOAT, ["[i]", 3])}, ["\x1b[31my"])
    text = run("info", path)
    assert name in text
    assert "['[i]', 3]" in text
    assert "\\x1b[31my" in text
    assert "\x1b" not in text
    assert name in run("run", path, code=1)
    assert "\\x1b[31my" in run("run", path, "-i", "random")


@pytest.mark.long
def test_bench_measures_both(run, pair: Path) -> None:  # type: ignore[no-untyped-def]
    text = run("bench", pair, "--seconds", "0.05", "--engines", "onnxruntime")
    rows = [line.split() for line in text.splitlines()]
    assert [row[0] for row in rows if row] == [
        *("engine", "ONNX", "onnxruntime", "ratio:", "memory:"),
        rows[5][0],  # the verdict
        "Dynamic",
    ]
    assert rows[2][-1] == "0"  # the largest difference between their outputs
    assert "ratio: to ONNX Runtime itself in the same round, the median and quartiles" in text
    assert "Dynamic dimensions were taken as 1. Set their sizes: --dynamic batch=SIZE" in text
    quick = ("--seconds", "0.05", "--engines", "onnxruntime")
    fixed = run("bench", pair, *quick, "--fix-shapes", "batch=2", "--threads", "1")
    assert "taken as 1" not in fixed
    assert "sessions with fixed shapes: {'batch': 2}\n" in fixed
    in_turn = json.loads(run("bench", pair, *quick, "--dynamic", "batch=2,5", "--json"))
    assert [shapes["x"] for shapes in in_turn["shapes"]] == [[2, 3], [5, 3]]


@pytest.mark.parametrize(
    ("sizes", "source", "assumed"),
    [
        ([], "random", "--dynamic rows=SIZE --dynamic columns=SIZE"),
        (["rows=1,2"], "random", "--dynamic columns=SIZE"),
        (["rows=1,2", "columns=3,4"], "random", ""),
        (["x=1x1,2x1"], "random", ""),
        (["rows=2"], "x.npy", ""),  # the file has 3 columns
    ],
)
def test_bench_advises_on_dimensions_without_sizes(
    sizes: list[str], source: str, assumed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.ones((2, 3), np.float32))
    path = write(
        Path("m.onnx"), [helper.make_node("Neg", ["x"], ["y"])], {"x": (TensorProto.FLOAT, ["rows", "columns"])}, ["y"]
    )
    inputs = parts_of(ow.InferenceSession(path)).inputs
    advice = assumption(shapes_in_turn(inputs, sizes, [source], 0, [0.0], [1.0])[1], "--dynamic")
    assert advice.partition("Set their sizes: ")[2] == assumed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dynamic", "batch=2,5", "--dynamic", "x=1x3"], "each name needs the same number of sizes"),
        (["--dynamic", "batch=2", "--dynamic", "batch=3"], "'batch' is given twice"),
        (["--dynamic", "rows=2"], "there is no input or dimension 'rows', only x, n, batch"),
        (["--dynamic", "batch=0"], "must be NAME=SIZE"),
        (["--dynamic", "batch"], "must be NAME=SIZE"),
        (["--dynamic", "x=2x4"], "the input 'x' has the shape [batch, 3], got [2, 4]"),
        (
            ["--dynamic", "batch=2,3", "-i", "x=x.npy"],
            "the input 'x' must have shape [3, 3], and its source has [2, 3]",
        ),
        (["--threads", "0"], "should be greater than or equal to 1"),
    ],
)
def test_bench_refuses_shapes_that_do_not_fit(  # type: ignore[no-untyped-def]
    run, pair: Path, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(pair.parent)
    np.save("x.npy", np.zeros((2, 3), "float32"))
    code = 1 if "NAME" in message else 2
    assert message in " ".join(run("bench", pair, *arguments, code=code).replace("│", " ").split())


@pytest.mark.parametrize("rounds", [0, 2])
def test_bench_interrupted_shows_measurements(rounds: int, pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(found: Any, job: Any, seconds: float, progress: Any, results: list[Result]) -> None:
        results += [Result(EngineRow("a"), turns=[[1e-3]] * rounds, difference=0.0), Result(EngineRow("b"))]
        raise KeyboardInterrupt

    monkeypatch.setattr(bench_engines, "measure", measure)
    done = CliRunner().invoke(cli.app, ["bench", str(pair)])
    assert done.exit_code == 130
    rows = [line.split()[0] for line in done.output.splitlines() if line]
    assert ("engine" in rows, "a" in rows, "b" in rows) == (rounds > 0, rounds > 0, False)
    assert ("interrupted before an engine was measured" in done.output) == (rounds == 0)
    assert ("interrupted; these are the results until then" in done.output) == (rounds > 0)


@pytest.mark.long
def test_bench_writes_json_and_a_chart(run, pair: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "out.svg"
    text = run("bench", pair, "--seconds", "0.05", "--engines", "onnxruntime", "--json", "--chart", path)
    whole = json.loads(text)
    itself, onnxruntime = whole["engines"]
    assert whole["shapes"] == [{"x": [1, 3], "n": [3]}]
    assert itself["engine"] == "ONNX Runtime itself"
    assert onnxruntime["difference"] == 0
    assert onnxruntime["lower_quartile"] <= onnxruntime["median"] <= onnxruntime["upper_quartile"]
    assert onnxruntime["lower_ratio"] <= onnxruntime["ratio"] <= onnxruntime["upper_ratio"]
    assert (itself["ratio"], itself["chosen"], onnxruntime["chosen"]) == (1, None, None)
    assert onnxruntime["runs"] >= 5
    assert min(onnxruntime["build"], onnxruntime["memory"]) > 0
    texts = [element.text for element in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == "pair.onnx: time of a run"
    assert "onnxruntime" in texts


def test_bench_rows_of_failing_engines_have_reason(capfd: pytest.CaptureFixture[str]) -> None:
    results = [
        Result(
            EngineRow("a"), turns=[[0.8e-3, 2e-3, 3e-3], [2e-3]], choices={"x [1]": {"label": "c", "device": "cpu"}}
        ),
        Result(EngineRow("b<"), reason="no kernel for Det"),
    ]
    bench._print(results, results[0])
    text = capfd.readouterr().out
    assert re.search(r"a = c +2\.00 ms  1\.70 ms to 2\.25 ms  1\.00 \(1\.00 to 1\.00\)", text)
    assert "b< cannot run it: no kernel for Det" in text
    able, unable = (bench._record(result, results[0]) for result in results)
    assert (able["runs"], able["chosen"], able["ratio"]) == (4, "c", 1)
    assert unable["reason"] == "no kernel for Det"
    texts = list(ElementTree.fromstring(chart(results, "t")).iter("{http://www.w3.org/2000/svg}text"))
    assert [text.text for text in texts] == ["t", "a = c", "2.00 ms", "b<", "cannot run it"]


def test_chart_has_room_for_long_names() -> None:
    results = [
        Result(EngineRow(name), reason="no kernel") for name in ("a", "auto = onnxruntime, uncompiled", "b" * 60)
    ]
    for text in ElementTree.fromstring(chart(results, "t")).iter("{http://www.w3.org/2000/svg}text"):
        if text.get("text-anchor") == "end":
            assert float(text.get("x", 0)) > len(text.text or "") * 13 * 0.6  # of 13 pixels, characters are 0.6 wide


@pytest.mark.long
def test_bench_lists_precisions(pair: Path) -> None:
    arguments = "--seconds", "0.05", "--engines", "onnxruntime", "--precision", "tf32"
    error = CliRunner().invoke(cli.app, ["bench", str(pair), *arguments]).exception
    assert isinstance(error, ow.NotSupportedError)
    assert str(error).startswith("no engine runs the model: precision 'tf32': device 'cpu' ")
    assert "only as 'float32'" in str(error)


def test_bench_measures_software_adapter_only_if_named() -> None:
    assert {device.name: device.is_software for device in ow.devices() if device.name in ("cpu", "reference")} == {
        "cpu": False,
        "reference": True,
    }
    assert "reference" not in [engine.name for engine in engines(None)]
    assert "reference" in [engine.name for engine in engines(["reference"])]


def test_bench_names_unknown_engines(run, pair: Path) -> None:  # type: ignore[no-untyped-def]
    assert "there is no engine 'nothing' here; there are auto, cpu" in run(
        "bench", pair, "--engines", "nothing", code=1
    )


def test_convert_output_runs_in_onnxruntime(run, pair: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    out = tmp_path / "out.onnx"
    assert "fix them, as in fix_shapes={'batch': 1}, or on the command line --fix-shapes batch=1" in run(
        "convert", pair, "-o", out, code=1
    )
    assert not out.exists()
    run("convert", pair, "-o", out, "--fix-shapes", "batch=2")
    onnx.checker.check_model(onnx.load(out))
    feed = {"x": np.float32([[-1, 0, 2], [3, -4, 5]]), "n": np.array([1, 2, 3])}
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, feed)[0], [[1, 2, 5], [4, 2, 8]])


def test_convert_takes_files_as_cp_does(run, pair: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    out, folder = tmp_path / "out.onnx", tmp_path / "folder"
    folder.mkdir()
    run("convert", pair, out, "--fix-shapes", "batch=2")
    run("convert", pair, folder, "--fix-shapes", "batch=2")
    run("convert", pair, "-o", tmp_path / "option.onnx", "--fix-shapes", "batch=2")
    assert out.read_bytes() == (folder / "pair.onnx").read_bytes() == (tmp_path / "option.onnx").read_bytes()
    assert "the file to write is missing" in run("convert", pair, code=2)
    assert "is given twice" in run("convert", pair, out, "-o", out, code=2)
    wrong = run("convert", pair, tmp_path / "out.ts", "--fix-shapes", "batch=2", code=2)
    assert "must end in .onnx, .js, .mjs" in wrong.replace("\n", " ").replace("│", "").replace("  ", " ")
    assert not (tmp_path / "out.ts").exists()
    run("convert", pair, "/dev/null", "--fix-shapes", "batch=2")
    before, same = pair.read_bytes(), tmp_path / "link.onnx"
    same.symlink_to(pair)
    for target in (pair, pair.parent, same):
        assert "is the model itself" in run("convert", pair, target, "--fix-shapes", "batch=2", code=2)
    assert pair.read_bytes() == before


def test_convert_keeps_the_engines_operators(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    nodes = [helper.make_node("QuickGelu", ["x"], ["y"], domain="com.microsoft")]
    model, out = tmp_path / "gelu.onnx", tmp_path / "out.onnx"
    proto = support.onnx.model(nodes, {"x": "float32[2]"}, {"y": "float32[2]"}, domains=["com.microsoft"])
    onnx.save(proto, model)
    run("convert", model, out)
    assert "QuickGelu" not in {node.op_type for node in onnx.load(out).graph.node}
    run("convert", model, out, "--operators", "onnxruntime")
    assert [node.op_type for node in onnx.load(out).graph.node] == ["QuickGelu"]
    assert "operators must be one of ['onnx', 'onnxruntime'], got 'ort'" in run(
        *("convert", model, out, "--operators", "ort"), code=1
    )


@pytest.mark.long
def test_errors_are_one_line_and_verbose_shows_more(run, pair: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "bad.onnx").write_bytes(b"\xff\xff")
    (tmp_path / "bad.npy").write_bytes(b"\x93NUMPY")
    (tmp_path / "bad.png").write_bytes(b"")
    every = tmp_path / "all.npz"
    np.savez(every, x=np.float32([[0, 0, 0]]), n=np.array([1, 2, 3]))
    for args, words in [
        (["run", tmp_path / "no.onnx"], "no.onnx: No such file"),
        (["info", tmp_path / "bad.onnx"], "bad.onnx: not an ONNX model"),
        (["run", pair], "input 'x' has no value"),
        (["run", pair, "-i", f"x={tmp_path / 'bad.npy'}"], "bad.npy: not an array"),
        (["run", pair, "-i", f"x={tmp_path / 'no.npy'}"], "no.npy: No such file"),
        (["run", pair, "-i", f"z={tmp_path / 'no.npy'}"], "there is no input 'z'; the model has ['x', 'n']"),
        (["run", pair, "-i", "a.npy"], "which input is a.npy?"),
        (["run", pair, "-i", f"x={tmp_path / 'bad.png'}"], "input 'x' takes no image"),
        (["run", pair, "-i", "random", "-o", tmp_path / "y.txt"], "outputs are written as .npz"),
        (["run", pair, "-i", "random", "--fix-shapes", "batch"], "'batch' must be NAME=SIZE"),
        (["run", pair, "-i", "random", "--mean", "x"], "--mean must be numbers"),
        (["run", pair, "-i", "random", "--std", "1,0,1"], "--std divides, so it must not be 0, got '1,0,1'"),
        (["run", pair, "-i", "random", "--mean", "nan"], "--mean must be finite numbers, got 'nan'"),
        (["run", pair, "-i", every, "-i", every], "all.npz: the input 'x' is given twice"),
        (["run", pair, "-i", every, "-i", "x.npy"], "x.npy: each input has a value already"),
        (["run", pair, "--labels", tmp_path / "no.txt"], "no.txt: No such file"),
        (["run", pair, "--labels", tmp_path / "bad.onnx"], "bad.onnx: not a text file"),
        (["bench", pair, "--chart", tmp_path / "x.png"], "the name of the chart must end with .svg, got"),
        (["diff", pair, tmp_path / "no.onnx"], "no.onnx: No such file or directory\n"),
        (["run", pair, "-i", "x="], "input 'x' must be a .npy or .npz file, an image, or 'random', got ''"),
    ]:
        text = run(*args, code=1)
        assert text.startswith("error: ")
        assert words in text
        assert len(text.strip().splitlines()) == 1
    assert "'--seed'" in run("run", pair, "--seed", "-1", code=2)
    text = run("run", tmp_path / "no.onnx", "--verbose", code=1)
    assert "Traceback" in text
    assert "no.onnx: No such file" in text


def test_fix_shapes_of_unnamed_dimensions(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = write(
        tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": (TensorProto.FLOAT, [None, None])}, ["y"]
    )
    assert "[1, 576]" in run("run", path, "-i", "random", "--fix-shapes", "x=1x576")
    assert "[2, 3]" in run("info", path, "--fix-shapes", "x=2x3")
    run("convert", path, tmp_path / "fixed.onnx", "--fix-shapes", "x=2x3")
    text = run("run", path, "-i", "random", "--fix-shapes", "x=2x3x4", code=1)
    assert "fix_shapes: input 'x' has the shape [?, ?], which [2, 3, 4] does not fit" in text
    for wrong in ("x=2x", "x=0x3", "x=ax3", "=2x3"):
        assert "must be NAME=SIZE, as in batch=1, or INPUT=SIZExSIZE" in run(
            "info", path, "--fix-shapes", wrong, code=1
        )


@pytest.mark.long
def test_fix_shapes_advice_if_ones_fail(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"]), helper.make_node("Reshape", ["z", "shape"], ["w"])]
    inputs = {"x": (TensorProto.FLOAT, ["rows", "columns"]), "z": (TensorProto.FLOAT, [None, 4])}
    path = write(tmp_path / "m.onnx", nodes, inputs, ["y", "w"], shape=np.array([2, -1]))
    advice = "--fix-shapes rows=SIZE --fix-shapes columns=SIZE --fix-shapes z=SIZEx4"
    for args in (["info", path], ["run", path, "-i", "random"], ["bench", path, "--device", "cpu"]):
        text = run(*args, code=1)
        assert "Dynamic dimensions were taken as 1" in text
        assert (advice.replace("--fix-shapes", "--dynamic") if args[0] == "bench" else advice) in text
    fixed = ["--fix-shapes", "rows=2", "--fix-shapes", "columns=3", "--fix-shapes", "z=1x4"]
    inputs = {"x": (TensorProto.FLOAT, ["rows", "?", 3, "?"]), "z": (TensorProto.FLOAT, ["n", "n"])}
    odd = write(tmp_path / "odd.onnx", [helper.make_node("Neg", [n], [f"-{n}"]) for n in "xz"], inputs, ["-x", "-z"])
    advice = "--fix-shapes rows=SIZE --fix-shapes x=SIZExSIZEx3xSIZE --fix-shapes z=SIZExSIZE"
    assert advice in run("info", odd)
    assert "[2, 2]" in run("run", path, "-i", "random", *fixed)


def test_parameters_are_counted_wherever_they_are(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [3], [1, 2, 3])
    nodes = [helper.make_node("Constant", [], ["w"], value=weight), helper.make_node("Add", ["x", "w"], ["y"])]
    path = write(tmp_path / "m.onnx", nodes, {"x": (TensorProto.FLOAT, [3])}, ["y"])
    assert "3 in 1 tensor" in run("info", path)


def test_graphs_of_models_keep_their_names(pair: Path) -> None:
    graph = ow.onnx.load(pair, fix_shapes={"batch": 2})
    assert list(graph.inputs) == ["x", "n"]
    feed = {"x": np.float32([[-1, 0, 2], [3, -4, 5]]), "n": np.array([1, 2, 3])}
    np.testing.assert_array_equal(graph.context.compute(graph, feed)["y"], [[1, 2, 5], [4, 2, 8]])
    with pytest.raises(ow.ValidationError, match=r"input 'x' has dynamic dimensions \[batch\]; fix them, as in"):
        ow.onnx.load(pair)


def test_convert_advice_for_unnamed_dimensions(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    path = write(tmp_path / "m.onnx", nodes, {"x": (TensorProto.FLOAT, ["n", None, 3])}, ["y"])
    text = run("convert", path, tmp_path / "out.onnx", code=1)
    assert "dynamic dimensions [n, ?]; fix them, as in fix_shapes={'x': [1, 1, 3]}" in text
    advice = text.strip().rpartition("on the command line ")[2]
    assert advice == "--fix-shapes x=1x1x3"
    run("convert", path, tmp_path / "out.onnx", *advice.split())


def test_graphs_of_models_need_webnn_only(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.onnx", [helper.make_node("Unique", ["x"], ["y"])], {"x": (TensorProto.FLOAT, [3, 3])}, ["y"]
    )
    with pytest.raises(ow.NotSupportedError, match="Unique cannot be expressed in WebNN"):
        ow.onnx.load(path)


def test_graphs_of_models_need_outputs_of_webnns_types(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Identity", ["c"], ["z"])]
    path = write(tmp_path / "m.onnx", nodes, {"x": (TensorProto.FLOAT, [3])}, ["y", "z"], c=np.array(["a", "b"]))
    with pytest.raises(ow.NotSupportedError, match=r"output 'z' is tensor\(string\), which WebNN cannot hold"):
        ow.onnx.load(path)


def test_graphs_of_models_hand_through_inputs_and_constants(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.onnx",
        [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Identity", ["c"], ["z"])],
        {"x": (TensorProto.FLOAT, [3])},
        ["y", "z"],
        c=np.array([True, False]),
    )
    graph = ow.onnx.load(path)
    found = graph.context.compute(graph, {"x": np.float32([1, 2, 3])})
    assert found["y"].tolist() == [1, 2, 3]
    assert found["z"].tolist() == [1, 0]


@pytest.mark.long
def test_limits_of_a_model(run, pair: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    few, enough = ("--limit", "nodes=2"), ("--limit", "nodes=3")
    fixed = ("--fix-shapes", "batch=1")
    for command in (
        ("run", "-i", "random"),
        ("info",),
        ("bench", "--seconds", "0.1", "--engines", "onnxruntime"),
        ("convert", "-o", tmp_path / "out.onnx"),
    ):
        text = run(command[0], pair, *command[1:], *fixed, *few, code=1)
        assert "the number of nodes, those of functions included: 3, more than the limit of 2" in " ".join(text.split())
        assert "--limit nodes=COUNT" in " ".join(text.split())
        run(command[0], pair, *command[1:], *fixed, *enough)
    for wrong in ("nodes", "nodes=many", "nodes=-1", "colour=3"):
        text = run("info", pair, "--limit", wrong, code=1)
        assert f"--limit '{wrong}' must be NAME=COUNT, with a name among nodes, folded_bytes, dense_bytes" in text


# Operations of the user -----------------------------------------------------------------------------------------------

OPERATIONS = """
import opweave as ow

@ow.expression
def tripled(x):
    return 3 * x

ow.register_onnx("test.cli", "Tripled", tripled)
"""


@pytest.fixture
def tripled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with an operator that only a module in the working directory declares."""
    (tmp_path / "operations_of_cli.py").write_text(OPERATIONS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    nodes = [helper.make_node("Tripled", ["x"], ["y"], "own", domain="test.cli")]
    proto = support.onnx.model(nodes, {"x": "float32[2]"}, {"y": "float32[2]"}, domains=["test.cli"])
    onnx.save(proto, tmp_path / "tripled.onnx")
    return tmp_path / "tripled.onnx"


def test_profile_lists_kernels_and_writes_trace(run, pair: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    trace = tmp_path / "trace.json"
    text = run("profile", pair, "--repeat", 2, "--trace", trace)
    lines = text.splitlines()
    assert lines[0].startswith("your program runs this on ONNX Runtime, uncompiled, because ")
    rows = [re.split("  +", line) for line in lines]
    assert {("r", "Relu"), ("f", "Cast"), ("y", "Add")} == {
        (row[1], row[2]) for row in rows if row[-1].endswith("%")
    } - {("the model", "ONNX Runtime")}
    assert "program: x [1, 3], n [3]: ONNX Runtime, uncompiled" in lines
    assert "Dynamic dimensions were taken as 1. Set their sizes: --fix-shapes batch=SIZE" in lines
    assert lines[-1] == f"wrote {trace}"
    names = [event["name"] for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    assert sorted(names) == sorted(["run", "the model", "run", "r", "f", "y"])


def test_profile_takes_inputs_and_prints_json(run, pair: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    np.save(tmp_path / "x.npy", np.zeros((5, 3), "float32"))
    options = ["--json", "--detail", "--threads", 1, "--device", "cpu", "--repeat", 3]
    numbers = json.loads(run("profile", pair, "-i", f"x={tmp_path / 'x.npy'}", *options))
    assert numbers["remarks"][0] == "program: x [5, 3], n [3]: ONNX Runtime, uncompiled"
    assert (numbers["repeat"], numbers["has_details"], len(numbers["kernels"])) == (3, True, 3)
    assert "x [4, 3]" in run("profile", pair, "--fix-shapes", "batch=4", "--repeat", 1)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--trace", "trace.txt"], 1, "the name of the trace must end with .json, got 'trace.txt'"),
        (["--trace", "none/trace.json"], 1, "none/trace.json: there is no folder none"),
        (["--repeat", "0"], 2, "'--repeat'"),
        (["--threads", "0"], 2, "'--threads'"),
        (["--device", "quantum"], 1, "quantum"),
        (["--precision", "float8"], 1, "float8"),
        (["-i", "x=none.npy"], 1, "none.npy: No such file or directory"),
    ],
)
def test_profile_rejects_options(run, pair: Path, arguments: list[str], code: int, message: str) -> None:  # type: ignore[no-untyped-def]
    assert message in run("profile", pair, *arguments, code=code)


@pytest.mark.long
def test_operations_option_loads_module(  # type: ignore[no-untyped-def]
    run, tripled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = ["--operations", "operations_of_cli"]
    assert "ow.register_onnx('test.cli', 'Tripled', operation)" in run("info", tripled, code=1)
    np.save("x.npy", np.float32([1, 2]))
    run("run", tripled, "-i", "x=x.npy", "-o", "out.npz", *own)
    assert np.load("out.npz")["y"].tolist() == [3, 6]
    run("compile", tripled, "-o", "tripled.opweave", *own)
    monkeypatch.delitem(sys.modules, "operations_of_cli")
    assert "(on the command line, --operations operations_of_cli)" in run("info", "tripled.opweave", code=1)
    info = run("info", tripled, *own)
    assert "Tripled 1" in info
    assert "custom operations:\n    tripled for test.cli.Tripled: 1 node, expression, " in info
    run("convert", tripled, "out.onnx", *own)
    converted = onnxruntime.InferenceSession("out.onnx", providers=["CPUExecutionProvider"])
    assert converted.run(None, {"x": np.float32([1, 2])})[0].tolist() == [3, 6]
    assert "Tripled" not in run("profile", tripled, "--repeat", 1, *own)
    itself, ours = json.loads(run("bench", tripled, "--engines", "onnxruntime", "--seconds", "0.01", "--json", *own))[
        "engines"
    ]
    assert "Tripled" in itself["reason"]  # ONNX Runtime itself has no such operator
    assert ours["runs"] >= 5


def test_operations_option_rejects_missing_module(run, tripled: Path) -> None:  # type: ignore[no-untyped-def]
    for name, meant in (
        ("operations_of_cli.py", "operations_of_cli"),
        ("./operations_of_cli.py", "operations_of_cli"),
        ("own/operations.py", "own.operations"),
    ):
        error = run("info", tripled, "--operations", name, code=2)
        assert f"there is no module {name!r}; did you mean {meant!r}?" in error
    for name in ("", "../operations_of_cli.py", "own.operations"):
        assert f"there is no module {name!r} " in run("info", tripled, "--operations", name, code=2)
    (tripled.parent / "broken_of_cli.py").write_text("import a_module_that_is_missing")
    error = run("info", tripled, "--operations", "broken_of_cli", code=1)
    missing = "ModuleNotFoundError: No module named 'a_module_that_is_missing'"
    assert error.startswith(f"error: the module 'broken_of_cli' cannot be imported: {missing} (")
    assert error.endswith("broken_of_cli.py:1)\n")
    (tripled.parent / "syntax_of_cli.py").write_text("\n(")
    error = run("info", tripled, "--operations", "syntax_of_cli", "--verbose", code=1)
    assert "Traceback" in error
    assert "syntax_of_cli.py:2)" in error
