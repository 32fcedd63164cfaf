"""Node.js, for tests of the JavaScript side."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

OLDEST = 20  # the oldest release of Node.js that is maintained
ROOT = Path(__file__).parents[1]
JS = ROOT / "tests" / "serve" / "js"


@cache
def missing() -> str | None:
    """Why there is no Node.js that can run the tests, or None."""
    node = shutil.which("node")
    if node is None:
        return "Node.js is not installed"
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    return (
        None if int(version[1:].partition(".")[0]) >= OLDEST else f"Node.js {OLDEST} or newer is needed, got {version}"
    )


def run(
    arguments: Sequence[str], timeout: float, environment: Mapping[str, str] | None = None, folder: Path = ROOT
) -> str:
    """Run Node.js and return its output; skips the test where there is no Node.js, which in CI is an error."""
    reason = missing()
    if reason is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    command = ["node", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, env={**os.environ, **(environment or {})}, cwd=folder
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-8000:]}\n{done.stderr[-4000:]}"
    return done.stdout
