"""A model in the actors of Ray Data beside ONNX Runtime in plain processes: images a second, overhead, memory.

    pip install 'opweave[scale]'
    python -m benchmarks scale

ResNet-50 (random weights, float32) gets images in batches of 4. A process of ONNX Runtime takes its batches from memory
that it shares with the others, and passes nothing between processes but results. Both have one thread a process. The
rate is that of the time in which all processes are at work.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer

from opweave.scale import Predictor
from opweave.support.processors import processors

from .measure import ROOT, Parts, Ratio, alternate, in_process
from .models import photograph
from .page import DOCS, Table, machine, replace_part, versions, yes
from .rows import onnxruntime_session

BATCH = 4
BATCHES = 12
"""How many batches each process gets."""
COUNTS = (1, 2, 4, 8, 16)
ROWS = (1, 8, 64, 512)

LEAST_RATE, MOST_MEMORY = 0.95, 1.2
"""Budgets, as shares of ONNX Runtime's rate and memory."""

ENGINES = ("opweave", "onnxruntime")
MEMORY = "memory"
PART_SECONDS = 120
"""A process that takes longer has failed."""

STORE_BYTES = 2**30
FEATURES = 64
"""The row of the model with which overheads are measured: it does next to nothing."""

Interval = tuple[int, float, float]
"""The process that ran a batch, and when it began and ended."""


class Timed(Predictor):
    """A predictor that tells when it ran a batch, and returns nothing else."""

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        begin = time.monotonic()
        result = super().__call__(batch)
        rows = len(next(iter(result.values())))
        found = {"process": os.getpid(), "begin": begin, "end": time.monotonic()}
        return {name: np.full(rows, value)[:1] for name, value in found.items()}


def rate(intervals: Sequence[Interval]) -> float:
    """Batches a second, from when the last process has run one batch until the first one has run all of its own."""
    ends: dict[int, list[float]] = {}
    for process, _, end in intervals:
        ends.setdefault(process, []).append(end)
    start, stop = max(min(times) for times in ends.values()), min(max(times) for times in ends.values())
    return sum(start < end <= stop for _, _, end in intervals) / (stop - start)


def resnet50(folder: Path) -> Path:
    """ResNet-50 as a file that takes any number of images."""
    import onnx

    import opweave as ow

    from .resnet50 import graph, random_weights

    path = folder / "resnet50.onnx"
    ow.onnx.save(graph(ow.ml.create_context(device="cpu"), random_weights()), path)
    proto = onnx.load(path)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    del proto.graph.value_info[:]
    (reshape,) = (node for node in proto.graph.node if node.op_type == "Reshape")
    (shape,) = (tensor for tensor in proto.graph.initializer if tensor.name == reshape.input[1])
    shape.CopyFrom(onnx.numpy_helper.from_array(np.array([-1, 2048]), shape.name))
    onnx.save(proto, path)
    return path


def start_ray(cpus: int) -> Any:
    import ray
    import ray.data

    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    ray.init("local", num_cpus=cpus, object_store_memory=STORE_BYTES, include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    return ray


def images() -> np.ndarray:
    return np.repeat(photograph((1, 3, 224, 224)), BATCH, axis=0)


def through_ray(path: str, count: int) -> list[Interval]:
    """Batches through Ray Data."""
    ray = start_ray(count)
    import pyarrow as pa
    from ray.data.extensions import ArrowTensorArray

    block = ray.put(pa.table({"x": ArrowTensorArray.from_numpy(images())}))
    results = ray.data.from_arrow_refs([block] * (BATCHES * count)).map_batches(
        Timed,
        fn_constructor_args=(path,),
        compute=ray.data.ActorPoolStrategy(size=count),
        num_cpus=1,
        batch_size=None,
        batch_format="numpy",
    )
    found = [(row["process"], row["begin"], row["end"]) for row in results.take_all()]
    ray.shutdown()
    return found


def in_plain_processes(path: str, count: int) -> list[Interval]:
    """The same batches through ONNX Runtime."""
    given = images()

    def work(queue: Any) -> None:
        session = onnxruntime_session(Path(path), threads=1)
        for _ in range(BATCHES):
            begin = time.monotonic()
            session.run(None, {"x": given})
            queue.put((os.getpid(), begin, time.monotonic()))

    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    workers = [context.Process(target=work, args=(queue,)) for _ in range(count)]
    for worker in workers:
        worker.start()
    found = [queue.get() for _ in range(BATCHES * count)]
    for worker in workers:
        worker.join()
    return found


class OnnxRuntime:
    """ONNX Runtime as an actor."""

    def __init__(self, path: str) -> None:
        self.session = onnxruntime_session(Path(path), threads=1)

    def __call__(self, batch: Mapping[str, Any]) -> Any:
        return self.session.run(None, dict(batch))


def memory(path: str, engine: str) -> float:
    """The private memory of the second of two actors after some batches, in MiB."""
    ray = start_ray(2)
    base = Predictor if engine == "opweave" else OnnxRuntime

    class Actor(base):  # type: ignore[misc, valid-type]
        def private(self) -> float:
            lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
            return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024

    actors = [ray.remote(Actor).options(num_cpus=1).remote(path) for _ in range(2)]
    for actor in actors:
        for _ in range(8):
            ray.get(actor.__call__.remote({"x": images()}))
    found: float = ray.get(actors[1].private.remote())
    ray.shutdown()
    return found


def alone(engine: str, path: str, what: str) -> None:
    """Measure in this process, and print the value: `what` is how many processes there are, or "memory"."""
    if what == MEMORY:
        value = memory(path, engine)
    else:
        run = through_ray if engine == "opweave" else in_plain_processes
        value = BATCH * rate(run(path, int(what)))
    print(json.dumps({"value": value}))


def pair(path: str, what: str) -> list[float]:
    """The values of both engines, each from a separate process."""
    return [in_process("benchmarks.scale", e, path, what, timeout=PART_SECONDS)["value"] for e in ENGINES]


def described(what: str) -> str:
    """What is measured, for a table."""
    if what == MEMORY:
        return "private memory of a further actor"
    return f"images/s, {what} actor{'s' if int(what) > 1 else ''}"


def row(what: str, pairs: Sequence[Sequence[float]], is_possible: bool) -> list[str]:
    """A row of the table; without pairs, it says why."""
    if not pairs:
        return [described(what), "failed" if is_possible else "not measured", "", "", "", ""]
    ours, theirs = zip(*pairs, strict=True)
    ratio = Ratio.of(ours, theirs)
    if what == MEMORY:
        shown, budget, holds = "{:.0f} MiB", f"<= {MOST_MEMORY}", ratio.low <= MOST_MEMORY
    else:
        shown, budget, holds = "{:.1f}", f">= {LEAST_RATE}", ratio.high >= LEAST_RATE
    medians = [shown.format(median(values)) for values in (ours, theirs)]
    return [described(what), *medians, str(ratio), budget, yes(holds)]


def overheads() -> list[list[str]]:
    """The time of a batch with a model that does nothing: rows of a table."""
    import onnx.parser

    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[n, {FEATURES}] x) => (float[n, {FEATURES}] y) {{ y = Neg(x) }}'
    model = onnx.parser.parse_model(text).SerializeToString()
    predict, session = Predictor(model, threads=1), onnxruntime_session(model, threads=1)
    found = []
    for rows in ROWS:
        feed = {"x": np.ones((rows, FEATURES), np.float32)}
        times = alternate({"ours": partial(predict, feed), "theirs": partial(session.run, None, feed)})
        ours, theirs = (median(times[name]) * 1e6 for name in ("ours", "theirs"))
        found.append([f"{rows}", f"{ours:.1f} us", f"{theirs:.1f} us", f"{ours - theirs:.1f} us"])
    return found


def main(
    turns: Annotated[int, typer.Option(min=1, help="How many times each pair is measured, if there is time.")] = 3,
    seconds: Annotated[float, typer.Option(help="Begin no further turn that would end later than that.")] = 240,
    write: Annotated[bool, typer.Option(help="Whether to write docs/scale.md.")] = True,
) -> None:
    """Run a model in Ray's actors and in plain processes, and write the tables of docs/scale.md."""
    if find_spec("ray") is None:
        raise SystemExit("Ray is missing: pip install 'opweave[scale]'")
    possible = [*(str(count) for count in COUNTS if count <= processors()), MEMORY]
    pairs: dict[str, list[list[float]]] = {what: [] for what in (*map(str, COUNTS), MEMORY)}
    parts = Parts(seconds)
    with tempfile.TemporaryDirectory() as folder:
        small = parts.run("overhead of a batch", overheads) or [["failed", "", "", ""]]
        path = parts.run("ResNet-50 as a file", lambda: str(resnet50(Path(folder))))
        for _ in range(turns if path else 0):
            for what in possible:
                if not parts.fits(described(what)):
                    continue
                values = parts.run(described(what), partial(pair, str(path), what))
                if values:
                    pairs[what].append(values)
    lines = [row(what, found, what in possible) for what, found in pairs.items()]
    made = Table(["ResNet-50", "Opweave", "ONNX Runtime", "ratio", "budget", "holds"], lines)
    made_small = Table(["rows of a batch", "`Predictor`", "ONNX Runtime, `run`", "overhead"], small, right=range(4))
    counts = " or ".join(map(str, sorted({len(found) for what, found in pairs.items() if what in possible})))
    note = f"Made by `python -m benchmarks scale` on: {machine()}, {versions('ray').partition(', ')[2]}."
    note += f" Values are medians of {counts} turns."
    text = f"{note}\n\n{made}\n\n{made_small}"
    print(text)
    if write:
        replace_part(DOCS / "scale.md", text, "predictor")
    parts.end()


if __name__ == "__main__":
    alone(*sys.argv[1:])
