"""Attention and rotary embeddings: ONNX's own operators, and ONNX Runtime's for transformers and language models."""

from __future__ import annotations

from math import prod

import numpy as np

from ...builder import MLGraphBuilder
from ...composites import group_query_attention, multi_head_attention, rotary_embedding
from ...composites.attention import Mask, attend, heads_first, heads_joined
from ...graph import MLOperand
from ..messages import TensorProto
from ..registry import MICROSOFT, Tensor, Unsupported, as_type, converts, integer, integers, operand, shape_of


@converts("Attention")
def _(
    b: MLGraphBuilder,
    q: MLOperand,
    k: MLOperand,
    v: MLOperand,
    attn_mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    nonpad_kv_seqlen: Tensor | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int = 0,
    q_num_heads: int = 0,
    qk_matmul_output_mode: int = 0,  # what the fourth output is
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int = 0,
    left_window_size: int = -1,
    right_window_size: int = -1,
    types: list[int],
    outputs: int,
) -> tuple[MLOperand, ...]:
    # ONNX's definition of the operator expands the rare forms that are refused here.
    if nonpad_kv_seqlen is not None or left_window_size >= 0 or right_window_size >= 0:
        raise Unsupported("it has lengths of sequences, or a window of keys")
    if outputs > 3 or softmax_precision not in (0, types[0]):
        raise Unsupported("it returns scores, or computes softmax in a type of its own")
    joined = q.rank == 3
    if joined:
        q, k, v = heads_first(b, q, q_num_heads), heads_first(b, k, kv_num_heads), heads_first(b, v, kv_num_heads)
    k, v, past = _after(b, past_key, past_value, k, v)
    queries, keys = q.shape[2], k.shape[2]
    mask = Mask()
    if attn_mask is not None:
        if shape_of(attn_mask)[-1] != keys:
            raise Unsupported(f"its mask has {shape_of(attn_mask)[-1]} of {keys} keys")
        (mask.hide if types[3] == TensorProto.BOOL else mask.add)(attn_mask)
    if is_causal:
        mask.hide(np.tri(queries, keys, past, dtype=bool))
    y = attend(b, q, k, v, mask, scale=scale, softcap=softcap)
    return heads_joined(b, y) if joined else y, k, v


def _after(
    b: MLGraphBuilder, past_key: Tensor | None, past_value: Tensor | None, k: MLOperand, v: MLOperand
) -> tuple[MLOperand, MLOperand, int]:
    """Keys and values after those of the past, and the number of the latter, which is 0 in the first call of a decoder."""
    if past_key is None or past_value is None or not shape_of(past_key)[2]:
        return k, v, 0
    k, v = (b.concat([operand(b, past), new], axis=2) for past, new in ((past_key, k), (past_value, v)))
    return k, v, shape_of(past_key)[2]


# ONNX Runtime's -------------------------------------------------------------------------------------------------------


@converts("MultiHeadAttention", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    q: MLOperand,
    key: Tensor | None = None,
    value: Tensor | None = None,
    bias: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    attention_bias: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    *,
    num_heads: int,
    mask_filter_value: float = -10000.0,
    scale: float = 0.0,
    unidirectional: int = 0,
    outputs: int,
) -> tuple[MLOperand, ...]:
    if q.rank != 3 or key is None or value is None:
        raise Unsupported("packed queries, keys and values")
    if outputs > 3:
        raise Unsupported("it returns scores")
    k, v = operand(b, key), operand(b, value)
    if bias is not None:
        if k.rank != 3 or v.rank != 3:
            raise Unsupported("a bias with keys that are divided into heads")
        for_q, for_k, for_v = b.split(operand(b, bias), [x.shape[2] for x in (q, k, v)])
        q, k, v = b.add(q, for_q), b.add(k, for_k), b.add(v, for_v)
    alone = all(value is None for value in (key_padding_mask, attention_bias, past_key, past_value))
    if alone and outputs == 1 and k.rank == v.rank == 3:
        whole: MLOperand = multi_head_attention(
            b, q, k, v, heads=num_heads, causal=bool(unidirectional), scale=scale or None
        )
        return (whole,)
    q = heads_first(b, q, num_heads)
    k, v = (heads_first(b, x, num_heads) if x.rank == 3 else x for x in (k, v))
    k, v, past = _after(b, past_key, past_value, k, v)
    queries, keys = q.shape[2], k.shape[2]
    mask = Mask()
    if unidirectional:
        mask.hide(np.tri(queries, keys, past, dtype=bool))
    if key_padding_mask is not None:
        mask.add(_padding(b, key_padding_mask, (q.shape[0], queries, keys), mask_filter_value, q), finite=True)
    if attention_bias is not None:
        mask.add(attention_bias, finite=True)  # the engine has no rule for queries that see no key, either
    return heads_joined(b, attend(b, q, k, v, mask, scale=scale or None)), k, v


def _padding(b: MLGraphBuilder, mask: Tensor, sizes: tuple[int, int, int], hidden: float, like: MLOperand) -> MLOperand:
    """The numbers that a mask of keys, 1 for those that count, adds to the scores."""
    batch, queries, keys = sizes
    forms = {(batch, keys): [batch, 1, 1, keys], (batch, queries, keys): [batch, 1, queries, keys]}
    shape = shape_of(mask)
    if shape == (batch,):  # how many keys count
        lengths = b.reshape(operand(b, mask), [batch, 1, 1, 1])
        seen = b.lesser(np.arange(keys, dtype=lengths.data_type), lengths)
    elif shape in forms:
        found = b.reshape(operand(b, mask), forms[shape])
        seen = b.not_equal(found, np.zeros((), found.data_type))
    else:
        raise Unsupported(f"a mask of keys of shape {list(shape)}")
    return b.where(seen, np.zeros((), like.data_type), np.full((), hidden, like.data_type))


@converts("GroupQueryAttention", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    q: MLOperand,
    key: Tensor | None,
    value: Tensor | None,
    past_key: Tensor | None,
    past_value: Tensor | None,
    seqlens_k: Tensor,
    total_sequence_length: Tensor,
    cos_cache: Tensor | None = None,
    sin_cache: Tensor | None = None,
    position_ids: Tensor | None = None,
    attention_bias: Tensor | None = None,
    *,
    num_heads: int,
    kv_num_heads: int,
    do_rotary: int = 0,
    rotary_interleaved: int = 0,
    scale: float = 0.0,
    softcap: float = 0.0,
    local_window_size: int = -1,
    smooth_softmax: int = 0,
    outputs: int,
) -> tuple[MLOperand, ...]:
    if smooth_softmax == 1:
        raise Unsupported("softmax with one more, hidden key")
    if outputs > 3:
        raise Unsupported("it returns scores")
    # Also a single sequence may be shorter than the total, if past and mask have a fixed length.
    lengths = integers(seqlens_k, "the number of keys of each sequence")
    total = integer(total_sequence_length, "the number of keys")
    if any(last + 1 != total for last in lengths):
        raise Unsupported("sequences that are shorter than the number of keys")
    batch, queries, _ = q.shape
    past, capacity = total - queries, 0 if past_key is None else shape_of(past_key)[2]
    if past > capacity or past < capacity < total:
        raise Unsupported(f"{queries} keys after {past} of the past, in a cache of {capacity}")
    if key is None or value is None:
        size = q.shape[2] // (num_heads + 2 * kv_num_heads)
        q, k, v = b.split(q, [num_heads * size, kv_num_heads * size, kv_num_heads * size], axis=2)
    else:
        k, v = operand(b, key), operand(b, value)
    if do_rotary:
        if cos_cache is None or sin_cache is None:
            raise Unsupported("rotation without tables")
        positions = np.arange(past, total)[None] if position_ids is None else position_ids
        q, k = (
            _rotated(b, x, cos_cache, sin_cache, positions, heads=heads, interleaved=rotary_interleaved)
            for x, heads in ((q, num_heads), (k, kv_num_heads))
        )
    if not softcap and local_window_size < 0 and attention_bias is None:
        caches = [operand(b, cache) if cache is not None and capacity else None for cache in (past_key, past_value)]
        filled = b.constant(np.full(batch, past, np.int32)) if past < capacity else None
        made: tuple[MLOperand, ...] = group_query_attention(
            b, q, k, v, *caches, filled, heads=num_heads, groups=kv_num_heads, scale=scale or None
        )
        return made
    if past < capacity:
        raise Unsupported(f"a cache of {capacity} for {past} keys, with a soft cap, a window, or a bias")
    q, k, v = heads_first(b, q, num_heads), heads_first(b, k, kv_num_heads), heads_first(b, v, kv_num_heads)
    k, v, _ = _after(b, past_key, past_value, k, v)
    mask = Mask()
    mask.hide(np.tri(queries, total, past, dtype=bool))
    if local_window_size >= 0:
        mask.hide(~np.tri(queries, total, past - local_window_size, dtype=bool))
    if attention_bias is not None:
        mask.add(attention_bias, finite=True)  # the engine has no rule for queries that see no key, either
    return heads_joined(b, attend(b, q, k, v, mask, scale=scale or None, softcap=softcap)), k, v


# Rotary embeddings ----------------------------------------------------------------------------------------------------


def _rotated(
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
    return _rotated(b, x, cos_cache, sin_cache, position_ids, heads=num_heads, interleaved=interleaved)


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
    return _rotated(b, x, cos_cache, sin_cache, position_ids, heads=heads, interleaved=interleaved)
