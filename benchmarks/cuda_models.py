"""The models of the gate with CUDA: results beside ONNX Runtime's, and the time until there are any.

python -m benchmarks cuda_models --json results.json     # the models whose files are there; the file keeps the others
python -m benchmarks cuda_models --render results.json   # writes docs/benchmarks-gpu.md

Needs the extras cuda and onnx, and the packages of `python -m gate.packages`, or some of their files. Each model is built in a
process of its own, without the cache on disk. A model that fails is noted, and the next one runs.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

import opweave as ow
from gate import catalog

from .budgets import CUDA_MODEL, GATE
from .measure import in_process
from .page import DOCS, Table, versions, yes
from .record import Record, resumed

RECORD = DOCS / "benchmarks-cuda-models.json"
SECONDS = 120
"""How long one process may take."""


@dataclass
class Row:
    """A model at its first shape.

    Attributes:
        name: in the catalogue.
        build: seconds until a session has its first results.
        clock: milliseconds a call, from arrays to arrays; the median.
        kernels: how many there are.
        elsewhere: the operators and operations that ran on the processor.
        difference: from ONNX Runtime's results on the processor, relative to the largest element.
    """

    name: str
    build: float
    clock: float
    kernels: int
    elsewhere: list[str]
    difference: float

    def holds(self, limit: float) -> bool:
        """Whether results are within a limit, and soon enough."""
        return self.difference <= limit and CUDA_MODEL.holds(ours=self.build)


def limits() -> dict[str, float]:
    """The largest difference of each model of the catalogue, in its order."""
    return {entry.name: max(GATE["difference"], entry.unstable) for entry in catalog.entries()}


def section(record: Record[Row]) -> str:
    """The part of the page about GPUs, in Markdown."""
    allowed, known = limits(), {row.name: row for row in record.rows}
    rows = []
    for name, limit in allowed.items():
        if row := known.get(name):
            elsewhere = ", ".join(f"{count} {what}" for what, count in Counter(row.elsewhere).items())
            numbers = [f"{row.build:.2f} s", f"{row.clock:.3f} ms", str(row.kernels), f"{row.difference:.1e}"]
            rows.append([name, *numbers, f"{limit:g}", elsewhere, yes(row.holds(limit))])
    head = ["", "build", "a call", "kernels", "error", "limit", "on the processor", "holds"]
    text = f"""## Models from packages with CUDA

Written by `python -m benchmarks cuda_models`: {record.device}; {record.machine}.

The ONNX models of [another page](models.md), each in a separate process. Builds are from the creation of a session
until it has its first results, without kernels from the cache on disk; compilers are loaded in that time, too. The limit is
{CUDA_MODEL.limit:g} s. Calls are from arrays to arrays. Errors are relative to results of ONNX Runtime on the CPU.

{Table(head, rows, right=range(1, 5))}
"""
    failed = "".join(f"- {name}: {record.failures[name]}\n" for name in allowed if name in record.failures)
    return f"{text}\nNot measured:\n\n{failed}" if failed else text


def main(
    device: Annotated[str, typer.Option(help="A name of `opweave devices`.")] = "cuda",
    only: Annotated[list[str] | None, typer.Option(help="A model, by name or by a part of it. Default: all.")] = None,
    keep: Annotated[Path, typer.Option("--json", help="Where results are kept, after each model.")] = RECORD,
    render: Annotated[Path | None, typer.Option(help="Measure nothing, and make the page of this file.")] = None,
    models: Annotated[Path, typer.Option(help="A folder of unpacked packages with models.")] = catalog.PACKAGES,
) -> None:
    """Build the models of the gate on a device; what was measured before on the same device is kept."""
    from .gpu_page import write

    if render is not None:
        RECORD.write_text(render.read_text())
        write()
        return
    chosen = [e for e in catalog.entries() if not only or any(part.lower() in e.name.lower() for part in only)]
    if not chosen:
        raise typer.BadParameter(f"there is no model {', '.join(only or [])}; `python -m gate --list` lists them")
    description = ow.ml.create_context(device=device).device.description
    machine = versions("opweave", "cuda-bindings", "triton", "onnxruntime")
    record = resumed(keep, Row, description, machine)
    there = [entry for entry in chosen if (models / entry.file).is_file()]
    if there:
        _measured(device, there[0], models)  # compiles the modules that it imports
    for entry in chosen:
        if entry in there:
            _measure(record, device, entry, models)
        elif all(row.name != entry.name for row in record.rows):
            record.failures.setdefault(entry.name, f"{entry.file} is not installed")
        record.write(keep)
    if keep == RECORD:
        write()


def _measure(record: Record[Row], device: str, entry: catalog.Entry, models: Path) -> None:
    """Put a model into the results, in the place of what they had of it."""
    start = time.perf_counter()
    record.rows = [row for row in record.rows if row.name != entry.name]
    record.failures.pop(entry.name, None)
    found: Row | str = _measured(device, entry, models)
    if isinstance(found, Row):
        record.rows.append(found)
    else:
        record.failures[entry.name] = found
        found = f"{entry.name}: {found}"
    print(f"{found} [{time.perf_counter() - start:.0f} s]", flush=True)


def _measured(device: str, entry: catalog.Entry, models: Path) -> Row | str:
    """A model's row, or why there is none."""
    try:
        found = in_process("gate.measure", "device", device, entry.name, str(models.resolve()), timeout=SECONDS)
    except (RuntimeError, TimeoutError) as error:
        return str(error).splitlines()[-1]
    return Row(entry.name, **found)


if __name__ == "__main__":
    typer.run(main)
