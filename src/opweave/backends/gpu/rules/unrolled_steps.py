"""The statements of several steps of a recurrence, with rows in registers (`rows_in_registers`)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....core.graph import Desc
from ....core.sizes import Size, is_same_size
from ....expr import ir
from ....expr.gpu import Local
from ....expr.gpu.forms import flat_position
from ....expr.ir import Const, Expr, Index, Input, Load, Output, Reduce, Reduction, Stored, walk
from ....expr.reductions import COMBINE
from ....support.errors import NotSupportedError
from .recurrent_rows import STATES, as_type, round_to

if TYPE_CHECKING:
    from .rows_in_registers import RowsInRegisters

MAX_UNROLLED_ELEMENTS = 8
"""Maximum size of further axes of an output, such as the queries of a group of heads. An estimate."""


@dataclass(frozen=True, eq=False)
class Statement:
    """`place = body`: the place stands for a register, or is the flat position in an array in memory.

    With a `reduction`, the bodies of all invocations of a team are combined.
    """

    place: Expr
    body: Expr
    array: Input | None = None
    reduction: Reduction | None = None


def exprs_of(statements: Iterable[Statement]) -> list[Expr]:
    return [expr for statement in statements for expr in (statement.place, statement.body)]


def is_short(node: Reduce) -> bool:
    return ir.size_of(node.variables) <= MAX_UNROLLED_ELEMENTS and node.reduction in COMBINE


class UnrolledSteps:
    """The statements of `count` steps, which a loop repeats `extent` times, from the step `first` on.

    Registers are elements of local arrays: [repetitions, steps, elements].
    """

    def __init__(self, rows: RowsInRegisters, extent: int, first: Expr, count: int) -> None:
        self.rows, self.extent, self.count = rows, extent, count
        self.variable = None if is_same_size(extent, 1) else Index(extent)
        self.loop: Expr = self.variable or Const(0, "index")
        self.statements: list[Statement] = []
        shape = (extent, count + 1, rows.elements)
        self.states = [Local(-1, Desc(source.desc.data_type, shape), private=True) for source in rows.before]
        begin = ir.call("add", ir.call("mul", self.loop, Const(count, "index")), first)
        for number in range(count):
            self.number, self.time = number, ir.call("add", begin, Const(number, "index"))
            # Arrays of the step, and sums, that are computed already: by node and positions.
            self.cached: dict[tuple[object, ...], Expr] = {}
            self._write_step()

    def register(self, state: int, number: int, element: int) -> Load:
        """An element of a state before the step with this `number`."""
        return Load(self.states[state], (self.loop, Const(number, "index"), Const(element, "index")))

    def write_states(self) -> None:
        """Write the states into memory."""
        rows = self.rows
        for number, (state, result) in enumerate(zip(rows.before, rows.results, strict=False)):
            for element in range(rows.elements_of(state)):
                body = as_type(self.register(number, self.count, element), result.desc.data_type)
                place = flat_position(rows.place_of(state, element), result.desc.shape)
                self.statements.append(Statement(place, body, result))

    def _write_step(self) -> None:
        rows, states = self.rows, self.rows.recurrence.states
        first, second = rows.divided.first, rows.divided.second
        for index, output in zip(rows.divided.early, first.outputs[states:], strict=True):
            self._write_output(index, output)
        for state, output in enumerate(first.outputs[:states]):
            for element in range(rows.elements_of(output)):
                at = rows.place_of(output, element)
                own = {output.axes[axis]: element for axis in rows.inner(output)}
                body = round_to(
                    self._value(output.body, dict(zip(output.axes, at, strict=True)), own), output.desc.data_type
                )
                body = rows.unless_padding(body, self.register(state, self.number, element), output, at, self.time)
                self.statements.append(Statement(self.register(state, self.number + 1, element), body))
        if second is not None:
            for index, output in zip(rows.divided.late, second.outputs, strict=True):
                self._write_output(index, output)

    def _write_output(self, index: int, output: Output) -> None:
        """Write an output: along the row, the elements of this invocation; along small axes, all elements."""
        rows, inner = self.rows, self.rows.inner(output)
        kept = {variable for load in self._kept_loads(output.body) for variable in load.parts}
        along = [axis for axis in inner if output.axes[axis] in kept]
        if not along and math.prod(rows.rest(output)) > MAX_UNROLLED_ELEMENTS:
            along = [axis for axis in inner if is_same_size(output.desc.shape[axis], rows.size)][:1]
        small = [axis for axis in inner if axis not in along]
        sizes = [output.desc.shape[axis] for axis in small]
        if len(along) > 1 or any(not is_same_size(output.desc.shape[axis], rows.size) for axis in along):
            raise NotSupportedError(f"output {index} has several axes of a row")
        if any(isinstance(size, Size) for size in sizes) or math.prod(sizes) > MAX_UNROLLED_ELEMENTS:
            raise NotSupportedError(
                f"output {index} has more than {MAX_UNROLLED_ELEMENTS} elements for each element of a row, {math.prod(sizes)}"
            )
        for element, *numbers in itertools.product(range(rows.elements if along else 1), *map(range, sizes)):
            places: dict[int, Expr] = dict.fromkeys(along, rows.own[element])
            places |= {axis: rows.numbers[number] for axis, number in zip(small, numbers, strict=True)}
            position = rows.position(output, rows.rows, [places[axis] for axis in inner])
            own = {output.axes[axis]: element for axis in along}
            body = self._value(output.body, dict(zip(output.axes, position, strict=True)), own)
            target, at = rows.target(index, position, self.time)
            place = flat_position(at, target.desc.shape)
            self.statements.append(Statement(place, as_type(body, target.desc.data_type), target))

    def _kept_loads(self, body: Expr) -> Iterator[Load]:
        """The loads of states and stored arrays in a body; their positions within a row are those of registers."""
        kept = {*self.rows.before, *self.rows.following}
        for node in walk(body):
            if isinstance(node, Load) and (node.source in kept or isinstance(node.source, Stored)):
                yield node

    # Elements --------------------------------------------------------------------------------------------------------

    def _value(self, root: Expr, places: Mapping[Expr, Expr], own: Mapping[Index, int]) -> Expr:
        """The value of a body of the step.

        `places` are the positions of its variables; `own` is the number of the element of an invocation for each variable
        along a row.
        """
        done = dict(places)
        for node in walk(root, enter=lambda n: () if n in done or isinstance(n, Reduce) else n.parts):
            if node in done:
                continue
            if isinstance(node, Reduce):
                done[node] = self._reduction(node, places, own)
                continue
            parts = tuple(done[part] for part in node.parts)
            done[node] = self._load(node, parts, own) if isinstance(node, Load) else node.rebuild(parts)
        return done[root]

    def _load(self, node: Load, parts: tuple[Expr, ...], own: Mapping[Index, int]) -> Expr:
        rows, source = self.rows, node.source
        is_new = source in rows.following
        if not is_new and source not in rows.before and not isinstance(source, Stored):
            return rows.read(node, parts, self.time)
        numbers = []
        for axis in rows.inner(source):
            variable = node.parts[axis]
            if not isinstance(variable, Index) or variable not in own:
                raise NotSupportedError("a step reads elements of a row that other invocations keep")
            numbers.append(own[variable])
        if not isinstance(source, Stored):
            state = (rows.following if is_new else rows.before).index(source)
            return self.register(state, self.number + is_new, numbers[0] if numbers else 0)
        key = source, *parts
        if key not in self.cached:
            along = dict(zip((source.axes[axis] for axis in rows.inner(source)), numbers, strict=True))
            self.cached[key] = self._value(source.body, dict(zip(source.axes, parts, strict=True)), along)
        return as_type(self.cached[key], node.type)

    def _reduction(self, node: Reduce, places: Mapping[Expr, Expr], own: Mapping[Index, int]) -> Expr:
        """Divide a reduction along a row between the invocations of a team; each one computes other reductions whole."""
        rows = self.rows
        variable, *more = node.variables
        is_divided = (
            rows.size > 1 and not more and is_same_size(variable.extent, rows.size) and node.reduction in COMBINE
        )
        if not is_divided:
            if rows.size > 1 and not is_short(node):
                raise NotSupportedError("a step has a long reduction that is not along a row")
            body = self._value(node.body, places, own)
            return Reduce(node.reduction, node.variables, body)
        free = sorted(node.free, key=lambda variable: variable.serial)
        if not own.keys().isdisjoint(free) or not places.keys() >= set(free):
            raise NotSupportedError("each element of a row has a reduction along the row")
        if ir.storage(node.type) not in STATES:
            raise NotSupportedError(f"kernels keep no sums of {node.type}")
        key = node, *(places[other] for other in free)
        if key not in self.cached:
            self.cached[key] = self._sum_of_team(
                node, [self._value(node.body, {**places, variable: at}, {variable: k}) for k, at in enumerate(rows.own)]
            )
        return self.cached[key]

    def _sum_of_team(self, node: Reduce, terms: list[Expr]) -> Expr:
        while len(terms) > 1:  # a balanced tree: smaller rounding errors, and more parallelism
            pairs = [ir.call(COMBINE[node.reduction], *terms[k : k + 2]) for k in range(0, len(terms) - 1, 2)]
            terms = pairs + terms[len(terms) - len(terms) % 2 :]
        if self.rows.lanes == 1:
            return terms[0]
        local = Local(-1, Desc(ir.storage(node.type), (self.extent, self.count)), private=True)
        total = Load(local, (self.loop, Const(self.number, "index")))
        self.statements.append(Statement(total, terms[0], reduction=node.reduction))
        return total
