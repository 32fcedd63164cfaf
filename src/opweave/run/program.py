"""Programs: compiled graphs. Steps in order, their memory, and copies between spaces.

A program is immutable and shared by threads. The spaces of its inputs and outputs determine its copies; there is a `Layout`
for each combination of spaces. A `Binding` ties a program to memory; each run takes intermediates from a pool, so that
several threads can run one program at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..backends import Aliases, Measured, Returning, Runner, TakingFeeds
from ..core.graph import Builder, Desc, Graph, Node, Operand, map_operands
from ..core.sizes import is_static, values_at
from ..core.value_ranges import InputRange, with_checks
from ..memory import OVER_INPUT, Plan
from ..memory.spaces import HOST, Cell, Memory, Pool, Space, copier, intermediates, reaches
from ..support.errors import OperationError
from ..support.records import record
from .binding import Binding, Intermediates
from .steps import CompiledSegment, Step, Unsized, title

if TYPE_CHECKING:
    from ..backends import KernelTime, Placement

MAX_SMALL = 64
"""Runs whose bound steps are kept, for a program without intermediates: they take next to no memory."""


class Program:
    """A compiled graph.

    Args:
        graph: the legalised graph.
        origin: for each of its nodes, the user's node that it comes from.
        placements: of the user's nodes.
        space: the default space of inputs and outputs.
        ranges: of the values of inputs, which are checked before each run.
        choice: the chosen engine, and the reason; empty if there was no choice.

    Attributes:
        untried: the engines that are expected to be faster and are not verified, with the reasons.
        operands: the operand of each value, inputs first.
        outputs: index into `operands` for each output.
    """

    def __init__(
        self,
        graph: Graph,
        origin: Mapping[Node, Node],
        parts: Sequence[CompiledSegment],
        placements: list[Placement],
        space: Space,
        ranges: Sequence[InputRange] = (),
        choice: str = "",
    ) -> None:
        self.choice = choice
        self.untried: Mapping[str, str] = {}
        self.graph, self.origin, self.placements, self.space = graph, origin, placements, space
        self._ranges = ranges
        numbers = {operand: number for number, operand in enumerate(graph.inputs.values())}

        def number(operand: Operand) -> int:
            return numbers.setdefault(operand, len(numbers))

        steps = []
        for segment, part in enumerate(parts):
            weights = {o for node in part.nodes for o in node.operands if o.is_constant}
            steps.append(
                Step(
                    part.title or title(part.nodes),
                    part.space,
                    tuple(map(number, part.reads)),
                    tuple(map(number, part.writes)),
                    part.runner.bind,
                    segment,
                    sum(operand.desc.byte_length for operand in {*part.reads, *weights}),
                    sum(operand.desc.byte_length for operand in part.writes),
                    part,
                )
            )
        self.steps: tuple[Step, ...] = tuple(steps)
        self.outputs = tuple(number(operand) for operand in graph.outputs.values())
        self.operands = tuple(numbers)
        # HOST comes last: it owns all memory that the others do not.
        used = dict.fromkeys([space, *(step.space for step in self.steps)])
        self._spaces = (*(item for item in used if item is not HOST), HOST)
        self._layouts: dict[tuple[tuple[Space, ...], Aliases], Layout] = {}
        self._constants: dict[tuple[int, Space], Memory] = {}
        # The runner of a single step that has the program's own inputs and outputs.
        self._direct: Runner | None = None
        self._in_place: set[tuple[int, int]] | None = None  # the pairs that it updates, if it copies none
        if len(self.steps) == 1:
            (step,) = self.steps
            is_whole = step.reads == tuple(range(len(self.graph.inputs))) and step.writes == self.outputs
            if step.part is not None and is_whole and step.space is self.space:
                self._direct = step.part.runner
                updates = self._direct.updates
                self._in_place = {p for u in updates for p in u.pairs} if all(u.pairs for u in updates) else None
        self.returning_all = self.returning(range(len(self.outputs)))

    def at(self, sizes: Mapping[str, int], ranges: Sequence[InputRange]) -> Program:
        """The program of a graph with names for these sizes; it shares what was compiled. `ranges` are for these sizes."""
        builder = Builder()
        statics: dict[Operand, Operand] = {}

        def follow(operand: Operand) -> Operand:
            if is_static(operand.shape):
                return operand
            static = statics.get(operand)
            if static is None:
                desc = Desc(operand.data_type, values_at(operand.shape, sizes))
                static = statics[operand] = Operand(builder, desc, node=operand.node, name=operand.name)
            return static

        graph = Graph(
            map_operands(self.graph.inputs, follow), map_operands(self.graph.outputs, follow), self.graph.nodes
        )
        parts = []
        for part in (step.part for step in self.steps):
            assert part is not None
            reads, writes = list(map(follow, part.reads)), list(map(follow, part.writes))
            runner = part.runner.at(sizes)
            parts.append(
                CompiledSegment(runner, part.space, part.device, part.nodes, part.compiled, reads, writes, part.title)
            )
        return Program(graph, self.origin, parts, self.placements, self.space, ranges, self.choice)

    # Running ---------------------------------------------------------------------------------------------------------

    def bind(self, inputs: Sequence[Memory], outputs: Sequence[Memory], shared: Aliases = ()) -> Callable[[], None]:
        """Tie the program to memory of its inputs and outputs; the result runs it once.

        Outputs overlap no other memory, except that of the (input, output) pairs `shared`.
        """
        direct = self._direct
        if direct is not None and self._fits_direct(inputs, outputs, shared):
            call = direct.bind(inputs, outputs)
        else:
            call = Binding(self.layout(inputs, outputs, shared), inputs, outputs)
        return with_checks(call, self._ranges, inputs)

    def run(self, inputs: Sequence[Memory], outputs: Sequence[Memory], shared: Aliases = ()) -> None:
        """Run the program once on memory that is not used again."""
        for item in self._ranges:
            item.check(inputs)
        direct = self._direct
        is_plain = self.space is HOST and not shared  # asked here, to save small graphs a call
        if direct is not None and (is_plain or self._fits_direct(inputs, outputs, shared)):
            direct.run(inputs, outputs)
        else:
            self.layout(inputs, outputs, shared).run(inputs, outputs)

    def returning(self, outputs: Sequence[int]) -> Returning | None:
        """A function that runs the program once on inputs, and returns these outputs in memory that its engine allocates.

        None if the engine does not do that, or there are several steps.
        """
        call = self._direct.returning(outputs) if self._direct is not None and self.space is HOST else None
        ranges = self._ranges
        if call is None or not ranges:
            return call

        def check_and_call(inputs: Sequence[Memory]) -> list[Memory]:
            for item in ranges:
                item.check(inputs)
            return call(inputs)

        return check_and_call

    def taking_feeds(self, outputs: Sequence[int]) -> TakingFeeds | None:
        """`returning` for arrays by name, whose shapes the engine checks; None if the engine does not do that."""
        if self._direct is None or self.space is not HOST or self._ranges:
            return None
        return self._direct.taking_feeds(outputs)

    def _fits_direct(self, inputs: Sequence[Memory], outputs: Sequence[Memory], shared: Aliases) -> bool:
        """Whether `_direct` can read and write this memory itself."""
        if shared and set(shared) != self._in_place:
            return False
        return self.space is HOST or (all(map(self.space.owns, inputs)) and all(map(self.space.owns, outputs)))

    def layout(self, inputs: Sequence[Memory], outputs: Sequence[Memory], shared: Aliases = ()) -> Layout:
        """The layout for the spaces of this memory."""
        if len(self._spaces) == 1:
            return self.layout_in((HOST,) * (len(inputs) + len(outputs)), shared)
        spaces = tuple(next(s for s in self._spaces if s.owns(memory)) for memory in (*inputs, *outputs))
        return self.layout_in(spaces, shared)

    def layout_in(self, spaces: tuple[Space, ...], shared: Aliases = ()) -> Layout:
        """The layout for inputs and outputs in these spaces; the pairs `shared` are in the same memory."""
        key = spaces, shared
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layouts.setdefault(key, Layout(self, spaces, shared))
        return layout

    def constant(self, number: int, space: Space) -> Memory:
        """The memory of a constant in a space; it is copied there once."""
        value = self.operands[number].value
        if reaches(space, HOST):
            return value
        key = number, space
        if key not in self._constants:
            target = space.allocate(self.operands[number].desc)
            copier(HOST, space, "a constant into the memory of a kernel")([value], [target])()
            self._constants[key] = target
        return self._constants[key]

    def parts(self, step: Step) -> list[tuple[Node, Placement]]:
        """The nodes of a step, with their placements."""
        from ..backends import Placement

        part = step.part
        assert part is not None
        return [
            (node, Placement(node.title, part.device, *part.runner.describe([compiled]), step.segment, node.op))
            for node, compiled in zip(part.nodes, part.compiled, strict=True)
        ]

    # Properties --------------------------------------------------------------------------------------------------------

    @property
    def default(self) -> Layout:
        """The layout for inputs and outputs in the program's own space."""
        return self.layout_in((self.space,) * (len(self.graph.inputs) + len(self.outputs)))

    @property
    def plan(self) -> Plan:
        """Plan of the intermediates between steps and inside of steps."""
        return sum((step.part.runner.plan for step in self.steps if step.part), self.default.plan)

    @property
    def threads(self) -> int:
        """Number of threads that its engines have started for it."""
        return sum(step.part.runner.threads for step in self.steps if step.part)

    def crossings(self) -> list[tuple[int, Operand]]:
        """Pairs of a segment and an operand that is copied before or after it, because their spaces differ."""
        copies = [step for step in self.default.steps if step.part is None and step.reads]
        pairs = [(step.segment, self.default.operands[number]) for step in copies for number in step.writes]
        return [(segment, operand) for segment, operand in pairs if not self.default.is_twin(operand)]

    def build_measured(self) -> MeasuredProgram | None:
        """A copy of the program whose engines measure their kernels; None if no engine can."""
        from dataclasses import replace

        parts = [step.part for step in self.steps if step.part]
        engines = {
            number: engine for number, part in enumerate(parts) if (engine := part.runner.measured()) is not None
        }
        if not engines:
            return None
        parts = [replace(part, runner=engines.get(number, part.runner)) for number, part in enumerate(parts)]
        program = Program(self.graph, self.origin, parts, self.placements, self.space, self._ranges, choice=self.choice)
        return MeasuredProgram(program, engines)

    def why_not_measured(self) -> list[str]:
        """Reasons of the devices of the program that time no kernels."""
        reasons = (step.part.runner.why_not_measured() for step in self.steps if step.part)
        return list(dict.fromkeys(filter(None, reasons)))


@record
class MeasuredProgram:
    """A program whose engines measure their kernels."""

    program: Program
    engines: Mapping[int, Measured]

    def finish(self) -> list[KernelTime]:
        """Return the kernels of all segments in order."""
        from dataclasses import replace

        return [replace(time, segment=number) for number, engine in self.engines.items() for time in engine.finish()]


# ---------------------------------------------------------------------------------------------------------------------
# Layouts


class Layout(Pool[Intermediates]):
    """A program for inputs and outputs in certain spaces: its steps with copies between them, and its memory slots.

    Slots are numbered: inputs, outputs, then constants and intermediates. `reads` and `writes` of the steps are slots.

    An output that shares the memory of an input is written in place by a step whose engine updates that input, if no later
    step and no other output reads the input. Otherwise the output is computed in an intermediate, and copied at the end.
    """

    def __init__(self, program: Program, spaces: Sequence[Space], shared: Aliases = ()) -> None:
        count = len(program.graph.inputs)
        self.program = program
        self.operands: list[Operand] = [
            *(program.operands[number] for number in range(count)),
            *(program.operands[number] for number in program.outputs),
        ]
        self._output_names = dict(enumerate(program.graph.outputs, start=count))
        self._spaces = list(spaces)
        self._fixed: dict[int, Memory] = {}
        self._own: list[int] = []  # slots of intermediates
        self._cells: list[int] = []  # those of values without a shape
        # Slots that hold each value, oldest first.
        self._slots: dict[int, list[int]] = {number: [number] for number in range(count)}
        self._targets: dict[int, int] = {}
        self._twins: list[tuple[int, int]] = []  # values, and slots of outputs that alias them
        for slot, value in enumerate(program.outputs, start=count):
            if value in self._targets or value < count or program.operands[value].is_constant:
                self._twins.append((value, slot))
            else:
                self._targets[value] = slot
        self.steps: list[Step] = []
        homes = self._homes()
        self._share({count + output: number for number, output in shared})
        for step in program.steps:
            reads = tuple(self._read(value, step) for value in step.reads)
            writes = tuple(self._write(value, step, homes.get(value, step.space)) for value in step.writes)
            self.steps.append(step.between(reads, writes))
        self._finish(len(program.steps) - 1)
        self.plan, self._allocators = self._lay_out()
        outer = range(len(spaces))
        self._is_inner = [not any(slot in outer for slot in (*step.reads, *step.writes)) for step in self.steps]
        del self.program  # a reference cycle would keep its memory until a garbage collection
        super().__init__(0 if self._own else MAX_SMALL)

    def is_twin(self, operand: Operand) -> bool:
        """Whether an operand is an output that aliases another value."""
        return any(self.operands[slot] is operand for _, slot in self._twins)

    # Values ----------------------------------------------------------------------------------------------------------

    def _homes(self) -> dict[int, Space]:
        """The space where each value is best written: the one that most of its readers reach."""
        touching: dict[int, list[Space]] = {}
        for step in self.program.steps:
            for value in (*step.writes, *step.reads):
                touching.setdefault(value, []).append(step.space)
        homes = {}
        for step in self.program.steps:
            for value in step.writes:
                spaces = touching[value]
                possible = [space for space in dict.fromkeys(spaces) if reaches(step.space, space)]
                homes[value] = max(possible, key=lambda space: sum(reaches(other, space) for other in spaces))
        return homes

    def _share(self, shared: Mapping[int, int]) -> None:
        """Decide which outputs are written in place, and remove the others from the targets.

        `shared` maps the slot of an output in the memory of an input to the slot of that input.
        """
        last = {value: number for number, step in enumerate(self.program.steps) for value in step.reads}
        passed_on = {value for value, _ in self._twins}
        in_place: set[int] = set()
        for number, step in enumerate(self.program.steps):
            for update in step.part.runner.updates if step.part else ():
                pairs = [(step.reads[k], self._targets.get(step.writes[j], -1)) for k, j in update.pairs]
                if pairs and all(
                    shared.get(slot) == value
                    and last[value] == number
                    and value not in passed_on
                    and reaches(step.space, self._spaces[slot])
                    for value, slot in pairs
                ):
                    in_place.update(slot for _, slot in pairs)
        apart = {slot for slot in shared if slot not in in_place}
        self._apart = [(value, slot) for value, slot in (*self._targets.items(), *self._twins) if slot in apart]
        self._targets = {value: slot for value, slot in self._targets.items() if slot not in apart}
        self._twins = [(value, slot) for value, slot in self._twins if slot not in apart]

    def _new(self, value: int, space: Space) -> int:
        self.operands.append(self.program.operands[value])
        self._spaces.append(space)
        return len(self.operands) - 1

    def _read(self, value: int, step: Step) -> int:
        """The slot from which a step reads a value; adds a copy if the step can reach none."""
        operand = self.program.operands[value]
        for slot in self._slots.get(value, ()):
            if reaches(step.space, self._spaces[slot]):
                return slot
        if operand.is_constant:
            slot = self._new(value, step.space)
            self._fixed[slot] = self.program.constant(value, step.space)
        else:
            slot = self._targets.get(value, -1)
            if slot < 0 or slot in self._slots[value] or not reaches(step.space, self._spaces[slot]):
                slot = self._new(value, step.space)
                self._own.append(slot)
            self._copy([self._slots[value][0]], [slot], step.segment, _reason(operand, step.space, step.title))
        self._slots.setdefault(value, []).append(slot)
        return slot

    def _write(self, value: int, step: Step, home: Space) -> int:
        slot = self._targets.get(value, -1)
        if slot < 0 or not reaches(step.space, self._spaces[slot]):
            slot = self._new(value, home)
            self._own.append(slot)
        self._slots[value] = [slot]
        return slot

    def _copy(self, reads: Sequence[int], writes: Sequence[int], segment: int, reason: str) -> None:
        source, target = self._spaces[reads[0]], self._spaces[writes[0]]
        size = sum(self.operands[slot].desc.byte_length for slot in writes)
        descs = ", ".join(str(self.operands[slot].desc) for slot in writes)
        names = [self._output_names.get(slot, "") for slot in writes]
        self.steps.append(
            Step(
                f"copy {descs}: {reason}", source if target.is_host else target, tuple(reads), tuple(writes),
                copier(source, target, reason, names), segment, size, size,
            )
        )  # fmt: skip

    def _finish(self, last: int) -> None:
        """Copy outputs to their targets; copies between the same spaces for the same reason are one step."""
        together: dict[tuple[Space, Space, str, int], list[tuple[int, int]]] = {}
        makers = {value: step for step in self.program.steps for value in step.writes}
        # Outputs that overwrite inputs come last: other copies may read these inputs.
        for value, slot in [*self._targets.items(), *self._twins, *self._apart]:
            if slot in self._slots.get(value, ()):
                continue
            if value not in self._slots:  # a constant
                constant = self._new(value, HOST)
                self._fixed[constant] = self.program.operands[value].value
                self._slots[value] = [constant]
            source = next(
                (n for n in self._slots[value] if reaches(self._spaces[slot], self._spaces[n])), self._slots[value][0]
            )
            if (value, slot) in self._twins:
                segment, reason = last, "an output under another name"
            elif (value, slot) in self._apart:
                segment, reason = last, OVER_INPUT
            else:
                segment = makers[value].segment
                if not self._spaces[source].is_host:
                    reason = "an output from the device"
                elif not self._spaces[slot].is_host:
                    reason = "an output to the device"
                else:
                    reason = f"out of the memory of {makers[value].title}"
            key = self._spaces[source], self._spaces[slot], reason, segment
            together.setdefault(key, []).append((source, slot))
        for (_, _, reason, segment), pairs in together.items():
            self._copy([source for source, _ in pairs], [slot for _, slot in pairs], segment, reason)

    # Memory ----------------------------------------------------------------------------------------------------------

    def _lay_out(self) -> tuple[Plan, list[tuple[list[int], Callable[[], list[Memory]]]]]:
        own = set(self._own)
        lives: dict[int, tuple[int, int]] = {}
        for place, step in enumerate(self.steps):
            for slot in (*step.reads, *step.writes):
                if slot in own:
                    lives[slot] = lives.get(slot, (place, place))[0], place
        self._cells = [slot for slot in self._own if isinstance(self.operands[slot], Unsized)]
        sized = [slot for slot in self._own if not isinstance(self.operands[slot], Unsized)]
        whole, allocators = Plan(), []
        for space in dict.fromkeys(self._spaces[slot] for slot in sized):
            numbers = [slot for slot in sized if self._spaces[slot] is space]
            descs: list[Desc] = [self.operands[slot].desc for slot in numbers]
            space_plan, allocate = intermediates(space, descs, [lives[slot] for slot in numbers])
            whole += space_plan
            allocators.append((numbers, allocate))
        return whole, allocators

    def new(self) -> Intermediates:
        """New memory slots for one run. The slots of inputs and outputs are None."""
        memory = Intermediates(self._fixed.get(slot) for slot in range(len(self.operands)))
        for numbers, allocate in self._allocators:
            for slot, piece in zip(numbers, allocate(), strict=True):
                memory[slot] = piece
        for slot in self._cells:
            memory[slot] = Cell()
        return memory

    def give_back(self, memory: Intermediates) -> None:
        """Return the memory of a run for reuse."""
        for slot in self._cells:
            memory[slot].value = None
        super().give_back(memory)

    def run(self, inputs: Sequence[Memory], outputs: Sequence[Memory]) -> None:
        """Run the program once, with only steps between intermediates bound."""
        intermediates = self.take()
        arguments = [*inputs, *outputs]
        memory = [*arguments, *intermediates[len(arguments) :]]
        number = 0
        try:
            if intermediates.calls is None:
                intermediates.calls = [
                    step.tie(memory) if inner else None for step, inner in zip(self.steps, self._is_inner, strict=True)
                ]
            try:
                for number, call in enumerate(intermediates.calls):
                    if call is not None:
                        call()
                    else:
                        step = self.steps[number]
                        step.run([memory[slot] for slot in step.reads], [memory[slot] for slot in step.writes])
            except OperationError as error:
                self.steps[number].reraise(error)
        finally:
            self.give_back(intermediates)


def _reason(operand: Operand, space: Space, title: str) -> str:
    if space is HOST:
        return f"from the device for {title}"
    if space.is_host:
        return f"into the memory of {title}"
    return "an input to the device" if operand.is_input else f"to the device for {title}"
