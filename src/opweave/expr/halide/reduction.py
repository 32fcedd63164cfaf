"""Reductions as Halide functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...core.dtypes import INFO
from ...core.guards import estimate
from ...core.sizes import Size
from ..ir import Load, Reduce, walk
from . import elements
from .mathematics import HalideExpr, hl
from .scope import LoopScope
from .stages import StageLoop

if TYPE_CHECKING:
    from .nest import Nest

_STREAMS = (8, 4, 6, 5, 7, 3, 2)
"""Numbers of rows to read at the same time, in order of preference. Processors prefetch each row separately, so a single row
leaves much of the memory bandwidth unused. The sums of 8 rows fit into the registers of AVX2."""

PREFETCHED_BYTES = 2**22
"""Minimum size of arrays to prefetch, if they are read once: smaller ones stay in the cache of a core between runs."""

PREFETCH_BYTES = 2048
"""Prefetch distance: the bytes that a core reads at 20 GB/s during a memory latency of 100 ns."""

GUARD = hl.TailStrategy.GuardWithIf  # the default computes some elements twice, which is wrong in place


class Reduction:
    """The Halide functions of a reduction.

    Sums are vectorised across the results ("columnar") if neighbouring results read neighbouring elements, else along the
    reduction. Along the reduction, several vector accumulators are added at the end, so errors grow with the number of
    steps rather than elements.

    Attributes:
        streams: number of neighbouring results that are computed together, along the reduction; 0 for one at a time.
    """

    def __init__(self, nest: Nest, node: Reduce, name: str) -> None:
        self._nest, self.node = nest, node
        self._is_arg = node.reduction.startswith("arg_")
        loops = nest.loops
        self.over = loops.over(node.variables)
        self.loops = tuple(loop for loop in loops.axes if any(member in node.free for member in loop.members))
        self.size = math.prod(loop.extent for loop in self.over)
        self.loads = [n for n in walk(node.body) if isinstance(n, Load)]
        self.is_columnar = self._moves(loops.axes[-1]) if loops.axes and loops.axes[-1] in self.loops else False
        self.streams = 0 if self.is_columnar else self._count_streams(loops.axes)
        self.lanes = 0 if self.is_columnar else self._count_lanes()
        self._variables = {loop: nest.variables[loop] for loop in self.loops}
        self._arguments = [self._variables[loop] for loop in reversed(self.loops)]
        self.total = hl.Func(name)
        self.functions = [self.total]
        if self.lanes:
            self._define_in_lanes(name)
        else:
            self._define()

    def at(self, positions: Mapping[StageLoop, HalideExpr]) -> HalideExpr:
        """The result at the given loop positions."""
        result = self.total[[positions[loop] for loop in reversed(self.loops)]]
        return hl.Expr(result[1] if self._is_arg else result)

    def _moves(self, last: StageLoop) -> bool:
        """Whether neighbouring results read neighbouring elements, or no loop reads contiguously."""
        loops = self._nest.loops
        if any(loops.factor(load, last) == 1 for load in self.loads):
            return True
        return not any(loops.factor(load, self.over[-1]) == 1 for load in self.loads) if self.over else True

    def _count_streams(self, axes: Sequence[StageLoop]) -> int:
        """The value of `streams`: several results are computed together if they share a load, as in a row times a matrix."""
        if not axes or axes[-1] not in self.loops or not self.over or self._is_arg:
            return 0
        if estimate(self.over[-1].extent) < self._nest.lanes:
            return 0
        loops, last = self._nest.loops, axes[-1]
        is_shared = any(loops.factor(load, last) == 0 and not loops.operands_of(load) for load in self.loads)
        return next((count for count in _STREAMS if last.extent % count == 0), 0) if is_shared else 0

    def _count_lanes(self) -> int:
        if not self.over:
            return 0
        if self.streams:
            return self._nest.lanes
        extent, vector = estimate(self.over[-1].extent), self._nest.lanes
        if isinstance(self.over[-1].extent, Size):
            extent = max(extent, vector)  # a short first run says little
        return next((n * vector for n in (4, 2, 1) if n * vector <= extent), 0)

    def _define(self) -> None:
        number = self._nest.sizes.number
        domain = hl.RDom([(0, number(loop.extent)) for loop in reversed(self.over)]) if self.over else []
        self.domain = [domain[k] for k in range(len(self.over))]
        positions = dict(zip(reversed(self.over), self.domain, strict=True))
        self.total[self._arguments] = self._neutral()
        self._reduce(self.total, self._arguments, positions, self.domain[0] if self.domain else None)

    def _define_in_lanes(self, name: str) -> None:
        """Lane `k` reduces the elements `k`, `k + lanes`, `k + 2 * lanes`, …; the lanes are reduced at the end."""
        last, others, arguments = self.over[-1], self.over[:-1], self._arguments
        vector = self._nest.lanes
        sizes = self._nest.sizes
        steps = last.extent // self.lanes
        remainder = last.extent - steps * self.lanes
        lane = hl.Var("lane")
        lanes = hl.Func(f"{name}_lanes")
        lanes[[lane, *arguments]] = self._neutral()

        def reduce(extent: int, lane_of: Callable[[Any], Any], place: Callable[[Any], HalideExpr]) -> Any:
            """Reduce the element at `place(step)` into the lane `lane_of(step)`, for `extent` steps; return the variables."""
            domain = hl.RDom(
                [(0, sizes.number(size)) for size in (extent, *(loop.extent for loop in reversed(others)))]
            )
            positions = {loop: domain[k + 1] for k, loop in enumerate(reversed(others))}
            positions[last] = place(domain[0])
            self._reduce(lanes, [lane_of(domain[0]), *arguments], positions, positions[last])
            return domain

        domain = reduce(steps, lambda _: lane, lambda step: step * self.lanes + lane)
        lanes.bound(lane, 0, self.lanes).vectorize(lane, vector)
        update, steps_outwards = lanes.update(0), [domain[k] for k in range(len(self.over))]
        if self.streams:
            lanes.bound_extent(arguments[0], self.streams)
            update.reorder(lane, arguments[0], *steps_outwards, *arguments[1:]).unroll(arguments[0])
            self._prefetch(update, arguments[0], domain[0])
        else:
            update.reorder(lane, *steps_outwards, *arguments)
        update.vectorize(lane, vector).unroll(lane)
        if remainder != 0:
            domain = reduce(remainder, lambda step: step, lambda step: sizes.i32(steps * self.lanes) + step)
            if not self._nest.is_reversed(last):
                lanes.update(1).vectorize(domain[0], vector, GUARD)
        self.functions.append(lanes)
        if self.lanes > vector:
            folded = hl.Func(f"{name}_folded")
            parts = [self._state(lanes[[lane + k * vector, *arguments]]) for k in range(self.lanes // vector)]
            folded[[lane, *arguments]] = _value(self._tree(parts))
            folded.bound(lane, 0, vector).vectorize(lane, vector)
            self.functions.append(folded)
            lanes = folded
        self.total[arguments] = _value(self._tree([self._state(lanes[[hl.i32(k), *arguments]]) for k in range(vector)]))

    def _prefetch(self, update: Any, result: Any, step: Any) -> None:
        """Prefetch large arrays whose elements are read once, as one row for each stream."""
        count = self.size * math.prod(loop.extent for loop in self.loops)
        for load in self.loads:
            desc = load.source.desc
            is_row = self._nest.loops.factor(load, self.over[-1]) == 1 and not self._nest.loops.operands_of(load)
            if estimate(desc.byte_length) >= PREFETCHED_BYTES and desc.element_count == count and is_row:
                # With these wrappers: Halide would otherwise take the array for a function.
                at, start = hl.VarOrRVar(result), hl.VarOrRVar(step)
                ahead = hl.i32(PREFETCH_BYTES // (INFO[desc.data_type].bits // 8 * self.lanes))
                array = self._nest.arrays[load.source]
                update.prefetch(array, at, start, ahead, hl.PrefetchBoundStrategy.NonFaulting)

    def _reduce(
        self, function: Any, arguments: list[Any], positions: Mapping[StageLoop, HalideExpr], place: HalideExpr | None
    ) -> None:
        """Combine the state in `function` with the element at `positions`; `place` is the position along the last loop."""
        value = LoopScope(self._nest, {**self._variables, **positions}).value(self.node.body)
        if self._is_arg:
            element: elements.State = value, hl.i32(0) if place is None else place
        elif place is not None and not any(v in self.node.body.free for v in self.node.variables):
            # Halide drops reduction positions on which nothing depends.
            element = (hl.select(place >= 0, value, self._neutral()),)
        else:
            element = (value,)
        function[arguments] = _value(self._combine(self._state(function[arguments]), element))

    def _combine(self, a: elements.State, b: elements.State) -> elements.State:
        return elements.combine(self.node.reduction, self.node.body.type, a, b)

    def _neutral(self) -> HalideExpr:
        return _value(elements.neutral(self.node.reduction, self.node.body.type))

    def _state(self, value: HalideExpr) -> elements.State:
        return (hl.Expr(value[0]), hl.Expr(value[1])) if self._is_arg else (hl.Expr(value),)

    def _tree(self, parts: list[elements.State]) -> elements.State:
        """Combine the parts pairwise."""
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [self._combine(*pair) for pair in zip(parts[:half], parts[half:], strict=True)]
        return parts[0]


def _value(state: elements.State) -> HalideExpr:
    return hl.Tuple(list(state)) if len(state) > 1 else state[0]
