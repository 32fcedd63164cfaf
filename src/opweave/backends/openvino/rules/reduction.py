"""OpenVINO rules: reductions of floats, and positions of extreme values.

Reductions of integers have no rules: the engine adds them as float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....core.dtypes import DataType
from ....core.graph import Operand
from ....core.operation import Op
from ....ops import reduction as ops
from ..backend import openvino
from ..emit import Emitter, Value
from .shared import is_float

_EXTREMES: dict[Op[..., Operand], float] = {ops.reduce_max: -math.inf, ops.reduce_min: math.inf}

_NORMS = (ops.reduce_l1, ops.reduce_l2)
_RESHAPES = ("Reshape", "Squeeze", "Unsqueeze")


def _lower(op: Op[..., Operand], name: str) -> None:
    # Without axes, the engine returns its input, although some reductions map each element; the decomposition does that.
    @openvino.lower(op, when=lambda input, axes: is_float(input) and len(axes) > 0)
    def _(ctx: Emitter, input: Value, axes: Sequence[int]) -> Value:
        shape = input.shape
        x, long = input, list(range(len(shape)))
        if input.output.get_node().get_type_name() in _RESHAPES:
            # The engine moves a reshape that inserts axes of size 1 behind the reduction, and loses their positions.
            long = [axis for axis in long if shape[axis] > 1]
            x = ctx.reshape(input, [shape[axis] for axis in long])
        if all(shape[axis] == 1 for axis in axes):
            return ctx.reshape(ctx.emit("abs", x) if op in _NORMS else x, ctx.output.shape)
        along = ctx.constant([long.index(axis) for axis in axes if axis in long])
        # Keep all dimensions: if a reduction drops some, the engine drops a reshape after it.
        result = ctx.emit(name, x, along, True)
        if op not in _EXTREMES:
            return ctx.reshape(result, ctx.output.shape)
        # The engine returns the lowest finite float for a maximum of -inf alone.
        outermost = ctx.scalar(_EXTREMES[op], input)
        is_outermost = ctx.emit("equal", x, outermost, data_type="bool")
        are_all = ctx.emit("reduce_logical_and", is_outermost, along, True)
        chosen = ctx.emit("select", are_all, outermost, result, data_type=input.data_type)
        return ctx.reshape(chosen, ctx.output.shape)


for _op, _name in {
    ops.reduce_l1: "reduce_l1",
    ops.reduce_l2: "reduce_l2",
    ops.reduce_max: "reduce_max",
    ops.reduce_mean: "reduce_mean",
    ops.reduce_min: "reduce_min",
    ops.reduce_product: "reduce_prod",
    ops.reduce_sum: "reduce_sum",
}.items():
    _lower(_op, _name)


@openvino.lower(ops.reduce_max, ops.reduce_min, ops.reduce_product, ops.reduce_sum, when=lambda axes: len(axes) == 0)
def _(ctx: Emitter, input: Value) -> Value:
    return input


def _is_exact(input: Operand) -> bool:
    return is_float(input) or input.data_type in ("int8", "uint8")


def _position(op: Op[..., Operand], mode: str) -> None:
    @openvino.lower(op, when=_is_exact)
    def _(ctx: Emitter, input: Value, axis: int, keep_dimensions: bool, output_data_type: DataType) -> Value:
        sort = {"index_element_type": "i32", "stable": True}  # the first of equal values
        _, positions = ctx.emit_all("topk", input, ctx.constant(1), axis, mode, "value", data_type="int32", **sort)
        return ctx.cast(ctx.reshape(positions, ctx.output.shape), output_data_type)


_position(ops.arg_max, "max")
_position(ops.arg_min, "min")


@openvino.lower(ops.cumulative_sum, when=is_float)
def _(ctx: Emitter, input: Value, axis: int, exclusive: bool, reversed: bool) -> Value:
    return ctx.emit("cum_sum", input, ctx.constant(axis), exclusive, reversed)
