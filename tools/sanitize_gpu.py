"""Run a sample of the kernels of every family on an NVIDIA GPU under compute-sanitizer.

    python tools/sanitize_gpu.py                         # all tools
    python tools/sanitize_gpu.py --tool racecheck -- -k step

What follows `--` goes to pytest. The sanitizer comes with the CUDA toolkit (`$CUDA_HOME/bin`). Ends with status 1 if a tool
found something, or a test failed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests" / "backends" / "cuda"
TESTS = ("families", "size_families", "step", "attention", "composites")
"""Operations one by one; graphs with names at odd sizes; products of few rows with what is joined to them; attention on tensor
cores; other composites."""

TOOLS = {
    "memcheck": "accesses out of bounds and misaligned ones, in global and shared memory",
    "racecheck": "races in shared memory",
    "synccheck": "barriers that some threads do not reach",
    "initcheck": "reads of global memory that nothing has written",
}
FOUND = 86
"""The status of the sanitizer where it found something; pytest's are smaller."""


def sanitizer() -> str:
    """The path of compute-sanitizer.

    Raises:
        SystemExit: there is none.
    """
    folders = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), "/usr/local/cuda"]
    places = os.pathsep.join([os.environ.get("PATH", ""), *(str(Path(folder) / "bin") for folder in folders if folder)])
    found = shutil.which("compute-sanitizer", path=places)
    if found is None:
        raise SystemExit("there is no compute-sanitizer here: install the CUDA toolkit, or set CUDA_HOME")
    return found


def command(program: str, tool: str, rest: list[str]) -> list[str]:
    """The command that runs the tests under a tool."""
    tests = [str(FOLDER / f"test_cuda_{name}.py") for name in TESTS]
    # Workers that compile kernels do not touch the GPU: only the process of the tests is looked at.
    options = ["--tool", tool, "--error-exitcode", str(FOUND), "--target-processes", "application-only"]
    return [program, *options, sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *tests, *rest]


def main(arguments: list[str] | None = None) -> int:
    """Run the tools one after the other, and print a line for each."""
    given, rest = list(sys.argv[1:] if arguments is None else arguments), list[str]()
    if "--" in given:
        place = given.index("--")
        given, rest = given[:place], given[place + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", choices=TOOLS, action="append", help="one of the tools; may be given several times")
    chosen = parser.parse_args(given).tool or list(TOOLS)
    program = sanitizer()
    environment = {**os.environ, "OPWEAVE_TEST_DEVICE": os.environ.get("OPWEAVE_TEST_DEVICE", "cuda")}
    results = {}
    for tool in chosen:
        print(f"== {tool}: {TOOLS[tool]}", flush=True)
        results[tool] = subprocess.run(command(program, tool, rest), cwd=ROOT, env=environment, check=False).returncode
    for tool, status in results.items():
        text = "clean" if not status else "found something" if status == FOUND else f"the tests failed ({status})"
        print(f"{tool}: {text}")
    return int(any(results.values()))


if __name__ == "__main__":
    sys.exit(main())
