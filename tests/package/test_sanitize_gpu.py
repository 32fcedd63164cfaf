"""The command that runs kernels under compute-sanitizer, with a program in its place that says what a tool would find."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "sanitize_gpu.py"
STAND_IN = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/calls"
[ "$2" = racecheck ] && exit 86
exit 0
"""

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the stand-in is a shell script")


def sanitize(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CUDA_HOME": str(home), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_sanitize_gpu_runs_each_tool(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "compute-sanitizer"
    program.write_text(STAND_IN)
    program.chmod(0o755)
    done = sanitize(tmp_path)
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-4:] == [
        "memcheck: clean",
        "racecheck: found something",
        "synccheck: clean",
        "initcheck: clean",
    ]
    calls = (tmp_path / "bin" / "calls").read_text().splitlines()
    for file in (word for word in calls[0].split() if word.endswith(".py")):
        assert Path(file).is_file()
    assert [call.split()[1] for call in calls] == ["memcheck", "racecheck", "synccheck", "initcheck"]
    assert sanitize(tmp_path, "--tool", "memcheck", "--", "-k", "step").returncode == 0
    assert (tmp_path / "bin" / "calls").read_text().splitlines()[-1].endswith("-k step")


def test_sanitize_gpu_without_toolkit(tmp_path: Path) -> None:
    done = sanitize(tmp_path)
    assert (done.returncode, "install the CUDA toolkit" in done.stderr) == (1, True)
