"""Divide programs into stages: loop nests that compute every element of one shape once.

Each stage becomes one compiled function. Separate stages compute stored arrays, and reductions that would otherwise be
recomputed: those that depend on the variable of another reduction, or do not depend on an outer loop. Arrays are flat:
the position of an element is a linear sum of variables (`linear`), and axes that are contiguous in all loads are fused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...core.guards import estimate
from ...core.sizes import Size
from ...support.records import record
from ..ir import Call, Cast, Check, Expr, Formula, Index, Load, Output, Reduce, Stored, size_of, substitute, unify, walk
from ..linear import place
from ..reductions import COMBINE, split, stored_value, unroll_short
from ..vocabulary import DEAR

MAX_UNROLLED_POSITIONS = 32
"""Reductions over up to this many positions are unrolled."""

MAX_UNROLLED_NODES = 2000
"""Maximum size of an unrolled reduction: Halide's compile time grows with it."""

MIN_SPLIT_ELEMENTS = 1 << 16
"""Reductions of at least this many elements are divided into parts that run in parallel, if they have few results."""

MAX_SPLIT_RESULTS = 8
"""The largest number of results of a reduction to divide. With more, the reduction is parallel over its results instead."""

MAX_ROW_ELEMENTS = 1 << 15
"""Rows up to this size stay in the cache (128 KB of float32)."""


@record(slots=False)
class StoreTarget:
    """An array that a stage writes; `body` is the element, rewritten for the stage."""

    source: Stored | Output
    body: Expr


@record(slots=False)
class Stage:
    """A loop nest that computes one element of each target; the last one of `axes` changes fastest.

    `rows` are values kept for one iteration of the outer loops, because both a reduction and the elements use them.
    """

    axes: tuple[Index, ...]
    targets: tuple[StoreTarget, ...]
    rows: tuple[Stored, ...] = ()

    @property
    def roots(self) -> tuple[Expr, ...]:
        return (*(row.body for row in self.rows), *(target.body for target in self.targets))


def divide(program: Formula) -> tuple[Stage, ...]:
    """Divide a program into stages, in the order in which they run."""
    return tuple(_Division(program).stages)


def checks_of(program: Formula) -> Formula | None:
    """The program that computes whether each check holds, as a uint8 of shape (); None if there are no checks."""
    if not program.checks:
        return None
    outputs = tuple(Output((), _holds(check)) for check in program.checks)
    return Formula(program.name, program.inputs, outputs)


def _holds(check: Check) -> Expr:
    holds: Expr = Cast(check.condition, "uint8")
    variables = tuple(sorted(check.condition.free, key=lambda variable: (variable.axis, variable.serial)))
    return Reduce("min", variables, holds) if variables else holds


class _Division:
    def __init__(self, program: Formula) -> None:
        self.stages: list[Stage] = []
        self.replaced: dict[Expr, Expr] = {}
        for stored in program.stored:
            self._add(stored.axes, [stored])
        groups: dict[tuple[Index, ...], list[Output]] = {}
        for output in program.outputs:
            groups.setdefault(output.axes, []).append(output)
        for axes, outputs in groups.items():
            self._add(axes, outputs)

    def _add(self, axes: tuple[Index, ...], arrays: Sequence[Stored | Output]) -> None:
        """Add a stage that writes arrays with these axes, after the stages that it needs."""
        bodies = unroll_short([array.body for array in arrays], _is_small)
        bodies = unify(*self._without_repetition(axes, bodies))
        rows, bodies = _with_rows(axes, bodies)
        self.stages.append(Stage(axes, tuple(map(StoreTarget, arrays, bodies)), rows))

    def _without_repetition(self, axes: tuple[Index, ...], bodies: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Move reductions that would be recomputed into separate stages."""
        while True:
            reductions = [node for node in walk(*bodies) if isinstance(node, Reduce)]
            order = [axis for axis in loop_order(axes, reductions) if axis.extent != 1]
            chosen = next((n for n in reductions if _worth_dividing(n) or _is_repeated(n, order)), None)
            if chosen is None:
                return bodies
            value = self._load_of(chosen)
            bodies = tuple(substitute(body, {chosen: value}) for body in bodies)

    def _load_of(self, node: Reduce) -> Expr:
        load = self.replaced.get(node)
        if load is None:
            load = self.replaced[node] = self._in_parts(node) if _worth_dividing(node) else self._store(node)
        return load

    def _store(self, node: Reduce) -> Expr:
        kept = stored_value(node)
        self._add(kept.axes, [kept])
        return Load(kept, kept.axes)

    def _in_parts(self, node: Reduce) -> Expr:
        """Reduce parts in parallel, then reduce their results."""
        first = node.variables[0]
        parts = split(first, _parts(first.extent))
        body = parts.mask(node, first)
        partial = self._store(Reduce(node.reduction, (parts.position, *node.variables[1:]), body))
        return Reduce(node.reduction, (parts.part,), partial)


def _with_rows(axes: tuple[Index, ...], bodies: tuple[Expr, ...]) -> tuple[tuple[Stored, ...], tuple[Expr, ...]]:
    """Keep rows of expensive values that are both reduced and used per element, such as the exponentials of softmax."""
    for node in walk(*bodies):
        if not isinstance(node, Reduce) or not axes or len(node.variables) != 1 or not _is_dear(node.body):
            continue
        (variable,), last = node.variables, axes[-1]
        if variable.extent != last.extent or last in node.free or last.extent == 1:
            continue
        if estimate(last.extent) > MAX_ROW_ELEMENTS:
            continue
        *same, element = unify(*bodies, substitute(node.body, {variable: last}))
        inside = {part for part in walk(*same) if isinstance(part, Reduce) and part.variables == node.variables}
        matches = {part for part in inside if part.reduction == node.reduction and part.free == node.free}
        if element not in walk(*same) or element.free != node.free | {last} or len(matches) != 1:
            continue
        (reduction,) = matches
        outer = tuple(axis for axis in axes[:-1] if axis in node.free)
        row = Stored((*outer, last), element)
        loaded = reduction.rebuild((Load(row, (*outer, variable)),))
        values: dict[Expr, Expr] = {element: Load(row, (*outer, last)), reduction: loaded}
        return (row,), tuple(substitute(body, values) for body in same)
    return (), bodies


def _is_dear(body: Expr) -> bool:
    """Whether `body` calls expensive functions outside of reductions."""
    nodes = walk(body, enter=lambda node: () if isinstance(node, Reduce) else node.parts)
    return any(isinstance(node, Call) and node.name in DEAR for node in nodes)


def _parts(extent: int) -> int:
    """The number of parts to split an extent into: at most 64, preferably a divisor of the extent."""
    if isinstance(extent, Size):
        return 64
    most_parts = min(extent, 64)
    return next((count for count in range(most_parts, most_parts // 4, -1) if extent % count == 0), most_parts)


def _worth_dividing(node: Reduce) -> bool:
    results = estimate(size_of(node.free))
    positions = estimate(size_of(node.variables))
    divisible = node.reduction in COMBINE and estimate(node.variables[0].extent) >= 8
    return divisible and results <= MAX_SPLIT_RESULTS and positions * results >= MIN_SPLIT_ELEMENTS


def _is_small(node: Reduce) -> bool:
    if node.reduction.startswith("arg_") or any(isinstance(n, Reduce) for n in walk(node.body)):
        return False
    positions = size_of(node.variables)
    if isinstance(positions, Size):
        return False
    return positions <= MAX_UNROLLED_POSITIONS and positions * len(walk(node.body)) <= MAX_UNROLLED_NODES


def loop_order(axes: Sequence[Index], reductions: Sequence[Reduce]) -> list[Index]:
    """Axes, outermost first: those that most reductions depend on, so that the inner loops do not recompute them."""
    return sorted(axes, key=lambda axis: -sum(axis in node.free for node in reductions))


def _is_repeated(node: Reduce, order: Sequence[Index]) -> bool:
    """Whether a reduction would be recomputed, because it does not depend on exactly the outermost loops."""
    free = {variable for variable in node.free if variable.extent != 1}
    return free != set(order[: len(free)]) or (not free and bool(order))


# ---------------------------------------------------------------------------------------------------------------------
# Loops


@record(slots=False)
class StageLoop:
    """Fused axes that form one loop; the last one changes fastest."""

    members: tuple[Index, ...]

    @property
    def extent(self) -> int:
        return size_of(self.members)


class Loops:
    """The loops of a stage, and the positions of its loads.

    Attributes:
        axes: the loops over the elements, outermost first, without axes of extent 1.
        of: the loop of each variable.
        reductions: all reductions of the stage, inner ones first.
    """

    def __init__(self, stage: Stage) -> None:
        nodes = walk(*stage.roots)
        self.positions = {node: place(node) for node in nodes if isinstance(node, Load)}
        self.reductions = [node for node in nodes if isinstance(node, Reduce)]
        # Variables whose value is used in computation, not only as a position.
        numbers = walk(*stage.roots, enter=self.operands_of)
        self._rigid = {node for node in numbers if isinstance(node, Index)}
        self.of: dict[Index, StageLoop] = {}
        self.axes = self._fuse(stage.axes)
        for node in self.reductions:
            if not all(variable in self.of for variable in node.variables if variable.extent != 1):
                self._fuse(node.variables)

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the loops; (1,) for scalars, because Halide compiles some scalars very slowly."""
        return tuple(loop.extent for loop in self.axes) or (1,)

    def operands_of(self, node: Expr) -> Sequence[Expr]:
        """The operands of a node; for a load, the terms of its position that are not variables."""
        return self.positions[node].others if isinstance(node, Load) else node.parts

    def over(self, variables: Iterable[Index]) -> tuple[StageLoop, ...]:
        """The loops of variables, each once."""
        return tuple(dict.fromkeys(self.of[variable] for variable in variables if variable.extent != 1))

    def factor(self, node: Load, loop: StageLoop) -> int:
        """The stride of a load along a loop."""
        return self.positions[node].terms.get(loop.members[-1], 0)

    def _fuse(self, variables: Sequence[Index]) -> tuple[StageLoop, ...]:
        groups: list[list[Index]] = []
        for variable in variables:
            if variable.extent == 1:
                continue
            if groups and self._move_together(groups[-1][-1], variable):
                groups[-1].append(variable)
            else:
                groups.append([variable])
        loops = tuple(StageLoop(tuple(group)) for group in groups)
        self.of.update({variable: loop for loop in loops for variable in loop.members})
        return loops

    def _move_together(self, outer: Index, inner: Index) -> bool:
        if outer in self._rigid or inner in self._rigid:
            return False
        if any((outer in node.free) != (inner in node.free) for node in self.reductions):
            return False
        return all(
            position.terms.get(outer, 0) == inner.extent * position.terms.get(inner, 0)
            for position in self.positions.values()
        )
