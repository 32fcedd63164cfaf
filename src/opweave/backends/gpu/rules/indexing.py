"""Rules for gather and scatter operations."""

from __future__ import annotations

from collections.abc import Sequence

from ....expr import Traced, compute
from ....ops import indexing as ops
from ..table import gpu
from .positions import position_from
from .results import Scatter


@gpu.lower(ops.gather)
def _(input: Traced, indices: Traced, axis: int) -> Traced:
    shape = (*input.shape[:axis], *indices.shape, *input.shape[axis + 1 :])

    def element(*p: Traced) -> Traced:
        end = axis + indices.rank
        return input[(*p[:axis], position_from(indices[p[axis:end]], input.shape[axis]), *p[end:])]

    return compute(shape, element)


@gpu.lower(ops.gather_elements)
def _(input: Traced, indices: Traced, axis: int) -> Traced:
    def element(*p: Traced) -> Traced:
        return input[(*p[:axis], position_from(indices[p], input.shape[axis]), *p[axis + 1 :])]

    return compute(indices.shape, element)


def _coordinates(indices: Traced, p: Sequence[Traced], shape: Sequence[int]) -> tuple[Traced, ...]:
    """The vector `indices[p]` as positions along the leading axes of `shape`."""
    return tuple(position_from(indices[(*p, axis)], shape[axis]) for axis in range(indices.shape[-1]))


@gpu.lower(ops.gather_nd)
def _(input: Traced, indices: Traced) -> Traced:
    *outer, indexed_axes = indices.shape
    shape = (*outer, *input.shape[indexed_axes:])

    def element(*p: Traced) -> Traced:
        end = len(outer)
        return input[(*_coordinates(indices, p[:end], input.shape), *p[end:])]

    return compute(shape, element)


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
