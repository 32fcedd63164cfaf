"""Rotary position embeddings."""

from __future__ import annotations

from math import prod

import numpy as np

from ...builder import MLGraphBuilder
from ...composites import rotary_embedding
from ...graph import MLOperand
from ..registry import MICROSOFT, Tensor, Unsupported, as_type, converts, operand


def embed(
    b: MLGraphBuilder,
    x: MLOperand,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    *,
    heads: int = 0,
    interleaved: int,
) -> MLOperand:
    """Turn pairs of the elements of `x` by the angles of their positions.

    Args:
        b: the builder.
        x: [batch, heads, length, size], or [batch, length, heads * size].
        cos: cosines [positions, pairs]; without `positions`, [batch or 1, length, pairs].
        sin: sines, likewise.
        positions: rows of the tables [batch or 1, length].
        heads: the number of heads, if `x` has rank 3.
        interleaved: not 0 if neighbours are pairs.
    """
    shape = x.shape[0], x.shape[2] if x.rank == 4 else x.shape[1]
    tables = [operand(b, table) for table in (cos, sin)]
    if positions is None:
        if tables[0].rank != 3:
            raise Unsupported("tables without a row for each position")
        rows = tables[0].shape[:2]
        tables = [b.reshape(table, [prod(rows), table.shape[2]]) for table in tables]
        positions = np.arange(prod(rows)).reshape(rows)
    positions = operand(b, as_type(b, positions, "int64"))
    if positions.shape != shape:
        positions = b.expand(positions, shape)
    heads = heads if x.rank == 3 else 0
    return rotary_embedding(b, x, *tables, positions, heads=heads, interleaved=bool(interleaved))


@converts("RotaryEmbedding")
def _(
    b: MLGraphBuilder,
    x: MLOperand,
    cos_cache: Tensor,
    sin_cache: Tensor,
    position_ids: Tensor | None = None,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> MLOperand:
    size = x.shape[-1] // (num_heads or 1) if x.rank == 3 else x.shape[-1]
    if 2 * cos_cache.shape[-1] != (rotary_embedding_dim or size):
        raise Unsupported(f"{cos_cache.shape[-1]} angles for {rotary_embedding_dim or size} elements")
    return embed(b, x, cos_cache, sin_cache, position_ids, heads=num_heads, interleaved=interleaved)


@converts("RotaryEmbedding", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    x: MLOperand,
    position_ids: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> MLOperand:
    if is_packed_batching or scale != 1:
        raise Unsupported("packed batches, and scales other than 1")
    if rotary_embedding_dim and not num_heads:
        raise Unsupported("a part to turn of heads whose number is not given")
    length = x.shape[1] if x.rank == 3 else x.shape[2]
    heads = num_heads or x.shape[-1] // (2 * cos_cache.shape[-1])
    if position_ids.shape == (1,):  # where the sequence begins
        start = position_ids
        offsets = np.arange(length)[None]
        position_ids = b.add(start, offsets) if isinstance(start, MLOperand) else start + offsets
    return embed(b, x, cos_cache, sin_cache, position_ids, heads=heads, interleaved=interleaved)
