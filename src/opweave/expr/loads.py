"""Loads of expressions in NumPy: affine indices give views, others gather."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from ..errors import require
from .elements import Array, Rule
from .ir import Expr, Index, Load, Source
from .linear import linear

Block: TypeAlias = Mapping[Index, tuple[int, int]]
"""A block of the result: the range [start, stop) of each variable that is divided."""

Affine: TypeAlias = tuple[tuple[int, Mapping[Index, int]], ...]
"""For each index of a load, a constant and the non-zero factor of each variable."""


def affine_of(indices: tuple[Expr, ...]) -> Affine | None:
    """Indices as affine functions of variables; None if an index is not affine."""
    sums = [linear(index) for index in indices]
    if not all(isinstance(term, Index) for each in sums for term in each.terms):
        return None
    return tuple((each.constant, cast(Mapping[Index, int], each.terms)) for each in sums)


def viewing(load: Load, forms: Affine, slots: Mapping[Index, int], rank: int) -> Rule:
    """The rule of a load with affine indices, which returns a view."""
    for axis, ((constant, factors), size) in enumerate(zip(forms, load.source.desc.shape, strict=True)):
        ends = [f * (variable.extent - 1) for variable, f in factors.items()]
        low, high = constant + sum(e for e in ends if e < 0), constant + sum(e for e in ends if e > 0)
        require(low >= 0 and high < size, f"the index of axis {axis} goes from {low} to {high}, outside of [0, {size})")
    variables = [variable for _, factors in forms for variable in factors]
    separate = all(len(factors) <= 1 for _, factors in forms) and len(set(variables)) == len(variables)
    if not separate or set(variables) != load.free:
        return _striding(load, forms, slots, rank)
    order = sorted(range(len(variables)), key=lambda k: slots[variables[k]])
    moved = order != list(range(len(order)))
    used = {slots[variable] for variable in variables}
    spread = tuple(slice(None) if k in used else None for k in range(rank))

    def rule(block: Block, arrays: Mapping[Source, Array]) -> Array:
        key: list[int | slice] = []
        for constant, factors in forms:
            for variable, factor in factors.items():
                start, stop = block.get(variable, (0, variable.extent))
                first, last = constant + factor * start, constant + factor * (stop - 1)
                after = last + 1 if factor > 0 else last - 1 if last else None
                key.append(slice(first, after, factor))
            if not factors:
                key.append(constant)
        part = arrays[load.source][(*key, ...)]
        return (part.transpose(order) if moved else part)[(*spread, ...)]

    return rule


def _striding(load: Load, forms: Affine, slots: Mapping[Index, int], rank: int) -> Rule:
    """`viewing` where a variable occurs in several indices, or an index has several variables: diagonals and windows."""

    def rule(block: Block, arrays: Mapping[Source, Array]) -> Array:
        array = arrays[load.source]
        shape, strides = [1] * rank, [0] * rank
        first = [constant for constant, _ in forms]
        for variable in load.free:
            start, stop = block.get(variable, (0, variable.extent))
            shape[slots[variable]] = stop - start
            for axis, (_, factors) in enumerate(forms):
                factor = factors.get(variable, 0)
                first[axis] += factor * start
                strides[slots[variable]] += factor * array.strides[axis]
        corner: Array = array[tuple(slice(position, position + 1) for position in first)]
        return np.lib.stride_tricks.as_strided(corner, shape, strides, writeable=False)

    return rule


def gathering(load: Load, slots: Mapping[Index, int], rank: int) -> Rule:
    """The rule of a load with computed indices. If the last indices are independent variables, it gathers whole rows."""
    rows: list[Index] = []
    for axis in range(len(load.parts) - 1, 0, -1):
        index, others = load.parts[axis], (*load.parts[:axis], *rows)
        if not isinstance(index, Index) or any(index in other.free for other in others):
            break
        rows.insert(0, index)
    if rows:
        return _gathering_rows(load, rows, slots, rank)

    def rule(block: Block, arrays: Mapping[Source, Array], *indices: Array) -> Array:
        array = arrays[load.source]
        if not array.flags.c_contiguous:
            return array[indices]
        flat: Array | int = 0
        for index, size in zip(indices, array.shape, strict=True):
            flat = flat * size + index
        return np.take(array.reshape(-1), flat)

    return rule


def _gathering_rows(load: Load, rows: Sequence[Index], slots: Mapping[Index, int], rank: int) -> Rule:
    within = tuple(slots[variable] for variable in rows)
    made = [*(slot for slot in range(rank) if slot not in within), *within]  # dimension order of NumPy's result
    order = sorted(range(rank), key=lambda k: made[k])

    def rule(block: Block, arrays: Mapping[Source, Array], *indices: Array) -> Array:
        chosen = indices[: len(indices) - len(rows)]
        key: list[Any] = [np.broadcast_to(index, index.shape or (1,) * rank).squeeze(within) for index in chosen]
        key += [slice(*block.get(variable, (0, variable.extent))) for variable in rows]
        gathered: Array = arrays[load.source][tuple(key)]
        return gathered.transpose(order)

    return rule
