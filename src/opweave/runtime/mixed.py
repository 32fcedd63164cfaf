"""Graphs on a device that lacks something: parts on the device, parts on the host, and copies where they meet.

Parts are as large as they can be. What goes from one to the other is copied, counted, and listed by `explain()`; work on
the device is waited for only where the host needs what it computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import RLock
from time import perf_counter_ns
from typing import Any, Literal

from .. import memory
from ..backends import Backend, DeviceMemory, Executable, Placement, PowerPreference, discover
from ..errors import NotSupportedError
from ..graph import Graph, Node, Operand
from ..passes.extract import extract
from ..passes.legalise import legalise
from ..passes.partition import partition
from .segments import (
    HOST_KERNELS,
    BackendRunner,
    Measuring,
    SegmentedCall,
    SegmentedExecutable,
    Step,
    compile as compile_on_host,
    placements_of,
)

HOST = "onnxruntime"
"""The back end of what the device lacks."""


def compile(
    graph: Graph,
    backend: Backend,
    *,
    device: str,
    power_preference: PowerPreference,
    fuse: bool = True,
    fallback: Literal["auto", "error"] = "auto",
) -> Executable:
    """Make a graph runnable on a device, with the host's help where it must be.

    Args:
        graph: what to compile.
        backend: that of the device.
        device: its name.
        power_preference: for the engine of the host.
        fuse: for the parts on the host.
        fallback: whether operations that the device lacks run on the host, or are an error.

    Raises:
        NotSupportedError: an operation that neither of them can run, or the device cannot with `fallback="error"`.
        OperationError: an engine refuses its part.
    """
    host = discover()[HOST]

    def on_device(node: Node) -> bool:
        return backend.supports(node)

    def runs(node: Node) -> bool:
        if backend.supports(node):
            return True
        reason = backend.why_not(node)
        if reason is None and node.op.decomposition is not None:
            return False  # its parts may run on the device
        if fallback == "error":
            raise NotSupportedError(
                f"{node.title}: {device} cannot run it ({reason or 'there is no kernel'}), and fallback is 'error'"
            )
        runs_there = _on_host(node, host)
        if not runs_there and reason and node.op.decomposition is None:
            raise NotSupportedError(
                f"{node.title}: {device} cannot run it ({reason}), and there is no kernel for the host either"
            )
        return runs_there

    legal, origin = legalise(graph, runs, backend.name)
    parts = partition(legal, lambda node: "device" if on_device(node) else "host")
    if [part.kind for part in parts] == ["device"]:
        return backend.compile(graph, device=device, power_preference=power_preference)
    runners = []
    for part in parts:
        names = {operand: f"x{k}" for k, operand in enumerate(part.inputs)}
        outputs = {f"y{k}": operand for k, operand in enumerate(part.outputs)}
        made = extract(outputs, names)
        if part.kind == "device":
            executable: Executable = backend.compile(made, device=device, power_preference=power_preference)
        else:
            executable = compile_on_host(
                made, host, device="cpu", power_preference=power_preference, fuse=fuse, alone=False
            )
        runners.append(BackendRunner(part, executable, names, outputs))
    found = placements_of(graph, legal, origin, parts, runners)
    reasons = {node: backend.why_not(node) for node in graph.nodes}
    titles = {node.title: reasons[node] for node in graph.nodes if reasons[node]}
    found = [replace(p, detail=f"{p.detail}: {titles[p.node]}") if p.node in titles else p for p in found]
    assert backend.memory is not None
    return MixedExecutable(legal, runners, found, origin, backend.memory)


def _on_host(node: Node, host: Backend) -> bool:
    """Whether the host can run a node, whole or in parts."""
    if host.supports(node) or any(device in node.op.kernels for device in HOST_KERNELS):
        return True
    return node.op.formula is not None


class MixedExecutable(SegmentedExecutable):
    """A compiled graph of parts on a device and parts on the host."""

    def __init__(
        self,
        graph: Graph,
        runners: Sequence[BackendRunner],
        placements: list[Placement],
        origin: Mapping[Node, Node],
        device: DeviceMemory,
    ) -> None:
        self.graph, self.runners, self.origin, self._placements = graph, runners, origin, placements
        self.device = device
        self._lock = RLock()
        self._running = False
        self._is_plain = False
        self._fixed = {}
        self._here: dict[Operand, Any] = {}
        self._there: dict[Operand, Any] = {}
        sizes = [operand.desc.byte_length for runner in runners for operand in runner.part.outputs]
        self.plan = memory.Plan((0,) * len(sizes), sum(sizes), sum(sizes))

    def _on_host(self, operand: Operand) -> Any:
        """Memory of the host for an operand, made once; constants have some."""
        if operand.is_constant:
            return operand.value
        if operand not in self._here:
            self._here[operand] = memory.allocate(operand.desc)
        return self._here[operand]

    def _on_device(self, operand: Operand) -> Any:
        """Memory of the device for an operand, made once."""
        if operand not in self._there:
            self._there[operand] = self.device.allocate(operand.desc)
        return self._there[operand]

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> MixedCall:
        """Tie the graph to memory of either side."""
        here: dict[Operand, Any] = {}
        there: dict[Operand, Any] = {}
        valid: dict[Operand, set[bool]] = {}  # on which sides an operand has been computed: on the device?
        given = [(self.graph.inputs[name], array) for name, array in inputs.items()]
        wanted = [(self.graph.outputs[name], array) for name, array in outputs.items()]
        twins = []
        for operand, array in wanted:
            side = there if _is_device(array) else here
            if operand in here or operand in there or operand.node is None:
                twins.append((operand, array))
            else:
                side[operand] = array
        for operand, array in given:
            (there if _is_device(array) else here)[operand] = array
            valid[operand] = {_is_device(array)}
        steps: list[Step] = []

        def fetch(operand: Operand, on_device: bool, number: int, title: str) -> None:
            """Have an operand on a side, by a copy from the other one if need be."""
            sides = valid.setdefault(operand, {False} if operand.is_constant else set())
            if on_device in sides:
                return
            array, copied = here.setdefault(operand, self._on_host(operand)), operand.desc
            distant = there.setdefault(operand, self._on_device(operand))
            reason = f"to the device for {title}" if on_device else f"from the device for {title}"
            run = partial(self.device.write, distant, array, reason) if on_device else partial(
                self.device.read, [distant], [array], reason
            )  # fmt: skip
            size = copied.byte_length
            steps.append(Step(f"copy {copied} {reason}", number, run, size, size, is_copy=True))
            sides.add(on_device)

        for number, runner in enumerate(self.runners):
            on_device = runner.part.kind == "device"
            side, make = (there, self._on_device) if on_device else (here, self._on_host)
            for operand in runner.part.inputs:
                fetch(operand, on_device, number, runner.title)
            for operand in (*runner.part.inputs, *runner.part.outputs):
                if operand not in side:
                    side[operand] = make(operand)
            valid.update((operand, {on_device}) for operand in runner.part.outputs)
            reads = sum(operand.desc.byte_length for operand in runner.part.inputs)
            writes = sum(operand.desc.byte_length for operand in runner.part.outputs)
            steps.append(Step(runner.title, number, runner.bind(side), reads, writes))
        last = len(self.runners) - 1
        for operand, array in wanted:
            if operand.node is not None:
                fetch(operand, _is_device(array), last, "an output")
        reason = "an output under another name"
        for operand, array in twins:
            fetch(operand, False, last, reason)
            source = here.get(operand, operand.value)
            copying: Any = self.device.write if _is_device(array) else memory.copy
            run = partial(copying, array, source, reason)
            size = operand.desc.byte_length
            steps.append(Step(f"copy {operand.desc}: {reason}", last, run, size, size, is_copy=True))
        return MixedCall(self, steps)

    def run(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
        """Run the graph once."""
        self.bind(inputs, outputs)()

    def measured(self) -> _MeasuredMixed:
        """The same, with engines that measure their kernels; it shares the memory of this one."""
        return _MeasuredMixed(self)

    def direct(self, names: Sequence[str]) -> None:
        """There is no shorter way."""

    def crossings(self) -> list[tuple[int, Operand]]:
        """Parts, and those of their inputs that are computed on the other side."""
        homes = {operand: runner.part.kind for runner in self.runners for operand in runner.part.outputs}
        return [
            (number, operand)
            for number, runner in enumerate(self.runners)
            for operand in runner.part.inputs
            if homes.get(operand, runner.part.kind) != runner.part.kind
        ]


class _MeasuredMixed(Measuring, MixedExecutable):
    """A compiled graph that is measured."""


def _is_device(array: Any) -> bool:
    return not hasattr(array, "__array_interface__")


class MixedCall(SegmentedCall):
    """The same, bound; its steps wait for the device when they are measured."""

    __slots__ = ()

    def timed(self) -> list[int]:
        """Run the graph once; the nanoseconds that each step took."""
        owner = self._owner
        assert isinstance(owner, MixedExecutable)
        times: list[int] = []

        def measured(run: Callable[[], None]) -> None:
            start = perf_counter_ns()
            run()
            owner.device.wait()
            times.append(perf_counter_ns() - start)

        owner.device.wait()
        owner.execute([partial(measured, run) for run in self._runs], self.steps)
        return times


__all__ = ["MixedExecutable", "compile"]
