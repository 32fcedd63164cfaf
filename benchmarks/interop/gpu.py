"""The four tests on a WebGPU device, where a framework's shaders and Opweave's graphs share a queue and buffers."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

import opweave as ow
from opweave.backends.webgpu import adapters
from opweave.support.errors import NotSupportedError

from .gpu_report import CHANNELS, GpuLine, GpuReport
from .measure import agree
from .operations import BUILT_IN, PADDING, Chain, Data, Operations, expressions
from .shaders import Commands, Shaders

HARDWARE = 100, 50
"""Height and width of the images, and how often each way is measured, on a GPU."""
SOFTWARE = 40, 3
"""The same where a processor pretends to be one."""


@dataclass
class Kernels:
    """What kernels take on the device, by timestamps: the middle and the best of all runs, in milliseconds."""

    count: int
    median: float
    fastest: float

    @classmethod
    def of(cls, commands: Commands, repeat: int) -> Kernels:
        """Of a framework's own commands."""
        return cls(commands.count, *middle_and_best(commands.seconds(repeat)))

    @classmethod
    def of_graph(cls, chain: Chain, repeat: int) -> Kernels:
        """Of a graph: the sum of its kernels."""
        its = chain.graph.profile({"x": chain.source}, outputs={"y": chain.target}, repeat=repeat).kernels
        return cls(len(its), sum(k.median for k in its) * 1e3, sum(k.minimum for k in its) * 1e3)

    def __add__(self, other: Kernels) -> Kernels:
        return Kernels(self.count + other.count, self.median + other.median, self.fastest + other.fastest)


@dataclass
class Way:
    """How a line is measured.

    Attributes:
        line: what it will say.
        run: does it once; where nothing forces it, the device is not waited for.
        gpu: measures the given number of runs on the device.
        result: the array that it made.
    """

    line: GpuLine
    run: Callable[[], object]
    gpu: Callable[[int], Kernels]
    result: Callable[[], np.ndarray]


class Tests:
    """The ways to do it on one device."""

    def __init__(self, device: Any, size: int) -> None:
        self.device, self.context = device, ow.ml.create_context(device)
        self.data = Data.random(CHANNELS, size)
        self.shaders = Shaders(device, CHANNELS, size)
        self.bias = self.shaders.buffer(self.data.bias)
        self.shared = False

    def all(self) -> Iterator[Way]:
        yield self.custom()
        yield self.through_the_host()
        yield self.shared_buffer("own shaders, add and relu", ["add", "relu"])
        yield self.shared_buffer("own shader, add and relu in one", ["add_relu"])
        yield self.graph(3, "expressions in the same graph", expressions())
        yield self.graph(4, "built-in", BUILT_IN)

    def read(self, buffer: Any) -> np.ndarray:
        return np.frombuffer(self.device.queue.read_buffer(buffer), np.float32).reshape(self.data.image.shape)

    def wait(self) -> None:
        """Until the device has done all that it was given."""
        self.device.queue.read_buffer(self.bias, 0, 4)

    def custom(self) -> Way:
        """Test 1: shaders only."""
        image, weights = self.shaders.buffer(self.data.image), self.shaders.buffer(self.data.weights)
        a, b, c = (self.shaders.buffer() for _ in range(3))
        run = self.shaders.bound(("conv2d", (image, weights, a)), ("add", (a, self.bias, b)), ("relu", (b, c)))
        line = GpuLine(1, "own shader, an element a thread", "own shaders")
        return Way(line, run, lambda repeat: Kernels.of(run, repeat), lambda: self.read(c))

    def through_the_host(self) -> Way:
        """Test 2: the result of the built-in convolution is read, and written to where the shaders read."""
        conv = Chain(self.context, self.data, BUILT_IN, "conv")
        again = self.context.create_tensor("float32", self.data.image.shape, writable=True)
        b, c = self.shaders.buffer(), self.shaders.buffer()
        rest = self.shaders.bound(("add", (again.gpu_buffer, self.bias, b)), ("relu", (b, c)))
        array = np.empty_like(self.data.image)

        def run() -> None:
            conv()
            self.context.read_tensor(conv.target, out=array)
            self.context.write_tensor(again, array)
            rest()

        def gpu(repeat: int) -> Kernels:
            return Kernels.of_graph(conv, repeat) + Kernels.of(rest, repeat)

        return Way(GpuLine(2, "built-in", "own shaders, on a copy"), run, gpu, lambda: self.read(c))

    def shared_buffer(self, name: str, shaders: Sequence[str]) -> Way:
        """Test 3: the built-in convolution writes into a user's buffer, which the user's shaders read."""
        own = self.shaders.buffer()
        target = self.context.tensor_from(own, "float32", self.data.image.shape)
        with self.context.export_to_gpu(target) as lent:
            self.shared = own is target.gpu_buffer is lent
        conv = Chain(self.context, self.data, BUILT_IN, "conv", target=target)
        results = [self.shaders.buffer() for _ in shaders]
        sources = [own, *results]
        calls: list[tuple[str, Sequence[Any]]] = [
            (shader, (a, b) if shader == "relu" else (a, self.bias, b))
            for shader, a, b in zip(shaders, sources, results, strict=False)
        ]
        rest = self.shaders.bound(*calls)

        def run() -> None:
            conv()
            rest()

        def gpu(repeat: int) -> Kernels:
            return Kernels.of_graph(conv, repeat) + Kernels.of(rest, repeat)

        return Way(GpuLine(3, "built-in", name), run, gpu, lambda: self.read(results[-1]))

    def graph(self, test: int, name: str, operations: Operations) -> Way:
        """Tests 3 and 4: all in one graph."""
        chain = Chain(self.context, self.data, operations, "conv add relu")
        line = GpuLine(test, "built-in", name)
        result = chain.target.gpu_buffer
        return Way(line, chain, lambda repeat: Kernels.of_graph(chain, repeat), lambda: self.read(result))


def measured(way: Way, repeat: int, wait: Callable[[], None]) -> GpuLine:
    """The line of a way, with its times."""
    line, run = way.line, way.run
    run()
    ow.memory.copies.reset()
    run()
    line.copies = ow.memory.copies.count
    wait()
    walls = []
    for _ in range(repeat):
        start = time.perf_counter()
        run()
        wait()
        walls.append(time.perf_counter() - start)
    start = time.perf_counter()
    for _ in range(repeat):
        run()
    wait()
    line.row = (time.perf_counter() - start) / repeat * 1e3
    # Right after that, while the device's clocks are up.
    kernels = way.gpu(repeat)
    line.kernels, line.gpu, line.wall = kernels.count, (kernels.median, kernels.fastest), middle_and_best(walls)
    return line


def middle_and_best(seconds: Sequence[float]) -> tuple[float, float]:
    """The two, in milliseconds."""
    return statistics.median(seconds) * 1e3, min(seconds) * 1e3


def compare(data: Data, repeat: int, expected: np.ndarray, tf32: bool) -> GpuLine:
    """What PyTorch takes on the same GPU, with CUDA's library for convolutions."""
    import torch
    from torch.nn import functional as F  # noqa: N812  (PyTorch's word)

    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = tf32
    image, weights, bias = (torch.from_numpy(a).cuda() for a in (data.image, data.weights, data.bias))

    def run() -> Any:
        return F.conv2d(image, weights, padding=PADDING[0]).add_(bias).relu_()

    tolerance = 2e-2 if tf32 else 1e-4
    np.testing.assert_allclose(run().cpu().numpy(), expected, rtol=tolerance, atol=tolerance)
    for _ in range(20):
        run()
    many, walls, times = 20, [], []
    for _ in range(repeat):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        walls.append(time.perf_counter() - start)
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(repeat):
        torch.cuda._sleep(2_000_000)  # so that the device does not wait for Python
        before.record()
        for _ in range(many):
            run()
        after.record()
        torch.cuda.synchronize()
        times.append(before.elapsed_time(after) / 1e3 / many)
    start = time.perf_counter()
    for _ in range(repeat):
        run()
    torch.cuda.synchronize()
    row = (time.perf_counter() - start) / repeat * 1e3
    name = f"PyTorch, cuDNN {'TF32' if tf32 else 'float32'}"
    return GpuLine(0, name, "PyTorch", middle_and_best(times), middle_and_best(walls), row, None, 0)


def missing_torch() -> str:
    """Why there is no comparison with PyTorch here; empty if there is."""
    if find_spec("torch") is None:
        return "PyTorch is not installed"
    import torch

    return "" if torch.cuda.is_available() else "PyTorch sees no GPU here"


def machine() -> str:
    versions = [f"{name} {metadata.version(name)}" for name in ("opweave", "wgpu", "numpy")]
    if find_spec("torch") is not None:
        versions.append(f"torch {metadata.version('torch')}")
    return f"{platform.system()} {platform.machine()}; Python {platform.python_version()}, {', '.join(versions)}"


def gpu_report(name: str, size: int | None, repeat: int | None) -> GpuReport:
    """Measure on the device of this name; progress is shown on the standard error output.

    Raises:
        NotSupportedError: there is no such device here.
        MissingExtraError: wgpu is not installed.
    """
    found = adapters.adapters()
    if name not in found:
        there = ", ".join(found) or "there is none"
        raise NotSupportedError(f"there is no WebGPU device {name!r} here; devices: {there}")
    info = found[name].info
    software = adapters.is_software(info)
    default_size, default_repeat = SOFTWARE if software else HARDWARE
    size, repeat = size or default_size, repeat or default_repeat
    device = adapters.request_device(name, "high-performance")
    driver = f", {info['description']}" if info.get("description") else ""
    report = GpuReport(info["device"], software, f"WebGPU on {info['backend_type']}{driver}, {machine()}", size, repeat)
    if "timestamp-query" not in device.features:
        raise NotSupportedError(f"{info['device']} has no timestamp queries, which this benchmark measures with")
    with _steps("tests 1 to 4", 6 + 2) as done:
        tests = Tests(device, size)
        ways = list(tests.all())
        expected = reference(ways[-1])
        report.shared = tests.shared
        for way in ways:
            way.run()
            agree(f"{way.line.conv}, {way.line.rest}", way.result(), expected)
            report.lines.append(measured(way, repeat, tests.wait))
            done(way.line)
        why = missing_torch()
        if software or why:
            report.missing.append(f"PyTorch: {'it has no back end for this device' if software else why}")
        for tf32 in () if report.missing else (False, True):
            report.lines.append(compare(tests.data, repeat, expected, tf32))
            done(report.lines[-1])
    return report


def reference(built_in: Way) -> np.ndarray:
    """The result that all others must agree with."""
    built_in.run()
    return built_in.result()


@contextmanager
def _steps(title: str, total: int) -> Iterator[Callable[[GpuLine], None]]:
    """A bar that moves on, and a line of text for each way that is measured."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(title, total=total)

        def done(line: GpuLine) -> None:
            progress.advance(task)
            took = [
                f"{name} {value[0]:.3f} ms" for name, value in {"GPU": line.gpu, "wall": line.wall}.items() if value
            ]
            progress.console.print(f"{line.test}. {line.conv}; {line.rest}: {', '.join(took)}", highlight=False)

        yield done
