"""Rules for each operation: the batch axis of the results by the batch axes of the operands."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeAlias

from .. import composites, ops
from ..core.graph import Node, Operand
from ..core.operation import Op


class NotApart(Exception):  # noqa: N818  (the result of a search for a proof)
    """There is no proof that rows are independent; the message has the reason."""


@dataclass(frozen=True, slots=True)
class BatchAxis:
    """The axis of a value along which the rows of the batch are stored.

    A reshape may merge the batch with the axes before and after it: then element i of axis `number` belongs to row
    `i // block % rows`, and the axis has `repeats * rows * block` elements.
    """

    number: int
    block: int = 1
    repeats: int = 1

    def with_number(self, number: int) -> BatchAxis:
        """Return this layout of rows for the axis `number`."""
        return replace(self, number=number)

    def size(self, rows: int) -> int:
        """The number of elements along the axis."""
        return self.repeats * rows * self.block


Axis: TypeAlias = BatchAxis | None
"""The batch axis of a value; None for a value that depends neither on the batch nor on its size."""


@dataclass(frozen=True, slots=True)
class BatchCall:
    """A node of the first graph, and the batch axes of its operands by name: a tuple for a sequence."""

    node: Node
    axes: Mapping[str, Any]

    def __getitem__(self, attribute: str) -> Any:
        return self.node.attributes[attribute]

    def operand(self, name: str) -> Operand:
        """The operand of a parameter."""
        operand = self.node.inputs[name]
        assert isinstance(operand, Operand)
        return operand

    def require_fixed(self, *names: str) -> None:
        """Require that operands do not depend on the batch."""
        for name in names:
            if self.axes[name] is not None:
                raise NotApart(f"{self.node.title}: {name} depends on the batch")

    def only(self, name: str) -> BatchAxis:
        """The batch axis of an operand; no other operand may have one."""
        self.require_fixed(*(other for other in self.axes if other != name))
        axis = self.axes[name]
        assert isinstance(axis, BatchAxis)
        return axis

    def axis_outside(self, axes: Collection[int]) -> BatchAxis:
        """The batch axis of `input`, which is none of the axes along which the operation computes."""
        axis = self.only("input")
        if axis.number in axes:
            raise self.mixing_error()
        return axis

    def mixing_error(self) -> NotApart:
        """The error for an operation that computes along the batch axis."""
        return NotApart(f"{self.node.title} computes along the batch")


Rule: TypeAlias = Callable[[BatchCall], "Axis | tuple[Axis, ...]"]

RULES: dict[Op[..., Any], Rule] = {}
"""Rules that return the batch axis of the result, or of each result; at least one operand has a batch axis."""

SIZES = {ops.reshape: "new_shape", ops.expand: "new_shape", ops.slice: "sizes"}
"""The attribute that contains the size of the result's batch axis."""


def _rule(*operations: Op[..., Any]) -> Callable[[Rule], Rule]:

    def declare(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(operations, rule))
        return rule

    return declare


def _common_axis(call: BatchCall, axes: Sequence[Axis]) -> BatchAxis:
    """The batch axis that all operands with a batch axis share."""
    (axis, *others) = {axis for axis in axes if axis is not None}
    if others:
        raise NotApart(f"{call.node.title}: the batch is along different axes of its operands")
    return axis


def _broadcast_axis(call: BatchCall, operands: Mapping[str, Operand], rank: int, shift: int = 0) -> BatchAxis:
    """The batch axis of operands that are broadcast to `rank` axes, but for the last `shift` ones."""
    axes = {
        name: axis.with_number(axis.number + rank - operand.rank)
        for name, operand in operands.items()
        if (axis := call.axes[name]) is not None
    }
    common = _common_axis(call, list(axes.values()))
    if common.number >= rank - shift:
        raise call.mixing_error()
    for name, operand in operands.items():
        number = common.number - (rank - operand.rank)
        if name not in axes and number >= 0 and operand.shape[number] != 1:
            raise NotApart(f"{call.node.title}: {name} has a value for each row of the batch")
    return common


_ELEMENTWISE = """
add sub mul div max min pow where prelu equal not_equal greater greater_or_equal lesser lesser_or_equal
logical_and logical_or logical_xor logical_not is_nan is_infinite
abs ceil cos erf exp floor identity log neg reciprocal round_even sign sin sqrt tan cast clamp
elu gelu hard_sigmoid hard_swish leaky_relu linear relu sigmoid softplus softsign tanh quantize_linear dequantize_linear
"""


@_rule(*(getattr(ops, name) for name in _ELEMENTWISE.split()))
def _elementwise(call: BatchCall) -> Axis:
    operands = {name: value for name, value in call.node.inputs.items() if isinstance(value, Operand)}
    return _broadcast_axis(call, operands, call.node.outputs[0].rank)


@_rule(ops.triangular)
def _(call: BatchCall) -> Axis:
    rank = call.operand("input").rank
    return call.axis_outside((rank - 2, rank - 1))


@_rule(ops.softmax, ops.cumulative_sum, ops.batch_normalization, ops.split)
@_rule(composites.log_softmax, composites.hard_max, composites.top_k)
def _along_axis(call: BatchCall) -> tuple[Axis, ...]:
    return (call.axis_outside((call["axis"],)),) * len(call.node.outputs)


@_rule(ops.layer_normalization, ops.reverse, ops.resample2d)
def _along_axes(call: BatchCall) -> Axis:
    return call.axis_outside(call["axes"])


@_rule(*(op for name, op in ops.Operations.listing().items() if name.startswith("reduce_")))
def _reduction(call: BatchCall) -> Axis:
    return _axis_after_reduction(call, call["axes"])


@_rule(ops.arg_max, ops.arg_min)
def _(call: BatchCall) -> Axis:
    return _axis_after_reduction(call, (call["axis"],))


def _axis_after_reduction(call: BatchCall, axes: Sequence[int]) -> BatchAxis:
    axis = call.axis_outside(axes)
    removed = 0 if call["keep_dimensions"] else sum(other < axis.number for other in axes)
    return axis.with_number(axis.number - removed)


@_rule(ops.instance_normalization, ops.conv2d, ops.conv_transpose2d)
def _of_images(call: BatchCall) -> Axis:
    return call.axis_outside(_axes_but(call, "n"))


@_rule(ops.average_pool2d, ops.l2_pool2d, ops.max_pool2d)
def _(call: BatchCall) -> Axis:
    return call.axis_outside(_axes_but(call, "nc"))


@_rule(composites.average_pool, composites.lp_pool, composites.max_pool)
def _(call: BatchCall) -> Axis:
    return call.axis_outside(range(2, call.operand("input").rank))


@_rule(composites.convolution, composites.conv_transpose)
def _(call: BatchCall) -> Axis:
    return call.axis_outside(range(1, call.operand("input").rank))


def _axes_but(call: BatchCall, letters: str) -> list[int]:
    """The axes of the layout whose letters are not in `letters`."""
    layout: str = call.node.attributes.get("layout") or call["input_layout"]
    return [number for number, letter in enumerate(layout) if letter not in letters]


@_rule(ops.matmul)
def _(call: BatchCall) -> Axis:
    a, b = call.operand("a"), call.operand("b")
    rank = call.node.outputs[0].rank
    if call.axes["b"] is None and call.axes["a"].number == a.rank - 2:
        return call.only("a").with_number(rank - 2)
    if call.axes["a"] is None and call.axes["b"].number == b.rank - 1:
        return call.only("b").with_number(rank - 1)
    return _broadcast_axis(call, {"a": a, "b": b}, rank, shift=2)


@_rule(ops.gemm)
def _(call: BatchCall) -> Axis:
    places = []
    for name, inner in (("a", 0 if call["a_transpose"] else 1), ("b", 1 if call["b_transpose"] else 0)):
        if (axis := call.axes[name]) is not None:
            if axis.number == inner:
                raise call.mixing_error()
            places.append(axis.with_number("ab".index(name)))
    if (c := call.node.inputs["c"]) is not None:
        assert isinstance(c, Operand)
        if call.axes["c"] is not None:
            places.append(call.axes["c"].with_number(call.axes["c"].number + 2 - c.rank))
    common = _common_axis(call, places)
    for name, place in (("a", 0), ("b", 1)):
        if call.axes[name] is None and common.number == place:
            raise NotApart(f"{call.node.title}: {name} has a value for each row of the batch")
    if c is not None and call.axes["c"] is None:
        number = common.number - (2 - c.rank)
        if number >= 0 and c.shape[number] != 1:
            raise NotApart(f"{call.node.title}: c has a value for each row of the batch")
    return common


@_rule(composites.gather_n_bits)
def _(call: BatchCall) -> Axis:
    return call.only("indices")


@_rule(composites.matmul_n_bits)
def _(call: BatchCall) -> Axis:
    return call.axis_outside((call.operand("input").rank - 1,))


@_rule(ops.concat)
def _(call: BatchCall) -> Axis:
    axes = call.axes["inputs"]
    common = _common_axis(call, axes)
    if common.number == call["axis"]:
        raise call.mixing_error()
    if None in axes:
        raise NotApart(f"{call.node.title}: inputs[{axes.index(None)}] has a value for each row of the batch")
    return common


@_rule(ops.slice)
def _(call: BatchCall) -> Axis:
    parts = zip(call["starts"], call["sizes"], call["strides"], call.operand("input").shape, strict=True)
    return call.axis_outside([number for number, part in enumerate(parts) if part[:3] != (0, part[3], 1)])


@_rule(ops.pad)
def _(call: BatchCall) -> Axis:
    pairs = zip(call["beginning_padding"], call["ending_padding"], strict=True)
    return call.axis_outside([number for number, pair in enumerate(pairs) if any(pair)])


@_rule(ops.tile)
def _(call: BatchCall) -> Axis:
    return call.axis_outside([number for number, count in enumerate(call["repetitions"]) if count != 1])


@_rule(ops.expand)
def _(call: BatchCall) -> Axis:
    return _broadcast_axis(call, {"input": call.operand("input")}, call.node.outputs[0].rank)


@_rule(ops.transpose)
def _(call: BatchCall) -> Axis:
    axis = call.only("input")
    return axis.with_number(call["permutation"].index(axis.number))


@_rule(ops.reshape)
def _(call: BatchCall) -> Axis:
    axis, shape, new = call.only("input"), call.operand("input").shape, call.node.outputs[0].shape
    rows = shape[axis.number] // axis.size(1)
    # Memory is [before, rows, after]. An axis of the result contains all rows if it spans the whole part `rows`.
    before = prod(shape[: axis.number]) * axis.repeats
    for number, size in enumerate(new):
        repeats, remainder = divmod(before, prod(new[:number]))
        if not remainder and repeats and size % (repeats * rows) == 0:
            return BatchAxis(number, size // (repeats * rows), repeats)
    raise call.mixing_error()


@_rule(ops.gather)
def _(call: BatchCall) -> Axis:
    along = call["axis"]
    if call.axes["input"] is None:
        axis = call.only("indices")
        return axis.with_number(along + axis.number)
    axis = call.only("input")
    if axis.number == along:
        raise call.mixing_error()
    return axis if axis.number < along else axis.with_number(axis.number + call.operand("indices").rank - 1)


@_rule(ops.gather_elements)
def _(call: BatchCall) -> Axis:
    along = call["axis"]
    if call.axes["input"] is None and call.axes["indices"].number == along:
        return call.only("indices")  # any index reads the same elements
    return _same_axis(call, ("input", "indices"))


@_rule(ops.scatter_elements)
def _(call: BatchCall) -> Axis:
    return _same_axis(call, ("input", "indices", "updates"))


def _same_axis(call: BatchCall, names: Sequence[str]) -> Axis:
    """The batch axis that all operands must share; the operation reads along another axis."""
    common = _common_axis(call, [call.axes[name] for name in names])
    if common.number == call["axis"]:
        raise call.mixing_error()
    for name in names:
        if call.axes[name] is None:
            raise NotApart(f"{call.node.title}: {name} has a value for each row of the batch")
    return common


@_rule(ops.gather_nd)
def _(call: BatchCall) -> Axis:
    indices = call.operand("indices")
    if call.axes["input"] is None:
        axis = call.only("indices")
        if axis.number == indices.rank - 1:
            raise call.mixing_error()
        return axis
    axis, depth = call.only("input"), indices.shape[-1]
    if axis.number < depth:
        raise call.mixing_error()
    return axis.with_number(axis.number - depth + indices.rank - 1)


@_rule(ops.scatter_nd)
def _(call: BatchCall) -> Axis:
    call.require_fixed("indices")
    indices, depth = call.operand("indices"), call.operand("indices").shape[-1]
    axis, updates = call.axes["input"], call.axes["updates"]
    if axis is None or axis.number < depth or updates != axis.with_number(axis.number - depth + indices.rank - 1):
        raise call.mixing_error()
    return axis if isinstance(axis, BatchAxis) else None


@_rule(ops.gru, ops.lstm)
def _(call: BatchCall) -> tuple[Axis, ...]:
    axis = _recurrent_axis(call, {"input": 1, "initial_hidden_state": 1, "initial_cell_state": 1})
    outputs = call.node.outputs
    # [directions, batches, hidden_size], and of all steps [steps, directions, batches, hidden_size]
    return tuple(axis.with_number(output.rank - 2) for output in outputs)


@_rule(ops.gru_cell, ops.lstm_cell)
def _(call: BatchCall) -> tuple[Axis, ...]:
    return (_recurrent_axis(call, {"input": 0, "hidden_state": 0, "cell_state": 0}),) * len(call.node.outputs)


def _recurrent_axis(call: BatchCall, batches: Mapping[str, int]) -> BatchAxis:
    """The batch axis of a recurrent network; `batches` gives the axis of each operand that has the batch."""
    present = {name: value for name, value in call.node.inputs.items() if value is not None}
    call.require_fixed(*(name for name in present if name not in batches))
    common = _common_axis(call, [axis.with_number(0) for name in batches if (axis := call.axes.get(name)) is not None])
    for name, number in batches.items():
        if name in present and call.axes[name] != common.with_number(number):
            raise NotApart(f"{call.node.title}: {name} does not have the batch in its axis {number}")
    return common
