"""Networks on NVIDIA's GPUs through CUDA: time on the clock, beside PyTorch compiled into CUDA graphs.

python -m benchmarks cuda --only resnet50 --json results.json   # one part; the file keeps the others
python -m benchmarks cuda --render results.json                 # writes docs/benchmarks-gpu.md

Needs the extra cuda; PyTorch, and transformers for MiniLM and ViT, stand beside ours where they are installed. A part that
fails is noted, and the next one runs. `--device gpu-software --tiny` runs all of it without a GPU. `cuda_tune` measures the
tiles of single products.
"""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import geometric_mean
from typing import Annotated, Any, cast

import numpy as np
import typer

import opweave as ow
from opweave.backends import Precision
from opweave.backends.cuda.executable import CudaRunner
from opweave.backends.cuda.measured_tiles import microseconds_of
from opweave.context.graph import program_of
from opweave.context.tensor import memory_of
from opweave.core.dtypes import DataType

from . import networks, webgpu_contraction as parts
from .budgets import CONTRACTIONS, CUDA, CUDA_BUILDS, Budget
from .decode_step import Sizes, random_weight, step
from .measure import until_done
from .page import DOCS, Table, versions, yes
from .record import Record, resumed
from .resnet50 import WithBuilder, network, random_weights

RECORD = DOCS / "benchmarks-cuda.json"
RUNS = 100
TURNS = 5
"""How often a custom kernel and the operations around it are measured, in turn; the least times count."""
PAUSE_SECONDS = 0.5
"""The pause before our kernels are measured in a row, and before PyTorch is measured. After long load, a GPU is at its limit
of power, and computes slower for a while."""
KINDS: tuple[tuple[DataType, Precision], ...] = (("float32", "float32"), ("float32", "tf32"), ("float16", "float32"))
"""Data types, and the precisions of contexts."""
ALL_KINDS = {"matmul 4096": (*KINDS, ("float32", "bfloat16"))}
"""Contractions that have more kinds."""
TOLERANCES = {"float32": 1e-4, "tf32": 2e-2, "float16": 2e-2, "bfloat16": 2e-2}
"""Differences to the processor's results in float32, relative to the largest, by precision or data type."""


@dataclass
class Row:
    """A network, in milliseconds but for `build`.

    Attributes:
        part: the part of the benchmark.
        name: what it is.
        kind: "float32", "tf32" or "float16".
        build: seconds to build the graph, kernels from the cache on disk included.
        clock: from the call of `dispatch` until the device is done.
        flow: of each of many runs, one after the other: of a network its dispatches, which take about the time on the device;
            of a contraction its kernels in one CUDA graph, as some are done before Python has dispatched the next.
        kernels: how many there are.
        error: difference to the processor's results, relative to the largest; None where there is nothing to compare.
        torch: PyTorch in a CUDA graph, with the same precision, networks compiled; None without it.
        apart: of a custom kernel between built-in operations, what both take without the other, in a row; None of the rest.
    """

    part: str
    name: str
    kind: str
    build: float
    clock: float
    flow: float
    kernels: int
    error: float | None = None
    torch: float | None = None
    apart: float | None = None

    @property
    def budget(self) -> Budget | None:
        """The limit of it."""
        return CUDA.get(f"{self.name}, {self.kind}") or CUDA.get(self.name)

    @property
    def holds(self) -> bool | None:
        """Whether it is within its budgets; None without one, or without PyTorch where that is compared with."""
        budget, built = self.budget, CUDA_BUILDS.get(self.name)
        if budget is None or (budget.of == "ratio" and self.torch is None):
            return None
        if budget.of == "ms more":
            return budget.holds(ours=self.flow, theirs=self.apart)
        counts = self.flow if self.part == "contractions" else self.clock
        found = counts / (self.torch or 1.0) if budget.of == "ratio" else counts
        return found <= budget.limit and (built is None or self.build <= built.limit)


@dataclass(frozen=True)
class Bench:
    """What the parts measure with.

    Attributes:
        device: the name of a device.
        tiny: whether sizes are small and runs few, to see that it works.
        folder: where models are written.
        models: a folder of unpacked packages with models.
    """

    device: str
    tiny: bool
    folder: Path
    models: Path

    def contexts(
        self, kinds: Sequence[tuple[DataType, Precision]] = KINDS
    ) -> Iterator[tuple[ow.MLContext, DataType, str]]:
        """A context, data type and name for each kind that the device has."""
        for data_type, precision in kinds:
            try:
                context = ow.ml.create_context(device=self.device, precision=precision)
            except ow.NotSupportedError as error:
                print(f"{self.device}: {error}", flush=True)
                continue
            yield context, data_type, data_type if precision == "float32" else precision

    def row(
        self,
        part: str,
        name: str,
        kind: str,
        build: Callable[[ow.MLContext], ow.MLGraph],
        context: ow.MLContext,
        feeds: Mapping[str, np.ndarray],
        *,
        expected: Mapping[str, np.ndarray] | None = None,
        torch: Callable[[], Any] | None = None,
        shared: bool = False,
    ) -> Row:
        """Build a graph, measure it, and compare its results.

        Args:
            part: of the benchmark.
            name: what it is.
            kind: for the table.
            build: makes the graph.
            context: where it runs.
            feeds: values of inputs; others are zeros.
            expected: values of outputs.
            torch: the same with PyTorch.
            shared: whether outputs lie in the tensors of inputs of the same name.
        """
        start = time.perf_counter()
        graph = build(context)
        seconds = time.perf_counter() - start
        inputs = {n: context.create_tensor(d.data_type, d.shape, writable=True) for n, d in graph.inputs.items()}
        outputs = {
            n: inputs[n] if shared and n in inputs else context.create_tensor(d.data_type, d.shape, readable=True)
            for n, d in graph.outputs.items()
        }
        for n, array in feeds.items():
            context.write_tensor(inputs[n], array)
        clock, flow = milliseconds(context, graph, inputs, outputs, 3 if self.tiny else RUNS)
        runners: list[Any] = [step.part.runner for step in program_of(graph).steps if step.part]
        if part in ("contractions", "custom") and isinstance(runners[0], CudaRunner):
            time.sleep(PAUSE_SECONDS)
            flow = kernel_milliseconds(runners[0], list(inputs.values()), list(outputs.values()))
        error = None
        if expected is not None:
            error = max(_difference(context.read_tensor(outputs[n]), value) for n, value in expected.items())
            if error > TOLERANCES[kind]:
                raise AssertionError(f"{name}, {kind}: results differ by {error:.1e}")
        beside = None
        if torch is not None:
            time.sleep(PAUSE_SECONDS)
            beside = parts.torch_milliseconds(torch) if part == "contractions" else torch_milliseconds(torch)
        return Row(part, name, kind, seconds, clock, flow, sum(len(r.steps) for r in runners), error, beside)


def _difference(found: np.ndarray, expected: np.ndarray) -> float:
    wide = expected.astype("float32")
    return float(np.abs(found.astype("float32") - wide).max() / np.abs(wide).max())


def milliseconds(
    context: ow.MLContext, graph: ow.MLGraph, inputs: Any, outputs: Any, count: int
) -> tuple[float, float]:
    """Milliseconds of a dispatch until the device is done (the median), and of each of many, one after the other."""
    engine: Any = context.backend.space
    dispatch = partial(context.dispatch, graph, inputs, outputs)
    clock = until_done(dispatch, engine.wait, count)
    start = time.perf_counter()
    for _ in range(count):
        dispatch()
    engine.wait()
    return clock, (time.perf_counter() - start) * 1e3 / count


def kernel_milliseconds(runner: CudaRunner, inputs: Sequence[Any], outputs: Sequence[Any]) -> float:
    """Milliseconds of a run of all kernels, in a CUDA graph that has them many times."""
    arena = runner.arenas.take()
    call = runner.bind(*([memory_of(tensor) for tensor in tensors] for tensors in (inputs, outputs)))
    runs = call.runs(runner.memory_in(arena))
    found = microseconds_of(runner.engine.driver, [run for run in runs if run is not None]) / 1e3
    runner.arenas.give_back(arena)
    return found


def torch_milliseconds(function: Callable[[], Any]) -> float | None:
    """Milliseconds of a call, compiled, from the replay of its CUDA graph until the device is done (the median)."""
    import torch

    with torch.no_grad():
        compiled = torch.compile(function)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(cast(Any, stream)):
            for _ in range(3):
                compiled()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            compiled()
    return until_done(graph.replay, torch.cuda.synchronize, RUNS)


def cuda_torch(kind: str) -> Any:
    """PyTorch with the precision of a kind; None without CUDA."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = kind == "tf32"
    torch.backends.cudnn.benchmark = True
    return torch


# The parts -----------------------------------------------------------------------------------------------------------


def resnet50(bench: Bench) -> Iterator[Row]:
    """ResNet-50 with random weights, batch 1 and 32."""
    from .webgpu import WithTorch

    for batch in (1,) if bench.tiny else (1, 32):
        size = 64 if bench.tiny else 224
        image = np.random.default_rng(1).standard_normal((batch, 3, size, size), "float32")
        expected: dict[str, np.ndarray] | None = None
        for context, data_type, kind in bench.contexts():
            weights = [array.astype(data_type) for array in random_weights()]

            build = partial(_resnet50, weights=weights, image=image.astype(data_type))
            if expected is None:
                host = ow.ml.create_context(device="cpu")
                expected = dict(host.compute(build(host), {"x": image.astype(data_type)}))
            function = None
            if cuda_torch(kind):
                layers = WithTorch(kind == "float16")
                x = layers.tensor(image)
                function = lambda layers=layers, x=x, weights=weights: network(layers, x, iter(weights))  # noqa: E731
            feeds = {"x": image.astype(data_type)}
            name = f"ResNet-50, batch {batch}"
            yield bench.row("resnet50", name, kind, build, context, feeds, expected=expected, torch=function)


def _resnet50(context: ow.MLContext, weights: list[np.ndarray], image: np.ndarray) -> ow.MLGraph:
    builder = ow.MLGraphBuilder(context)
    x = builder.input("x", cast(DataType, weights[0].dtype.name), image.shape)
    return builder.build({"y": network(WithBuilder(builder), x, iter(weights))}, fallback="error")


def contractions(bench: Bench) -> Iterator[Row]:
    """The convolution of the seed with its sum and relu, and products; the rate follows from the time."""
    cases = [case for case in parts.CASES if not case.name.startswith("ResNet-50")]
    for case in cases[:1] if bench.tiny else cases:
        random = np.random.default_rng(0)
        arrays = [random.standard_normal(shape, "float32") for shape in case.shapes]
        expected: dict[str, np.ndarray] | None = None
        for context, data_type, kind in bench.contexts(ALL_KINDS.get(case.name, KINDS)):
            typed = [array.astype(data_type) for array in arrays]
            is_seed = case is cases[0]
            name = f"{case.name}, add, relu" if is_seed else case.name

            build = partial(_contraction, case=case, arrays=typed, is_seed=is_seed)
            feeds = {"a": typed[0]} if case.constant else {"a": typed[0], "b": typed[1]}
            if expected is None:
                host = ow.ml.create_context(device="cpu")
                expected = dict(host.compute(build(host), feeds))
            function: Any = None
            if torch := cuda_torch(kind):
                half = torch.bfloat16 if kind == "bfloat16" else None
                function = plain = parts.torch_function(case, typed, tf32=kind == "tf32", data_type=half)
                if is_seed:
                    x = torch.from_numpy(typed[0]).cuda()
                    function = lambda plain=plain, x=x, torch=torch: torch.relu(plain() + x)  # noqa: E731
            yield bench.row("contractions", name, kind, build, context, feeds, expected=expected, torch=function)


def _contraction(context: ow.MLContext, case: parts.Case, arrays: list[np.ndarray], is_seed: bool) -> ow.MLGraph:
    builder = ow.MLGraphBuilder(context)
    a, b = (builder.input(name, cast(DataType, x.dtype.name), x.shape) for name, x in zip("ab", arrays, strict=True))
    y = getattr(builder, case.op)(a, builder.constant(arrays[1]) if case.constant else b, **case.options)
    return builder.build({"y": builder.relu(builder.add(y, a)) if is_seed else y}, fallback="error")


def token(bench: Bench) -> Iterator[Row]:
    """A token of a language model, with past keys and values that are updated in place."""
    sizes = Sizes(layers=1, hidden=256, heads=8, groups=2, size=32, inner=512, past=64) if bench.tiny else Sizes()

    context = ow.ml.create_context(device=bench.device)
    builder = ow.MLGraphBuilder(context)
    outputs = step(builder, sizes, random_weight(builder, sizes))  # random numbers take longer than the build

    def build(_: ow.MLContext) -> ow.MLGraph:
        return builder.build(outputs, fallback="error")

    feeds = {"lengths": np.array([sizes.past], "int32")}
    yield bench.row("token", f"a token of {sizes.layers} layers", "float16", build, context, feeds, shared=True)


def transformers(bench: Bench) -> Iterator[Row]:
    """MiniLM and ViT-B/16 as ONNX models, batch 1 and 32."""
    made: dict[str, Callable[[int], tuple[Path, networks.Feed]]] = {
        "MiniLM-L6, 64 words": lambda batch: networks.minilm(
            bench.folder, batch=batch, weights=networks.RandomWeights()
        ),
        "ViT-B/16": lambda batch: networks.vision_transformer(bench.folder, batch=batch),
    }
    for name, write in list(made.items())[: 1 if bench.tiny else None]:
        for batch in (1,) if bench.tiny else (1, 32):
            path, feed = write(batch)
            expected = None
            for context, data_type, kind in bench.contexts():
                if data_type != "float32":
                    continue
                build = partial(ow.onnx.load, path)
                if expected is None:
                    host = ow.ml.create_context(device="cpu")
                    expected = dict(host.compute(build(host), feed))
                function = _transformer(name, feed) if cuda_torch(kind) else None
                title = f"{name}, batch {batch}"
                yield bench.row("transformers", title, kind, build, context, feed, expected=expected, torch=function)


def _transformer(name: str, feed: Mapping[str, np.ndarray]) -> Callable[[], Any] | None:
    """The same network of the package transformers, with random weights; None without it."""
    import torch

    try:
        made: Any = import_module("transformers")
    except ImportError:
        return None
    tensors = {n: torch.from_numpy(array).cuda() for n, array in feed.items()}
    if name.startswith("ViT"):
        vit = made.ViTForImageClassification(made.ViTConfig(num_labels=1000)).cuda().eval()
        return lambda: vit(tensors["image"]).logits
    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536}
    bert = made.BertModel(made.BertConfig(num_attention_heads=12, **sizes), add_pooling_layer=False).cuda().eval()
    return lambda: bert(**tensors).last_hidden_state


def recurrent(bench: Bench) -> Iterator[Row]:
    """plcmos_v2 of the package speechmos (two GRUs in both directions), 64 frames."""
    path, feeds, sizes = networks.plcmos(bench.models)
    build = partial(ow.onnx.load, path, fix_shapes=sizes)
    host = ow.ml.create_context(device="cpu")
    expected = dict(host.compute(build(host), feeds))
    context = ow.ml.create_context(device=bench.device)
    yield bench.row("recurrent", "plcmos_v2, 64 frames", "float32", build, context, feeds, expected=expected)


@ow.op
def squared(self: Any, x: ow.MLOperand) -> Any:
    """A custom operation of one kernel: the square of each element."""
    return x.desc


squared.kernel("cuda", "void main(unsigned i) { out[i] = x[i] * x[i]; }")
squared.kernel("webgpu", "fn main(i: u32) { out[i] = x[i] * x[i]; }")


def custom(bench: Bench) -> Iterator[Row]:
    """A user's kernel between two convolutions, beside the convolutions alone and the kernel alone."""
    channels, size = (8, 16) if bench.tiny else (100, 100)
    random = np.random.default_rng(0)
    image = random.standard_normal((1, channels, size, size), "float32")
    filters = [random.standard_normal((channels, channels, 3, 3), "float32") / channels for _ in range(2)]
    host = ow.ml.create_context(device="cpu")
    wanted = host.compute(_around(host, lambda x: x * x, filters, image), {"x": image})
    context = ow.ml.create_context(device=bench.device)
    ways: dict[str, tuple[Callable[[Any], Any], list[np.ndarray]]] = {
        "conv2d, a custom kernel, conv2d": (squared, filters),
        "conv2d, conv2d": (lambda x: x, filters),
        "a custom kernel": (squared, []),
    }
    turns: list[list[Row]] = []
    for _ in range(1 if bench.tiny else TURNS):
        rows: list[Row] = []
        for name, (between, its) in ways.items():
            build = partial(_around, between=between, filters=its, image=image)
            expected = None if rows else wanted
            rows.append(bench.row("custom", name, "float32", build, context, {"x": image}, expected=expected))
        print(", ".join(f"{row.name}: {row.flow * 1e3:.1f} us" for row in rows), flush=True)
        turns.append(rows)
    whole, *apart = (min(rows, key=lambda row: row.flow) for rows in zip(*turns, strict=True))
    yield replace(whole, apart=sum(row.flow for row in apart))


def _around(
    context: ow.MLContext, between: Callable[[Any], Any], filters: Sequence[np.ndarray], image: np.ndarray
) -> ow.MLGraph:
    """An operation between a convolution before it and one after it; alone without filters."""
    builder = ow.MLGraphBuilder(context)
    layers: list[Callable[[Any], Any]] = [
        partial(builder.conv2d, filter=builder.constant(array), padding=[1] * 4) for array in filters
    ]
    layers.insert(1, between)
    y: Any = builder.input("x", "float32", image.shape)
    for layer in layers:
        y = layer(y)
    return builder.build({"y": y}, fallback="error")


PARTS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    part.__name__: part for part in (resnet50, contractions, token, transformers, recurrent, custom)
}


# The record and its page ---------------------------------------------------------------------------------------------


def section(record: Record[Row]) -> str:
    """The part of the page about GPUs, in Markdown."""
    head = ["", "precision", "build", "on the clock", "in a row", "kernels", "error", "PyTorch", "budget", "holds"]
    rows = []
    for row in record.rows:
        holds = ["", ""]
        if row.holds is not None:
            built, apart = CUDA_BUILDS.get(row.name), row.apart
            more = f"; build {built}" if built else "" if apart is None else f" than {apart:.4f} ms of its parts"
            holds = [f"{row.budget}{more}", yes(row.holds)]
        numbers = [f"{row.build:.2f} s", f"{row.clock:.3f} ms", f"{row.flow:.3f} ms", str(row.kernels)]
        error = "" if row.error is None else f"{row.error:.1e}"
        rows.append([row.name, row.kind, *numbers, error, "" if row.torch is None else f"{row.torch:.3f} ms", *holds])
    text = f"""## With CUDA

Written by `python -m benchmarks cuda`: {record.device}; {record.machine}.

One CUDA graph each. Times on the clock are medians, from the call until the device is done; those in a row are shares of
{RUNS} dispatches, about the time on the device, and of contractions shares of a CUDA graph that has the kernels many times,
as PyTorch's, each after a pause of {PAUSE_SECONDS} s, since a GPU at its limit of power slows down. PyTorch runs as a CUDA
graph with the same precision: networks are compiled (`torch.compile`) and on the clock, contractions are those of cuBLAS and
cuDNN, in a row. Budgets are those of an H200: for networks on the clock, for contractions and custom kernels in a row. Errors
are relative to results computed on the CPU. Both operands of `matmul 1024`, `2048`, `4096` and `12 of` are inputs, as in
cuBLAS's calls; in bfloat16, our time is also that of rounding them, from float32. Second operands of other contractions are
constants, laid out when a graph is built.

{Table(head, rows, right=range(2, 8))}

{_means(record.rows)}
"""
    failed = "".join(f"- {part}: {message}\n" for part, message in record.failures.items())
    return f"{text}\nNot measured:\n\n{failed}" if failed else text


def _means(rows: Sequence[Row]) -> str:
    """A sentence on the contractions of each precision together."""
    ratios: dict[str, list[float]] = {}
    for row in rows:
        if row.part == "contractions" and row.torch is not None:
            ratios.setdefault(row.kind, []).append(row.flow / row.torch)
    many = {kind: its for kind, its in ratios.items() if len(its) > 1}
    found = {kind: geometric_mean(its) for kind, its in many.items()}
    if not found:
        return ""
    parts = ", ".join(f"{kind} {mean:.2f}x ({yes(mean <= CONTRACTIONS.limit)})" for kind, mean in found.items())
    return f"Contractions of a precision together, our time in a row to PyTorch's, geometric mean, {CONTRACTIONS}: {parts}."


def main(
    device: Annotated[str, typer.Option(help="A name of `opweave devices`.")] = "cuda",
    only: Annotated[list[str] | None, typer.Option(help=f"A part: {', '.join(PARTS)}.")] = None,
    keep: Annotated[Path, typer.Option("--json", help="Where results are kept, after each row.")] = RECORD,
    render: Annotated[Path | None, typer.Option(help="Measure nothing, and make the page of this file.")] = None,
    models: Annotated[Path, typer.Option(help="A folder of unpacked packages with models.")] = Path(".models"),
    tiny: Annotated[bool, typer.Option(help="Small sizes and few runs.")] = False,
) -> None:
    """Measure networks with CUDA; parts that were measured before on the same device are kept."""
    from .gpu_page import write

    if render is not None:
        RECORD.write_text(render.read_text())
        write()
        return
    if unknown := set(only or ()) - set(PARTS):
        raise typer.BadParameter(f"--only takes {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
    description = ow.ml.create_context(device=device).device.description
    machine = versions("opweave", "cuda-bindings", "triton", "torch", "transformers")
    record = resumed(keep, Row, description, machine)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(device, tiny, Path(folder), models)
        for name in only or PARTS:
            record.rows = [row for row in record.rows if row.part != name]
            record.failures.pop(name, None)
            try:
                for row in PARTS[name](bench):
                    record.rows.append(row)
                    print(row, flush=True)
                    record.write(keep)
            except Exception as error:
                traceback.print_exc()
                record.failures[name] = f"{type(error).__name__}: {' '.join(str(error).split())}"
            record.write(keep)
    if keep == RECORD:
        write()


if __name__ == "__main__":
    typer.run(main)
