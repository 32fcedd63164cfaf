"""Compiled graphs on a WebGPU device; a dispatch is one command buffer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ...core.graph import Graph
from ..gpu.arenas import GpuArena
from ..gpu.arrays import DeviceArray
from ..gpu.backend import GpuBackend
from ..gpu.runner import DeviceCall, GpuIntermediates, GpuKernelRunner, MeasuredGpuRunner
from ..gpu.steps import Buffer
from .engine import WebGpuDevice

FIRST_PART = 16
"""Number of kernels in the first command buffer of a dispatch; each further buffer has twice as many."""


class WebGpuRun(NamedTuple):
    """A kernel bound to memory."""

    pipeline: Any
    group: Any
    workgroups: tuple[int, int, int]


Runs: TypeAlias = Sequence[WebGpuRun | None]
"""Kernels in order; None for skipped ones."""


class DeviceRunner(GpuKernelRunner[WebGpuRun]):
    """A graph whose operations are kernels on a WebGPU device."""

    engine: WebGpuDevice

    def __init__(self, graph: Graph, backend: GpuBackend, engine: WebGpuDevice) -> None:
        super().__init__(graph, backend, engine)
        self._parts = _parts(len(self.steps))

    def prepare(self) -> None:
        self._pipelines = self.engine.pipelines([step.kernel for step in self.steps])

    def begin_version(self, sizes: Mapping[str, int]) -> None:
        numbers = list(dict.fromkeys(step.numbers for step in self.steps if step.numbers))
        self._sizes = dict(zip(numbers, self.engine.size_buffer(numbers), strict=True)) if numbers else {}
        self._parts = _parts(len(self.steps))

    def bind_kernel(self, number: int, arrays: Mapping[Buffer, DeviceArray]) -> WebGpuRun:
        step = self.steps[number]
        kernel, sizes = step.kernel, self._sizes[step.numbers] if step.numbers else None
        group = self.engine.bind_group(kernel.writes, [arrays[place] for place in step.places], sizes)
        return WebGpuRun(self._pipelines[self.kernel_numbers[number]], group, kernel.workgroups)

    def measured(self) -> MeasuredGpuRunner[WebGpuRun] | None:
        return MeasuredGpuRunner(self) if self.engine.has_timestamps else None

    def why_not_measured(self) -> str:
        return "" if self.engine.has_timestamps else "the adapter lacks the feature timestamp-query"

    def time_kernels(self, runs: Runs) -> list[int]:
        """Run each kernel in a separate pass."""
        wgpu, device, count = self.engine.wgpu, self.engine.device, len(runs)
        queries = device.create_query_set(type=wgpu.QueryType.timestamp, count=max(1, 2 * count))
        usage = wgpu.BufferUsage
        results = device.create_buffer(size=max(16, 16 * count), usage=usage.QUERY_RESOLVE | usage.COPY_SRC)
        encoder = device.create_command_encoder()
        for number, run in enumerate(runs):
            ends = {"beginning_of_pass_write_index": 2 * number, "end_of_pass_write_index": 2 * number + 1}
            encode(encoder, [run], {"query_set": queries, **ends})
        if count:
            encoder.resolve_query_set(queries, 0, 2 * count, results, 0)
        device.queue.submit([encoder.finish()])
        stamps = np.frombuffer(device.queue.read_buffer(results), np.uint64)[: 2 * count].astype(np.int64)
        return [int(end - start) for start, end in zip(stamps[::2], stamps[1::2], strict=True)]

    def bind(self, inputs: Sequence[DeviceArray], outputs: Sequence[DeviceArray]) -> WebGpuCall:
        return WebGpuCall(self, inputs, outputs, self._submit)

    def _submit(self, arena: GpuArena[GpuIntermediates[WebGpuRun]], runs: Runs) -> None:
        device = self.engine.device
        for part in self._parts:
            encoder = device.create_command_encoder()
            encode(encoder, runs[part])
            device.queue.submit([encoder.finish()])


class WebGpuCall(DeviceCall[WebGpuRun]):
    """A graph bound to memory, which runs in its own command buffers, or in one of the caller's."""

    owner: DeviceRunner

    def encode(self, encoder: Any, timestamps: Mapping[str, Any] | None) -> None:
        """Add one run to the caller's command encoder, as one pass."""
        from .textures import check_encoder, check_timestamps  # most programs pass no encoder

        engine = self.owner.engine
        check_encoder(engine, "dispatch", encoder)
        if timestamps is not None:
            check_timestamps(engine, "dispatch", timestamps)
        self.check_lent()

        def add(commands: Any) -> None:
            memory = self.owner.memory_in(self.owner.arenas.for_commands())
            encode(commands, self.runs(memory), timestamps)

        engine.record("dispatch", add, encoder)
        self.count_copies()


def encode(encoder: Any, runs: Runs, timestamps: Mapping[str, Any] | None = None) -> None:
    """Add kernels to a command encoder as one pass; `timestamps` record when the pass begins and ends."""
    if not runs and timestamps is None:
        return
    compute = encoder.begin_compute_pass(timestamp_writes=timestamps)
    last = None
    for run in runs:
        if run is None:
            continue
        pipeline, group, workgroups = run
        if pipeline is not last:
            compute.set_pipeline(pipeline)
            last = pipeline
        compute.set_bind_group(0, group)
        compute.dispatch_workgroups(*workgroups)
    compute.end()


def _parts(count: int) -> list[slice]:
    """Split kernels into command buffers: in long graphs, the device begins with the first while the host encodes the next."""
    parts, start, size = [], 0, FIRST_PART
    while start + size < count:
        parts.append(slice(start, start + size))
        start, size = start + size, 2 * size
    return [*parts, slice(start, count)]
