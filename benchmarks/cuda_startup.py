"""Starts with CUDA: fresh processes that load a saved graph or a GGUF file, and run the network once.

    python -m benchmarks cuda_startup                        # writes docs/benchmarks-gpu.md
    python -m benchmarks cuda_startup --render results.json  # writes the page of a file

Needs the extra cuda, and torch and torchvision. Another process saves the graphs, and fills the cache on disk from which the
language model gets its kernels.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer

from .budgets import CUDA_START_UP, SAVED_SIZE
from .measure import in_process, script
from .page import DOCS, Table, versions, yes
from .record import Record, resumed

RECORD = DOCS / "benchmarks-cuda-startup.json"

NETWORKS = {"ResNet-50": "resnet50", "DenseNet-121": "densenet121"}
"""Networks of `tools/export_architectures.py`, by title."""

LANGUAGE = "Llama, 1.1 billion weights in Q4_0"

ROOM = 2048
"""Tokens in the cache of the language model."""

TURNS = 5
"""Number of processes that load each file."""

SECONDS = 400
"""Time limit of one process."""


@dataclass
class Row:
    """The start of a network; times are milliseconds, as medians of all processes.

    Attributes:
        context: to create the context.
        load: to load the graph, or to build the decoder.
        call: of the first call, or the first token.
        compiled: the largest number of kernels that a process compiled.
        size: the size of the file, as a multiple of the size of the weights; 0 for a file that is no saved graph.
        is_equal: whether results are those of the process that saved the graph, bit for bit.
    """

    name: str
    context: float
    load: float
    call: float
    compiled: int
    size: float
    is_equal: bool

    def faults(self) -> list[str]:
        """The limits that are exceeded."""
        holds = {
            "time": CUDA_START_UP[self.name].holds(ours=self.load + self.call),
            "compiled": not self.compiled,
            "size": self.size <= SAVED_SIZE,
            "results": self.is_equal,
        }
        return [name for name, is_held in holds.items() if not is_held]


def section(record: Record[Row]) -> str:
    """The part of the page about GPUs, in Markdown."""
    head = ["", "context", "load", "first call", "load and first call", "limit", "compiled", "file", "holds"]
    rows = []
    for row in record.rows:
        times = [f"{value:.0f} ms" for value in (row.context, row.load, row.call, row.load + row.call)]
        size = f"{row.size:.2f}x" if row.size else ""
        holds = ", ".join(row.faults()) or yes(True)
        rows.append([row.name, *times, str(CUDA_START_UP[row.name]), str(row.compiled), size, holds])
    return f"""## Starts with CUDA

Written by `python -m benchmarks cuda_startup`: {record.device}; {record.machine}.

Medians of {TURNS} fresh processes. Networks are loaded from saved graphs; the language model is built from its GGUF file, with
kernels from the cache on disk. "Compiled" is the largest number of kernels that a process compiled (limit 0), and "file" the
size of the saved graph as a multiple of the size of its weights (limit {SAVED_SIZE:g}x). Results must equal those of the
process that wrote the file, bit for bit. The last column names the limits that are exceeded, or says yes.

{Table(head, rows, right=range(1, 5))}
"""


def main(
    keep: Annotated[Path, typer.Option("--json", help="Where results are kept.")] = RECORD,
    render: Annotated[Path | None, typer.Option(help="Measure nothing, and make the page of this file.")] = None,
    only: Annotated[str, typer.Option(help="A part of the titles of networks. Default: all.")] = "",
    device: Annotated[str, typer.Option(help="A name of `opweave devices`.")] = "cuda",
) -> None:
    """Measure starts of networks with CUDA, and write the page. Earlier rows of the same device and versions are kept."""
    from .gpu_page import write

    if render is not None:
        RECORD.write_text(render.read_text())
        write()
        return
    import opweave as ow

    description = ow.ml.create_context(device=device).device.description
    record = resumed(keep, Row, description, versions("opweave", "cuda-bindings", "triton", "torch"))
    titles = (*NETWORKS, LANGUAGE)
    for title in titles:
        if only.lower() not in title.lower():
            continue
        with TemporaryDirectory(prefix="opweave-startup-") as folder:
            row = _measure(title, device, folder)
        record.rows = sorted(
            [row, *(each for each in record.rows if each.name != title)], key=lambda each: titles.index(each.name)
        )
        print(row, flush=True)
        record.write(keep)
    if keep == RECORD:
        write()


def _measure(title: str, device: str, folder: str) -> Row:
    """Save a network in one process, load it in others, and return its row."""
    extra = {"OPWEAVE_CACHE": f"{folder}/cache"}

    def step(name: str) -> dict[str, Any]:
        return in_process("benchmarks.cuda_startup", name, title, device, folder, timeout=SECONDS, extra=extra)

    saved = step("save")
    # The first process also compiles bytecode.
    turns = [step("load") for _ in range(TURNS + 1)][1:]
    context, load, call = (median(turn[phase] for turn in turns) for phase in ("context", "load", "call"))
    compiled = max(turn["compiled"] for turn in turns)
    return Row(title, context, load, call, compiled, saved["size"], all(turn["is_equal"] for turn in turns))


# In a separate process ---------------------------------------------------------------------------------------------


def save(title: str, device: str, folder: Path) -> dict[str, Any]:
    """Write the file of a network, and the results of a call."""
    if title == LANGUAGE:
        with (folder / "model.gguf").open("wb") as file:
            module = script("make_llama")
            module.write(file, module.Sizes())
        run(title, device, folder)
        return {"size": 0.0}
    import opweave as ow

    tools = script("export_architectures")
    architecture = tools.CATALOG[NETWORKS[title]]
    model, arguments = architecture.make(), architecture.arguments()
    path = tools.export(NETWORKS[title], model, arguments, folder)
    feed = tools.save_inputs(path, arguments)
    session = ow.InferenceSession(path, context=ow.ml.create_context(device=device), specialise="always")
    (result, *_) = session.run(None, feed)
    session.save(folder / "model.opweave")
    np.savez(folder / "feed.npz", **feed)
    np.save(folder / "result.npy", result)
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    return {"size": (folder / "model.opweave").stat().st_size / weights}


def run(title: str, device: Any, folder: Path) -> dict[str, Any]:
    """Load the file, and run it once."""
    import opweave as ow

    is_language = title == LANGUAGE
    feed = {} if is_language else dict(np.load(folder / "feed.npz"))
    start = time.perf_counter()
    context = ow.ml.create_context(
        device=device, precision="float16" if is_language and device == "cuda" else "float32"
    )
    created = time.perf_counter()
    if is_language:
        from opweave.chat import GGUF, Decoder, Model, Sampler

        decoder = Decoder(Model(GGUF(str(folder / "model.gguf")), for_cpu=False), context, ROOM, cache="float16")
        decoder.build()
        loaded = time.perf_counter()
        result = np.array(decoder.choose([1], Sampler(temperature=0)))
    else:
        graph = context.load(folder / "model.opweave")
        loaded = time.perf_counter()
        (result, *_) = context.compute(graph, feed).values()
    end = time.perf_counter()
    path = folder / "result.npy"
    if not path.exists():
        np.save(path, result)
    return {
        "context": 1e3 * (created - start),
        "load": 1e3 * (loaded - created),
        "call": 1e3 * (end - loaded),
        "compiled": ow.lazy.statistics.code_compiled,
        "is_equal": np.load(path).tobytes() == result.tobytes(),
    }


if __name__ == "__main__":
    if len(sys.argv) == 5 and sys.argv[1] in ("save", "load"):
        step = save if sys.argv[1] == "save" else run
        print(json.dumps(step(sys.argv[2], sys.argv[3], Path(sys.argv[4]))))
    else:
        typer.run(main)
