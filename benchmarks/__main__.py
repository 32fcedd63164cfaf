"""Run the benchmarks, print a table, and write it to docs/benchmarks.md and docs/benchmarks.json."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict
from importlib import import_module, metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from opweave.backends import find_device

from .common import Row

DOCS = Path(__file__).parent.parent / "docs"
BENCHMARKS = ("overhead", "convolution", "resnet50", "architectures", "fusion", "expressions", "op_level")
VERSIONS = ("opweave", "onnxruntime", "numpy")


def machine() -> str:
    """What the numbers were measured on."""
    processor = find_device("cpu")[1].description.partition(", ONNX Runtime")[0]
    versions = ", ".join(f"{package} {metadata.version(package)}" for package in VERSIONS)
    python = f"Python {platform.python_version()}"
    return f"{processor}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}; {python}, {versions}"


def cells(row: Row) -> list[str]:
    theirs = "" if row.theirs is None else f"{row.theirs:.3g} {row.unit}"
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}x"
    return [
        row.what,
        f"{row.ours:.3g} {row.unit}",
        theirs,
        row.against,
        ratio,
        row.budget,
        "yes" if row.holds else "NO",
    ]


HEADER = ["what", "Opweave", "compared with", "which is", "ratio", "budget", "holds"]


def markdown(rows: list[Row]) -> str:
    lines = [HEADER, ["---"] * len(HEADER), *map(cells, rows)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"""# Benchmarks

Made by `make bench` (which is `python -m benchmarks`) on: {machine()}.

{table}

Medians of alternating runs in one process (A, B, A, B, …), compared turn by turn; build time and peak memory are those of a
process of their own each, medians of five; rows of "op-level" are the fastest of 25 turns. The machine is shared:
differences of a few percent are noise. ResNet-50 has random weights and batch normalisation folded into its convolutions;
ONNX Runtime reads it from a file, Opweave builds it from memory-mapped weights.
"""


def main(
    names: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(BENCHMARKS)}. Default: all.")] = None,
    write: Annotated[bool, typer.Option(help="Write docs/benchmarks.md and .json (when all are run).")] = True,
) -> None:
    """Measure Opweave against ONNX Runtime."""
    rows: list[Row] = []
    for name in names or BENCHMARKS:
        rows += import_module(f"benchmarks.{name}").rows()
    table = Table(*HEADER, box=None)
    for row in rows:
        table.add_row(*cells(row), style="" if row.holds else "red")
    Console().print(table)
    if write and not names:
        DOCS.joinpath("benchmarks.md").write_text(markdown(rows))
        record = {"machine": machine(), "rows": [{**asdict(row), "ratio": row.ratio} for row in rows]}
        DOCS.joinpath("benchmarks.json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
