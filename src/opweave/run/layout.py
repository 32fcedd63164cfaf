"""Layouts: a program for inputs and outputs in certain spaces, with its copies and its memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..backends import Aliases
from ..core.graph import Desc, Operand
from ..memory import OVER_INPUT, Plan
from ..memory.intermediates import Pool, intermediates
from ..memory.spaces import HOST, Cell, Memory, Space, copier, reaches
from ..support.errors import OperationError
from .binding import Intermediates
from .steps import Step, Unsized

if TYPE_CHECKING:
    from .program import Program

MAX_SMALL = 64
"""Runs whose bound steps are kept, for a program without intermediates: they take next to no memory."""


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
        self._key = tuple(spaces), shared
        self._spaces = list(spaces)
        self._fixed: dict[int, Memory] = {}
        self._own: list[int] = []  # slots of intermediates
        self._cells: list[int] = []  # slots of values without a shape
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
        # Memory that other versions of the program use, too.
        self._arenas: Any = None
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
        producers = {value: step for step in self.program.steps for value in step.writes}
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
                segment = producers[value].segment
                if not self._spaces[source].is_host:
                    reason = "an output from the device"
                elif not self._spaces[slot].is_host:
                    reason = "an output to the device"
                else:
                    reason = f"out of the memory of {producers[value].title}"
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
            if self._arenas is None and (arenas := self.program.arenas_in(space, *self._key)) is not None:
                arenas.use(self, space_plan)
                self._arenas, self._on_device = arenas, (numbers, space_plan, descs)
            else:
                allocators.append((numbers, allocate))
        return whole, allocators

    def take(self) -> Intermediates:
        """Memory slots for one run. The slots of inputs and outputs are None."""
        if self._arenas is None:
            return super().take()
        arena = self._arenas.take()
        try:
            memory: Intermediates = arena.memories.peek(id(self)) or self._new_in(arena)
        except BaseException:
            self._arenas.give_back(arena)
            raise
        memory.arena = arena
        return memory

    def _new_in(self, arena: Any) -> Intermediates:
        numbers, plan, descs = self._on_device
        memory = self.new()
        for slot, piece in zip(numbers, arena.carve(plan, descs, self._arenas.in_use), strict=True):
            memory[slot] = piece
        arena.memories.put(self, memory)
        return memory

    def new(self) -> Intermediates:
        """New memory slots for one run, without those in an arena."""
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
        if self._arenas is None:
            super().give_back(memory)
            return
        # Kept, it would be a reference cycle.
        arena, memory.arena = memory.arena, None
        self._arenas.give_back(arena)

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
