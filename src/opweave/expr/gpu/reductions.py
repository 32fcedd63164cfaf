"""Variables and statements of reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...core.dtypes import FLOATS, INFO
from ...core.sizes import may_exceed
from ..ir import Expr, Reduce, size_of, walk
from ..reductions import neutral
from .dialect import Variable
from .elements import call
from .module import GpuModule
from .teams import Team, TeamValue
from .types import computed_type

PART = 64
"""Sums of floats are divided into partial sums of this many elements, to reduce rounding errors."""


def loop_iterations(body: Expr, is_short: Callable[[Reduce], bool]) -> int:
    """Number of loop iterations of the reductions in an element, without those that are unrolled, as `is_short` tells."""
    total = 0
    for node in walk(body, enter=lambda node: () if isinstance(node, Reduce) else node.parts):
        if isinstance(node, Reduce):
            size, inner = size_of(node.variables), loop_iterations(node.body, is_short)
            # Long sums have a loop over parts, too. The test that ends a loop counts as an iteration.
            total += size * inner if is_short(node) else size * (1 + inner) + 2 * (size // PART) + 3
    return total


class State:
    """The variables of a reduction: a value, and its position for `arg_max` and `arg_min`; `name` holds the result."""

    def __init__(self, module: GpuModule, node: Reduce, name: str) -> None:
        self.module, self.node, self.name = module, node, name
        self.type = node.body.type
        self.positions = node.reduction.startswith("arg_")
        self.names = [f"{name}_value", name] if self.positions else [name]
        self.types = [computed_type(self.type), "i32"] if self.positions else [computed_type(self.type)]
        self.value = self.names[0]

    def declarations(self) -> list[str]:
        """Declare the variables, with the value of an empty reduction."""
        empty = self.module.constant(neutral(self.node.reduction, self.type).value, self.type)
        texts = zip(self.names, (empty, str(INFO["int32"].highest)), strict=False)
        return [f"var {name} = {text};" for name, text in texts]

    def step(self, value: str, position: str) -> list[str]:
        if self.positions:
            return self._choice(value, position)
        kind, dialect = self.node.reduction, self.module.dialect
        if kind in ("sum", "product") and (dialect.wraps or self.type not in ("int32", "int64")):
            return [f"{self.value} {'+' if kind == 'sum' else '*'}= {value};"]
        name = {"sum": "add", "product": "mul"}.get(kind, kind)
        return [f"{self.value} = {call(name, self.type, (self.value, value), dialect)};"]

    def combine(self, other: Sequence[str]) -> list[str]:
        """Statements that add the state of another invocation."""
        if not self.positions:
            return self.step(other[0], "")
        lines = [f"let other_value = {other[0]};", f"let other = {other[1]};"]
        return [*lines, *self._choice("other_value", "other")]

    def _choice(self, value: str, position: str) -> list[str]:
        """Keep the first position of the extreme value; NaN wins.

        There are no branches: a loop would wait for each element before it loads the next one.
        """
        sign = ">" if self.node.reduction == "arg_max" else "<"
        better, same = f"{value} {sign} {self.value}", f"{value} == {self.value}"
        if self.type in FLOATS:
            better = f"!is_nan({self.value}) & (({better}) | is_nan({value}))"
            same = f"({same}) | (is_nan({self.value}) & is_nan({value}))"
        return [
            "{",
            f"    let is_chosen = ({better}) | (({same}) & ({position} < {self.name}));",
            f"    {self.value} = select({self.value}, {value}, is_chosen);",
            f"    {self.name} = select({self.name}, {position}, is_chosen);",
            "}",
        ]

    def is_long(self, count: int) -> bool:
        return self.node.reduction == "sum" and self.type in FLOATS and may_exceed(count, 2 * PART)

    def part(self) -> State:
        return State(self.module, self.node, f"{self.name}_part")


def combine_states(state: State, workgroup: int, *, is_last: bool) -> list[str]:
    """Statements that combine the states of all invocations of a workgroup; each invocation receives the result.

    If they run once (`is_last`), they need not end with a barrier, after which memory can be used again.
    """
    dialect = state.module.dialect
    team = Team(dialect, workgroup, workgroup)
    memory = [] if team.is_in_warp else _memory(state, team)
    value = TeamValue(state.names, memory, state.combine)
    lines = team.exchange([value])
    if team.is_in_warp:
        return lines
    lines += [*team.store([value]), *(f"{name} = {m}[0];" for m, name in zip(memory, state.names, strict=True))]
    if team.parts > 1:
        others = state.combine([f"{m}[warp]" for m in memory])
        lines += dialect.loop(f"for (var warp = 1u; warp < {team.parts}u; warp++) {{", others)
    return lines if team.warp and is_last else [*lines, "workgroupBarrier();"]


def _memory(state: State, team: Team) -> list[str]:
    """Declare workgroup memory for each variable. Without warps, all reductions share the same memory."""
    shared, number = state.module.shared, len(state.module.shared)
    names = [f"shared_{'at' if k else type}" for k, type in enumerate(state.types)]
    if team.warp:
        names = [f"{name}_{number}" for name in names]
    for name, type in zip(names, state.types, strict=True):
        declaration = Variable(name, f"array<{type}, {team.elements}>")
        if declaration not in shared:
            shared.append(declaration)
    return names
