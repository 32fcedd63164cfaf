"""Architectures of Transformers, torchvision and timm with CUDA, beside PyTorch's compiler with CUDA graphs.

python -m benchmarks cuda_networks --json results.json     # the file keeps finished rows, and the next run goes on
python -m benchmarks cuda_networks --render results.json   # writes docs/benchmarks-gpu.md

Needs the extra cuda, and torch, torchvision, timm, transformers, onnxscript. The networks are those of
`tools/export_architectures.py`. Each is exported and measured in a separate process; several are compiled at the same time,
and only one is measured at a time.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from tempfile import TemporaryDirectory
from threading import Lock
from types import ModuleType
from typing import Annotated, Any, cast

import typer

from .budgets import CUDA_NETWORK
from .measure import Ratio, alone, in_process, per_call, script
from .page import DOCS, Table, versions, yes
from .record import Record, resumed

RECORD = DOCS / "benchmarks-cuda-networks.json"

PRECISIONS = ("float32", "tf32")

SECONDS = 400
"""How long one process may take: PyTorch compiles a network for a minute or two."""

TURNS, CALLS = 15, 3
"""Pairs of turns, and calls of a turn."""

DIFFERENCES = {"float32": 2e-3, "tf32": 1e-2}
"""The largest differences from ONNX Runtime on the processor, relative to the largest element of a result."""


@dataclass
class Row:
    """A network in one precision.

    Attributes:
        name: the architecture, and the precision behind a slash.
        build: seconds until a session has its first results.
        ours: milliseconds a call, from arrays to arrays; the median.
        theirs: PyTorch's.
        ratio: of the pairs of calls: the quartiles.
        kernels: how many there are.
        elsewhere: the operators and operations that ran on the processor.
        difference: from ONNX Runtime's results on the processor, relative to the largest element.
        reference: that of PyTorch's results on the GPU.
    """

    name: str
    build: float
    ours: float
    theirs: float
    ratio: list[float]
    kernels: int
    elsewhere: list[str]
    difference: float
    reference: float

    @property
    def precision(self) -> str:
        return self.name.partition("/")[2]

    def faults(self) -> list[str]:
        """Which limits the network exceeds."""
        limits = {
            "elsewhere": not self.elsewhere,
            "error": self.difference <= max(DIFFERENCES[self.precision], 2 * self.reference),
            "time": CUDA_NETWORK["time"].holds(ratio=Ratio(*self.ratio)),
            "build": CUDA_NETWORK["build"].holds(ours=self.build),
        }
        return [name for name, holds in limits.items() if not holds]


def section(record: Record[Row]) -> str:
    """The part of the page about GPUs, in Markdown."""
    rows = []
    for row in sorted(record.rows, key=lambda row: (PRECISIONS.index(row.precision), row.name)):
        elsewhere = ", ".join(f"{count} {what}" for what, count in Counter(row.elsewhere).items())
        numbers = [f"{row.build:.2f} s", f"{row.ours:.3f} ms", f"{row.theirs:.3f} ms", f"{row.ratio[1]:.2f}x"]
        numbers += [str(row.kernels), f"{row.difference:.1e}"]
        rows.append([row.name, *numbers, elsewhere, ", ".join(row.faults()) or yes(True)])
    head = ["", "build", "a call", "PyTorch", "ratio", "kernels", "error", "on the processor", "holds"]
    means = [
        f"{geometric_mean(ratios):.2f}x in {'TF32' if precision == 'tf32' else precision}"
        for precision in PRECISIONS
        if (ratios := [row.ratio[1] for row in record.rows if row.precision == precision])
    ]
    time, build = CUDA_NETWORK["time"], CUDA_NETWORK["build"]
    text = f"""## Architectures with CUDA, beside torch.compile

Written by `python -m benchmarks cuda_networks`: {record.device}; {record.machine}.

Networks of Transformers, torchvision and timm at their usual sizes, with random weights (`tools/export_architectures.py`),
exported to ONNX, and run by a session; beside them the same networks in PyTorch, compiled by `torch.compile` and captured in a
CUDA graph, where it can be. Calls are from arrays to arrays, alternately. The limits are
{time} of PyTorch's time, a build of {build.limit:g} s, no node on the processor, and an error of {DIFFERENCES["float32"]:g}
in float32 and {DIFFERENCES["tf32"]:g} in TF32, or twice that of PyTorch on the GPU. Several networks are exported and compiled
at the same time, which makes builds longer.

As geometric means, a call takes {" and ".join(means)} of PyTorch's time.

{Table(head, rows, right=range(1, 7))}
"""
    failed = "".join(f"- {name}: {reason}\n" for name, reason in sorted(record.failures.items()))
    return f"{text}\nNot measured:\n\n{failed}" if failed else text


def architectures() -> ModuleType:
    """The script with the networks, `tools/export_architectures.py`."""
    return script("export_architectures")


def main(
    device: Annotated[str, typer.Option(help="A name of `opweave devices`.")] = "cuda",
    only: Annotated[list[str] | None, typer.Option(help="An architecture. Default: all.")] = None,
    keep: Annotated[Path, typer.Option("--json", help="Where results are kept, after each network.")] = RECORD,
    render: Annotated[Path | None, typer.Option(help="Measure nothing, and make the page of this file.")] = None,
    jobs: Annotated[int, typer.Option(help="How many networks are compiled at the same time.")] = 4,
    minutes: Annotated[float, typer.Option(help="Begin no network after so many minutes.")] = float("inf"),
    again: Annotated[bool, typer.Option(help="Measure also what the file already has.")] = False,
) -> None:
    """Measure the networks that the file does not have, and write the page."""
    from .gpu_page import write

    if render is not None:
        RECORD.write_text(render.read_text())
        write()
        return
    import opweave as ow

    description = ow.ml.create_context(device=device).device.description
    machine = versions("opweave", "cuda-bindings", "triton", "onnxruntime", "torch")
    record = resumed(keep, Row, description, machine)
    names = [name for name in architectures().CATALOG if not only or name in only]
    finished = set() if again else {row.name for row in record.rows}
    missing = {name: [p for p in PRECISIONS if f"{name}/{p}" not in finished] for name in names}
    start, lock = time.monotonic(), Lock()
    with TemporaryDirectory(prefix="opweave-networks-") as folder, ThreadPoolExecutor(jobs) as pool:

        def measure(name: str) -> None:
            began = time.monotonic()
            if began - start > 60 * minutes:
                return
            rows, failure = _measured(device, name, missing[name], Path(folder))
            with lock:
                record.rows = [row for row in record.rows if row.name not in {row.name for row in rows}] + rows
                record.failures.pop(name, None)
                if failure:
                    record.failures[name] = failure
                record.write(keep)
                print(
                    "\n".join([*map(str, rows), f"{name}: {failure or 'ok'} [{time.monotonic() - began:.0f} s]"]),
                    flush=True,
                )

        list(pool.map(measure, [name for name in names if missing[name]]))
    if keep == RECORD:
        write()


def _measured(device: str, name: str, precisions: list[str], folder: Path) -> tuple[list[Row], str]:
    """The rows of a network, and why there are none."""
    arguments = ["network", device, name, str(folder), *precisions]
    try:
        found = in_process("benchmarks.cuda_networks", *arguments, timeout=SECONDS)
    except (RuntimeError, TimeoutError) as error:
        told = [line for line in str(error).splitlines() if ": " in line]  # not lines that point at a place in the code
        return [], (told or [str(error)])[-1].strip()[:300]
    return [Row(**values) for values in found["rows"]], ""


# In a separate process ---------------------------------------------------------------------------------------------


def _network(device: str, name: str, folder: Path, precisions: list[str]) -> dict[str, Any]:
    """Export a network, compile it twice in each precision, and measure it."""
    import numpy as np
    import onnxruntime
    import torch

    import opweave as ow
    from gate.measure import placements_of
    from gate.verdict import compare

    os.environ["OPWEAVE_CACHE"] = str(folder / f"{name}-cache")
    tools = architectures()
    architecture = tools.CATALOG[name]
    model, arguments = architecture.make(), architecture.arguments()
    path = tools.export(name, model, arguments, folder)
    feed = tools.save_inputs(path, arguments)
    expected = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, feed)
    arrays = [argument.numpy() for argument in arguments]
    model = model.cuda()
    rows = []
    for precision in precisions:
        allowed = precision == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
        torch._dynamo.reset()
        theirs = _compiled(model, arrays)
        first = theirs()
        with alone(folder):
            context = ow.ml.create_context(device=device, precision=precision)  # type: ignore[arg-type]
            start = time.perf_counter()
            session = ow.InferenceSession(path, context=context, specialise="always")
            results = session.run(None, feed)
            build = time.perf_counter() - start
            ours = partial(session.run, None, feed)
            for way in (ours, theirs) * 3:
                way()
            times: list[tuple[float, float]] = []
            for turn in range(TURNS):
                pair = {way: per_call(way, CALLS) for way in ((ours, theirs) if turn % 2 else (theirs, ours))}
                times.append((pair[ours], pair[theirs]))
        ratio = Ratio.of(*zip(*times, strict=True))
        kernels, elsewhere = placements_of(session)
        rows.append({
            "name": f"{name}/{precision}",
            "build": build,
            "ours": 1e3 * float(np.median([a for a, _ in times])),
            "theirs": 1e3 * float(np.median([b for _, b in times])),
            "ratio": [ratio.low, ratio.median, ratio.high],
            "kernels": kernels,
            "elsewhere": elsewhere,
            "difference": max(compare(a, b) for a, b in zip(results, expected, strict=True)),
            "reference": max(compare(a, b) for a, b in zip(first, expected, strict=True)),
        })  # fmt: skip
    return {"rows": rows}


def _compiled(model: Any, arrays: list[Any]) -> Callable[[], list[Any]]:
    """PyTorch's way from arrays to arrays: the compiled network in a CUDA graph."""
    import torch

    compiled = torch.compile(model)
    inputs = [torch.from_numpy(array).cuda() for array in arrays]
    stream = torch.cuda.Stream()

    def run() -> Any:
        return compiled(*inputs)

    with torch.inference_mode(), torch.cuda.stream(cast(Any, stream)):
        for _ in range(3):
            run()
        torch.cuda.synchronize()
        replay = _captured(run, stream) or run

    def call() -> list[Any]:
        with torch.inference_mode(), torch.cuda.stream(cast(Any, stream)):
            for tensor, array in zip(inputs, arrays, strict=True):
                tensor.copy_(torch.from_numpy(array), non_blocking=True)
            return [result.cpu().numpy() for result in replay()]

    return call


def _captured(run: Callable[[], Any], stream: Any) -> Callable[[], Any] | None:
    """A function that replays a CUDA graph of `run`; None if PyTorch cannot capture it."""
    import torch

    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=stream):
            results = run()
    except RuntimeError as error:  # it copies to the processor while it runs, for example
        print(f"without a CUDA graph: {str(error).splitlines()[0]}", file=sys.stderr)
        return None

    def replay() -> Any:
        graph.replay()
        return results

    return replay


if __name__ == "__main__":
    if sys.argv[1:2] == ["network"]:
        print(json.dumps(_network(sys.argv[2], sys.argv[3], Path(sys.argv[4]), sys.argv[5:])))
    else:
        typer.run(main)
