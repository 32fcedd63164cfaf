"""Packages that are made for a test: modules and metadata in a folder, and programs that find them there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import opweave as ow

TESTS = Path(__file__).parents[1]


def plant(folder: Path, module: str, text: str = "", version: str = "") -> None:
    """Write a module, as a package, and the metadata of the distribution of its name if it has a version."""
    package = folder.joinpath(*module.split("."))
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(text)
    if version:
        metadata = folder / f"{module}-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: {version}\n")


def run(folder: Path, code: str) -> str:
    """What a program prints that finds the packages of a folder before all others, and Opweave and the tests' modules."""
    paths = os.pathsep.join(map(str, [folder, TESTS, Path(ow.__file__).parents[1]]))
    environment = {**os.environ, "PYTHONPATH": paths, "OPWEAVE_CACHE": str(folder / "cache"), "COLUMNS": "1000"}
    environment.pop("OPWEAVE_DEVICE", None)
    environment.pop("OPWEAVE_EXPRESSIONS", None)
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
