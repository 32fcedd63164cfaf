"""`opweave serve --record`: the graphs that clients build, as ONNX models and as text."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.served_clients import Client

import opweave as ow
from opweave.serve import Server
from opweave.serve.recording import Recording

CPU = ow.ml.create_context(device="cpu")
ORIGIN = "http://localhost:5173"


def graph(scale: float = 2.0, name: str = "x") -> ow.MLGraph:
    b = ow.MLGraphBuilder(CPU)
    weights = np.full((3, 2), scale, "float32")
    return b.build({"y": b.relu(b.matmul(b.input(name, "float32", [1, 3]), b.constant(weights), label="dense"))})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_recording_writes_model_and_text(tmp_path: Path) -> None:
    Recording(tmp_path / "new" / "folder").add(graph(), ORIGIN)
    folder = tmp_path / "new" / "folder"
    assert names(folder) == ["graph-0001.html", "graph-0001.onnx", "graph-0001.txt", "index.html"]
    (y,) = ow.InferenceSession(folder / "graph-0001.onnx").run(None, {"x": np.float32([[1, 2, 3]])})
    assert y.tolist() == [[12.0, 12.0]]
    text = (folder / "graph-0001.txt").read_text()
    assert text.startswith(
        f"graph-0001: 2 operations, weights of 24 B, built by a page of {ORIGIN}\nwritten as graph-0001.onnx\n"
    )
    assert "%0 = matmul(x, const float32[3, 2])  # 'dense'" in text


def test_recording_writes_equal_graphs_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recording = Recording(tmp_path)
    with caplog.at_level(logging.INFO, "opweave.serve.recording"):
        for scale in (1.0, 2.0, 1.0):
            recording.add(graph(scale), None)
    numbered = [f"graph-000{number}.{suffix}" for number in (1, 2) for suffix in ("html", "onnx", "txt")]
    assert names(tmp_path) == [*numbered, "index.html"]
    assert caplog.messages[-1] == "a program has built graph-0001 again, 2 operations"


def test_recording_continues_numbers_of_folder(tmp_path: Path) -> None:
    Recording(tmp_path).add(graph(), None)
    Recording(tmp_path).add(graph(), None)
    assert names(tmp_path)[3:] == ["graph-0002.html", "graph-0002.onnx", "graph-0002.txt", "index.html"]


def test_index_lists_graphs_with_their_files(tmp_path: Path) -> None:
    Recording(tmp_path).add(graph(), "http://<b>.example:1")
    Recording(tmp_path).add(graph(name="\ud800"), None)
    text = (tmp_path / "index.html").read_text()
    first, second = (line for line in text.splitlines() if line.startswith("<li"))
    assert first.startswith('<li value="1">2 operations, weights of 24 B, built by a page of ')
    assert "<b>" not in text
    assert first.count("<a href=") == 3
    assert 'href="graph-0002.txt">text</a>' in second
    assert "graph-0002.onnx" not in second
    assert "<title>" in (tmp_path / "graph-0001.html").read_text()


def test_recording_without_onnx_form_is_text_only(tmp_path: Path) -> None:
    Recording(tmp_path).add(graph(name="\ud800"), None)
    assert "graph-0001.onnx" not in names(tmp_path)
    text = (tmp_path / "graph-0001.txt").read_text()
    assert "not written as ONNX: ONNX names must be encodable in UTF-8" in text


def test_recording_of_graph_with_names(tmp_path: Path) -> None:
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="cpu", drafts=True))
    x = builder.input("x", "int32", ["n", 2])
    recording = Recording(tmp_path)
    recording.add(builder.build({"y": builder.concat([x, x], 0)}), None)
    (y,) = ow.InferenceSession(tmp_path / "graph-0001.onnx").run(None, {"x": np.int32([[1, 2]])})
    assert y.tolist() == [[1, 2], [1, 2]]
    text = (tmp_path / "graph-0001.txt").read_text()
    assert "compiled when it first runs, for many sizes of n" in text
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="cpu", drafts=True))
    recording.add(builder.build({"y": builder.reduce_sum(builder.input("x", "int32", ["n"]))}), None)
    assert "not written as ONNX: save: reduce_sum: " in (tmp_path / "graph-0002.txt").read_text()


def test_recording_omits_weights_beyond_limit(tmp_path: Path) -> None:
    recording = Recording(tmp_path, max_bytes=40)
    for scale in (1.0, 2.0):
        recording.add(graph(scale), None)
    assert "graph-0001.onnx" in names(tmp_path)
    assert "graph-0002.onnx" not in names(tmp_path)
    assert "this recording has more than 40 B of weights" in (tmp_path / "graph-0002.txt").read_text()


def test_recording_rejects_unusable_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ow.DataError, match=r"record: .* is a file, not a folder"):
        Server(port=0, record=tmp_path / "file")


def test_recording_logs_disk_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recording = Recording(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    recording.add(graph(), None)
    assert "graph-0001 is not recorded: " in caplog.messages[-1]


def test_server_records_built_graphs(tmp_path: Path) -> None:
    entry: list[Any] = ["input", 1, ["x", {"dataType": "float32", "shape": [2]}], {}]
    with (
        Server(port=0, device="cpu", origins=[ORIGIN], record=tmp_path) as server,
        Client(server, origin=ORIGIN) as client,
    ):
        client.hello()
        log = [entry, ["neg", 2, [{"$": 1}], {"label": "minus"}]]
        assert "inputs" in client.ask("build", b=1, g=1, log=log, outs={"y": 2})
    assert names(tmp_path) == ["graph-0001.html", "graph-0001.onnx", "graph-0001.txt", "index.html"]
    (y,) = ow.InferenceSession(tmp_path / "graph-0001.onnx").run(None, {"x": np.float32([1, -2])})
    assert y.tolist() == [-1.0, 2.0]
    assert f"built by a page of {ORIGIN}" in (tmp_path / "graph-0001.txt").read_text()
