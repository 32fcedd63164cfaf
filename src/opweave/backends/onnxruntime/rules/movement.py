"""ONNX Runtime rules: operations that move elements. A rule that moves nothing returns its input and emits no node."""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod

from ....core.graph import Graph, Operand
from ....core.sizes import is_same_shape, is_same_size, is_static, may_exceed
from ....ops import movement as ops
from ....ops.pooling import average_pool2d, l2_pool2d, max_pool2d
from ..backend import ort
from ..emit import Emitter, Value

BEFORE_FIRST = -(2**63)
"""End of a slice with a negative step that includes the first element."""


@ort.lower(ops.concat)
def _(ctx: Emitter, inputs: Sequence[Value], axis: int) -> Value:
    return inputs[0] if len(inputs) == 1 else ctx.emit("Concat", *inputs, axis=axis)


@ort.lower(ops.expand)
def _(ctx: Emitter, input: Value, new_shape: Sequence[int]) -> Value:
    return input if is_same_shape(input.dims, new_shape) else ctx.emit("Expand", input, ctx.constant(new_shape))


def _widest_safe_padding(graph: Graph) -> float:
    """Return the largest padding that the engine's optimiser can fuse into poolings of `graph` without changing results.

    The optimiser fuses zero padding into a MaxPool, whose padding is -inf, and into an AveragePool whose kernel has no such
    padding, but no Pad with explicit axes:
    https://github.com/microsoft/onnxruntime/blob/v1.23.0/onnxruntime/core/optimizer/pad_fusion.cc
    """
    widest = math.inf
    for node in graph.nodes:
        if node.op is max_pool2d:
            return -1
        if node.op in (average_pool2d, l2_pool2d):
            widest = min(widest, *(size - 1 for size in node.attributes["window_dimensions"]))
    return widest


@ort.lower(ops.pad)
def _(
    ctx: Emitter,
    input: Value,
    beginning_padding: Sequence[int],
    ending_padding: Sequence[int],
    mode: ops.PaddingMode,
    value: float,
) -> Value:
    if not any(beginning_padding) and not any(ending_padding):
        return input  # the engine's kernel does not support scalars
    fill = ctx.scalar(value, input) if mode == "constant" else None
    pads = ctx.constant([*beginning_padding, *ending_padding])
    safe = ctx.answer(_widest_safe_padding)
    is_wide = any(may_exceed(padding, safe) for padding in (*beginning_padding, *ending_padding))
    axes = ctx.constant(range(input.rank)) if is_wide else None
    return ctx.emit("Pad", input, pads, fill, axes, mode="reflect" if mode == "reflection" else mode)


@ort.lower(ops.reshape)
def _(ctx: Emitter, input: Value, new_shape: Sequence[int]) -> Value:
    return ctx.reshape(input, new_shape)


@ort.lower(ops.reverse)
def _(ctx: Emitter, input: Value, axes: Sequence[int]) -> Value:
    moving = [axis for axis in axes if may_exceed(input.dims[axis], 1)]
    if not moving:
        return input
    back = ctx.constant([-1] * len(moving))
    return ctx.emit("Slice", input, back, ctx.constant([BEFORE_FIRST] * len(moving)), ctx.constant(moving), back)


@ort.lower(ops.slice)
def _(ctx: Emitter, input: Value, starts: Sequence[int], sizes: Sequence[int], strides: Sequence[int]) -> Value:
    cut = [axis for axis, whole in enumerate(input.dims) if not is_same_size(sizes[axis], whole) or strides[axis] > 1]
    if not cut:
        return input
    ends = [starts[axis] + sizes[axis] for axis in cut]
    steps = ctx.constant([strides[axis] for axis in cut]) if any(strides[axis] > 1 for axis in cut) else None
    return ctx.emit(
        "Slice", input, ctx.constant([starts[a] for a in cut]), ctx.constant(ends), ctx.constant(cut), steps
    )


@ort.lower(ops.split)
def _(ctx: Emitter, input: Value, splits: int | Sequence[int], axis: int) -> Sequence[Value]:
    sizes = ops.part_sizes(input.dims[axis], splits)
    if len(sizes) == 1:
        return [input]
    return ctx.emit("Split", input, ctx.constant(sizes), axis=axis, outputs=len(sizes))


@ort.lower(ops.tile)
def _(ctx: Emitter, input: Value, repetitions: Sequence[int]) -> Value:
    if all(times == 1 for times in repetitions):
        return input
    if input.data_type != "float16":
        return ctx.emit("Tile", input, ctx.constant(repetitions))
    # There is no float16 kernel. Expand copies in one pass; the engine would convert to float32 and back.
    split, stretched, joined = [], [], []
    for size, times in zip(input.dims, repetitions, strict=True):
        split += [size] if times == 1 else [1, size]
        stretched += [size] if times == 1 else [times, size]
        joined.append(times * size)
    return ctx.reshape(ctx.emit("Expand", ctx.reshape(input, split), ctx.constant(stretched)), joined)


@ort.lower(ops.transpose)
def _(ctx: Emitter, input: Value, permutation: Sequence[int]) -> Value:
    return ctx.transpose(input, permutation)


@ort.lower(ops.triangular)
def _(ctx: Emitter, input: Value, upper: bool, diagonal: int) -> Value:
    *_, rows, columns = input.dims
    # There is no kernel for uint64; pass the bits as int64.
    moved = ctx.cast(input, "int64") if input.data_type == "uint64" else input
    # Diagonals further away keep everything, or nothing.
    if is_static((rows, columns)):
        nearest = ctx.constant(min(max(diagonal, -rows), columns))
    else:
        nearest = ctx.emit("Max", ctx.emit("Min", ctx.constant(diagonal), ctx.constant(columns)), ctx.constant(-rows))
    return ctx.cast(ctx.emit("Trilu", moved, nearest, upper=int(upper)), input.data_type)


_BLOCKS = ("float32", "int8", "uint8")


@ort.lower("depth_to_space", when=lambda input: input.data_type in _BLOCKS)
def _(ctx: Emitter, input: Value, block_size: int, mode: str) -> Value:
    return ctx.emit("DepthToSpace", input, blocksize=block_size, mode=mode.upper())


@ort.lower("space_to_depth", when=lambda input: input.data_type in _BLOCKS)
def _(ctx: Emitter, input: Value, block_size: int) -> Value:
    return ctx.emit("SpaceToDepth", input, blocksize=block_size)


_PADDED = ("float32", "int32", "int64", "uint32", "uint64", "int8", "uint8")
"""Data types of the kernel of Pad."""


def _is_one_pad(input: Operand, sizes: Sequence[int]) -> bool:
    return input.data_type in _PADDED and is_static((*input.shape, *sizes))


@ort.lower("center_crop_pad", when=_is_one_pad)
def _(ctx: Emitter, input: Value) -> Value:
    # Negative padding crops: one pass over memory instead of two.
    changes = [new - old for old, new in zip(input.dims, ctx.output.shape, strict=True)]
    axes = [axis for axis, change in enumerate(changes) if change]
    if not axes:
        return input
    before = [changes[axis] // 2 if changes[axis] > 0 else -(-changes[axis] // 2) for axis in axes]
    after = [changes[axis] - pad for axis, pad in zip(axes, before, strict=True)]
    if all(changes[axis] < 0 for axis in axes):
        starts = [-pad for pad in before]
        ends = [start + ctx.output.shape[axis] for axis, start in zip(axes, starts, strict=True)]
        return ctx.emit("Slice", input, ctx.constant(starts), ctx.constant(ends), ctx.constant(axes))
    # The kernel copies row by row, so axes that keep their size become one with the axis before them.
    last, inner = axes[-1], prod(input.dims[axes[-1] + 1 :])
    before[-1], after[-1] = before[-1] * inner, after[-1] * inner
    x = ctx.reshape(input, [*input.dims[:last], input.dims[last] * inner])
    shape = [*ctx.output.shape[:last], ctx.output.shape[last] * inner]
    # With axes, the engine's optimiser does not fuse the padding into a convolution or pooling.
    y = ctx.emit("Pad", x, ctx.constant([*before, *after]), ctx.scalar(0, x), ctx.constant(axes), shape=shape)
    return ctx.reshape(y, ctx.output.shape)
