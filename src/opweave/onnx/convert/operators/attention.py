"""Attention and rotary embeddings: ONNX's own operators, and ONNX Runtime's for transformers and language models."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ....composites import group_query_attention, linear_attention, multi_head_attention, rotary_embedding
from ....composites.attend import Mask, attend, join_heads, split_heads
from ....context.builder import MLGraphBuilder
from ....core.graph import MLOperand
from ...model.protobuf import TensorProto
from ...model.registry import (
    MICROSOFT,
    Tensor,
    Unsupported,
    as_type,
    converts,
    integer,
    operand,
    shape_of,
    unsupported_if,
)


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
    qk_matmul_output_mode: int = 0,  # selects what the fourth output holds; unused, as that output is refused
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int = 0,
    left_window_size: int = -1,
    right_window_size: int = -1,
    types: list[int],
    outputs: int,
) -> tuple[MLOperand, ...]:
    # The rare forms refused here are expanded by ONNX's own definition of the operator.
    if nonpad_kv_seqlen is not None or left_window_size >= 0 or right_window_size >= 0:
        raise Unsupported("it takes nonpad_kv_seqlen, or limits the window of keys")
    if outputs > 3 or softmax_precision not in (0, types[0]):
        raise Unsupported("it outputs scores, or softmax_precision is not the type of Q")
    joined = q.rank == 3
    if joined:
        q, k, v = split_heads(b, q, q_num_heads), split_heads(b, k, kv_num_heads), split_heads(b, v, kv_num_heads)
    k, v, past = with_past(b, past_key, past_value, k, v)
    queries, keys = q.shape[2], k.shape[2]
    mask = Mask()
    if attn_mask is not None:
        unsupported_if(shape_of(attn_mask)[-1] != keys, f"attn_mask covers {shape_of(attn_mask)[-1]} of {keys} keys")
        (mask.restrict if types[3] == TensorProto.BOOL else mask.add)(attn_mask)
    if is_causal:
        mask.restrict(np.tri(int(queries), int(keys), int(past), dtype=bool))
    y = attend(b, q, k, v, mask, scale=scale, softcap=softcap)
    return join_heads(b, y) if joined else y, k, v


def with_past(
    b: MLGraphBuilder, past_key: Tensor | None, past_value: Tensor | None, k: MLOperand, v: MLOperand
) -> tuple[MLOperand, MLOperand, int]:
    """Append keys and values to the KV cache; return both, and the number of cached keys (0 if there are none)."""
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
    unsupported_if(outputs > 3, "it outputs scores")
    q, k, v = _unpack(b, q, key, value)
    if bias is not None:
        unsupported_if(k.rank != 3 or v.rank != 3, "it has a bias, and the rank of key or value is not 3")
        for_q, for_k, for_v = b.split(operand(b, bias), [x.shape[2] for x in (q, k, v)])
        q, k, v = b.add(q, for_q), b.add(k, for_k), b.add(v, for_v)
    is_plain = all(value is None for value in (key_padding_mask, attention_bias, past_key, past_value))
    if is_plain and outputs == 1 and k.rank == v.rank == 3:
        whole: MLOperand = multi_head_attention(
            b, q, k, v, heads=num_heads, causal=bool(unidirectional), scale=scale or None
        )
        return (whole,)
    q = split_heads(b, q, num_heads)
    k, v = (split_heads(b, x, num_heads) if x.rank == 3 else x for x in (k, v))
    k, v, past = with_past(b, past_key, past_value, k, v)
    queries, keys = q.shape[2], k.shape[2]
    mask = Mask()
    if unidirectional:
        mask.restrict(np.tri(int(queries), int(keys), int(past), dtype=bool))
    if key_padding_mask is not None:
        mask.add(padding_bias(b, key_padding_mask, (q.shape[0], queries, keys), mask_filter_value, q), finite=True)
    if attention_bias is not None:
        # finite: like ONNX Runtime, no special case for queries whose keys are all masked
        mask.add(attention_bias, finite=True)
    return join_heads(b, attend(b, q, k, v, mask, scale=scale or None)), k, v


def _unpack(
    b: MLGraphBuilder, q: MLOperand, key: Tensor | None, value: Tensor | None
) -> tuple[MLOperand, MLOperand, MLOperand]:
    """Queries, keys and values, which may be packed into one input [batch, length, heads, 3 or 2, size]."""

    def parts(x: MLOperand, count: int) -> list[MLOperand]:
        batch, length, heads, _, size = x.shape
        return [b.reshape(part, [batch, length, heads * size]) for part in b.split(x, count, axis=3)]

    if key is None:
        unsupported_if(q.rank != 5 or value is not None, "it has no keys")
        q, k, v = parts(q, 3)
        return q, k, v
    k = operand(b, key)
    unsupported_if(q.rank != 3, f"its queries have rank {q.rank}")
    if value is None:
        unsupported_if(k.rank != 5, "it has no values")
        k, v = parts(k, 2)
        return q, k, v
    return q, k, operand(b, value)


def padding_bias(
    b: MLGraphBuilder, mask: Tensor, sizes: tuple[int, int, int], hidden: float, like: MLOperand
) -> MLOperand:
    """Convert a key padding mask to a bias of the scores: 0 for visible keys, `hidden` for the others."""
    batch, queries, keys = sizes
    forms = {(batch, keys): [batch, 1, 1, keys], (batch, queries, keys): [batch, 1, queries, keys]}
    shape = shape_of(mask)
    if shape == (2 * batch,) and batch > 0:  # the ends of the visible keys of all sequences, then their starts
        ends, starts = (b.reshape(part, [batch, 1, 1, 1]) for part in b.split(operand(b, mask), 2, axis=0))
        places = b.constant(np.arange(keys, dtype=ends.data_type))
        seen = b.logical_and(b.lesser(places, ends), b.greater_or_equal(places, starts))
    elif shape == (batch,):  # the number of visible keys of each sequence
        lengths = b.reshape(operand(b, mask), [batch, 1, 1, 1])
        seen = b.lesser(np.arange(keys, dtype=lengths.data_type), lengths)
    elif shape in forms:
        flags = b.reshape(operand(b, mask), forms[shape])
        seen = b.not_equal(flags, np.zeros((), flags.data_type))
    else:
        raise Unsupported(f"key_padding_mask has the shape {list(shape)}")
    return b.where(seen, np.zeros((), like.data_type), np.full((), hidden, like.data_type))


@converts("GroupQueryAttention", domain=MICROSOFT, updates=group_query_attention)
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
    head_sink: Tensor | None = None,
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
    unsupported_if(outputs > 3, "it outputs scores")
    unsupported_if(local_window_size == 0, "local_window_size is 0, so that no key is seen")
    if key is None or value is None:
        size = q.shape[2] // (num_heads + 2 * kv_num_heads)
        q, k, v = b.split(q, [num_heads * size, kv_num_heads * size, kv_num_heads * size], axis=2)
    else:
        k, v = operand(b, key), operand(b, value)
    # Without a KV cache, only the length of the returned keys depends on `total_sequence_length`.
    cache = [past for past in (past_key, past_value) if past is not None]
    unsupported_if(len(cache) == 1, "it has one of past_key and past_value")
    capacity = shape_of(cache[0])[2] if cache else 0
    total = integer(total_sequence_length, "the number of keys") if capacity or outputs > 1 else q.shape[1]
    pasts, lengths = _cache(b, cache, seqlens_k, q, capacity, total)
    tables: list[MLOperand | None] = [None, None]
    if do_rotary:
        if cos_cache is None or sin_cache is None:
            raise Unsupported("do_rotary is set, but cos_cache or sin_cache is missing")
        if position_ids is None:
            tables = [operand(b, cos_cache), operand(b, sin_cache)]
        else:
            q, k = (
                rotate(b, x, cos_cache, sin_cache, position_ids, heads=heads, interleaved=rotary_interleaved)
                for x, heads in ((q, num_heads), (k, kv_num_heads))
            )
    bias = None
    if attention_bias is not None:
        bias = operand(b, attention_bias)
        unsupported_if(bias.shape[3] != total, f"attention_bias covers {bias.shape[3]} of {total} keys")
        if total < capacity and lengths is not None:  # it has no columns for unused capacity
            bias = b.pad(bias, [0] * 4, [0, 0, 0, capacity - total])
    sinks = None if head_sink is None else operand(b, head_sink)
    if sinks is None and smooth_softmax == 1:
        sinks = b.constant(np.zeros(num_heads, q.data_type))
    results: tuple[MLOperand, ...] = group_query_attention(
        b,
        *(q, k, v, *pasts, lengths, *tables, bias, sinks),
        heads=num_heads,
        groups=kv_num_heads,
        scale=scale or None,
        softcap=softcap,
        window=max(local_window_size, 0),
        interleaved=bool(rotary_interleaved),
    )
    return results


def _cache(
    b: MLGraphBuilder,
    cache: Sequence[Tensor],
    seqlens_k: Tensor,
    q: MLOperand,
    capacity: int,
    total: int,
) -> tuple[list[MLOperand | None], MLOperand | None]:
    """The KV cache [batch, groups, capacity, size], and the valid keys of each sequence; None if all are valid.

    `cache` has past keys and values, or nothing; `seqlens_k` [batch] is the number of keys of each sequence, with the new
    ones, minus 1; `q` is [batch, new, heads * size]. Sequences may use less than `capacity`. At least `total` keys are
    returned: a mask of fixed length makes it longer than the sequences.
    """
    none: list[MLOperand | None] = [None, None]
    batch, new, _ = q.shape
    pasts: list[MLOperand | None] = [operand(b, past) for past in cache] if capacity else none
    if total == new:  # the first call: ONNX Runtime ignores the past
        if capacity <= new:
            return none, None
        lengths: Tensor = np.zeros(batch, np.int32)
    elif total < new or not capacity:
        raise Unsupported(f"total_sequence_length is {total}, with {new} new and {capacity} past keys")
    elif isinstance(seqlens_k, np.ndarray):
        lengths = np.maximum(seqlens_k.reshape(batch) - np.int32(new - 1), 0)
        if lengths.max() > capacity or lengths.max() + new > max(total, capacity):
            raise Unsupported(
                f"{new} new keys do not fit after {lengths.max()}: there is room for {max(total, capacity)}"
            )
        if total == capacity + new and (lengths == capacity).all():
            return pasts, None
    else:
        lengths = seqlens_k if seqlens_k.shape == (batch,) else b.reshape(seqlens_k, [batch])
        if new > 1:  # a right-padded sequence may have fewer keys than the new ones
            lengths = b.max(b.sub(lengths, np.full((), new - 1, np.int32)), np.zeros((), np.int32))
    if total > capacity:
        pasts = [b.pad(past, [0] * 4, [0, 0, total - capacity, 0]) for past in pasts if past is not None]
    return pasts, operand(b, lengths)


# Rotary embeddings ----------------------------------------------------------------------------------------------------


def rotate(
    b: MLGraphBuilder,
    x: MLOperand,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    *,
    heads: int = 0,
    interleaved: int,
) -> MLOperand:
    """Rotate pairs of elements of `x` by the angles of their positions.

    `x` is [batch, heads, length, size], or [batch, length, heads * size]. `cos` and `sin` are tables [positions, pairs], with
    the rows in `positions` [batch or 1, length] or in order; without a table, [batch or 1, length, pairs]. `interleaved` is
    not 0 if elements 2 * i and 2 * i + 1 are a pair.
    """
    shape = x.shape[0], x.shape[2] if x.rank == 4 else x.shape[1]
    tables = [operand(b, table) for table in (cos, sin)]
    if positions is None:
        unsupported_if(tables[0].rank != 3, f"without position_ids, cos_cache must have rank 3, got {tables[0].rank}")
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
        raise Unsupported(
            f"cos_cache has {cos_cache.shape[-1]} columns for {rotary_embedding_dim or size} rotated elements"
        )
    return rotate(b, x, cos_cache, sin_cache, position_ids, heads=num_heads, interleaved=interleaved)


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
    unsupported_if(is_packed_batching or scale != 1, "it packs batches, or its scale is not 1")
    unsupported_if(rotary_embedding_dim and not num_heads, "it has rotary_embedding_dim, but no num_heads")
    length = x.shape[1] if x.rank == 3 else x.shape[2]
    heads = num_heads or x.shape[-1] // (2 * cos_cache.shape[-1])
    if position_ids.shape == (1,):  # the first position of the sequence
        start = position_ids
        offsets = np.arange(length)[None]
        position_ids = b.add(start, offsets) if isinstance(start, MLOperand) else start + offsets
    return rotate(b, x, cos_cache, sin_cache, position_ids, heads=heads, interleaved=interleaved)


@converts("LinearAttention")
@converts("LinearAttention", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    query: MLOperand,
    key: MLOperand,
    value: MLOperand,
    past_state: Tensor | None = None,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    q_num_heads: int,
    kv_num_heads: int,
    chunk_size: int = 64,  # affects the speed of engines alone
    scale: float = 0.0,
    update_rule: str = "gated_delta",
    outputs: int,
) -> tuple[MLOperand, ...]:
    options = {"heads": q_num_heads, "groups": kv_num_heads, "update_rule": update_rule, "scale": scale or None}
    past = None if past_state is None else operand(b, past_state)
    if past is None and query.data_type != "float32":  # the state has the data type of the query
        batches, size = query.shape[0], query.shape[2] // q_num_heads
        shape = (batches, kv_num_heads, size, value.shape[2] // kv_num_heads)
        past = b.expand(b.constant(query.data_type, 0), shape)
    others = (None if x is None else operand(b, x) for x in (decay, beta))
    results: tuple[MLOperand, ...] = linear_attention(b, query, key, value, past, *others, **options)
    return results[:outputs]
