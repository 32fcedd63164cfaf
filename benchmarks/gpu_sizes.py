"""Models with dynamic dimensions on a GPU: new sizes, and calls beside models of fixed sizes.

python -m benchmarks gpu_sizes --json results.json     # the models whose files are there; the file keeps the others
python -m benchmarks gpu_sizes --render results.json   # writes docs/benchmarks-gpu.md

The models are those of `benchmarks traffic`, and those of the gate whose files are there. Each runs in a process of its own,
without the cache on disk.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any
from weakref import WeakKeyDictionary

import numpy as np
import onnx
import typer

import opweave as ow
from gate import catalog
from opweave.support.background import background

from .budgets import GPU_SIZES
from .dynamic_models import MODELS, Sizes
from .language import in_primary_context
from .measure import alternate, in_process
from .networks import Feed
from .page import DOCS, Table, versions, yes
from .record import Record, resumed

RECORD = DOCS / "benchmarks-gpu-sizes.json"
SECONDS = 300
"""How long one process may take."""
COMBINATIONS = 10
"""Of sizes for each model of `benchmarks traffic`."""
WARM = 2
"""The first combinations of sizes, after which nothing should be compiled."""
LEFT_OUT = ("custom",)
"""The model with a custom operation equals another one on a GPU."""


@dataclass
class Row:
    """A model on a device.

    Attributes:
        name: its title.
        device: the device's name in `opweave devices`.
        first: seconds of the first two combinations of sizes, a session included.
        new: the longest call of a combination that is new after these, in milliseconds.
        compiled: kernels that calls waited for after the first two combinations.
        behind: kernels that were compiled in the background then, for sizes that are far from the first ones.
        clock: milliseconds of a call with the last sizes, from arrays to arrays; the median.
        ratio: that of `clock` to the model with these sizes as numbers: the median of pairs, the larger of two combinations.
        memory: of weights and intermediates, as a ratio to the model with numbers as dimensions: those of the sizes with the
            most memory.
    """

    name: str
    device: str
    first: float
    new: float
    compiled: int
    behind: int
    clock: float
    ratio: float
    memory: float

    @property
    def holds(self) -> bool:
        """Whether all figures are within the limits."""
        figures = {"new": self.new, "time": self.ratio, "memory": self.memory}
        return self.compiled == 0 and all(figures[name] <= budget.limit for name, budget in GPU_SIZES.items())


def section(record: Record[Row]) -> str:
    """The part of the page about GPUs, in Markdown."""
    rows = []
    for row in sorted(record.rows, key=lambda row: row.device):
        numbers = [
            f"{row.first:.2f} s",
            f"{row.new:.1f} ms",
            str(row.compiled),
            str(row.behind),
            f"{row.clock:.3f} ms",
            f"{row.ratio:.2f}x",
        ]
        rows.append([row.name, row.device, *numbers, f"{row.memory:.2f}x", yes(row.holds)])
    head = ["", "device", "first two", "a new size", "compiled", "behind", "a call", "static", "memory", "holds"]
    text = f"""## Sizes that change

Written by `python -m benchmarks gpu_sizes`: {record.device}; {record.machine}.

Models whose dimensions have names. "First two" is the time of a session and of calls with two combinations of sizes, kernels
compiled; "a new size" the longest call with sizes that are new after these (limit {GPU_SIZES["new"]}), and "compiled" the
kernels that these calls waited for (limit 0). Others are compiled "behind" the calls, for sizes that are far from the first
ones. "Static" is the time of a call beside the same model with numbers as dimensions (limit {GPU_SIZES["time"]}), and
"memory" that of weights and intermediates (limit {GPU_SIZES["memory"]}).

{Table(head, rows, right=range(2, 9))}
"""
    failed = "".join(f"- {name}: {reason}\n" for name, reason in record.failures.items())
    return f"{text}\nNot measured:\n\n{failed}" if failed else text


# In a separate process ------------------------------------------------------------------------------------------------


def feeds_of(name: str, folder: Path, models: Path) -> tuple[Path, list[Feed]]:
    """Write a model into a folder, and make inputs of all combinations of its sizes."""
    if name in MODELS:
        model = MODELS[name]
        feeds: dict[tuple[Any, ...], Feed] = {}
        for feed in model.feeds(0, 200):
            if len(feeds) < COMBINATIONS:
                feeds.setdefault(tuple(array.shape for array in feed.values()), feed)
        return model.write(folder / "model.onnx"), list(feeds.values())
    entry = catalog.entry(name)
    with entry.path(models) as path:
        copy = folder / "model.onnx"
        copy.write_bytes(path.read_bytes())
    types = {item.name: item.type for item in _inputs(copy)}
    return copy, entry.feeds(types)


def _inputs(path: Path) -> Sequence[Any]:
    import onnxruntime

    inputs: Sequence[Any] = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).get_inputs()
    return inputs


def with_numbers(path: Path, feed: Mapping[str, np.ndarray]) -> Path:
    """Write the model whose inputs have the shapes of `feed`."""
    model = onnx.load(path)
    del model.graph.value_info[:]
    for value in model.graph.input:
        if value.name in feed:
            sizes = value.type.tensor_type.shape
            del sizes.dim[:]
            for size in feed[value.name].shape:
                sizes.dim.add(dim_value=size)
    for value in model.graph.output:
        for dimension in value.type.tensor_type.shape.dim:
            dimension.Clear()
    target = path.with_name("static.onnx")
    onnx.save(model, target)
    return target


def compilations(device: str) -> Callable[[], int]:
    """The number of kernels that have been compiled since, for CUDA or WebGPU."""
    count = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def compile_one(*args: Any) -> Any:
            nonlocal count
            count += 1
            return function(*args)

        return compile_one

    if device == "cuda":
        from opweave.backends.cuda import compiler as cuda_compiler

        cuda_compiler._compile = counted(cuda_compiler._compile)
    else:
        from opweave.backends.webgpu.engine import WebGpuDevice

        WebGpuDevice._compile = counted(WebGpuDevice._compile)  # type: ignore[method-assign]
    return lambda: count


def watch_buffers() -> None:
    """Note the sizes of WebGPU's buffers from now on: its interface does not tell the memory in use."""
    from opweave.backends.webgpu.engine import WebGpuDevice

    original = WebGpuDevice.buffer

    def buffer(self: Any, count: int, label: str) -> Any:
        allocated = original(self, count, label)
        _buffers[allocated] = count
        return allocated

    WebGpuDevice.buffer = buffer  # type: ignore[method-assign]


_buffers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


def used_memory(device: str) -> float:
    """MiB of arrays on the device."""
    if device != "cuda":
        return sum(_buffers.values()) / 2**20
    from cuda.bindings import driver

    in_primary_context()
    _, pool = driver.cuDeviceGetDefaultMemPool(0)
    # Free memory of the device would count what the pool has reserved, in pieces of 32 MiB.
    error, used = driver.cuMemPoolGetAttribute(pool, driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
    assert not error, error
    return int(used) / 2**20


def memory_of(path: Path, device: str, feeds: Sequence[Feed]) -> float:
    """MiB of a session on the device that has run."""
    context = ow.ml.create_context(device=device)
    before = used_memory(device)
    session = ow.InferenceSession(path, context=context)
    for feed in feeds:
        session.run(None, feed)
    background.wait()
    return used_memory(device) - before


def largest(feeds: Sequence[Feed]) -> list[int]:
    """The numbers of the combinations in which an input is largest: a long prompt of a decoder, and a long past."""
    return sorted({max(range(len(feeds)), key=lambda n: feeds[n][name].size) for name in feeds[0]})


def alone(device: str, name: str, models: str, combination: str = "") -> None:
    """Measure a model in this process, and print a row; with the number of a `combination`, its memory with these sizes."""
    if device != "cuda":
        watch_buffers()
    with TemporaryDirectory(prefix="opweave-sizes-") as folder:
        path, feeds = feeds_of(name, Path(folder), Path(models))
        if combination:
            feed = feeds[int(combination)]
            print(json.dumps({"memory": memory_of(with_numbers(path, feed), device, [feed])}))
            return
        count = compilations(device)
        context = ow.ml.create_context(device=device)
        before = used_memory(device)
        start = time.perf_counter()
        session = ow.InferenceSession(path, context=context)
        for feed in feeds[:WARM]:
            session.run(None, feed)
        first = time.perf_counter() - start
        background.wait()
        warm, compiled, new = count(), 0, 0.0
        for feed in feeds[WARM:]:
            so_far, start = count(), time.perf_counter()
            session.run(None, feed)
            new = max(new, time.perf_counter() - start)
            compiled += count() - so_far
            background.wait()
        behind, memory = count() - warm - compiled, used_memory(device) - before
        ratios = []
        for feed in (feeds[0], feeds[-1]):
            static = ow.InferenceSession(with_numbers(path, feed), context=context)
            _compare(session.run(None, feed), static.run(None, feed))
            ways = {"names": _call(session, feed), "numbers": _call(static, feed)}
            times = alternate(ways, pairs=9, seconds=0.05)
            ratios.append(median(a / b for a, b in zip(times["names"], times["numbers"], strict=True)))
        row = {
            "first": first,
            "new": 1e3 * new,
            "compiled": compiled,
            "behind": behind,
            "clock": 1e3 * median(times["names"]),
        }
        print(json.dumps({**row, "ratio": max(ratios), "memory": memory, "largest": largest(feeds)}))


def _call(session: Any, feed: Feed) -> Callable[[], Any]:
    return lambda: session.run(None, feed)


def _compare(ours: Sequence[Any], theirs: Sequence[Any]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3 * (float(np.abs(b).max(initial=0)) or 1))


# The command ----------------------------------------------------------------------------------------------------------


def titles(models: Path) -> Iterator[tuple[str, str]]:
    """Names and titles of the models whose files are there."""
    for name, model in MODELS.items():
        if name not in LEFT_OUT:
            yield name, model.title
    for entry in catalog.entries():
        varying: Sequence[Sizes] = entry.sizes
        if len(varying) > WARM and not entry.quantized and (models / entry.file).is_file():
            yield entry.name, entry.name


def main(
    device: Annotated[
        list[str] | None, typer.Option(help="A name of `opweave devices`. Default: cuda and gpu.")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="A model, by name or by a part of it. Default: all.")] = None,
    keep: Annotated[Path, typer.Option("--json", help="Where results are kept, after each model.")] = RECORD,
    render: Annotated[Path | None, typer.Option(help="Measure nothing, and make the page of this file.")] = None,
    models: Annotated[Path, typer.Option(help="A folder of unpacked packages with models.")] = catalog.PACKAGES,
) -> None:
    """Measure models with dynamic dimensions on a GPU; what was measured before on the same device is kept."""
    from .gpu_page import write

    if render is not None:
        RECORD.write_text(render.read_text())
        write()
        return
    devices = device or ["cuda", "gpu"]
    chosen = [
        (name, title)
        for name, title in titles(models)
        if not only or any(part.lower() in title.lower() for part in only)
    ]
    if not chosen:
        raise typer.BadParameter(f"there is no model {', '.join(only or [])}")
    # All devices of a GPU share one record, under CUDA's description if CUDA is available.
    lent = {each.name for each in ow.devices() if each.available}
    description = ow.ml.create_context(device="cuda" if "cuda" in lent else devices[0]).device.description
    record = resumed(keep, Row, description, versions("opweave", "cuda-bindings", "triton", "wgpu"))
    for name, title in chosen:
        for each in devices:
            _measure(record, each, name, title, models)
            record.write(keep)
    if keep == RECORD:
        write()


def _measure(record: Record[Row], device: str, name: str, title: str, models: Path) -> None:
    """Put a model into the results, in the place of what they had of it."""
    start = time.perf_counter()
    record.rows = [row for row in record.rows if (row.name, row.device) != (title, device)]
    record.failures.pop(f"{title} ({device})", None)
    with TemporaryDirectory(prefix="opweave-sizes-") as cache:
        options: dict[str, Any] = {"timeout": SECONDS, "extra": {"OPWEAVE_CACHE": cache, "OPWEAVE_VERIFY": "0"}}
        given = ("benchmarks.gpu_sizes", device, name, str(models.resolve()))
        try:
            values = in_process(*given, **options)
            combinations = values.pop("largest")
            values["memory"] /= max(in_process(*given, str(number), **options)["memory"] for number in combinations)
            row = Row(title, device, **values)
        except (RuntimeError, TimeoutError) as error:
            record.failures[f"{title} ({device})"] = str(error).splitlines()[-1]
            print(f"{title} ({device}): {error}", flush=True)
            return
    record.rows.append(row)
    print(f"{row} [{time.perf_counter() - start:.0f} s]", flush=True)


if __name__ == "__main__":
    alone(*sys.argv[1:])
