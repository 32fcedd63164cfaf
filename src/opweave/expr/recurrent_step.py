"""Rewrite steps of recurrences: read new states instead of computing them again, take parts of rows, join several steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..core.graph import Desc
from ..core.sizes import is_same_size
from .array import axes_of, axis_variable
from .ir import (
    Call,
    Cast,
    Const,
    Expr,
    Formula,
    Index,
    Input,
    Load,
    Output,
    Reduce,
    Source,
    Stored,
    payload,
    unify,
    walk,
)
from .ranges import is_inside
from .recurrence import Recurrence


@dataclass(frozen=True, eq=False)
class DividedStep:
    """A step as two programs that run one after the other.

    Attributes:
        first: computes the new states, and then the outputs in `early`.
        early: numbers of outputs.
        second: computes the outputs in `late`; its inputs are those of the step, then the new states. None if there are none.
        late: numbers of outputs.
    """

    first: Formula
    early: tuple[int, ...]
    second: Formula | None
    late: tuple[int, ...]

    @property
    def programs(self) -> list[Formula]:
        return [self.first] if self.second is None else [self.first, self.second]


def divide_step(recurrence: Recurrence, *, all_outputs: bool = False) -> DividedStep:
    """Divide a step so that outputs which reduce new states read them, rather than compute them once more.

    With `all_outputs`, outputs that do not reduce read new states, too.

    >>> from opweave.expr import exp, reduce_sum, trace
    >>> from .recurrence import Along
    >>> def step(h, x):
    ...     h = h * exp(x)
    ...     return h, reduce_sum(h, [0])
    >>> program = trace(step, "sums", [Desc("float32", (4,)), Desc("float32", (4,))])
    >>> print(divide_step(Recurrence(program, 1, (Along(0),), (Along(0),))).second)
    sums(x0: float32[4], x1: float32[4], x2: float32[4]) -> (y0: float32[]):
      y0 =
        sum(r0 < 4: x2[r0])
    """
    step, count = recurrence.step, recurrence.states
    results, outputs = step.outputs[:count], step.outputs[count:]
    following = tuple(
        Input(len(step.inputs) + number, output.desc, f"new {step.inputs[number].name}".rstrip())
        for number, output in enumerate(results)
    )
    late: dict[int, Output] = {}
    for number, output in enumerate(outputs):
        if not all_outputs and not any(isinstance(node, Reduce) for node in walk(output.body)):
            continue
        body = output.body
        for result, new in zip(results, following, strict=True):
            if any(isinstance(node, Call) for node in walk(result.body)):
                body = _read_instead(body, result, new)
        if body is not output.body:
            late[number] = Output(output.axes, body)
    early = tuple(number for number in range(len(outputs)) if number not in late)
    first = Formula(step.name, step.inputs, (*results, *(outputs[number] for number in early)), step.checks)
    if not late:
        return DividedStep(first, early, None, ())
    return DividedStep(first, early, Formula(step.name, (*step.inputs, *following), tuple(late.values())), tuple(late))


def _read_instead(body: Expr, result: Output, new: Input) -> Expr:
    """Replace the elements of a result in `body` by loads of `new`, at whatever positions."""
    done: dict[Expr, Expr] = {}

    def enter(node: Expr) -> Sequence[Expr]:
        if node not in done and node.type == result.body.type and type(node) is type(result.body):
            positions: dict[Index, Expr] = {}
            if _matches(result.body, node, set(result.axes), positions, {}):
                zero = Const(0, "index")
                indices = tuple(
                    zero if is_same_size(axis.extent, 1) else positions.get(axis, zero) for axis in result.axes
                )
                load = Load(new, indices)
                done[node] = load if load.type == node.type else Cast(load, node.type)  # bool is stored as uint8
        return () if node in done else node.parts

    for node in walk(body, enter=enter):
        if node not in done:
            done[node] = node.rebuild(tuple(done[part] for part in node.parts))
    return done[body]


def _matches(
    pattern: Expr, node: Expr, axes: set[Index], positions: dict[Index, Expr], seen: dict[tuple[int, int], bool]
) -> bool:
    """Whether `node` is `pattern` at some positions of its axes, which are added to `positions`."""
    if isinstance(pattern, Index) and pattern in axes:
        if node.type != "index":
            return False
        if isinstance(node, Index) and not is_same_size(node.extent, pattern.extent):
            return False
        if isinstance(node, Const) and not is_inside((node.value, node.value), pattern.extent):
            return False  # an element of a longer array
        if not isinstance(node, (Index, Const)):
            return False
        return positions.setdefault(pattern, node) is node or (
            isinstance(node, Const) and isinstance(positions[pattern], Const) and node.value == positions[pattern].value  # type: ignore[attr-defined]
        )
    key = id(pattern), id(node)
    if key in seen:
        return seen[key]
    seen[key] = False
    if type(pattern) is not type(node) or pattern.type != node.type or len(pattern.parts) != len(node.parts):
        return False
    inner = axes
    if isinstance(pattern, Reduce):
        assert isinstance(node, Reduce)
        if pattern.reduction != node.reduction or len(pattern.variables) != len(node.variables):
            return False
        for variable, other in zip(pattern.variables, node.variables, strict=True):
            if not is_same_size(variable.extent, other.extent) or positions.setdefault(variable, other) is not other:
                return False
        inner = axes | set(pattern.variables)
    elif payload(pattern) != payload(node):
        return False
    seen[key] = all(
        _matches(own, other, inner, positions, seen) for own, other in zip(pattern.parts, node.parts, strict=True)
    )
    return seen[key]


# ---------------------------------------------------------------------------------------------------------------------
# Rows


@dataclass(frozen=True, eq=False)
class RowDivision:
    """Parts of all arrays of a step that do not depend on each other, such as the batches of a network.

    Attributes:
        extent: the number of rows.
        axes: the axis along which an array is divided: every output and stored array, every state, and those of the other
            inputs of which a row reads its own part only.
    """

    extent: int
    axes: dict[Source | Output, int]

    def is_contiguous(self) -> bool:
        """Whether adjacent rows are adjacent in the memory of each array."""
        return all(is_same_size(size, 1) for array, axis in self.axes.items() for size in array.desc.shape[:axis])


def rows_of(divided: DividedStep, states: int) -> list[RowDivision]:
    """All ways to divide a step into rows, one for each axis of the first state that allows it, in the order of the axes."""
    first = divided.first.inputs[0]
    sizes = enumerate(first.desc.shape) if states else ()
    candidates = (_divide(divided, states, axis) for axis, size in sizes if not is_same_size(size, 1))
    return [rows for rows in candidates if rows is not None]


def _divide(divided: DividedStep, states: int, axis: int) -> RowDivision | None:
    """The rows along an axis of the first state; None if they depend on each other."""
    programs = divided.programs
    arrays: list[Output | Stored] = []
    for program in programs:
        arrays += [*program.stored, *program.outputs]
    loads = {array: [node for node in walk(array.body) if isinstance(node, Load)] for array in arrays}
    following = programs[1].inputs[-states:] if len(programs) > 1 else ()
    # A state has three forms: as an input, as a result, and as an input of the second program.
    forms: dict[Source | Output, tuple[Source | Output, ...]] = {}
    for number in range(states):
        group: tuple[Source | Output, ...] = (divided.first.inputs[number], divided.first.outputs[number])
        group += following[number : number + 1]
        forms.update(dict.fromkeys(group, group))
    own = {*arrays, *forms}
    axes: dict[Source | Output, int] = {}
    extent = divided.first.inputs[0].desc.shape[axis]

    def assign(array: Source | Output, place: int) -> bool:
        """Divide an array along an axis; False if it is divided along another one."""
        if not is_same_size(array.desc.shape[place], extent):
            return False
        return all(axes.setdefault(form, place) == place for form in forms.get(array, (array,)))

    if not assign(divided.first.inputs[0], axis):
        return None
    while True:
        count = 0
        while count != len(axes):
            count = len(axes)
            for array in arrays:
                if not _spread(array, loads[array], axes, assign):
                    return None
        # A state that reads nothing of the others is divided along the same axis.
        others = (source for source in divided.first.inputs[:states] if source not in axes)
        state = next((source for source in others if len(source.desc.shape) > axis), None)
        if state is None:
            break
        if not assign(state, axis):
            return None
    is_complete = all(array in axes for array in own)
    return (
        RowDivision(extent, axes)
        if is_complete and all(_is_apart(array, loads[array], axes) for array in arrays)
        else None
    )


def _spread(
    array: Output | Stored,
    loads: Sequence[Load],
    axes: Mapping[Source | Output, int],
    assign: Callable[[Source | Output, int], bool],
) -> bool:
    """Divide an array and the arrays that it reads along the same rows; False if rows depend on each other."""
    for load in loads:
        place = axes.get(load.source)
        if place is None or array in axes:
            continue
        index = load.parts[place]
        if not isinstance(index, Index) or index not in array.axes or not assign(array, array.axes.index(index)):
            return False
    if array not in axes:
        return True
    variable = array.axes[axes[array]]
    return all(assign(load.source, load.parts.index(variable)) for load in loads if variable in load.parts)


def _is_apart(array: Output | Stored, loads: Sequence[Load], axes: dict[Source | Output, int]) -> bool:
    """Whether the elements of a row depend only on the same row of other arrays."""
    variable = array.axes[axes[array]]
    for node in walk(array.body):
        if variable in node.parts and not isinstance(node, Load):
            return False
    if array.body is variable:
        return False
    for load in loads:
        place = axes.get(load.source)
        for number, index in enumerate(load.parts):
            is_row = number == place
            if (index is variable) != is_row or (index is not variable and variable in index.free):
                return False
    return True


def take_rows(program: Formula, rows: RowDivision, count: int) -> Formula:
    """The program for `count` adjacent rows."""
    arrays: dict[Source, Source] = {}

    def desc_of(array: Source | Output) -> Desc:
        if array not in rows.axes:
            return array.desc
        shape = list(array.desc.shape)
        shape[rows.axes[array]] = count
        return Desc(array.desc.data_type, tuple(shape))

    def copy(array: Output | Stored) -> Expr:
        variable = array.axes[rows.axes[array]]
        position: Expr = Const(0, "index") if count == 1 else axis_variable(variable.axis, count)
        done: dict[Expr, Expr] = {}
        for node in walk(array.body):
            if node is variable:
                done[node] = position
            elif isinstance(node, Load):
                done[node] = Load(arrays[node.source], tuple(done[part] for part in node.parts))
            else:
                done[node] = node.rebuild(tuple(done[part] for part in node.parts))
        return done[array.body]

    for source in program.inputs:
        arrays[source] = Input(source.number, desc_of(source), source.name)
    for stored in program.stored:
        arrays[stored] = Stored(axes_of(desc_of(stored).shape), copy(stored))
    bodies = unify(*map(copy, program.outputs))
    outputs = tuple(
        Output(axes_of(desc_of(output).shape), body) for output, body in zip(program.outputs, bodies, strict=True)
    )
    inputs = tuple(source for source in map(arrays.__getitem__, program.inputs) if isinstance(source, Input))
    return Formula(program.name, inputs, outputs)


# ---------------------------------------------------------------------------------------------------------------------
# Several steps


def join_steps(recurrence: Recurrence, count: int) -> Formula | None:
    """Several steps as one program, whose states stay in registers; None unless the step is element-wise.

    An input that is a slice of a sequence becomes `count` inputs, and an output `count` outputs, in the order of the steps.
    """
    step = recurrence.step
    if not step.is_pointwise or len({output.axes for output in step.outputs}) != 1:
        return None
    inputs: list[Input] = []
    forms: dict[Source, list[Input]] = {}
    for along, source in zip((*[None] * recurrence.states, *recurrence.inputs), step.inputs, strict=True):
        forms[source] = [Input(len(inputs) + k, source.desc, source.name) for k in range(1 if along is None else count)]
        inputs += forms[source]
    states: dict[Source, Expr] = {}
    slices: list[list[Expr]] = [[] for _ in recurrence.outputs]
    bodies: tuple[Expr, ...] = ()
    for number in range(count):
        done: dict[Expr, Expr] = {}
        for node in walk(*(output.body for output in step.outputs)):
            if isinstance(node, Load) and node.source in states:
                done[node] = states[node.source]
            elif isinstance(node, Load):
                form = forms[node.source]
                done[node] = Load(form[number % len(form)], node.parts)
            else:
                done[node] = node.rebuild(tuple(done[part] for part in node.parts))
        bodies = tuple(done[output.body] for output in step.outputs)
        for source, body in zip(step.inputs, bodies[: recurrence.states], strict=False):
            states[source] = as_read(body, source.desc)
        for parts, body in zip(slices, bodies[recurrence.states :], strict=True):
            parts.append(body)
    axes = step.outputs[0].axes
    results = unify(*bodies[: recurrence.states], *(body for parts in slices for body in parts))
    return Formula(step.name, tuple(inputs), tuple(Output(axes, body) for body in results))


def as_read(body: Expr, desc: Desc) -> Expr:
    """A value as a load of the array that stores it: bool as uint8, and float16 rounded."""
    if body.type != desc.data_type:
        return Cast(body, desc.data_type)
    is_rounded = isinstance(body, (Load, Cast))
    return Cast(Cast(body, "float32"), "float16") if desc.data_type == "float16" and not is_rounded else body
