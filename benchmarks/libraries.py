"""Libraries that call ONNX Runtime, unchanged, on ONNX Runtime and inside `replacing_onnxruntime()`: time and peak memory.

`python -m benchmarks libraries` runs the programs of tests/libraries in separate processes, alternately, and writes a
table of docs/onnxruntime.md. It needs the packages of `make test-libraries`, and PyTorch for one of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from .budgets import LIBRARIES
from .cold import Figures
from .measure import ROOT, Parts, Ratio, environment, tell
from .page import DOCS, Table, machine, replace_part, yes

HEADER = ["library", "ONNX Runtime", "Opweave", "ONNX Runtime, memory", "Opweave, memory", "holds"]

PROGRAM = """
from programs import PROGRAMS
PROGRAMS[LIBRARY]()
"""

REPLACED = """
import opweave as ow
with ow.onnx.replacing_onnxruntime():
    from programs import PROGRAMS
    PROGRAMS[LIBRARY]()
"""


def measure_library(library: str, turns: int, packages: Path) -> list[str]:
    """The row of a library.

    Args:
        library: the name of its program.
        turns: the number of processes of each kind.
        packages: the folder of the libraries.
    """
    paths = [str(path) for path in (ROOT / "src", ROOT / "tests" / "libraries", packages)]
    variables = environment(None, {"PYTHONPATH": os.pathsep.join(paths), "OPWEAVE_VERIFY": "0"})
    theirs, ours = Figures(), Figures()
    ways = [(theirs, PROGRAM), (ours, REPLACED)]
    for turn in range(turns + 1):
        tell(f"{library}, {f'{turn} of {turns}' if turn else 'to warm up'}")
        for figures, program in ways[:: 1 if turn % 2 else -1]:
            (figures if turn else Figures()).add(program.replace("LIBRARY", repr(library)), variables)
    time, memory = Ratio.of(ours.wall, theirs.wall), Ratio.of(ours.memory, theirs.memory)
    holds = LIBRARIES["memory"].holds(ratio=memory)
    cells = [library, f"{median(theirs.wall) / 1e3:.2f} s", str(time), f"{median(theirs.memory):.0f} MiB", str(memory)]
    return [*cells, yes(holds)]


def markdown(rows: Sequence[Sequence[str]], turns: int) -> str:
    """The table of docs/onnxruntime.md."""
    return f"""{Table(HEADER, rows, range(1, 5))}

On: {machine()}; {turns} processes of each kind, alternately. Times are those of whole processes, with imports; those of
Opweave and its peak memory are multiples. A row holds if the lower quartile of the memory is {LIBRARIES["memory"]}."""


def main(
    library: Annotated[list[str] | None, typer.Option(help="Default: all; then the table is written.")] = None,
    turns: Annotated[int, typer.Option(min=1, help="Processes of each kind.")] = 3,
    packages: Annotated[Path, typer.Option(help="Where the libraries are (`make test-libraries`).")] = ROOT
    / ".libraries",
) -> None:
    """Compare libraries on Opweave with the same on ONNX Runtime."""
    sys.path[:0] = [str(ROOT / "tests" / "libraries"), str(packages.resolve())]
    from programs import PROGRAMS

    rows: list[list[str]] = []
    parts = Parts()
    for name in library or PROGRAMS:
        parts.run(name, lambda name=name: rows.append(measure_library(name, turns, packages.resolve())))  # type: ignore[misc]
    print(Table(HEADER, rows))
    parts.end()
    if not library:
        replace_part(DOCS / "onnxruntime.md", markdown(rows, turns), "libraries")
