"""Operations whose results need no rounding to float16."""

from __future__ import annotations

from ...ops import activation, elementwise, indexing, movement, pooling, reduction

EXACT = frozenset(
    {
        *(activation.relu, indexing.gather, indexing.gather_elements, indexing.gather_nd),
        *(
            indexing.scatter_elements,
            indexing.scatter_nd,
            pooling.max_pool2d,
            reduction.reduce_max,
            reduction.reduce_min,
        ),
        *(elementwise.abs, elementwise.cast, elementwise.ceil, elementwise.clamp, elementwise.floor),
        *(elementwise.identity, elementwise.max, elementwise.min, elementwise.neg, elementwise.round_even),
        *(elementwise.sign, elementwise.where, movement.concat, movement.expand, movement.pad, movement.reshape),
        *(movement.reverse, movement.slice, movement.split, movement.tile, movement.transpose, movement.triangular),
    }
)
"""Operations that return float16 values for float16 operands, or round in their rules."""
