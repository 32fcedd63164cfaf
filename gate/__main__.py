"""Run the models of the gate, print a table, and write it to docs/models.md."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.__main__ import machine

from . import catalog
from .verdict import HEADER, MEMORY_RATIO, NEW_SHAPE_RATIO, NEW_SHAPES_RATIO, STEADY_RATIO, THREADS, TOLERANCE, Verdict

PAGE = catalog.ROOT / "docs" / "models.md"
SECONDS = 300
"""How long one process may take."""


class Failed(Exception):  # noqa: N818  (a result of the gate, not a fault of it)
    """A process ended with an error; the message is the last line that it wrote."""


def child(*args: str) -> dict[str, Any]:
    """What `python -m gate.measure args` reports."""
    command = [sys.executable, "-m", "gate.measure", *args]
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=catalog.ROOT, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise Failed(f"takes more than {SECONDS} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise Failed(lines[-1] if lines else f"ends with {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def judge(entry: catalog.Entry, packages: Path, times: bool) -> Verdict:
    """Measure one model."""
    verdict = Verdict(entry.name)
    with TemporaryDirectory(prefix="opweave-gate-") as folder:
        folders = Path(folder, "opweave"), Path(folder, "onnxruntime")
        try:
            reports = []
            for path in folders:
                path.mkdir()
                reports.append(child("run", path.name, entry.name, str(packages), str(path)))
            verdict.judge_runs(reports[0], reports[1], folders)
            if times:
                verdict.judge_times(child("times", entry.name, str(packages)))
        except Failed as error:
            verdict.faults.append(str(error))
    return verdict


def markdown(verdicts: Sequence[Verdict]) -> str:
    """The page."""
    packages = {entry.name: f"{entry.package} {entry.version}" for entry in catalog.entries()}
    header = [HEADER[0], "package", *HEADER[1:]]
    rows = [[(cells := verdict.cells())[0], packages[verdict.name], *cells[1:]] for verdict in verdicts]
    table = "\n".join(f"| {' | '.join(line)} |" for line in [header, ["---"] * len(header), *rows])
    return f"""# Models from packages

ONNX models that other projects ship in their packages, unchanged, in Opweave and in ONNX Runtime. Made by `make models`
(which is `python -m gate`) on {datetime.date.today()}: {machine()}.

{table}

| Column | What it is | Limit |
|---|---|---|
| difference | of the results, relative to the largest element, over all shapes | {TOLERANCE} |
| steady | the time of a call at the first shape, as a share of ONNX Runtime's; median of pairs of calls in one process | \
{STEADY_RATIO}x for the lower quartile |
| new shapes | the first call at each new shape after the first one, likewise: the median of five shapes, and the worst | \
{NEW_SHAPES_RATIO}x, {NEW_SHAPE_RATIO}x |
| memory | the peak of a process that runs six shapes, three times each, imports included | {MEMORY_RATIO}x |
| threads | the most in that process; in parentheses, ONNX Runtime's | {THREADS} (processors + 8) |
| loading | the time to make the session | none |

Models whose shapes are fixed have no new shapes. `tests/data/gate.toml` says which shapes and inputs are used.
"""


def main(
    model: Annotated[list[str] | None, typer.Option(help="A model, by name or by a part of it. Default: all.")] = None,
    times: Annotated[bool, typer.Option(help="Measure times, too.")] = True,
    packages: Annotated[Path, typer.Option(help="Where the packages are installed.")] = catalog.PACKAGES,
    list_models: Annotated[bool, typer.Option("--list", help="Print the names of the models, and stop.")] = False,
) -> None:
    """Compare ONNX models out of packages with ONNX Runtime: results, time, new shapes, memory, threads.

    All of them, with times, are written to docs/models.md. Exits with 1 if a model exceeds a limit.
    """
    chosen = [e for e in catalog.entries() if not model or any(part.lower() in e.name.lower() for part in model)]
    console = Console()
    if list_models:
        for entry in chosen:
            console.print(f"{entry.name} ({entry.package} {entry.version})", highlight=False, markup=False)
        return
    if not chosen:
        raise typer.BadParameter(f"there is no model {model}; see --list")
    verdicts = []
    for number, entry in enumerate(chosen, 1):
        start = time.perf_counter()
        verdict = judge(entry, packages.resolve(), times)
        verdicts.append(verdict)
        line = ", ".join(f"{what} {cell}" for what, cell in zip(HEADER[1:], verdict.cells()[1:], strict=True) if cell)
        took = f"{time.perf_counter() - start:.0f} s"
        console.print(
            f"{number}/{len(chosen)} {entry.name}: {line} [{took}]", highlight=False, markup=False, soft_wrap=True
        )
    table = Table(*HEADER, box=None)
    for verdict in verdicts:
        table.add_row(*verdict.cells(), style="red" if verdict.faults else "")
    console.print(table)
    if not model and times:
        PAGE.write_text(markdown(verdicts), encoding="utf-8")
    if any(verdict.faults for verdict in verdicts):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
