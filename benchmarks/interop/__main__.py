"""Measure custom operations beside built-in ones; write a page and a chart."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..__main__ import DOCS, machine
from .chart import chart
from .measure import Report
from .page import markdown

IMAGE = Path("images", "interop-cpu.svg")
ROOT = DOCS.parent
progress = Console(stderr=True)


def counts(text: str) -> list[int]:
    """Numbers of threads, as `--threads` has them.

    Raises:
        BadParameter: something else, or more than there are processors.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise typer.BadParameter("the number of threads can be chosen on Linux only")
    most = len(os.sched_getaffinity(0))
    found = []
    for item in text.split(","):
        if not item.strip().isdigit() or not 1 <= int(item) <= most:
            raise typer.BadParameter(f"--threads takes numbers from 1 to {most}, separated by commas, got {text!r}")
        found.append(int(item))
    return sorted(set(found))


def measure(threads: int, repeat: int, seconds: float) -> Report:
    """What a process of its own measures on so many processors."""
    processors = sorted(os.sched_getaffinity(0))[:threads]
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.interop.measure", str(repeat), str(seconds)],
        preexec_fn=partial(os.sched_setaffinity, 0, processors),
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    if result.returncode:
        raise SystemExit(f"the measurement on {threads} threads failed, see above")
    return Report.read(result.stdout.strip().splitlines()[-1])


def main(
    threads: Annotated[str, typer.Option(help="Numbers of threads to measure with, separated by commas.")] = "1,2",
    repeat: Annotated[int, typer.Option(min=1, help="In how many turns to measure each way.")] = 20,
    seconds: Annotated[float, typer.Option(min=0.01, help="How long to measure one way in a turn.")] = 0.1,
    output: Annotated[Path, typer.Option(help="The page to write; the chart goes to images/ beside it.")] = DOCS
    / "interop.md",
) -> None:
    """Measure conv2d, add and relu as custom and as built-in operations, in one memory and with copies (WebNN's issue 6)."""
    reports = []
    for count in counts(threads):
        progress.print(f"{count} thread{'s' if count > 1 else ''} …")
        reports.append(measure(count, repeat, seconds))
        for text in reports[-1].missing:
            progress.print(f"[red]left out:[/red] {text}", highlight=False)
    image = output.parent / IMAGE
    image.parent.mkdir(parents=True, exist_ok=True)
    image.write_text(chart(reports))
    output.write_text(markdown(reports, machine(), "python -m benchmarks.interop", IMAGE.as_posix()))
    progress.print(f"{output} and {image} are written")


if __name__ == "__main__":
    typer.run(main)
