"""Measure graphs: the time of each step and of a whole run, copies, and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import memory
from ..context.graph import MLGraph, state_of
from ..context.graph_state import GraphState
from ..context.tensor import Locks, MLTensor
from ..context.tensors import own_memory
from ..core.graph import Desc
from ..memory.arrays import as_array, contiguous, fit
from ..memory.spaces import Memory, TensorSpace
from ..run.binding import Binding
from ..run.profile import (
    CopyProfile as CopyProfile,
    KernelTotal as KernelTotal,
    Profile as Profile,
    StepProfile as StepProfile,
)
from ..support import lazy_imports
from ..support.errors import require
from ..support.formatting import sizes_text
from ..support.hints import require_names
from ..support.progress import report_work
from .inputs import random

if TYPE_CHECKING:
    from ..backends import Aliases, KernelTime, Placement
    from ..run.program import Program


@lazy_imports.profile.provide
def profile(
    graph: MLGraph,
    inputs: Mapping[str, Any] | None,
    input_shapes: Mapping[str, Sequence[int]] | None,
    outputs: Mapping[str, Any] | None,
    repeat: int,
    detail: bool,
) -> Profile:
    """Measure a graph; see `MLGraph.profile`."""
    require(inputs is None or input_shapes is None, "profile: inputs and input_shapes must not be given both")
    whole = state_of(graph)
    state = whole.version_for("profile", input_shapes) if inputs is None else whole.version("profile", inputs)
    program = state.check_alive()
    sources, targets, tensors = _arrays(state, inputs, outputs)
    space, device = graph.context.backend.space, graph.context.device.name
    remarks = [f"sizes: {sizes_text(state.sizes)}"] if state.sizes else []
    with Locks(tensors):
        shared = state.check_overlap(space, sources, targets)
        arrays = list(sources.values()), list(targets.values())
        return profile_model(program, *arrays, space, device, repeat, detail, remarks, shared)


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
    shared: Aliases = (),
) -> Profile:
    """Measure a program on given memory; `shared` are the positions of inputs and outputs that share memory."""
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
            parts.append(call.time_steps())
    # Measuring kernels slows down the CPU, but no device. One step says nothing without its kernels.
    is_measured = detail or not space.is_host or not parts
    kernels, kernel_run = _kernels(program, sources, targets, space, shared, repeat) if is_measured else ((), 0.0)
    steps = _steps(program, call, parts or [[time] for time in whole])
    plan, times = program.plan, (median(whole) / 1e9, min(whole) / 1e9)
    sizes = plan.peak, plan.total, len(plan.offsets)
    missing = program.why_not_measured() if is_measured else []
    notes = *remarks, *(f"kernels are not measured: {reason}" for reason in missing)
    return Profile(device, repeat, steps, counted, *times, *sizes, kernels, notes, kernel_run, detail)


def _kernels(
    program: Program,
    sources: Sequence[Memory],
    targets: Sequence[Memory],
    space: TensorSpace,
    shared: Aliases,
    repeat: int,
) -> tuple[tuple[KernelTime, ...], float]:
    """Measure kernels by their engines, and the seconds of a run meanwhile; nothing if no engine can."""
    with report_work("compiling the graph to measure its kernels"):
        measured = program.build_measured()
    if measured is None:
        return (), 0.0
    call = measured.program.bind(sources, targets, shared)
    whole = []
    for _ in range(repeat + 1):
        start = perf_counter_ns()
        call()
        space.wait()
        whole.append(perf_counter_ns() - start)
    kernels = tuple(measured.finish())
    return kernels, median(whole[1:]) / 1e9 if kernels else 0.0


def _arrays(
    graph: GraphState, inputs: Mapping[str, Any] | None, outputs: Mapping[str, Any] | None
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], list[MLTensor]]:
    for kind, mapping in {"inputs": inputs, "outputs": outputs}.items():
        is_mapping = mapping is None or isinstance(mapping, Mapping)
        require(is_mapping, f"profile: {kind} must map names to arrays or tensors, got {mapping!r}")
    feed = random(graph.inputs) if inputs is None else inputs
    buffers = outputs or {}
    require_names("profile: inputs", feed, graph.inputs)
    unknown = [name for name in buffers if name not in graph.outputs]
    require(not unknown, f"profile: outputs must be among {list(graph.outputs)}; unknown: {unknown}")
    sources = {n: _array(graph, f"profile: input {n!r}", d, feed[n]) for n, d in graph.inputs.items()}
    targets = {n: _array(graph, f"profile: output {n!r}", d, buffers.get(n), True) for n, d in graph.outputs.items()}
    values = [*feed.values(), *buffers.values()]
    return sources, targets, list({id(v): v for v in values if isinstance(v, MLTensor)}.values())


def _array(graph: GraphState, label: str, desc: Desc, value: Any, written: bool = False) -> Any:
    """The memory of one input or output; allocated if none is given."""
    space = graph.context.backend.space
    if value is None and written:
        return space.allocate(desc)
    if isinstance(value, MLTensor):
        array: Any = own_memory(graph.context, value, label)
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
    before = {reason: (tally.count, tally.bytes) for reason, tally in memory.copies.by_reason.items()}
    call()
    copies = []
    for reason, tally in list(memory.copies.by_reason.items()):
        count, moved = before.get(reason, (0, 0))
        if tally.count > count:
            copies.append(CopyProfile(reason, tally.count - count, tally.bytes - moved))
    return tuple(copies)
