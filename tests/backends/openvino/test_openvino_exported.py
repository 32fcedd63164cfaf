"""Compiled models of OpenVINO in saved graphs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opweave as ow

openvino = pytest.importorskip("openvino", reason="needs the extra openvino")

from opweave.backends.exports import RUNS  # noqa: E402  (the line above skips the file without the package)
from opweave.backends.openvino import exported  # noqa: E402
from opweave.saved.container import Container  # noqa: E402

RNG = np.random.default_rng(0)
FILTER = RNG.normal(size=(8, 3, 3, 3)).astype("float32")
CONTEXT = ow.ml.create_context(device="cpu", backend="openvino")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPWEAVE_CACHE", str(tmp_path / "cache"))
    # Small graphs compile about as fast as they are imported.
    monkeypatch.setattr(exported, "MIN_GAIN", 0)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of the engine that compile or import a model."""
    names: list[str] = []

    def note(name: str) -> None:
        method = getattr(openvino.Core, name)

        def noted(*args: Any, **kwargs: Any) -> Any:
            names.append(name)
            return method(*args, **kwargs)

        monkeypatch.setattr(openvino.Core, name, noted)

    note("compile_model")
    note("import_model")
    return names


def convolution(context: ow.MLContext = CONTEXT) -> ow.MLGraph:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", (1, 3, 9, 9))
    y = builder.conv2d(x, builder.constant(FILTER), padding=[1] * 4).relu()
    return builder.build({"y": builder.softmax(y, 1)})


def image() -> np.ndarray:
    result: np.ndarray = RNG.normal(size=(1, 3, 9, 9)).astype("float32")
    return result


def blobs(path: Path) -> list[str]:
    return [name for name in Container.open(path).names if name.endswith(".blob")]


def test_load_imports_what_was_compiled(calls: list[str], tmp_path: Path) -> None:
    graph = convolution()
    graph.save(tmp_path / "plain.opweave")
    assert blobs(tmp_path / "plain.opweave") == []
    graph.save(tmp_path / "graph.opweave", layout="device")
    assert len(blobs(tmp_path / "graph.opweave")) == 1
    calls.clear()
    again = CONTEXT.load(tmp_path / "graph.opweave")
    assert calls == ["import_model"]
    for _ in range(4):
        x = image()
        assert CONTEXT.compute(again, {"x": x})["y"].tobytes() == CONTEXT.compute(graph, {"x": x})["y"].tobytes()
    assert f"loaded from {tmp_path / 'graph.opweave'}, with 1 of 1 compiled part" in again.explain()
    assert [each.how for each in again.placements()] == [each.how for each in graph.placements()]
    again.save(tmp_path / "third.opweave", layout="device")
    assert blobs(tmp_path / "third.opweave") == blobs(tmp_path / "graph.opweave")
    with pytest.raises(ow.ValidationError, match=r"layout must be one of \['plain', 'device'\], got 'cpu'"):
        graph.save(tmp_path / "graph.opweave", layout="cpu")  # type: ignore[arg-type]


CHANGES: dict[str, Callable[[Path, pytest.MonkeyPatch], None]] = {
    "version": lambda path, patch: patch.setattr("opweave.backends.openvino.devices.version", lambda: "1999.1"),
    "processor": lambda path, patch: patch.setattr(exported, "machine", lambda: "another processor"),
    "rules": lambda path, patch: patch.setattr(exported, "_code", lambda: "other rules"),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.covers
def test_load_compiles_for_another(
    name: str, calls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, x = convolution(), image()
    graph.save(tmp_path / "graph.opweave", layout="device")
    calls.clear()
    CHANGES[name](tmp_path / "graph.opweave", monkeypatch)
    again = CONTEXT.load(tmp_path / "graph.opweave")
    assert calls == ["compile_model"]
    np.testing.assert_array_equal(CONTEXT.compute(again, {"x": x})["y"], CONTEXT.compute(graph, {"x": x})["y"])
    assert "with 0 of 1 compiled part; the file has others, if any, for another processor" in again.explain()


def test_load_compiles_for_other_options(calls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convolution().save(tmp_path / "graph.opweave", layout="device")
    calls.clear()
    for options in ({"threads": 1}, {"precision": "ieee"}):
        ow.ml.create_context(device="cpu", backend="openvino", **options).load(tmp_path / "graph.opweave")
    assert calls == ["compile_model"] * 2


def test_load_does_not_import_models_of_strangers(
    calls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convolution().save(tmp_path / "graph.opweave", layout="device")
    monkeypatch.setenv("OPWEAVE_CACHE", str(tmp_path / "another"))
    calls.clear()
    again = CONTEXT.load(tmp_path / "graph.opweave")
    assert calls == ["compile_model"]
    assert "compiled again: this user has not written the file on this machine" in again.explain()
    CONTEXT.load(tmp_path / "graph.opweave", trusted=True)
    assert calls == ["compile_model", "import_model"]


def test_load_notices_weights_that_were_changed(
    calls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights have no authentication code, so that other programs may change them."""
    builder = ow.MLGraphBuilder(CONTEXT)
    weights = RNG.normal(size=(64, 64)).astype("float32")
    graph = builder.build({"y": builder.input("x", "float32", [2, 64]) @ builder.constant(weights)})
    path, x = tmp_path / "graph.opweave", RNG.normal(size=(2, 64)).astype("float32")
    graph.save(path, layout="device")
    calls.clear()
    with open(path, "r+b") as file:
        file.seek(path.read_bytes().index(weights[5].tobytes()))
        file.write((weights[5] * 2).tobytes())
    weights[5] *= 2
    again = CONTEXT.load(path)
    assert calls == ["compile_model"]
    np.testing.assert_allclose(CONTEXT.compute(again, {"x": x})["y"], x @ weights, rtol=1e-4, atol=1e-4)


def test_save_leaves_out_recurrent_networks(calls: list[str], tmp_path: Path) -> None:
    builder = ow.MLGraphBuilder(CONTEXT)
    x = builder.input("x", "float32", [3, 2, 4])
    weights = [builder.constant(RNG.normal(size=(1, 12, 4)).astype("float32")) for _ in range(2)]
    graph = builder.build({"y": builder.gru(x, weights[0], weights[1], steps=3, hidden_size=4)[0]})
    graph.save(tmp_path / "graph.opweave", layout="device")
    assert blobs(tmp_path / "graph.opweave") == []
    again, feed = CONTEXT.load(tmp_path / "graph.opweave"), {"x": RNG.normal(size=(3, 2, 4)).astype("float32")}
    assert "gru: OpenVINO may import a recurrent network with wrong weights" in again.explain()
    np.testing.assert_array_equal(CONTEXT.compute(again, feed)["y"], CONTEXT.compute(graph, feed)["y"])


def test_save_leaves_out_models_that_compile_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing hashes and reorders a large weight; compiling runs passes over many operations."""
    monkeypatch.undo()
    monkeypatch.setenv("OPWEAVE_CACHE", str(tmp_path / "cache"))
    builder = ow.MLGraphBuilder(CONTEXT)
    x = builder.input("x", "float32", [1, 2048])
    wide = builder.build({"y": x @ builder.constant(RNG.normal(size=(2048, 2048)).astype("float32"))})
    builder = ow.MLGraphBuilder(CONTEXT)
    y = x = builder.input("x", "float32", [1, 3, 8, 8])
    for _ in range(20):
        y = builder.conv2d(y, builder.constant(FILTER[:3]), padding=[1] * 4).tanh() + x
    deep = builder.build({"y": y})
    for name, graph, count in (("wide", wide, 0), ("deep", deep, 1)):
        graph.save(tmp_path / f"{name}.opweave", layout="device")
        assert len(blobs(tmp_path / f"{name}.opweave")) == count
    reason = r"compiling takes 0\.\d times the processor time of checking and importing the model, less than 1\.2 times"
    assert re.search(reason, CONTEXT.load(tmp_path / "wide.opweave").explain())


@pytest.mark.parametrize("run", range(RUNS))
def test_save_leaves_out_models_that_differ_in_a_run(run: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that overwrites a constant is wrong from the second run on."""
    own = exported._import

    class Request:
        def __init__(self, request: Any) -> None:
            self.request, self.count = request, 0

        def infer(self, inputs: Any) -> Any:
            results = {port: np.array(array) for port, array in self.request.infer(inputs).items()}
            self.count += 1
            return {port: array + (self.count == run + 1) for port, array in results.items()}

    class Model:
        def __init__(self, model: Any) -> None:
            self.model = model

        def create_infer_request(self) -> Request:
            return Request(self.model.create_infer_request())

    monkeypatch.setattr(exported, "_import", lambda *args: Model(own(*args)))
    convolution().save(tmp_path / "graph.opweave", layout="device")
    assert blobs(tmp_path / "graph.opweave") == []
    monkeypatch.undo()
    assert "OpenVINO imports the model with other results" in CONTEXT.load(tmp_path / "graph.opweave").explain()


def test_graph_with_names_has_the_models_of_its_sizes(calls: list[str], tmp_path: Path) -> None:
    context = ow.ml.create_context(device="cpu", backend="openvino", drafts=True)
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", ["n", 4])
    graph = builder.build({"y": builder.softmax(x, 1)})
    feeds = [{"x": RNG.normal(size=(count, 4)).astype("float32")} for count in (2, 3, 5)]
    results = [context.compute(graph, feed)["y"] for feed in feeds[:2]]
    graph.save(tmp_path / "graph.opweave", layout="device")
    calls.clear()
    again = context.load(tmp_path / "graph.opweave")
    for feed, result in zip(feeds, results, strict=False):
        assert context.compute(again, feed)["y"].tobytes() == result.tobytes()
    assert calls == ["import_model"] * 2
    context.compute(again, feeds[2])
    assert calls == ["import_model"] * 2 + ["compile_model"]


def test_load_tells_inputs_apart(tmp_path: Path) -> None:
    def difference(first: str, second: str) -> ow.MLGraph:
        builder = ow.MLGraphBuilder(CONTEXT)
        inputs = {name: builder.input(name, "float32", [2]) for name in ("x", "y")}
        return builder.build({"z": builder.sub(inputs[first], inputs[second])})

    difference("x", "y").save(tmp_path / "graph.opweave", layout="device")
    again = CONTEXT.load(tmp_path / "graph.opweave")
    values = {"x": np.float32([5, 5]), "y": np.float32([1, 1])}
    assert CONTEXT.compute(again, values)["z"].tolist() == [4, 4]
    assert CONTEXT.compute(difference("y", "x"), values)["z"].tolist() == [-4, -4]
