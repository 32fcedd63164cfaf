"""The working tree against another revision of this repository: no hot path may be slower by more than 5%.

`python -m benchmarks against main` checks the revision out in a temporary folder (a path of a folder works, too) and runs
each path of `benchmarks.hot_paths` in pairs of processes, one with each version. A line on the standard input of a process
starts a slice of calls; slices alternate (A, B, A, B, …), and only one process runs at a time. New processes count as well
as new slices: where memory happens to lie makes a few percent for as long as a process lives.

With `--instructions`, Valgrind counts the instructions of a call instead, which no other load on the machine changes.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from .budgets import BUDGETS
from .hot_paths import GATE, PATHS, HotPath, prepare
from .measure import ROOT, Ratio, environment
from .page import Table
from .rows import SCALE

COUNTED = 200, 1200
"""Calls of two runs under Valgrind: what they differ by is that of the calls alone."""


@contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """A folder with a revision of this repository, or the folder itself that is named."""
    if Path(revision, "src", "opweave").is_dir():
        yield Path(revision).resolve()
        return
    git = ["git", "-C", str(ROOT), "worktree"]
    with TemporaryDirectory(prefix="opweave-against-") as folder:
        subprocess.run([*git, "add", "--quiet", "--detach", f"{folder}/tree", revision], check=True)
        try:
            yield Path(folder, "tree")
        finally:
            subprocess.run([*git, "remove", "--force", f"{folder}/tree"], check=True)


class Worker:
    """A process that calls a hot path of one version on request."""

    def __init__(self, stack: ExitStack, name: str, tree: Path, models: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.hot_paths", name, str(models)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        process = subprocess.Popen(command, cwd=ROOT, env=environment(tree / "src"), **pipes)
        self._process = stack.enter_context(process)
        stack.callback(self._process.kill)
        self.count = int(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        line: str = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process that measures ended with {self._process.wait()}")
        return line

    def measure(self, count: int, pause: float) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count} {pause}\n")
        return float(self._line())


def pairs(name: str, trees: Sequence[Path], models: Path) -> tuple[list[float], list[float]]:
    """Values of both versions, measured in pairs."""
    path: HotPath = PATHS[name]
    found: tuple[list[float], list[float]] = [], []
    for turn in range(path.processes):
        with ExitStack() as stack:
            order = (0, 1) if turn % 2 else (1, 0)
            workers = {k: Worker(stack, name, trees[k], models) for k in order}
            count = workers[1].count
            for part in range(path.slices + 1):
                values = {k: workers[k].measure(count, path.pause) for k in (order if part % 2 else order[::-1])}
                if part or path.value:  # the first slice warms up
                    for k, value in values.items():
                        found[k].append(value)
                if path.value:
                    break
    return found


def instructions(name: str, tree: Path, models: Path) -> float:
    """Thousands of instructions of the main thread a call, counted by Valgrind."""
    measured = [sys.executable, "-m", "benchmarks.hot_paths", name, str(models)]
    subprocess.run([*measured, "1"], cwd=ROOT, env=environment(tree / "src"), check=True)  # compiles what is imported
    totals = []
    for count in COUNTED:
        with TemporaryDirectory() as folder:
            command = ["valgrind", "--tool=callgrind", "--separate-threads=yes", f"--callgrind-out-file={folder}/found"]
            variables = {**environment(tree / "src"), "PYTHONHASHSEED": "0"}
            subprocess.run([*command, *measured, str(count)], cwd=ROOT, env=variables, capture_output=True, check=True)
            said = re.search(r"^totals: (\d+)", Path(folder, "found-01").read_text(), re.MULTILINE)
        assert said is not None, "Valgrind has written no total"
        totals.append(int(said[1]))
    return (totals[1] - totals[0]) / (COUNTED[1] - COUNTED[0]) / 1e3


def main(
    revision: Annotated[str, typer.Argument(help="A revision of this repository, or a folder with a checkout.")],
    path: Annotated[
        list[str] | None, typer.Option(help=f"Of {', '.join(PATHS)}. Default: all but models of the gate.")
    ] = None,
    count: Annotated[bool, typer.Option("--instructions", help="Count instructions with Valgrind.")] = False,
) -> None:
    """Compare hot paths of the working tree with another revision; exits with 1 if one is slower by more than 5%."""
    if unknown := set(path or ()) - set(PATHS):
        raise typer.BadParameter(f"there is no hot path {', '.join(sorted(unknown))}; there are {', '.join(PATHS)}")
    if count and shutil.which("valgrind") is None:
        raise typer.BadParameter("--instructions needs Valgrind, which is not installed")
    unit = "instructions, thousands" if count else ""
    rows, within = list[list[str]](), list[bool]()
    with checkout(revision) as other, TemporaryDirectory(prefix="opweave-models-") as folder:
        models = Path(folder)
        prepare(models)
        trees = ROOT, other
        one_thread = [name for name, hot in PATHS.items() if hot.unit == "us"]
        for name in path or (one_thread if count else [name for name in PATHS if name not in GATE]):
            hot: Any = PATHS[name]
            if count:
                ours, theirs = ([instructions(name, tree, models)] for tree in trees)
            else:
                ours, theirs = pairs(name, trees, models)
            ratio = Ratio.of(ours, theirs)
            holds = BUDGETS["another revision"].holds(ratio=ratio)
            within.append(holds)
            scale = 1.0 if count else SCALE[hot.unit]
            cells = [
                hot.what,
                *(f"{median(values) * scale:.4g}" for values in (ours, theirs)),
                "" if count else hot.unit,
            ]
            rows.append([*cells, str(ratio), "" if holds else "SLOWER"])
            print(*cells, ratio, file=sys.stderr, flush=True)
    Table(["hot path", "this", revision, unit, "ratio (quartiles)", ""], rows).show(within)
    raise typer.Exit(not all(within))


if __name__ == "__main__":
    typer.run(main)
