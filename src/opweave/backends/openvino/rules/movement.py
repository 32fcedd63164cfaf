"""OpenVINO rules: operations that move elements. A rule that moves nothing returns its input and emits no node.

64-bit integers are moved as pairs of int32 along an additional last axis.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....ops import movement as ops
from ..backend import openvino
from ..emit import Emitter, Value, lanes

_HIGHEST_EXACT = 2**24
"""float32 holds all integers up to this value."""

BEFORE_FIRST = -(2**31)
"""End of a slice with a negative step that includes the first element."""


@openvino.lower(ops.concat)
def _(ctx: Emitter, inputs: Sequence[Value], axis: int) -> Value:
    return inputs[0] if len(inputs) == 1 else ctx.emit("concat", list(inputs), axis)


@openvino.lower(ops.expand)
def _(ctx: Emitter, input: Value, new_shape: Sequence[int]) -> Value:
    if input.shape == tuple(new_shape):
        return input
    return ctx.emit("broadcast", input, ctx.constant([*new_shape, *lanes(input.data_type)]))


@openvino.lower(ops.pad)
def _(
    ctx: Emitter,
    input: Value,
    beginning_padding: Sequence[int],
    ending_padding: Sequence[int],
    mode: ops.PaddingMode,
    value: float,
) -> Value:
    if not any(beginning_padding) and not any(ending_padding):
        return input
    still = [0] * len(lanes(input.data_type))
    before, after = (ctx.constant([*padding, *still]) for padding in (beginning_padding, ending_padding))
    if mode != "constant":
        return ctx.emit("pad", input, before, after, {"reflection": "reflect"}.get(mode, mode))
    numbers = np.array([value], input.data_type)
    if numbers.itemsize >= 4 and numbers.dtype.kind != "f":
        numbers = numbers.view("int32")  # graphs of this engine carry uint32 as int32
    first, *others = numbers.tolist()
    if numbers.dtype.kind == "f" or (abs(first) <= _HIGHEST_EXACT and others in ([], [first])):
        fill = ctx.constant(first, numbers.dtype.name)
        return ctx.emit("pad", input, before, after, "constant", fill)
    # The engine pads with a single number, which it converts to float32, so select between the padded input and the value.
    whole = [sum(sizes) for sizes in zip(beginning_padding, input.shape, ending_padding, strict=True)]
    filled = ctx.emit("broadcast", ctx.scalar(value, input), ctx.constant([*whole, *[2] * len(still)]))
    inside = np.zeros([*whole, *[1] * len(still)], "bool")
    inside[tuple(map(slice, beginning_padding, np.add(beginning_padding, input.shape)))] = True
    moved = ctx.emit("pad", input, before, after, "constant")
    return ctx.emit("select", ctx.constant(inside, "bool"), moved, filled, data_type=input.data_type)


@openvino.lower(ops.reshape)
def _(ctx: Emitter, input: Value, new_shape: Sequence[int]) -> Value:
    return ctx.reshape(input, new_shape)


def _slice(
    ctx: Emitter, input: Value, axes: Sequence[int], starts: Sequence[int], ends: Sequence[int], steps: Sequence[int]
) -> Value:
    return ctx.emit("slice", input, *map(ctx.constant, (list(starts), list(ends), list(steps), list(axes))))


@openvino.lower(ops.reverse)
def _(ctx: Emitter, input: Value, axes: Sequence[int]) -> Value:
    moving = [axis for axis in axes if input.shape[axis] > 1]
    count = len(moving)
    return _slice(ctx, input, moving, [-1] * count, [BEFORE_FIRST] * count, [-1] * count) if moving else input


@openvino.lower(ops.slice)
def _(ctx: Emitter, input: Value, starts: Sequence[int], sizes: Sequence[int], strides: Sequence[int]) -> Value:
    cut = [axis for axis, whole in enumerate(input.shape) if sizes[axis] < whole or strides[axis] > 1]
    if not cut:
        return input
    ends = [starts[axis] + sizes[axis] for axis in cut]
    steps = [min(strides[axis], input.shape[axis]) for axis in cut]  # larger ones may be too large for the engine
    begin = [starts[axis] for axis in cut]
    if not any(begin):
        # Count the start from the end: if all starts are 0, the engine drops the slice before GatherElements, whose indices
        # then differ in shape from its input.
        begin[0] = -input.shape[cut[0]]
    return _slice(ctx, input, cut, begin, ends, steps)


@openvino.lower(ops.split)
def _(ctx: Emitter, input: Value, splits: int | Sequence[int], axis: int) -> Sequence[Value]:
    sizes = ops.part_sizes(input.shape[axis], splits)
    if len(sizes) == 1:
        return [input]
    return ctx.emit_all("variadic_split", input, ctx.constant(axis), ctx.constant(list(sizes)))


@openvino.lower(ops.tile)
def _(ctx: Emitter, input: Value, repetitions: Sequence[int]) -> Value:
    if all(times == 1 for times in repetitions):
        return input
    return ctx.emit("tile", input, ctx.constant([*repetitions, *[1] * len(lanes(input.data_type))]))


@openvino.lower(ops.transpose)
def _(ctx: Emitter, input: Value, permutation: Sequence[int]) -> Value:
    return ctx.transpose(input, permutation)
