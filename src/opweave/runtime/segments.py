"""Graphs of which no single engine runs everything: segments, one after the other, over memory planned once.

What one segment writes is where the next one reads: intermediates lie in one piece of memory for each graph, laid out by
their life times. A copy is made only where a kernel cannot reach memory (that of a WebAssembly module is all it sees), and
is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import RLock
from time import perf_counter_ns
from typing import Any, Literal

import numpy as np

from .. import memory
from ..backends import Backend, Executable, KernelTime, Measured, Placement, PowerPreference
from ..errors import InvalidStateError, OperationError
from ..expr import kernels, limits
from ..graph import Desc, Graph, Node, Operand
from ..kernels import Arena, KernelCall, Prepared
from ..kernels.expression import PreparedExpression, program_of, program_of_nodes
from ..passes.extract import extract
from ..passes.fuse import fusible
from ..passes.legalise import legalise
from ..passes.partition import Segment, partition

HOST_KERNELS = ("cpu", "wasm")
"""The devices of kernels that run on the host, the preferred one first."""


def compile(
    graph: Graph,
    backend: Backend,
    *,
    device: str,
    power_preference: PowerPreference,
    fuse: bool = True,
    alone: bool = True,
    fallback: Literal["auto", "error"] = "auto",
) -> Executable:
    """Make a graph runnable: by the back end alone where it can, else in segments.

    Args:
        graph: what to compile.
        backend: what runs all that it has rules for.
        device: one of its devices.
        power_preference: for the engine.
        fuse: whether chains of element-wise operations that an engine would go through one by one become one loop.
        alone: whether it does not take turns with other graphs.
        fallback: whether the host runs what a device lacks, or that is an error.

    Raises:
        NotSupportedError: an operation has neither a rule, a kernel, an expression nor a decomposition.
        OperationError: an engine refuses its segment.
    """
    if backend.memory is not None:
        from . import mixed

        return mixed.compile(
            graph, backend, device=device, power_preference=power_preference, fuse=fuse, fallback=fallback
        )
    choose = _Choice(backend)
    fuse = fuse and backend.gains_from_loops and kernels.is_compiled()
    if all(backend.supports(node) for node in graph.nodes) and not (fuse and choose.take(graph)):
        return backend.compile(graph, device=device, power_preference=power_preference, alone=alone)
    legal, origin = legalise(graph, lambda node: choose.kind(node) is not None, backend.name)
    choose.taken = choose.take(legal) if fuse else set()
    parts = partition(legal, choose.kind, joined={"expression"}, fits=choose.fits, work=choose.work, most=choose.most)
    if [part.kind for part in parts] == ["backend"]:
        return backend.compile(graph, device=device, power_preference=power_preference, alone=alone)
    runners = [choose.runner(part, device, power_preference) for part in parts]
    return SegmentedExecutable(legal, runners, placements_of(graph, legal, origin, parts, runners), origin)


class _Choice:
    """Which engine runs a node."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.engine: kernels.Engine = "numpy" if backend.name == "reference" else "auto"
        self.most = limits.limit(limits.WORK, limits.MAX_WORK) // 2  # the other half is for the loop itself
        self.taken: set[Node] = set()  # nodes that the back end could run, but had better not

    def take(self, graph: Graph) -> set[Node]:
        """The nodes that run better in a compiled loop than by the back end."""
        is_expression = lambda node: self.kind(node) == "expression"  # noqa: E731
        return fusible(graph, is_expression, self._is_pointwise, self.fits, self.work, self.most)

    def _is_pointwise(self, node: Node) -> bool:
        """Whether the back end runs a node that could be part of a loop."""
        if node.op.formula is None or not self.backend.supports(node):
            return False
        return program_of(node.op, _descs(node), node.attributes).is_pointwise

    def kind(self, node: Node) -> Any:
        """The engine of a node, None if it must be decomposed; nodes with kernels stand alone."""
        if node in self.taken:
            return "expression"
        if self.backend.supports(node):
            return "backend"
        if any(device in node.op.kernels for device in HOST_KERNELS):
            return node.serial
        if node.op.formula is None:
            return None
        if self.engine == "numpy" or kernels.is_compiled() or node.op.decomposition is None:
            return "expression"
        from ..expr.decompose import operations

        # Without a compiler, the engine's kernels for the parts are faster than NumPy.
        return None if operations(program_of(node.op, _descs(node), node.attributes)) else "expression"

    def fits(self, producer: Node, consumer: Node) -> bool:
        """Whether two expressions become one loop: the second reads each element of the first where it writes its own."""
        same = len(consumer.outputs) == 1 and consumer.outputs[0].shape in {o.shape for o in producer.outputs}
        return same and program_of(consumer.op, _descs(consumer), consumer.attributes).is_pointwise

    def work(self, node: Node) -> int:
        """How long it takes to compile an expression, in units of the limit."""
        return limits.work_of_elements(program_of(node.op, _descs(node), node.attributes))

    def runner(self, part: Segment, device: str, power_preference: PowerPreference) -> _Runner:
        """What runs a segment."""
        if part.kind == "backend":
            names = {operand: f"x{k}" for k, operand in enumerate(part.inputs)}
            outputs = {f"y{k}": operand for k, operand in enumerate(part.outputs)}
            made = extract(outputs, names)
            executable = self.backend.compile(made, device=device, power_preference=power_preference, alone=False)
            return BackendRunner(part, executable, names, outputs)
        if part.kind == "expression":
            return self._expression(part, device)
        (node,) = part.nodes
        call = KernelCall(
            node.title, node.op, _descs(node), node.attributes, tuple(output.desc for output in node.outputs)
        )
        chosen = next(name for name in HOST_KERNELS if name in node.op.kernels)
        part.outputs = list(node.outputs)  # a kernel writes all of them, used or not
        return _KernelRunner(part, node.op.kernels[chosen].prepare(call), device)

    def _expression(self, part: Segment, device: str) -> _Runner:
        reads = [*_constants(part), *part.inputs]
        program, inputs = program_of_nodes(part.nodes, reads, part.outputs)
        return _ExpressionRunner(
            part, PreparedExpression(program.name, kernels.compile(program, self.engine)), inputs, device
        )


def _constants(part: Segment) -> list[Operand]:
    return list(dict.fromkeys(o for node in part.nodes for o in node.operands if o.is_constant))


def _descs(node: Node) -> dict[str, Any]:
    def desc(value: Any) -> Any:
        return tuple(map(desc, value)) if isinstance(value, tuple) else None if value is None else value.desc

    return {name: desc(value) for name, value in node.inputs.items()}


# ---------------------------------------------------------------------------------------------------------------------
# What runs one segment


class _Runner:
    """A segment that is ready to be bound."""

    arena: Arena | None = None

    def __init__(self, part: Segment) -> None:
        self.part = part
        self.name = ""  # what leads the messages of its engine
        self.title = ", ".join(node.title for node in part.nodes[:3]) + (", …" if len(part.nodes) > 3 else "")

    @property
    def reads(self) -> list[Operand]:
        """The operands that it takes, constants included where it reads them as others."""
        return self.part.inputs

    def bind(self, arrays: Mapping[Operand, np.ndarray]) -> Callable[[], None]:
        """Tie it to memory."""
        raise NotImplementedError

    def run(self, arrays: Mapping[Operand, np.ndarray]) -> None:
        """Run it once on memory."""
        self.bind(arrays)()

    def placements(self) -> list[Placement]:
        """Where its nodes run, in order."""
        raise NotImplementedError


class BackendRunner(_Runner):
    """Nodes that the back end has rules for."""

    def __init__(
        self, part: Segment, executable: Executable, inputs: Mapping[Operand, str], outputs: Mapping[str, Operand]
    ) -> None:
        super().__init__(part)
        self.executable, self.inputs, self.outputs = executable, inputs, outputs

    def bind(self, arrays: Mapping[Operand, np.ndarray]) -> Callable[[], None]:
        """Tie it to memory."""
        return self.executable.bind(
            {name: arrays[operand] for operand, name in self.inputs.items()},
            {name: arrays[operand] for name, operand in self.outputs.items()},
        )

    def placements(self) -> list[Placement]:
        """Where its nodes run, in order."""
        return self.executable.explain()


class _KernelRunner(_Runner):
    """One node with a kernel."""

    def __init__(self, part: Segment, prepared: Prepared, device: str) -> None:
        super().__init__(part)
        self.prepared, self.device, self.arena = prepared, device, prepared.arena

    @property
    def reads(self) -> list[Operand]:
        return list(dict.fromkeys(self.part.nodes[0].operands))

    def bind(self, arrays: Mapping[Operand, np.ndarray]) -> Callable[[], None]:
        def array(value: Any) -> Any:
            return tuple(map(array, value)) if isinstance(value, tuple) else None if value is None else arrays[value]

        (node,) = self.part.nodes
        inputs = {name: array(value) for name, value in node.inputs.items()}
        return self.prepared.bind(inputs, [arrays[operand] for operand in node.outputs])

    def placements(self) -> list[Placement]:
        return [Placement(self.part.nodes[0].title, self.device, "kernel", self.prepared.detail)]


class _ExpressionRunner(_Runner):
    """Expressions, several of them as one loop."""

    def __init__(self, part: Segment, prepared: PreparedExpression, inputs: list[Operand], device: str) -> None:
        super().__init__(part)
        self.prepared, self.inputs, self.device = prepared, inputs, device
        self.name = prepared.name

    @property
    def reads(self) -> list[Operand]:
        return self.inputs

    def bind(self, arrays: Mapping[Operand, np.ndarray]) -> Callable[[], None]:
        return self.prepared.kernel.bind([arrays[o] for o in self.inputs], [arrays[o] for o in self.part.outputs])

    def run(self, arrays: Mapping[Operand, np.ndarray]) -> None:
        self.prepared.kernel.run([arrays[o] for o in self.inputs], [arrays[o] for o in self.part.outputs])

    def placements(self) -> list[Placement]:
        count = len(self.part.nodes)
        detail = self.prepared.detail + (f", {count} operations in one loop" if count > 1 else "")
        return [Placement(node.title, self.device, "expression", detail) for node in self.part.nodes]


def placements_of(
    graph: Graph, legal: Graph, origin: Mapping[Node, Node], parts: Sequence[Segment], runners: Sequence[_Runner]
) -> list[Placement]:
    """Where each node of the user's graph runs."""
    found: dict[Node, Placement] = {}
    for number, (part, runner) in enumerate(zip(parts, runners, strict=True)):
        for node, placement in zip(part.nodes, runner.placements(), strict=True):
            found[node] = replace(placement, segment=number)
    made: dict[Node, list[Node]] = {node: [] for node in graph.nodes}
    for node in legal.nodes:
        made[origin[node]].append(node)
    result = []
    for node, its in made.items():
        if len(its) == 1 and its[0].op is node.op:
            result.append(found[its[0]])
        elif its:
            first = found[its[0]]
            names = ", ".join(part.op.name for part in its)
            result.append(Placement(node.title, first.device, "decomposed", names, first.segment))
        else:
            result.append(Placement(node.title, "cpu", "decomposed", "its operand", 0))
    return result


# ---------------------------------------------------------------------------------------------------------------------
# The whole


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a dispatch does.

    Attributes:
        title: the operations that it runs, or what it copies.
        segment: the number of the segment that it belongs to.
        run: does it.
        reads: how many bytes it takes, weights included.
        writes: how many bytes it yields.
        is_copy: whether it is a copy into or out of memory that a kernel can reach.
    """

    title: str
    segment: int
    run: Callable[[], None]
    reads: int
    writes: int
    is_copy: bool = False


class SegmentedExecutable:
    """A compiled graph of several segments.

    Attributes:
        graph: what runs; operations that nothing runs whole are decomposed in it.
        origin: for each of its nodes, the one of the user's graph that it stems from.
        plan: how its intermediates share memory; what lies in the memory of a kernel counts, too.
    """

    def __init__(
        self,
        graph: Graph,
        runners: Sequence[_Runner],
        placements: list[Placement],
        origin: Mapping[Node, Node],
    ) -> None:
        self.graph, self.runners, self.origin, self._placements = graph, runners, origin, placements
        # Intermediates are the same memory at each run: one at a time.
        self._lock = RLock()
        self._running = False
        self._fixed: dict[Operand, np.ndarray] = {}
        self.plan = self._place()
        results = list(graph.outputs.values())
        made = all(operand.node is not None for operand in results) and len(set(results)) == len(results)
        self._is_plain = made and all(runner.arena is None for runner in runners)  # nothing is ever copied

    def explain(self) -> list[Placement]:
        """What runs where, one entry a node of the user's graph."""
        return self._placements

    def measured(self) -> Measured:
        """The same, with engines that measure their kernels; it shares the memory of this one."""
        return _MeasuredSegments(self)

    def crossings(self) -> list[tuple[int, Operand]]:
        """Segments and those of their operands that are copied, since the kernel cannot reach the memory they lie in.

        Inputs and outputs of the graph count as if they lay elsewhere; tensors in the kernel's memory need no copy.
        """
        found = []
        for number, runner in enumerate(self.runners):
            if runner.arena is not None:
                operands = dict.fromkeys((*runner.reads, *runner.part.outputs))
                foreign = [o for o in operands if not o.is_constant]
                known = ((operand, self._fixed.get(operand)) for operand in foreign)
                found += [(number, o) for o, array in known if array is None or not runner.arena.owns(array)]
        return found

    # Memory ----------------------------------------------------------------------------------------------------------

    def _place(self) -> memory.Plan:
        """Give memory to what lies between segments, in the memory of the kernels that need it there."""
        outside = {*self.graph.inputs.values(), *self.graph.outputs.values()}
        first: dict[Operand, int] = {}
        last: dict[Operand, int] = {}
        arenas: dict[Operand, Arena | None] = {}
        for number, runner in enumerate(self.runners):
            for operand in (*runner.reads, *runner.part.outputs):
                if operand.is_constant:
                    self._fixed[operand] = operand.value
                elif operand not in outside:
                    first.setdefault(operand, number)
                    last[operand] = number
                    arenas[operand] = arenas.get(operand) or runner.arena
        whole = memory.Plan((), 0, 0)
        for arena in dict.fromkeys(arenas.values()):
            operands = [operand for operand in first if arenas[operand] is arena]
            lives = [memory.Life(o.desc.byte_length, first[o], last[o]) for o in operands]
            plan = memory.plan(lives)
            whole = memory.Plan(whole.offsets + plan.offsets, whole.peak + plan.peak, whole.total + plan.total)
            piece = Desc("uint8", (plan.peak,))
            raw = memory.allocate(piece) if arena is None else arena.allocate(piece)
            for operand, offset in zip(operands, plan.offsets, strict=True):
                desc = operand.desc
                flat = raw[offset : offset + desc.byte_length].view(desc.data_type)
                self._fixed[operand] = flat.reshape(desc.shape)
        return whole

    # Binding ---------------------------------------------------------------------------------------------------------

    def bind(self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> SegmentedCall:
        """Tie the graph to arrays, which its segments read and write in place."""
        arrays = dict(self._fixed)
        arrays.update((operand, inputs[name]) for name, operand in self.graph.inputs.items())
        twins: list[tuple[Operand, np.ndarray]] = []
        written: set[Operand] = set()
        for name, operand in self.graph.outputs.items():
            if operand in written or operand.is_input or operand.is_constant:
                twins.append((operand, outputs[name]))  # another name for what lies elsewhere already
            else:
                arrays[operand] = outputs[name]
                written.add(operand)
        steps: list[Step] = []
        for number, runner in enumerate(self.runners):
            steps += self._steps(number, runner, arrays)
        for operand, target in twins:
            reason = "an output under another name"
            run = partial(memory.copy, target, arrays[operand], reason)
            size = target.nbytes
            steps.append(Step(f"copy {operand.desc}: {reason}", len(self.runners) - 1, run, size, size, is_copy=True))
        return SegmentedCall(self, steps)

    def run(self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> None:
        """Run the graph once on arrays: what `bind(inputs, outputs)()` does, for arrays that do not come again."""
        if not self._is_plain:
            return self.bind(inputs, outputs)()
        arrays = dict(self._fixed)
        for name, operand in self.graph.inputs.items():
            arrays[operand] = inputs[name]
        for name, operand in self.graph.outputs.items():
            arrays[operand] = outputs[name]
        return self.execute([partial(runner.run, arrays) for runner in self.runners])

    def direct(self, names: Sequence[str]) -> Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], None] | None:
        """`run` for arrays in the order of inputs and outputs, where one loop is all there is to do; else None."""
        if len(self.runners) != 1 or not isinstance(runner := self.runners[0], _ExpressionRunner):
            return None
        same = runner.inputs == [self.graph.inputs.get(name) for name in names]
        if not same or runner.part.outputs != list(self.graph.outputs.values()):
            return None
        kernel = runner.prepared.kernel

        def run(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
            try:
                kernel.run(inputs, outputs)
            except OperationError as error:
                raise OperationError(f"{runner.title}: {str(error).removeprefix(f'{runner.name}: ')}") from error

        return run

    def execute(self, runs: Sequence[Callable[[], None]], steps: Sequence[Step] | None = None) -> None:
        """Call `runs` in order: one for each of `steps`, or for each segment."""
        with self._lock:
            if self._running:
                raise InvalidStateError("the graph is dispatched by one of its own kernels")
            self._running = True
            number = 0
            try:
                for number, run in enumerate(runs):  # noqa: B007
                    run()
            except OperationError as error:
                runner = self.runners[number if steps is None else steps[number].segment]
                title = runner.title if steps is None else steps[number].title
                if str(error).startswith(title):
                    raise
                raise OperationError(f"{title}: {str(error).removeprefix(f'{runner.name}: ')}") from error
            finally:
                self._running = False

    def _steps(self, number: int, runner: _Runner, arrays: dict[Operand, np.ndarray]) -> list[Step]:
        """What a segment does: itself, and copies around it where its kernel cannot reach the memory."""
        local: Mapping[Operand, np.ndarray] = arrays
        before: list[Step] = []
        after: list[Step] = []
        taken = dict.fromkeys((*runner.reads, *_constants(runner.part)))
        if runner.arena is not None:
            local = dict(arrays)
            for operand in dict.fromkeys((*runner.reads, *runner.part.outputs)):
                array = arrays[operand]
                if runner.arena.owns(array):
                    continue
                inside = runner.arena.allocate(operand.desc)
                local[operand] = inside
                is_read = operand in runner.reads
                if is_read and operand.is_constant:
                    memory.copy(inside, array, "a constant into the memory of a kernel")
                    self._fixed[operand] = inside
                    continue
                reason = f"{'into' if is_read else 'out of'} the memory of {runner.title}"
                target, source = (inside, array) if is_read else (array, inside)
                step = Step(
                    f"copy {operand.desc} {reason}", number, partial(memory.copy, target, source, reason),
                    array.nbytes, array.nbytes, is_copy=True,
                )  # fmt: skip
                (before if is_read else after).append(step)
        reads = sum(operand.desc.byte_length for operand in taken)
        writes = sum(operand.desc.byte_length for operand in runner.part.outputs)
        return [*before, Step(runner.title, number, runner.bind(local), reads, writes), *after]


class Measuring:
    """What makes another kind of executable one whose engines measure their kernels, as far as they can."""

    runners: Sequence[_Runner]

    def __init__(self, plain: SegmentedExecutable) -> None:
        vars(self).update(vars(plain))  # memory, too: it runs in place of the other one
        self._measured: dict[int, Measured] = {}
        runners = []
        for number, runner in enumerate(plain.runners):
            made = runner.executable.measured() if isinstance(runner, BackendRunner) else None
            if made is not None and isinstance(runner, BackendRunner):
                self._measured[number] = made
                runner = BackendRunner(runner.part, made, runner.inputs, runner.outputs)
            runners.append(runner)
        self.runners = runners

    def finish(self) -> list[KernelTime]:
        """End the measurement; the kernels of all segments in order."""
        found = []
        for number, executable in self._measured.items():
            found += [replace(time, segment=number) for time in executable.finish()]
        return found


class _MeasuredSegments(Measuring, SegmentedExecutable):
    """A compiled graph that is measured."""


class SegmentedCall:
    """A graph of several segments, bound to memory; calling it runs them in order."""

    __slots__ = ("_owner", "_runs", "steps")

    def __init__(self, owner: SegmentedExecutable, steps: list[Step]) -> None:
        self._owner, self.steps = owner, steps
        self._runs = [step.run for step in steps]

    def __call__(self) -> None:
        """Run the graph once."""
        self._owner.execute(self._runs, self.steps)

    def timed(self) -> list[int]:
        """Run the graph once; the nanoseconds that each step took."""
        times: list[int] = []

        def measured(run: Callable[[], None]) -> None:
            start = perf_counter_ns()
            run()
            times.append(perf_counter_ns() - start)

        self._owner.execute([partial(measured, run) for run in self._runs], self.steps)
        return times


__all__ = [
    "HOST_KERNELS",
    "BackendRunner",
    "Measuring",
    "SegmentedCall",
    "SegmentedExecutable",
    "Step",
    "compile",
    "placements_of",
]
