"""The example that runs a model on each GPU, with actors on processors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'opweave[scale]'")

EXAMPLE = Path(__file__).parents[2] / "examples" / "gpus_on_ray.py"


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "status", "texts"),
    [
        (["--actors", "2"], 0, ["actor 0: cpu (GPUs from Ray: none)", "actor 1: cpu", "1 actor: ", "2 actors: "]),
        (["--device", "gpu", "--actors", "99"], 1, ["GPUs; 99 actors need one each"]),
    ],
)
def test_actors_of_the_example(options: list[str], status: int, texts: list[str]) -> None:
    sizes = ["--device", "cpu", "--rows", "8", "--batches", "2", "--layers", "1"]
    environment = {**os.environ, "RAY_raylet_start_wait_time_s": "300"}  # Ray gives a busy machine 30 s
    command = [sys.executable, EXAMPLE, *sizes, *options]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert result.returncode == status, result.stderr
    for text in texts:
        assert text in result.stdout + result.stderr
