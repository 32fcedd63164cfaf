"""`opweave compile`, and commands that take saved graphs; sessions that save."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.onnx import model as make_model, node

import opweave as ow
from opweave import cli
from opweave.cli.common import CliSettings
from opweave.context.graph import recorded_graph


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command in this process; what it prints."""
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


WEIGHTS = np.arange(12, dtype="float32").reshape(4, 3)


@pytest.fixture
def dynamic(tmp_path: Path) -> Path:
    """A model with a dynamic dimension."""
    nodes = [node("MatMul", "x w", "a"), node("Relu", "a", "b"), node("Softmax", "b", "y", axis=-1)]
    path = tmp_path / "model.onnx"
    onnx.save(make_model(nodes, {"x": "float32[n, 4]"}, {"y": "float32[n, 3]"}, {"w": WEIGHTS}), path)
    return path


def test_compile_keeps_dynamic_dimensions(run: Callable[..., str], dynamic: Path, tmp_path: Path) -> None:
    target = tmp_path / "model.opweave"
    wrote = run("compile", dynamic, "-o", target, "--shapes", "n=3", "--shapes", "n=5", "--device", "cpu")
    assert f"wrote {target}" in wrote
    assert "(x: float32[n, 4]) -> (y: float32[n, 3])" in wrote
    context = ow.ml.create_context(device="cpu")
    graph = context.load(target)
    x = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
    (wanted,) = ow.InferenceSession(dynamic, context).run(None, {"x": x})
    np.testing.assert_allclose(context.compute(graph, {"x": x})["y"], wanted, rtol=1e-6)


def test_compile_says_what_is_missing(
    run: Callable[..., str], dynamic: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opweave.saved.parts.MAX_GROWTH", -1)
    words = "compile", dynamic, "-o", tmp_path / "model.opweave", "--fix-shapes", "n=2", "--device", "cpu", "--layout"
    assert "without a part" not in run(*words, "plain")
    assert "without a part that the engine compiled: \"the engine's weights would make" in run(*words, "device")


def test_compile_converts_for_shapes(run: Callable[..., str], tmp_path: Path) -> None:
    """Whether the last window begins behind the input depends on the size."""
    path, target = tmp_path / "pooling.onnx", tmp_path / "model.opweave"
    nodes = [node("MaxPool", "x", "y", kernel_shape=[1], strides=[2], ceil_mode=1)]
    onnx.save(make_model(nodes, {"x": "float32[1, 3, n]"}, {"y": "float32[1, 3, half]"}), path)
    assert "or --shapes on the command line" in run("compile", path, "-o", target, "--device", "cpu", code=1)
    run("compile", path, "-o", target, "--shapes", "n=6", "--shapes", "n=7", "--device", "cpu")
    assert "compiled for x [1, 3, 6]" in run("info", target, "--device", "cpu")
    context = ow.ml.create_context(device="cpu")
    graph = context.load(target)
    for size in (8, 13):
        x = np.random.default_rng(0).normal(size=(1, 3, size)).astype("float32")
        np.testing.assert_array_equal(context.compute(graph, {"x": x})["y"], x[:, :, ::2])


def test_compile_fixes_shapes(run: Callable[..., str], dynamic: Path, tmp_path: Path) -> None:
    target = tmp_path / "model.opweave"
    assert "(x: float32[2, 4])" in run("compile", dynamic, "-o", target, "--fix-shapes", "n=2", "--device", "cpu")


def test_run_and_info_take_saved_graphs(run: Callable[..., str], dynamic: Path, tmp_path: Path) -> None:
    target = tmp_path / "model.opweave"
    run("compile", dynamic, "-o", target, "--device", "cpu")
    np.save(tmp_path / "x.npy", np.ones((6, 4), "float32"))
    shown = run("run", target, "-i", tmp_path / "x.npy", "-o", tmp_path / "y.npz", "--device", "cpu")
    assert "[6, 3]" in shown
    assert np.load(tmp_path / "y.npz")["y"].shape == (6, 3)
    info = run("info", target, "--device", "cpu")
    assert info.startswith(f"loaded from {target}")
    for text in ("parameters          12 in 1 tensor", "matmul 1, relu 1, softmax 1", "dynamic dimensions  n"):
        assert text in info


def test_names_of_dimensions_of_saved_graphs_are_quoted_once(run: Callable[..., str], tmp_path: Path) -> None:
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="cpu", drafts=True))
    builder.build({"y": builder.relu(builder.input("x", "float32", ["a b"]))}).save(tmp_path / "g.opweave")
    text = run("info", tmp_path / "g.opweave", "--fix-shapes", "a b=3")
    assert "compiled for x [3]" in text
    assert "['a b']" in run("info", tmp_path / "g.opweave")


def test_sizes_of_random_inputs_of_saved_graphs(run: Callable[..., str], dynamic: Path, tmp_path: Path) -> None:
    target = tmp_path / "model.opweave"
    run("compile", dynamic, "-o", target, "--device", "cpu")
    assert "[5, 3]" in run("run", target, "-i", "random", "--fix-shapes", "n=5", "--device", "cpu")
    assert "Set their sizes: --fix-shapes n=SIZE" in run("info", target, "--device", "cpu")
    profile = run("profile", target, "--fix-shapes", "n=5", "--repeat", 1, "--device", "cpu")
    assert profile.startswith(f"loaded from {target}")
    assert "sizes: n = 5" in profile
    tuned = run("tune", target, "--shape", "n=2", "--shape", "n=3", "--seconds", 0, "--device", "reference")
    assert "a graph of 3 operations, n = 2" in tuned
    assert "a graph of 3 operations, n = 3" in tuned


def test_bench_compares_back_ends_on_a_saved_graph(run: Callable[..., str], dynamic: Path, tmp_path: Path) -> None:
    target = tmp_path / "model.opweave"
    run("compile", dynamic, "-o", target, "--device", "cpu")
    shown = run("bench", target, "--dynamic", "n=1,4", "--seconds", 0.05, "--engines", "auto,reference", "--json")
    result = json.loads(shown)
    assert [engine["engine"] for engine in result["engines"]] == ["auto", "reference"]
    assert result["shapes"] == [{"x": [1, 4]}, {"x": [4, 4]}]
    assert all(engine["difference"] < 1e-6 for engine in result["engines"])
    target.write_bytes(target.read_bytes()[:300])
    assert "the file is truncated" in run("bench", target, code=1)


def test_compile_rejects_what_it_cannot_do(run: Callable[..., str], dynamic: Path, tmp_path: Path) -> None:
    target = tmp_path / "model.opweave"
    assert "must end in .opweave" in run("compile", dynamic, "-o", tmp_path / "model.bin", code=2)
    assert "needs a size for each of n, got m=3" in run("compile", dynamic, "-o", target, "--shapes", "m=3", code=2)
    run("compile", dynamic, "-o", target)
    assert "--limit is for models" in run("run", target, "--limit", "nodes=2", code=2)
    assert "no input or dimension 'm'" in run("run", target, "--fix-shapes", "m=2", code=2)
    for command in (("diff", target), ("convert", target, tmp_path / "x.onnx"), ("deploy", target)):
        assert "it is a saved graph of Opweave: MLContext.load" in run(*command, code=1)
    target.write_bytes(target.read_bytes()[:300])
    assert "the file is truncated" in run("run", target, "-i", "random", code=1)


def test_session_save_converts_the_model(dynamic: Path, tmp_path: Path) -> None:
    session = ow.InferenceSession(dynamic, ow.ml.create_context(device="cpu"))
    session.save(tmp_path / "model.opweave")
    graph = session.context.load(tmp_path / "model.opweave")
    assert str(graph.inputs["x"]) == "float32[n, 4]"
    for count in (1, 7):
        x = np.random.default_rng(0).normal(size=(count, 4)).astype("float32")
        (wanted,) = session.run(None, {"x": x})
        np.testing.assert_allclose(session.context.compute(graph, {"x": x})["y"], wanted, rtol=1e-6)
    fixed = ow.InferenceSession(dynamic, session.context, fix_shapes={"n": 2})
    fixed.save(tmp_path / "fixed.opweave")
    assert session.context.load(tmp_path / "fixed.opweave").inputs["x"].shape == (2, 4)


def test_session_save_rejects_models_that_need_onnx_runtime(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(make_model([node("NonZero", "x", "y")], {"x": "float32[n]"}, {"y": "int64[1, m]"}), path)
    with pytest.raises(ow.NotSupportedError, match="NonZero"):
        ow.InferenceSession(path).save(tmp_path / "model.opweave")
    assert not (tmp_path / "model.opweave").exists()


def test_load_of_model_with_names_needs_drafts(dynamic: Path) -> None:
    with pytest.raises(ow.ValidationError, match=r"dynamic dimensions \[n\]; fix them"):
        ow.onnx.load(dynamic, ow.ml.create_context(device="reference"))
    graph = ow.onnx.load(dynamic, ow.ml.create_context(device="reference", drafts=True))
    assert recorded_graph(graph).has_names


def test_load_of_model_that_needs_numbers_says_what_to_fix(tmp_path: Path) -> None:
    """The number of parts of a split must be known."""
    nodes = [node("Shape", "x", "s"), node("ConstantOfShape", "s", "zeros"), node("NonZero", "zeros", "y")]
    path = tmp_path / "model.onnx"
    onnx.save(make_model(nodes, {"x": "float32[n]"}, {"y": "int64[1, m]"}), path)
    context = ow.ml.create_context(device="reference", drafts=True)
    with pytest.raises(ow.NotSupportedError, match=r"input 'x' has dynamic dimensions \[n\], and .*; fix them, as in"):
        ow.onnx.load(path, context)
