"""Scaled dot product attention, multi-head attention, and attention with a cache of keys and values."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.dtypes import FLOATS, DataType
from ..core.graph import Builder, Desc, Operand, check_shape
from ..core.operation import Limits
from ..core.shapes import broadcasts_to
from ..core.sizes import is_same_size
from ..core.value_ranges import ValueRange
from ..ops.constants import constant, line
from ..support.errors import require
from .attend import Mask, attend, check_heads, join_heads, split_heads
from .declare import check_divides, declare
from .rotary import rotary_embedding

if TYPE_CHECKING:
    from ..ops import Operations

MASKS = (*FLOATS, "uint8")
_HEADS = Limits("query", ranks=(4, 4))
_JOINED = Limits("query", ranks=(3, 3))
_CACHED = Limits((*FLOATS, "int8"), ranks=(4, 4))
_CACHE_SCALE = Limits(("float32",), ranks=(3, 3))

LEAST_CACHE_SCALE = 1e-30
"""Smallest scale of 8-bit keys and values: it divides a vector of zeros, and no device flushes it to 0."""


def _check_mask(mask: Operand | None, query: Operand, shape: tuple[int, ...]) -> None:
    if mask is None:
        return
    rule = f"mask must be uint8 or {query.data_type}, the data type of query, got {mask.desc}"
    require(mask.data_type in ("uint8", query.data_type), rule)
    require(broadcasts_to(mask.shape, shape), f"mask must broadcast to {list(shape)}, got {mask.desc}")


# ---------------------------------------------------------------------------------------------------------------------
# Scaled dot product attention


@declare(query=Limits(FLOATS, ranks=(4, 4)), key=_HEADS, value=_HEADS, mask=Limits((*FLOATS, "uint8"), ranks=(0, 4)))
def scaled_dot_product_attention(
    self: Builder,
    query: Operand,
    key: Operand,
    value: Operand,
    mask: Operand | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    label: str = "",
) -> Desc:
    """Average the values with weights from the products of queries and keys.

    Args:
        query: float32 or float16 [batches, heads, queries, size].
        key: [batches, groups, keys, size]; the groups divide the heads, and neighbouring heads share the keys of a group.
        value: [batches, groups, keys, size of values].
        mask: an operand that broadcasts to [batches, heads, queries, keys]: uint8, where 0 hides a key from a query; or of the
            data type of `query`, added to the scores, where -inf hides a key.
        causal: whether query i sees only the keys up to i.

    Returns: `softmax(query @ key.T * scale + mask) @ value`, in the data type of `query`
        [batches, heads, queries, size of values]. A query that sees no key gives zeros.

    Vaswani et al., Attention Is All You Need (2017), arXiv:1706.03762; ONNX's Attention.

    >>> one = np.ones((1, 1, 2, 4), "float32")
    >>> value = np.float32([1, 3]).reshape(1, 1, 2, 1)
    >>> scaled_dot_product_attention(one, one, value, causal=True).ravel().tolist()
    [1.0, 2.0]
    """
    check_heads(query, key, value)
    batches, heads, queries, _ = query.shape
    _check_mask(mask, query, (batches, heads, queries, key.shape[2]))
    return Desc(query.data_type, (batches, heads, queries, value.shape[3]))


@scaled_dot_product_attention.default("scale")
def _(query: Operand) -> float:
    return 1 / sqrt(query.shape[3]) if query.shape[3] else 1.0


@scaled_dot_product_attention.decompose
def _(
    b: Operations,
    query: Operand,
    key: Operand,
    value: Operand,
    mask: Operand | None,
    causal: bool,
    scale: float,
) -> Operand:
    bounds = Mask()
    if mask is not None:
        (bounds.restrict if mask.data_type == "uint8" else bounds.add)(mask)
    if causal:
        bounds.restrict(np.tri(query.shape[2], key.shape[2], dtype=bool))
    return attend(b, query, key, value, bounds, scale=scale)


# ---------------------------------------------------------------------------------------------------------------------
# Heads joined in the last axis


@declare(query=Limits(FLOATS, ranks=(3, 3)), key=_JOINED, value=_JOINED, mask=Limits((*FLOATS, "uint8"), ranks=(0, 4)))
def multi_head_attention(
    self: Builder,
    query: Operand,
    key: Operand,
    value: Operand,
    mask: Operand | None = None,
    *,
    heads: int,
    causal: bool = False,
    scale: float | None = None,
    label: str = "",
) -> Desc:
    """Compute scaled dot product attention of several heads, which are joined in the last axis.

    Args:
        query: float32 or float16 [batches, queries, heads * size].
        key: [batches, keys, heads * size].
        value: [batches, keys, heads * size of values].
        mask: uint8 or of the data type of `query`, broadcasts to [batches, heads, queries, keys]; see
            `scaled_dot_product_attention`.
        heads: the number of heads.
        causal: whether query i sees only the keys up to i.

    Returns: An operand of the data type of `query` [batches, queries, heads * size of values]. Queries that see no key
        give zeros.
    Raises: shapes that do not fit, or do not divide into heads.

    Vaswani et al., Attention Is All You Need (2017), arXiv:1706.03762; ONNX Runtime's MultiHeadAttention.

    >>> one, value = np.ones((1, 2, 8), "float32"), np.float32([[[1, 5], [3, 6]]])
    >>> multi_head_attention(one, one, value, heads=2, causal=True).tolist()
    [[[1.0, 5.0], [2.0, 5.5]]]
    """
    batches, queries, hidden = query.shape
    for name, operand in {"query": query, "key": key, "value": value}.items():
        check_divides(name, operand, heads)
    keys = key.shape[1]
    check_shape([batches, keys, hidden], "of the batches and heads of query", key=key)
    check_shape([batches, keys, value.shape[2]], "of the batches and length of key", value=value)
    _check_mask(mask, query, (batches, heads, queries, keys))
    return Desc(query.data_type, (batches, queries, value.shape[2]))


@multi_head_attention.default("scale")
def _scale(query: Operand, heads: int) -> float:
    return 1 / sqrt(query.shape[2] // heads) if 0 < heads <= query.shape[2] else 1.0


@multi_head_attention.decompose
def _(
    b: Operations,
    query: Operand,
    key: Operand,
    value: Operand,
    mask: Operand | None,
    heads: int,
    causal: bool,
    scale: float,
) -> Operand:
    q, k, v = (split_heads(b, x, heads) for x in (query, key, value))
    return join_heads(b, scaled_dot_product_attention(b, q, k, v, mask, causal=causal, scale=scale))


# ---------------------------------------------------------------------------------------------------------------------
# Attention with a cache of keys and values


@declare(
    query=Limits(FLOATS, ranks=(3, 3)),
    key=_JOINED,
    value=_JOINED,
    past_key=_CACHED,
    past_value=_CACHED,
    lengths=Limits(("int32",), ranks=(1, 1)),
    cosines=Limits("query", ranks=(2, 2)),
    sines=Limits("query", ranks=(2, 2)),
    bias=Limits("query", ranks=(0, 4)),
    sinks=Limits("query", ranks=(1, 1)),
    past_key_scale=_CACHE_SCALE,
    past_value_scale=_CACHE_SCALE,
)
def group_query_attention(
    self: Builder,
    query: Operand,
    key: Operand,
    value: Operand,
    past_key: Operand | None = None,
    past_value: Operand | None = None,
    lengths: Operand | None = None,
    cosines: Operand | None = None,
    sines: Operand | None = None,
    bias: Operand | None = None,
    sinks: Operand | None = None,
    past_key_scale: Operand | None = None,
    past_value_scale: Operand | None = None,
    *,
    heads: int,
    groups: int,
    scale: float | None = None,
    softcap: float = 0.0,
    window: int = 0,
    interleaved: bool = False,
    label: str = "",
) -> tuple[Desc, ...]:
    """Compute causal attention of heads that share keys and values in groups, with a KV cache.

    Args:
        query: float32 or float16 [batches, new, heads * size].
        key: [batches, new, groups * size].
        value: [batches, new, groups * size].
        past_key: the keys so far [batches, groups, past, size], of the data type of `query`, or int8 with scales.
        past_value: the values so far [batches, groups, past, size], of the data type of `past_key`.
        lengths: int32 [batches]: the number of valid keys of the past. The new keys are written behind them, and must fit.
            Default: all are valid, and the cache grows.
        cosines: rotate queries and new keys by their positions first, as `rotary_embedding` does with this table
            [positions, pairs]. The first new key has the position `lengths`, or past. Default: no rotation.
        sines: the sines that belong to `cosines`.
        bias: added to the scores, broadcasts to [batches, heads, new, keys], where `keys` is the length of the keys that
            are returned; -inf hides a key.
        sinks: [heads]: for each head, the score of an additional key with value zero, which all queries see.
        past_key_scale: the scale of each vector of 8-bit keys, float32 [batches, groups, past]. A new key `k`, finite, is
            stored as `round(k / scale)` with `scale = max(abs(k)) / 127`, and read as this integer times `scale`.
        past_value_scale: the same for values, float32.
        heads: the number of heads of the queries.
        groups: the number of heads of keys and values; divides `heads`.
        softcap: scores become `softcap * tanh(scores / softcap)`, before `bias` is added; 0 leaves them.
        window: maximum number of keys that a query sees, including its own as the last; 0 for no limit.
        interleaved: whether the rotated pairs are neighbours, see `rotary_embedding`.

    Returns: The result [batches, new, heads * size], and the keys and values to pass as the past next time: of the shape of
        `past_key` if there are `lengths` (unused positions have any contents), otherwise
        [batches, groups, past + new, size]. A query that sees no key gives zeros. With scales, two more results are the scales
        of the keys and values that are returned.
    Raises: shapes that do not fit; before a graph runs on a CPU, an input `lengths` that leaves no space for
        the new keys.

    ONNX Runtime's GroupQueryAttention; Ainslie et al., GQA (2023), arXiv:2305.13245. Windows: Beltagy et al., Longformer
    (2020), arXiv:2004.05150; soft caps: Gemma 2 (2024), arXiv:2408.00118; sinks: Xiao et al. (2023), arXiv:2309.17453.

    >>> one, value = np.ones((1, 1, 2), "float32"), np.float32([[[4, 8]]])
    >>> past = np.zeros((1, 1, 1, 2), "float32")
    >>> y, keys, values = group_query_attention(one, one, value, past + 1, past, heads=1, groups=1)
    >>> y.tolist(), values.tolist()
    ([[[2.0, 4.0]]], [[[[0.0, 0.0], [4.0, 8.0]]]])
    """
    size = check_divides("query", query, heads)
    require(groups > 0 and heads % groups == 0, f"groups must divide the {heads} heads, got {groups}")
    batches, new, _ = query.shape
    shape = [batches, new, groups * size]
    check_shape(shape, "the batches and length of query with heads of groups", key=key, value=value)
    require((past_key is None) == (past_value is None), "past_key and past_value must be given together")
    require(lengths is None or past_key is not None, "lengths must come with past_key and past_value")
    check_shape([batches], "the number of batches", lengths=lengths)
    stored = _check_cache_type(query, past_key, past_value, past_key_scale, past_value_scale)
    if past_key is not None:
        past = past_key.shape[2]
        shape = [batches, groups, past, size]
        check_shape(shape, "[batches, groups, past, size of a head]", past_key=past_key, past_value=past_value)
        scales = {"past_key_scale": past_key_scale, "past_value_scale": past_value_scale}
        check_shape(shape[:3], "[batches, groups, past]", **scales)
        require(lengths is None or past >= new, f"past_key must have room for {new} new keys, got {past_key.desc}")
    keys = key_count(query, past_key, lengths)
    _check_rotation(cosines, sines, size, keys if lengths is None else new)
    scores = (batches, heads, new, keys)
    fits = bias is None or broadcasts_to(bias.shape, scores)
    require(fits, f"bias must broadcast to {list(scores)}, got {bias.desc if bias is not None else None}")
    check_shape([heads], "the number of heads", sinks=sinks)
    require(softcap >= 0, f"softcap must not be negative, got {softcap}")
    require(window >= 0, f"window must not be negative, got {window}")
    present = Desc(stored, (batches, groups, keys, size))
    if past_key_scale is None:
        return query.desc, present, present
    present_scale = Desc("float32", (batches, groups, keys))
    return query.desc, present, present, present_scale, present_scale


def _check_cache_type(
    query: Operand,
    past_key: Operand | None,
    past_value: Operand | None,
    past_key_scale: Operand | None,
    past_value_scale: Operand | None,
) -> DataType:
    """Return the data type of cached keys and values: that of `query`, or int8 if there are scales."""
    require(
        (past_key_scale is None) == (past_value_scale is None),
        "past_key_scale and past_value_scale must be given together",
    )
    require(past_key_scale is None or past_key is not None, "past_key_scale must come with past_key and past_value")
    stored: DataType = query.data_type if past_key_scale is None else "int8"
    for name, operand in {"past_key": past_key, "past_value": past_value}.items():
        if operand is None:
            continue
        hint = "" if operand.data_type != "int8" else "; int8 takes past_key_scale and past_value_scale"
        rule = "int8, as there are scales" if past_key_scale is not None else f"{stored}, the data type of query"
        require(
            operand.data_type == stored,
            f"{name} must be {rule}, got {operand.desc}{hint if past_key_scale is None else ''}",
        )
    return stored


def key_count(query: Operand, past_key: Operand | None, lengths: Operand | None) -> int:
    """Return the length of the keys that `group_query_attention` returns."""
    past = 0 if past_key is None else past_key.shape[2]
    return past if lengths is not None else past + query.shape[1]


def _check_rotation(cosines: Operand | None, sines: Operand | None, size: int, positions: int) -> None:
    require((cosines is None) == (sines is None), "cosines and sines must be given together")
    if cosines is None:
        return
    check_shape(cosines.shape, "that of cosines", sines=sines)
    rows, pairs = cosines.shape
    require(2 * pairs <= size, f"cosines must be of at most {size // 2} pairs, half of the size, got {cosines.desc}")
    require(positions <= rows, f"cosines must have a row for each of {positions} positions, got {cosines.desc}")


group_query_attention.default("scale")(_scale)
group_query_attention.in_place(
    output1="past_key", output2="past_value", output3="past_key_scale", output4="past_value_scale"
)


@group_query_attention.value_range("lengths")
def _(query: Operand, past_key: Operand, cosines: Operand | None) -> ValueRange:
    new, room = query.shape[1], past_key.shape[2]
    if cosines is not None and cosines.shape[0] < room:
        rows = cosines.shape[0]
        why = "so that cosines, with ", rows, " rows, have one for each of ", new, " new keys"
        return ValueRange(0, rows - new, why)
    return ValueRange(0, room - new, ("so that ", new, " new keys fit a past of ", room))


@group_query_attention.decompose
def _(
    b: Operations,
    query: Operand,
    key: Operand,
    value: Operand,
    past_key: Operand | None,
    past_value: Operand | None,
    lengths: Operand | None,
    cosines: Operand | None,
    sines: Operand | None,
    bias: Operand | None,
    sinks: Operand | None,
    past_key_scale: Operand | None,
    past_value_scale: Operand | None,
    heads: int,
    groups: int,
    scale: float,
    softcap: float,
    window: int,
    interleaved: bool,
) -> tuple[Operand, ...]:
    batches, new = query.shape[:2]
    total = key_count(query, past_key, lengths)
    if past_key is not None and past_key_scale is None and is_same_size(past_key.shape[2], 0):
        # The other keys have kernels for all lengths, but the mask below needs the number.
        alone = (query, key, value, None, None, None, cosines, sines, bias, sinks, None, None)
        sizes = {"heads": heads, "groups": groups, "scale": scale, "softcap": softcap, "window": window}
        return group_query_attention(b, *alone, **sizes, interleaved=interleaved)
    # Decompose only the rotation: an engine may have a kernel for the remaining attention.
    if cosines is not None and sines is not None:
        first = 0 if lengths is not None else total - new
        positions = line(b, first, new, "int64", [1, new])
        if lengths is not None:
            positions = positions + b.reshape(b.cast(lengths, "int64"), [batches, 1])
        elif not is_same_size(batches, 1):
            positions = b.expand(positions, [batches, new])
        query, key = (
            rotary_embedding(b, x, cosines, sines, positions, heads=count, interleaved=interleaved)
            for x, count in ((query, heads), (key, groups))
        )
        operands = (query, key, value, past_key, past_value, lengths, None, None, bias, sinks)
        scales = (past_key_scale, past_value_scale)
        sizes = {"heads": heads, "groups": groups, "scale": scale, "softcap": softcap, "window": window}
        return group_query_attention(b, *operands, *scales, **sizes)
    q, k, v = split_heads(b, query, heads), split_heads(b, key, groups), split_heads(b, value, groups)
    mask = Mask()
    rows, filled = None, None
    if lengths is None:
        mask.restrict(np.tri(new, total, total - new, dtype=bool))
        if window:
            mask.restrict(~np.tri(new, total, total - new - window, dtype=bool))
    else:
        start = b.reshape(lengths, [batches, 1, 1, 1])
        rows = start + line(b, 0, new, "int32", [1, 1, new, 1])
        filled = b.lesser(line(b, 0, total, "int32", [1, 1, total, 1]), start + new)
        columns = line(b, 0, total, "int32", [1, 1, 1, total])
        mask.restrict(b.lesser_or_equal(columns, rows), some=True)
        if window:
            mask.restrict(b.greater(columns, rows - window), some=True)
    options: dict[str, Any] = {"scale": scale, "softcap": softcap}
    if past_key_scale is None:
        if bias is not None:
            mask.add(bias)
        present = [_append(b, *pair, rows) for pair in ((past_key, k), (past_value, v))]
        visible = [_without_unused(b, x, filled) for x in present]
        return join_heads(b, attend(b, q, visible[0], visible[1], mask, sinks=sinks, **options)), *present
    # All of it in float32: the products of a query with integers may exceed float16.
    if bias is not None:
        mask.add(_as_float32(b, bias))
    q, sinks = _as_float32(b, q), None if sinks is None else _as_float32(b, sinks)
    (k, k_scale), (v, v_scale) = _in_8_bits(b, k), _in_8_bits(b, v)
    pairs = ((past_key, k), (past_value, v), (past_key_scale, k_scale), (past_value_scale, v_scale))
    present = [_append(b, *pair, rows) for pair in pairs]
    integers = [b.cast(x, "float32") for x in present[:2]]
    factors = [b.reshape(_without_unused(b, x, filled), [batches, groups, 1, total]) for x in present[2:]]
    y = attend(b, q, integers[0], integers[1], mask, sinks=sinks, factors=factors, **options)
    y = join_heads(b, y)
    return y if y.data_type == query.data_type else b.cast(y, query.data_type), *present


def _as_float32(b: Operations, x: Operand) -> Operand:
    return x if x.data_type == "float32" else b.cast(x, "float32")


def _append(b: Operations, past: Operand | None, x: Operand, rows: Operand | None) -> Operand:
    """Append to a cache along axis 2; write at `rows` instead, [batches, 1, new, 1], if there are `rows`."""
    if past is None:
        return x
    if rows is None:
        return b.concat([past, x], 2)
    rows = rows if x.rank == 4 else b.reshape(rows, [rows.shape[0], 1, rows.shape[2]])
    return b.scatter_elements(past, b.expand(rows, x.shape), x, axis=2)


def _without_unused(b: Operations, x: Operand, filled: Operand | None) -> Operand:
    """A cache with zeros at unused positions, which may hold NaN: 0 * NaN is NaN. `filled` is [batches, 1, keys, 1]."""
    if filled is None:
        return x
    filled = filled if x.rank == 4 else b.reshape(filled, [filled.shape[0], 1, filled.shape[2]])
    return b.where(filled, x, constant(b, 0, x.data_type))


def _in_8_bits(b: Operations, x: Operand) -> tuple[Operand, Operand]:
    """Round vectors of floats to int8 [batches, groups, new, size], with scales float32 [batches, groups, new]."""
    real = _as_float32(b, x)
    largest = b.reduce_max(b.abs(real), axes=[3], keep_dimensions=True)
    scale = b.max(largest * (1 / 127), constant(b, LEAST_CACHE_SCALE, "float32"))
    codes = b.clamp(b.round_even(real / scale), min_value=-127, max_value=127)
    return b.cast(codes, "int8"), b.reshape(scale, x.shape[:3])
