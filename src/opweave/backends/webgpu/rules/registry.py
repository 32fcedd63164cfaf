"""The table of rules, and how one is added and applied."""

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
