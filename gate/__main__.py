"""Run the models of the gate, print a table, and write it to docs/models.md."""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import conclusions
from benchmarks.budgets import GATE
from benchmarks.measure import in_process
from benchmarks.page import Table, machine

from . import catalog
from .verdict import HEADER, Verdict

PAGE = catalog.ROOT / "docs" / "models.md"
DEFAULT_BACKEND = "onnxruntime"

SECONDS = 300
"""How long one process may take."""


def judge(entry: catalog.Entry, packages: Path, times: bool, backend: str) -> Verdict:
    """Measure one model on one of Opweave's back ends."""
    verdict = Verdict(entry.name)
    if backend != DEFAULT_BACKEND:
        verdict.only_results, verdict.limit = True, max(verdict.limit, entry.unstable)
    with TemporaryDirectory(prefix="opweave-gate-") as folder:
        folders = Path(folder, "opweave"), Path(folder, "onnxruntime")
        measured = partial(in_process, "gate.measure", timeout=SECONDS)
        try:
            with entry.path(packages):  # quantised here: the processes measure memory
                pass
            reports = []
            for engine, path in zip((f"opweave:{backend}", "onnxruntime"), folders, strict=True):
                path.mkdir()
                reports.append(measured("run", engine, entry.name, str(packages), str(path)))
            verdict.judge_runs(reports[0], reports[1], folders)
            if times:
                verdict.judge_times(measured("times", backend, entry.name, str(packages)))
        except (RuntimeError, TimeoutError) as error:
            verdict.faults.append(str(error).splitlines()[-1])
    return verdict


def markdown(verdicts: Sequence[Verdict]) -> str:
    """The page."""
    packages = {entry.name: f"{entry.package} {entry.version}" for entry in catalog.entries()}
    header = [HEADER[0], "package", *HEADER[1:]]
    rows = [[(cells := verdict.cells())[0], packages[verdict.name], *cells[1:]] for verdict in verdicts]
    return f"""# Models from packages

ONNX models that other projects ship in their packages, in Opweave and in ONNX Runtime: unchanged, or quantised with
ONNX Runtime's tools where the name ends in "dynamic", "static", "4 bits" or "8 bits". Made by `make models`
(which is `python -m gate`) on {datetime.date.today()}: {machine()}.

{Table(header, rows)}

| Column | What it is | Limit |
|---|---|---|
| difference | of the results, relative to the largest element, over all shapes | {GATE["difference"]} |
| steady | the time of a call at the first shape, as a share of ONNX Runtime's; median of pairs of calls in one process | \
{GATE["steady"]}x for the lower quartile |
| after 30 ms, 100 ms | likewise of calls that each come after such a pause, in which threads of an engine go to sleep | \
{GATE["steady"]}x for the lower quartiles |
| new shapes | the first call at each new shape after the first one, likewise: the median of five shapes, and the worst | \
{GATE["new shapes"]}x, {GATE["new shape"]}x |
| memory | the peak of a process that runs six shapes, three times each, imports included | {GATE["memory"]}x |
| threads | the most in that process; in parentheses, ONNX Runtime's | {GATE["threads"]} (processors + 8) |
| loading | the time to make the session | none |

Models whose shapes are fixed have no new shapes. `tests/data/gate.toml` says which shapes and inputs are used.
"""


def main(
    model: Annotated[list[str] | None, typer.Option(help="A model, by name or by a part of it. Default: all.")] = None,
    times: Annotated[bool, typer.Option(help="Measure times, too.")] = True,
    packages: Annotated[Path, typer.Option(help="Where the packages are installed.")] = catalog.PACKAGES,
    backend: Annotated[
        str, typer.Option(help="The back end; only onnxruntime has limits beside the results.")
    ] = DEFAULT_BACKEND,
    quantized: Annotated[bool, typer.Option(help="Only models that ONNX Runtime's tools quantise.")] = False,
    list_models: Annotated[bool, typer.Option("--list", help="Print the names of the models, and stop.")] = False,
) -> None:
    """Compare ONNX models from packages with ONNX Runtime: results, time, new shapes, memory, threads.

    All of them, with times, on ONNX Runtime are written to docs/models.md. Exits with 1 if a model exceeds a limit.
    """
    chosen = [e for e in catalog.entries() if not model or any(part.lower() in e.name.lower() for part in model)]
    chosen = [entry for entry in chosen if entry.quantized or not quantized]
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
        verdict = judge(entry, packages.resolve(), times, backend)
        verdicts.append(verdict)
        line = ", ".join(f"{what} {cell}" for what, cell in zip(HEADER[1:], verdict.cells()[1:], strict=True) if cell)
        took = f"{time.perf_counter() - start:.0f} s"
        console.print(
            f"{number}/{len(chosen)} {entry.name}: {line} [{took}]", highlight=False, markup=False, soft_wrap=True
        )
    Table(HEADER, [verdict.cells() for verdict in verdicts]).show([not verdict.faults for verdict in verdicts])
    if not model and not quantized and times and backend == DEFAULT_BACKEND:
        conclusions.write(PAGE.name, markdown(verdicts))
    if any(verdict.faults for verdict in verdicts):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
