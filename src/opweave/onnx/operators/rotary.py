"""Rotary position embeddings."""

from __future__ import annotations

import numpy as np

from ...builder import MLGraphBuilder
from ...composites import rotary_embedding
from ...graph import MLOperand
from ..registry import MICROSOFT, Tensor, Unsupported, converts, operand


def rotate(
    b: MLGraphBuilder,
    x: MLOperand,
    cos: Tensor,
    sin: Tensor,
    *,
    positions: Tensor | None,
    interleaved: bool,
    length_axis: int,
) -> MLOperand:
    """Turn pairs of the elements of `x` [batch, …, size] by the angles of their positions.

    Args:
        b: the builder.
        x: of rank 4; axis 1 or 2 is the length, the other one counts the heads.
        cos: cosines [positions, pairs], or [batch, length, pairs] if there are no `positions`.
        sin: sines, likewise.
        positions: [batch or 1, length].
        interleaved: pairs are neighbours; otherwise, the second of each stands half of the turned part further on.
        length_axis: 1 or 2.
    """
    pairs, size = cos.shape[-1], x.shape[3]
    turned = 2 * pairs
    if turned > size:
        raise Unsupported(f"{pairs} angles for vectors of {size} elements")
    # (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin) is x * (cos, cos) + swapped x * (-sin, sin).
    factors, other = _tables(b, cos, sin, interleaved)
    if positions is not None:
        if isinstance(positions, np.ndarray) and not isinstance(factors, MLOperand):
            factors, other = factors[positions], other[positions]
        else:
            index = positions if isinstance(positions, MLOperand) else b.constant(positions)
            factors, other = (b.gather(operand(b, t), index, axis=0) for t in (factors, other))
    batch, length = factors.shape[:2]
    shape = [batch, length, 1, turned] if length_axis == 1 else [batch, 1, length, turned]
    factors, other = (b.reshape(operand(b, t), shape) for t in (factors, other))
    part, rest = (x, None) if turned == size else b.split(x, [turned, size - turned], axis=3)
    if interleaved:
        neighbours = b.reshape(part, [*x.shape[:3], pairs, 2])
        swapped = b.reshape(b.reverse(neighbours, axes=[4]), part.shape)
    else:
        first, second = b.split(part, 2, axis=3)
        swapped = b.concat([second, first], axis=3)
    result = b.add(b.mul(part, factors), b.mul(swapped, other))
    return result if rest is None else b.concat([result, rest], axis=3)


def _tables(b: MLGraphBuilder, cos: Tensor, sin: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    """(cos, cos) and (-sin, sin) of each pair, in the order in which the elements stand."""
    values = [t.value if isinstance(t, MLOperand) and t.is_constant else t for t in (cos, sin)]
    if all(isinstance(value, np.ndarray) for value in values):
        c, s = values
        if interleaved:
            return np.repeat(c, 2, axis=-1), np.stack([-s, s], axis=-1).reshape(*s.shape[:-1], -1)
        return np.concatenate([c, c], axis=-1), np.concatenate([-s, s], axis=-1)
    c, s = operand(b, cos), operand(b, sin)
    negative, last = b.neg(s), c.rank - 1
    if not interleaved:
        return b.concat([c, c], axis=last), b.concat([negative, s], axis=last)
    c, s, negative = (b.reshape(t, [*t.shape, 1]) for t in (c, s, negative))
    shape = [*c.shape[:-2], 2 * c.shape[-2]]
    together = (b.concat(pair, axis=last + 1) for pair in ([c, c], [negative, s]))
    cosines, sines = (b.reshape(t, shape) for t in together)
    return cosines, sines


def _embed(
    b: MLGraphBuilder, x: MLOperand, heads: int, cos: Tensor, sin: Tensor, positions: Tensor | None, interleaved: int
) -> MLOperand:
    """The embedding of [batch, heads, length, size], or of [batch, length, heads * size]."""
    flags = {"positions": positions, "interleaved": bool(interleaved)}
    length = x.shape[2] if x.rank == 4 else x.shape[1]
    if positions is not None and positions.shape == (x.shape[0], length) and len(cos.shape) == 2:
        tables = (operand(b, table) for table in (cos, sin))
        there = operand(b, positions)
        there = there if there.data_type == "int64" else b.cast(there, "int64")
        beside = 0 if x.rank == 4 else heads
        y: MLOperand = rotary_embedding(b, x, *tables, there, heads=beside, interleaved=bool(interleaved))
        return y
    if x.rank == 4:
        return rotate(b, x, cos, sin, length_axis=2, **flags)
    batch, length, hidden = x.shape
    if not heads or hidden % heads:
        raise Unsupported(f"{hidden} hidden values do not divide into {heads} heads")
    divided = b.reshape(x, [batch, length, heads, hidden // heads])
    return b.reshape(rotate(b, divided, cos, sin, length_axis=1, **flags), x.shape)


@converts("RotaryEmbedding")
def _(
    b: MLGraphBuilder,
    X: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    position_ids: Tensor | None = None,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> MLOperand:
    x = operand(b, X)
    size = x.shape[-1] // (num_heads or 1) if x.rank == 3 else x.shape[-1]
    if 2 * cos_cache.shape[-1] != (rotary_embedding_dim or size):
        raise Unsupported(f"{cos_cache.shape[-1]} angles for {rotary_embedding_dim or size} elements")
    return _embed(b, x, num_heads, cos_cache, sin_cache, position_ids, interleaved)


@converts("RotaryEmbedding", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    input: Tensor,
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
    x = operand(b, input)
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
    return _embed(b, x, heads, cos_cache, sin_cache, position_ids, interleaved)
