"""Programs as stages: loops over arrays, each of which computes every element of one shape once.

A stage is what becomes one compiled function. Arrays that are stored are stages of their own, and so are reductions that
would else be computed several times: those that depend on the variable of another reduction, or on none of the outer loops.
What lies in memory is flat here: the position of an element is a sum of multiples of variables (`Position`), and variables
that always move together are one loop.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...dtypes import FLOATS, INFO, DataType
from ...graph import Desc
from ..ir import (
    Call,
    Cast,
    Check,
    Const,
    Expr,
    Index,
    Load,
    Output,
    Program,
    Reduce,
    Source,
    Stored,
    call,
    storage,
    substitute,
    unified,
    walk,
)

EXPANDED = 32
"""Reductions over so many positions are written out."""

PARTS = 4096, 1 << 16
"""Reductions to fewer elements than the first number, over more than the second, are divided into parts."""


@dataclass(frozen=True, eq=False)
class Target:
    """An array that a stage writes: `body` is one element of it."""

    source: Source | Output
    body: Expr
    data_type: DataType


@dataclass(frozen=True, eq=False)
class Stage:
    """Loops that write one element of each target.

    Attributes:
        axes: the last one changes fastest.
        targets: what is written.
        rows: what is computed and kept for one step of the outer loops, because a reduction and the elements both need it.
    """

    axes: tuple[Index, ...]
    targets: tuple[Target, ...]
    rows: tuple[Stored, ...] = ()

    @property
    def roots(self) -> tuple[Expr, ...]:
        """All that is computed."""
        return (*(row.body for row in self.rows), *(target.body for target in self.targets))


def divided(program: Program) -> tuple[Stage, ...]:
    """The stages of a program, in the order in which they run."""
    return tuple(_Division(program).stages)


def checking(program: Program) -> Program | None:
    """The program that computes for each check whether it holds: a uint8 of shape (); None if there are no checks."""
    if not program.checks:
        return None
    outputs = tuple(Output((), _holds(check)) for check in program.checks)
    return Program(program.name, program.inputs, outputs)


def _holds(check: Check) -> Expr:
    holds: Expr = Cast(check.condition, "uint8")
    variables = tuple(sorted(check.condition.free, key=lambda variable: (variable.axis, variable.serial)))
    return Reduce("min", variables, holds) if variables else holds


class _Division:
    """Dividing a program."""

    def __init__(self, program: Program) -> None:
        self.stages: list[Stage] = []
        self.replaced: dict[Expr, Expr] = {}
        for stored in program.stored:
            self._add(stored.axes, [(stored, stored.body, stored.desc.data_type)])
        groups: dict[tuple[Index, ...], list[tuple[Source | Output, Expr, DataType]]] = {}
        for output in program.outputs:
            groups.setdefault(output.axes, []).append((output, output.body, output.desc.data_type))
        for axes, targets in groups.items():
            self._add(axes, targets)

    def _add(self, axes: tuple[Index, ...], targets: Sequence[tuple[Source | Output, Expr, DataType]]) -> None:
        bodies = unified(*(_written_out(body) for _, body, _ in targets))
        bodies = unified(*self._without_repetition(axes, bodies))
        rows, bodies = _with_rows(axes, bodies)
        made = (Target(source, body, type) for (source, _, type), body in zip(targets, bodies, strict=True))
        self.stages.append(Stage(axes, tuple(made), rows))

    def _without_repetition(self, axes: tuple[Index, ...], bodies: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """`bodies`, in which reductions are loaded from stages of their own where they would be computed repeatedly."""
        while True:
            reductions = [node for node in walk(*bodies) if isinstance(node, Reduce)]
            order = [axis for axis in loop_order(axes, reductions) if axis.extent > 1]
            chosen = next((n for n in reductions if _worth_dividing(n) or _is_repeated(n, order)), None)
            if chosen is None:
                return bodies
            value = self._kept(chosen)
            bodies = tuple(substitute(body, {chosen: value}) for body in bodies)

    def _kept(self, node: Reduce) -> Expr:
        """A load of a reduction that is a stage of its own."""
        known = self.replaced.get(node)
        if known is None:
            known = self.replaced[node] = self._in_parts(node) if _worth_dividing(node) else self._stored(node)
        return known

    def _stored(self, node: Reduce) -> Expr:
        axes = tuple(sorted((v for v in node.free if v.extent > 1), key=lambda v: (v.axis == 0, v.axis, v.serial)))
        body = substitute(node, {v: Const(0, "index") for v in node.free if v.extent == 1})
        # float16 is kept as float32: it is rounded when the result is stored, not on the way.
        type: DataType = "float32" if storage(node.type) == "float16" else storage(node.type)
        kept = Stored(axes, Cast(body, type) if type != node.type else body)
        self._add(axes, [(kept, kept.body, type)])
        return Load(kept, axes)

    def _in_parts(self, node: Reduce) -> Expr:
        """A reduction of the reductions of parts, which can be computed in parallel."""
        first = node.variables[0]
        count = _parts(first.extent)
        size = -(-first.extent // count)
        part, position = Index(count), Index(size)
        index = call("add", call("mul", part, Const(size, "index")), position)
        inside: Expr | None = None
        if count * size != first.extent:
            inside = call("lesser", index, Const(first.extent, "index"))
            index = call("min", index, Const(first.extent - 1, "index"))
        body = substitute(node.body, {first: index})
        if inside is not None:
            body = call("where", inside, body, _neutral(node))
        partial = self._stored(Reduce(node.reduction, (position, *node.variables[1:]), body))
        return Reduce(node.reduction, (part,), partial)


_DEAR = frozenset({"exp", "log", "sin", "cos", "tan", "tanh", "erf", "sigmoid", "pow"})

LONGEST_ROW = 1 << 15
"""Rows of so many elements stay in the cache of a processor."""


def _with_rows(axes: tuple[Index, ...], bodies: tuple[Expr, ...]) -> tuple[tuple[Stored, ...], tuple[Expr, ...]]:
    """Rows of what is dear, and both reduced and used element by element, as the exponentials of softmax are."""
    for node in walk(*bodies):
        if not isinstance(node, Reduce) or not axes or len(node.variables) != 1 or not _is_dear(node.body):
            continue
        (variable,), last = node.variables, axes[-1]
        if variable.extent != last.extent or last in node.free or not 1 < last.extent <= LONGEST_ROW:
            continue
        *same, element = unified(*bodies, substitute(node.body, {variable: last}))
        inside = {part for part in walk(*same) if isinstance(part, Reduce) and part.variables == node.variables}
        wanted = {part for part in inside if part.reduction == node.reduction and part.free == node.free}
        if element not in walk(*same) or element.free != node.free | {last} or len(wanted) != 1:
            continue
        (reduction,) = wanted
        outer = tuple(axis for axis in axes[:-1] if axis in node.free)
        row = Stored((*outer, last), element)
        loaded = reduction.rebuilt((Load(row, (*outer, variable)),))
        values: dict[Expr, Expr] = {element: Load(row, (*outer, last)), reduction: loaded}
        return (row,), tuple(substitute(body, values) for body in same)
    return (), bodies


def _is_dear(body: Expr) -> bool:
    """Whether there are functions in it that take long, outside of reductions."""
    nodes = walk(body, enter=lambda node: () if isinstance(node, Reduce) else node.parts)
    return any(isinstance(node, Call) and node.name in _DEAR for node in nodes)


def _neutral(node: Reduce) -> Const:
    if node.reduction in ("sum", "product"):
        return Const(int(node.reduction == "product"), node.type)
    if node.type in FLOATS:
        return Const(-math.inf if node.reduction == "max" else math.inf, node.type)
    info = INFO[storage(node.type)]
    return Const(info.lowest if node.reduction == "max" else info.highest, node.type)


def _parts(extent: int) -> int:
    """How many parts to divide a variable into: a divisor of its extent, if there is one of the right size."""
    wanted = min(extent, 64)
    return next((count for count in range(wanted, wanted // 4, -1) if extent % count == 0), wanted)


def _worth_dividing(node: Reduce) -> bool:
    results = math.prod(v.extent for v in node.free)
    positions = math.prod(v.extent for v in node.variables)
    divisible = node.reduction in ("sum", "product", "max", "min") and node.variables[0].extent >= 8
    return divisible and results <= 8 and positions * results >= PARTS[1]


def _written_out(body: Expr) -> Expr:
    """`body` with small reductions as expressions."""
    while True:
        small = next((n for n in walk(body) if isinstance(n, Reduce) and _is_small(n)), None)
        if small is None:
            return body
        body = substitute(body, {small: _terms(small)})


def _is_small(node: Reduce) -> bool:
    if node.reduction.startswith("arg_") or any(isinstance(n, Reduce) for n in walk(node.body)):
        return False
    positions = math.prod(variable.extent for variable in node.variables)
    return positions <= EXPANDED and positions * len(walk(node.body)) <= 2000


_COMBINE = {"sum": "add", "product": "mul", "max": "max", "min": "min"}


def _terms(node: Reduce) -> Expr:
    name = _COMBINE[node.reduction]
    terms = []
    for position in _positions([variable.extent for variable in node.variables]):
        values: dict[Expr, Expr] = {
            variable: Const(p, "index") for variable, p in zip(node.variables, position, strict=True)
        }
        terms.append(substitute(node.body, values))
    while len(terms) > 1:  # a tree, not a chain, which has smaller errors, and takes less time
        pairs = [call(name, *terms[k : k + 2]) for k in range(0, len(terms) - 1, 2)]
        terms = pairs + terms[len(terms) - len(terms) % 2 :]
    return terms[0]


def _positions(extents: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*(range(extent) for extent in extents))


def loop_order(axes: Sequence[Index], reductions: Sequence[Reduce]) -> list[Index]:
    """Axes, those that most reductions depend on first: the others are loops inside of which nothing is reduced anew."""
    return sorted(axes, key=lambda axis: -sum(axis in node.free for node in reductions))


def _is_repeated(node: Reduce, order: Sequence[Index]) -> bool:
    """Whether a reduction would be computed several times: it does not depend on all of the outermost loops, or on none."""
    free = {variable for variable in node.free if variable.extent > 1}
    return free != set(order[: len(free)]) or (not free and bool(order))


# ---------------------------------------------------------------------------------------------------------------------
# Positions in memory


@dataclass
class Position:
    """A position in flat memory: `constant`, and multiples of variables and other indices."""

    constant: int = 0
    variables: dict[Index, int] = field(default_factory=dict)
    others: list[tuple[Expr, int]] = field(default_factory=list)

    def add(self, index: Expr, factor: int) -> None:
        """Add `index * factor`."""
        if isinstance(index, Const):
            self.constant += int(index.value) * factor
        elif isinstance(index, Index):
            self.variables[index] = self.variables.get(index, 0) + factor
        elif isinstance(index, Call) and index.name in ("add", "sub"):
            self.add(index.parts[0], factor)
            self.add(index.parts[1], factor if index.name == "add" else -factor)
        elif isinstance(index, Call) and index.name == "mul" and any(isinstance(p, Const) for p in index.parts):
            number, rest = sorted(index.parts, key=lambda part: not isinstance(part, Const))
            assert isinstance(number, Const)
            self.add(rest, int(number.value) * factor)
        else:
            self.others.append((index, factor))


def strides(desc: Desc) -> list[int]:
    """How far apart in flat memory neighbours along each axis are."""
    return [math.prod(desc.shape[axis + 1 :]) for axis in range(desc.rank)]


def position(load: Load) -> Position:
    """Where a load reads."""
    result = Position()
    for index, stride in zip(load.parts, strides(load.source.desc), strict=True):
        result.add(index, stride)
    return result


# ---------------------------------------------------------------------------------------------------------------------
# Loops


@dataclass(frozen=True, eq=False)
class Loop:
    """Variables that are one loop; the last of them changes fastest."""

    members: tuple[Index, ...]

    @property
    def extent(self) -> int:
        """The number of its steps."""
        return math.prod(member.extent for member in self.members)


class Loops:
    """The loops of a stage, and where its loads read.

    Attributes:
        axes: the loops over the elements, outermost first; axes of extent 1 are none.
        of: the loop of each variable.
        positions: of all loads.
        reductions: all reductions of the stage, those inside of others first.
    """

    def __init__(self, stage: Stage) -> None:
        nodes = walk(*stage.roots)
        self.positions = {node: position(node) for node in nodes if isinstance(node, Load)}
        self.reductions = [node for node in nodes if isinstance(node, Reduce)]
        self._rigid = set(_used_as_numbers(stage, self.positions))
        self.of: dict[Index, Loop] = {}
        self.axes = self._fused(stage.axes)
        for node in self.reductions:
            if not all(variable in self.of for variable in node.variables if variable.extent > 1):
                self._fused(node.variables)

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the loops; one of 1 if there are none, as Halide takes very long for some scalars."""
        return tuple(loop.extent for loop in self.axes) or (1,)

    def over(self, variables: Iterable[Index]) -> tuple[Loop, ...]:
        """The loops of variables, each once."""
        return tuple(dict.fromkeys(self.of[variable] for variable in variables if variable.extent > 1))

    def factor(self, node: Load, loop: Loop) -> int:
        """How far a load moves with a step of a loop; for those that are fused, this is all there is to know."""
        return self.positions[node].variables.get(loop.members[-1], 0)

    def _fused(self, variables: Sequence[Index]) -> tuple[Loop, ...]:
        groups: list[list[Index]] = []
        for variable in variables:
            if variable.extent == 1:
                continue
            if groups and self._move_together(groups[-1][-1], variable):
                groups[-1].append(variable)
            else:
                groups.append([variable])
        loops = tuple(Loop(tuple(group)) for group in groups)
        self.of.update({variable: loop for loop in loops for variable in loop.members})
        return loops

    def _move_together(self, outer: Index, inner: Index) -> bool:
        if outer in self._rigid or inner in self._rigid:
            return False
        if any((outer in node.free) != (inner in node.free) for node in self.reductions):
            return False
        return all(
            place.variables.get(outer, 0) == inner.extent * place.variables.get(inner, 0)
            for place in self.positions.values()
        )


def _used_as_numbers(stage: Stage, positions: Mapping[Load, Position]) -> Iterator[Index]:
    """Variables whose value is used otherwise than to move through memory."""
    waiting: list[Expr] = list(stage.roots)
    seen: set[Expr] = set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, Index):
            yield node
        elif isinstance(node, Load):
            waiting.extend(index for index, _ in positions[node].others)
        else:
            waiting.extend(node.parts)
