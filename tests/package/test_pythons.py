"""Which Python `make test-newest` takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "pythons.py"


def command(path: Path, status: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\nexit {status}\n")
    path.chmod(0o755)


def newest(tmp_path: Path, base: str) -> str:
    """What the tool prints to a Python 3.11 with these commands, for versions up to 3.13."""
    code = f"""
import sys
sys.path.insert(0, {str(TOOL.parent)!r})
import pythons
sys.version_info = (3, 11, 7)
sys.base_prefix = {base!r}
pythons.tested_versions = lambda: [(3, 11), (3, 12), (3, 13)]
print(pythons.newest())
"""
    environment = os.environ | {"PATH": str(tmp_path / "bin"), "PYENV_ROOT": str(tmp_path / "pyenv")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    return done.stdout.strip().replace(f"{tmp_path}/", "")


@pytest.mark.skipif(os.name == "nt", reason="its commands are scripts of a shell")
def test_newest_python(tmp_path: Path) -> None:
    base = str(tmp_path / "others" / "3.11.7")
    command(tmp_path / "bin" / "python3.11", 0)
    command(tmp_path / "bin" / "python3.14", 0)  # the package is not tested on it
    assert newest(tmp_path, base) == "None"
    command(tmp_path / "others" / "3.12.1" / "bin" / "python3.12", 0)
    assert newest(tmp_path, base) == "others/3.12.1/bin/python3.12"
    command(tmp_path / "bin" / "python3.13", 127)  # a version that pyenv has, and that is not selected
    assert newest(tmp_path, base) == "others/3.12.1/bin/python3.12"
    command(tmp_path / "pyenv" / "versions" / "3.13.0" / "bin" / "python3.13", 0)
    assert newest(tmp_path, base) == "pyenv/versions/3.13.0/bin/python3.13"
    command(tmp_path / "bin" / "python3.13", 0)
    assert newest(tmp_path, base) == "bin/python3.13"


def test_tested_versions_equal_classifiers() -> None:
    code = f"import sys; sys.path.insert(0, {str(TOOL.parent)!r}); import pythons; print(pythons.tested_versions())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("[(3, 11), (3, 12), (3, 13)")
