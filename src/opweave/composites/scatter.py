"""Scatter with a reduction, which combines all updates of an element."""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt, prod
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from ..core.dtypes import ANY, INDICES, INFO, is_float
from ..core.graph import Builder, Desc, Operand
from ..core.operation import Limits, N
from ..core.shapes import broadcasts_to
from ..ops.constants import constant
from ..support.errors import require
from .declare import declare

if TYPE_CHECKING:
    from ..ops import Operations

Reduction: TypeAlias = Literal["add", "mul", "min", "max"]

MAX_PAIRS = 2**22
"""Approximate maximum number of elements in a comparison of all pairs of updates: 16 MiB of float32. An estimate."""

MAX_PARTS = 64
"""Maximum number of parts of updates. The pairs of each part are compared, one part after the other."""

MAX_ROUNDS = 16
"""Maximum number of updates of one element, at constant positions, that are applied one after the other."""


@declare(
    input=Limits(ANY, ranks=(1, N)),
    indices=Limits(INDICES, ranks="input"),
    updates=Limits("input", ranks="input"),
    output=Limits("input", ranks="input"),
)
def scatter_reduce(
    self: Builder,
    input: Operand,
    indices: Operand,
    updates: Operand,
    axis: int = 0,
    *,
    reduction: Reduction = "add",
    label: str = "",
) -> Desc:
    """Combine elements of `input` with `updates`: each index replaces its own coordinate along `axis`.

    Args:
        indices: int32, uint32 or int64, broadcastable to the shape of `updates`; negative ones count from the end, others out
            of range are clamped. Several may refer to one element, which is then combined with all of their updates.
        updates: the data type of `input`, of any size along `axis`, and at most the size of `input` along the others.
        reduction: "add", "mul", "min" or "max".

    Returns: An operand of the data type and shape of `input`: a copy of it in which, for axis 0 and rank 2 and the
        reduction "add", `output[indices[i, j], j] += updates[i, j]` in the order of the updates along the axis, so
        results are the same on every device; float16 is rounded once, at the end, and float32 after each update.
        Integers wrap around. With "min" and "max", NaN gives NaN, but kernels of ONNX Runtime and OpenVINO may lose it.
    Raises: `axis` is out of range, or the shapes do not fit.

    ONNX's ScatterElements with a reduction, PyTorch's `scatter_reduce`.

    >>> scatter_reduce(np.float32([1, 2, 3]), np.int32([0, 2, 0]), np.float32([10, 20, 30])).tolist()
    [41.0, 2.0, 23.0]
    """
    require(0 <= axis < input.rank, f"axis must be in [0, {input.rank}), got {axis}")
    fits = all(d == axis or size <= input.shape[d] for d, size in enumerate(updates.shape))
    require(fits, f"updates must be no larger than input, {list(input.shape)}, beside axis {axis}, got {updates.desc}")
    fits = broadcasts_to(indices.shape, updates.shape)
    require(fits, f"indices must be broadcastable to the shape of updates, {list(updates.shape)}, got {indices.desc}")
    return input.desc


@scatter_reduce.decompose
def _(b: Operations, input: Operand, indices: Operand, updates: Operand, axis: int, reduction: Reduction) -> Operand:
    if 0 in updates.shape:
        return input
    x, added = _widen(b, input), _widen(b, updates)
    # The part of the input that the updates cover, as lines along the axis: [outer, size, inner].
    sizes = [x.shape[d] if d == axis else size for d, size in enumerate(updates.shape)]
    part = x if tuple(sizes) == x.shape else b.slice(x, [0] * x.rank, sizes)
    outer, inner = prod(sizes[:axis]), prod(sizes[axis + 1 :])
    lines = b.reshape(part, [outer, sizes[axis], inner])
    update_lines = b.reshape(added, [outer, updates.shape[axis], inner])
    # Indices that are the same for all elements of a row stay one column.
    column = all(size == 1 for size in indices.shape[axis + 1 :])
    columns = [1] * (x.rank - axis - 1) if column else sizes[axis + 1 :]
    shape = [*sizes[:axis], updates.shape[axis], *columns]
    positions = _positions(b, indices, sizes[axis], shape, [outer, updates.shape[axis], prod(columns)])
    combine = getattr(b, reduction)
    result = None
    if positions.is_constant:
        result = _in_rounds(b, lines, positions.value, update_lines, combine)
    if result is None:
        result = _in_parts(b, lines, positions, update_lines, combine, reduction)
    return _narrow(b, _paste(b, b.reshape(result, sizes), x, axis), input)


def _widen(b: Operations, input: Operand) -> Operand:
    wide: Any = {"float16": "float32", "int8": "int32", "uint8": "int32"}.get(input.data_type)
    return input if wide is None else b.cast(input, wide)


def _narrow(b: Operations, result: Operand, input: Operand) -> Operand:
    """Convert a result to the data type of `input`; 8-bit integers keep the lowest bits."""
    if result.data_type == input.data_type:
        return result
    if is_float(input.data_type):
        return b.cast(result, input.data_type)
    info = INFO[input.data_type]
    lowest, highest = int(info.lowest), int(info.highest)
    # In [-255, 255], because quotients are rounded towards zero.
    remainder = result - b.mul(b.div(result, 256), 256)
    remainder = b.where(b.lesser(remainder, constant(b, lowest, "int32")), remainder + 256, remainder)
    remainder = b.where(b.greater(remainder, constant(b, highest, "int32")), remainder - 256, remainder)
    return b.cast(remainder, input.data_type)


def _positions(b: Operations, indices: Operand, size: int, shape: list[int], lines: list[int]) -> Operand:
    """Convert indices to positions in [0, size), broadcast to `shape` and reshaped to `lines`; constants stay constant."""
    if indices.is_constant:
        clamped = np.clip(indices.value.astype(np.int64), -size, size - 1)
        positions = np.broadcast_to(np.where(clamped < 0, clamped + size, clamped), shape)
        return constant(b, np.ascontiguousarray(positions.reshape(lines)), "int32")
    is_signed = not indices.data_type.startswith("u")
    bounded = b.cast(b.clamp(indices, min_value=-size if is_signed else 0, max_value=size - 1), "int32")
    if is_signed:
        bounded = b.where(b.lesser(bounded, constant(b, 0, "int32")), bounded + size, bounded)
    return b.reshape(b.expand(bounded, shape) if indices.shape != tuple(shape) else bounded, lines)


def _in_rounds(
    b: Operations, lines: Operand, positions: np.ndarray, updates: Operand, combine: Callable[..., Operand]
) -> Operand | None:
    """Apply updates at constant positions: first the first update of each element, then the second ones, ...

    `lines` are [outer, size, inner], `positions` [outer, count, inner] or [outer, count, 1], `updates` [outer, count, inner].
    Return None if an element has more than `MAX_ROUNDS` updates.
    """
    outer, size, inner = lines.shape
    # Number of elements that share a position.
    width = inner if positions.shape[2] == 1 else 1
    lanes = np.arange(inner // width)
    elements = ((np.arange(outer)[:, None, None] * size + positions) * len(lanes) + lanes).reshape(-1)
    order = np.argsort(elements, kind="stable")
    starts = np.flatnonzero(np.diff(elements[order], prepend=-1))
    rounds = np.empty(len(elements), np.int64)
    rounds[order] = np.arange(len(elements)) - np.repeat(starts, np.diff(starts, append=len(elements)))
    if rounds.max(initial=0) >= MAX_ROUNDS:
        return None
    rows = b.reshape(lines, [outer * size * len(lanes), width])
    all_updates = b.reshape(updates, [len(elements), width])
    for number in range(rounds.max(initial=-1) + 1):
        chosen = np.flatnonzero(rounds == number)
        targets = constant(b, elements[chosen, None], "int64")
        values = b.gather(all_updates, constant(b, chosen, "int64")) if len(chosen) < len(elements) else all_updates
        rows = b.scatter_nd(rows, targets, combine(b.gather_nd(rows, targets), values))
    return b.reshape(rows, lines.shape)


def _in_parts(
    b: Operations,
    lines: Operand,
    positions: Operand,
    updates: Operand,
    combine: Callable[..., Operand],
    reduction: Reduction,
) -> Operand:
    """Apply updates at computed positions: compare all pairs, and first combine the updates of each position.

    All updates of a position then write the same result, in any order. `_in_rounds` has the same arguments.
    """
    outer, count, inner = updates.shape
    lanes = positions.shape[2]
    reduce = getattr(b, {"add": "reduce_sum", "mul": "reduce_product"}.get(reduction, f"reduce_{reduction}"))
    neutral = constant(b, _neutral(reduction, updates.data_type), updates.data_type)
    part = max(isqrt(MAX_PAIRS // min(max(outer * inner, 1), MAX_PAIRS)), 1, -(-count // MAX_PARTS))
    for start in range(0, count, part):
        size = min(part, count - start)
        targets, chosen = positions, updates
        if size < count:
            targets = b.slice(positions, [0, start, 0], [outer, size, lanes])
            chosen = b.slice(updates, [0, start, 0], [outer, size, inner])
        if size > 1:
            same = b.equal(b.reshape(targets, [outer, size, 1, lanes]), b.reshape(targets, [outer, 1, size, lanes]))
            chosen = reduce(b.where(same, b.reshape(chosen, [outer, 1, size, inner]), neutral), axes=[2])
        full = targets if lanes == inner else b.expand(targets, [outer, size, inner])
        lines = b.scatter_elements(lines, full, combine(b.gather_elements(lines, full, axis=1), chosen), axis=1)
    return lines


def _neutral(reduction: Reduction, data_type: Any) -> float:
    if reduction in ("add", "mul"):
        return 0 if reduction == "add" else 1
    if is_float(data_type):
        return float("inf" if reduction == "min" else "-inf")
    return INFO[data_type].highest if reduction == "min" else INFO[data_type].lowest


def _paste(b: Operations, part: Operand, whole: Operand, axis: int) -> Operand:
    for d, size in enumerate(whole.shape):
        if part.shape[d] < size:
            starts, sizes = [0] * whole.rank, list(part.shape)
            starts[d], sizes[d] = part.shape[d], size - part.shape[d]
            part = b.concat([part, b.slice(whole, starts, sizes)], d)
    return part
