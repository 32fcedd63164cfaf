"""Node.js, for tests of the JavaScript side."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from opweave.serve.client_files import write_clients

HANG_SECONDS = 900  # a process that takes longer has stopped working; machines that are busy take minutes
OLDEST = 20  # the oldest release of Node.js that is maintained
ROOT = Path(__file__).parents[2]
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


@cache
def package() -> Path:
    """The package for Node.js, as `opweave serve --write` writes it; modules find it in `OPWEAVE_PACKAGE`, too."""
    folder = Path(tempfile.mkdtemp(prefix="opweave-webnn-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return write_clients(folder)[0]


def need() -> None:
    """Skip the test where there is no Node.js; in CI, that is an error."""
    reason = missing()
    if reason is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


def run(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Run Node.js with further environment variables, and return its output."""
    with started(arguments, environment) as process:
        out, errors = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 0, f"{' '.join(arguments)}\n{out[-8000:]}\n{errors[-4000:]}"
    return out


@contextmanager
def started(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """A process of Node.js, which ends with the block."""
    need()
    process = subprocess.Popen(
        ["node", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OPWEAVE_PACKAGE": package().as_uri(), **(environment or {})},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
