"""The plugin of pytest, in test runs of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
import pytest

class Page:
    def __init__(self):
        self.scripts = []
    def add_init_script(self, script):
        self.scripts.append(script)

@pytest.fixture
def page():
    return Page()
"""

GRAPH = """
import numpy as np
import opweave as ow

def graph(bias=0.0):
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
    x = builder.input("x", "float32", [2, 3])
    y = builder.matmul(x, builder.constant(np.ones((3, 2), "float32")), label="dense")
    return builder.build({"y": y.add(builder.constant("float32", bias)) if bias else y})
"""


def run(folder: Path, test: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_app.py").write_text(GRAPH + test)
    # The entry point has the same effect, where the package is installed.
    disabled = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    tests = str(Path(__file__).parents[1])
    environment = {**os.environ, **disabled, "PYTHONPATH": os.pathsep.join([tests, *sys.path])}
    command = [sys.executable, "-m", "pytest", "-p", "opweave.serve.pytest_plugin", "-p", "no:cacheprovider", "-q"]
    return subprocess.run(
        [*command, *options, "."], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.mark.long
def test_pages_have_navigator_ml(tmp_path: Path) -> None:
    result = run(
        tmp_path,
        """
from support.served_clients import Client

def test_page(page, webnn, webnn_record, assert_graph_snapshot):
    (script,) = page.scripts
    assert webnn.url in script and webnn.token in script
    assert len(webnn_record) == 0
    with Client(webnn, origin="http://anywhere:1") as client:
        assert client.hello()["device"] == "reference"

def test_program(webnn):
    assert webnn.stats().dispatches == 0
    assert webnn.recorded == []
""",
        "--webnn-device",
        "reference",
    )
    assert result.returncode == 0, result.stdout
    result = run(tmp_path, "def test_page(webnn):\n    pass\n", "--webnn-device", "nonsense")
    assert result.returncode == 1
    assert "nonsense" in result.stdout


@pytest.mark.long
def test_snapshots_are_written_compared_and_shown(tmp_path: Path) -> None:
    test = """
def test_graph(assert_graph_snapshot):
    assert_graph_snapshot(graph(BIAS))
    assert_graph_snapshot([graph(BIAS), graph()], "two")
"""
    missing = run(tmp_path, test.replace("BIAS", "0.0"))
    assert missing.returncode == 1
    assert "test_graph.txt; pytest --webnn-update writes it" in missing.stdout
    assert run(tmp_path, test.replace("BIAS", "0.0"), "--webnn-update").returncode == 0
    folder = tmp_path / "__snapshots__" / "test_app"
    assert sorted(path.name for path in folder.iterdir()) == ["test_graph-two.txt", "test_graph.txt"]
    assert "matmul(x, const float32[3, 2])  # 'dense'" in (folder / "test_graph.txt").read_text()
    assert (folder / "test_graph-two.txt").read_text().count("'dense'") == 2
    assert run(tmp_path, test.replace("BIAS", "0.0")).returncode == 0
    changed = run(tmp_path, test.replace("BIAS", "0.5"))
    assert changed.returncode == 1
    assert "the graphs are not those of the snapshot; pytest --webnn-update accepts them" in changed.stdout
    assert any(line.lstrip("E ").startswith("+") and "add(" in line for line in changed.stdout.splitlines())


@pytest.mark.long
def test_recorded_graphs_have_texts_and_models(tmp_path: Path) -> None:
    result = run(
        tmp_path,
        """
import numpy as np
def test_record(webnn, webnn_record, assert_graph_snapshot):
    for bias in (0.0, 0.5, 0.0):
        webnn._recording.add(graph(bias), None)  # as a client's request does
    assert len(webnn_record) == 2 and len(webnn_record.models) == 2
    assert ["add" in text for text in webnn_record.texts] == [False, True]
    (y,) = ow.InferenceSession(webnn_record.models[1]).run(None, {"x": np.ones((2, 3), "float32")})
    assert (y == 3.5).all()
    assert_graph_snapshot(webnn_record.texts)
""",
        "--webnn-update",
    )
    assert result.returncode == 0, result.stdout
