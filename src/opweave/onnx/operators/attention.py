"""Attention: ONNX's own operator, and ONNX Runtime's for transformers and language models."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from ...builder import MLGraphBuilder
from ...composites import group_query_attention, multi_head_attention
from ...composites.attention import Attended, Mask, attend, heads_first, heads_joined
from ...dtypes import DataType
from ...graph import MLOperand
from ..messages import TensorProto
from ..registry import MICROSOFT, Tensor, Unsupported, converts, integer, integers, operand, shape_of
from .rotary import embed

_SOFTMAX_TYPES: dict[int, DataType | None] = {0: None, TensorProto.FLOAT: "float32", TensorProto.FLOAT16: "float16"}


def _softmax_type(precision: int) -> DataType | None:
    """The data type in which softmax is computed; None for that of the scores."""
    if precision not in _SOFTMAX_TYPES:
        raise Unsupported(f"softmax in {TensorProto.DataType.Name(precision).lower()}")
    return _SOFTMAX_TYPES[precision]


def _step(b: MLGraphBuilder, done: Attended, mode: int) -> MLOperand:
    """The output `qk_matmul_output`: 0 the product, 1 capped, 2 masked, 3 the weights."""
    if mode == 3 and done.seen is not None:
        return b.where(done.seen, done.weights, np.zeros((), done.weights.data_type))
    return (done.scores, done.capped, done.masked, done.weights)[mode]


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
    qk_matmul_output_mode: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int = 0,
    left_window_size: int = -1,
    right_window_size: int = -1,
    types: list[int],
) -> tuple[MLOperand, ...]:
    joined = q.rank == 3
    if joined:
        q, k, v = heads_first(b, q, q_num_heads), heads_first(b, k, kv_num_heads), heads_first(b, v, kv_num_heads)
    offset: Any
    k, v, offset = _after(b, past_key, past_value, k, v)
    queries, keys = q.shape[2], k.shape[2]

    mask = Mask()
    if attn_mask is not None:
        is_bool = types[3] == TensorProto.BOOL
        missing = keys - shape_of(attn_mask)[-1]
        if missing > 0:
            attn_mask = _extended(b, attn_mask, missing, 0 if is_bool else -inf)
        (mask.hide if is_bool else mask.add)(attn_mask)
    relative = np.arange(keys) - np.arange(queries)[:, None]
    if nonpad_kv_seqlen is not None:
        per_batch, lengths = [q.shape[0], 1, 1, 1], nonpad_kv_seqlen
        lengths = b.reshape(lengths, per_batch) if isinstance(lengths, MLOperand) else lengths.reshape(per_batch)
        mask.hide(_less(b, np.arange(keys), lengths, or_equal=False))
        offset = b.sub(lengths, queries) if isinstance(lengths, MLOperand) else lengths - queries
    # A query at position i sees the keys from i + offset - left to i + offset + right.
    if left_window_size >= 0:
        mask.hide(_less(b, _plus(b, offset, -left_window_size), relative))
    to_the_right = [0] * bool(is_causal) + [right_window_size] * (right_window_size >= 0)
    if to_the_right:
        mask.hide(_less(b, relative, _plus(b, offset, min(to_the_right))))
    inner = _softmax_type(softmax_precision)
    done = attend(b, q, k, v, mask, scale=scale, softcap=softcap, softmax_type=inner)
    y = heads_joined(b, done.result) if joined else done.result
    return y, k, v, _step(b, done, qk_matmul_output_mode)


@converts("FlexAttention", domain="ai.onnx.preview")  # where it has no sub-graphs that modify it
def _(
    b: MLGraphBuilder,
    q: MLOperand,
    k: MLOperand,
    v: MLOperand,
    *,
    scale: float | None = None,
    softmax_precision: int = TensorProto.FLOAT,
) -> MLOperand:
    return attend(b, q, k, v, Mask(), scale=scale, softmax_type=_softmax_type(softmax_precision)).result


def _after(
    b: MLGraphBuilder, past_key: Tensor | None, past_value: Tensor | None, k: MLOperand, v: MLOperand
) -> tuple[MLOperand, MLOperand, int]:
    """Keys and values after those of the past, and the number of the latter."""
    if past_key is None or past_value is None:
        return k, v, 0
    k, v = (b.concat([operand(b, past), new], axis=2) for past, new in ((past_key, k), (past_value, v)))
    return k, v, shape_of(past_key)[2]


def _extended(b: MLGraphBuilder, mask: Tensor, missing: int, value: float) -> Tensor:
    """`mask` with `missing` more keys."""
    before, after = [0] * len(shape_of(mask)), [0] * (len(shape_of(mask)) - 1) + [missing]
    if isinstance(mask, MLOperand):
        return b.pad(mask, before, after, value=value)
    return np.pad(mask, list(zip(before, after, strict=True)), constant_values=value)


def _plus(b: MLGraphBuilder, x: Any, number: int) -> Any:
    return b.add(x, number) if isinstance(x, MLOperand) else x + number


def _less(b: MLGraphBuilder, x: Any, y: Any, or_equal: bool = True) -> Tensor:
    """Whether x <= y, or x < y: computed now if both are known."""
    if isinstance(x, MLOperand) or isinstance(y, MLOperand):
        return b.lesser_or_equal(x, y) if or_equal else b.lesser(x, y)
    return np.asarray(x <= y if or_equal else x < y)


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
    k, v = operand(b, key), operand(b, value)
    if bias is not None:
        sizes = [q.shape[2], k.shape[2] if k.rank == 3 else q.shape[2], v.shape[2] if v.rank == 3 else 0]
        if 0 in sizes:
            raise Unsupported("a bias with keys that are divided into heads")
        for_q, for_k, for_v = b.split(operand(b, bias), sizes)
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
        mask.hide(np.arange(keys) <= np.arange(queries)[:, None] + past)
    if key_padding_mask is not None:
        mask.add(_padding(b, key_padding_mask, (q.shape[0], queries, keys), mask_filter_value, q), finite=True)
    if attention_bias is not None:
        mask.add(attention_bias, finite=True)  # the engine has no rule for queries that see no key, either
    done = attend(b, q, k, v, mask, scale=scale or None)
    return heads_joined(b, done.result), k, v, done.scores


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
    # Also a single sequence may be shorter than the total, if past and mask have a fixed length.
    lengths = integers(seqlens_k, "the number of keys of each sequence")
    total = integer(total_sequence_length, "the number of keys")
    if any(last + 1 != total for last in lengths):
        raise Unsupported("sequences that are shorter than the number of keys")
    queries = q.shape[1]
    past = total - queries
    if key is None or value is None:
        size = q.shape[2] // (num_heads + 2 * kv_num_heads)
        q, k, v = b.split(q, [num_heads * size, kv_num_heads * size, kv_num_heads * size], axis=2)
    else:
        k, v = operand(b, key), operand(b, value)
    if not (do_rotary or softcap or outputs > 3) and local_window_size < 0 and attention_bias is None:
        memory = _memory(b, past_key, past_value, (q.shape[0], queries, past))
        if memory is not None:
            heads = {"heads": num_heads, "groups": kv_num_heads}
            made: tuple[MLOperand, ...] = group_query_attention(b, q, k, v, *memory, **heads, scale=scale or None)
            return made
    q, k, v = heads_first(b, q, num_heads), heads_first(b, k, kv_num_heads), heads_first(b, v, kv_num_heads)
    if do_rotary:
        if cos_cache is None or sin_cache is None:
            raise Unsupported("rotation without tables")
        positions = np.arange(past, total)[None] if position_ids is None else position_ids
        q, k = (embed(b, x, cos_cache, sin_cache, positions, interleaved=rotary_interleaved) for x in (q, k))
    kept_k, kept_v = (_continued(b, old, new, past) for old, new in ((past_key, k), (past_value, v)))
    k, v = (x if x.shape[2] == total else _first(b, x, total) for x in (kept_k, kept_v))
    mask = Mask()
    relative = np.arange(total) - np.arange(past, total)[:, None]
    mask.hide(relative <= 0)
    if local_window_size >= 0:
        mask.hide(relative > -local_window_size)
    if attention_bias is not None:
        mask.add(attention_bias, finite=True)  # the engine has no rule for queries that see no key, either
    done = attend(b, q, k, v, mask, scale=scale or None, softcap=softcap)
    return heads_joined(b, done.result), kept_k, kept_v, done.scores


def _memory(
    b: MLGraphBuilder, past_key: Tensor | None, past_value: Tensor | None, sizes: tuple[int, int, int]
) -> tuple[Tensor | None, ...] | None:
    """The past keys and values, and how many of them count; None if new keys do not fit behind them."""
    batch, queries, past = sizes
    if past_key is None or past_value is None:
        return None if past else (None, None, None)
    room = shape_of(past_key)[2] - past
    both = operand(b, past_key), operand(b, past_value)
    if not room:
        return (*both, None)
    return (*both, b.constant(np.full(batch, past, np.int32))) if room >= queries else None


def _first(b: MLGraphBuilder, x: MLOperand, count: int) -> MLOperand:
    """The first `count` elements of `x` along axis 2."""
    return b.slice(x, [0] * 4, [*x.shape[:2], count, x.shape[3]])


def _continued(b: MLGraphBuilder, old: Tensor | None, new: MLOperand, past: int) -> MLOperand:
    """A cache of the first `past` elements, then `new`, then zeros up to the size of the cache."""
    if old is None:
        if past:
            raise Unsupported(f"{past} keys of the past that are not given")
        return new
    cache = operand(b, old)
    capacity, end = cache.shape[2], past + new.shape[2]
    if past > capacity:
        raise Unsupported(f"{past} keys of the past in a cache of {capacity}")
    parts = [new]
    if past:
        parts.insert(0, cache if past == capacity else _first(b, cache, past))
    filled = b.concat(parts, axis=2) if past else new
    return filled if end >= capacity else b.pad(filled, [0] * 4, [0, 0, capacity - end, 0])
