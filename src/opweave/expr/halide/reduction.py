"""Reductions as Halide functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..ir import Load, Reduce, walk
from . import elements
from .mathematics import HalideExpr, hl
from .scope import Scope
from .stages import Loop

if TYPE_CHECKING:
    from .nest import Nest

GUARD = hl.TailStrategy.GuardWithIf  # the default computes some elements twice, which is wrong in place


class Reduction:
    """The Halide functions of a reduction.

    Sums are vectorised in one of two ways. Along the reduction, several vector accumulators are added at the end, so
    that errors grow with the number of steps rather than elements. Across the results ("columnar"), where neighbouring
    results read neighbouring elements.
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
        self.lanes = 0 if self.is_columnar else self._count_lanes()
        self._variables = {loop: nest.variables[loop] for loop in self.loops}
        self._arguments = [self._variables[loop] for loop in reversed(self.loops)]
        self.total = hl.Func(name)
        self.functions = [self.total]
        if self.lanes:
            self._define_in_lanes(name)
        else:
            self._define()

    def at(self, positions: Mapping[Loop, HalideExpr]) -> HalideExpr:
        """The result at the given loop positions."""
        result = self.total[[positions[loop] for loop in reversed(self.loops)]]
        return hl.Expr(result[1] if self._is_arg else result)

    def _moves(self, last: Loop) -> bool:
        """Whether neighbouring results read neighbouring elements, or no loop reads contiguously."""
        loops = self._nest.loops
        if any(loops.factor(load, last) == 1 for load in self.loads):
            return True
        return not any(loops.factor(load, self.over[-1]) == 1 for load in self.loads) if self.over else True

    def _count_lanes(self) -> int:
        if not self.over:
            return 0
        extent, vector = self.over[-1].extent, self._nest.lanes
        return next((n * vector for n in (4, 2, 1) if n * vector <= extent), 0)

    def _define(self) -> None:
        domain = hl.RDom([(0, loop.extent) for loop in reversed(self.over)]) if self.over else []
        self.domain = [domain[k] for k in range(len(self.over))]
        positions = dict(zip(reversed(self.over), self.domain, strict=True))
        self.total[self._arguments] = self._neutral()
        self._reduce(self.total, self._arguments, positions, self.domain[0] if self.domain else None)

    def _define_in_lanes(self, name: str) -> None:
        """Lane `k` reduces the elements `k`, `k + lanes`, `k + 2 * lanes`, …; the lanes are reduced at the end."""
        last, others, arguments = self.over[-1], self.over[:-1], self._arguments
        vector = self._nest.lanes
        steps, rest = divmod(last.extent, self.lanes)
        lane = hl.Var("lane")
        lanes = hl.Func(f"{name}_lanes")
        lanes[[lane, *arguments]] = self._neutral()

        def reduce(extent: int, here: Callable[[Any], Any], place: Callable[[Any], HalideExpr]) -> Any:
            """Reduce into the lane `here` what is at `place`, given one of `extent` steps; return the variables."""
            domain = hl.RDom([(0, extent), *((0, loop.extent) for loop in reversed(others))])
            positions = {loop: domain[k + 1] for k, loop in enumerate(reversed(others))}
            positions[last] = place(domain[0])
            self._reduce(lanes, [here(domain[0]), *arguments], positions, positions[last])
            return domain

        domain = reduce(steps, lambda _: lane, lambda step: step * self.lanes + lane)
        lanes.bound(lane, 0, self.lanes).vectorize(lane, vector)
        lanes.update(0).reorder(lane, *(domain[k] for k in range(len(self.over))), *arguments)
        lanes.update(0).vectorize(lane, vector).unroll(lane)
        if rest:
            domain = reduce(rest, lambda step: step, lambda step: hl.i32(steps * self.lanes) + step)
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

    def _reduce(
        self, function: Any, arguments: list[Any], positions: Mapping[Loop, HalideExpr], place: HalideExpr | None
    ) -> None:
        """Combine what `function` holds with the element at `positions`, which is number `place` along the last loop."""
        value = Scope(self._nest, {**self._variables, **positions}).value(self.node.body)
        if self._is_arg:
            element: elements.State = value, hl.i32(0) if place is None else place
        elif place is not None and not any(v in self.node.body.free for v in self.node.variables):
            # Halide drops reduction positions on which nothing depends.
            element = (hl.select(place >= 0, value, self._neutral()),)
        else:
            element = (value,)
        function[arguments] = _value(self._combined(self._state(function[arguments]), element))

    def _combined(self, a: elements.State, b: elements.State) -> elements.State:
        return elements.combined(self.node.reduction, self.node.body.type, a, b)

    def _neutral(self) -> HalideExpr:
        return _value(elements.neutral(self.node.reduction, self.node.body.type))

    def _state(self, value: HalideExpr) -> elements.State:
        return (hl.Expr(value[0]), hl.Expr(value[1])) if self._is_arg else (hl.Expr(value),)

    def _tree(self, parts: list[elements.State]) -> elements.State:
        """Combine the parts pairwise."""
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [self._combined(*pair) for pair in zip(parts[:half], parts[half:], strict=True)]
        return parts[0]


def _value(state: elements.State) -> HalideExpr:
    return hl.Tuple(list(state)) if len(state) > 1 else state[0]
