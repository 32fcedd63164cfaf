"""Programs: compiled graphs. Steps in order, their memory, and copies between spaces.

A program is immutable and shared by threads. The spaces of its inputs and outputs determine its copies; there is a `Layout`
for each combination of spaces. A `Binding` ties a program to memory; each run takes intermediates from a pool, so that
several threads can run one program at the same time. Both are imported when they are first needed: one step on memory of the
caller needs neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from ..backends import Aliases, Measured, Returning, Runner, TakingFeeds
from ..core.graph import Builder, Desc, Graph, Node, Operand, map_operands
from ..core.size_values import values_at
from ..core.sizes import is_static
from ..memory.spaces import HOST, Memory, Space, copier, reaches
from ..support.records import record
from .steps import CompiledSegment, Step, title

if TYPE_CHECKING:
    from ..backends import KernelTime, Placement
    from ..backends.exports import Exported
    from ..core.value_ranges import InputRange
    from ..memory import Plan
    from .layout import Layout


class Program:
    """A compiled graph.

    Args:
        graph: the legalised graph.
        origin: for each of its nodes, the user's node that it comes from.
        placements: the placements of the user's nodes.
        space: the default space of inputs and outputs.
        ranges: the ranges of the values of inputs, which are checked before each run.
        choice: the chosen engine, and the reason; empty if there was no choice.

    Attributes:
        untried: the engines that are expected to be faster and are not verified, with the reasons.
        refusals_parts: returns the parts for a saved graph with the nodes that the back end refuses (`Backend.refusals_part`).
        operands: the operand of each value, inputs first.
        outputs: index into `operands` for each output.
        symbolic: for operands of a program for certain sizes, those with names, which its nodes have.
        arenas: memory of layouts on devices, which the programs for certain sizes share.
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
        self.symbolic: Mapping[Operand, Operand] = {}
        self.refusals_parts: Callable[[], dict[tuple[str, str], bytes]] = dict
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
        self.arenas: dict[tuple[Space, tuple[Space, ...], Aliases], Any] = {}
        self._find_direct()

    def _find_direct(self) -> None:
        """Find the runner of a single step that has the program's own inputs and outputs."""
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

        # Numbers of values are those of the program with names: no node is looked at.
        graph = Graph(
            map_operands(self.graph.inputs, follow), map_operands(self.graph.outputs, follow), self.graph.nodes
        )
        operands = tuple(map(follow, self.operands))
        steps = tuple(step.at(sizes, follow) for step in self.steps)
        symbolic = {static: operand for operand, static in statics.items()}
        return copy(self).replace(graph, operands, steps, symbolic, ranges)

    def replace(
        self,
        graph: Graph,
        operands: tuple[Operand, ...],
        steps: tuple[Step, ...],
        symbolic: Mapping[Operand, Operand],
        ranges: Sequence[InputRange],
    ) -> Program:
        """Replace operands and steps by those for certain sizes, in a copy that nothing uses yet."""
        self.graph, self.operands, self.steps, self.symbolic = graph, operands, steps, symbolic
        self._ranges, self._layouts = ranges, {}
        self._find_direct()
        return self

    @property
    def named_graph(self) -> Graph:
        """The legalised graph, whose inputs and outputs are operands of its nodes."""
        inputs, outputs = (
            {name: self.symbolic.get(operand, operand) for name, operand in operands.items()}
            for operands in (self.graph.inputs, self.graph.outputs)
        )
        return Graph(inputs, outputs, self.graph.nodes)

    # Running ---------------------------------------------------------------------------------------------------------

    def bind(self, inputs: Sequence[Memory], outputs: Sequence[Memory], shared: Aliases = ()) -> Callable[[], None]:
        """Tie the program to memory of its inputs and outputs; the result runs it once.

        Outputs overlap no other memory, except that of the (input, output) pairs `shared`.
        """
        direct = self._direct
        if direct is not None and self._fits_direct(inputs, outputs, shared):
            call = direct.bind(inputs, outputs)
        else:
            from .binding import Binding

            call = Binding(self.layout(inputs, outputs, shared), inputs, outputs)
        if not self._ranges:
            return call
        from ..core.value_ranges import with_checks

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

    @property
    def takes_all_sizes(self) -> bool:
        """Whether `returning` of a program for certain sizes also runs others that it was compiled for."""
        return self._direct is not None and self._direct.takes_all_sizes and self.space is HOST and not self._ranges

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
            from .layout import Layout

            layout = self._layouts.setdefault(key, Layout(self, spaces, shared))
        return layout

    def arenas_in(self, space: Space, spaces: tuple[Space, ...], shared: Aliases) -> Any:
        """Arenas in a space for the layout in `spaces`; None if it has none."""
        key = space, spaces, shared
        if key not in self.arenas:
            self.arenas.setdefault(key, None if space.is_host else space.arenas())  # type: ignore[attr-defined]
        return self.arenas[key]

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

    def cache_keys(self) -> set[tuple[str, str]]:
        """Key and kind of the files in the cache on disk with code that was compiled for the program."""
        return {key for step in self.steps if step.part is not None for key in step.part.runner.cache_keys()}

    def saved_parts(self) -> dict[tuple[str, str], bytes]:
        """Parts for a saved graph that no cache has, by key and kind."""
        parts = self.refusals_parts()
        for step in self.steps:
            if step.part is not None:
                parts |= step.part.runner.saved_parts()
        return parts

    def exporters(self) -> list[Callable[[], Exported]]:
        """Functions that export compiled parts that no cache has; see `Runner.exporters`."""
        return [exporter for step in self.steps if step.part is not None for exporter in step.part.runner.exporters()]

    def has_kernels_of(self, other: Program) -> bool:
        """Whether a program that was compiled for the same graph, with other estimates of sizes, has the same kernels."""
        pairs = self._runners_beside(other)
        return pairs is not None and all(runner.has_kernels_of(twin) for runner, twin in pairs)

    def share_memory(self, other: Program) -> None:
        """Use the intermediates of a program that was compiled for the same graph, where both have the same parts."""
        pairs = self._runners_beside(other)
        if pairs is None:
            return
        self.arenas = other.arenas
        for runner, twin in pairs:
            runner.share_memory(twin)

    def _runners_beside(self, other: Program) -> list[tuple[Runner, Runner]] | None:
        """The runners of both programs in pairs; None if they have different parts."""
        runners, twins = ([step.part.runner for step in program.steps if step.part] for program in (self, other))
        return list(zip(runners, twins, strict=True)) if len(runners) == len(twins) else None

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
