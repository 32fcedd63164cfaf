"""Rows of recurrences: independent parts of states, which kernels compute separately.

Kernels have two forms: rows in registers (`rows_in_registers`), and rows in workgroup memory (`rows_in_workgroups`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ....core.dtypes import DataType
from ....core.sizes import Dimension, is_same_size
from ....expr import ir
from ....expr.ir import Cast, Const, Expr, Input, Load, Output, Stored
from ....expr.recurrence import Recurrence
from ....expr.recurrent_step import divide_step, rows_of

STATES: dict[DataType, DataType] = {
    "float32": "float32",
    "float16": "float32",
    "int32": "int32",
    "uint32": "uint32",
}
"""Data types of states -> those in which kernels keep them."""

_FIRST = Const(0, "index")


@dataclass(frozen=True, slots=True)
class KernelSteps:
    """The steps of a kernel: those from `start` to `end`, of `length` steps.

    With an axis of chunks, the first chunk that runs begins with `padding` steps that leave states unchanged. `in_chunks` is
    true if other chunks keep the device busy while one waits for memory.
    """

    length: Dimension
    start: int
    end: Dimension
    padding: Dimension = 0
    in_chunks: bool = False

    @property
    def count(self) -> int:
        """The number of steps, which may be a `Size`."""
        return self.end - self.start


class RecurrentRows:
    """The rows of a recurrence, and the positions of their elements in whole arrays; initial states may be constants.

    Attributes:
        extents: the sizes of the axes of rows.
        count: the number of rows.
        axes: for each array that is divided, its axes of rows -> the numbers of these axes.
    """

    def __init__(
        self, recurrence: Recurrence, operands: Sequence[Input | Const], results: Sequence[Input], steps: KernelSteps
    ) -> None:
        self.recurrence, self.operands, self.results, self.steps = recurrence, operands, results, steps
        self.divided = divide_step(recurrence, all_outputs=True)
        rows = rows_of(self.divided, recurrence.states)
        self.extents = [row.extent for row in rows]
        self.count = math.prod(self.extents)
        self.axes = {
            array: {row.axes[array]: number for number, row in enumerate(rows) if array in row.axes}
            for array in {array for row in rows for array in row.axes}
        }
        self.is_backward = any(along.backward for along in recurrence.inputs if along is not None)
        self.before = self.divided.first.inputs[: recurrence.states]
        late = self.divided.second
        self.following = late.inputs[len(recurrence.step.inputs) :] if late is not None else ()
        self._numbers = {source: number for number, source in enumerate(recurrence.step.inputs)}

    def inner(self, array: Any) -> list[int]:
        """The axes within a row, without those of size 1."""
        own = self.axes.get(array, {})
        return [axis for axis, size in enumerate(array.desc.shape) if axis not in own and not is_same_size(size, 1)]

    def rest(self, array: Input | Output | Stored) -> list[int]:
        """The sizes of the axes within a row, without those of size 1."""
        return [array.desc.shape[axis] for axis in self.inner(array)]

    def position(self, array: Input | Output | Stored, rows: Sequence[Expr], rest: Sequence[Expr]) -> tuple[Expr, ...]:
        """The position in a whole array of an element of a row, whose position along each axis of rows is `rows`."""
        places = {axis: rows[number] for axis, number in self.axes.get(array, {}).items()}
        places |= dict(zip(self.inner(array), rest, strict=True))
        return tuple(places.get(axis, _FIRST) for axis in range(array.desc.rank))

    def read(self, node: Load, at: tuple[Expr, ...], time: Expr) -> Load:
        """The element of an operand that a step reads `at` a position."""
        assert isinstance(node.source, Input)
        number = self._numbers[node.source]
        operand, along = self.operands[number], self.recurrence.inputs[number - self.recurrence.states]
        assert isinstance(operand, Input)
        if along is not None:
            at = self._join_time(operand, self._at_time(at, along.axis, along.backward, time), along.axis)
        return Load(operand, at)

    def target(self, index: int, at: tuple[Expr, ...], time: Expr) -> tuple[Input, tuple[Expr, ...]]:
        """The sequence of an output, and the position in it of the element that a step computes `at` a position."""
        along, sequence = self.recurrence.outputs[index], self.results[self.recurrence.states + index]
        at = self._at_time(at, along.axis, along.backward, time)
        return sequence, self._join_time(sequence, at, along.axis)

    def unless_padding(self, body: Expr, old: Expr, state: Output, at: Sequence[Expr], time: Expr) -> Expr:
        """The element of a new state `at` a position, whose first axis is that of chunks; steps of padding keep it."""
        padding, length = self.steps.padding, self.steps.length
        if is_same_size(padding, 0):
            return body
        (time,) = self._at_time((), 0, self.is_backward, time)
        position = self._from_first_chunk(at[0], time)
        if self.is_backward:
            is_step = ir.call("lesser", position, Const(state.desc.shape[0] * length - padding, "index"))
        else:
            is_step = ir.call("greater_or_equal", position, Const(padding, "index"))
        return ir.call("where", is_step, body, old)

    def _at_time(self, at: Sequence[Expr], axis: int, is_backward: bool, time: Expr) -> tuple[Expr, ...]:
        if is_backward:
            time = ir.call("sub", Const(self.steps.length - 1, "index"), time)
        return (*at[:axis], time, *at[axis:])

    def _join_time(self, sequence: Input, at: tuple[Expr, ...], axis: int) -> tuple[Expr, ...]:
        """Merge the axes of chunks and time at a position of the step into the axis of time of a sequence."""
        if len(at) == sequence.desc.rank:
            return at
        position = self._from_first_chunk(at[axis - 1], at[axis])
        padding = self.steps.padding
        if not is_same_size(padding, 0):  # what is written in steps of the padding is overwritten by a later step
            if self.is_backward:
                position = ir.call("min", position, Const(sequence.desc.shape[axis - 1] - 1, "index"))
            else:
                position = ir.call("max", ir.call("sub", position, Const(padding, "index")), Const(0, "index"))
        return (*at[: axis - 1], position, *at[axis + 1 :])

    def _from_first_chunk(self, chunk: Expr, time: Expr) -> Expr:
        """The position in the sequence of all chunks, with the padding."""
        return ir.call("add", ir.call("mul", chunk, Const(self.steps.length, "index")), time)


def as_type(body: Expr, type: ir.Type) -> Expr:
    return body if body.type == type else Cast(body, type)


def round_to(body: Expr, data_type: DataType) -> Expr:
    """An element of a new state, rounded to its data type."""
    if data_type == "float16" and body.type == "float16":  # arithmetic is float32
        body = Cast(body, "float32")
    return as_type(body, data_type)
