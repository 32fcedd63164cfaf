"""examples/vite: its Playwright test passes, and what Vite builds for production has nothing of Opweave."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import browser as browsers
import numpy as np
import pytest
from libraries import HERE, NODE_MODULES, ROOT, missing
from support import node_js

import opweave as ow

EXAMPLE = ROOT / "examples" / "vite"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The example, with the packages beside it as `npm install` would put them there."""
    node_js.need()
    if not (NODE_MODULES / "vite").exists() or not (NODE_MODULES / "@playwright" / "test").exists():
        missing("vite and @playwright/test are not installed: npm ci --prefix tests/web")
    shutil.copytree(EXAMPLE, tmp_path / "app", ignore=shutil.ignore_patterns("node_modules"))
    (tmp_path / "app" / "node_modules").symlink_to(NODE_MODULES)
    return tmp_path / "app"


def run(folder: Path, *command: str) -> str:
    # The command `opweave` of this checkout, wherever it is installed.
    programs = folder.parent / "bin"
    programs.mkdir()
    (programs / "opweave").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m opweave "$@"\n')
    (programs / "opweave").chmod(0o755)
    environment = {**os.environ, "CHROMIUM": browsers.find() or "", "PATH": f"{programs}:{os.environ['PATH']}"}
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        environment["OPWEAVE_URL"] = f"http://127.0.0.1:{one.getsockname()[1]}"
        environment["PORT"] = str(other.getsockname()[1])
    environment |= {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    process = subprocess.run(
        ["npx", "--no-install", *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert process.returncode == 0, f"{process.stdout}\n{process.stderr}"
    return process.stdout


@pytest.mark.parametrize("example", ["vite", "web"])
def test_versions_are_those_that_run_here(example: str) -> None:
    versions = json.loads((ROOT / "examples" / example / "package.json").read_text())["devDependencies"]
    installed = json.loads((HERE / "package.json").read_text())["dependencies"]
    assert versions == {name: installed[name] for name in versions}


def test_playwright_test_of_the_example(folder: Path) -> None:
    if browsers.find() is None:
        missing("there is no Chromium: install it, or set CHROMIUM to its path")
    assert "1 passed" in run(folder, "playwright", "test", "--reporter=list")


def test_production_has_no_script_of_the_server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPWEAVE_TOKEN", "secret")
    run(folder, "vite", "build", "--logLevel", "error")
    written = "".join(path.read_text() for path in (folder / "dist").rglob("*") if path.is_file())
    assert "webnn.js" not in written
    assert "secret" not in written
    assert "softmax" in written


def test_weights_of_a_converted_module_are_built(folder: Path) -> None:
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="cpu"))
    # Vite writes files of less than 4 KiB into the script.
    weights = builder.constant(np.arange(2000, dtype="float32").reshape(4, 500))
    graph = builder.build({"y": builder.matmul(builder.input("x", "float32", [1, 4]), weights)})
    ow.js.save(graph, folder / "model.mjs")
    (folder / "main.js").write_text(
        'import { build } from "./model.mjs";\nawait build(await navigator.ml.createContext());\n'
    )
    run(folder, "vite", "build", "--logLevel", "error")
    (copy,) = (folder / "dist" / "assets").glob("*.safetensors")
    assert copy.read_bytes() == (folder / "model.safetensors").read_bytes()
    assert any(copy.name in path.read_text() for path in (folder / "dist" / "assets").glob("*.js"))
