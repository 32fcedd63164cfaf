"""Run compiled graphs on GPUs: kernels in order, with memory planned once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from statistics import median
from typing import Any, Generic, TypeVar

from ...core.graph import Graph, Node
from ...core.sizes import is_static
from ...memory import NOT_IN_PLACE, Plan, copies
from ...memory.planner import Life, plan_buffers
from ...support.identity import ByIdentity
from .. import KEEPS_FLOAT32, How, KernelTime, Measured, Runner, Update
from .arenas import Arenas, GpuArena
from .arrays import DeviceArray
from .backend import GpuBackend
from .device import GpuDevice
from .forms import is_users_kernel
from .plans import plan_part, step_plan
from .steps import Buffer, KernelStep

Bound = TypeVar("Bound")
"""A kernel bound to memory."""


@dataclass(frozen=True, eq=False)
class GpuIntermediates(Generic[Bound]):
    """Memory for one run at a time: constants and intermediates, in an arena.

    `runs` has the bound kernels that use no other memory, by index of their steps.
    """

    arrays: Mapping[Buffer, DeviceArray]
    runs: Mapping[int, Bound]


class GpuKernelRunner(Runner, Generic[Bound]):
    """A graph compiled to kernels.

    Each run takes one of the `arenas`, so that several threads may run the graph concurrently. A submitted run returns the
    arena, because the device's queue executes in order. The versions of a graph with names share arenas.
    """

    def __init__(self, graph: Graph, backend: GpuBackend, engine: GpuDevice) -> None:
        self.backend, self.engine = backend, engine
        schedule = step_plan(graph, backend)
        self._graph, self._schedule = graph, schedule
        self.steps: list[KernelStep] = schedule.steps
        self._unrounded = schedule.unrounded
        self.updates = _updates(self.steps)
        self.prepare()
        schedule.begun.clear()
        self._constants = self._upload_constants()
        self._has_names = any(map(_has_names, self.steps))
        self.kernel_numbers: Sequence[int] = range(len(self.steps))
        """For each step, the index of its kernel among those that `prepare` compiles."""
        self.arenas: Arenas[GpuIntermediates[Bound]] = Arenas(engine)
        if not self._has_names:
            self._plan_intermediates()

    def at(self, sizes: Mapping[str, int]) -> GpuKernelRunner[Bound]:
        """Return the runner for these sizes: it has the same kernels and memory, and numbers as parameters of the kernels."""
        if not self._has_names:
            return self
        version = copy(self)
        version.set_sizes(sizes)
        return version

    def set_sizes(self, sizes: Mapping[str, int]) -> None:
        """Set the sizes of a copy that nothing uses yet."""
        places: dict[Buffer, Buffer] = {}
        steps: dict[KernelStep, KernelStep] = {}
        for step in self.steps:
            if step not in steps:
                steps[step] = step.at(sizes, places)
        unrolled: list[KernelStep] = []
        numbers: list[int] = []
        for repetition, group in groupby(enumerate(self.steps), key=lambda pair: pair[1].repetition):
            own, repeated = zip(*((number, steps[step]) for number, step in group), strict=True)
            unrolled += repeated if repetition is None else repetition.unroll(repeated, sizes, places)
            numbers += own * ((len(unrolled) - len(numbers)) // len(own))
        self.steps, self.kernel_numbers, self._has_names = unrolled, tuple(numbers), False
        vars(self).pop("_steps_of", None)  # those of the program with names
        renamed = {old: new for old, new in places.items() if old.kind == "constant" and new is not old}
        self._constants = {
            **self._constants,
            **{new: DeviceArray(new.desc, self._constants[old].buffer) for old, new in renamed.items()},
            **self._upload([new for old, new in places.items() if old.kind == "sizes"]),
        }
        self._plan_intermediates()
        self.begin_version(sizes)

    def has_kernels_of(self, other: Runner) -> bool:
        return isinstance(other, GpuKernelRunner) and _kernels_of(self) == _kernels_of(other)

    def saved_parts(self) -> Mapping[tuple[str, str], bytes]:
        return plan_part(self._graph, self.backend, self._schedule)

    def share_memory(self, other: Runner) -> None:
        if isinstance(other, GpuKernelRunner) and other.engine is self.engine:
            self.arenas = other.arenas
            if not self._has_names:
                self.arenas.use(self, self.plan)

    @abstractmethod
    def begin_version(self, sizes: Mapping[str, int]) -> None:
        """Prepare the parameters of the kernels of a version for certain sizes."""

    def _upload_constants(self) -> dict[Buffer, DeviceArray]:
        places = dict.fromkeys(place for step in self.steps for place in step.places)
        return self._upload(places)

    def _upload(self, places: Iterable[Buffer]) -> dict[Buffer, DeviceArray]:
        values = {place: place.value for place in places if place.value is not None}
        buffers = self.engine.upload([*values.values()])
        return {place: DeviceArray(place.desc, buffer) for place, buffer in zip(values, buffers, strict=True)}

    def _plan_intermediates(self) -> None:
        """Plan the memory of intermediates, and tell the arenas which buffers it needs."""
        lives: dict[Buffer, tuple[int, int]] = {}
        for number, step in enumerate(self.steps):
            for place in step.places:
                if place.kind == "between":
                    lives[place] = lives.get(place, (number, number))[0], number
        self._between = tuple(lives)
        self.plan: Plan = plan_buffers([Life(place.desc.byte_length, *life) for place, life in lives.items()])
        self.arenas.use(self, self.plan)

    @abstractmethod
    def prepare(self) -> None:
        """Compile the kernels of `steps`, or start compiling them."""

    def complete(self) -> None:
        """Allocate the intermediates of a run, if their sizes are numbers. Constants are on the device already."""
        if not self._has_names:
            arena = self.arenas.new()
            self.memory_in(arena)
            self.arenas.give_back(arena)

    @abstractmethod
    def bind_kernel(self, number: int, arrays: Mapping[Buffer, DeviceArray]) -> Bound:
        """Bind the kernel of a step to memory."""

    def memory_in(self, arena: GpuArena[GpuIntermediates[Bound]]) -> GpuIntermediates[Bound]:
        """Return the intermediates in an arena, with the kernels bound that use nothing else."""
        memory = arena.memories.peek(id(self))
        if memory is None:
            between = arena.carve(self.plan, [place.desc for place in self._between], self.arenas.in_use)
            arrays = {**self._constants, **dict(zip(self._between, between, strict=True))}
            numbers = [n for n, step in enumerate(self.steps) if all(place in arrays for place in step.places)]
            memory = arena.memories.put(self, GpuIntermediates(arrays, self.bind_kernels(numbers, arrays)))
        return memory

    def bind_kernels(self, numbers: Iterable[int], arrays: Mapping[Buffer, DeviceArray]) -> dict[int, Bound]:
        """Bind kernels by index of their steps; a repeated step is bound once."""
        kernels: dict[KernelStep, Bound] = {}
        by_number = {}
        for number in numbers:
            step = self.steps[number]
            if step not in kernels:
                kernels[step] = self.bind_kernel(number, arrays)
            by_number[number] = kernels[step]
        return by_number

    def caller_arrays(self, inputs: Sequence[DeviceArray], outputs: Sequence[DeviceArray]) -> dict[Buffer, DeviceArray]:
        arrays: dict[Buffer, DeviceArray] = {}
        for place in {place: None for step in self.steps for place in step.places}:
            if place.kind in ("input", "output"):
                array = (inputs if place.kind == "input" else outputs)[place.number]
                arrays[place] = DeviceArray(place.desc, array.buffer)
        return arrays

    def kernel_times(self, measured: Sequence[Sequence[int]]) -> list[KernelTime]:
        """Times of the kernels, without the first run; `measured` has nanoseconds by run and kernel."""
        runs = measured[1:] or measured
        times = []
        for number, step in enumerate(self.steps):
            seconds = [run[number] / 1e9 for run in runs]
            names = " + ".join(node.title for node in step.nodes)
            target = next((p for p, w in zip(step.places, step.kernel.writes, strict=True) if w), None)
            result = "" if target is None else str(target.desc)
            times.append(KernelTime(names, step.title, result, median(seconds), min(seconds)))
        return times

    @cached_property
    def _steps_of(self) -> Mapping[Node, list[int]]:
        """The indices of the steps that compute each node."""
        indices: dict[Node, list[int]] = {}
        for number, step in enumerate(self.steps):
            for node in step.nodes:
                indices.setdefault(node, []).append(number)
        return indices

    def describe(self, nodes: Sequence[Node]) -> tuple[How, str]:
        numbers = sorted({number for node in nodes for number in self._steps_of.get(node, ())})
        title = self.backend.title
        if not numbers:
            return "native", f"{title}: no kernel of its own"
        kernels = f"kernel {numbers[0]}" if len(numbers) == 1 else f"kernels {numbers[0]} to {numbers[-1]}"
        node = nodes[0]
        if len(nodes) == 1 and is_users_kernel(node, self.backend):
            return "kernel", f"{title}: {kernels}, {node.op.kernels[self.backend.name].detail}"
        remarks = dict.fromkeys(self.steps[number].remark for number in numbers)
        if not self._unrounded.isdisjoint(nodes):
            remarks[KEEPS_FLOAT32] = None
        return "native", ", ".join([f"{title}: {kernels}", *filter(None, remarks)])

    @abstractmethod
    def time_kernels(self, runs: Sequence[Bound | None]) -> list[int]:
        """Run kernels one by one, and return the nanoseconds of each on the device; 0 for skipped ones."""


class DeviceCall(Generic[Bound]):
    """A graph bound to memory. A call runs the graph once, without waiting for the device.

    `submit` gets the arena and the bound kernels in order, with None for copies that an in-place update makes redundant.
    """

    def __init__(
        self,
        owner: GpuKernelRunner[Bound],
        inputs: Sequence[DeviceArray],
        outputs: Sequence[DeviceArray],
        submit: Callable[[GpuArena[GpuIntermediates[Bound]], Sequence[Bound | None]], None],
    ) -> None:
        self.owner, self.submit = owner, submit
        self._lent = [array for array in (*inputs, *outputs) if array.lent]
        self._caller_arrays = owner.caller_arrays(inputs, outputs)
        self._copied = [size for update in owner.updates for size in update.copy_sizes(inputs, outputs)]
        self._calls = owner.engine.calls("running a graph")
        self._runs: ByIdentity[GpuIntermediates[Bound], Sequence[Bound | None]] = ByIdentity()
        arena = owner.arenas.take()
        try:
            self.runs(owner.memory_in(arena))
        finally:
            owner.arenas.give_back(arena)

    def runs(self, memory: GpuIntermediates[Bound]) -> Sequence[Bound | None]:
        return self._runs.peek(id(memory)) or self._runs.put(memory, self._bind(memory))

    def _bind(self, memory: GpuIntermediates[Bound]) -> Sequence[Bound | None]:
        arrays = {**memory.arrays, **self._caller_arrays}
        needed = [not self._is_in_place(step) for step in self.owner.steps]
        fresh = [number for number, is_needed in enumerate(needed) if is_needed and number not in memory.runs]
        runs = {**memory.runs, **self.owner.bind_kernels(fresh, arrays)}
        return [runs[number] if is_needed else None for number, is_needed in enumerate(needed)]

    def _is_in_place(self, step: KernelStep) -> bool:
        """Whether a kernel would only copy an input to itself."""
        if step.copies is None:
            return False
        source, target = (self._caller_arrays[place].buffer for place in step.copies)
        return source is target

    def __call__(self) -> None:
        owner = self.owner
        if self._lent:
            self.check_lent()
        arena = owner.arenas.take()
        try:
            with self._calls:
                # `memory_in` and `runs` do the same lookups. Doing them here saves calls of about 1 us: waiting for the device
                # evicts Python's code from the CPU caches.
                memory = arena.memories.peek(id(owner)) or owner.memory_in(arena)
                self.submit(arena, self._runs.peek(id(memory)) or self.runs(memory))
        finally:
            owner.arenas.give_back(arena)
        if self._copied:
            self.count_copies()

    def check_lent(self) -> None:
        """Raise `ValidationError` if the caller's memory cannot be used any more."""
        if self._lent:
            self.owner.engine.check_lent(self._lent)

    def count_copies(self) -> None:
        """Count the copies of inputs that are not updated in place."""
        if self._copied:
            copies.add(sum(self._copied), NOT_IN_PLACE, len(self._copied))


class MeasuredGpuRunner(Measured, Generic[Bound]):
    """The kernels of a runner, each timed on the device, so that gaps between kernels do not count."""

    def __init__(self, plain: GpuKernelRunner[Bound]) -> None:
        self.plain, self.plan = plain, plain.plan
        self.times: list[list[int]] = []

    def describe(self, nodes: Sequence[Node]) -> tuple[How, str]:
        return self.plain.describe(nodes)

    def bind(self, inputs: Sequence[DeviceArray], outputs: Sequence[DeviceArray]) -> DeviceCall[Bound]:
        return DeviceCall(self.plain, inputs, outputs, self._measure)

    def _measure(self, arena: GpuArena[GpuIntermediates[Bound]], runs: Sequence[Bound | None]) -> None:
        self.times.append(self.plain.time_kernels(runs))

    def finish(self) -> list[KernelTime]:
        return self.plain.kernel_times(self.times)


def _kernels_of(runner: GpuKernelRunner[Any]) -> list[tuple[Any, ...]]:
    """Keys of the kernels in order, with the formulas of their parameters and workgroups."""
    kernels = (step.kernel for step in runner.steps)
    return [(kernel.key, str(kernel.workgroups), str(kernel.sizes), kernel.starts_early) for kernel in kernels]


def _has_names(step: KernelStep) -> bool:
    return bool(step.kernel.sizes or step.repetition) or any(
        p.kind == "sizes" or not is_static(p.desc.shape) for p in step.places
    )


def _updates(steps: Sequence[KernelStep]) -> list[Update]:
    """Find in-place updates: an output starts as a copy of an input, and no later kernel reads the input."""
    copied = [(number, *step.copies) for number, step in enumerate(steps) if step.copies is not None]
    updates = []
    for number, source, target in copied:
        is_read = any(source in step.places for step in steps[number + 1 :])
        pairs = () if is_read else ((source.number, target.number),)
        updates.append(Update(pairs, (source.number,)))
    return updates
