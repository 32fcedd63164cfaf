"""How many threads the engine takes: as many as the process may use processors."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

COUNT = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
import numpy as np, opweave as ow
context = ow.ml.create_context(device="cpu")
builder = ow.MLGraphBuilder(context)
x = builder.input("x", "float32", [1, 8, 64, 64])
graph = builder.build({"y": builder.conv2d(x, builder.constant(np.ones((8, 8, 3, 3), "float32")))})
context.compute(graph, {"x": np.ones((1, 8, 64, 64), "float32")})
print({processor for task in os.listdir("/proc/self/task") for processor in os.sched_getaffinity(int(task))})
"""


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="only Linux says what a process may use")
@pytest.mark.skipif(os.cpu_count() == 1, reason="with one processor there is nothing to choose")
def test_threads_stay_on_the_processors_of_the_process() -> None:
    """The engine's own choice is a thread for each processor of the machine, tied to it."""
    allowed = min(os.sched_getaffinity(0))
    result = subprocess.run(
        [sys.executable, "-c", COUNT, str(allowed)], capture_output=True, text=True, check=True, timeout=120
    )
    assert result.stdout.strip() == f"{{{allowed}}}"
