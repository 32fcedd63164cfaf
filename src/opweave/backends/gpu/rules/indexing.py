"""Rules for gather and scatter operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from .... import expr
from ....composites.scatter import scatter_reduce
from ....core.dtypes import FLOATS, DataType
from ....core.guards import estimate
from ....core.size_bounds import names_in_empty
from ....expr import Traced, cast, clamp, compute, ir, logical_and, where
from ....expr.gpu import Workgroups
from ....expr.ir import Input, Reduction
from ....expr.reductions import neutral
from ....ops import indexing as ops
from ....ops.formulas import FORMULAS, broadcast, position_from
from ..table import gpu
from .reduction import widen
from .results import Scatter, Staged, Stages

TILE = 256
"""Elements of a scatter with a reduction that a workgroup computes."""


for _op in (ops.gather, ops.gather_elements, ops.gather_nd):
    gpu.lower(_op)(FORMULAS[_op])


def _coordinates(indices: Traced, p: Sequence[Traced], shape: Sequence[int]) -> tuple[Traced, ...]:
    """The vector `indices[p]` as positions along the leading axes of `shape`."""
    return tuple(position_from(indices[(*p, axis)], shape[axis]) for axis in range(indices.shape[-1]))


@gpu.lower(ops.scatter_elements)
def _(input: Traced, indices: Traced, updates: Traced, axis: int) -> Scatter:
    def at(*p: Traced) -> Sequence[Traced]:
        return *p[:axis], position_from(indices[p], input.shape[axis]), *p[axis + 1 :]

    return Scatter(input, indices.shape, at, lambda *p: updates[p])


@gpu.lower(ops.scatter_nd)
def _(input: Traced, indices: Traced, updates: Traced) -> Scatter:
    end = indices.rank - 1

    def at(*p: Traced) -> Sequence[Traced]:
        return *_coordinates(indices, p[:end], input.shape), *p[end:]

    return Scatter(input, updates.shape, at, lambda *p: updates[p])


# Scatter with a reduction --------------------------------------------------------------------------------------------

_REDUCTIONS: dict[str, tuple[Callable[..., Traced], Reduction]] = {
    "add": (expr.sum_over, "sum"),
    "mul": (expr.product_over, "product"),
    "min": (expr.min_over, "min"),
    "max": (expr.max_over, "max"),
}


@gpu.lower(scatter_reduce)
def _(input: Traced, indices: Traced, updates: Traced, axis: int, reduction: str) -> Traced | Staged:
    """Each element of the result looks for its updates, so that their order is the same on every device."""
    index_at, count = broadcast(indices), updates.shape[axis]

    def update(p: Sequence[Traced], k: Traced) -> tuple[Traced, Traced]:
        """Whether the update `k` of the line through `p` refers to `p`, and its value."""
        key = [clamp(place, 0, size - 1) for place, size in zip(p, updates.shape, strict=True)]
        key[axis] = k
        refers = position_from(index_at(*key), input.shape[axis]) == p[axis]
        for d, (size, whole) in enumerate(zip(updates.shape, input.shape, strict=True)):
            if d != axis and size < whole:
                refers = logical_and(refers, p[d] < size)
        return refers, updates[tuple(key)]

    if input.data_type in FLOATS:
        combine = getattr(expr, reduction)
        return Staged(
            lambda stages: [_in_order(stages, input, count, update, combine)],
            lambda _: (set(), names_in_empty((*input.shape, *updates.shape))),
        )
    over, name = _REDUCTIONS[reduction]
    data_type = ir.storage(input.data_type)
    wide: DataType = "int32" if data_type in ("int8", "uint8") else data_type
    nothing = Traced((), neutral(name, wide))

    def element(*p: Traced) -> Traced:
        def term(k: Traced) -> Traced:
            refers, value = update(p, k)
            return where(refers, cast(value, wide), nothing)

        result: Traced = getattr(expr, reduction)(cast(input[p], wide), over(count, term))
        return result if wide == data_type else cast(_wrap(result, data_type), data_type)

    return compute(input.shape, element)


def _wrap(x: Traced, data_type: str) -> Traced:
    """The lowest 8 bits of integers, as signed or unsigned ones."""
    return (x + 128) % 256 - 128 if data_type == "int8" else x % 256


def _in_order(
    stages: Stages,
    input: Traced,
    count: int,
    update: Callable[[Sequence[Traced], Traced], tuple[Traced, Traced]],
    combine: Callable[..., Traced],
) -> Traced:
    """Combine elements with their updates one after the other, in as few kernels as the device's loops allow."""
    shape, total = input.shape, prod(input.shape)
    tile = min(TILE, estimate(total))

    def program_of(before: Traced, start: int, end: int, target: Input) -> Workgroups:
        program = Workgroups([-(-total // tile)], width=tile)
        results = program.private_array([tile])

        def place(t: Traced) -> list[Traced]:
            flat, places = clamp(program.positions[0] * tile + t, 0, total - 1), []
            for size in reversed(shape[1:]):
                places.append(flat % size)
                flat = flat // size
            return [flat, *reversed(places)]

        def update_element(t: Traced, k: Traced) -> Traced:
            refers, value = update(place(t), k)
            return where(refers, combine(program[results][t], widen(value)), program[results][t])

        program.fill(results, lambda t: widen(before[tuple(place(t))]))
        with program.repeat(end - start) as number:
            program.fill(results, lambda t: update_element(t, number + start))
        program.write(target, [tile], place, lambda t: program[results][t])
        return program

    result = stages.array(ir.storage(input.data_type), shape)
    most = stages.features.max_iterations
    iterations = program_of(input, 0, count, result).iterations(stages.features)
    if iterations <= most:
        return stages.add(program_of(input, 0, count, result), result, f"updates 0 to {count}")
    count = int(count)  # the number of kernels depends on it
    part, before = max(1, int(count * most // iterations) - 1), input
    for start in range(0, count, part):
        end = min(start + part, count)
        target = result if end == count else stages.array("float32", shape)
        before = stages.add(program_of(before, start, end, target), target, f"updates {start} to {end}")
    return before
