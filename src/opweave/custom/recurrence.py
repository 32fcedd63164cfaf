"""Declare recurrences: operations given by the formula of a step, which is repeated along an axis of time."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal as Literal, overload

import numpy as np

from ..core.bodies import MAX_UNROLLED_STEPS
from ..core.dtypes import numpy_type
from ..core.graph import Builder, Desc, Operand, iter_operands, map_operands, title
from ..expr.recurrence import Along, Recurrence
from ..kernels.expression import descs_of, program_of
from ..kernels.recurrence import RecurrenceKernel
from ..ops.constants import constant
from ..support.errors import MLError, NotSupportedError, ValidationError, require, user_code
from ..support.names import count_of
from .declare import expression
from .operation import CustomOp, Declared, forget
from .signatures import check_function

if TYPE_CHECKING:
    from ..ops import Operations

_ADDED = ("axis", "direction")
"""Attributes of all recurrences, behind those of the step."""


@overload
def recurrence(function: Callable[..., Declared], /) -> CustomOp[Declared]: ...
@overload
def recurrence(
    *, states: str | Sequence[str] = ..., constants: str | Sequence[str] = ...
) -> Callable[[Callable[..., Declared]], CustomOp[Declared]]: ...
def recurrence(
    function: Callable[..., Any] | None = None,
    /,
    *,
    states: str | Sequence[str] = (),
    constants: str | Sequence[str] = (),
) -> Any:
    """Declare an operation by the formula of a step, which is repeated along an axis of time.

    The step is a formula as those of `opweave.expression`, of whole slices: its operands are the states, the slices of the
    sequences at one time, and constants. It returns the states after the step, then any number of outputs. It may reduce over
    axes, as in the product of a state with a vector.

    The operation takes the states before the first step, whole sequences, and constants, in the order of the step's
    parameters, and its attributes. It has two more attributes: `axis`, the axis of time of all sequences (default:
    0; negative ones count from the end of each sequence), and `direction`, "forward" (default) or "backward", which begins
    with the last slices. It returns the states after the last step, then the outputs of all steps, with the axis of time.
    With sequences of length 0, the final states are the first ones.

    Args:
        function: the step. Operands are its positional parameters, attributes its keyword-only ones.
        states: names of the first parameters, which are states; default: the first one.
        constants: names of the parameters that all steps get whole. All other operands are sequences.

    Returns:
        The operation. `operation.step` is the step alone, an expression.

    Raises:
        ValidationError: the function has parameters without a name, none that is a sequence, or attributes called `axis` or
            `direction`. When the operation is called: sequences of different lengths, or a step that does not return each
            state in its data type and shape.

    >>> import numpy as np, opweave as ow
    >>> @ow.recurrence
    ... def smooth(level, x, *, share: float = 0.5):
    ...     level = level + (x - level) * share
    ...     return level, level
    >>> last, levels = smooth(np.float32([0]), np.float32([[4], [4], [0]]))
    >>> last.tolist(), levels.tolist()
    ([1.5], [[2.0], [3.0], [1.5]])
    """
    if function is None:
        return lambda function: _declare(function, _names(states), _names(constants))
    return _declare(function, (), ())


def _names(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _declare(function: Callable[..., Any], states: tuple[str, ...], constants: tuple[str, ...]) -> CustomOp[Any]:
    check_function(function)
    step: CustomOp[Any] = expression(function)
    forget(step)
    name, operands = function.__name__, step.operands
    states = states or operands[:1]
    for role, names in (("states", states), ("constants", constants)):
        unknown = [item for item in names if item not in operands]
        require(
            not unknown, f"{name}: {role} are positional parameters of the step, {list(operands)}; got {list(names)}"
        )
        require(len(set(names)) == len(names), f"{name}: {role} must be different, got {list(names)}")
    require(
        states == operands[: len(states)],
        f"{name}: states are the first parameters of the step, {list(operands)}; got {list(states)}",
    )
    both = [item for item in states if item in constants]
    require(not both, f"{name}: an operand is a state or a constant, got {both} as both")
    sequences = tuple(item for item in operands if item not in states and item not in constants)
    require(len(sequences) > 0, f"{name}: a step takes the slices of at least one sequence, got {list(operands)}")
    taken = [item for item in step.attributes if item in _ADDED]
    require(not taken, f"{name}: every recurrence has the attributes {list(_ADDED)}; rename the attribute {taken}")
    roles = _Roles(step, states, constants)

    def rule(builder: Builder, *, label: str = "", **arguments: Any) -> tuple[Desc, ...] | Desc:
        inputs = {item: arguments[item] for item in operands}
        attributes = {item: arguments[item] for item in operation.attributes}
        try:
            descs = roles.results_for(descs_of(inputs), attributes)
        except MLError:
            raise
        except Exception as error:
            error.add_note(f"for {title(name, label)}")
            raise
        return descs if len(descs) > 1 else descs[0]

    operation: CustomOp[Any] = CustomOp(rule, _with_attributes(function), skip=0, limits={})
    operation.source = function
    operation.widens = False
    operation.step = step
    operation.__doc__ = inspect.getdoc(function) or ""
    operation.recurrence = roles.recurrence_for
    operation.kernels["cpu"] = RecurrenceKernel()
    operation.decomposition = roles.unroll
    return operation


def _with_attributes(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function with the signature of `function`, and the attributes of all recurrences."""

    def declaration() -> None:
        """Stand for the step."""

    signature = inspect.signature(function)
    keyword = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter("axis", keyword, default=0, annotation="int"),
        inspect.Parameter("direction", keyword, default="forward", annotation='Literal["forward", "backward"]'),
    ]
    declaration.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *added])  # type: ignore[attr-defined]
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(declaration, name, getattr(function, name))
    return declaration


class _Roles:
    """The operands of a step by their roles."""

    def __init__(self, step: CustomOp[Any], states: Sequence[str], constants: Sequence[str]) -> None:
        self.step, self.states, self.constants = step, states, constants

    def recurrence_for(self, inputs: Mapping[str, Any], attributes: Mapping[str, Any]) -> Recurrence:
        """The recurrence for descriptors of operands, and attributes, both by name."""
        axis, is_backward = attributes["axis"], attributes["direction"] == "backward"
        slices: dict[str, Desc | None] = {}
        alongs: list[Along | None] = []
        for name, desc in inputs.items():
            slices[name] = desc
            if desc is None or name in self.states:
                continue
            along = None if name in self.constants else Along(_axis_of(name, axis, desc.rank), is_backward)
            alongs.append(along)
            if along is not None:
                slices[name] = along.slice_of(desc)
        step = program_of(self.step, slices, {name: attributes[name] for name in self.step.attributes})
        count = sum(inputs[name] is not None for name in self.states)
        with user_code(self.step.source, f"in the step of {self.step.name}"):
            got = f"got {count_of(len(step.outputs), 'array')}"
            require(
                len(step.outputs) >= count, f"the step must return {count_of(count, 'state')}, then any outputs, {got}"
            )
            outputs = [
                Along(_axis_of(f"output {number}", axis, output.desc.rank + 1), is_backward)
                for number, output in enumerate(step.outputs[count:])
            ]
            return Recurrence(step, count, tuple(alongs), tuple(outputs))

    def results_for(self, inputs: Mapping[str, Any], attributes: Mapping[str, Any]) -> tuple[Desc, ...]:
        recurrence = self.recurrence_for(inputs, attributes)
        return recurrence.results_for(list(iter_operands(inputs)))

    def unroll(self, builder: Operations, /, **arguments: Any) -> tuple[Operand, ...] | Operand:
        """The decomposition: a copy of the step for each slice."""
        operands = {name: arguments[name] for name in self.step.operands}
        attributes = {name: arguments[name] for name in self.step.attributes}
        recurrence = self.recurrence_for(descs_of(operands), arguments)

        def step(values: Sequence[Operand]) -> Sequence[Operand]:
            rest = iter(values)
            inputs = map_operands(operands, lambda _: next(rest))
            results = self.step.add(builder, (), {**inputs, **attributes})
            return (results,) if isinstance(results, Operand) else results

        results = unroll(builder, recurrence, list(iter_operands(operands)), step)
        return results if len(results) > 1 else results[0]


def _axis_of(name: str, axis: int, rank: int) -> int:
    require(-rank <= axis < rank, f"axis must be in [{-rank}, {rank}) for {name} with {rank} axes, got {axis}")
    return axis % rank


def unroll(
    b: Operations,
    recurrence: Recurrence,
    operands: Sequence[Operand],
    step: Callable[[Sequence[Operand]], Sequence[Operand]],
) -> tuple[Operand, ...]:
    """Write a recurrence out: `step` adds the operations of a step, and returns the results.

    Raises:
        NotSupportedError: there are more than `MAX_UNROLLED_STEPS` steps.
    """
    length, count = int(recurrence.length_for([operand.desc for operand in operands])), recurrence.states
    if length > MAX_UNROLLED_STEPS:
        raise NotSupportedError(
            f"{recurrence.name}: it has {length} steps, and at most {MAX_UNROLLED_STEPS} can be written out as operations"
        )
    inputs = list(zip(operands[count:], recurrence.inputs, strict=True))
    descs = [output.desc for output in recurrence.step.outputs[count:]]
    outputs = list(zip(descs, recurrence.outputs, strict=True))
    return unroll_steps(b, length, operands[:count], inputs, outputs, lambda _, values: step(values))


def unroll_steps(
    b: Operations,
    length: int,
    states: Sequence[Operand],
    inputs: Sequence[tuple[Operand, Along | None]],
    outputs: Sequence[tuple[Desc, Along]],
    step: Callable[[int, Sequence[Operand]], Sequence[Operand]],
) -> tuple[Operand, ...]:
    """Add the operations of all steps of a loop to a builder; return the final states, and the sequences of its outputs.

    Args:
        b: the builder.
        length: the number of steps.
        states: the first states.
        inputs: sequences with their axis of time, and arrays, with None, that all steps read whole.
        outputs: the descriptor of a slice of each output, and the axis of time of the sequence that collects the slices.
        step: takes the number of a step, and its states and inputs; returns the new states, then the outputs.
    """
    count = len(states)
    collected: list[list[Operand]] = [[] for _ in outputs]
    for number in range(length):
        slices = []
        for operand, along in inputs:
            if along is None:
                slices.append(operand)
                continue
            starts, sizes = [0] * operand.rank, list(operand.shape)
            starts[along.axis], sizes[along.axis] = along.position(number, length), 1
            slices.append(b.reshape(b.slice(operand, starts, sizes), along.slice_of(operand.desc).shape))
        results = step(number, [*states, *slices])
        states = results[:count]
        for (_, along), parts, result in zip(outputs, collected, results[count:], strict=True):
            parts.append(b.reshape(result, along.desc_of(result.desc, 1).shape))
    sequences = []
    for (desc, along), parts in zip(outputs, collected, strict=True):
        if along.backward:
            parts.reverse()
        if not parts:
            empty = np.empty(along.desc_of(desc, 0).shape, numpy_type(desc.data_type))
            sequences.append(constant(b, empty, desc.data_type))
        else:
            sequences.append(parts[0] if len(parts) == 1 else b.concat(parts, along.axis))
    return (*states, *sequences)


# ---------------------------------------------------------------------------------------------------------------------
# Recurrences made by programs


def _recur(self: Builder, operands: Sequence[Operand], *, recurrence: Recurrence, label: str = "") -> Any:
    """Repeat the step of a recurrence that a program made, such as the body of ONNX's Scan."""
    count = len(recurrence.step.inputs)
    require(len(operands) == count, f"{recurrence.name} takes {count_of(count, 'operand')}, got {len(operands)}")
    alongs = (*[None] * recurrence.states, *recurrence.inputs)
    for along, source, operand in zip(alongs, recurrence.step.inputs, operands, strict=True):
        desc = operand.desc
        fits = desc.rank == source.desc.rank + (along is not None)
        if not fits or (desc if along is None else along.slice_of(desc)) != source.desc:
            shown = source.desc if along is None else f"a sequence of {source.desc} along axis {along.axis}"
            raise ValidationError(f"{source.name or f'operand {source.number}'} must be {shown}, got {desc}")
    return recurrence.results_for([operand.desc for operand in operands])


recur: CustomOp[Any] = CustomOp(_recur, _recur, skip=1, limits={}, annotated=True)
"""`recur(builder, operands, recurrence=…)`: the operation of all recurrences that programs make; returns a tuple."""
recur.name = recur.__name__ = recur.__qualname__ = "recur"
recur.widens = False
recur.recurrence = lambda inputs, attributes: attributes["recurrence"]
recur.kernels["cpu"] = RecurrenceKernel()
forget(recur)


@recur.decompose
def _(b: Operations, operands: tuple[Operand, ...], recurrence: Recurrence) -> tuple[Operand, ...]:
    from ..expr.decompose import decompose

    return unroll(b, recurrence, operands, lambda values: decompose(recurrence.step, b, values))
