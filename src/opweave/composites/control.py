"""Control flow in a graph: `loop` repeats a body, `branch` computes one of two.

These are no composites for users: ONNX's Loop, Scan and If become them, as do other loops that packages convert. A body is a
graph (`core.bodies`), which is compiled once. An engine that has such operators gets the body as a part of its model;
elsewhere the runtime repeats the compiled body (`run.repeated`).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..core.bodies import MAX_UNROLLED_NODES, MAX_UNROLLED_STEPS, Body
from ..core.conversion import Unconverted as Unconverted
from ..core.dtypes import ANY
from ..core.graph import Builder, Desc, Operand
from ..core.operation import Limits, N
from ..core.size_possibilities import may_equal_shape
from ..core.size_scope import UnknownSizeError
from ..core.sizes import Size
from ..custom.recurrence import unroll_steps
from ..expr.recurrence import Along
from ..ops.constants import constant
from ..support.errors import NotSupportedError, require
from .declare import declare

if TYPE_CHECKING:
    from ..ops import Operations

POSITION = Desc("int64", ())
"""The number of the iteration, the first input of a body that takes it."""

FLAG = Desc("uint8", ())
"""Whether a loop continues, the first output of a body that decides it."""


@declare(
    states=Limits(ANY),
    scanned=Limits(ANY, ranks=(1, N)),
    captured=Limits(ANY),
    count=Limits(("int64",), ranks=(0, 1)),
    condition=Limits(("uint8",), ranks=(0, 1)),
)
def loop(
    self: Builder,
    states: Sequence[Operand],
    scanned: Sequence[Operand],
    captured: Sequence[Operand],
    count: Operand | None = None,
    condition: Operand | None = None,
    *,
    body: Unconverted,
    length: Unconverted = None,
    takes_position: bool = False,
    gives_condition: bool = False,
    backward: Sequence[int] = (),
    stacked_backward: Sequence[int] = (),
    label: str = "",
) -> tuple[Desc, ...]:
    """Repeat a body, whose states are the input of the next iteration.

    The body takes, in this order: the number of the iteration (int64 scalar, with `takes_position`), the states, one slice of
    each scanned operand along its first axis, the captured operands. It returns: whether to continue (uint8 scalar, with
    `gives_condition`), the states, and elements that are stacked along a new first axis.

    Args:
        states: the first states. The body returns states of the same data types and shapes.
        scanned: operands of `length` slices.
        captured: operands that the body reads as a whole.
        count: int64 of one element, the number of iterations; not with `length`.
        condition: uint8 of one element, whether there is a first iteration.
        body: a `Body`.
        length: the number of iterations; None if `count` or the condition alone ends the loop.
        takes_position: whether the body takes the number of the iteration.
        gives_condition: whether the body gives a condition, without which the next iteration does not run.
        backward: for each scanned operand, 1 if the last slice comes first. Default: 0.
        stacked_backward: for each stacked output, 1 if the first element comes last. Default: 0.

    Returns: The last states, then `[length, ...]` of each stacked output, which need a loop without conditions and `count`.
    Raises: data types, shapes or numbers of operands do not fit the body.

    >>> import numpy as np
    >>> from opweave.core.bodies import make_body
    >>> from opweave.ops.recorder import Recorder
    >>> step = make_body(Recorder(), [Desc("float32", ()), Desc("float32", ())], lambda b, total, x: [total + x, total * x])
    >>> total, products = loop([np.float32(0)], [np.float32([1, 2, 3])], [], body=step, length=3)
    >>> total.item(), products.tolist()
    (6.0, [0.0, 2.0, 9.0])
    """
    require(isinstance(body, Body), f"body must be a Body, got {type(body).__name__}")
    ends_early = gives_condition or condition is not None or count is not None
    require(length is None or count is None, "length and count must not be given together")
    whole = isinstance(length, Size) or (isinstance(length, int) and length >= 0)
    require(length is None or whole, f"length must be an integer of at least 0, got {length!r}")
    require(length is not None or ends_early, "length, count or a condition must end the loop")
    require(not scanned or length is not None, "scanned operands need a length")
    for k, operand in enumerate(scanned):
        has_slices = operand.rank > 0 and may_equal_shape(operand.shape[:1], (length,))
        require(has_slices, f"scanned[{k}] must have {length} slices, got {operand.desc}")
    taken = [POSITION] if takes_position else []
    taken += [operand.desc for operand in states]
    taken += [Desc(operand.data_type, operand.shape[1:]) for operand in scanned]
    taken += [operand.desc for operand in captured]
    _check_descs("the body takes", body.inputs, taken)
    outputs = body.outputs
    lead = 1 if gives_condition else 0
    require(
        len(outputs) >= lead + len(states), f"the body gives {len(outputs)} values, and there are {len(states)} states"
    )
    kept = [FLAG] if gives_condition else []
    _check_descs("the body gives", outputs[: lead + len(states)], [*kept, *(operand.desc for operand in states)])
    elements = outputs[lead + len(states) :]
    require(not (elements and ends_early), "stacked outputs need a loop whose number of iterations is known")
    require(len(elements) + len(states) > 0, "the body must give a state or an element")
    _check_directions("backward", backward, len(scanned))
    _check_directions("stacked_backward", stacked_backward, len(elements))
    stacked = [Desc(desc.data_type, (length, *desc.shape)) for desc in elements]
    return (*(operand.desc for operand in states), *stacked)


loop.bodies = ("body",)


def _check_descs(subject: str, descs: Sequence[Desc], expected: Sequence[Desc]) -> None:
    require(len(descs) == len(expected), f"{subject} {len(descs)} values, expected {len(expected)}")
    for k, (desc, other) in enumerate(zip(descs, expected, strict=True)):
        fits = desc.data_type == other.data_type and may_equal_shape(desc.shape, other.shape)
        require(fits, f"{subject} {desc} as value {k}, expected {other}")


def _check_directions(name: str, directions: Sequence[int], number: int) -> None:
    fits = len(directions) in (0, number) and all(direction in (0, 1) for direction in directions)
    require(fits, f"{name} must be 0 or 1 for each of {number}, got {list(directions)}")


def directions_of(directions: Sequence[int], number: int) -> tuple[bool, ...]:
    """Whether each of `number` operands is read or written backward; by default, none is."""
    return tuple(map(bool, directions)) or (False,) * number


def stacked_number(body: Body, states: Sequence[Any], gives_condition: bool) -> int:
    """The number of stacked outputs of a loop."""
    return len(body.outputs) - len(states) - bool(gives_condition)


@loop.decompose
def _(
    b: Operations,
    states: tuple[Operand, ...],
    scanned: tuple[Operand, ...],
    captured: tuple[Operand, ...],
    count: Operand | None,
    condition: Operand | None,
    body: Body,
    length: int | None,
    takes_position: bool,
    gives_condition: bool,
    backward: Sequence[int],
    stacked_backward: Sequence[int],
) -> tuple[Operand, ...]:
    try:
        if length is None or gives_condition or condition is not None:
            raise UnknownSizeError
        length = operator.index(length)
    except UnknownSizeError:
        reason = "its number of iterations is known only when it runs"
        raise NotSupportedError(f"loop: it is not unrolled, since {reason}") from None
    nodes = length * len(body.graph.nodes)
    if length > MAX_UNROLLED_STEPS or nodes > MAX_UNROLLED_NODES:
        limit = f"at most {MAX_UNROLLED_STEPS} iterations and {MAX_UNROLLED_NODES} operations are unrolled"
        raise NotSupportedError(f"loop: it has {length} iterations of {len(body.graph.nodes)} operations, and {limit}")
    backwards = directions_of(backward, len(scanned))
    stacked = body.outputs[len(states) :]
    stacked_backwards = directions_of(stacked_backward, len(stacked))

    def step(number: int, values: Sequence[Operand]) -> Sequence[Operand]:
        position = [constant(b, number, "int64")] if takes_position else []
        return body.call(b, [*position, *values, *captured])

    return unroll_steps(
        b,
        length,
        states,
        [(operand, Along(0, is_backward)) for operand, is_backward in zip(scanned, backwards, strict=True)],
        [(desc, Along(0, is_backward)) for desc, is_backward in zip(stacked, stacked_backwards, strict=True)],
        step,
    )


@declare(condition=Limits(("uint8",), ranks=(0, 1)), captured=Limits(ANY))
def branch(
    self: Builder,
    condition: Operand,
    captured: Sequence[Operand],
    *,
    body: Unconverted,
    other: Unconverted,
    label: str = "",
) -> tuple[Desc, ...]:
    """Compute one of two bodies, chosen by a value that is known only when the graph runs.

    Args:
        condition: uint8 of one element.
        captured: the operands that both bodies take.
        body: the `Body` for a condition that is not 0.
        other: the `Body` for the condition 0; it gives values of the same data types and shapes.

    Returns: The outputs of the body.
    Raises: data types, shapes or numbers of operands do not fit the bodies.

    >>> import numpy as np
    >>> from opweave.core.bodies import make_body
    >>> from opweave.ops.recorder import Recorder
    >>> double, negate = (
    ...     make_body(Recorder(), [Desc("float32", (2,))], function)
    ...     for function in (lambda b, x: [x + x], lambda b, x: [-x])
    ... )
    >>> [branch(np.uint8(c), [np.float32([1, 2])], body=double, other=negate)[0].tolist() for c in (1, 0)]
    [[2.0, 4.0], [-1.0, -2.0]]
    """
    descs = [operand.desc for operand in captured]
    for name, part in {"body": body, "other": other}.items():
        require(isinstance(part, Body), f"{name} must be a Body, got {type(part).__name__}")
        _check_descs(f"{name} takes", part.inputs, descs)
    _check_descs("other gives", other.outputs, body.outputs)
    return tuple(body.outputs)


branch.bodies = ("body", "other")


@branch.decompose
def _(b: Operations, condition: Operand, captured: tuple[Operand, ...], body: Body, other: Body) -> tuple[Operand, ...]:
    # Both are computed: what selects has no side effects.
    chosen = b.reshape(condition, [])
    pairs = zip(body.call(b, captured), other.call(b, captured), strict=True)
    return tuple(b.where(chosen, one, another) for one, another in pairs)
