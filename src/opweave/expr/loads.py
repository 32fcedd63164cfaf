"""Loads of expressions in NumPy: positions that are linear in the variables give views, others gather.

Arrays are C-contiguous.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from .elements import Array, Rule
from .ir import Index, Load, Source
from .linear import place

Block: TypeAlias = Mapping[Index, tuple[int, int]]
"""A block of the result: the range [start, stop) of each variable that is divided."""


def is_view(load: Load) -> bool:
    """Whether the position in memory is a linear sum of variables, so that the elements of a block are a view."""
    return not place(load).others


def view_rule(load: Load, slots: Mapping[Index, int], rank: int) -> Rule:
    position = place(load)
    factors = [(variable, slots[variable], position.terms.get(variable, 0)) for variable in load.free]

    def rule(block: Block, arrays: Mapping[Source, Array]) -> Array:
        array, first = arrays[load.source], position.constant
        shape, strides = [1] * rank, [0] * rank
        for variable, slot, factor in factors:
            start, stop = block.get(variable, (0, variable.extent))
            shape[slot], strides[slot] = stop - start, factor * array.itemsize
            first += factor * start
        return np.ndarray(shape, array.dtype, array, first * array.itemsize, strides)

    return rule


def gather_rule(load: Load, slots: Mapping[Index, int], rank: int) -> Rule:
    """The rule of a load with computed indices. If the last indices are independent variables, it gathers whole rows."""
    rows: list[Index] = []
    for axis in range(len(load.parts) - 1, 0, -1):
        index, others = load.parts[axis], (*load.parts[:axis], *rows)
        if not isinstance(index, Index) or any(index in other.free for other in others):
            break
        rows.insert(0, index)
    within = tuple(slots[variable] for variable in rows)
    dimensions = [*(slot for slot in range(rank) if slot not in within), *within]  # dimension order of NumPy's result
    order = sorted(range(rank), key=lambda k: dimensions[k])
    count = len(load.parts) - len(rows)

    def rule(block: Block, arrays: Mapping[Source, Array], *indices: Array) -> Array:
        array = arrays[load.source]
        flat: Array | int = 0
        for index, size in zip(indices[:count], array.shape, strict=False):
            flat = flat * size + index
        if not rows:
            return np.take(array.reshape(-1), flat)
        chosen = np.broadcast_to(flat, np.shape(flat) or (1,) * rank).squeeze(within)
        parts: list[Any] = [slice(*block.get(variable, (0, variable.extent))) for variable in rows]
        gathered: Array = array.reshape(-1, *array.shape[count:])[(chosen, *parts)]
        return gathered.transpose(order)

    return rule
