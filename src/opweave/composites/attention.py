"""Scaled dot product attention, multi-head attention, and attention with a cache of keys and values."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from ..core.dtypes import FLOATS
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
    past_key=_HEADS,
    past_value=_HEADS,
    lengths=Limits(("int32",), ranks=(1, 1)),
    cosines=Limits("query", ranks=(2, 2)),
    sines=Limits("query", ranks=(2, 2)),
    bias=Limits("query", ranks=(0, 4)),
    sinks=Limits("query", ranks=(1, 1)),
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
    *,
    heads: int,
    groups: int,
    scale: float | None = None,
    softcap: float = 0.0,
    window: int = 0,
    interleaved: bool = False,
    label: str = "",
) -> tuple[Desc, Desc, Desc]:
    """Compute causal attention of heads that share keys and values in groups, with a KV cache.

    Args:
        query: float32 or float16 [batches, new, heads * size].
        key: [batches, new, groups * size].
        value: [batches, new, groups * size].
        past_key: the keys so far [batches, groups, past, size].
        past_value: the values so far [batches, groups, past, size].
        lengths: int32 [batches]: the number of valid keys of the past. The new keys are written behind them, and must fit.
            Default: all are valid, and the cache grows.
        cosines: rotate queries and new keys by their positions first, as `rotary_embedding` does with this table
            [positions, pairs]. The first new key has the position `lengths`, or past. Default: no rotation.
        sines: the sines that belong to `cosines`.
        bias: added to the scores, broadcasts to [batches, heads, new, keys], where `keys` is the length of the keys that
            are returned; -inf hides a key.
        sinks: [heads]: for each head, the score of an additional key with value zero, which all queries see.
        heads: the number of heads of the queries.
        groups: the number of heads of keys and values; divides `heads`.
        softcap: scores become `softcap * tanh(scores / softcap)`, before `bias` is added; 0 leaves them.
        window: maximum number of keys that a query sees, including its own as the last; 0 for no limit.
        interleaved: whether the rotated pairs are neighbours, see `rotary_embedding`.

    Returns: The result [batches, new, heads * size], and the keys and values to pass as the past next time: of the shape of
        `past_key` if there are `lengths` (unused positions have any contents), otherwise
        [batches, groups, past + new, size]. All have the data type of `query`. A query that sees no key gives zeros.
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
    if past_key is not None:
        past = past_key.shape[2]
        shape = [batches, groups, past, size]
        check_shape(shape, "[batches, groups, past, size of a head]", past_key=past_key, past_value=past_value)
        require(lengths is None or past >= new, f"past_key must have room for {new} new keys, got {past_key.desc}")
    keys = key_count(query, past_key, lengths)
    _check_rotation(cosines, sines, size, keys if lengths is None else new)
    scores = (batches, heads, new, keys)
    fits = bias is None or broadcasts_to(bias.shape, scores)
    require(fits, f"bias must broadcast to {list(scores)}, got {bias.desc if bias is not None else None}")
    check_shape([heads], "the number of heads", sinks=sinks)
    require(softcap >= 0, f"softcap must not be negative, got {softcap}")
    require(window >= 0, f"window must not be negative, got {window}")
    present = Desc(query.data_type, (batches, groups, keys, size))
    return query.desc, present, present


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
group_query_attention.in_place(output1="past_key", output2="past_value")


@group_query_attention.value_range("lengths")
def _(query: Operand, past_key: Operand, cosines: Operand | None) -> ValueRange:
    new, room = query.shape[1], past_key.shape[2]
    if cosines is not None and cosines.shape[0] < room:
        rows = cosines.shape[0]
        return ValueRange(0, rows - new, f"so that cosines, with {rows} rows, have one for each of {new} new keys")
    return ValueRange(0, room - new, f"so that {new} new keys fit a past of {room}")


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
    heads: int,
    groups: int,
    scale: float,
    softcap: float,
    window: int,
    interleaved: bool,
) -> tuple[Operand, Operand, Operand]:
    batches, new = query.shape[:2]
    total = key_count(query, past_key, lengths)
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
        options = {"heads": heads, "groups": groups, "scale": scale, "softcap": softcap, "window": window}
        y, k, v = group_query_attention(b, *operands, **options)
        return y, k, v
    q, k, v = split_heads(b, query, heads), split_heads(b, key, groups), split_heads(b, value, groups)
    mask = Mask()
    if bias is not None:
        mask.add(bias)
    if lengths is None:
        if past_key is not None and past_value is not None:
            k, v = b.concat([past_key, k], 2), b.concat([past_value, v], 2)
        mask.restrict(np.tri(new, total, total - new, dtype=bool))
        if window:
            mask.restrict(~np.tri(new, total, total - new - window, dtype=bool))
        y = attend(b, q, k, v, mask, scale=scale, softcap=softcap, sinks=sinks)
        return join_heads(b, y), k, v
    assert past_key is not None
    assert past_value is not None
    start = b.reshape(lengths, [batches, 1, 1, 1])
    positions = start + line(b, 0, new, "int32", [1, 1, new, 1])
    rows = b.expand(positions, k.shape)
    k, v = (b.scatter_elements(old, rows, x, axis=2) for old, x in ((past_key, k), (past_value, v)))
    # Unused positions of the cache may hold NaN, and 0 * NaN is NaN.
    filled = b.lesser(line(b, 0, total, "int32", [1, 1, total, 1]), start + new)
    nothing = constant(b, 0, query.data_type)
    columns = line(b, 0, total, "int32", [1, 1, 1, total])
    mask.restrict(b.lesser_or_equal(columns, positions), some=True)
    if window:
        mask.restrict(b.greater(columns, positions - window), some=True)
    known_k, known_v = (b.where(filled, x, nothing) for x in (k, v))
    y = attend(b, q, known_k, known_v, mask, scale=scale, softcap=softcap, sinks=sinks)
    return join_heads(b, y), k, v
