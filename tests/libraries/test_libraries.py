"""Libraries that call ONNX Runtime find the same on Opweave, unchanged, and those that take arrays compute on its arrays:
`make test-libraries`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from programs import PROGRAMS

HERE = Path(__file__).parent
TIMEOUT = 600


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("library", PROGRAMS)
def test_library_runs_unchanged(library: str, order: str, tmp_path: Path) -> None:
    environment = {**os.environ, "OPWEAVE_STRICT": "1", "HOME": str(tmp_path)}
    command = [sys.executable, str(HERE / "child.py"), library, order]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        timeout=TIMEOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    print(done.stdout[-500:])


@pytest.mark.parametrize("library", ["einops", "scipy", "sklearn"])
def test_library_of_arrays_gives_the_results_of_numpy(library: str, tmp_path: Path) -> None:
    environment = {**os.environ, "SCIPY_ARRAY_API": "1", "HOME": str(tmp_path)}
    command = [sys.executable, str(HERE / "array_child.py"), library]
    done = subprocess.run(command, cwd=tmp_path, env=environment, timeout=TIMEOUT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"calls of {library} agree" in done.stdout
