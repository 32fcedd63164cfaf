"""Follow the batch axis through a graph, to prove that each row of the outputs depends on the same row of the inputs alone.

A model is traced twice, for different numbers of rows, and both graphs are walked side by side. Every value has either a batch
axis, or the same contents in both graphs. The proof fails where an operation may mix rows, or where the graphs differ in more
than the number of rows. An operation without a rule (see `batch_rules`) is decomposed; if it cannot be, the proof fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import ops
from ..core.graph import Node, Operand, map_operands
from ..core.operation import call_with
from ..ops.recorder import Recorder
from ..support.errors import MLError
from .batch_rules import RULES, SIZES, Axis, BatchAxis, BatchCall, NotApart


class BatchComparison:
    """Two graphs of one model, for different numbers of rows (`rows`: 2 or more in the first graph).

    Args:
        rows: the numbers of rows of both graphs; they differ.
        axes: the batch axes of inputs, by pairs of operands, one of each graph; `axis` adds the axes of all compared pairs.
        follow: returns the batch axis of another input by name, or raises `NotApart`.
    """

    def __init__(
        self,
        rows: tuple[int, int],
        axes: Mapping[tuple[Operand, Operand], Axis],
        follow: Callable[[str], Axis],
    ) -> None:
        self.axes: dict[tuple[Operand, Operand], Axis] = dict(axes)
        self._rows, self._follow = rows, follow

    def axis(self, one: Operand, other: Operand) -> Axis:
        """The batch axis of a value, given as the corresponding operands of both graphs; `NotApart` without a proof."""
        axes, pending = self.axes, [(one, other)]
        while pending:
            pair = pending[-1]
            if pair not in axes:
                missing = [need for need in self._needs(*pair) if need not in axes]
                if missing:
                    pending += missing
                    continue
                self._add(*pair)
            pending.pop()
        return axes[one, other]

    def axis_of_constant(self, one: np.ndarray, other: np.ndarray) -> Axis:
        """The batch axis of a constant with equal rows; `NotApart` if its values depend on the number of rows."""
        if one.shape == other.shape:
            if _is_same(one, other):
                return None
            raise NotApart("a constant depends on the number of rows")
        number = next((k for k, sizes in enumerate(zip(one.shape, other.shape, strict=False)) if len({*sizes}) > 1), 0)
        size = one.shape[number] if one.ndim == other.ndim and one.ndim else 0
        axis = BatchAxis(number, size // self._rows[0])
        self._check_shapes(axis, one.shape, other.shape, "a constant")
        block = np.split(other, self._rows[1], number)[0]
        parts = [*np.split(one, self._rows[0], number), *np.split(other, self._rows[1], number)]
        if not all(_is_same(part, block) for part in parts):
            raise NotApart("a constant has other values for each row")
        return axis

    def _needs(self, one: Operand, other: Operand) -> list[tuple[Operand, Operand]]:
        """The pairs whose batch axes determine the axis of this pair."""
        if (one.is_constant and other.is_constant) or (one.name and one.name == other.name):
            return []
        plain = _plain(one), _plain(other)
        if plain != (one, other):
            return [plain]
        first, second = one.node, other.node
        if first is not None and first.op is ops.expand and (second is None or second.op is not ops.expand):
            return [(first.operands[0], other)]  # one row needs no copies
        if first is None or second is None or first.op is not second.op:
            raise NotApart(f"{_title(one)} for {self._rows[0]} rows is {_title(other)} for {self._rows[1]}")
        pairs = []
        for name, value in first.inputs.items():
            values = [v if isinstance(v, tuple) else (v,) for v in (value, second.inputs[name])]
            fits = len(values[0]) == len(values[1]) and [v is None for v in values[0]] == [v is None for v in values[1]]
            if not fits:
                raise NotApart(f"{first.title} has other operands for {self._rows[0]} rows than for {self._rows[1]}")
            pairs += [(v, w) for v, w in zip(*values, strict=True) if v is not None and w is not None]
        return pairs

    def _add(self, one: Operand, other: Operand) -> None:
        """Add the batch axis of a pair, or of all results of its nodes; the axes of the operands must be present."""
        if one.is_constant and other.is_constant:
            self.axes[one, other] = self.axis_of_constant(np.asarray(one.value), np.asarray(other.value))
            return
        if one.name and one.name == other.name:
            axis = self._follow(one.name)
            self._check_shapes(axis, one.shape, other.shape, repr(one.name))
            self.axes[one, other] = axis
            return
        plain = _plain(one), _plain(other)
        if plain != (one, other):
            self.axes[one, other] = self.axes[plain]
            return
        first, second = one.node, other.node
        assert first is not None
        if first.op is ops.expand and (second is None or second.op is not ops.expand):
            if self.axes[first.operands[0], other] is not None:
                raise NotApart(f"{first.title} depends on the number of rows")
            self.axes[one, other] = self._axis_of_copies(one, other)
            return
        assert second is not None
        named = {name: self._axes_of(value, second.inputs[name]) for name, value in first.inputs.items()}
        axes = self._axes_of_results(BatchCall(first, named), second)
        for left, right, axis in zip(first.outputs, second.outputs, axes, strict=True):
            self._check_shapes(axis, left.shape, right.shape, first.title)
            self.axes[left, right] = axis
        for name in first.attributes:
            self._check_attribute(first, second, name, axes[0])

    def _axes_of(self, value: Any, other: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(self.axes[pair] for pair in zip(value, other, strict=True))
        return None if value is None else self.axes[value, other]

    def _axes_of_results(self, call: BatchCall, second: Node) -> tuple[Axis, ...]:
        node, count = call.node, len(call.node.outputs)
        axes = [axis for value in call.axes.values() for axis in (value if isinstance(value, tuple) else (value,))]
        if not any(axis is not None for axis in axes):
            is_copied = node.op is ops.expand and node.outputs[0].shape != second.outputs[0].shape
            return (self._axis_of_copies(node.outputs[0], second.outputs[0]) if is_copied else None,) * count
        if (rule := RULES.get(node.op)) is not None:
            result = rule(call)
            return result if isinstance(result, tuple) else (result,)
        if node.op.decomposition is None or node.op.kernels:
            raise NotApart(f"{node.title} may mix the rows of a batch: no rule says that it does not")
        inputs: dict[tuple[Operand, Operand], Axis] = {}
        sources = zip(node.operands, second.operands, strict=True)
        operand_axes = [self.axes[pair] for pair in sources]
        first_in, first_out = _decompose(node)
        second_in, second_out = _decompose(second)
        for left, right, axis in zip(first_in, second_in, operand_axes, strict=True):
            if not (left.is_constant and right.is_constant):
                inputs[left, right] = axis
        inner = BatchComparison(self._rows, inputs, self._follow)
        try:
            return tuple(inner.axis(left, right) for left, right in zip(first_out, second_out, strict=True))
        except NotApart as error:
            raise NotApart(f"{node.title}: {error}") from None

    def _axis_of_copies(self, one: Operand, other: Operand) -> BatchAxis:
        """The batch axis of an expanded value, whose rows are equal."""
        node = one.node
        assert node is not None
        source, count = node.operands[0], self._rows[0]
        new = [
            number
            for number, sizes in enumerate(zip(one.shape, other.shape, strict=False))
            if len({*sizes}) > 1 and sizes[0] % count == 0
        ]
        number = new[0] if len(new) == 1 and one.rank == other.rank else -1
        within = number - (one.rank - source.rank)
        if number < 0 or (within >= 0 and source.shape[within] != 1):
            raise NotApart(f"{node.title} depends on the number of rows")
        axis = BatchAxis(number, one.shape[number] // count)
        self._check_shapes(axis, one.shape, other.shape, node.title)
        return axis

    def _check_shapes(self, axis: Axis, one: Sequence[int], other: Sequence[int], label: str) -> None:
        """Require shapes that differ in the batch axis alone, and a batch axis of whole rows."""
        expected, sizes = list(one), list(self._rows)
        if axis is not None and axis.number < len(expected) and expected[axis.number] == axis.size(sizes[0]):
            expected[axis.number] = axis.size(sizes[1])
        elif axis is not None:
            expected = []
        if expected != list(other) or (axis is not None and axis.block < 1):
            raise NotApart(f"{label} has other sizes than those of the batch: {list(one)} and {list(other)}")

    def _check_attribute(self, first: Node, second: Node, name: str, axis: Axis) -> None:
        """Require attributes that differ in the size of the batch axis alone."""
        one, other = first.attributes[name], second.attributes[name]
        if axis is not None and SIZES.get(first.op) == name:
            one, other = ([*sizes[: axis.number], *sizes[axis.number + 1 :]] for sizes in (one, other))
        if repr(one) != repr(other):  # NaN equals NaN
            raise NotApart(f"{first.title}: {name} depends on the number of rows")


def _decompose(node: Node) -> tuple[list[Operand], list[Operand]]:
    """The operands and the results of an operation's decomposition."""
    builder = Recorder()
    operands: list[Operand] = []

    def follow(operand: Operand) -> Operand:
        name = "" if operand.is_constant else f"operand {len(operands)}"
        operands.append(Operand(builder, operand.desc, name=name, value=operand.value))
        return operands[-1]

    inputs = map_operands(node.inputs, follow)
    assert node.op.decomposition is not None
    try:
        result = call_with(node.op.decomposition, {**inputs, **node.attributes}, builder)
    except MLError as error:
        raise NotApart(f"{node.title} may mix the rows of a batch: {error}") from None
    return operands, [result] if isinstance(result, Operand) else list(result)


_PLAIN = (ops.reshape, ops.expand, ops.identity, ops.cast)


def _plain(operand: Operand) -> Operand:
    """Skip operations that change nothing: graphs for one row may have more or fewer of them."""
    while (node := operand.node) is not None and node.op in _PLAIN and node.operands[0].desc == operand.desc:
        operand = node.operands[0]
    return operand


def _title(operand: Operand) -> str:
    node = operand.node
    return node.title if node is not None else "a constant" if operand.is_constant else f"the input {operand.name!r}"


def _is_same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether arrays of equal shape have the same bytes; NaN equals NaN."""
    if one is other or (one.__array_interface__ == other.__array_interface__ and one.dtype == other.dtype):
        return True
    if one.dtype != other.dtype:
        return False
    if one.dtype.kind == "O":
        return bool(one.tolist() == other.tolist())
    left, right = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (one, other))
    return np.array_equal(left, right)
