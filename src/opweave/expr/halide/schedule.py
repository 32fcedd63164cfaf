"""The schedule of a stage: loop order, vectors, threads."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .mathematics import hl
from .reduction import GUARD, Reduction
from .stages import Loop

if TYPE_CHECKING:
    from .nest import Nest

MAX_SERIAL_ELEMENTS = 16384
"""Elements that one thread computes in less time than it takes to wake another."""

TASK_OPERATIONS = 1 << 18
"""Operations per parallel task, so that its start-up cost is negligible."""

ACCESS_OPERATIONS = 8
"""Cost of loading and storing an element, in operations."""

MIN_TASK_ELEMENTS = 4096
"""Minimum size of a parallel task."""

_TILE_ROWS = (4, 5, 6, 3, 2)
"""Rows of a tile, in order of preference: their accumulators must fit into the vector registers."""

_serials = itertools.count()


def variable() -> Any:
    """A Halide variable with a unique name."""
    return hl.Var(f"step{next(_serials)}")


class Schedule:
    """The loop order, vectorisation and parallelisation of a nest."""

    def __init__(self, nest: Nest) -> None:
        self.nest, self.function = nest, nest.function
        self.loops = nest.loops.axes
        self.variables = nest.variables
        self.vector = nest.lanes
        self.reductions = list(nest.reductions.values())
        if not self.loops:
            for reduction in self.reductions:
                self._compute_at(reduction, None)
        elif self.reductions:
            self._with_reductions()
        else:
            self._pointwise()

    # Without reductions ----------------------------------------------------------------------------------------------

    def _pointwise(self) -> None:
        f, loops = self.function, self.loops
        last = loops[-1]
        steps: list[Any] = [self.variables[loop] for loop in loops]
        if last.extent <= 4 and len(loops) > 1:  # colour channels: vectorise along the pixels
            f.bound(steps[-1], 0, last.extent).unroll(steps[-1])
            along = len(loops) - 2
        else:
            along = len(loops) - 1
        total = math.prod(loop.extent for loop in loops)
        if total > MAX_SERIAL_ELEMENTS:
            elements = TASK_OPERATIONS // (ACCESS_OPERATIONS + self.nest.operations)
            steps[along] = self._parallel(steps, along, max(elements, MIN_TASK_ELEMENTS))
        self._vectorize(f, steps[along], loops[along], total > MAX_SERIAL_ELEMENTS)

    def _vectorize(self, stage: Any, step: Any, loop: Loop, is_divided: bool = False) -> None:
        """Vectorise a loop, unless it is read backwards and has a partial vector, which Halide cannot compile."""
        if not self.nest.is_reversed(loop) or (loop.extent % self.vector == 0 and not is_divided):
            stage.vectorize(step, self.vector, GUARD)

    def _parallel(self, steps: list[Any], along: int, grain: int) -> Any:
        """Divide the elements into tasks of about `grain` elements; return the inner part of the loop `along`."""
        f, loops = self.function, self.loops
        inside, at = 1, len(loops) - 1
        while at > along or (at > 0 and inside * loops[at].extent < grain):
            inside *= loops[at].extent
            at -= 1
        count = _chunk(loops[at].extent, -(-grain // inside), self.vector if at == along else 1)
        inner = steps[at]
        tasks = steps[:at]
        if count < loops[at].extent:
            outer, inner = variable(), variable()
            f.split(steps[at], outer, inner, count, GUARD)
            tasks.append(outer)
        if tasks:
            f.parallel(self._fused(tasks))
        return inner if at == along or not tasks else steps[along]

    def _fused(self, steps: list[Any]) -> Any:
        """Fuse nested loops, outermost first, into one."""
        task, *others = reversed(steps)
        for step in others:
            fused = variable()
            self.function.fuse(task, step, fused)
            task = fused
        return task

    # With reductions -------------------------------------------------------------------------------------------------

    def _with_reductions(self) -> None:
        f, last = self.function, self.loops[-1]
        order = sorted(self.loops, key=lambda loop: -sum(loop in r.loops for r in self.reductions))
        dependent = [r for r in self.reductions if last in r.loops]
        columnar = bool(dependent) and all(r.is_columnar for r in dependent)
        level = {loop: self.variables[loop] for loop in order}  # where to compute functions that depend on a loop
        inner: list[Any] = []  # the innermost variables
        rows = 0
        if columnar:
            width = self._width(last.extent)
            rows = self._rows(order)
            if rows:
                outer, tile = variable(), variable()
                f.split(level[order[-2]], outer, tile, rows, GUARD)
                level[order[-2]] = outer
                inner.append(tile)
            outer, along = variable(), variable()
            f.split(level[last], outer, along, width, GUARD)
            level[last] = outer
            inner.append(along)
            f.reorder(*reversed(inner), *(level[loop] for loop in reversed(order)))
            self._vectorize(f, along, last, last.extent % width != 0)
        else:
            f.reorder(*(level[loop] for loop in reversed(order)))
            if not dependent:
                self._vectorize(f, level[last], last)
        self._parallel_rows(order, level, last if not columnar else None, dependent, rows)
        self._compute_rows(order, level)
        for reduction in self.reductions:
            deepest = next(loop for loop in reversed(order) if loop in reduction.loops)
            self._compute_at(reduction, level[deepest])
            if reduction.is_columnar and columnar and last in reduction.loops:
                self._columns(reduction, order, rows, last)

    def _width(self, extent: int) -> int:
        """Number of adjacent results computed together: as many vectors as divide the extent, up to four."""
        return next((n * self.vector for n in (4, 3, 2) if extent % (n * self.vector) == 0), self.vector)

    def _rows(self, order: Sequence[Loop]) -> int:
        """Number of result rows computed together because they share loads; 0 for no tiling."""
        if len(order) < 2 or order[-1] is not self.loops[-1]:
            return 0
        deep = [r for r in self.reductions if order[-2] in r.loops and order[-1] in r.loops]
        loops = self.nest.loops
        shared = any(
            loops.factor(load, order[-2]) == 0 and not loops.positions[load].others for r in deep for load in r.loads
        )
        if not shared or any(order[-2] in r.loops and r not in deep for r in self.reductions):
            return 0
        return next((n for n in _TILE_ROWS if order[-2].extent % n == 0), 0)

    def _parallel_rows(
        self,
        order: Sequence[Loop],
        level: dict[Loop, Any],
        vectorized: Loop | None,
        dependent: Sequence[Any],
        rows: int,
    ) -> None:
        f = self.function
        total = math.prod(loop.extent for loop in order) * (1 + self.nest.operations)
        total += sum(math.prod(loop.extent for loop in r.loops) * r.size * 2 for r in self.reductions)
        first = order[0]
        if total <= MAX_SERIAL_ELEMENTS * 4 or (vectorized is first and not dependent):
            return
        extent = first.extent
        if first is order[-2:][0] and rows and len(order) == 2:
            extent //= rows
        if first is self.loops[-1] and vectorized is None:
            extent = -(-extent // self._width(first.extent))
        count = max(1, min(-(-TASK_OPERATIONS // max(total // extent, 1)), extent // 4))
        if count > 1:
            outer, inner = variable(), variable()
            f.split(level[first], outer, inner, count, GUARD)
            level[first] = inner
            f.parallel(outer)
        else:
            f.parallel(level[first])

    def _compute_rows(self, order: Sequence[Loop], level: Mapping[Loop, Any]) -> None:
        for function, (*outer, last) in self.nest.rows.values():
            deepest = next(loop for loop in reversed(order) if loop in outer)
            function.compute_at(self.function, level[deepest])
            self._vectorize(function, self.variables[last], last)

    def _compute_at(self, reduction: Reduction, step: Any) -> None:
        for function in (reduction.total, *reduction.helpers):
            if step is None:
                function.compute_root()
            else:
                function.compute_at(self.function, step)

    def _columns(self, reduction: Reduction, order: Sequence[Loop], rows: int, last: Loop) -> None:
        """Vectorise across results; the reduction loops are outside."""
        f, along = reduction.total, self.variables[last]
        whole = last.extent % self._width(last.extent) == 0
        near = [order[-2], last] if rows and order[-2] in reduction.loops else [last]
        inner = [self.variables[loop] for loop in reversed(near)]
        outer = [self.variables[loop] for loop in reversed(reduction.loops) if loop not in near]
        self._vectorize(f, along, last, not whole)
        update = f.update()
        update.reorder(*inner, *reduction.domain, *outer)
        self._vectorize(update, along, last, not whole)
        if whole:
            update.unroll(along)
            for step in inner[1:]:
                update.unroll(step)


def _chunk(extent: int, wanted: int, multiple: int) -> int:
    """The size of a task: about `wanted`, a multiple of vectors, and preferably a divisor of the extent."""
    if wanted >= extent:
        return extent
    wanted = -(-wanted // multiple) * multiple
    candidates = range(wanted, min(2 * wanted, extent), multiple)
    return next((size for size in candidates if extent % size == 0), wanted)
