"""Control flow, and parts of programs: `torch.no_grad` blocks, `torch.cond`, `scan` and `while_loop`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree

from ..composites.control import loop
from ..core.bodies import add_input, body_of
from ..core.graph import Desc, MLOperand
from ..core.sizes import is_same_shape
from ..support.errors import NotSupportedError
from .labels import place_of
from .registry import NotConvertible, refuse_if

if TYPE_CHECKING:
    from .convert import Frame

CONTROL: dict[str, Callable[..., Any]] = {}
"""Name of a higher-order operator -> what converts a call: `(frame, node, *args, **kwargs)`."""

MAX_UNROLLED = 8
"""The largest number of steps of a loop to write out; others repeat one step. An estimate: graphs grow with each step."""


def _handles(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        CONTROL[name] = function
        return function

    return register


def run_part(frame: Frame, part: Any, values: Sequence[Any], nodes: Sequence[Any] = ()) -> Any:
    """Convert a part of a program; writes to its inputs are writes to `nodes`, the arguments of a call that runs once."""
    inner = type(frame)(frame.owner, part, values, frame.label, records=frame.records and bool(nodes))
    if not nodes:
        return inner.run_apart()
    outputs = inner.run()
    for node, old, placeholder in zip(nodes, values, inner.inputs, strict=True):
        new = inner.values[placeholder]
        if new is not old:
            frame.views.write(node, new)
    return outputs


@_handles("wrap_with_set_grad_enabled")
def _(frame: Frame, node: Any, enabled: bool, part: Any, *values: Any) -> Any:
    return run_part(frame, part, values, node.args[2:])


@_handles("wrap_with_autocast")
def _(frame: Frame, node: Any, device: Any, dtype: Any, enabled: bool, cache: Any, part: Any, *values: Any) -> Any:
    if enabled:
        raise NotSupportedError(
            f"from_torch: {place_of(node)} runs under torch.autocast, which the program does not express; convert the module "
            f"by module.to({dtype}), and remove the autocast, or use create_context(precision=…) for faster products"
        )
    return run_part(frame, part, values, node.args[5:])


@_handles("invoke_subgraph")
def _(frame: Frame, node: Any, part: Any, identifier: Any, *values: Any) -> Any:
    return run_part(frame, part, values, node.args[2:])


@_handles("hints_wrapper")
def _(frame: Frame, node: Any, part: Any, values: Any, kwargs: Any, hints: Any) -> Any:
    return run_part(frame, part, values)


@_handles("cond")
def _(frame: Frame, node: Any, predicate: Any, true_part: Any, false_part: Any, values: Any) -> Any:
    if isinstance(predicate, torch.Tensor):
        predicate = bool(predicate.item())
    if isinstance(predicate, bool):
        return run_part(frame, true_part if predicate else false_part, values)
    refuse_if(
        not isinstance(predicate, MLOperand), "the condition depends on sizes that are known only when the graph runs"
    )
    b, own = frame.builder, frame.owner
    # Both branches are computed, and the condition selects: branches have no side effects.
    chosen = []
    for yes, no in zip(
        *(_pytree.tree_leaves(list(run_part(frame, part, values))) for part in (true_part, false_part)), strict=True
    ):
        yes, no = own.operand_of(yes), own.operand_of(no)
        refuse_if(not isinstance(yes, MLOperand) or not isinstance(no, MLOperand), "a branch returns a number")
        refuse_if(yes.shape != no.shape, "the branches return different shapes")
        chosen.append(b.where(b.reshape(predicate, []) if predicate.rank else predicate, yes, no))
    return tuple(chosen)


@_handles("scan")
def _(frame: Frame, node: Any, part: Any, initial: Any, inputs: Any, more: Any = ()) -> Any:
    states, sequences, others = (_operands_of(frame, values) for values in (initial, inputs, more))
    refuse_if(not sequences, "it has no sequences")
    length = sequences[0].shape[0]
    if isinstance(length, int) and 0 < length <= MAX_UNROLLED:
        return _unroll_scan(frame, part, states, sequences, others, length)
    builder, read = _inside(frame)
    rows = [Desc(x.data_type, x.shape[1:]) for x in sequences]
    own = [read(desc) for desc in (*(state.desc for state in states), *rows, *(x.desc for x in others))]
    results = list(builder.run(part, own, frame.label))
    new = results[: len(states)]
    _check_states(states, new)
    return loop(frame.builder, states, sequences, others, body=body_of(builder.builder, own, results), length=length)


def _unroll_scan(
    frame: Frame,
    part: Any,
    carried: Sequence[Any],
    sequences: Sequence[MLOperand],
    others: Sequence[MLOperand],
    length: int,
) -> Any:
    """Write all steps out."""
    b, count, columns = frame.builder, len(carried), list[list[MLOperand]]()
    for step in range(length):
        rows = [
            b.reshape(b.slice(x, [step] + [0] * (x.rank - 1), [1, *x.shape[1:]]), list(x.shape[1:])) for x in sequences
        ]
        outputs = [frame.owner.operand_of(value) for value in run_part(frame, part, [*carried, *rows, *others])]
        carried, elements = outputs[:count], outputs[count:]
        columns = columns or [[] for _ in elements]
        for column, element in zip(columns, elements, strict=True):
            column.append(b.reshape(element, [1, *element.shape]))
    return (*carried, *(column[0] if length == 1 else b.concat(column, 0) for column in columns))


@_handles("while_loop")
def _(frame: Frame, node: Any, condition: Any, body: Any, initial: Any, more: Any = ()) -> Any:
    unrolled = _unroll_while(frame, condition, body, initial, more)
    if unrolled is not None:
        return unrolled
    states, others = (_operands_of(frame, values) for values in (initial, more))
    refuse_if(not states, "it has no states")
    first = _flag_of(frame.builder, run_part(frame, condition, [*states, *others]))
    builder, read = _inside(frame)
    own = [read(operand.desc) for operand in (*states, *others)]
    new = list(builder.run(body, own, frame.label))
    _check_states(states, new)
    going = _flag_of(builder.builder, builder.run(condition, [*new, *own[len(states) :]], frame.label))
    return loop(
        frame.builder, states, [], others, None, first,
        body=body_of(builder.builder, own, [going, *new]), gives_condition=True,
    )  # fmt: skip


def _unroll_while(frame: Frame, condition: Any, body: Any, initial: Any, more: Any) -> Any:
    """Write out a loop whose conditions are known and soon false; None for other loops."""
    values = list(initial)
    for _ in range(MAX_UNROLLED + 1):
        answer = run_part(frame, condition, [*values, *more])
        answer = answer[0] if isinstance(answer, (tuple, list)) else answer
        if isinstance(answer, torch.Tensor):
            answer = bool(answer.item())
        if not isinstance(answer, bool):
            return None
        if not answer:
            return tuple(values)
        values = list(run_part(frame, body, [*values, *more]))
    return None


# ---------------------------------------------------------------------------------------------------------------------
# Bodies


class _Inside:
    """Converts parts of a program in a separate builder; the parts read nothing but their inputs."""

    def __init__(self, frame: Frame) -> None:
        own = frame.owner
        self.builder = type(own.builder)(own.builder.context)
        self._kind, self._owner = type(frame), type(own)(self.builder, own.names, takes_fallback=False)

    def run(self, part: Any, values: Sequence[MLOperand], label: str) -> list[MLOperand]:
        """The results of a part, as operands."""
        try:
            outputs = self._kind(self._owner, part, values, label).run_apart()
        except NotSupportedError as error:
            raise NotConvertible(str(error).removeprefix("from_torch: ")) from None
        operands = [
            self._owner.operand_of(value) for value in (outputs if isinstance(outputs, (tuple, list)) else [outputs])
        ]
        refuse_if(not all(isinstance(o, MLOperand) for o in operands), "its steps return numbers")
        return operands


def _inside(frame: Frame) -> tuple[_Inside, Callable[[Desc], MLOperand]]:
    """A conversion of parts, and a function that declares their next input."""
    inside, names = _Inside(frame), itertools.count()
    return inside, lambda desc: add_input(inside.builder, f"in {next(names)}", desc)


def _operands_of(frame: Frame, values: Sequence[Any]) -> list[MLOperand]:
    operands = [frame.owner.operand_of(value) for value in values]
    refuse_if(not all(isinstance(operand, MLOperand) for operand in operands), "it takes numbers")
    return operands


def _check_states(states: Sequence[MLOperand], new: Sequence[MLOperand]) -> None:
    for number, (before, after) in enumerate(zip(states, new, strict=True)):
        is_kept = before.data_type == after.data_type and is_same_shape(before.shape, after.shape)
        refuse_if(not is_kept, f"its state {number} is {before.desc} before, and {after.desc} after a step")


def _flag_of(b: Any, result: Any) -> MLOperand:
    """The result of a condition as a scalar of uint8."""
    answer = result[0] if isinstance(result, (tuple, list)) else result
    refuse_if(not isinstance(answer, MLOperand), "its condition is a number")
    operand: MLOperand = answer if answer.data_type == "uint8" else b.cast(b.not_equal(answer, 0), "uint8")
    return b.reshape(operand, []) if operand.rank else operand
