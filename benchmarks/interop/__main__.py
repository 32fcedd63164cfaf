"""Measure custom operations beside built-in ones; write a page and charts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from opweave.support.errors import MLError

from .. import conclusions
from ..page import DOCS, machine
from .chart import chart
from .gpu_page import HEADING, chart as gpu_chart, image as gpu_image, section
from .gpu_report import GpuReport
from .measure import Report
from .page import markdown

IMAGE = Path("images", "interop-cpu.svg")
RECORD = "interop-gpu.json"
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
    """The report of a process that measures on `threads` processors."""
    processors = sorted(os.sched_getaffinity(0))[:threads]
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.interop.measure", str(repeat), str(seconds)],
        preexec_fn=partial(os.sched_setaffinity, 0, processors),
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    if result.returncode:
        raise SystemExit(f"the measurement on {threads} threads failed, see above")
    return Report.read(result.stdout.strip().splitlines()[-1])


def gpu_reports(path: Path) -> list[GpuReport]:
    """The reports of WebGPU devices in a file: one, or a list of them; none where there is no file."""
    if not path.is_file():
        return []
    values = json.loads(path.read_text())
    return [GpuReport.read(json.dumps(value)) for value in (values if isinstance(values, list) else [values])]


def write_gpu(output: Path, fresh: list[GpuReport]) -> None:
    """Write the page's section on GPUs, its charts, and the numbers; devices that were measured before keep theirs."""
    record = output.parent / RECORD
    reports = {report.device: report for report in [*gpu_reports(record), *fresh]}
    ordered = sorted(reports.values(), key=lambda report: report.software)
    record.write_text(json.dumps([asdict(report) for report in ordered], indent=2) + "\n")
    for report in ordered:
        picture = output.parent / gpu_image(report)
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.write_text(gpu_chart(report))
    before = output.read_text().partition(f"\n{HEADING}\n")[0] if output.is_file() else ""
    output.write_text(conclusions.completed("interop.md", before + section(ordered)))
    progress.print(f"{output} is written", highlight=False)


def on_gpu(device: str, size: int | None, repeat: int | None, result: Path | None, output: Path) -> None:
    """Measure on a WebGPU device."""
    from .gpu import gpu_report

    try:
        report = gpu_report(device, size, repeat)
    except MLError as error:
        raise SystemExit(str(error)) from None
    for text in report.missing:
        progress.print(f"[red]left out:[/red] {text}", highlight=False)
    if result is None:
        write_gpu(output, [report])
    else:
        result.write_text(report.to_json())
        progress.print(f"{result} is written", highlight=False)


def main(
    device: Annotated[str, typer.Option(help="cpu, or a WebGPU device: gpu, gpu:1, gpu-software.")] = "cpu",
    threads: Annotated[str, typer.Option(help="On the CPU: numbers of threads, separated by commas.")] = "1,2",
    repeat: Annotated[
        int | None, typer.Option(min=1, help="In how many turns to measure each way. Default: 20, GPUs 50, or 3.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.01, help="On the CPU: how long to measure a way in a turn.")] = 0.1,
    size: Annotated[int | None, typer.Option(min=1, help="On a GPU: height and width of the image.")] = None,
    result: Annotated[
        Path | None, typer.Option("--json", help="On a GPU: write the numbers here, and no page.")
    ] = None,
    render: Annotated[
        list[Path] | None, typer.Option(help="Measure nothing: write the page's part on GPUs, with what --json wrote.")
    ] = None,
    output: Annotated[Path, typer.Option(help="The page to write; charts go to images/ beside it.")] = DOCS
    / "interop.md",
) -> None:
    """Measure conv2d, add and relu as custom and as built-in operations, in one memory and with copies (WebNN's issue 6)."""
    if render:
        write_gpu(output, [report for path in render for report in gpu_reports(path)])
    elif device == "cpu":
        on_cpu(threads, repeat or 20, seconds, output)
    else:
        on_gpu(device, size, repeat, result, output)


def on_cpu(threads: str, repeat: int, seconds: float, output: Path) -> None:
    """Measure on the CPU, with each number of threads."""
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
    write_gpu(output, [])
    progress.print(f"{image} is written", highlight=False)


if __name__ == "__main__":
    typer.run(main)
