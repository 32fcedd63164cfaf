"""The calls of NVIDIA's driver, through NVIDIA's bindings, on a driver that runs on the processor (`libcuda.cpp`).

It does no work before it is waited for, and knows which handles are alive: what is freed or changed too early, and what is
never given back, shows.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.cuda_on_cpu import OPTIONS, compiler

from opweave.backends.cuda import devices

FOLDER = Path(__file__).parent


@pytest.mark.skipif(not devices.is_installed(), reason="pip install 'opweave[cuda]'")
def test_graphs_tensors_and_streams_give_right_results_and_everything_back(tmp_path: Path) -> None:
    library = tmp_path / "libcuda.so.1"
    command = [*compiler(), *OPTIONS, "-o", str(library), str(FOLDER / "libcuda.cpp"), "-ldl"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "OPWEAVE_CACHE": str(tmp_path)}
    program = [sys.executable, str(FOLDER / "libcuda_program.py")]
    done = subprocess.run(program, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout) == (0, "{}\n"), done.stderr[-4000:]
