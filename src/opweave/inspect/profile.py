"""Profiles of graphs: the time of each step and of a whole run, copies, and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import memory
from ..core.graph import Desc
from ..memory.arrays import as_array, contiguous, fit
from ..memory.spaces import Memory, TensorSpace
from ..run.binding import Binding
from ..run.graph import MLGraph, check_names
from ..run.locks import Locks
from ..run.tensor import MLTensor
from ..support import lazy_imports
from ..support.errors import require
from ..support.words import duration, intermediates, markup, shorten, size, table

if TYPE_CHECKING:
    from ..backends import KernelTime, Pairs, Placement
    from ..run.program import Program

MAX_TITLE = 70
"""Maximum characters of a title in a table; `Profile.steps` has the full title."""

_KERNEL_HEAD = ("", "of operation", "kernel", "makes", "median", "min", "share")
_TOTAL_HEAD = ("kernel", "calls", "total", "share")


@dataclass(frozen=True, slots=True)
class StepProfile:
    """One step of a graph.

    Attributes:
        segment: the number of the segment that it belongs to.
        title: the operations that it runs, or what it copies.
        how: what runs it.
        median: the median of its time, in seconds.
        minimum: its shortest time, in seconds.
        reads: bytes that it reads, weights included.
        writes: bytes that it writes.
        share: its fraction of the sum of all steps' times.
        is_copy: whether it only copies.
    """

    segment: int
    title: str
    how: str
    median: float
    minimum: float
    reads: int
    writes: int
    share: float
    is_copy: bool = False

    @property
    def bandwidth(self) -> float:
        """Bytes read and written in a second."""
        return (self.reads + self.writes) / self.median if self.median else 0.0


@dataclass(frozen=True, slots=True)
class CopyProfile:
    """The copies that one run of a graph makes for one reason."""

    reason: str
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class KernelTotal:
    """All calls of one kernel in a run.

    Attributes:
        kernel: the engine's name for the kernel.
        count: the number of calls.
        total: the sum of the median times of its calls, in seconds.
        share: its fraction of the sum of all kernels' times.
    """

    kernel: str
    count: int
    total: float
    share: float


@dataclass(frozen=True, slots=True, repr=False)
class Profile:
    """The result of `MLGraph.profile` and `InferenceSession.profile`; a prompt, `print` and notebooks show it as a table.

    Attributes:
        device: the device of the graph.
        repeat: the number of measured runs.
        steps: the steps of one run, in order. A graph that one engine runs as a whole is one step.
        copies: copies during one run, by reason, from `opweave.memory.copies`; includes copies by other threads.
        median: the median time of a whole run in seconds, measured as a whole.
        minimum: the shortest time of a whole run in seconds.
        intermediates: bytes of memory for the values between segments.
        intermediates_alone: the sum of the sizes of these values, which is larger if values share memory.
        pieces: the number of these values.
        kernels: the times of the engine's kernels, measured by the engine; on a CPU only with `detail=True`. On a GPU, they
            are differences of timestamps.
        remarks: for a session, the program that was measured, and how calls with other shapes run.
    """

    device: str
    repeat: int
    steps: tuple[StepProfile, ...]
    copies: tuple[CopyProfile, ...]
    median: float
    minimum: float
    intermediates: int = 0
    intermediates_alone: int = 0
    pieces: int = 0
    kernels: tuple[KernelTime, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def parts(self) -> float:
        """The sum of the steps' median times, in seconds."""
        return sum(step.median for step in self.steps)

    @property
    def overhead(self) -> float:
        """The time of a run minus the sum of its steps, in seconds; noise can make it negative."""
        return self.median - self.parts

    @property
    def kernel_totals(self) -> tuple[KernelTotal, ...]:
        """The times of `kernels`, added up for each kernel, longest first."""
        medians: dict[str, list[float]] = {}
        for kernel in self.kernels:
            medians.setdefault(kernel.kernel, []).append(kernel.median)
        whole = self._kernel_seconds
        totals = [KernelTotal(name, len(times), sum(times), sum(times) / whole) for name, times in medians.items()]
        return tuple(sorted(totals, key=lambda total: -total.total))

    @property
    def _kernel_seconds(self) -> float:
        return sum(kernel.median for kernel in self.kernels) or 1.0

    def to_dict(self) -> dict[str, Any]:
        """All numbers, for tools: plain lists, dictionaries, strings and numbers; times in seconds, sizes in bytes."""
        result = asdict(self)
        for step, entry in zip(self.steps, result["steps"], strict=True):
            entry["bandwidth"] = step.bandwidth
        totals = [asdict(total) for total in self.kernel_totals]
        return {**result, "kernel_totals": totals, "parts": self.parts, "overhead": self.overhead}

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        head = ("", "step", "runs as", "median", "min", "share", "read", "written", "GB/s")
        lines = table([head, *map(_step_cells, self.steps)], words=3)
        if self.kernels:
            rows = [_KERNEL_HEAD, *self._kernel_cells()]
            lines += ["", "kernels, while their engine measures them:", *table(rows, words=4)]
            lines += ["", "totals of kernels:", *table([_TOTAL_HEAD, *self._total_cells()], words=1)]
        return "\n".join([*lines, "", *self._notes()])

    def _kernel_cells(self) -> list[tuple[str, ...]]:
        total = self._kernel_seconds
        return [
            (str(k.segment), shorten(k.node, MAX_TITLE), k.kernel, k.result, *_times(k, k.median / total))
            for k in self.kernels
        ]

    def _total_cells(self) -> list[tuple[str, ...]]:
        return [(t.kernel, str(t.count), duration(t.total), f"{t.share:.1%}") for t in self.kernel_totals]

    def _notes(self) -> list[str]:
        notes = [
            f"whole run: {duration(self.median)} (min {duration(self.minimum)}), median of {self.repeat} on {self.device}"
        ]
        if len(self.steps) > 1:
            notes.append(f"steps alone: {duration(self.parts)}; between them: {duration(self.overhead)}")
        if self.pieces:
            shared = intermediates(self.pieces, self.intermediates_alone, self.intermediates)
            notes.append(f"intermediates: {shared}")
        if not self.copies:
            notes.append("copies: none")
        for copied in self.copies:
            notes.append(f"copies: {copied.count} x {copied.reason}, {size(copied.bytes)}")
        return [*notes, *self.remarks]

    def _repr_html_(self) -> str:
        rows = []
        for step in self.steps:
            *cells, share, _, _, bandwidth = map(markup, _step_cells(step))
            colour = "#d9822b" if step.is_copy else "#3d7dca"
            width = f"width:{step.share * 120:.1f}px;height:0.8em"
            bar = f'<div style="width:120px;background:#8883"><div style="{width};background:{colour}"></div></div>'
            rows.append((*cells, bar, share, bandwidth))
        steps = _html(("", "step", "runs as", "median", "min", "", "share", "GB/s"), rows, words=3)
        kernels = ""
        if self.kernels:
            calls, totals = _escape_rows(self._kernel_cells()), _escape_rows(self._total_cells())
            kernels = _html(_TOTAL_HEAD, totals, words=1)
            listing = _html(_KERNEL_HEAD, calls, words=4)
            kernels += f"<details><summary>{len(self.kernels)} kernels</summary>{listing}</details>"
        return f"{steps}{kernels}<p>{'<br>'.join(map(markup, self._notes()))}</p>"


def _html(head: Sequence[str], rows: Sequence[Sequence[str]], words: int) -> str:
    """A table for notebooks; the first `words` columns are aligned left, the others right."""
    sides = ["left" if number < words else "right" for number in range(len(head))]

    def line(tag: str, row: Sequence[str]) -> str:
        cells = zip(sides, row, strict=True)
        return "<tr>" + "".join(f'<{tag} style="text-align:{side}">{cell}</{tag}>' for side, cell in cells) + "</tr>"

    body = "".join(line("td", row) for row in rows)
    return f"<table><thead>{line('th', head)}</thead><tbody>{body}</tbody></table>"


def _escape_rows(rows: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    return [tuple(map(markup, row)) for row in rows]


def _step_cells(step: StepProfile) -> tuple[str, ...]:
    sizes = size(step.reads), size(step.writes), f"{step.bandwidth / 1e9:.2f}"
    return (str(step.segment), shorten(step.title, MAX_TITLE), step.how, *_times(step, step.share), *sizes)


def _times(measured: StepProfile | KernelTime, share: float) -> tuple[str, str, str]:
    return duration(measured.median), duration(measured.minimum), f"{share:.1%}"


@lazy_imports.profile.provide
def profile(
    graph: MLGraph, inputs: Mapping[str, Any] | None, outputs: Mapping[str, Any] | None, repeat: int, detail: bool
) -> Profile:
    """Measure a graph; see `MLGraph.profile`."""
    program = graph._check_alive()
    sources, targets, tensors = _arrays(graph, inputs, outputs)
    space, device = graph.context._space, graph.context.device.name
    with Locks(tensors):
        shared = graph._check_overlap(space, sources, targets)
        arrays = list(sources.values()), list(targets.values())
        return profile_model(program, *arrays, space, device, repeat, detail, shared=shared)


@lazy_imports.profile_model.provide
def profile_model(
    program: Program,
    sources: Sequence[Memory],
    targets: Sequence[Memory],
    space: TensorSpace,
    device: str,
    repeat: int,
    detail: bool,
    remarks: Sequence[str] = (),
    shared: Pairs = (),
) -> Profile:
    """Measure a program on given memory.

    Args:
        program: the program to measure.
        sources: the memory of the inputs.
        targets: the memory of the outputs.
        space: the memory space of the device.
        device: the name of the device.
        repeat: the number of runs to measure.
        detail: whether to measure kernels, too.
        remarks: remarks on the program.
        shared: the positions of inputs and outputs that share memory.
    """
    require(
        isinstance(repeat, int) and not isinstance(repeat, bool) and repeat > 0,
        f"profile: repeat must be a positive integer, got {repeat!r}",
    )
    call = Binding(program.layout(sources, targets, shared), sources, targets)
    call()  # the first run is slower
    space.wait()
    counted = _copies_of(call)
    whole: list[int] = []
    parts: list[list[int]] = []
    for _ in range(repeat):  # alternately, so that both run under the same load
        start = perf_counter_ns()
        call()
        space.wait()
        whole.append(perf_counter_ns() - start)
        if len(call.layout.steps) > 1:
            parts.append(call.timed())
    # Measuring kernels slows down the CPU, but no device.
    kernels = _kernels(program, sources, targets, shared, repeat) if detail or not space.is_host else ()
    steps = _steps(program, call, parts or [[time] for time in whole])
    plan, times = program.plan, (median(whole) / 1e9, min(whole) / 1e9)
    sizes = plan.peak, plan.total, len(plan.offsets)
    return Profile(device, repeat, steps, counted, *times, *sizes, kernels, tuple(remarks))


def _kernels(
    program: Program, sources: Sequence[Memory], targets: Sequence[Memory], shared: Pairs, repeat: int
) -> tuple[KernelTime, ...]:
    """Measure kernels by their engines; empty if no engine can."""
    measured = program.measured()
    if measured is None:
        return ()
    call = measured.program.bind(sources, targets, shared)
    for _ in range(repeat + 1):
        call()
    return tuple(measured.finish())


def _arrays(
    graph: MLGraph, inputs: Mapping[str, Any] | None, outputs: Mapping[str, Any] | None
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], list[MLTensor]]:
    """The memory of all inputs and outputs, and the tensors among them."""
    for kind, mapping in {"inputs": inputs, "outputs": outputs}.items():
        is_mapping = mapping is None or isinstance(mapping, Mapping)
        require(is_mapping, f"profile: {kind} must map names to arrays or tensors, got {mapping!r}")
    feed = random(graph.inputs) if inputs is None else inputs
    buffers = outputs or {}
    check_names("profile: inputs", feed, graph.inputs)
    unknown = [name for name in buffers if name not in graph.outputs]
    require(not unknown, f"profile: outputs must be among {list(graph.outputs)}; unknown: {unknown}")
    sources = {n: _array(graph, f"profile: input {n!r}", d, feed[n]) for n, d in graph.inputs.items()}
    targets = {n: _array(graph, f"profile: output {n!r}", d, buffers.get(n), True) for n, d in graph.outputs.items()}
    values = [*feed.values(), *buffers.values()]
    return sources, targets, list({id(v): v for v in values if isinstance(v, MLTensor)}.values())


def _array(graph: MLGraph, label: str, desc: Desc, value: Any, written: bool = False) -> Any:
    """The memory of one input or output; allocated if none is given."""
    space = graph.context._space
    if value is None and written:
        return space.allocate(desc)
    if isinstance(value, MLTensor):
        array: Any = graph.context._own(value, label)
        require(value.desc == desc, f"{label} must be {desc}, got a tensor {value.desc}")
    else:
        array = as_array(value, label, desc.data_type)
        require(array.shape == desc.shape, f"{label} must be {desc}, got shape {list(array.shape)}")
        array = fit(array, label, desc)
        usable = contiguous(array)
        require(usable is array or not written, f"{label} must be C-contiguous and aligned")
        array = usable
        if not space.is_host:
            require(not written, f"{label} must be a tensor on {graph.context.device.name}")
            array = space.allocate(desc)
            space.write(array, usable, "profile")
    if written and space.is_host:
        require(bool(array.flags.writeable), f"{label} is read-only memory")
    return array


def _steps(program: Program, call: Binding, times: list[list[int]]) -> tuple[StepProfile, ...]:
    """The profiles of a program's steps; `times` has a list for each run."""
    middles = [median(column) / 1e9 for column in zip(*times, strict=True)]
    leasts = [min(column) / 1e9 for column in zip(*times, strict=True)]
    total = sum(middles) or 1.0
    steps = []
    for step, middle, least in zip(call.layout.steps, middles, leasts, strict=True):
        how, name = "copy", step.title
        if step.part is not None:
            alone = len(program.steps) == 1
            placements = program.placements if alone else [placement for _, placement in program.parts(step)]
            how = engine(placements) or step.part.runner.describe(())[1]  # for nodes of ONNX
            if alone and len(placements) > 3:
                name = ", ".join(p.node for p in placements[:3]) + f", … ({len(placements)} operations)"
        traffic = step.read_bytes, step.written_bytes
        steps.append(StepProfile(step.segment, name, how, middle, least, *traffic, middle / total, step.part is None))
    return tuple(steps)


def engine(placements: Sequence[Placement]) -> str:
    """Describe what runs a group of operations, from their placements."""
    details = {f"expression, {p.detail}" if p.how == "expression" else p.detail.partition(": ")[0] for p in placements}
    return " + ".join(sorted(details))


def _copies_of(call: Any) -> tuple[CopyProfile, ...]:
    """Count the copies of one run."""
    before = {reason: (tally.count, tally.bytes) for reason, tally in memory.copies.by_reason.items()}
    call()
    copies = []
    for reason, tally in list(memory.copies.by_reason.items()):
        count, moved = before.get(reason, (0, 0))
        if tally.count > count:
            copies.append(CopyProfile(reason, tally.count - count, tally.bytes - moved))
    return tuple(copies)


def random(descs: Mapping[str, Desc]) -> dict[str, np.ndarray]:
    """Random values, the same in each call: normally distributed floats; integers 0 and 1, valid as indices and as masks."""
    generator = np.random.default_rng(0)
    arrays = {name: memory.allocate(desc) for name, desc in descs.items()}
    for array in arrays.values():
        is_float = array.dtype.kind == "f"
        array[...] = generator.standard_normal(array.shape) if is_float else generator.integers(0, 2, array.shape)
    return arrays


__all__ = ["CopyProfile", "KernelTotal", "Profile", "StepProfile", "engine", "profile", "profile_model", "random"]
