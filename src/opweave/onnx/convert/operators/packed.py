"""ONNX Runtime's attention with merged weights, packed sequences and decoders, and further operators of such models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....composites.attend import Mask, attend, join_heads, split_heads
from ....context.builder import MLGraphBuilder
from ....core.dtypes import DataType
from ....core.graph import MLOperand
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
from .attention import padding_bias, rotate, with_past
from .quantized import integer_product
from .windows import reshape


def _project(
    b: MLGraphBuilder, projected: MLOperand, bias: Tensor | None, sizes: Sequence[int] | None, heads: int
) -> list[MLOperand]:
    """Add the bias to merged projections, and split them into queries, keys and values [..., hidden]."""
    total = projected if bias is None else b.add(projected, bias)
    width = total.shape[-1]
    if not sizes:
        unsupported_if(width % 3, f"three parts do not divide {width} columns")
        sizes = [width // 3] * 3
    unsupported_if(len(sizes) != 3 or sum(sizes) != width, f"its hidden sizes {list(sizes)} do not fit {width} columns")
    unsupported_if(any(size % heads or size <= 0 for size in sizes), f"{heads} heads do not divide {list(sizes)}")
    return list(b.split(total, list(sizes), axis=total.rank - 1))


def _attend_with_past(
    b: MLGraphBuilder,
    parts: Sequence[MLOperand],
    heads: int,
    mask: Tensor | None,
    past: Tensor | None,
    bias: Tensor | None,
    *,
    causal: int,
    hidden: float,
    scale: float | None,
) -> tuple[MLOperand, MLOperand]:
    """Attention of projections, and the present keys and values [2, batch, heads, length, size]."""
    q, k, v = (split_heads(b, part, heads) for part in parts)
    past_key = past_value = None
    if past is not None and shape_of(past)[3]:
        unsupported_if(len(shape_of(past)) != 5, f"its past has the shape {list(shape_of(past))}")
        past_key, past_value = (b.reshape(part, part.shape[1:]) for part in b.split(operand(b, past), 2, axis=0))
    k, v, before = with_past(b, past_key, past_value, k, v)
    queries, keys = q.shape[2], k.shape[2]
    seen = Mask()
    if causal:
        seen.restrict(np.tri(int(queries), int(keys), int(before), dtype=bool))
    if mask is not None:
        seen.add(padding_bias(b, mask, (q.shape[0], queries, keys), hidden, q), finite=True)
    if bias is not None:
        seen.add(bias, finite=True)
    y = join_heads(b, attend(b, q, k, v, seen, scale=scale or None))
    if k.shape != v.shape:
        return y, k
    return y, b.concat([b.reshape(part, [1, *part.shape]) for part in (k, v)], 0)


@converts("Attention", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    weights: MLOperand,
    bias: Tensor | None = None,
    mask_index: Tensor | None = None,
    past: Tensor | None = None,
    attention_bias: Tensor | None = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    past_present_share_buffer: int = 0,
    qkv_hidden_sizes: Sequence[int] | None = None,
    scale: float = 0.0,
    unidirectional: int = 0,
    outputs: int,
) -> tuple[MLOperand, ...]:
    unsupported_if(
        do_rotary or past_present_share_buffer, "it rotates queries and keys, or shares buffers of its states"
    )
    parts = _project(b, b.matmul(input, weights), bias, qkv_hidden_sizes, num_heads)
    unsupported_if(outputs > 1 and parts[0].shape != parts[2].shape, "its keys and values have different sizes")
    options = {"causal": unidirectional, "hidden": mask_filter_value, "scale": scale}
    return _attend_with_past(b, parts, num_heads, mask_index, past, attention_bias, **options)[:outputs]


@converts("QAttention", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    weight: MLOperand,
    bias: Tensor,
    input_scale: Tensor,
    weight_scale: Tensor,
    mask_index: Tensor | None = None,
    input_zero_point: Tensor | None = None,
    weight_zero_point: Tensor | None = None,
    past: Tensor | None = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    past_present_share_buffer: int = 0,
    scale: float = 0.0,
    unidirectional: int = 0,
    outputs: int,
) -> tuple[MLOperand, ...]:
    unsupported_if(
        do_rotary or past_present_share_buffer, "it rotates queries and keys, or shares buffers of its states"
    )
    own = operand(b, bias).data_type
    scales = [as_type(b, value, "float32") for value in (input_scale, weight_scale)]
    total = b.cast(integer_product(b, input, weight, input_zero_point, weight_zero_point), "float32")
    projected = b.cast(b.mul(total, b.mul(*scales)), own)
    parts = _project(b, projected, bias, None, num_heads)
    options = {"causal": unidirectional, "hidden": mask_filter_value, "scale": scale}
    return _attend_with_past(b, parts, num_heads, mask_index, past, None, **options)[:outputs]


# Decoders ------------------------------------------------------------------------------------------------------------


def _write_at(b: MLGraphBuilder, past: MLOperand, new: MLOperand, place: Tensor) -> MLOperand:
    """A cache [batch, heads, capacity, size] with the new key or value of one token at a position."""
    places = np.arange(int(past.shape[2]), dtype=np.int32).reshape(1, 1, -1, 1)
    return b.where(b.equal(b.constant(places), reshape(b, place, [1, 1, 1, 1])), new, past)


def _decode(
    b: MLGraphBuilder,
    parts: Sequence[MLOperand],
    pasts: Sequence[Tensor | None],
    heads: int,
    mask: Tensor | None,
    bias: Tensor | None,
    place: Tensor | None,
    *,
    shared: int,
    hidden: float,
    scale: float | None,
) -> tuple[MLOperand, MLOperand, MLOperand]:
    """Attention of the query of one token, and the present keys and values [batch, heads, length, size].

    With `shared`, these have the capacity of the past, and the new ones are at the position `place`.
    """
    q, k, v = (split_heads(b, part, heads) for part in parts)
    seen = Mask()
    if not shared:
        k, v, _ = with_past(b, pasts[0], pasts[1], k, v)
        covered = k.shape[2]
    else:
        if place is None or pasts[0] is None or pasts[1] is None:
            raise Unsupported("it shares buffers of its states, and has no past or past_sequence_length")
        k, v = (_write_at(b, operand(b, past), new, place) for past, new in zip(pasts, (k, v), strict=True))
        covered = k.shape[2]
        last = reshape(b, place, [1, 1, 1, 1])
        visible = b.lesser_or_equal(b.constant(np.arange(int(covered), dtype=np.int32).reshape(1, 1, 1, -1)), last)
        seen.restrict(visible, some=True)
    if mask is not None:
        unsupported_if(shape_of(mask)[-1] != covered, f"mask_index covers {shape_of(mask)[-1]} of {covered} keys")
        seen.add(padding_bias(b, mask, (q.shape[0], 1, covered), hidden, q), finite=True)
    if bias is not None:
        unsupported_if(shape_of(bias)[-1] != covered, f"attention_bias covers {shape_of(bias)[-1]} of {covered} keys")
        seen.add(bias, finite=True)
    return join_heads(b, attend(b, q, k, v, seen, scale=scale or None)), k, v


def _check_beams(beam_width: Tensor | None, cache_indirection: Tensor | None) -> None:
    if beam_width is not None:
        unsupported_if(integer(beam_width, "beam_width") != 1, "it follows several beams")
    elif cache_indirection is not None:
        raise Unsupported("it follows several beams")


@converts("DecoderMaskedMultiHeadAttention", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    query: MLOperand,
    key: Tensor | None = None,
    value: Tensor | None = None,
    mask_index: Tensor | None = None,
    attention_bias: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    past_sequence_length: Tensor | None = None,
    beam_width: Tensor | None = None,
    cache_indirection: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    output_qk: int = 0,
    past_present_share_buffer: int = 0,
    scale: float = 0.0,
    outputs: int,
) -> tuple[MLOperand, ...]:
    unsupported_if(outputs > 3 or output_qk, "it outputs scores")
    _check_beams(beam_width, cache_indirection)
    # Keys and values of 4 axes belong to another sequence: this is cross-attention.
    if key is not None and value is not None and len(shape_of(key)) == 4:
        k, v = operand(b, key), operand(b, value)
        if bias is not None:
            query = b.add(query, b.slice(operand(b, bias), [0], [query.shape[2]]))
        q = split_heads(b, query, num_heads)
        seen = Mask()
        if mask_index is not None:
            seen.add(padding_bias(b, mask_index, (q.shape[0], 1, k.shape[2]), mask_filter_value, q), finite=True)
        if attention_bias is not None:
            seen.add(attention_bias, finite=True)
        return (join_heads(b, attend(b, q, k, v, seen, scale=scale or None)), k, v)[:outputs]
    if key is None or value is None:
        parts = _project(b, query, bias, None, num_heads)
    else:
        parts = [query, operand(b, key), operand(b, value)]
        if bias is not None:
            split = b.split(operand(b, bias), [part.shape[2] for part in parts])
            parts = [b.add(part, added) for part, added in zip(parts, split, strict=True)]
    pasts = (past_key, past_value)
    options = {"shared": past_present_share_buffer, "hidden": mask_filter_value, "scale": scale}
    results = _decode(b, parts, pasts, num_heads, mask_index, attention_bias, past_sequence_length, **options)
    return results[:outputs]


@converts("DecoderMaskedSelfAttention", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    weights: MLOperand,
    bias: Tensor,
    mask_index: Tensor | None,
    past: Tensor,
    attention_bias: Tensor | None,
    past_sequence_length: Tensor,
    beam_width: Tensor | None = None,
    cache_indirection: Tensor | None = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float = -10000.0,
    num_heads: int,
    past_present_share_buffer: int = 0,
    scale: float = 0.0,
    outputs: int,
) -> tuple[MLOperand, ...]:
    unsupported_if(do_rotary, "it rotates queries and keys")
    _check_beams(beam_width, cache_indirection)
    parts = _project(b, b.matmul(input, weights), bias, None, num_heads)
    pasts = [b.reshape(part, part.shape[1:]) for part in b.split(operand(b, past), 2, axis=0)]
    options = {"shared": past_present_share_buffer, "hidden": mask_filter_value, "scale": scale}
    y, k, v = _decode(b, parts, pasts, num_heads, mask_index, attention_bias, past_sequence_length, **options)
    present = b.concat([b.reshape(part, [1, *part.shape]) for part in (k, v)], 0)
    return (y, present)[:outputs]


# Packed sequences ----------------------------------------------------------------------------------------------------


def _attend_packed(
    b: MLGraphBuilder,
    parts: Sequence[MLOperand],
    heads: int,
    token_offset: Tensor,
    cumulative: Tensor,
    bias: Tensor | None,
    scale: float | None,
) -> MLOperand:
    """Attention within packed sequences [tokens, hidden]; `token_offset` is [batch, length]."""
    tokens, (batch, length) = parts[0].shape[0], shape_of(token_offset)
    starts = b.reshape(b.slice(cumulative, [0], [batch]), [batch, 1])
    ends = b.reshape(b.slice(cumulative, [1], [batch]), [batch, 1])
    within = np.arange(int(length), dtype=np.int32)[None]
    places = b.clamp(b.add(starts, within), min_value=0, max_value=int(tokens) - 1)
    q, k, v = (split_heads(b, b.gather(part, places, axis=0), heads) for part in parts)
    seen = Mask()
    visible = b.lesser(b.constant(within), b.sub(ends, starts))
    seen.restrict(b.reshape(visible, [batch, 1, 1, length]))
    if bias is not None:
        seen.add(bias, finite=True)
    y = join_heads(b, attend(b, q, k, v, seen, scale=scale or None))
    rows = b.reshape(y, [batch * length, y.shape[2]])
    order = b.slice(reshape(b, token_offset, [batch * length]), [0], [tokens])
    return b.gather(rows, order, axis=0)


@converts("PackedAttention", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    input: MLOperand,
    weights: MLOperand,
    bias: Tensor,
    token_offset: Tensor,
    cumulative_sequence_length: Tensor,
    attention_bias: Tensor | None = None,
    *,
    num_heads: int,
    qkv_hidden_sizes: Sequence[int] | None = None,
    scale: float = 0.0,
) -> MLOperand:
    parts = _project(b, b.matmul(input, weights), bias, qkv_hidden_sizes, num_heads)
    return _attend_packed(b, parts, num_heads, token_offset, cumulative_sequence_length, attention_bias, scale)


@converts("PackedMultiHeadAttention", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    query: MLOperand,
    key: Tensor | None,
    value: Tensor | None,
    bias: Tensor | None,
    token_offset: Tensor,
    cumulative_sequence_length: Tensor,
    attention_bias: Tensor | None = None,
    *,
    mask_filter_value: float = -10000.0,  # not read: no query sees the keys of padding
    num_heads: int,
    scale: float = 0.0,
) -> MLOperand:
    if key is None or value is None:
        unsupported_if(query.rank != 4, "it has no keys or values")
        tokens, heads, _, size = query.shape
        parts = [b.reshape(part, [tokens, heads * size]) for part in b.split(query, 3, axis=2)]
    else:
        parts = [query, operand(b, key), operand(b, value)]
    if bias is not None:
        split = b.split(operand(b, bias), [part.shape[1] for part in parts])
        parts = [b.add(part, added) for part, added in zip(parts, split, strict=True)]
    return _attend_packed(b, parts, num_heads, token_offset, cumulative_sequence_length, attention_bias, scale)


@converts("RestorePadding", domain=MICROSOFT)
def _(b: MLGraphBuilder, input: MLOperand, token_offset: Tensor) -> MLOperand:
    (tokens, hidden), (batch, length) = input.shape, shape_of(token_offset)
    order = b.slice(reshape(b, token_offset, [batch * length]), [0], [tokens])
    zeros = np.zeros((int(batch * length), int(hidden)), input.data_type)
    rows = b.scatter_nd(b.constant(zeros), b.reshape(order, [tokens, 1]), input)
    return b.reshape(rows, [batch, length, hidden])


# Positions -----------------------------------------------------------------------------------------------------------


def _buckets(queries: int, keys: int, count: int, most: int, is_bidirectional: int) -> np.ndarray:
    """The bucket of each distance of a key from a query, as T5 defines it (arXiv:1910.10683)."""
    distance = np.arange(queries)[:, None] - np.arange(keys)
    buckets = np.zeros_like(distance)
    if is_bidirectional:
        count //= 2
        buckets, distance = np.where(distance < 0, count, 0), np.abs(distance)
    distance = np.maximum(distance, 0)
    exact = count // 2
    ratio = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact)) / np.log(np.float32(most / exact))
    far = np.minimum(exact + (ratio * (count - exact)).astype(np.int64), count - 1)
    return np.asarray(buckets + np.where(distance < exact, distance, far), np.int64)


@converts("RelativePositionBias", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    bias_table: MLOperand,
    query_length: Tensor,
    key_length: Tensor,
    *,
    is_bidirectional: int = 0,
    max_distance: int,
) -> MLOperand:
    count, heads = bias_table.shape
    queries, keys = integer(query_length, "query_length"), integer(key_length, "key_length")
    unsupported_if(
        int(count) < 4 or max_distance <= int(count) // 2, f"it has {count} buckets for {max_distance} positions"
    )
    buckets = b.constant(_buckets(queries, keys, int(count), max_distance, is_bidirectional))
    rows = b.gather(b.transpose(bias_table), buckets, axis=1)
    return b.reshape(rows, [1, heads, queries, keys])


@converts("GatedRelativePositionBias", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    query_layer: MLOperand,
    query_bias: Tensor,
    rel_pos: Tensor,
    weight: MLOperand,
    bias: Tensor,
    eco_a: Tensor,
    token_offset: Tensor | None = None,
    *,
    num_heads: int,
) -> MLOperand:
    unsupported_if(token_offset is not None or query_layer.rank != 3, "its queries are packed")
    q = split_heads(b, b.add(query_layer, query_bias), num_heads)
    batch, heads, length, _ = q.shape
    width = weight.shape[1]
    unsupported_if(width % 2, f"it splits {width} columns")
    gates = b.reshape(b.add(b.matmul(q, weight), bias), [batch, heads, length, 2, width // 2])
    gate_u, gate_r = b.split(b.sigmoid(b.reduce_sum(gates, axes=[4])), 2, axis=3)
    gate = b.add(b.mul(gate_u, b.sub(b.mul(gate_r, eco_a), 1.0)), 2.0)
    return b.mul(gate, rel_pos)


@converts("MRotaryEmbedding", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    x: MLOperand,
    position_ids: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    mrope_layout: int = 0,
    mrope_section: Sequence[int],
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> MLOperand:
    unsupported_if(is_packed_batching or scale != 1, "it packs batches, or its scale is not 1")
    pairs = shape_of(cos_cache)[-1]
    sections = list(mrope_section)
    unsupported_if(
        len(sections) != 3 or sum(sections) != pairs or min(sections) < 0,
        f"its sections {sections} are not of {pairs} pairs",
    )
    unsupported_if(mrope_layout not in (0, 1), f"its layout is {mrope_layout}")
    if mrope_layout == 0:
        stream = np.repeat(np.arange(3), sections)
    else:
        stream = np.zeros(pairs, np.int64)
        for k in (1, 2):
            stream[k : sections[k] * 3 : 3] = k
    batch, length = shape_of(position_ids)[1:]
    heads = num_heads or x.shape[-1] // (2 * pairs)
    rows = as_type(b, position_ids, "int64")
    # The column of each pair from the rows of its stream: [batch, length, pairs].
    tables = []
    for table in (cos_cache, sin_cache):
        gathered = b.gather(operand(b, table), operand(b, rows), axis=0)  # [3, batch, length, pairs]
        chosen = [
            b.mul(b.reshape(part, [batch, length, pairs]), np.asarray(stream == k, gathered.data_type))
            for k, part in enumerate(b.split(gathered, 3, axis=0))
        ]
        tables.append(b.add(b.add(chosen[0], chosen[1]), chosen[2]))
    return rotate(b, x, tables[0], tables[1], None, heads=heads, interleaved=interleaved)


@converts("GemmaRotaryEmbedding", domain=MICROSOFT)
def _(
    b: MLGraphBuilder, emb: MLOperand, q: MLOperand, q_rot: MLOperand, k: MLOperand, k_rot: MLOperand
) -> tuple[MLOperand, MLOperand]:
    batch, length, size = emb.shape
    own: DataType = "float16" if q.data_type == "float16" else "float32"
    cosines, sines = (b.reshape(b.cast(function(emb), own), [batch, 1, length, size]) for function in (b.cos, b.sin))
    first, second = (b.add(b.mul(x, cosines), b.mul(turned, sines)) for x, turned in ((q, q_rot), (k, k_rot)))
    return first, second
