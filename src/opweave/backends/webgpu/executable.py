"""Compiled graphs on a WebGPU device: kernels in order, over memory planned once; a dispatch is one command buffer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from threading import RLock
from typing import Any

import numpy as np

from ... import memory
from ...graph import Desc, Graph
from .. import KernelTime, Placement
from .engine import DeviceArray, Engine, padded
from .schedule import Place, Schedule, Step

Memory = np.ndarray | DeviceArray
"""What a graph is bound to: memory of the device, or of the host, which is copied from and to."""

FIRST_PART = 16
"""Kernels of the first command buffer of a dispatch; each further one has twice as many."""

WHOLE = slice(None)


class DeviceExecutable:
    """A graph whose operations are kernels.

    Attributes:
        plan: how its intermediates share memory.
    """

    def __init__(self, graph: Graph, schedule: Schedule, engine: Engine, placements: list[Placement]) -> None:
        self.graph, self.engine, self._placements = graph, engine, placements
        self.steps: list[Step] = schedule.steps
        self.outputs = schedule.outputs
        self._pipelines = engine.pipelines([step.kernel for step in self.steps])
        self._fixed: dict[Place, DeviceArray] = {}
        self.plan = self._place()
        self._groups: dict[int, Any] = {
            number: self._group(step, self._fixed)
            for number, step in enumerate(self.steps)
            if all(place in self._fixed for place in step.places)
        }
        self._lock = RLock()  # intermediates are the same memory at each run
        self._own: dict[tuple[str, str], DeviceArray] = {}

    def explain(self) -> list[Placement]:
        """What runs where, one entry a node of the user's graph."""
        return self._placements

    def measured(self) -> MeasuredExecutable | None:
        """The same, with the time of each kernel; None where the device has no clock for it."""
        return MeasuredExecutable(self) if self.engine.has_timestamps else None

    # Memory ----------------------------------------------------------------------------------------------------------

    def _place(self) -> memory.Plan:
        """Give memory to constants, and to what lies between kernels: buffers that are used again and again."""
        first: dict[Place, int] = {}
        last: dict[Place, int] = {}
        for number, step in enumerate(self.steps):
            for place in step.places:
                if place.kind == "constant" and place not in self._fixed:
                    self._fixed[place] = DeviceArray(place.desc, self.engine.upload(place.value))
                elif place.kind == "between":
                    first.setdefault(place, number)
                    last[place] = number
        slots: list[tuple[int, int, list[Place]]] = []  # bytes, the last step that needs it, what lies there
        for place in first:
            size, start, end = padded(place.desc.byte_length), first[place], last[place]
            free = [k for k, (_, until, _) in enumerate(slots) if until < start]
            # The smallest that is large enough, else the largest, which grows.
            fitting = [k for k in free if slots[k][0] >= size]
            chosen = min(fitting, key=lambda k: slots[k][0]) if fitting else max(
                free, key=lambda k: slots[k][0], default=-1
            )  # fmt: skip
            if chosen < 0:
                slots.append((size, end, [place]))
            else:
                slots[chosen] = (max(size, slots[chosen][0]), end, [*slots[chosen][2], place])
        for size, _, places in slots:
            buffer = self.engine.buffer(size, "intermediates")
            self._fixed.update((place, DeviceArray(place.desc, buffer)) for place in places)
        total = sum(padded(place.desc.byte_length) for place in first)
        return memory.Plan((0,) * len(first), sum(size for size, _, _ in slots), total)

    def _group(self, step: Step, arrays: Mapping[Place, DeviceArray]) -> Any:
        return self.engine.bind_group(step.kernel.writes, [arrays[place] for place in step.places])

    # Running ---------------------------------------------------------------------------------------------------------

    def bind(self, inputs: Mapping[str, Memory], outputs: Mapping[str, Memory]) -> DeviceCall:
        """Tie the graph to memory. Arrays of the host are copied to the device before each run, and from it after."""
        return DeviceCall(self, inputs, outputs)

    def run(self, inputs: Mapping[str, Memory], outputs: Mapping[str, Memory]) -> None:
        """Run the graph once."""
        with self._lock:
            self.bind(inputs, outputs)()

    def own(self, kind: str, name: str, desc: Desc) -> DeviceArray:
        """Memory that stands for an array of the host, made once."""
        key = kind, name
        if key not in self._own:
            self._own[key] = self.engine.allocate(desc)
        return self._own[key]


class DeviceCall:
    """A graph tied to memory; calling it runs it once. What lies on the device is not waited for."""

    def __init__(self, owner: DeviceExecutable, inputs: Mapping[str, Memory], outputs: Mapping[str, Memory]) -> None:
        self.owner, engine = owner, owner.engine
        self.writes: list[tuple[DeviceArray, np.ndarray]] = []
        self.reads: list[tuple[DeviceArray, np.ndarray]] = []
        at: dict[tuple[str, str], DeviceArray] = {}
        for name, given in inputs.items():
            if isinstance(given, np.ndarray):
                desc = owner.graph.inputs[name].desc
                at["input", name] = owner.own("input", name, desc)
                self.writes.append((at["input", name], given))
            else:
                at["input", name] = given
        for name, given in outputs.items():
            if isinstance(given, np.ndarray):
                at["output", name] = owner.own("output", name, owner.graph.outputs[name].desc)
                self.reads.append((at["output", name], given))
            else:
                at["output", name] = given
        self.lent = [array for array in at.values() if array.lent]
        arrays = dict(owner._fixed)
        for step in owner.steps:
            for place in step.places:
                if place not in arrays:
                    arrays[place] = DeviceArray(
                        place.desc, at[place.kind, place.name].buffer, at[place.kind, place.name].offset
                    )
        # An output that is another one's, or an input or constant, under another name.
        self.copies: list[tuple[DeviceArray, DeviceArray]] = []
        for name, place in owner.outputs.items():
            if (place.kind, place.name) != ("output", name):
                if place.kind == "constant" and place not in arrays:
                    arrays[place] = owner._fixed[place] = DeviceArray(place.desc, engine.upload(place.value))
                source = arrays[place] if place in arrays else at[place.kind, place.name]
                engine.check_usage(source, "COPY_SRC", f"output {name!r}, a copy of another tensor")
                engine.check_usage(at["output", name], "COPY_DST", f"output {name!r}, a copy of another tensor")
                self.copies.append((source, at["output", name]))
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
            for target, source in self.writes:
                engine.write(target, source, "an input to the device")
            with engine.calls("running a graph"):
                for part in self.parts:
                    encoder = engine.device.create_command_encoder()
                    self.encode(encoder, part)
                    if part is self.parts[-1]:
                        self.encode_copies(encoder)
                    engine.device.queue.submit([encoder.finish()])
            if self.reads:
                engine.read(
                    [source for source, _ in self.reads], [target for _, target in self.reads],
                    "an output from the device",
                )  # fmt: skip

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

    def encode_copies(self, encoder: Any) -> None:
        """Add the copies between tensors."""
        for source, target in self.copies:
            count = padded(target.nbytes)
            encoder.copy_buffer_to_buffer(source.buffer, source.offset, target.buffer, target.offset, count)
            memory.copies.add(target.nbytes, "an output under another name")


def _parts(count: int) -> list[slice]:
    """Kernels by command buffers: in long graphs, the device begins with the first while later ones are written."""
    parts, start, size = [], 0, FIRST_PART
    while start + size < count:
        parts.append(slice(start, start + size))
        start, size = start + size, 2 * size
    return [*parts, slice(start, count)]


class MeasuredExecutable:
    """The same kernels, each with its time on the device (a pass of its own, so gaps between them do not count)."""

    def __init__(self, plain: DeviceExecutable) -> None:
        self.plain = plain
        self.times: list[list[int]] = []

    def explain(self) -> list[Placement]:
        """What runs where."""
        return self.plain.explain()

    def measured(self) -> MeasuredExecutable:
        """Itself."""
        return self

    def bind(self, inputs: Mapping[str, Memory], outputs: Mapping[str, Memory]) -> Callable[[], None]:
        """Tie the graph to memory."""
        call = self.plain.bind(inputs, outputs)
        return lambda: self._run(call)

    def run(self, inputs: Mapping[str, Memory], outputs: Mapping[str, Memory]) -> None:
        """Run the graph once, and measure."""
        self.bind(inputs, outputs)()

    def _run(self, call: DeviceCall) -> None:
        with self.plain._lock:  # the memory is that of the plain runs
            self._measure(call)

    def _measure(self, call: DeviceCall) -> None:
        engine = self.plain.engine
        wgpu, device = engine.wgpu, engine.device
        for target, source in call.writes:
            engine.write(target, source, "an input to the device")
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
            call.encode_copies(encoder)
            device.queue.submit([encoder.finish()])
            stamps = np.frombuffer(device.queue.read_buffer(found), np.uint64)[: 2 * count].astype(np.int64)
        self.times.append([int(end - start) for start, end in zip(stamps[::2], stamps[1::2], strict=True)])
        if call.reads:
            engine.read([s for s, _ in call.reads], [t for _, t in call.reads], "an output from the device")

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
