"""The schedule of a stage: loop order, vectors, threads."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...core.guards import estimate
from ...core.size_functions import larger
from ...core.sizes import Size
from ..ir import Call, Cast, Expr, walk
from ..vocabulary import DEAR
from .mathematics import hl
from .reduction import GUARD, Reduction
from .stages import StageLoop

if TYPE_CHECKING:
    from .nest import Nest

TASK_OPERATIONS = 1 << 18
"""Operations per parallel task: 10 to 20 us, longer than waking a thread takes. Halide wakes one thread for each task, so
small loops wake few threads on any machine, and loops with less work than two tasks none."""

MAX_UNROLLED = 4
"""Maximum extent of a last loop that is unrolled: the channels of colours."""

MAX_HOISTED = 32
"""Maximum number of operations that depend on an unrolled loop alone, an estimate. Halide hoists them from other loops: the
60 of a linear `grid_sample` take it 1 s instead of 0.2 s, the 124 of a cubic one minutes."""

ACCESS_OPERATIONS = 8
"""Cost of loading and storing an element, in operations."""

DEAR_OPERATIONS = 12
"""Cost of a function that is computed by a polynomial, such as `exp`, in operations: about one for each step."""

MIN_TASK_ELEMENTS = 4096
"""Minimum size of a parallel task."""

_TILE_ROWS = (4, 5, 6, 3, 2)
"""Rows of a tile, in order of preference: their accumulators must fit into the vector registers."""

_serials = itertools.count()


def task_count(operations: int) -> int:
    """The number of tasks to divide a loop into, by its work alone; 1 if the calling thread runs the loop.

    The number is a power of two, so that two, four or eight processors have the same number of tasks each.

    >>> [task_count(operations) for operations in (1000, 500_000, 600_000, 800_000, 100_000_000)]
    [1, 1, 2, 2, 256]
    """
    return 1 << max(0, (operations // TASK_OPERATIONS).bit_length() - 1)


def operations(*roots: Expr) -> int:
    """The number of operations to compute expressions once, without loads."""
    calls = [node for node in walk(*roots) if isinstance(node, (Call, Cast))]
    return sum(DEAR_OPERATIONS if isinstance(node, Call) and node.name in DEAR else 1 for node in calls)


def variable() -> Any:
    """A Halide variable with a unique name."""
    return hl.Var(f"step{next(_serials)}")


class LoopSchedule:
    """The loop order, vectorisation and parallelisation of a nest.

    Attributes:
        order: the loops, outermost first: those that most reductions depend on, then the others.
        level: the variable of each loop at which functions that depend on the loop are computed.
        width: number of adjacent results computed together: up to four vectors, if they divide the extent.
        rows: number of rows of a tile; 0 for no tiling.
        streams: number of results along the last loop whose reductions run at the same time; 0 if each runs alone.
    """

    def __init__(self, nest: Nest) -> None:
        self.nest, self.function = nest, nest.function
        self.loops, self.variables, self.vector = nest.loops.axes, nest.variables, nest.lanes
        self.reductions = list(nest.reductions.values())
        if not self.loops:
            for function in (f for reduction in self.reductions for f in reduction.functions):
                function.compute_root()
        elif self.reductions:
            self.order = sorted(self.loops, key=lambda loop: -sum(loop in r.loops for r in self.reductions))
            self.level = dict(self.variables)
            vectors = (n * self.vector for n in (4, 3, 2))
            self.width = next((w for w in vectors if self.loops[-1].extent % w == 0), self.vector)
            self.rows = self.streams = 0
            self._with_reductions()
        else:
            self._pointwise()

    def _split(self, step: Any, count: int) -> tuple[Any, Any]:
        """Split a loop into blocks of `count`; return the loops over the blocks, and inside of a block."""
        outer, inner = variable(), variable()
        self.function.split(step, outer, inner, self.nest.sizes.number(count), GUARD)
        return outer, inner

    def _vectorize(self, stage: Any, step: Any, loop: StageLoop, is_divided: bool = False) -> None:
        """Vectorise a loop or a part of it, unless it is read backwards with a partial vector, which Halide cannot compile."""
        if not self.nest.is_reversed(loop) or (loop.extent % self.vector == 0 and not is_divided):
            stage.vectorize(step, self.vector, GUARD)

    # Without reductions ----------------------------------------------------------------------------------------------

    def _pointwise(self) -> None:
        f, loops = self.function, self.loops
        along = len(loops) - 1
        steps: list[Any] = [self.variables[loop] for loop in loops]
        if len(loops) > 1 and self._is_unrolled(loops[-1]):  # colour channels: vectorise along the pixels
            f.bound(steps[-1], 0, loops[-1].extent).unroll(steps[-1])
            along -= 1
        operations, count = ACCESS_OPERATIONS + self.nest.operations, math.prod(loop.extent for loop in loops)
        grain = max(TASK_OPERATIONS // operations, MIN_TASK_ELEMENTS)
        if isinstance(count, Size):
            self._open_pointwise(steps, along, grain)
            return
        is_parallel = task_count(count * operations) > 1
        if is_parallel:
            steps[along] = self._parallel(steps, along, grain)
        self._vectorize(f, steps[along], loops[along], is_parallel)

    def _is_unrolled(self, loop: StageLoop) -> bool:
        if isinstance(loop.extent, Size) or loop.extent > MAX_UNROLLED:
            return False
        own = {variable for variable, other in self.nest.loops.of.items() if other is loop}
        nodes = (node for node in walk(*self.nest.roots) if isinstance(node, (Call, Cast)))
        return sum(own.issuperset(v for v in node.free if v.extent != 1) for node in nodes) <= MAX_HOISTED

    def _open_pointwise(self, steps: list[Any], along: int, grain: int) -> None:
        """Vectorise, and divide the elements into tasks by sizes that are known only at a run.

        The loop over vectors is divided rather than the one over elements: parts of any size have no vectors to guard.
        """
        unit = 1 if self.nest.is_reversed(self.loops[along]) else self.vector
        if unit > 1:
            steps[along], lanes = self._split(steps[along], unit)
            self.function.vectorize(lanes)
        self._parallel(steps, along, grain, unit)

    def _parallel(self, steps: list[Any], along: int, grain: int, unit: int = 0) -> Any:
        """Divide the elements into tasks of about `grain` elements; return the inner part of the loop `along`.

        The loop `along` has steps of `unit` elements; 0 if it is not vectorised yet.
        """
        loops = self.loops
        # Divide the loop `at`. A task contains the loops inside of `at`, which have `inside` elements.
        inside, at = 1, len(loops) - 1
        while at > along or (at > 0 and inside * estimate(loops[at].extent) < grain):
            inside *= estimate(loops[at].extent)
            at -= 1
        extent = loops[at].extent
        inner, tasks = steps[at], steps[:at]
        if at == along and unit:
            extent, inside = -(-extent // unit), inside * unit
        if isinstance(extent, Size):
            count = _part_of(extent, math.prod(loop.extent for loop in loops[at:]), grain)
        else:
            count = _chunk(extent, -(-grain // inside), self.vector if at == along and not unit else 1)
        if isinstance(count, Size) or count < extent:
            outer, inner = self._split(inner, count)
            tasks.append(outer)
        if tasks:
            task, *others = reversed(tasks)
            for step in others:
                fused = variable()
                self.function.fuse(task, step, fused)
                task = fused
            self.function.parallel(task)
        return inner if at == along else steps[along]

    # With reductions -------------------------------------------------------------------------------------------------

    def _with_reductions(self) -> None:
        f, last, level = self.function, self.loops[-1], self.level
        dependent = [r for r in self.reductions if last in r.loops]
        columnar = bool(dependent) and all(r.is_columnar for r in dependent)
        tile: list[Any] = []
        if columnar:
            self.rows = self._count_rows()
            for loop, size in ((self.order[-2:][0], self.rows), (last, self.width)):  # no rows if there is one loop
                if size:
                    level[loop], inner = self._split(level[loop], size)
                    tile.append(inner)
        elif any(r.streams for r in dependent):
            self.streams = max(r.streams for r in dependent)
            level[last], inner = self._split(level[last], self.streams)
            tile.append(inner)
        f.reorder(*reversed(tile), *(level[loop] for loop in reversed(self.order)))
        if columnar:
            self._vectorize(f, tile[-1], last, last.extent % self.width != 0)
        elif not dependent:
            self._vectorize(f, level[last], last)
        if dependent or self.order[0] is not last:  # not along vectors
            self._parallel_rows(columnar)
        for function, (*outer, along) in self.nest.rows.values():
            function.compute_at(f, self._deepest(outer))
            if isinstance(along.extent, Size):  # memory for each task rather than for each row
                function.store_in(hl.MemoryType.Stack)
            self._vectorize(function, self.variables[along], along)
        for reduction in self.reductions:
            for function in reduction.functions:
                function.compute_at(f, self._deepest(reduction.loops))
            if reduction.is_columnar and columnar and last in reduction.loops:
                self._columns(reduction)

    def _deepest(self, loops: Sequence[StageLoop]) -> Any:
        """The level of the innermost of some loops."""
        return self.level[next(loop for loop in reversed(self.order) if loop in loops)]

    def _count_rows(self) -> int:
        """Number of result rows to compute together, because they share loads; 0 for no tiling."""
        if len(self.order) < 2 or self.order[-1] is not self.loops[-1]:
            return 0
        row, last = self.order[-2:]
        deep = [r for r in self.reductions if row in r.loops and last in r.loops]
        loops = self.nest.loops
        shared = any(loops.factor(load, row) == 0 and not loops.operands_of(load) for r in deep for load in r.loads)
        if not shared or any(row in r.loops and r not in deep for r in self.reductions):
            return 0
        return next((n for n in _TILE_ROWS if row.extent % n == 0), 0)

    def _parallel_rows(self, columnar: bool) -> None:
        """Divide the outermost loop into tasks."""
        f, first = self.function, self.order[0]
        total = math.prod(loop.extent for loop in self.order) * (1 + self.nest.operations)
        for reduction in self.reductions:
            results = math.prod(loop.extent for loop in reduction.loops)
            total += results * reduction.size * (2 + operations(reduction.node.body))
        tasks = task_count(estimate(total))
        if tasks == 1 and not isinstance(first.extent, Size):
            return
        unit = self.rows if self.rows and len(self.order) == 2 else 1
        if first is self.loops[-1]:
            unit = self.width if columnar else self.streams or unit
        steps = -(-first.extent // unit)
        count = _part_of(steps, total, TASK_OPERATIONS) if isinstance(steps, Size) else -(-steps // tasks)
        task = self.level[first]
        if isinstance(count, Size) or count > 1:
            task, self.level[first] = self._split(task, count)
        f.parallel(task)

    def _columns(self, reduction: Reduction) -> None:
        """Vectorise across results; the reduction loops are outside."""
        last = self.loops[-1]
        f, along = reduction.total, self.variables[last]
        whole = last.extent % self.width == 0
        near = [self.order[-2], last] if self.rows and self.order[-2] in reduction.loops else [last]
        inner = [self.variables[loop] for loop in reversed(near)]
        outer = [self.variables[loop] for loop in reversed(reduction.loops) if loop not in near]
        self._vectorize(f, along, last, not whole)
        update = f.update()
        update.reorder(*inner, *reduction.domain, *outer)
        self._vectorize(update, along, last, not whole)
        if whole:
            for step in inner:
                update.unroll(step)


def _part_of(extent: int, total: int, grain: int) -> int:
    """The part of an extent that is a task, if the whole extent is `total`, and a task at least `grain`."""
    return -(-extent // larger(1, total // grain))


def _chunk(extent: int, wanted: int, multiple: int) -> int:
    """The size of a task: about `wanted`, a multiple of `multiple`, and preferably a divisor of `extent`."""
    if wanted >= extent:
        return extent
    wanted = -(-wanted // multiple) * multiple
    candidates = range(wanted, min(2 * wanted, extent), multiple)
    return next((size for size in candidates if extent % size == 0), wanted)
