"""Optimised graphs of ONNX Runtime in saved graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opweave as ow
from opweave.backends.exports import RUNS
from opweave.backends.onnxruntime import optimised
from opweave.backends.onnxruntime.sessions import OrtSession
from opweave.saved.container import Container

RNG = np.random.default_rng(0)
FILTER = RNG.normal(size=(16, 16, 3, 3)).astype("float32")
MATRIX = RNG.normal(size=(64, 160)).astype("float32")
CONTEXT = ow.ml.create_context(backend="onnxruntime", accelerated=False)


@ow.op
def halve(self: Any, x: ow.MLOperand) -> ow.Desc:
    return x.desc


@halve.kernel("cpu")
def _(x: np.ndarray, out: np.ndarray) -> None:
    np.multiply(x, 0.5, out=out)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPWEAVE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[optimised.Optimised]:
    """The optimised graphs that sessions were made of, in files and while they are compared."""
    graphs: list[optimised.Optimised] = []
    load = optimised.load

    def noted(graph: optimised.Optimised, options: Any) -> Any:
        graphs.append(graph)
        return load(graph, options)

    monkeypatch.setattr(optimised, "load", noted)
    return graphs


def network(filter: np.ndarray = FILTER, matrix: np.ndarray = MATRIX) -> ow.MLGraph:
    """The engine reorders the filter, and leaves the matrix as it is. The matrix has enough elements for threads."""
    builder = ow.MLGraphBuilder(CONTEXT)
    y = builder.conv2d(builder.input("x", "float32", (1, 16, 8, 8)), builder.constant(filter), padding=[1] * 4).relu()
    return builder.build({"y": y.reshape((16, 64)) @ builder.constant(matrix)})


def image(count: int = 8) -> Mapping[str, np.ndarray]:
    return {"x": RNG.normal(size=(1, 16, 8, count)).astype("float32")}


def bits(graph: ow.MLGraph, feed: Mapping[str, np.ndarray]) -> bytes:
    return graph.context.compute(graph, feed)["y"].tobytes()


def sections(path: Path, prefix: str, suffix: str = "") -> list[str]:
    return [name for name in Container.open(path).names if name.startswith(prefix) and name.endswith(suffix)]


def test_load_makes_a_session_of_the_optimised_graph(loaded: list[optimised.Optimised], tmp_path: Path) -> None:
    graph, path = network(), tmp_path / "graph.opweave"
    graph.save(tmp_path / "plain.opweave")
    assert sections(tmp_path / "plain.opweave", "engine.") == []
    graph.save(path, layout="device")
    (tensor,) = sections(path, "engine.")
    container = Container.open(path)
    assert container.size(tensor) == FILTER.nbytes  # the matrix is in the file once
    loaded.clear()
    again = CONTEXT.load(path)
    (weights,) = (graph.weights for graph in loaded)
    assert all(not array.flags.owndata and not array.flags.writeable for array in weights.values())  # they are mapped
    for _ in range(4):
        feed = image()
        assert bits(again, feed) == bits(graph, feed)
    assert f"loaded from {path}, with 1 of 1 compiled part" in again.explain()
    assert [each.how for each in again.placements()] == [each.how for each in graph.placements()]
    again.save(tmp_path / "third.opweave", layout="device")
    assert (tmp_path / "third.opweave").stat().st_size == path.stat().st_size
    assert sections(tmp_path / "third.opweave", "") == sections(path, "")


CHANGES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "version": lambda patch: patch.setattr("opweave.backends.onnxruntime.devices.version", lambda: "1999.1"),
    "build": lambda patch: patch.setattr(optimised, "_build", lambda: "another build"),
    "processor": lambda patch: patch.setattr(optimised, "machine", lambda: "another processor"),
    "package": lambda patch: patch.setattr(optimised, "__version__", "0.0.0"),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.covers
def test_load_compiles_for_another(
    name: str, loaded: list[optimised.Optimised], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, feed = network(), image()
    graph.save(tmp_path / "graph.opweave", layout="device")
    loaded.clear()
    CHANGES[name](monkeypatch)
    again = CONTEXT.load(tmp_path / "graph.opweave")
    assert not loaded
    assert bits(again, feed) == bits(graph, feed)
    assert "with 0 of 1 compiled part; the file has others, if any, for another processor" in again.explain()


def test_load_compiles_for_other_options(loaded: list[optimised.Optimised], tmp_path: Path) -> None:
    network().save(tmp_path / "graph.opweave", layout="device")
    loaded.clear()
    for options in ({"threads": 5}, {"precision": "ieee"}):
        ow.ml.create_context(backend="onnxruntime", accelerated=False, **options).load(tmp_path / "graph.opweave")
    assert not loaded


def test_load_uses_graphs_of_trusted_files_alone(
    loaded: list[optimised.Optimised], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opweave.support.digests.LARGE_BYTES", 0)  # the digest is that of large files
    network().save(tmp_path / "graph.opweave", layout="device")
    CONTEXT.load(tmp_path / "graph.opweave")
    assert len(loaded) == 2  # one in `export`, one of the file that this user has written
    monkeypatch.setenv("OPWEAVE_CACHE", str(tmp_path / "another"))
    loaded.clear()
    again = CONTEXT.load(tmp_path / "graph.opweave")
    assert not loaded
    assert "compiled again: this user has not written the file on this machine" in again.explain()
    CONTEXT.load(tmp_path / "graph.opweave", trusted=True)
    assert len(loaded) == 1


@pytest.mark.parametrize("name", ["filter", "matrix"])
def test_load_notices_weights_that_were_changed(name: str, loaded: list[optimised.Optimised], tmp_path: Path) -> None:
    """Weights have no authentication code, so that other programs may change them."""
    path, feed = tmp_path / "graph.opweave", image()
    weights = {"filter": FILTER, "matrix": MATRIX}
    network().save(path, layout="device")
    loaded.clear()
    changed = weights[name].copy()
    changed[-1] *= 2
    content = path.read_bytes()
    assert content.count(weights[name].tobytes()) == 1
    path.write_bytes(content.replace(weights[name].tobytes(), changed.tobytes()))
    again = CONTEXT.load(path)
    assert len(loaded) == (name == "matrix")  # the optimised graph has other filters, and reads the matrix of the file
    assert f"with {len(loaded)} of 1 compiled part" in again.explain()
    assert bits(again, feed) == bits(network(**{name: changed}), feed) != bits(network(), feed)


def test_load_compiles_what_the_engine_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, feed = network(), image()
    graph.save(tmp_path / "graph.opweave", layout="device")

    def load(graph: optimised.Optimised, options: Any) -> Any:
        raise RuntimeError("another build has written it")

    monkeypatch.setattr(optimised, "load", load)
    assert bits(CONTEXT.load(tmp_path / "graph.opweave"), feed) == bits(graph, feed)
    graph.save(tmp_path / "other.opweave", layout="device")
    reason = "ONNX Runtime does not export its optimised graph: another build has written it"
    explained = CONTEXT.load(tmp_path / "other.opweave").explain()
    assert reason in explained


@pytest.mark.parametrize("run", range(RUNS))
def test_save_leaves_out_graphs_that_differ_in_a_run(run: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, calls, own = network(), [0], OrtSession.run

    def wrong(self: OrtSession, inputs: Any, outputs: Any) -> None:
        own(self, inputs, outputs)
        outputs[0].reshape(-1)[:1] += calls[0] == 2 * run + 1
        calls[0] += 1

    monkeypatch.setattr(OrtSession, "run", wrong)
    graph.save(tmp_path / "graph.opweave", layout="device")
    assert sections(tmp_path / "graph.opweave", "engine.") == []
    monkeypatch.undo()
    explained = CONTEXT.load(tmp_path / "graph.opweave").explain()
    assert "ONNX Runtime computes other results from its optimised graph" in explained


def test_save_leaves_out_weights_that_take_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opweave.saved.parts.MAX_GROWTH", 0.125)
    network().save(tmp_path / "graph.opweave", layout="device")
    assert sections(tmp_path / "graph.opweave", "engine.") == []
    explained = CONTEXT.load(tmp_path / "graph.opweave").explain()
    assert "the engine's weights would make the file more than 1.125 times as large" in explained


def test_graph_with_names_has_the_session_of_its_sizes(loaded: list[optimised.Optimised], tmp_path: Path) -> None:
    context = ow.ml.create_context(backend="onnxruntime", accelerated=False, drafts=True)
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", "float32", (1, 16, 8, "n"))
    graph = builder.build({"y": builder.conv2d(x, builder.constant(FILTER), padding=[1] * 4).relu()})
    feeds = [image(count) for count in (5, 9, 12)]
    results = [bits(graph, feed) for feed in feeds[:2]]
    graph.save(tmp_path / "graph.opweave", layout="device")
    assert len(sections(tmp_path / "graph.opweave", "engine.")) == 1
    loaded.clear()
    again = context.load(tmp_path / "graph.opweave")
    assert [bits(again, feed) for feed in feeds[:2]] == results
    assert len(loaded) == 1
    assert bits(again, feeds[2]) == bits(graph, feeds[2])


def test_parts_of_equal_structure_have_their_own_weights(loaded: list[optimised.Optimised], tmp_path: Path) -> None:
    builder = ow.MLGraphBuilder(CONTEXT)
    y = builder.input("x", "float32", (1, 16, 8, 8))
    for factor in (1, 2):
        y = builder.conv2d(y, builder.constant(FILTER * np.float32(factor)), padding=[1] * 4)
        y = halve(y)
    graph, feed = builder.build({"y": y}), image()
    graph.save(tmp_path / "graph.opweave", layout="device")
    loaded.clear()
    again = CONTEXT.load(tmp_path / "graph.opweave")
    assert len(loaded) == 2
    assert bits(again, feed) == bits(graph, feed)


def test_constants_of_other_types(loaded: list[optimised.Optimised], tmp_path: Path) -> None:
    """Small integers and truth values are parts of the model; large integers are mapped."""
    builder = ow.MLGraphBuilder(CONTEXT)
    x = builder.input("x", "float32", (1, 16, 8, 8)).reshape((1024,))
    for count in (1000, 9000):
        mask = builder.constant(RNG.integers(0, 2, count * 8).astype("uint8"))
        y = builder.gather(x, builder.constant(RNG.integers(0, 1024, count * 8)))
        x = builder.where(mask, y, y * 2)
    graph, feed = builder.build({"y": x}), image()
    graph.save(tmp_path / "graph.opweave", layout="device")
    loaded.clear()
    again = CONTEXT.load(tmp_path / "graph.opweave")
    assert [[array.size for array in stored.weights.values()] for stored in loaded] == [[72000]]
    assert bits(again, feed) == bits(graph, feed)
