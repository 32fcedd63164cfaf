"""Recurrences that users and converters declare: one kernel runs all steps.

A workgroup runs all steps for some rows: parts of a state that do not depend on each other (`expr.recurrent_step`). It keeps
states in registers if steps are element-wise, else in workgroup memory. Sums that several elements of a row need are computed
once, in parts if they would keep few invocations busy. Linear steps of few elements run in chunks of time (`expr.prefix`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from ....core.bodies import MAX_UNROLLED_STEPS
from ....core.dtypes import DataType
from ....core.graph import Desc, Node, iter_operands, map_operands
from ....core.guards import estimate
from ....core.operation import Op
from ....core.size_bounds import names_in_empty
from ....core.size_values import variables_in
from ....core.sizes import Dimension, Size, is_multiple, is_same_size, is_symbolic
from ....expr import ir
from ....expr.array import Traced
from ....expr.gpu import Features, Local, Workgroups
from ....expr.gpu.statements import Fill, Write
from ....expr.ir import Cast, Const, Expr, Index, Input, Load, Output, Reduce, Source, Stored, walk
from ....expr.prefix import ChunkedRecurrence, to_chunks
from ....expr.recurrence import Recurrence
from ....expr.recurrent_step import divide_step, rows_of
from ....expr.reductions import COMBINE, split
from ....expr.tracing import of_input
from ....kernels.recurrence import recurrence_of
from ....support.errors import NotSupportedError
from .results import Staged, Stages, source_of

STATES: dict[DataType, DataType] = {
    "float32": "float32",
    "float16": "float32",
    "int32": "int32",
    "uint32": "uint32",
}
"""Data types of states -> those in which a workgroup keeps them."""

MAX_ELEMENTS = 4096
"""The largest part of a state that one row needs, in elements: 16 KiB, the workgroup memory that every device has."""

MAX_PARTS = 8
"""The largest number of parts of a sum: every invocation that needs the sum adds the parts."""

ELEMENTS_OF_UNIT = 1 << 15
"""Elements of all chunks of a state for each unit of the device: 16 times its threads.

A step takes an H200 0.5 to 1 us however few elements it has. 4096 steps of a selective scan of [1536, 16] take 3.6 ms at once
and 0.75 ms in 8 chunks, 8192 steps of [256, 16] take 3.7, 0.39 and 0.20 ms in 1, 16 and 64 chunks."""

MIN_CHUNK = 16
"""The smallest number of steps of a chunk. An estimate: more chunks are combined one after the other."""

MIN_CHUNKS = 4
"""The smallest number of chunks: they read their sequences twice. An estimate."""

MAX_CHUNK_RATIO = 2
"""A number of chunks without padding is taken if the best one is at most so many times as large. An estimate."""

MIN_WIDTH = 32
"""The smallest number of invocations of a workgroup with element-wise steps: a warp of most GPUs."""


class _TooManyStepsError(Exception):
    """A named number of steps is more than a kernel can repeat on a device."""


@cache
def recurrent_form(op: Op[..., Any]) -> Callable[..., Staged]:
    """The function that computes the results of an operation with a recurrence from its operands and attributes."""

    def form(**arguments: Any) -> Staged:
        operands = {name: arguments[name] for name in op.operands}
        descs = map_operands(operands, lambda array: Desc(ir.storage(array.data_type), array.shape))
        assert op.recurrence is not None
        recurrence = op.recurrence(descs, {name: arguments[name] for name in op.attributes})
        sources = [source_of(array) for array in iter_operands(operands)]
        return Staged(
            lambda stages: _run(recurrence, sources, stages),
            lambda features: _names_needed(recurrence, sources, features),
        )

    return form


def refusal_of_recurrence(node: Node, features: Features) -> str | None:
    """The reason why a node with a recurrence cannot run; empty if it can; None if its decomposition may."""
    recurrence = recurrence_of(node)
    descs = [operand.desc for operand in iter_operands(node.inputs)]
    length = recurrence.length_for(descs)
    try:
        _check_types(recurrence)
        if not recurrence.step.has_sizes and not is_symbolic((length,)):
            _run(recurrence, [Input(number, desc) for number, desc in enumerate(descs)], Stages(features))
    except NotSupportedError as error:
        is_short = not is_symbolic((length,)) and length <= MAX_UNROLLED_STEPS
        return None if is_short and not recurrence.step.checks else str(error)
    return ""


def _names_needed(recurrence: Recurrence, operands: Sequence[Input], features: Features) -> tuple[set[str], set[str]]:
    """The names that need numbers for all sizes, and those that need numbers for the sizes of this run only.

    Kernels take names of steps and rows. A kernel runs all steps of a named number, if the device runs loops that long.
    """
    length = recurrence.length_for([operand.desc for operand in operands])
    divided = divide_step(recurrence, all_outputs=True)
    rows = rows_of(divided, recurrence.states)
    along_rows = {(array, axis) for row in rows for array, axis in row.axes.items()}
    extents: list[Dimension] = [length, *(row.extent for row in rows)]
    others: list[Dimension] = []
    for program in divided.programs:
        computed: list[Stored | Output] = [*program.stored, *program.outputs]
        arrays: list[Source | Output] = [*program.inputs, *computed]
        for array in arrays:
            others += [size for axis, size in enumerate(array.desc.shape) if (array, axis) not in along_rows]
        for node in walk(*(array.body for array in computed)):
            others += [variable.extent for variable in node.variables] if isinstance(node, Reduce) else []
    needed = variables_in(tuple(others))
    for_this_run = names_in_empty(extents) - needed
    if needed or for_this_run or not is_symbolic(tuple(extents)):
        return needed, for_this_run
    try:
        _run(recurrence, operands, Stages(features))
    except NotSupportedError:  # the decomposition may run once sizes are numbers
        return variables_in(tuple(extents)), set()
    except _TooManyStepsError:
        return set(), variables_in((length,))
    return set(), set()


def _check_types(recurrence: Recurrence) -> None:
    step = recurrence.step
    if step.checks:
        raise NotSupportedError("kernels cannot check indices")
    for source in step.inputs[: recurrence.states]:
        if source.desc.data_type not in STATES:
            raise NotSupportedError(f"kernels keep no states of {source.desc.data_type}")


def _run(recurrence: Recurrence, operands: Sequence[Input], stages: Stages) -> list[Traced]:
    """Add the kernels of a recurrence, in chunks of time if a step has few elements, and return the results."""
    count = _chunk_count(recurrence, operands, stages.features)
    parts = to_chunks(recurrence, count) if count > 1 else None
    if parts is not None:
        before = len(stages.stages)
        try:
            return _run_in_chunks(recurrence, parts, count, operands, stages)
        except NotSupportedError:  # too many buffers, or too much memory
            del stages.stages[before:]
    descs = [operand.desc for operand in operands]
    results = [stages.array(desc.data_type, desc.shape) for desc in recurrence.results_for(descs)]
    _run_steps(recurrence, operands, results, recurrence.length_for(descs), stages, "the steps")
    return list(map(of_input, results))


def _chunk_count(recurrence: Recurrence, operands: Sequence[Input], features: Features) -> int:
    """The number of chunks of time that keep the device busy.

    Only the chunk that runs first has steps of padding, besides at least one other step.
    """
    length = recurrence.length_for([operand.desc for operand in operands])
    elements = max((source.desc.element_count for source in recurrence.step.inputs[: recurrence.states]), default=0)
    typical = estimate(length)
    # The steps of a chunk follow each other twice, and the chunks once: 2 length / count + count, least for this count. For
    # named numbers of steps it is half of that, which is valid for all numbers from half of the typical one on.
    best = math.isqrt(typical // 2 if isinstance(length, Size) else 2 * typical)
    most = min(features.units * ELEMENTS_OF_UNIT // max(estimate(elements), 1), typical // MIN_CHUNK, best)
    if most < MIN_CHUNKS:
        return 1
    size = -(-length // most)
    if isinstance(length, Size):
        return most if (most - 1) * size < length else 1
    least = max(MIN_CHUNKS, most // MAX_CHUNK_RATIO)
    return next((count for count in range(most, least - 1, -1) if length % count == 0), -(-length // size))


def _run_in_chunks(
    recurrence: Recurrence, parts: ChunkedRecurrence, count: int, operands: Sequence[Input], stages: Stages
) -> list[Traced]:
    """Add the kernels of a linear recurrence in `count` chunks of time.

    The chunk that runs first begins with steps that keep the states, if the number of steps is not a multiple of `count`.
    """
    states, others = recurrence.states, operands[recurrence.states :]
    descs = [operand.desc for operand in operands]
    results = [stages.array(desc.data_type, desc.shape) for desc in recurrence.results_for(descs)]

    def arrays_of(part: Recurrence) -> list[Input]:
        """Arrays for the last states of a part."""
        return [stages.array(source.desc.data_type, source.desc.shape) for source in part.step.inputs[: part.states]]

    length = recurrence.length_for(descs)
    size = -(-length // count)
    padding = count * size - length
    units: list[Const] = [Const(1.0, "float32")] * states + [Const(0.0, "float32")] * states
    factors, first, last = arrays_of(parts.factors), arrays_of(parts.steps), arrays_of(parts.steps)
    _run_steps(parts.factors, [*units, *others], factors, size, stages, "the factors and sums of chunks", padding)
    combined = [*results[:states], *first]
    _run_steps(parts.combine, [*operands[:states], *factors], combined, count, stages, "the states before chunks")
    _run_steps(parts.steps, [*first, *others], [*last, *results[states:]], size, stages, "the steps", padding)
    return list(map(of_input, results))


def _run_steps(
    recurrence: Recurrence,
    operands: Sequence[Input | Const],
    results: Sequence[Input],
    length: Dimension,
    stages: Stages,
    title: str,
    padding: Dimension = 0,
) -> None:
    """Add the kernels of all steps, several if one would exceed `max_iterations`; states may begin with a constant.

    `padding` is the number of steps that keep the states, of the chunk that runs first.
    """
    features, count = stages.features, recurrence.states
    states: Sequence[Input | Const] = list(operands[:count])
    fitting = partial(_fitting, recurrence, operands, features=features, length=length, padding=padding)
    whole = fitting(states, results)
    if isinstance(length, Size):
        if whole.iterations(features) > features.max_iterations:
            raise _TooManyStepsError
        stages.add(whole, whole.targets[0], title)
        return
    steps = length
    if whole.iterations(features) > features.max_iterations:
        once = fitting(states, results, end=1).iterations(features)
        steps = max(1, features.max_iterations // max(once, whole.iterations(features) // length + 1) - 1)
    for start in range(0, length, steps):
        end = min(start + steps, length)
        last = results[:count]
        if end < length:
            last = [stages.array(STATES[state.desc.data_type], state.desc.shape) for state in results[:count]]
        program = fitting(states, [*last, *results[count:]], start=start, end=end)
        if program.iterations(features) > features.max_iterations:
            raise NotSupportedError("a step repeats loops too often for this device")
        stages.add(program, program.targets[0], title if steps == length else f"{title}, {start} to {end}")
        states = last


def _fitting(
    recurrence: Recurrence,
    operands: Sequence[Input | Const],
    states: Sequence[Input | Const],
    results: Sequence[Input],
    features: Features,
    length: Dimension,
    padding: Dimension,
    start: int = 0,
    end: int | None = None,
) -> Workgroups:
    """The program for steps from `start` to `end`, with as many rows for each workgroup as the device has memory for."""
    _check_types(recurrence)
    tile = 0
    while True:
        steps = _RepeatedStep(recurrence, [*states, *operands[recurrence.states :]], results, features, tile)
        program = steps.program(length, start, length if end is None else end, padding)
        if program.shared_bytes <= features.max_shared:
            break
        if steps.tile == 1:
            raise NotSupportedError(f"a row takes {program.shared_bytes} bytes of workgroup memory")
        tile = steps.tile // 2
    if len(set(program.sources) | set(program.targets)) > features.max_buffers:
        raise NotSupportedError(f"it takes more than {features.max_buffers} buffers")
    return program


class _RepeatedStep:
    """A program of workgroups that runs steps for `tile` rows each; 0 for a size that keeps the device busy."""

    def __init__(
        self,
        recurrence: Recurrence,
        operands: Sequence[Input | Const],
        results: Sequence[Input],
        features: Features,
        tile: int,
    ) -> None:
        self.recurrence, self.operands, self.results = recurrence, operands, results
        count = recurrence.states
        self.divided = divided = divide_step(recurrence, all_outputs=True)
        rows = rows_of(divided, count)
        self.extents = [row.extent for row in rows]
        self.count = math.prod(self.extents)
        # Axis of an array -> the number of the rows along it.
        self.axes = {
            array: {row.axes[array]: number for number, row in enumerate(rows) if array in row.axes}
            for array in {array for row in rows for array in row.axes}
        }
        arrays: list[Output | Stored] = [*divided.first.outputs]
        if divided.second is not None:
            arrays += [*divided.second.outputs]
        self.size = max((math.prod(self.rest(array)) for array in arrays), default=1)
        if self.size > MAX_ELEMENTS:
            raise NotSupportedError(f"a row has {self.size} elements, and at most {MAX_ELEMENTS} fit into a workgroup")
        self.is_elementwise = self.size == 1 and not any(program.stored for program in divided.programs)
        self.tile = tile or self._tile_for(features)
        groups = -(-self.count // self.tile)
        self.workgroups = Workgroups([groups], width=self.tile * self.size)
        self.width = self.workgroups.invocations(features)
        following = divided.second.inputs[len(recurrence.step.inputs) :] if divided.second is not None else ()
        self.states = [self._local(source) for source in divided.first.inputs[:count]]
        self.in_place = self._can_replace()
        self.new = self.states if self.in_place else [self._local(source) for source in divided.first.inputs[:count]]
        self.locals: dict[Any, Local] = dict(zip(divided.first.inputs[:count], self.states, strict=True))
        self.locals.update(zip(following, self.new, strict=True) if following else ())
        self.time: Expr = Const(0, "index")
        self.length: Dimension = 0
        self.padding: Dimension = 0
        self.is_backward = any(along.backward for along in recurrence.inputs if along is not None)

    def _tile_for(self, features: Features) -> int:
        most, count = min(256, features.max_invocations), estimate(self.count)
        tile = max(1, min(most // self.size, count))
        least = MIN_WIDTH if self.is_elementwise else 1
        while tile > least and -(-count // tile) < features.units:
            tile = max(least, tile // 2)
        return tile

    def rest(self, array: Input | Output | Stored) -> list[int]:
        """The sizes of the axes within a row, without those of size 1."""
        return [array.desc.shape[axis] for axis in self._inner(array)]

    def _inner(self, array: Any) -> list[int]:
        """The axes within a row, without those of size 1."""
        own = self.axes.get(array, {})
        return [axis for axis, size in enumerate(array.desc.shape) if axis not in own and not is_same_size(size, 1)]

    def _local(self, array: Input) -> Local:
        shape = [self.tile, *self.rest(array)]
        data_type = STATES[array.desc.data_type]
        if self.is_elementwise:
            return self.workgroups.private_array(shape, data_type)
        return self.workgroups.shared_array(shape, data_type)

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

    def program(self, length: Dimension, start: int, end: Dimension, padding: Dimension) -> Workgroups:
        """The program for the steps from `start` to `end`."""
        divided, count, program = self.divided, self.recurrence.states, self.workgroups
        self.length, self.padding = length, padding
        first = divided.first
        for source, operand, local in zip(first.inputs, self.operands, self.states, strict=False):
            tile, rest = self._variables(source)
            at = self._position(source, tile, rest)
            value: Expr = operand if isinstance(operand, Const) else Load(operand, at)
            self._fill(local, (tile, *rest), self._as_kept(value, source))
        with program.repeat(end - start) as number:
            self.time = ir.call("add", number.body, Const(start, "index"))
            for stored in first.stored:
                self._store(stored)
            for index, output in zip(divided.early, first.outputs[count:], strict=True):
                self._write(index, output)
            for source, output, local in zip(first.inputs, first.outputs[:count], self.new, strict=False):
                tile, rest = self._variables(output)
                body = self._hoist(self._localise(output, tile, rest), (tile, *rest))
                self._fill(local, (tile, *rest), self._unless_padding(self._as_kept(body, source), output, tile, rest))
            if divided.second is not None:
                for stored in divided.second.stored:
                    self._store(stored)
                for index, output in zip(divided.late, divided.second.outputs, strict=True):
                    self._write(index, output)
            for source, new, local in zip(first.inputs, self.new, self.states, strict=False):
                if new is not local:
                    tile, rest = self._variables(source)
                    self._fill(local, (tile, *rest), Load(new, (tile, *rest)))
        for source, result, local in zip(first.inputs, self.results, self.states, strict=False):
            tile, rest = self._variables(source)
            self._add_write(result, (tile, *rest), self._position(source, tile, rest), Load(local, (tile, *rest)))
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

    def _position(self, array: Input | Output | Stored, tile: Index, rest: Sequence[Expr]) -> tuple[Expr, ...]:
        """The position in a whole array of an element of a row."""
        rows = self._rows(tile)
        places = {axis: rows[number] for axis, number in self.axes.get(array, {}).items()}
        places |= dict(zip(self._inner(array), rest, strict=True))
        return tuple(places.get(axis, Const(0, "index")) for axis in range(array.desc.rank))

    def _at_time(self, parts: Sequence[Expr], axis: int, is_backward: bool) -> tuple[Expr, ...]:
        time = self.time
        if is_backward:
            time = ir.call("sub", Const(self.length - 1, "index"), time)
        return (*parts[:axis], time, *parts[axis:])

    def _localise(self, array: Output | Stored, tile: Index, rest: Sequence[Index]) -> Expr:
        """The element of an array of the step, which reads states in local arrays and slices in sequences."""
        step, count = self.recurrence.step, self.recurrence.states
        done: dict[Expr, Expr] = dict(zip(array.axes, self._position(array, tile, rest), strict=True))
        inputs = {source: number for number, source in enumerate(step.inputs)}
        for node in walk(array.body):
            if node in done:
                continue
            parts = tuple(done[part] for part in node.parts)
            if not isinstance(node, Load):
                done[node] = node.rebuild(parts)
            elif node.source in self.locals:
                within = tuple(parts[axis] for axis in self._inner(node.source))
                done[node] = self._as_type(Load(self.locals[node.source], (tile, *within)), node.type)
            else:
                assert isinstance(node.source, Input)
                number = inputs[node.source]
                along = self.recurrence.inputs[number - count]
                at = parts if along is None else self._at_time(parts, along.axis, along.backward)
                operand = self.operands[number]
                assert isinstance(operand, Input)
                done[node] = Load(operand, at if along is None else self._join_time(operand, at, along.axis))
        return done[array.body]

    @staticmethod
    def _as_type(body: Expr, type: ir.Type) -> Expr:
        return body if body.type == type else Cast(body, type)

    def _as_kept(self, body: Expr, state: Input) -> Expr:
        """An element of a new state, rounded to its data type."""
        data_type = state.desc.data_type
        if data_type == "float16":
            return Cast(
                Cast(body, "float16") if body.type == "float32" else Cast(Cast(body, "float32"), "float16"), "float32"
            )
        return self._as_type(body, data_type)

    def _fill(self, target: Local, axes: tuple[Index, ...], body: Expr) -> None:
        self.workgroups.statements.append(Fill(target, axes, body))

    def _add_write(self, target: Input, axes: tuple[Index, ...], at: tuple[Expr, ...], body: Expr) -> None:
        self.workgroups.statements.append(Write(target, axes, at, self._as_type(body, target.desc.data_type)))

    def _write(self, index: int, output: Output) -> None:
        """Write an output of a step."""
        along, target = self.recurrence.outputs[index], self.results[self.recurrence.states + index]
        tile, rest = self._variables(output)
        body = self._hoist(self._localise(output, tile, rest), (tile, *rest))
        at = self._at_time(self._position(output, tile, rest), along.axis, along.backward)
        self._add_write(target, (tile, *rest), self._join_time(target, at, along.axis), body)

    def _join_time(self, sequence: Input, at: tuple[Expr, ...], axis: int) -> tuple[Expr, ...]:
        """The position in a sequence whose axis of time is, in the step, an axis of chunks before that of time."""
        if len(at) == sequence.desc.rank:
            return at
        position = self._from_first_chunk(at[axis - 1], at[axis])
        if not is_same_size(self.padding, 0):  # what is written in steps of the padding is overwritten by a later step
            if self.is_backward:
                position = ir.call("min", position, Const(sequence.desc.shape[axis - 1] - 1, "index"))
            else:
                position = ir.call("max", ir.call("sub", position, Const(self.padding, "index")), Const(0, "index"))
        return (*at[: axis - 1], position, *at[axis + 1 :])

    def _from_first_chunk(self, chunk: Expr, time: Expr) -> Expr:
        """The position in the sequence of all chunks, with the padding."""
        return ir.call("add", ir.call("mul", chunk, Const(self.length, "index")), time)

    def _unless_padding(self, body: Expr, state: Output, tile: Index, rest: Sequence[Index]) -> Expr:
        """An element of a new state, whose first axis is that of chunks; steps of padding keep the old element."""
        if is_same_size(self.padding, 0):
            return body
        number = next(k for k, output in enumerate(self.divided.first.outputs) if output is state)
        old = Load(self.states[number], (tile, *rest))
        (time,) = self._at_time((), 0, self.is_backward)
        position = self._from_first_chunk(self._position(state, tile, rest)[0], time)
        count = state.desc.shape[0]
        if self.is_backward:
            is_step = ir.call("lesser", position, Const(count * self.length - self.padding, "index"))
        else:
            is_step = ir.call("greater_or_equal", position, Const(self.padding, "index"))
        return ir.call("where", is_step, body, old)

    def _store(self, stored: Stored) -> None:
        """Compute an array that the step stores."""
        tile, rest = self._variables(stored)
        body = self._hoist(self._localise(stored, tile, rest), (tile, *rest))
        data_type = STATES.get(stored.desc.data_type)
        if data_type is None:
            raise NotSupportedError(f"kernels keep no arrays of {stored.desc.data_type}")
        self.locals[stored] = local = self.workgroups.shared_array([self.tile, *self.rest(stored)], data_type)
        self._fill(local, (tile, *rest), self._as_type(body, data_type))

    # Sums ------------------------------------------------------------------------------------------------------------

    def _hoist(self, body: Expr, axes: tuple[Index, ...]) -> Expr:
        """Compute reductions before the elements, if several elements need them, or few invocations would be busy."""
        if self.is_elementwise:
            return body
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
            return self._as_type(Reduce(node.reduction, (again,), Load(partial, (again, *free))), node.type)
        if set(free) == context:
            return node
        total = self.workgroups.shared_array([v.extent for v in free] or [1], data_type)
        if not free:
            self._keep(total, (Index(1),), node)
            return self._as_type(Load(total, (Const(0, "index"),)), node.type)
        self._keep(total, free, node)
        return self._as_type(Load(total, free), node.type)

    def _keep(self, target: Local, axes: tuple[Index, ...], body: Expr) -> None:
        """Compute a local array, with new variables."""
        fresh: dict[Expr, Expr] = {axis: Index(axis.extent) for axis in axes}
        own = tuple(axis for axis in fresh.values() if isinstance(axis, Index))
        self._fill(target, own, self._as_type(ir.substitute(body, fresh), target.desc.data_type))
