"""A stage as Halide functions: its elements, its reductions, and how they are scheduled."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ...dtypes import FLOATS, INFO, DataType
from ..ir import Call, Cast, Const, Expr, Index, Load, Reduce, Source, Type, storage, walk
from ..ranges import bounds
from . import elements
from .mathematics import HalideExpr, hl
from .stages import Loop, Loops, Stage

_GUARD = hl.TailStrategy.GuardWithIf  # the default computes elements twice, which is wrong in place

SERIAL = 16384
"""So many elements are computed by one thread: waking others takes longer."""

GRAIN = 1 << 18
"""Operations that a task of a thread should have."""

_TILE_ROWS = (4, 5, 6, 3, 2)


def buffer_type(data_type: DataType) -> HalideExpr:
    """The Halide type that a data type is stored as; float16 as its bits."""
    return hl.UInt(16) if data_type == "float16" else elements.arithmetic_type(data_type)


class Nest:
    """The Halide function of a stage.

    Attributes:
        function: the function; its results are the targets of the stage.
        shape: of the targets, as the function sees it: axes that move together are one.
    """

    def __init__(self, stage: Stage, name: str, arrays: Mapping[Source, Any], target: Any) -> None:
        self._arrays, self._target, self._name = arrays, target, name
        self._half = has_half(target)
        self._loops = Loops(stage)
        self.shape = self._loops.shape
        self._variables = {loop: hl.Var(f"axis{k}") for k, loop in enumerate(self._loops.axes)}
        self._reductions: dict[Reduce, _Reduction] = {}
        self._lanes = self._vector_size(stage)
        self.function = hl.Func(name)
        _refuse_endless(stage)
        scope = _Scope(self, dict(self._variables))
        self._rows: dict[Source, tuple[Any, tuple[Loop, ...]]] = {}
        for number, row in enumerate(stage.rows):
            loops, kept = self._loops.over(row.axes), hl.Func(f"{name}_row{number}")
            kept[[self._variables[loop] for loop in reversed(loops)]] = scope.value(row.body)
            self._rows[row] = kept, loops
        values = [
            self._stored(scope.value(target.body), target.body.type, target.data_type) for target in stage.targets
        ]
        arguments = [self._variables[loop] for loop in reversed(self._loops.axes)] or [_variable()]
        self.function[arguments] = hl.Tuple(values) if len(values) > 1 else values[0]
        for number, buffer in enumerate(self.function.output_buffers()):
            stride = 1
            for axis, extent in enumerate(reversed(self.shape)):
                if number == 0:  # the others have the same bounds
                    buffer.dim(axis).set_bounds(0, extent)
                buffer.dim(axis).set_stride(stride)
                stride *= extent
        self._operations = sum(isinstance(n, (Call, Cast)) for root in stage.roots for n in walk(root))
        _Schedule(self)

    def _vector_size(self, stage: Stage) -> int:
        """How many elements make a vector: of the widest type that there is."""
        bits = 8
        for node in walk(*stage.roots):
            if node.type in FLOATS:
                bits = max(bits, 32)
            elif node.type not in ("bool", "index"):
                bits = max(bits, INFO[storage(node.type)].bits)
        return int(self._target.natural_vector_size(hl.UInt(bits)))

    def _stored(self, value: HalideExpr, type: Type, data_type: DataType) -> HalideExpr:
        """An element as it is written."""
        if data_type == "float16":
            if self._half:
                # Times 1, or Halide takes a float32 on the way from an integer to a float16 for superfluous.
                return hl.reinterpret(hl.UInt(16), hl.cast(hl.Float(16), value * hl.f32(1)))
            return elements.to_half_bits(value)
        if type in FLOATS:
            return value
        return elements.cast(value, type, data_type)

    def is_reversed(self, loop: Loop) -> bool:
        """Whether something is loaded backwards along a loop."""
        return any(self._loops.factor(load, loop) == -1 for load in self._loops.positions)

    def loaded(self, node: Load, offset: HalideExpr, positions: Mapping[Loop, HalideExpr]) -> HalideExpr:
        """An element as it is computed with."""
        if node.source in self._rows:
            kept, _ = self._rows[node.source]
            moved = self._loops.over(index for index in node.parts if isinstance(index, Index))
            return hl.Expr(kept[[positions[loop] for loop in reversed(moved)]])
        value = self._arrays[node.source][offset]
        return self.from_half(value) if node.type == "float16" else value

    def from_half(self, pattern: HalideExpr) -> HalideExpr:
        """The bits of a float16 as a float32."""
        if self._half:
            return hl.cast(hl.Float(32), hl.reinterpret(hl.Float(16), pattern))
        return elements.from_half_bits(pattern)

    def rounded_to_half(self, value: HalideExpr) -> HalideExpr:
        """A float32 rounded to what float16 can hold."""
        return self.from_half(self._stored(value, "float32", "float16"))

    def reduction(self, node: Reduce) -> _Reduction:
        """The functions of a reduction, made once."""
        if node not in self._reductions:
            self._reductions[node] = _Reduction(self, node, f"{self._name}_r{len(self._reductions)}")
        return self._reductions[node]


def _refuse_endless(stage: Stage) -> None:
    """Halide moves what is the same for all steps out of loops, in time that doubles with each squaring of a power."""
    wide = {axis for axis in stage.axes if axis.extent > 1}
    for node in walk(*stage.roots):
        if isinstance(node, Call) and node.name == "pow" and node.type not in (*FLOATS, "int8", "uint8"):
            by_data = not isinstance(node.parts[1], Const)
            if by_data and (not wide or not wide <= node.free):
                raise hl.HalideError("a power of integers by an exponent that is data must depend on all axes")


def has_half(target: Any) -> bool:
    """Whether a machine converts float16 itself (x86 with F16C, every ARM of 64 bits)."""
    return bool(target.has_feature(hl.TargetFeature.F16C) or target.arch == hl.TargetArch.ARM)


class _Scope:
    """Nodes as Halide expressions, where loops have certain positions."""

    def __init__(self, nest: Nest, positions: Mapping[Loop, HalideExpr]) -> None:
        self._nest, self._positions = nest, positions
        self._known: dict[Expr, HalideExpr] = {}

    def value(self, root: Expr) -> HalideExpr:
        """A node as an expression."""
        for node in walk(root, enter=self._needed):
            if node not in self._known:
                self._known[node] = self._one(node)
        return self._known[root]

    def _needed(self, node: Expr) -> Sequence[Expr]:
        if node in self._known or isinstance(node, Reduce):
            return ()
        if isinstance(node, Load):
            return [index for index, _ in self._nest._loops.positions[node].others]
        return node.parts

    def _one(self, node: Expr) -> HalideExpr:
        match node:
            case Const():
                return elements.constant(node.value, node.type)
            case Index():
                return hl.i32(0) if node.extent == 1 else self._positions[self._nest._loops.of[node]]
            case Load():
                return self._nest.loaded(node, self._offset(node), self._positions)
            case Reduce():
                return self._nest.reduction(node).at(self._positions)
            case Cast():
                (part,) = node.parts
                value = elements.cast(self._known[part], part.type, node.type)
                if node.type == "index" and part.type in ("uint32", "uint64"):
                    return self._unsigned_index(part, value)
                if node.type != "float16":
                    return value
                if part.type in FLOATS:
                    return self._nest.rounded_to_half(value)
                # Halide would take a float32 on the way from an integer to a float16 for superfluous.
                return elements.from_half_bits(elements.to_half_bits(value))
            case Call():
                arguments = [self._known[part] for part in node.parts]
                return self._call(node, arguments)
        raise AssertionError(node)

    def _unsigned_index(self, node: Expr, value: HalideExpr) -> HalideExpr:
        """An unsigned integer as an index; Halide knows no range of a minimum of those, but of signed integers."""
        known = bounds(node)
        if known is None:
            return value
        is_limited = isinstance(node, Call) and node.name == "min" and isinstance(node.parts[1], Const)
        raw = self._known[node.parts[0] if is_limited else node]
        signed = hl.reinterpret(hl.Int(raw.type().bits()), raw)
        low, high = (hl.cast(signed.type(), limit) for limit in (known[0], min(known[1], 2**31 - 1)))
        return hl.cast(hl.Int(32), hl.clamp(hl.select(signed < 0, high, signed), low, high))

    def _call(self, node: Call, arguments: list[HalideExpr]) -> HalideExpr:
        divisor = node.parts[-1]
        is_division = node.type == "index" and node.name in ("floor_div", "mod")
        if is_division and isinstance(divisor, Const) and divisor.value > 0:
            return elements.index_division(node.name, arguments[0], int(divisor.value))
        if node.name == "pow" and node.type not in FLOATS and isinstance(divisor, Const) and divisor.value >= 0:
            return elements.power(node.type, arguments[0], int(divisor.value))
        return elements.call(node.name, node.parts[-1].type, arguments)

    def _offset(self, node: Load) -> HalideExpr:
        place = self._nest._loops.positions[node]
        offset = hl.i32(place.constant)
        for loop in self._nest._loops.over(place.variables):
            factor = self._nest._loops.factor(node, loop)
            if factor:
                offset = offset + self._positions[loop] * hl.i32(factor)
        for index, factor in place.others:
            offset = offset + self._known[index] * hl.i32(factor)
        return offset


class _Reduction:
    """The functions of a reduction.

    Floats are added up in lanes: in several vectors that are added to each other at the end, so that errors grow with the
    number of steps, not of elements; or in the lanes of the results, where neighbouring results read neighbouring elements.
    """

    def __init__(self, nest: Nest, node: Reduce, name: str) -> None:
        self._nest, self.node = nest, node
        loops = nest._loops
        self.over = loops.over(node.variables)
        self.loops = tuple(loop for loop in loops.axes if any(member in node.free for member in loop.members))
        self.size = math.prod(loop.extent for loop in self.over)
        self.loads = [n for n in walk(node.body) if isinstance(n, Load)]
        self.is_columnar = self._moves(loops.axes[-1]) if loops.axes and loops.axes[-1] in self.loops else False
        self.lanes = 0 if self.is_columnar else self._count_lanes()
        self.helpers: list[Any] = []
        self._variables = {loop: nest._variables[loop] for loop in self.loops}
        self._arguments = [self._variables[loop] for loop in reversed(self.loops)]
        self.total = hl.Func(name)
        if self.lanes:
            self._define_in_lanes(name)
        else:
            self._define()

    def at(self, positions: Mapping[Loop, HalideExpr]) -> HalideExpr:
        """The result, where loops have certain positions."""
        result = self.total[[positions[loop] for loop in reversed(self.loops)]]
        return hl.Expr(result[1] if self.node.reduction.startswith("arg_") else result)

    def _moves(self, last: Loop) -> bool:
        """Whether neighbouring results read neighbouring elements, or none of the ways is along memory."""
        loops = self._nest._loops
        if any(loops.factor(load, last) == 1 for load in self.loads):
            return True
        return not any(loops.factor(load, self.over[-1]) == 1 for load in self.loads) if self.over else True

    def _count_lanes(self) -> int:
        if not self.over:
            return 0
        extent, vector = self.over[-1].extent, self._nest._lanes
        return next((n * vector for n in (4, 2, 1) if n * vector <= extent), 0)

    def _body(self, positions: Mapping[Loop, HalideExpr], place: HalideExpr | None) -> elements.State:
        value = _Scope(self._nest, {**self._variables, **positions}).value(self.node.body)
        if self.node.reduction.startswith("arg_"):
            return value, hl.i32(0) if place is None else place
        if place is not None and not any(v in self.node.body.free for v in self.node.variables):
            # Halide goes through positions only if something depends on them.
            value = hl.select(place >= 0, value, self._neutral())
        return (value,)

    def _combined(self, a: elements.State, b: elements.State) -> HalideExpr:
        return _value(elements.combined(self.node.reduction, self.node.body.type, a, b))

    def _neutral(self) -> HalideExpr:
        return _value(elements.neutral(self.node.reduction, self.node.body.type))

    def _define(self) -> None:
        total, arguments = self.total, self._arguments
        total[arguments] = self._neutral()
        if not self.over:  # over variables of extent 1
            state = self._body({}, None)
            total[arguments] = self._combined(_state(total[arguments], len(state)), state)
            self.domain: list[Any] = []
            return
        domain = hl.RDom([(0, loop.extent) for loop in reversed(self.over)])
        self.domain = [domain[k] for k in range(len(self.over))]
        positions = dict(zip(reversed(self.over), self.domain, strict=True))
        state = self._body(positions, self.domain[0])
        total[arguments] = self._combined(_state(total[arguments], len(state)), state)

    def _define_in_lanes(self, name: str) -> None:
        """Lane `k` reduces the elements `k`, `k + lanes`, `k + 2 * lanes`, …; at the end, the lanes are reduced."""
        last, others, arguments = self.over[-1], self.over[:-1], self._arguments
        vector = self._nest._lanes
        steps, rest = divmod(last.extent, self.lanes)
        lane = hl.Var("lane")
        lanes = hl.Func(f"{name}_lanes")
        lanes[[lane, *arguments]] = self._neutral()
        domain = hl.RDom([(0, steps), *((0, loop.extent) for loop in reversed(others))])
        place = domain[0] * self.lanes + lane
        positions = {loop: domain[k + 1] for k, loop in enumerate(reversed(others))}
        state = self._body({**positions, last: place}, place)
        lanes[[lane, *arguments]] = self._combined(_state(lanes[[lane, *arguments]], len(state)), state)
        lanes.bound(lane, 0, self.lanes).vectorize(lane, vector)
        lanes.update(0).reorder(lane, *(domain[k] for k in range(len(self.over))), *arguments)
        lanes.update(0).vectorize(lane, vector).unroll(lane)
        if rest:
            domain = hl.RDom([(0, rest), *((0, loop.extent) for loop in reversed(others))])
            place = hl.i32(steps * self.lanes) + domain[0]
            positions = {loop: domain[k + 1] for k, loop in enumerate(reversed(others))}
            state = self._body({**positions, last: place}, place)
            here = [domain[0], *arguments]
            lanes[here] = self._combined(_state(lanes[here], len(state)), state)
            if not self._nest.is_reversed(last):
                lanes.update(1).vectorize(domain[0], vector, _GUARD)
        self.helpers.append(lanes)
        if self.lanes > vector:
            folded = hl.Func(f"{name}_folded")
            parts = [_state(lanes[[lane + k * vector, *arguments]], len(state)) for k in range(self.lanes // vector)]
            folded[[lane, *arguments]] = _value(self._tree(parts))
            folded.bound(lane, 0, vector).vectorize(lane, vector)
            self.helpers.append(folded)
            lanes = folded
        parts = [_state(lanes[[hl.i32(k), *arguments]], len(state)) for k in range(vector)]
        self.total[arguments] = _value(self._tree(parts))

    def _tree(self, parts: list[elements.State]) -> elements.State:
        """Neighbours combined, until one is left."""
        type = self.node.body.type
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [elements.combined(self.node.reduction, type, parts[k], parts[k + half]) for k in range(half)]
        return parts[0]


def _value(state: elements.State) -> HalideExpr:
    return hl.Tuple(list(state)) if len(state) > 1 else state[0]


def _state(value: HalideExpr, size: int) -> elements.State:
    return tuple(hl.Expr(value[k]) for k in range(size)) if size > 1 else (hl.Expr(value),)


_serials = itertools.count()


def _variable() -> Any:
    """A variable of a name of its own."""
    return hl.Var(f"step{next(_serials)}")


class _Schedule:
    """In what order a nest is computed, in which vectors, and by which threads."""

    def __init__(self, nest: Nest) -> None:
        self.nest, self.function = nest, nest.function
        self.loops = nest._loops.axes
        self.variables = nest._variables
        self.vector = nest._lanes
        self.reductions = list(nest._reductions.values())
        if not self.loops:
            for reduction in self.reductions:
                self._compute_at(reduction, None)
        elif self.reductions:
            self._with_reductions()
        else:
            self._pointwise()

    # Elements only ---------------------------------------------------------------------------------------------------

    def _pointwise(self) -> None:
        f, loops = self.function, self.loops
        last = loops[-1]
        steps: list[Any] = [self.variables[loop] for loop in loops]
        if last.extent <= 4 and len(loops) > 1:  # channels of colours: vectors go along the pixels
            f.bound(steps[-1], 0, last.extent).unroll(steps[-1])
            along = len(loops) - 2
        else:
            along = len(loops) - 1
        total = math.prod(loop.extent for loop in loops)
        if total > SERIAL:
            steps[along] = self._parallel(steps, along, max(GRAIN // (8 + self.nest._operations), 4096))
        self._vectorize(f, steps[along], loops[along], total > SERIAL)

    def _vectorize(self, stage: Any, step: Any, loop: Loop, is_divided: bool = False) -> None:
        """Vectors along a loop, unless some of them may not be whole, and are loaded backwards: Halide cannot do that."""
        if not self.nest.is_reversed(loop) or (loop.extent % self.vector == 0 and not is_divided):
            stage.vectorize(step, self.vector, _GUARD)

    def _parallel(self, steps: list[Any], along: int, grain: int) -> Any:
        """Divide the elements into tasks of about `grain`; return what is left of the loop `along`."""
        f, loops = self.function, self.loops
        inside, at = 1, len(loops) - 1
        while at > along or (at > 0 and inside * loops[at].extent < grain):
            inside *= loops[at].extent
            at -= 1
        count = _chunk(loops[at].extent, -(-grain // inside), self.vector if at == along else 1)
        inner = steps[at]
        task = steps[at]
        if count < loops[at].extent:
            outer, inner = _variable(), _variable()
            f.split(steps[at], outer, inner, count, _GUARD)
            task = outer
            for step in reversed(steps[:at]):
                fused = _variable()
                f.fuse(task, step, fused)
                task = fused
        elif at > 0:
            task, *others = reversed(steps[:at])
            for step in others:
                fused = _variable()
                f.fuse(task, step, fused)
                task = fused
        else:
            return inner
        f.parallel(task)
        return inner if at == along else steps[along]

    # Elements with reductions ----------------------------------------------------------------------------------------

    def _with_reductions(self) -> None:
        f, last = self.function, self.loops[-1]
        order = sorted(self.loops, key=lambda loop: -sum(loop in r.loops for r in self.reductions))
        dependent = [r for r in self.reductions if last in r.loops]
        columnar = bool(dependent) and all(r.is_columnar for r in dependent)
        level = {
            loop: self.variables[loop] for loop in order
        }  # of each loop, the step at which to compute what needs it
        inner: list[Any] = []  # steps inside of all others
        rows = 0
        if columnar:
            width = self._width(last.extent)
            rows = self._rows(order)
            if rows:
                outer, tile = _variable(), _variable()
                f.split(level[order[-2]], outer, tile, rows, _GUARD)
                level[order[-2]] = outer
                inner.append(tile)
            outer, along = _variable(), _variable()
            f.split(level[last], outer, along, width, _GUARD)
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
        """How many neighbouring results are computed together: vectors that fill registers, if they divide the extent."""
        return next((n * self.vector for n in (4, 3, 2) if extent % (n * self.vector) == 0), self.vector)

    def _rows(self, order: Sequence[Loop]) -> int:
        """How many rows of results are computed together, where they share what they read; 0 for no tiles."""
        if len(order) < 2 or order[-1] is not self.loops[-1]:
            return 0
        deep = [r for r in self.reductions if order[-2] in r.loops and order[-1] in r.loops]
        loops = self.nest._loops
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
        total = math.prod(loop.extent for loop in order) * (1 + self.nest._operations)
        total += sum(math.prod(loop.extent for loop in r.loops) * r.size * 2 for r in self.reductions)
        first = order[0]
        if total <= SERIAL * 4 or (vectorized is first and not dependent):
            return
        extent = first.extent
        if first is order[-2:][0] and rows and len(order) == 2:
            extent //= rows
        if first is self.loops[-1] and vectorized is None:
            extent = -(-extent // self._width(first.extent))
        count = max(1, min(-(-GRAIN // max(total // extent, 1)), extent // 4))
        if count > 1:
            outer, inner = _variable(), _variable()
            f.split(level[first], outer, inner, count, _GUARD)
            level[first] = inner
            f.parallel(outer)
        else:
            f.parallel(level[first])

    def _compute_rows(self, order: Sequence[Loop], level: Mapping[Loop, Any]) -> None:
        for function, (*outer, last) in self.nest._rows.values():
            deepest = next(loop for loop in reversed(order) if loop in outer)
            function.compute_at(self.function, level[deepest])
            self._vectorize(function, self.variables[last], last)

    def _compute_at(self, reduction: _Reduction, step: Any) -> None:
        for function in (reduction.total, *reduction.helpers):
            if step is None:
                function.compute_root()
            else:
                function.compute_at(self.function, step)

    def _columns(self, reduction: _Reduction, order: Sequence[Loop], rows: int, last: Loop) -> None:
        """Results side by side in vectors; the positions that are reduced are the outer loops."""
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
    """How much of a loop is one task: about `wanted`, a multiple of vectors, and a divisor if there is one nearby."""
    if wanted >= extent:
        return extent
    wanted = -(-wanted // multiple) * multiple
    candidates = range(wanted, min(2 * wanted, extent), multiple)
    return next((size for size in candidates if extent % size == 0), wanted)
