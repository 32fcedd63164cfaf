"""Every operation as an index expression: what one element of its result is, as a function of its position.

    @rule(ops.transpose)
    def _(input: Array, permutation: Sequence[int]) -> Array: ...

A rule takes the op's own parameters, those it needs, by name: an `Array` for an operand, a tuple of them for a sequence, None
for one that is absent, and attributes as they are. It returns the result, or a tuple of results. What is computed once, where
several elements need it (the sum of a softmax), is for the kernels to decide, and what is computed together for the schedule.
Operations with a formula of their own (`Op.formula`) need no rule, and the recurrent ones are decomposed.

Positions are written as the mathematics says them; `opweave.expr.simplify` takes away what they do not need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from ....expr.array import Array
from ....operation import Op, call_with


@dataclass(frozen=True, slots=True)
class Scatter:
    """A result that is a copy of an array but for some elements, in no particular order.

    Attributes:
        into: what is copied.
        shape: how many elements are written then; for each position `p` in it, `result[at(*p)] = value(*p)`.
        at: takes a position, and returns an index for each axis of the result, all of them inside of it.
        value: takes a position, and returns the element to write there.
    """

    into: Array
    shape: tuple[int, ...]
    at: Callable[..., Sequence[Array]]
    value: Callable[..., Array]


Result: TypeAlias = Array | Scatter | tuple[Array, ...]
RuleFunction: TypeAlias = Callable[..., Result]
_Rule = TypeVar("_Rule", bound=RuleFunction)

RULES: dict[Op[..., Any], RuleFunction] = {}


def rule(*ops: Op[..., Any]) -> Callable[[_Rule], _Rule]:
    """Register the decorated function as the rule of `ops`."""

    def register(function: _Rule) -> _Rule:
        for op in ops:
            assert op not in RULES, op
            RULES[op] = function
        return function

    return register


def lower(op: Op[..., Any], inputs: Mapping[str, Any], attributes: Mapping[str, Any]) -> Result:
    """What `op` makes of arrays: by its rule, or else by its formula.

    Args:
        op: an operation that has one of them.
        inputs: an array for each operand by name, a tuple of them for a sequence, None for an absent one.
        attributes: by name.
    """
    function = RULES.get(op) or op.formula
    assert function is not None, op
    result: Result = call_with(function, {**inputs, **attributes})
    return result


from . import (  # noqa: E402  (the rules register themselves)
    convolution as convolution,
    indexing as indexing,
    matrix as matrix,
    movement as movement,
    normalization as normalization,
    pooling as pooling,
    quantization as quantization,
    reduction as reduction,
)
