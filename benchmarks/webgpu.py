"""Networks and their parts on a GPU: time on the device and on the clock, beside PyTorch where it has CUDA.

python -m benchmarks webgpu gpu --json results.json        # where the GPU is
python -m benchmarks webgpu --render results.json          # writes docs/benchmarks-gpu.md
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import opweave as ow
from opweave.backends.webgpu.executable import Runs, encode
from opweave.context.graph import program_of
from opweave.context.tensor import memory_of
from opweave.core.dtypes import DataType

from . import networks, webgpu_contraction as parts
from .budgets import WEBGPU
from .decode_step import Sizes, random_weight, step
from .measure import until_done
from .page import DOCS, Table, versions, yes
from .record import Record, read
from .resnet50 import WithBuilder, network, random_weights

RECORD = DOCS / "benchmarks-gpu.json"
RUNS = 30


@dataclass
class Network:
    """A network, in milliseconds.

    Attributes:
        name: what it is.
        device: on the device.
        wall: from the call of `dispatch` until the device is done.
        kernels: how many there are.
        build: seconds to build the graph.
        encoding: microseconds of Python and wgpu to put a kernel into a command buffer.
        torch: PyTorch in float32, and with TF32; None without CUDA.
    """

    name: str
    device: float
    wall: float
    kernels: int
    build: float
    encoding: float
    torch: tuple[float, float] | None = None


@dataclass
class Part:
    """A contraction by itself; times in milliseconds."""

    name: str
    ours: float
    theirs: float | None
    how: str
    operations: float
    count: int


class WithTorch:
    """Layers of a network with PyTorch on CUDA."""

    def __init__(self, half: bool) -> None:
        import torch

        self.torch, self.type = torch, torch.float16 if half else torch.float32
        self.kept: dict[int, Any] = {}

    def tensor(self, array: np.ndarray) -> Any:
        if id(array) not in self.kept:
            self.kept[id(array)] = array, self.torch.from_numpy(np.array(array)).cuda().to(self.type)
        return self.kept[id(array)][1]

    def conv(self, x: Any, weights: np.ndarray, bias: np.ndarray, stride: int, padding: int) -> Any:
        function: Any = self.torch.nn.functional.conv2d
        return function(x, self.tensor(weights), self.tensor(bias), stride=stride, padding=padding)

    def relu(self, x: Any) -> Any:
        return self.torch.relu(x)

    def add(self, a: Any, b: Any) -> Any:
        return a + b

    def max_pool(self, x: Any) -> Any:
        function: Any = self.torch.nn.functional.max_pool2d
        return function(x, 3, 2, 1)

    def classify(self, x: Any, weights: np.ndarray, bias: np.ndarray) -> Any:
        return x.mean((2, 3)) @ self.tensor(weights) + self.tensor(bias)


def resnet50(context: ow.MLContext, half: bool) -> tuple[Network, np.ndarray]:
    """ResNet-50, batch 1, random weights; and what it yields for the picture of `picture`."""
    data_type: DataType = "float16" if half else "float32"
    weights = [array.astype(data_type) for array in random_weights()]
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", data_type, [1, 3, 224, 224])
    outputs = {"y": network(WithBuilder(builder), x, iter(weights))}
    build = partial(builder.build, outputs, fallback="error")
    made, found = times(f"ResNet-50, batch 1, {data_type}", context, build, {"x": picture().astype(data_type)})
    return made, found["y"]


def token(context: ow.MLContext) -> Network:
    """A token of a language model, with past keys and values that are updated in place."""
    sizes, builder = Sizes(), ow.MLGraphBuilder(context)
    build = partial(builder.build, step(builder, sizes, random_weight(builder, sizes)), fallback="error")
    feed = {"lengths": np.array([sizes.past], "int32")}
    return times(f"a token of {sizes.layers} layers", context, build, feed)[0]


def recurrent(context: ow.MLContext, models: Path) -> Network:
    """Two GRUs in both directions, 64 frames; results are those of the processor."""
    path, feed, sizes = networks.plcmos(models)
    host = ow.ml.create_context(device="cpu")
    wanted = host.compute(ow.onnx.load(path, host, fix_shapes=sizes), feed)
    build = partial(ow.onnx.load, path, context, fix_shapes=sizes)
    made, found = times("plcmos_v2, 64 frames", context, build, feed)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=1e-4)
    return made


def picture() -> np.ndarray:
    """A random image."""
    return np.random.default_rng(1).standard_normal((1, 3, 224, 224), "float32")


def times(
    name: str, context: ow.MLContext, build: Callable[[], ow.MLGraph], feed: Mapping[str, np.ndarray]
) -> tuple[Network, dict[str, np.ndarray]]:
    """What is measured of a graph, and its results. Outputs with the name of an input lie in its memory."""
    start = time.perf_counter()
    graph = build()
    seconds = time.perf_counter() - start
    inputs = {n: context.create_tensor(d.data_type, d.shape, writable=True) for n, d in graph.inputs.items()}
    for n, array in feed.items():
        context.write_tensor(inputs[n], array)
    own = {n: context.create_tensor(d.data_type, d.shape, readable=True) for n, d in graph.outputs.items()}
    outputs = {n: inputs.get(n, tensor) for n, tensor in own.items()}
    engine: Any = context.backend.space
    wall = until_done(partial(context.dispatch, graph, inputs, outputs), engine.wait, RUNS)
    (part,) = program_of(graph).steps
    runner: Any = part.part and part.part.runner
    call = runner.bind(
        [memory_of(inputs[name]) for name in graph.inputs],
        [memory_of(outputs[name]) for name in graph.outputs],
    )
    runs = [run for run in call.runs(call.owner.memory_in(call.owner.arenas.take())) if run is not None]
    on_device = [pass_time(engine, runs) for _ in range(RUNS)]
    encoding = statistics.median(encoding_time(engine, runs) for _ in range(RUNS)) / len(runs)
    found = {n: context.read_tensor(tensor) for n, tensor in outputs.items() if tensor is own[n]}
    return Network(name, statistics.median(on_device), wall, len(runs), seconds, encoding), found


def encoding_time(engine: Any, runs: Runs) -> float:
    """Microseconds to put kernels into a command buffer, without submitting it."""
    start = time.perf_counter()
    encoder = engine.device.create_command_encoder()
    encode(encoder, runs)
    encoder.finish()
    return (time.perf_counter() - start) * 1e6


def pass_time(engine: Any, runs: Runs) -> float:
    """Milliseconds between the beginning and the end of all kernels."""
    usage, device = engine.wgpu.BufferUsage, engine.device
    queries = device.create_query_set(type="timestamp", count=2)
    stamps = device.create_buffer(size=16, usage=usage.QUERY_RESOLVE | usage.COPY_SRC)
    encoder = device.create_command_encoder()
    ends = {"beginning_of_pass_write_index": 0, "end_of_pass_write_index": 1}
    encode(encoder, runs, {"query_set": queries, **ends})
    encoder.resolve_query_set(queries, 0, 2, stamps, 0)
    device.queue.submit([encoder.finish()])
    begin, end = np.frombuffer(device.queue.read_buffer(stamps), np.uint64)
    return float(end - begin) * 1e-6


def with_torch(half: bool, found: np.ndarray) -> tuple[float, float] | None:
    """PyTorch's milliseconds without and with TF32; what it yields must agree."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    weights, result = list(random_weights()), []
    with torch.no_grad():
        for tf32 in (False, True):
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
            torch.backends.cudnn.benchmark = True
            layers = WithTorch(half)
            x = layers.tensor(picture())
            forward: Callable[[], Any] = lambda layers=layers, x=x: network(layers, x, iter(weights))  # type: ignore[misc]  # noqa: E731
            expected = forward().float().cpu().numpy()
            error = np.abs(found.astype("float32") - expected).max() / np.abs(expected).max()
            assert error < (2e-2 if half or tf32 else 1e-4), f"ResNet-50 differs by {error:.1e}"
            result.append(parts.torch_milliseconds(forward))
    return result[0], result[1]


def measure(device: str, models: Path) -> Record[Network | Part]:
    context = ow.ml.create_context(device=device)
    engine: Any = context.backend.space
    if not engine.has_timestamps:
        raise SystemExit(f"{engine.description} has no timestamps")
    record = Record[Network | Part](versions("opweave", "wgpu", "torch"), engine.description)
    for half in (False, True):
        if half and not engine.features.float16:
            continue
        made, found = resnet50(context, half)
        made.torch = with_torch(half, found)
        record.rows.append(made)
        print(made, flush=True)
    for more in (partial(recurrent, context, models), *([partial(token, context)] if engine.features.float16 else [])):
        record.rows.append(more())
        print(record.rows[-1], flush=True)
    clock = parts.Clock(engine)
    for case in parts.CASES:
        ours, theirs, how = parts.measure(case, clock)
        record.rows.append(Part(case.name, ours, theirs, how, parts.operations(case), case.count))
        print(record.rows[-1], flush=True)
    return record


def section(record: Record[Network | Part]) -> str:
    """The part of the page about GPUs, in Markdown."""
    head = [
        "",
        "build",
        "on the device",
        "until done",
        "kernels",
        "to encode one",
        "PyTorch (cuDNN)",
        "with TF32",
        "budget",
        "holds",
    ]
    graphs = [row for row in record.rows if isinstance(row, Network)]
    products = [row for row in record.rows if isinstance(row, Part)]
    rows = []
    for made in graphs:
        beside = ["", ""] if made.torch is None else [f"{value:.2f} ms" for value in made.torch]
        figures = {
            "build": made.build,
            "on the device": made.device,
            "until done": made.wall,
            "to encode one": made.encoding,
        }
        limits = WEBGPU.get(made.name, {})
        holds = yes(all(figures[column] <= limit.limit for column, limit in limits.items())) if limits else ""
        budget = ["; ".join(f"{column} {limit}" for column, limit in limits.items()), holds]
        clock = [f"{made.build:.2f} s", f"{made.device:.2f} ms", f"{made.wall:.2f} ms"]
        rows.append([made.name, *clock, str(made.kernels), f"{made.encoding:.1f} us", *beside, *budget])
    text = f"""## With WebGPU

Written by `python -m benchmarks webgpu`: {record.device};
{record.machine}.

Times on the device are measured by timestamps around one pass of all kernels (the median of {RUNS} runs). PyTorch runs as a
CUDA graph, so neither waits for Python. "Until done" is the time on the clock from the call of `dispatch`; "to encode one" is
the time of Python and wgpu for a kernel. PyTorch computes float32 without TF32, except in the column "with TF32".

### Networks

{Table(head, rows, right=range(1, 8))}

### Matrix products and convolutions

Each by itself, the best of five rows of dispatches; the ratio is our time to PyTorch's.

{Table(["", "time", "TFLOP/s", "PyTorch", "ratio", "how"], [_cells(part) for part in products], right=range(1, 5))}
"""
    known = [(part.ours * part.count, part.theirs * part.count) for part in products if part.theirs is not None]
    if known:
        ours, theirs = (sum(column) for column in zip(*known, strict=True))
        text += f"\nAll convolutions of ResNet-50: {ours:.2f} ms, PyTorch {theirs:.2f} ms.\n"
    return text


def row_of(**values: Any) -> Network | Part:
    """A row of the values that a record has of it."""
    if "encoding" not in values:
        return Part(**values)
    return Network(**{**values, "torch": values["torch"] and tuple(values["torch"])})


def _cells(part: Part) -> Sequence[str]:
    rate = part.operations / part.ours * 1e-9
    beside = ["", ""] if part.theirs is None else [f"{part.theirs * 1e3:.1f} us", f"{part.ours / part.theirs:.2f}"]
    return [part.name, f"{part.ours * 1e3:.1f} us", f"{rate:.1f}", *beside, part.how]


def main(
    device: Annotated[str, typer.Argument(help="A name of `opweave devices`.")] = "gpu",
    keep: Annotated[Path, typer.Option("--json", help="Where results are kept.")] = RECORD,
    render: Annotated[Path | None, typer.Option(help="Measure nothing, and make the page of this file.")] = None,
    models: Annotated[Path, typer.Option(help="A folder of unpacked packages with models.")] = Path(".models"),
) -> None:
    """Measure networks and contractions on a GPU; the page about them is written with the record."""
    from .gpu_page import write

    record = measure(device, models) if render is None else read(render, row_of)
    target = keep if render is None else RECORD
    record.write(target)
    if target == RECORD:
        write()


if __name__ == "__main__":
    typer.run(main)
