"""Recurrences with rows in workgroup memory: a workgroup runs all steps for some rows, and each element has an invocation.

Sums that several elements of a row need are computed once, in parts if they would keep few invocations busy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ....core.guards import estimate
from ....core.sizes import is_multiple, is_same_size, is_static
from ....expr import ir
from ....expr.gpu import Features, Local, Workgroups
from ....expr.gpu.statements import Fill, Write
from ....expr.ir import Const, Expr, Index, Input, Load, Output, Reduce, Stored, walk
from ....expr.recurrence import Recurrence
from ....expr.reductions import COMBINE, split
from ....support.errors import NotSupportedError
from .recurrent_rows import STATES, KernelSteps, RecurrentRows, as_type, round_to

MAX_ELEMENTS = 4096
"""The largest part of a state that one row needs, in elements: 16 KiB, the workgroup memory that every device has."""

MAX_PARTS = 8
"""The largest number of parts of a sum: every invocation that needs the sum adds the parts."""


def rows_in_workgroups(
    recurrence: Recurrence,
    operands: Sequence[Input | Const],
    results: Sequence[Input],
    steps: KernelSteps,
    features: Features,
) -> Workgroups:
    """The program for some steps, with as many rows for each workgroup as the device has memory for."""
    tile = 0
    while True:
        rows = RowsInWorkgroups(recurrence, operands, results, steps, features, tile)
        program = rows.program()
        if program.shared_bytes <= features.max_shared:
            return program
        if rows.tile == 1:
            raise NotSupportedError(f"a row takes {program.shared_bytes} bytes of workgroup memory")
        tile = rows.tile // 2


class RowsInWorkgroups(RecurrentRows):
    """A program of workgroups that runs steps for `tile` rows each; 0 for a size that keeps the device busy."""

    def __init__(
        self,
        recurrence: Recurrence,
        operands: Sequence[Input | Const],
        results: Sequence[Input],
        steps: KernelSteps,
        features: Features,
        tile: int,
    ) -> None:
        super().__init__(recurrence, operands, results, steps)
        outputs = [output for program in self.divided.programs for output in program.outputs]
        sizes = [math.prod(self.rest(output)) for output in outputs]
        if not is_static(sizes):
            raise NotSupportedError("the size of a row has names")
        self.size = max(sizes, default=1)
        if self.size > MAX_ELEMENTS:
            raise NotSupportedError(f"a row has {self.size} elements, and at most {MAX_ELEMENTS} fit into a workgroup")
        self.tile = tile or self._tile_for(features)
        self.workgroups = Workgroups([-(-self.count // self.tile)], width=self.tile * self.size)
        self.width = self.workgroups.invocations(features)
        self.states = [self._local(source) for source in self.before]
        self.in_place = self._can_replace()
        self.new = self.states if self.in_place else [self._local(source) for source in self.before]
        self.locals: dict[Any, Local] = dict(zip(self.before, self.states, strict=True))
        self.locals.update(zip(self.following, self.new, strict=True) if self.following else ())
        self.time: Expr = Const(0, "index")

    def _tile_for(self, features: Features) -> int:
        most, count = min(256, features.max_invocations), estimate(self.count)
        tile = max(1, min(most // self.size, count))
        while tile > 1 and -(-count // tile) < features.units:
            tile //= 2
        return tile

    def _local(self, array: Input) -> Local:
        return self.workgroups.shared_array([self.tile, *self.rest(array)], STATES[array.desc.data_type])

    def _can_replace(self) -> bool:
        """Whether the new state may replace the old one element by element, as nothing else reads the old one later."""
        divided, count = self.divided, self.recurrence.states
        if count != 1:
            return False
        state = divided.first.inputs[0]
        result = divided.first.outputs[0]

        def outside(node: Expr) -> Sequence[Expr]:
            return () if isinstance(node, Reduce) and self._is_shared(node, result) else node.parts

        for node in walk(result.body, enter=outside):
            if isinstance(node, Reduce) and any(self._reads(inner, state) for inner in walk(node)):
                if not self._is_shared(node, result):
                    return False
            elif self._reads(node, state) and not ir.is_aligned(node):  # type: ignore[arg-type]
                return False
        late = divided.second
        return late is None or not any(
            self._reads(node, state) for output in late.outputs for node in walk(output.body)
        )

    @staticmethod
    def _reads(node: Expr, source: Input) -> bool:
        return isinstance(node, Load) and node.source is source

    def _is_shared(self, node: Reduce, array: Output) -> bool:
        """Whether several elements of a row need a reduction, so that it is computed before them."""
        own = self.axes.get(array, {})
        axes = {axis for number, axis in enumerate(array.axes) if number not in own and axis.extent != 1}
        return not axes <= node.free and not node.reduction.startswith("arg_")

    # Statements ------------------------------------------------------------------------------------------------------

    def program(self) -> Workgroups:
        """The program for all steps."""
        divided, count, program = self.divided, self.recurrence.states, self.workgroups
        first = divided.first
        for source, operand, local in zip(self.before, self.operands, self.states, strict=False):
            tile, rest = self._variables(source)
            at = self.position(source, self._rows(tile), rest)
            value: Expr = operand if isinstance(operand, Const) else Load(operand, at)
            self._fill(local, (tile, *rest), as_type(round_to(value, source.desc.data_type), local.desc.data_type))
        with program.repeat(self.steps.count) as number:
            self.time = ir.call("add", number.body, Const(self.steps.start, "index"))
            for stored in first.stored:
                self._store(stored)
            for index, output in zip(divided.early, first.outputs[count:], strict=True):
                self._write(index, output)
            for output, old, local in zip(first.outputs, self.states, self.new, strict=False):
                tile, rest = self._variables(output)
                body = round_to(self._hoist(self._localise(output, tile, rest), (tile, *rest)), output.desc.data_type)
                kept, before = as_type(body, local.desc.data_type), Load(old, (tile, *rest))
                at = self.position(output, self._rows(tile), rest)
                self._fill(local, (tile, *rest), self.unless_padding(kept, before, output, at, self.time))
            if divided.second is not None:
                for stored in divided.second.stored:
                    self._store(stored)
                for index, output in zip(divided.late, divided.second.outputs, strict=True):
                    self._write(index, output)
            for source, new, local in zip(self.before, self.new, self.states, strict=True):
                if new is not local:
                    tile, rest = self._variables(source)
                    self._fill(local, (tile, *rest), Load(new, (tile, *rest)))
        for source, result, local in zip(self.before, self.results, self.states, strict=False):
            tile, rest = self._variables(source)
            at = self.position(source, self._rows(tile), rest)
            self._add_write(result, (tile, *rest), at, Load(local, (tile, *rest)))
        return program

    def _variables(self, array: Input | Output | Stored) -> tuple[Index, tuple[Index, ...]]:
        """New variables: of the row within the tile, and of the axes within a row."""
        return Index(self.tile), tuple(map(Index, self.rest(array)))

    def _rows(self, tile: Index) -> list[Expr]:
        """The position along each axis of rows."""
        number = ir.call("add", ir.call("mul", self.workgroups.rows[0], Const(self.tile, "index")), tile)
        if not is_multiple(self.count, self.tile):  # the last workgroup computes the last row several times
            number = ir.call("min", number, Const(self.count - 1, "index"))
        positions, stride = [], self.count
        for extent in self.extents:
            stride //= extent
            position = number if is_same_size(stride, 1) else ir.call("floor_div", number, Const(stride, "index"))
            positions.append(ir.call("mod", position, Const(extent, "index")))
        return positions

    def _localise(self, array: Output | Stored, tile: Index, rest: Sequence[Index]) -> Expr:
        """The element of an array of the step, which reads states in local arrays and slices in sequences."""
        done: dict[Expr, Expr] = dict(zip(array.axes, self.position(array, self._rows(tile), rest), strict=True))
        for node in walk(array.body):
            if node in done:
                continue
            parts = tuple(done[part] for part in node.parts)
            if not isinstance(node, Load):
                done[node] = node.rebuild(parts)
            elif node.source in self.locals:
                within = tuple(parts[axis] for axis in self.inner(node.source))
                done[node] = as_type(Load(self.locals[node.source], (tile, *within)), node.type)
            else:
                done[node] = self.read(node, parts, self.time)
        return done[array.body]

    def _fill(self, target: Local, axes: tuple[Index, ...], body: Expr) -> None:
        self.workgroups.statements.append(Fill(target, axes, body))

    def _add_write(self, target: Input, axes: tuple[Index, ...], at: tuple[Expr, ...], body: Expr) -> None:
        self.workgroups.statements.append(Write(target, axes, at, as_type(body, target.desc.data_type)))

    def _write(self, index: int, output: Output) -> None:
        """Write an output of a step."""
        tile, rest = self._variables(output)
        body = self._hoist(self._localise(output, tile, rest), (tile, *rest))
        target, at = self.target(index, self.position(output, self._rows(tile), rest), self.time)
        self._add_write(target, (tile, *rest), at, body)

    def _store(self, stored: Stored) -> None:
        """Compute an array that the step stores."""
        tile, rest = self._variables(stored)
        body = self._hoist(self._localise(stored, tile, rest), (tile, *rest))
        data_type = STATES.get(stored.desc.data_type)
        if data_type is None:
            raise NotSupportedError(f"kernels keep no arrays of {stored.desc.data_type}")
        self.locals[stored] = local = self.workgroups.shared_array([self.tile, *self.rest(stored)], data_type)
        self._fill(local, (tile, *rest), as_type(body, data_type))

    # Sums ------------------------------------------------------------------------------------------------------------

    def _hoist(self, body: Expr, axes: tuple[Index, ...]) -> Expr:
        """Compute reductions before the elements, if several elements need them, or few invocations would be busy."""
        done: dict[Expr, Expr] = {}

        def rewrite(root: Expr, context: frozenset[Index]) -> Expr:
            def enter(node: Expr) -> Sequence[Expr]:
                return () if node in done or isinstance(node, Reduce) else node.parts

            for node in walk(root, enter=enter):
                if node in done:
                    continue
                if isinstance(node, Reduce):
                    inner = rewrite(node.body, context | frozenset(node.variables))
                    done[node] = self._result_of(Reduce(node.reduction, node.variables, inner), context)
                else:
                    done[node] = node.rebuild(tuple(done[part] for part in node.parts))
            return done[root]

        return rewrite(body, frozenset(axis for axis in axes if axis.extent != 1))

    def _result_of(self, node: Reduce, context: frozenset[Index]) -> Expr:
        """A reduction, or the load of its result. `context` are the variables of the positions that need it."""
        free = tuple(sorted((v for v in node.free if v in context), key=lambda v: v.serial))
        results, size = math.prod(v.extent for v in free), ir.size_of(node.variables)
        data_type = STATES.get(ir.storage(node.type))
        if data_type is None or node.reduction not in COMBINE:
            return node
        parts = min(MAX_PARTS, self.width // max(1, results), node.variables[0].extent // 2)
        if parts >= 2 and size >= 2 * MAX_PARTS:
            part = split(node.variables[0], parts)
            partial = self.workgroups.shared_array([part.part.extent, *(v.extent for v in free)], data_type)
            body = Reduce(node.reduction, (part.position, *node.variables[1:]), part.mask(node, node.variables[0]))
            self._keep(partial, (part.part, *free), body)
            again = Index(part.part.extent)
            return as_type(Reduce(node.reduction, (again,), Load(partial, (again, *free))), node.type)
        if set(free) == context:
            return node
        total = self.workgroups.shared_array([v.extent for v in free] or [1], data_type)
        if not free:
            self._keep(total, (Index(1),), node)
            return as_type(Load(total, (Const(0, "index"),)), node.type)
        self._keep(total, free, node)
        return as_type(Load(total, free), node.type)

    def _keep(self, target: Local, axes: tuple[Index, ...], body: Expr) -> None:
        """Compute a local array, with new variables."""
        fresh: dict[Expr, Expr] = {axis: Index(axis.extent) for axis in axes}
        own = tuple(axis for axis in fresh.values() if isinstance(axis, Index))
        self._fill(target, own, as_type(ir.substitute(body, fresh), target.desc.data_type))
