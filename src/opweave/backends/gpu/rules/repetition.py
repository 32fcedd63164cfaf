"""Recurrences that users and converters declare: one kernel runs all steps.

A kernel runs all steps for rows: parts of a state that do not depend on each other (`expr.recurrent_step`). Rows are in
registers if they are short, and a step reads each element at its own position or in sums over the row (`rows_in_registers`),
else in workgroup memory (`rows_in_workgroups`). Linear steps of few elements run in chunks of time (`expr.prefix`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, TypeAlias

from ....core.bodies import MAX_UNROLLED_STEPS
from ....core.graph import Desc, Node, iter_operands, map_operands
from ....core.guards import estimate
from ....core.operation import Op
from ....core.size_bounds import names_in_empty
from ....core.size_values import variables_in
from ....core.sizes import Dimension, Size, is_symbolic
from ....expr import ir
from ....expr.array import Traced
from ....expr.gpu import Features, Workgroups
from ....expr.ir import Const, Input, Output, Reduce, Source, Stored, walk
from ....expr.prefix import ChunkedRecurrence, to_chunks
from ....expr.recurrence import Recurrence
from ....expr.recurrent_step import divide_step, rows_of
from ....expr.tracing import of_input
from ....kernels.recurrence import recurrence_of
from ....support.errors import NotSupportedError
from .recurrent_rows import STATES, KernelSteps
from .results import Staged, Stages, source_of
from .rows_in_registers import ELEMENTS_OF_MANY_ROWS, RowsInRegisters, rows_in_registers
from .rows_in_workgroups import rows_in_workgroups

INVOCATIONS_OF_UNIT = 1024
"""Invocations of all chunks for each unit of the device: half of its threads. On an H200, 1024 steps of a selective scan of
[768, 16] take 235 us at once and 20 us in 16 chunks, 4096 steps of [1536, 16] take 1928 and 139 us."""

MIN_CHUNK = 32
"""The smallest number of steps of a chunk: some unrolled loops. Measured as above."""

MIN_CHUNKS = 4
"""The smallest number of chunks: they read their sequences twice. An estimate."""

MIN_FREE_CHUNKS = 8
"""Steps are divided only if the device can run this many chunks at once. On an H200, 1024 steps of a selective scan of
[8, 2048, 16] take 475 us in 4 chunks and 366 us undivided; those of [8, 1024, 16] take 246 us in 8 chunks and 347 us
undivided."""

MAX_CHUNK_RATIO = 2
"""A number of chunks without padding is taken if the best one is at most so many times as large. An estimate."""

RowsProgram: TypeAlias = RowsInRegisters | Workgroups
"""A kernel that runs all steps for each row."""


class _TooManyStepsError(NotSupportedError):
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
    except _TooManyStepsError:
        return set(), variables_in((length,))
    except NotSupportedError:  # the decomposition may run once sizes are numbers
        return variables_in(tuple(extents)), set()
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
            chunked = _run_in_chunks(recurrence, parts, count, operands, stages)
        except _TooManyStepsError:
            raise
        except NotSupportedError:  # too many buffers, or too much memory
            del stages.stages[before:]
        else:
            # An operation in chunks of tokens may carry the states between them by this recurrence.
            stages.remark = stages.remark or f"in {count} chunks of steps"
            return chunked
    descs = [operand.desc for operand in operands]
    results = [stages.array(desc.data_type, desc.shape) for desc in recurrence.results_for(descs)]
    _run_steps(recurrence, operands, results, recurrence.length_for(descs), stages, "the steps")
    return list(map(of_input, results))


def _chunk_count(recurrence: Recurrence, operands: Sequence[Input], features: Features) -> int:
    """The number of chunks of time that keep the device busy.

    Only the chunk that runs first has steps of padding, besides at least one other step.
    """
    length = recurrence.length_for([operand.desc for operand in operands])
    typical = estimate(length)
    # The steps of a chunk follow each other twice, and the chunks once: 2 length / count + count, least for this count. For
    # named numbers of steps it is half of that, which is valid for all numbers from half of the typical one on.
    best = math.isqrt(typical // 2 if isinstance(length, Size) else 2 * typical)
    free = features.units * INVOCATIONS_OF_UNIT // _invocations(recurrence)
    most = min(free, typical // MIN_CHUNK, best)
    if free < MIN_FREE_CHUNKS or most < MIN_CHUNKS:
        return 1
    size = -(-length // most)
    if isinstance(length, Size):
        return most if (most - 1) * size < length else 1
    least = max(MIN_CHUNKS, most // MAX_CHUNK_RATIO)
    return next((count for count in range(most, least - 1, -1) if length % count == 0), -(-length // size))


def _invocations(recurrence: Recurrence) -> int:
    """The number of invocations that keep the states of a step in registers."""
    elements = max(
        (estimate(source.desc.element_count) for source in recurrence.step.inputs[: recurrence.states]), default=1
    )
    rows = math.prod(
        estimate(row.extent) for row in rows_of(divide_step(recurrence, all_outputs=True), recurrence.states)
    )
    return max(1, rows, elements // ELEMENTS_OF_MANY_ROWS)


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
    factors, first, last = arrays_of(parts.factors), arrays_of(parts.steps), arrays_of(parts.steps)
    title, run = "the factors and sums of chunks", partial(_run_steps, in_chunks=True)
    run(parts.factors, [*parts.units, *others], factors, size, stages, title, padding)
    combined = [*results[:states], *first]
    _run_steps(parts.combine, [*operands[:states], *factors], combined, count, stages, "the states before chunks")
    run(parts.steps, [*first, *others], [*last, *results[states:]], size, stages, "the steps", padding)
    return list(map(of_input, results))


def _run_steps(
    recurrence: Recurrence,
    operands: Sequence[Input | Const],
    results: Sequence[Input],
    length: Dimension,
    stages: Stages,
    title: str,
    padding: Dimension = 0,
    *,
    in_chunks: bool = False,
) -> None:
    """Add the kernels of all steps, several if one would exceed `max_iterations`; states may begin with a constant.

    `padding` is the number of steps that keep the states, of the chunk that runs first. See `KernelSteps` for `in_chunks`.
    """
    features, count = stages.features, recurrence.states
    states: Sequence[Input | Const] = list(operands[:count])
    program_for = partial(_program, recurrence, operands, features=features)
    steps_between = partial(KernelSteps, length, padding=padding, in_chunks=in_chunks)
    whole = program_for(states, results, steps=steps_between(0, length))
    if isinstance(length, Size):
        if whole.iterations(features) > features.max_iterations:
            raise _TooManyStepsError
        stages.add(whole, whole.targets[0], title)
        return
    steps = length
    if whole.iterations(features) > features.max_iterations:
        once = program_for(states, results, steps=steps_between(0, 1)).iterations(features)
        steps = max(1, features.max_iterations // max(once, whole.iterations(features) // length + 1) - 1)
    for start in range(0, length, steps):
        end = min(start + steps, length)
        last = results[:count]
        if end < length:
            last = [stages.array(STATES[state.desc.data_type], state.desc.shape) for state in results[:count]]
        program = program_for(states, [*last, *results[count:]], steps=steps_between(start, end))
        if program.iterations(features) > features.max_iterations:
            raise NotSupportedError("a step repeats loops too often for this device")
        stages.add(program, program.targets[0], title if steps == length else f"{title}, {start} to {end}")
        states = last


def _program(
    recurrence: Recurrence,
    operands: Sequence[Input | Const],
    states: Sequence[Input | Const],
    results: Sequence[Input],
    features: Features,
    steps: KernelSteps,
) -> RowsProgram:
    """The program for some steps: rows are in registers if they fit, else in workgroup memory."""
    _check_types(recurrence)
    arguments = recurrence, [*states, *operands[recurrence.states :]], results, steps, features
    program: RowsProgram
    try:
        program = rows_in_registers(*arguments)
    except NotSupportedError:
        program = rows_in_workgroups(*arguments)
    if len(set(program.sources) | set(program.targets)) > features.max_buffers:
        raise NotSupportedError(f"it takes more than {features.max_buffers} buffers")
    return program
