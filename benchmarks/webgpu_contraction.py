"""Kernels of matrix products and convolutions on a GPU, each by itself: time on the device, beside PyTorch where it has CUDA.

Times are the least of several runs, by timestamps around a row of dispatches, where each waits for the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

import opweave as ow
from opweave.backends.gpu.contraction.kernels import Contraction
from opweave.backends.gpu.forms import apply_node
from opweave.backends.webgpu import webgpu
from opweave.backends.webgpu.engine import WebGpuDevice
from opweave.expr.gpu import Buffer, GpuKernel
from opweave.expr.ir import Input
from opweave.expr.tracing import inputs_of

TOLERANCE = 1e-4
"""Difference to PyTorch, relative to the greatest value."""


@dataclass
class Case:
    """A contraction.

    Attributes:
        name: for the table.
        op: matmul, conv2d or conv_transpose2d.
        shapes: of both operands.
        options: attributes of the operation.
        constant: whether the second operand is a constant.
        count: how often it is there in ResNet-50.
    """

    name: str
    op: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    options: dict[str, Any] = field(default_factory=dict)
    constant: bool = True
    count: int = 0


def conv(name: str, size: int, channels: int, outputs: int, kernel: int, stride: int = 1, **more: Any) -> Case:
    groups = more.get("groups", 1)
    options = {"padding": (kernel // 2,) * 4, "strides": (stride, stride), "groups": groups}
    shapes = (more.get("batch", 1), channels, size, size), (outputs, channels // groups, kernel, kernel)
    return Case(name, "conv2d", shapes, options, count=more.get("count", 0))


def resnet50() -> Iterator[Case]:
    yield conv("ResNet-50 stem", 224, 3, 64, 7, 2, count=1)
    channels = 64
    for stage, (width, blocks, size) in enumerate(((64, 3, 56), (128, 4, 28), (256, 6, 14), (512, 3, 7)), 1):
        before, stride = (size, 1) if stage == 1 else (2 * size, 2)
        title = f"ResNet-50 stage {stage}"
        yield conv(f"{title} shortcut", before, channels, 4 * width, 1, stride, count=1)
        yield conv(f"{title} first 1x1", before, channels, width, 1, count=1)
        yield conv(f"{title} first 3x3", before, width, width, 3, stride, count=1)
        yield conv(f"{title} 1x1 up", size, width, 4 * width, 1, count=blocks)
        yield conv(f"{title} 1x1 down", size, 4 * width, width, 1, count=blocks - 1)
        yield conv(f"{title} 3x3", size, width, width, 3, count=blocks - 1)
        channels = 4 * width


CASES = (
    conv("conv2d 100x100, 100 to 100", 100, 100, 100, 3),
    *resnet50(),
    conv("32 images of 56x56, 64 to 64", 56, 64, 64, 3, batch=32),
    conv("32 images of 14x14, 256 to 256", 14, 256, 256, 3, batch=32),
    conv("depthwise 112x112, 96", 112, 96, 96, 3, groups=96),
    conv("depthwise 7x7, 56x56, 128", 56, 128, 128, 7, groups=128),
    Case(
        "transposed 4x4, 32x32, 256 to 128",
        "conv_transpose2d",
        ((1, 256, 32, 32), (256, 128, 4, 4)),
        {"padding": (1, 1, 1, 1), "strides": (2, 2)},
    ),
    *(Case(f"matmul {n}", "matmul", ((n, n), (n, n)), constant=False) for n in (1024, 2048, 4096)),
    Case("matmul 128x768 by 768x3072", "matmul", ((128, 768), (768, 3072))),
    Case("matmul 12 of 512x64 by 64x512", "matmul", ((12, 512, 64), (12, 64, 512)), constant=False),
    *(Case(f"matmul {n}x4096 by 4096x4096", "matmul", ((n, 4096), (4096, 4096))) for n in (1, 4, 16)),
)


class Clock:
    """Runs kernels on a device and takes their time there."""

    def __init__(self, engine: WebGpuDevice) -> None:
        self.engine, self.device = engine, engine.device
        usage = engine.wgpu.BufferUsage
        self.usage = usage.STORAGE | usage.COPY_SRC | usage.COPY_DST
        self.queries = self.device.create_query_set(type="timestamp", count=2)
        self.stamps = self.device.create_buffer(size=16, usage=usage.QUERY_RESOLVE | usage.COPY_SRC)

    def buffer(self, bound: Buffer, value: np.ndarray | None = None) -> Any:
        buffer = self.device.create_buffer(size=-(-bound.desc.byte_length // 16) * 16, usage=self.usage)
        if value is not None:
            self.device.queue.write_buffer(buffer, 0, np.ascontiguousarray(value))
        return buffer

    def steps(
        self, kernels: Sequence[GpuKernel], buffers: dict[Buffer, Any]
    ) -> list[tuple[Any, Any, tuple[int, int, int]]]:
        """Pipeline, bind group and workgroups of each kernel."""
        made = []
        for kernel in kernels:
            module = self.device.create_shader_module(code=kernel.source)
            pipeline = self.device.create_compute_pipeline(
                layout="auto", compute={"module": module, "entry_point": "main"}
            )
            for bound in kernel.bindings:
                if bound not in buffers:
                    buffers[bound] = self.buffer(bound)
            entries = [{"binding": k, "resource": {"buffer": buffers[b]}} for k, b in enumerate(kernel.bindings)]
            group = self.device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
            made.append((pipeline, group, kernel.workgroups))
        return made

    def run(self, steps: Sequence[tuple[Any, Any, tuple[int, int, int]]], times: int) -> float:
        """Milliseconds of all steps, on the average."""
        encoder = self.device.create_command_encoder()
        ends = {"beginning_of_pass_write_index": 0, "end_of_pass_write_index": 1}
        one = encoder.begin_compute_pass(timestamp_writes={"query_set": self.queries, **ends})
        for _ in range(times):
            for pipeline, group, workgroups in steps:
                one.set_pipeline(pipeline)
                one.set_bind_group(0, group)
                one.dispatch_workgroups(*workgroups)
        one.end()
        encoder.resolve_query_set(self.queries, 0, 2, self.stamps, 0)
        self.device.queue.submit([encoder.finish()])
        begin, end = np.frombuffer(self.device.queue.read_buffer(self.stamps), np.uint64)
        return float(end - begin) * 1e-6 / times

    def least(self, steps: Sequence[tuple[Any, Any, tuple[int, int, int]]]) -> float:
        once = self.run(steps, 2)
        times = max(3, min(40, int(4 / max(once, 1e-3))))
        return min(self.run(steps, times) for _ in range(5))


def torch_function(
    case: Case, arrays: Sequence[np.ndarray], *, tf32: bool = False, data_type: Any = None
) -> Callable[[], Any] | None:
    """The same with PyTorch on CUDA, in another data type than the arrays', or TF32 for float32; None without it."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True
    a, b = (torch.from_numpy(array).cuda().to(data_type) for array in arrays)
    if case.op == "matmul":
        return lambda: a @ b
    function = getattr(torch.nn.functional, case.op)
    padding, strides = case.options["padding"], case.options["strides"]
    groups = case.options.get("groups", 1)
    return lambda: function(a, b, stride=strides, padding=padding[::2], groups=groups)


def torch_milliseconds(function: Callable[[], Any]) -> float:
    """Milliseconds a call, replayed as a CUDA graph, so that nothing waits for Python."""
    import torch

    for _ in range(5):
        function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(20):
            function()
    times, event = [], cast(Any, torch.cuda.Event)
    for _ in range(5):
        begin, end = (event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(float(begin.elapsed_time(end)) / 20)
    return min(times)


def measure(case: Case, clock: Clock) -> tuple[float, float | None, str]:
    """Our milliseconds, PyTorch's, and how it is computed."""
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(shape, "float32") for shape in case.shapes]
    builder = ow.MLGraphBuilder(ow.ml.create_context(device="reference"))
    second = builder.constant(arrays[1]) if case.constant else builder.input("b", "float32", case.shapes[1])
    result = getattr(builder, case.op)(builder.input("a", "float32", case.shapes[0]), second, **case.options)
    node = result.node
    inputs, operands = inputs_of([operand.desc for operand in node.operands])
    made = apply_node(node, webgpu, dict(zip(node.operands, operands, strict=True)))
    constants = {inputs[1]: arrays[1]} if case.constant else {}
    found = Contraction(made.problem, Input(2, result.desc), constants, clock.engine.features)
    sources = dict(zip(inputs, arrays, strict=True)) | {
        source: constant.make() for source, constant in found.arranged.items()
    }
    buffers: dict[Buffer, Any] = {source: clock.buffer(source, array) for source, array in sources.items()}
    ours = clock.least(clock.steps(found.kernels(None, case.name), buffers))
    function, theirs = torch_function(case, arrays), None
    if function is not None:
        theirs, want = torch_milliseconds(function), function().cpu().numpy()
        got = np.frombuffer(clock.device.queue.read_buffer(buffers[found.result]), "float32")[: want.size]
        error = np.abs(got.reshape(want.shape) - want).max() / np.abs(want).max()
        assert error < TOLERANCE, f"{case.name}: differs by {error:.1e}"
    for buffer in buffers.values():
        buffer.destroy()
    how = f"{found.tile}" if found.method == "tiled" else found.method
    return ours, theirs, f"{how}, {found.splits} parts" if found.splits > 1 and found.method == "tiled" else how


def operations(case: Case) -> float:
    """Additions and multiplications."""
    first, second = case.shapes
    if case.op == "matmul":
        return 2.0 * float(np.prod(first)) * second[-1]
    taps = float(np.prod(second[2:]))
    if case.op == "conv_transpose2d":
        return 2.0 * float(np.prod(first)) * second[1] * taps
    pixels: float = first[0] * (first[2] // case.options["strides"][0]) * (first[3] // case.options["strides"][1])
    return 2.0 * pixels * second[0] * second[1] * taps
