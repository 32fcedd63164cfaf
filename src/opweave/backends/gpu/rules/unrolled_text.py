"""Generate the code of loops over several steps of a recurrence, with rows in registers (`rows_in_registers`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....core.sizes import Size, is_multiple
from ....expr import ir
from ....expr.gpu import Block, Local
from ....expr.gpu.elements import call as call_text, is_simple
from ....expr.gpu.forms import flat_position
from ....expr.gpu.teams import Team, TeamValue
from ....expr.gpu.writing import pattern_of
from ....expr.ir import Const, Expr, Index, Input, Load, Reduce, Reduction, substitute, walk
from ....expr.ranges import bounds, is_inside
from ....expr.reductions import COMBINE
from .unrolled_steps import Statement, UnrolledSteps, exprs_of

if TYPE_CHECKING:
    from .rows_in_registers import RowsInRegisters

MAX_READ_AHEAD = 32
"""Maximum number of elements that an iteration of a loop loads for the next one; each takes a register. An estimate."""


class LoopText:
    """Generates the text of a loop; `names` are the variables of the states' elements."""

    def __init__(
        self, block: Block, rows: RowsInRegisters, loop: UnrolledSteps, names: Sequence[str], team: Team
    ) -> None:
        self.block, self.rows, self.loop, self.names, self.team = block, rows, loop, names, team
        self.nodes = walk(*exprs_of(loop.statements))
        self.bound = {*rows.rows, rows.part, *([loop.variable] if loop.variable is not None else ())}
        self.early = self._early_loads()
        self.shared = self._shared_nodes()

    def _early_loads(self) -> list[Load]:
        """The loads that all steps execute, at positions that do not depend on registers."""
        loads = dict[Expr, None]()
        for node in self.nodes:
            if isinstance(node, Load) and node.free <= self.bound and self._exists(node):
                inner = (other for other in walk(*node.parts) if isinstance(other, Load))
                if all(other in loads for other in inner):
                    loads[node] = None
        return [load for load in loads if isinstance(load, Load)]

    def _exists(self, load: Load) -> bool:
        """Whether a load reads memory and is in bounds; positions in time always are."""
        if isinstance(load.source, Local):
            return False
        time = self.rows.sequences.get(load.source)  # type: ignore[arg-type]
        spans = [bounds(part) for part in load.parts]
        return all(
            axis == time or (span is not None and is_inside(span, size))
            for axis, (span, size) in enumerate(zip(spans, load.source.desc.shape, strict=True))
        )

    def _shared_nodes(self) -> set[Expr]:
        """The nodes that several statements use, and that each step may compute."""
        uses = Counter(part for node in self.nodes for part in node.parts)
        uses.update(statement.body for statement in self.loop.statements)
        early, computed = set(self.early), set[Expr]()
        for node in self.nodes:
            is_read = not isinstance(node, Load) or isinstance(node.source, Local) or node in early
            if is_read and all(part in computed for part in node.parts) and not isinstance(node, Reduce):
                computed.add(node)
        return {node for node in computed if uses[node] > 1 and node.parts and self._is_named(node)}

    def _read_ahead(self, loads: Sequence[Load]) -> list[Load]:
        """The loads that an iteration does for the next one: of sequences of which a step reads a single element.

        Teams read different elements of these sequences from memory. Compilers sink the loads to the steps that use them, so
        that each step waits for memory: on an H200, 1024 steps of a selective scan of [4096, 16] take 435 us, and 261 us if
        they load ahead. Elements that teams share, or that an invocation reads as vectors, are in a cache after the first
        load. With chunks, others run while one waits. Loads before a loop of no iterations would be out of bounds, so that
        loops with a named number of iterations have none.
        """
        if self.rows.steps.in_chunks or isinstance(self.loop.extent, Size):
            return []
        counts = Counter(load.source for load in loads)
        single = [
            load for load in loads if load.source in self.rows.sequences and counts[load.source] == self.loop.count
        ]
        return single if len(single) <= MAX_READ_AHEAD else []

    def _is_named(self, node: Expr) -> bool:
        return node.type != "index" and node.free <= self.bound and not isinstance(node, Load)

    def write(self, variable: str = "") -> None:
        """Add the loop over time, with this variable; the statements alone if they run once."""
        block, loop = self.block, self.loop
        early = [load for load in self.early if loop.variable is None or loop.variable in load.free]
        if loop.variable is not None:
            add_loads(block, [load for load in self.early if load not in early])
            self._enter_loop(loop.variable, variable, self._read_ahead(early))
        registers = {
            _key(node): node for node in self.nodes if isinstance(node, Load) and isinstance(node.source, Local)
        }
        elements = [
            (state, k)
            for state, source in zip(loop.states, self.rows.before, strict=True)
            for k in range(self.rows.elements_of(source))
        ]
        for (state, element), name in zip(elements, self.names, strict=True):
            if (state, 0, element) in registers:
                block.name(registers[state, 0, element], name)
        add_loads(block, early)
        values = [self._value(statement) for statement in loop.statements]
        for statement, value in zip(loop.statements, values, strict=True):
            if statement.array is not None:
                self._store(statement.array, statement.place, value)
        if loop.count:
            last = {_key(s.place): value for s, value in zip(loop.statements, values, strict=True) if s.array is None}
            new = [last[state, loop.count, element] for state, element in elements]
            new = [block.let(value) if value in self.names else value for value in new]  # states may be exchanged
            block.add(*(f"{name} = {value};" for name, value in zip(self.names, new, strict=True)))
        if loop.variable is not None:
            end = block.module.number(loop.extent)
            block.leave(f"for (var {variable} = 0; {variable} < {end}; {variable} += 1) {{")

    def _enter_loop(self, index: Index, variable: str, ahead: Sequence[Load]) -> None:
        """Begin the loop. Each iteration does the loads `ahead` for the next one; the last iteration repeats its own."""
        block, last = self.block, Const(self.loop.extent - 1, "index")
        first, following = Const(0, "index"), ir.call("min", ir.call("add", index, Const(1, "index")), last)
        names = [block.variable(block.value(substitute(load, {index: first}))) for load in ahead]
        block.enter({index: variable})
        for load, name in zip(ahead, names, strict=True):
            block.name(load, block.let(name))
        for load, name in zip(ahead, names, strict=True):
            value = block.value(substitute(load, {index: following}))
            block.add(f"{name} = {block.module.dialect.carried(value)};")

    def _value(self, statement: Statement) -> str:
        """Add the statements that compute a value, and return its text."""
        block = self.block
        for node in walk(statement.body):
            if node in self.shared:
                block.keep(node)
        if statement.array is not None:
            return block.let_value(statement.body)
        if statement.reduction is None:
            block.name(statement.place, block.let_value(statement.body))
        else:
            block.name(statement.place, self._exchange(statement.body, statement.reduction))
        return block.value(statement.place)

    def _exchange(self, body: Expr, reduction: Reduction) -> str:
        """Combine the values of a team; return the variable of the result."""
        block, dialect = self.block, self.block.module.dialect
        name = block.variable(block.value(body))

        def combine(other: Sequence[str]) -> list[str]:
            return [f"{name} = {call_text(COMBINE[reduction], body.type, (name, other[0]), dialect)};"]

        block.add(*self.team.exchange([TeamValue([name], [], combine)]))
        return name

    def _store(self, array: Input, place: Expr, value: str) -> None:
        block, module = self.block, self.block.module
        if module.layout(array).lanes == 1:
            block.add(module.store(array, block.value(place), value))
            return
        block.enter()
        block.add(*module.replace(array, block.let_value(place), pattern_of(value, array.desc.data_type)))
        block.leave("{")


def _key(register: Expr) -> tuple[object, ...]:
    """The array of a register, and its position in a repetition."""
    assert isinstance(register, Load)
    return register.source, *(part.value for part in register.parts[1:] if isinstance(part, Const))


def add_loads(block: Block, loads: Sequence[Load]) -> None:
    """Add loads that precede all other statements, as vectors of four where elements are adjacent and aligned."""
    module = block.module
    sums = {load: module.positions.sum_of(load) for load in loads if block.name_of(load) is None}
    places = {(load.source, frozenset(at.terms.items()), at.constant): load for load, at in sums.items()}
    for load, at in sums.items():
        terms = frozenset(at.terms.items())
        adjacent = [places.get((load.source, terms, at.constant + k)) for k in range(4)]
        four = [member for member in adjacent if member is not None]
        vector = ""
        if len(four) == 4 and all(is_multiple(size, 4) for size in (at.constant, *at.terms.values())):
            vector = module.load_four(load.source, block.value(flat_position(load.parts, load.source.desc.shape)))
        if vector:
            name = block.let(vector)
            for member, letter in zip(four, "xyzw", strict=True):
                value = module.convert_loaded(load.source, f"{name}.{letter}")
                block.name(member, value if is_simple(value) else block.let(value))
        block.keep(load)
