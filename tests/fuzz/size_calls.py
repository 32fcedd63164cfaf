"""Random right calls for graphs whose sizes have names: operations, composites, and custom operations of all forms."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
from samples import SAMPLES, Call, type_choices
from support.composite_cases import CASES
from support.window_cases import MAKERS

import opweave as ow
from fuzz.builder import RandomMake
from fuzz.composites import OTHERS
from opweave import composites
from opweave.core.operation import Op
from opweave.ops import Operations

# Custom operations ---------------------------------------------------------------------------------------------------


@ow.op
def repeat_rows(self: Any, x: ow.MLOperand, count: int) -> ow.Desc:
    """A rule with arithmetic, and a kernel of the host."""
    return ow.Desc(x.data_type, (x.shape[0] * count, *x.shape[1:]))


@repeat_rows.kernel("cpu")
def _(x: np.ndarray, count: int, out: np.ndarray) -> None:
    out[...] = np.concatenate([x] * count)


@ow.expression
def neighbours(x: Any, y: Any) -> Any:
    """A formula with positions beside the own ones."""
    rows, columns = x.shape
    sums = ow.expr.compute(
        (rows, columns), lambda i, j: x.clamped[i + 1, j] - x.padded(1)[i, j - 1] + x[rows - 1 - i, j]
    )
    return sums + y, ow.expr.reduce_max(sums, [0])


@ow.expression
def powers(x: Any, *, count: int) -> Any:
    """A formula that asks for a number: its loop is unrolled."""
    total = x
    for k in range(x.shape[0]):
        total = total + x * (k + count)
    return total


@ow.composite
def folded(b: Any, x: Any, *, axis: int = 0) -> Any:
    """A composition that reads shapes."""
    mean = b.reduce_sum(x, axes=[axis], keep_dimensions=True)
    rest = [size for k, size in enumerate(x.shape) if k != axis]
    return b.reshape(b.concat([x, mean], axis), [x.shape[axis] + 1, *rest] if axis == 0 else [*rest, x.shape[axis] + 1])


@ow.composite
def by_steps(b: Any, x: Any) -> Any:
    """A composition that asks for a number: a loop over the first axis."""
    total = None
    for k in range(x.shape[0]):
        row = b.slice(x, [k, 0], [1, x.shape[1]])
        total = row if total is None else total * 0.5 + row
    return total


CUSTOM: dict[Any, Callable[[Any], Call]] = {
    repeat_rows: lambda make: Call(make.array("x", make.shape(1)), make.integer(1, 3)),
    neighbours: lambda make: Call(x := make.array("x", make.shape(2, 2)), make.array("x", make.broadcastable(x.shape))),
    powers: lambda make: Call(make.array("x", make.shape(1, 3)), count=make.integer(1, 3)),
    folded: lambda make: Call(make.array("x", make.shape(1, 2)), axis=0),
    by_steps: lambda make: Call(make.array("x", make.shape(2, 2))),
}
"""Custom operations, and a function that makes a call of each."""


# Composites ----------------------------------------------------------------------------------------------------------

COMPOSITES = {getattr(composites, name): make for name, make in OTHERS.items()}
"""Composites that the tables of the tests lack, and a function that makes a call of each; "x" is the type of floats."""


# Calls ---------------------------------------------------------------------------------------------------------------


class Make(RandomMake):
    """Draws the parts of a call, often with shapes of values that exist."""

    def __init__(self, rng: random.Random, types: dict[str, Any], shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__(rng, types)
        self._shapes = shapes

    def shape(self, low: int = 0, high: int = 5, largest: int = 5) -> tuple[int, ...]:
        fit = [shape for shape in self._shapes if low <= len(shape) <= high]
        if fit and low + high > 0 and self.rng.random() < 0.7:
            return self.rng.choice(fit)
        return super().shape(low, max(low, min(high, 4)), largest)

    def integer(self, low: int, high: int) -> int:
        return super().integer(low, max(low, high))  # a dimension may be 0

    def array(self, operand: str, shape: Sequence[int], low: float = -4, high: float = 4, special: bool = False) -> Any:
        return super().array(operand, shape, low, high)


@cache
def _types(op: Op[..., Any]) -> list[dict[str, Any]]:
    return list(type_choices(op, op.limits))


def draw_call(rng: random.Random, shapes: Sequence[tuple[int, ...]]) -> tuple[Op[..., Any], Call]:
    """A right call of any operation: built-in, composite, or custom."""
    kind = rng.random()
    if kind < 0.12:
        op = rng.choice(list(CUSTOM))
        return op, CUSTOM[op](Make(rng, {"x": "float32"}, shapes))
    if kind < 0.37:
        op = rng.choice([*CASES, *MAKERS, *COMPOSITES])
        shapes = [shape for shape in shapes if 0 not in shape]  # witnesses of the cases need elements
        if op in MAKERS:
            return op, MAKERS[op](rng).call
        if op in COMPOSITES:
            return op, COMPOSITES[op](Make(rng, {"x": rng.choice(("float32", "float16"))}, shapes))
        return op, CASES[op].make(Make(rng, {"x": rng.choice(list(CASES[op].types))}, shapes))[0]
    op = rng.choice(list(Operations.listing().values()))
    return op, SAMPLES[op].make(Make(rng, rng.choice(_types(op)), shapes))


def arrays_of(value: Any) -> Iterator[np.ndarray]:
    """The arrays in an argument, which stand for operands."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from arrays_of(item)
