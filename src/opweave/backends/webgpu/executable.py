"""Compiled graphs on a WebGPU device: kernels in order, over memory planned once; a dispatch is one command buffer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from threading import RLock
from typing import Any

import numpy as np

from ...graph import Graph, Node
from ...memory.spaces import intermediates
from .. import BaseRunner, How, KernelTime
from .engine import DeviceArray, Engine
from .schedule import Place, Schedule, Step, is_users_kernel

FIRST_PART = 16
"""Kernels of the first command buffer of a dispatch; each further one has twice as many."""

WHOLE = slice(None)


class DeviceRunner(BaseRunner):
    """A graph whose operations are kernels.

    Attributes:
        plan: how what lies between its kernels shares memory.
    """

    def __init__(self, graph: Graph, schedule: Schedule, engine: Engine) -> None:
        self.graph, self.engine = graph, engine
        self.steps: list[Step] = schedule.steps
        self._pipelines = engine.pipelines([step.kernel for step in self.steps])
        self._fixed: dict[Place, DeviceArray] = {}
        self._lay_out()
        self._groups: dict[int, Any] = {
            number: self._group(step, self._fixed)
            for number, step in enumerate(self.steps)
            if all(place in self._fixed for place in step.places)
        }
        self._lock = RLock()  # intermediates are the same memory at each run; the queue runs one after the other anyhow

    def describe(self, nodes: Sequence[Node]) -> tuple[How, str]:
        """The kernels that compute nodes."""
        numbers = [number for number, step in enumerate(self.steps) if not set(step.nodes).isdisjoint(nodes)]
        if not numbers:
            return "native", "WebGPU: no kernel of its own"
        which = f"kernel {numbers[0]}" if len(numbers) == 1 else f"kernels {numbers[0]} to {numbers[-1]}"
        (op,) = {node.op for node in nodes} if len(nodes) == 1 else (None,)
        if op is not None and is_users_kernel(op):
            return "kernel", f"WebGPU: {which}, {op.kernels['webgpu'].detail}"
        return "native", f"WebGPU: {which}"

    def measured(self) -> MeasuredRunner | None:
        """The same, with the time of each kernel; None where the device has no clock for it."""
        return MeasuredRunner(self) if self.engine.has_timestamps else None

    def _lay_out(self) -> None:
        """Give memory to constants, and to what lies between kernels."""
        lives: dict[Place, tuple[int, int]] = {}
        for number, step in enumerate(self.steps):
            for place in step.places:
                if place.kind == "constant" and place not in self._fixed:
                    self._fixed[place] = DeviceArray(place.desc, self.engine.upload(place.value))
                elif place.kind == "between":
                    lives[place] = lives.get(place, (number, number))[0], number
        self.plan, allocate = intermediates(self.engine, [place.desc for place in lives], list(lives.values()))
        self._fixed.update(zip(lives, allocate(), strict=True))

    def _group(self, step: Step, arrays: Mapping[Place, DeviceArray]) -> Any:
        return self.engine.bind_group(step.kernel.writes, [arrays[place] for place in step.places])

    def bind(self, inputs: Sequence[DeviceArray], outputs: Sequence[DeviceArray]) -> DeviceCall:
        """Tie the graph to memory of the device."""
        return DeviceCall(self, inputs, outputs)

    def run(self, inputs: Sequence[DeviceArray], outputs: Sequence[DeviceArray]) -> None:
        """Run the graph once."""
        self.bind(inputs, outputs)()


class DeviceCall:
    """A graph tied to memory; calling it runs it once. Nothing waits for the device."""

    def __init__(self, owner: DeviceRunner, inputs: Sequence[DeviceArray], outputs: Sequence[DeviceArray]) -> None:
        self.owner = owner
        self.lent = [array for array in (*inputs, *outputs) if array.lent]
        given = {"input": inputs, "output": outputs}
        arrays = dict(owner._fixed)
        for step in owner.steps:
            for place in step.places:
                if place not in arrays:
                    found = given[place.kind][place.number]
                    arrays[place] = DeviceArray(place.desc, found.buffer, found.offset)
        self.runs: list[tuple[Any, Any, tuple[int, int, int]]] = []
        for number, (step, pipeline) in enumerate(zip(owner.steps, owner._pipelines, strict=True)):
            group = owner._groups.get(number) or owner._group(step, arrays)
            self.runs.append((pipeline, group, step.kernel.workgroups))
        self.parts = _parts(len(self.runs))

    def __call__(self) -> None:
        """Run the graph once."""
        engine = self.owner.engine
        with self.owner._lock:
            if self.lent:
                engine.check_lent(self.lent)
            with engine.calls("running a graph"):
                for part in self.parts:
                    encoder = engine.device.create_command_encoder()
                    self.encode(encoder, part)
                    engine.device.queue.submit([encoder.finish()])

    def encode(self, encoder: Any, part: slice = WHOLE, timestamps: Mapping[str, Any] | None = None) -> None:
        """Add kernels to a command encoder, as one pass; `timestamps` say when it begins and ends."""
        if not self.runs:
            return
        compute = encoder.begin_compute_pass(timestamp_writes=timestamps)
        last = None
        for pipeline, group, workgroups in self.runs[part]:
            if pipeline is not last:
                compute.set_pipeline(pipeline)
                last = pipeline
            compute.set_bind_group(0, group)
            compute.dispatch_workgroups(*workgroups)
        compute.end()


def _parts(count: int) -> list[slice]:
    """Kernels by command buffers: in long graphs, the device begins with the first while later ones are written."""
    parts, start, size = [], 0, FIRST_PART
    while start + size < count:
        parts.append(slice(start, start + size))
        start, size = start + size, 2 * size
    return [*parts, slice(start, count)]


class MeasuredRunner(BaseRunner):
    """The same kernels, each with its time on the device (a pass of its own, so gaps between them do not count)."""

    def __init__(self, plain: DeviceRunner) -> None:
        self.plain, self.plan = plain, plain.plan
        self.times: list[list[int]] = []

    def describe(self, nodes: Sequence[Node]) -> tuple[How, str]:
        """The kernels that compute nodes."""
        return self.plain.describe(nodes)

    def bind(self, inputs: Sequence[DeviceArray], outputs: Sequence[DeviceArray]) -> Callable[[], None]:
        """Tie the graph to memory."""
        call = self.plain.bind(inputs, outputs)
        return lambda: self._run(call)

    def run(self, inputs: Sequence[DeviceArray], outputs: Sequence[DeviceArray]) -> None:
        """Run the graph once, and measure."""
        self.bind(inputs, outputs)()

    def _run(self, call: DeviceCall) -> None:
        with self.plain._lock:  # the memory is that of the plain runs
            self._measure(call)

    def _measure(self, call: DeviceCall) -> None:
        engine = self.plain.engine
        wgpu, device = engine.wgpu, engine.device
        count = len(call.runs)
        with engine.calls("measuring a graph"):
            queries = device.create_query_set(type=wgpu.QueryType.timestamp, count=max(1, 2 * count))
            usage = wgpu.BufferUsage
            found = device.create_buffer(size=max(16, 16 * count), usage=usage.QUERY_RESOLVE | usage.COPY_SRC)
            encoder = device.create_command_encoder()
            for number, (pipeline, group, workgroups) in enumerate(call.runs):
                compute = encoder.begin_compute_pass(
                    timestamp_writes={
                        "query_set": queries,
                        "beginning_of_pass_write_index": 2 * number,
                        "end_of_pass_write_index": 2 * number + 1,
                    }
                )
                compute.set_pipeline(pipeline)
                compute.set_bind_group(0, group)
                compute.dispatch_workgroups(*workgroups)
                compute.end()
            if count:
                encoder.resolve_query_set(queries, 0, 2 * count, found, 0)
            device.queue.submit([encoder.finish()])
            stamps = np.frombuffer(device.queue.read_buffer(found), np.uint64)[: 2 * count].astype(np.int64)
        self.times.append([int(end - start) for start, end in zip(stamps[::2], stamps[1::2], strict=True)])

    def finish(self) -> list[KernelTime]:
        """The kernels in order, without the first run of each."""
        runs = self.times[1:] or self.times
        found = []
        for number, step in enumerate(self.plain.steps):
            its = [run[number] / 1e9 for run in runs]
            names = " + ".join(node.title for node in step.nodes)
            target = next((p for p, w in zip(step.places, step.kernel.writes, strict=True) if w), None)
            made = "" if target is None else str(target.desc)
            found.append(KernelTime(names, step.kernel.title, made, median(its), min(its)))
        return found
