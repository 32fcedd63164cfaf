"""Recurrences with rows in registers: teams of invocations keep the rows of states, and run all steps without barriers.

A team has 1 to 32 invocations of one warp. Each keeps adjacent elements of a row of each state. For a sum over the row, each
invocation adds its elements, and the team exchanges and adds these partial sums. The loop over time is unrolled: an
invocation loads all elements of sequences before the first of these steps, and stores outputs after the last one, because
compilers do not move loads before a store or an exchange.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from ....core.guards import estimate
from ....core.sizes import Size, is_same_size
from ....expr import ir
from ....expr.gpu import Block, Features, GpuKernel, GpuModule, KernelProgram, Local
from ....expr.gpu.block import Grid
from ....expr.gpu.reductions import loop_iterations
from ....expr.gpu.teams import Team
from ....expr.gpu.writing import invocations, width_of
from ....expr.ir import Const, Expr, Index, Input, Load, Output, walk
from ....expr.recurrence import Recurrence
from ....expr.reductions import unroll_short
from ....expr.simplify import simplify_elements
from ....support.errors import NotSupportedError
from .recurrent_rows import KernelSteps, RecurrentRows, round_to
from .unrolled_steps import MAX_UNROLLED_ELEMENTS, Statement, UnrolledSteps, exprs_of, is_short
from .unrolled_text import LoopText, add_loads

UNROLLED_STEPS = (8, 4, 2)
"""Steps of an unrolled loop, the best number first: 8 steps of a selective scan of [768, 16] take an H200 1.6 us."""

MIN_UNROLLED = 4
"""Unrolled steps for which larger teams are worth their exchanges. An estimate."""

MAX_REGISTERS = 160
"""Maximum number of elements of states and sequences in an unrolled loop: 8 + 8 + 8 * 18, those of 8 steps of a selective scan
with 8 elements, which was best for many rows. Compilers load some later, and use 60 of 255 registers for this scan."""

MAX_NODES = 2400
"""Maximum size of an unrolled loop, in nodes: compilers take time for each. An estimate."""

MAX_ELEMENTS = 32
"""Maximum elements of a row of a state for an invocation."""

ELEMENTS_OF_MANY_ROWS, ELEMENTS_OF_FEW_ROWS = 8, 4
"""Elements of a row for an invocation: measured on an H200 with selective scans of 16, and linear attention of 64 elements."""

MAX_SHORT_ROW = 16
"""Rows of at most this many elements use `ELEMENTS_OF_FEW_ROWS` in steps that are not divided into chunks. On an H200, 1024
steps of a selective scan of [8, 2048, 16] take 545 us with 8 elements an invocation, and 366 us with 4."""

MANY_ROWS = 512
"""Rows are many if all of them have at least this many elements for each unit. Measured as above."""

WIDTH = 64
"""Invocations of a workgroup. Measured as above."""


def elements_of_row(rows: RecurrentRows) -> int:
    """The number of elements of a row of the states; `NotSupportedError` if they have several axes, or differ."""
    sizes = {tuple(rows.rest(source)) for source in rows.before} - {()}
    if len(sizes) > 1 or any(len(size) != 1 or isinstance(size[0], Size) for size in sizes):
        raise NotSupportedError("states have rows of several axes, or of different sizes")
    return sizes.pop()[0] if sizes else 1


def rows_in_registers(
    recurrence: Recurrence,
    operands: Sequence[Input | Const],
    results: Sequence[Input],
    steps: KernelSteps,
    features: Features,
) -> RowsInRegisters:
    """The program for some steps, with as many unrolled as fit; `NotSupportedError` if rows do not fit into registers."""
    rows = RecurrentRows(recurrence, operands, results, steps)
    size = elements_of_row(rows)
    teams = [1 << k for k in range(features.dialect.warp.bit_length()) if size % (1 << k) == 0] or [1]
    are_many = estimate(rows.count) * size >= features.units * MANY_ROWS
    is_short_row = not steps.in_chunks and size <= MAX_SHORT_ROW
    elements = ELEMENTS_OF_MANY_ROWS if are_many and not is_short_row else ELEMENTS_OF_FEW_ROWS
    program_of = partial(RowsInRegisters, recurrence, operands, results, steps)
    for lanes in [lanes for lanes in teams if size <= lanes * elements] or teams[-1:]:
        single = program_of(lanes, 1)
        unrolled = next(filter(single.fits, UNROLLED_STEPS), 1)
        if unrolled >= MIN_UNROLLED:
            break
    return single if unrolled == 1 or is_same_size(steps.count, 1) else program_of(lanes, unrolled)


class RowsInRegisters(RecurrentRows, KernelProgram):
    """The kernel for teams of `lanes` invocations, in which `unrolled` steps follow each other in a loop.

    Attributes:
        elements: the number of adjacent elements of a row that an invocation keeps.
        rows: the positions along the axes of rows.
        part: the number of an invocation in its team.
        own: the position in a row of each element of an invocation.
    """

    def __init__(
        self,
        recurrence: Recurrence,
        operands: Sequence[Input | Const],
        results: Sequence[Input],
        steps: KernelSteps,
        lanes: int,
        unrolled: int,
    ) -> None:
        super().__init__(recurrence, operands, results, steps)
        self.lanes, self.unrolled = lanes, unrolled
        self.size = elements_of_row(self)
        self.elements = self.size // lanes
        if self.elements > MAX_ELEMENTS:
            raise NotSupportedError(
                f"a row has {self.size} elements, and {lanes} invocations keep at most {MAX_ELEMENTS} each"
            )
        self.rows, self.part = tuple(map(Index, self.extents)), Index(lanes)
        first = ir.call("mul", self.part, Const(self.elements, "index"))
        self.own = [ir.call("add", first, Const(k, "index")) for k in range(self.elements)]
        self.numbers = [Const(k, "index") for k in range(MAX_UNROLLED_ELEMENTS)]
        self.sequences = self._sequences()
        blocks, remainder = steps.count // unrolled, steps.count % unrolled
        start = Const(steps.start, "index")
        rest = ir.call("add", start, Const(blocks * unrolled, "index"))
        self.loops = [
            UnrolledSteps(self, extent, begin, count)
            for extent, begin, count in ((blocks, start, unrolled), (remainder, rest, 1))
            if not is_same_size(extent, 0)
        ]
        self.initial, self.last = list(self._initial()), UnrolledSteps(self, 1, start, 0)
        self.last.write_states()
        self._simplify()
        self._kernels: dict[Features, GpuKernel] = {}

    def _sequences(self) -> dict[Input, int]:
        """The axis of time of each operand that is a sequence, and that steps do not also read whole."""
        count, axes = self.recurrence.states, dict[Input, int]()
        slices, others = self.recurrence.step.inputs[count:], self.operands[count:]
        inputs = list(zip(others, self.recurrence.inputs, slices, strict=True))
        whole = {operand for operand, along, _ in inputs if along is None}
        for operand, along, source in inputs:
            if along is not None and isinstance(operand, Input) and operand not in whole:
                axes[operand] = along.axis - (operand.desc.rank == source.desc.rank)  # the axis of chunks
        return axes

    def _initial(self) -> Iterator[Statement]:
        """The elements of the states before the first step."""
        for state, operand in zip(self.before, self.operands, strict=False):
            for element in range(self.elements_of(state)):
                value = operand if isinstance(operand, Const) else Load(operand, self.place_of(state, element))
                body = round_to(value, state.desc.data_type)
                yield Statement(body, body)

    def _simplify(self) -> None:
        """Simplify all statements together, so that loops share what does not depend on time."""
        simple = iter(unroll_short(simplify_elements(*self.exprs), is_short))
        for group in self._groups:
            group[:] = [replace(statement, place=next(simple), body=next(simple)) for statement in group]

    def elements_of(self, state: Input | Output) -> int:
        """The number of elements of a state that an invocation keeps."""
        return self.elements if self.inner(state) else 1

    def place_of(self, state: Input | Output, element: int) -> tuple[Expr, ...]:
        """The position of an element of an invocation in the whole array."""
        return self.position(state, self.rows, [self.own[element]] * len(self.inner(state)))

    @property
    def _groups(self) -> list[list[Statement]]:
        return [self.initial, self.last.statements, *(loop.statements for loop in self.loops)]

    @property
    def exprs(self) -> list[Expr]:
        """The places and the bodies of all statements."""
        return exprs_of(statement for group in self._groups for statement in group)

    @property
    def sources(self) -> list[Input]:
        """The arrays in memory that are read."""
        loads = [node.source for node in walk(*self.exprs) if isinstance(node, Load)]
        return [
            source for source in dict.fromkeys(loads) if isinstance(source, Input) and not isinstance(source, Local)
        ]

    @property
    def targets(self) -> list[Input]:
        return list(self.results)

    # Limits ----------------------------------------------------------------------------------------------------------

    def fits(self, unrolled: int) -> bool:
        """Whether `unrolled` steps fit into registers; this program has a single step."""
        states = sum(map(self.elements_of, self.before))
        nodes = walk(*exprs_of(statement for loop in self.loops[:1] for statement in loop.statements))
        reads = sum(isinstance(node, Load) and node.source in self.sequences for node in nodes)
        registers = states + self.elements + unrolled * reads
        return registers <= MAX_REGISTERS and unrolled * len(nodes) <= MAX_NODES

    def iterations(self, features: Features) -> int:
        """Maximum number of loop iterations of an invocation, summed over all loops."""
        total = 0
        for loop in self.loops:
            reductions = sum(loop_iterations(statement.body, is_short) for statement in loop.statements)
            exchanges = sum(statement.reduction is not None for statement in loop.statements) * self.lanes.bit_length()
            total += loop.extent * (1 + reductions + exchanges) + 1
        return total

    # Text ------------------------------------------------------------------------------------------------------------

    def kernel(self, title: str, features: Features, is_fixed: Callable[[Input], bool] = lambda _: False) -> GpuKernel:
        if features not in self._kernels:
            self._kernels[features] = self._kernel(title, features)
        return replace(self._kernels[features], title=title)

    def _kernel(self, title: str, features: Features) -> GpuKernel:
        module = GpuModule(features)
        for source in sorted(self.sources, key=lambda source: source.number):
            module.read(source)
        for target in self.targets:
            module.write(target)
        total = self.count * self.lanes
        most = min(WIDTH, features.max_invocations)
        width = width_of(-(-estimate(total) // features.units), features, most)
        number, groups = invocations(total, width, features, module.unsigned)
        row = f"({number}) / {self.lanes}u" if self.lanes > 1 else number
        if not is_same_size(math.prod(groups) * width, total):
            # All invocations of a warp exchange registers: those without a row compute the last one again.
            row = f"min({row}, {module.unsigned(self.count - 1)})"
        head = [f"let row = {row};"]
        if self.lanes > 1:
            head.append(f"let part = i32(lane % {self.lanes}u);")
        block = Block(module, {self.part: "part"}, grid=Grid(self.rows, "row"))
        names = [f"state{k}_{j}" for k, state in enumerate(self.before) for j in range(self.elements_of(state))]
        initial = walk(*(statement.body for statement in self.initial))
        add_loads(block, [node for node in initial if isinstance(node, Load)])
        for name, statement in zip(names, self.initial, strict=True):
            block.add(f"var {name} = {block.value(statement.body)};")
        team = Team(module.dialect, width, self.lanes)
        for loop, variable in zip((*self.loops, self.last), ("n", "remainder", ""), strict=False):
            LoopText(block, self, loop, names, team).write(variable)
        return module.kernel(title, [], [*head, *block.lines], (width, 1, 1), groups)
