"""Attention: ONNX's own operator, and ONNX Runtime's for transformers and language models."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import copysign, inf, sqrt
from typing import Any

import numpy as np

from ...builder import MLGraphBuilder
from ...composites import group_query_attention, multi_head_attention
from ...graph import MLOperand
from ..messages import TensorProto
from ..registry import MICROSOFT, Tensor, Unsupported, converts, integer, integers, operand, shape_of
from .rotary import rotate


@dataclass
class Mask:
    """Which keys each query sees, and what is added to its scores; all broadcast to [batch, heads, queries, keys].

    Attributes:
        constant: what is added and known already: 0, or -inf for a key that is hidden.
        allowed: uint8 operands, 1 where a key is seen; all of them must say so.
        added: operands that are added.
        may_hide_all: whether operands may hide all keys from a query, or add -inf to all its scores.
    """

    constant: np.ndarray | None = None
    allowed: list[MLOperand] = field(default_factory=list)
    added: list[MLOperand] = field(default_factory=list)
    may_hide_all: bool = False

    def hide(self, seen: Tensor) -> None:
        """Keys are seen only where `seen` is true (not zero)."""
        if isinstance(seen, MLOperand):
            self.allowed.append(seen)
            self.may_hide_all = True
        elif not seen.all():
            self.add(np.where(seen, 0.0, -inf))

    def add(self, bias: Tensor, finite: bool = False) -> None:
        """Add `bias` to the scores."""
        if isinstance(bias, MLOperand):
            self.added.append(bias)
            self.may_hide_all = self.may_hide_all or not finite
        else:
            self.constant = bias if self.constant is None else self.constant + bias

    def build(self, b: MLGraphBuilder, like: MLOperand) -> tuple[MLOperand | None, Tensor | None]:
        """What to add to the scores, and for each query whether it sees any key; None for nothing, and for all."""
        dtype = like.data_type
        if self.allowed:
            both = self.allowed[0]
            for other in self.allowed[1:]:
                both = b.logical_and(both, other)
            self.added.append(b.where(both, np.zeros((), dtype), np.full((), -inf, dtype)))
        terms, seen = self.added, None
        if self.constant is not None:
            terms = [*terms, b.constant(self.constant.astype(dtype))]
            some = np.asarray(self.constant > -inf).max(axis=-1, keepdims=True).astype(np.uint8)
            seen = None if some.all() else some
        if not terms:
            return None, None
        total = terms[0]
        for term in terms[1:]:
            total = b.add(total, term)
        if not self.may_hide_all:
            return total, seen
        largest = b.reduce_max(total, axes=[total.rank - 1], keep_dimensions=True)
        return total, b.greater(largest, np.full((), -inf, dtype))


def attend(
    b: MLGraphBuilder,
    q: MLOperand,
    k: MLOperand,
    v: MLOperand,
    mask: Mask,
    *,
    scale: float | None,
    softcap: float = 0.0,
    precision: int = 0,
    mode: int = 0,
) -> tuple[MLOperand, MLOperand]:
    """Scaled dot product attention of `q` [batch, heads, queries, size] on `k` and `v` [batch, groups, keys, size].

    Returns:
        The result [batch, heads, queries, size of v], and the scores as they are before step `mode`: 0 the product, 1 capped,
        2 masked, 3 the probabilities. A query that sees no key gives zeros.
    """
    batch, heads, queries, size = q.shape
    groups, keys = k.shape[1:3]
    if heads % groups or v.shape[1] != groups:
        raise Unsupported(
            f"{heads} heads of queries do not divide into {groups} groups of keys and {v.shape[1]} of values"
        )
    scale = 1 / sqrt(size) if scale is None else scale
    kt = b.transpose(k, permutation=[0, 1, 3, 2])
    if q.data_type == "float16":  # half of the scale for each, so that the product does not overflow
        root = sqrt(abs(scale))
        q, kt = b.mul(q, copysign(root, scale)), b.mul(kt, root)
    else:
        q = b.mul(q, scale)
    # Heads that share keys are taken together as more queries, so that no key is repeated.
    shared = [batch, groups, heads // groups * queries, size]
    scores = b.matmul(q if heads == groups else b.reshape(q, shared), kt)
    if heads != groups:
        scores = b.reshape(scores, [batch, heads, queries, keys])
    shown = scores
    if softcap:
        scores = b.mul(b.tanh(b.mul(scores, 1 / softcap)), softcap)
    if mode == 1:
        shown = scores
    bias, seen = mask.build(b, scores)
    if bias is not None:
        scores = b.add(scores, bias)
    if mode == 2:
        shown = scores
    wide = {0: None, TensorProto.FLOAT: "float32", TensorProto.FLOAT16: "float16"}
    if precision not in wide:
        raise Unsupported(f"softmax in {TensorProto.DataType.Name(precision).lower()}")
    own, inner = scores.data_type, wide[precision]
    if inner is not None and inner != own:
        weights = b.cast(b.softmax(b.cast(scores, inner), axis=3), own)
    else:
        weights = b.softmax(scores, axis=3)
    if mode == 3:
        shown = weights if seen is None else b.where(seen, weights, np.zeros((), own))
    if heads != groups:
        weights = b.reshape(weights, [*shared[:3], keys])
    result = b.matmul(weights, v)
    if heads != groups:
        result = b.reshape(result, [batch, heads, queries, v.shape[3]])
    if seen is not None:
        result = b.where(seen, result, np.zeros((), own))
    return result, shown


def heads_first(b: MLGraphBuilder, x: MLOperand, heads: int) -> MLOperand:
    """[batch, length, heads * size] -> [batch, heads, length, size]."""
    batch, length, hidden = x.shape
    if not heads or hidden % heads:
        raise Unsupported(f"{hidden} hidden values do not divide into {heads} heads")
    return b.transpose(b.reshape(x, [batch, length, heads, hidden // heads]), permutation=[0, 2, 1, 3])


def heads_joined(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    """[batch, heads, length, size] -> [batch, length, heads * size]."""
    batch, heads, length, size = x.shape
    return b.reshape(b.transpose(x, permutation=[0, 2, 1, 3]), [batch, length, heads * size])


@converts("Attention")
def _(
    b: MLGraphBuilder,
    Q: Tensor,
    K: Tensor,
    V: Tensor,
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
    q, k, v = operand(b, Q), operand(b, K), operand(b, V)
    joined = q.rank == 3
    if joined:
        q, k, v = heads_first(b, q, q_num_heads), heads_first(b, k, kv_num_heads), heads_first(b, v, kv_num_heads)
    offset: Any = 0
    if past_key is not None and past_value is not None:
        offset = shape_of(past_key)[2]
        k, v = b.concat([operand(b, past_key), k], axis=2), b.concat([operand(b, past_value), v], axis=2)
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
    y, shown = attend(
        b, q, k, v, mask, scale=scale, softcap=softcap, precision=softmax_precision, mode=qk_matmul_output_mode
    )
    return heads_joined(b, y) if joined else y, k, v, shown


@converts("FlexAttention", domain="ai.onnx.preview")  # where it has no sub-graphs that modify it
def _(
    b: MLGraphBuilder,
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    *,
    scale: float | None = None,
    softmax_precision: int = TensorProto.FLOAT,
) -> MLOperand:
    q, k, v = operand(b, Q), operand(b, K), operand(b, V)
    return attend(b, q, k, v, Mask(), scale=scale, precision=softmax_precision)[0]


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
    query: Tensor,
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
    q = operand(b, query)
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
    past = 0
    if past_key is not None and past_value is not None:
        past = shape_of(past_key)[2]
        k, v = b.concat([operand(b, past_key), k], axis=2), b.concat([operand(b, past_value), v], axis=2)
    queries, keys = q.shape[2], k.shape[2]
    mask = Mask()
    if unidirectional:
        mask.hide(np.arange(keys) <= np.arange(queries)[:, None] + past)
    if key_padding_mask is not None:
        mask.add(_padding(b, key_padding_mask, (q.shape[0], queries, keys), mask_filter_value, q), finite=True)
    if attention_bias is not None:
        mask.add(attention_bias, finite=True)  # the engine does not look after queries that see nothing, either
    y, shown = attend(b, q, k, v, mask, scale=scale or None)
    return heads_joined(b, y), k, v, shown


def _padding(b: MLGraphBuilder, mask: Tensor, sizes: tuple[int, int, int], hidden: float, like: MLOperand) -> MLOperand:
    """What a mask of keys, 1 where they count, adds to the scores."""
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
    query: Tensor,
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
    q = operand(b, query)
    if smooth_softmax == 1:
        raise Unsupported("softmax with one more, hidden key")
    # One sequence alone may be shorter than the total, too, where past and mask have a fixed length.
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
        turn = {"positions": positions, "interleaved": bool(rotary_interleaved)}
        q, k = (rotate(b, x, cos_cache, sin_cache, length_axis=2, **turn) for x in (q, k))
    kept_k, kept_v = (_continued(b, old, new, past) for old, new in ((past_key, k), (past_value, v)))
    k, v = (x if x.shape[2] == total else _first(b, x, total) for x in (kept_k, kept_v))
    mask = Mask()
    relative = np.arange(total) - np.arange(past, total)[:, None]
    mask.hide(relative <= 0)
    if local_window_size >= 0:
        mask.hide(relative > -local_window_size)
    if attention_bias is not None:
        mask.add(attention_bias, finite=True)  # the engine does not look after queries that see nothing, either
    y, shown = attend(b, q, k, v, mask, scale=scale or None, softcap=softcap)
    return heads_joined(b, y), kept_k, kept_v, shown


def _memory(
    b: MLGraphBuilder, past_key: Tensor | None, past_value: Tensor | None, sizes: tuple[int, int, int]
) -> tuple[Tensor | None, ...] | None:
    """The memory of attention, and how much of it counts; None where new keys do not fit into it."""
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
    """A cache in which `new` stands after the first `past` elements, and before zeros if it is longer."""
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
