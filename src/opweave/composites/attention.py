"""Scaled dot product attention, multi-head attention, and attention with a cache of keys and values."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from math import copysign, inf, sqrt
from typing import TYPE_CHECKING

import numpy as np

from ..dtypes import FLOATS, DataType
from ..errors import require
from ..graph import Builder, Desc, Operand
from ..operation import Limits
from ..shapes import broadcasts_to
from .declare import check_divides, check_shape, declare

if TYPE_CHECKING:
    from ..ops import Operations

MASKS = (*FLOATS, "uint8")
_HEADS = Limits("query", ranks=(4, 4))
_JOINED = Limits("query", ranks=(3, 3))


def _check_heads(query: Operand, key: Operand, value: Operand) -> None:
    """Require that keys and values, all of rank 4, belong to each other and to the queries."""
    batches, heads, _, size = query.shape
    _, groups, keys, _ = key.shape
    check_shape("key", key, [batches, groups, keys, size], "of the batches and head size of query")
    check_shape("value", value, [batches, groups, keys, value.shape[3]], "of the batches, heads and length of key")
    require(heads % groups == 0, f"the heads of query must be a multiple of those of key, got {heads} and {groups}")


def _check_mask(mask: Operand | None, query: Operand, shape: tuple[int, ...]) -> None:
    if mask is None:
        return
    wanted = f"mask must be uint8 or {query.data_type}, the data type of query, got {mask.desc}"
    require(mask.data_type in ("uint8", query.data_type), wanted)
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
    """Average values, weighted by how well their keys fit each query.

    Args:
        query: float32 or float16 [batches, heads, queries, size].
        key: [batches, groups, keys, size]; the groups divide the heads, and neighbouring heads share the keys of a group.
        value: [batches, groups, keys, size of values].
        mask: an operand that broadcasts to [batches, heads, queries, keys]: uint8, where 0 hides a key from a query; or of the
            data type of `query`, added to the scores, where -inf hides a key.
        causal: whether query i sees only the keys up to i.
        scale: of the scores. Default: 1 / sqrt(size).
        label: a name for messages and tables.

    Returns:
        `softmax(query @ key.T * scale + mask) @ value`, in the data type of `query`
        [batches, heads, queries, size of values]. A query that sees no key gives zeros.

    Raises:
        ValidationError: shapes that do not fit.

    Vaswani et al., Attention Is All You Need (2017), arXiv:1706.03762; ONNX's Attention.

    >>> one = np.ones((1, 1, 2, 4), "float32")
    >>> value = np.float32([1, 3]).reshape(1, 1, 2, 1)
    >>> scaled_dot_product_attention(one, one, value, causal=True).ravel().tolist()
    [1.0, 2.0]
    """
    _check_heads(query, key, value)
    batches, heads, queries, _ = query.shape
    _check_mask(mask, query, (batches, heads, queries, key.shape[2]))
    return Desc(query.data_type, (batches, heads, queries, value.shape[3]))


@scaled_dot_product_attention.default("scale")
def _(query: Operand) -> float:
    return 1 / sqrt(query.shape[3])


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


@dataclass
class Mask:
    """The keys that each query sees, and the bias of its scores; all parts broadcast to [batches, heads, queries, keys].

    Attributes:
        constant: the sum of the known terms: 0, or -inf for a hidden key.
        allowed: uint8 operands, 1 for a visible key; a key is visible where all of them are 1.
        added: operands that are added to the scores.
        may_hide_all: whether the operands may hide all keys from a query.
    """

    constant: np.ndarray | None = None
    allowed: list[Operand] = field(default_factory=list)
    added: list[Operand] = field(default_factory=list)
    may_hide_all: bool = False

    def restrict(self, visible: Operand | np.ndarray) -> None:
        """Hide the keys for which `visible` is 0 or false."""
        if isinstance(visible, Operand) and not visible.is_constant:
            self.allowed.append(visible)
            self.may_hide_all = True
            return
        array = visible.value if isinstance(visible, Operand) else visible
        if not array.all():
            self.add(hidden(array))

    def add(self, bias: Operand | np.ndarray, *, finite: bool = False) -> None:
        """Add `bias` to the scores; with `finite`, it is known to hide no key."""
        if isinstance(bias, Operand) and not bias.is_constant:
            self.added.append(bias)
            self.may_hide_all = self.may_hide_all or not finite
            return
        array = bias.value if isinstance(bias, Operand) else bias
        self.constant = array if self.constant is None else self.constant + array

    def build(self, b: Operations, data_type: DataType) -> tuple[Operand | None, Operand | None]:
        """Return what to add to the scores, and whether each query sees a key; None for nothing, and for all queries."""
        terms = list(self.added)
        if self.allowed:
            visible = reduce(b.logical_and, self.allowed)
            terms.append(b.where(visible, b.as_operand(0, data_type), b.as_operand(-inf, data_type)))
        seen = None
        if self.constant is not None:
            known = np.atleast_1d(self.constant).astype(data_type)
            terms.append(b.as_operand(known, data_type))
            some = known.max(axis=-1, keepdims=True) > -inf
            seen = None if some.all() else b.as_operand(some.astype(np.uint8), "uint8")
        if not terms:
            return None, None
        total = reduce(b.add, terms)
        if not self.may_hide_all:
            return total, seen
        if not total.rank:
            total = b.reshape(total, [1])
        largest = b.reduce_max(total, axes=[total.rank - 1], keep_dimensions=True)
        return total, b.greater(largest, b.as_operand(-inf, data_type))


def hidden(visible: np.ndarray) -> np.ndarray:
    """The scores' term for a mask: 0 where `visible` is not 0, -inf elsewhere; float32."""
    return np.where(visible, np.float32(0), np.float32(-inf))


def attend(
    b: Operations,
    query: Operand,
    key: Operand,
    value: Operand,
    mask: Mask,
    *,
    scale: float | None = None,
    softcap: float = 0.0,
) -> Operand:
    """Build scaled dot product attention of built-in operations.

    Args:
        b: the builder.
        query: [batches, heads, queries, size].
        key: [batches, groups, keys, size].
        value: [batches, groups, keys, size of values].
        mask: hides keys from queries, and adds to scores.
        scale: of the scores. Default: 1 / sqrt(size).
        softcap: scores are replaced by `softcap * tanh(scores / softcap)`; 0 leaves them.

    Returns:
        [batches, heads, queries, size of values]; zeros for a query that sees no key.

    Raises:
        ValidationError: shapes that do not fit.
    """
    _check_heads(query, key, value)
    batches, heads, queries, size = query.shape
    groups, keys = key.shape[1:3]
    own = query.data_type
    scale = 1 / sqrt(size) if scale is None else scale
    columns = b.transpose(key, permutation=[0, 1, 3, 2])
    if own == "float16":  # half of the scale for each, so that the product does not overflow
        root = sqrt(abs(scale))
        query, columns = query * copysign(root, scale), columns * root
    else:
        query = query * scale
    # Heads that share keys are taken together as more queries, so that no key is repeated.
    shared = [batches, groups, heads // groups * queries]
    scores = b.matmul(query if heads == groups else b.reshape(query, [*shared, size]), columns)
    if heads != groups:
        scores = b.reshape(scores, [batches, heads, queries, keys])
    if softcap:
        scores = b.tanh(scores * (1 / softcap)) * softcap
    bias, seen = mask.build(b, own)
    weights = b.softmax(scores if bias is None else scores + bias, axis=3)
    y = b.matmul(weights if heads == groups else b.reshape(weights, [*shared, keys]), value)
    if heads != groups:
        y = b.reshape(y, [batches, heads, queries, value.shape[3]])
    return y if seen is None else b.where(seen, y, b.as_operand(0, own))


# ---------------------------------------------------------------------------------------------------------------------
# Heads joined in the last axis


def heads_first(b: Operations, x: Operand, heads: int) -> Operand:
    """[batches, length, heads * size] -> [batches, heads, length, size]."""
    size = check_divides("input", x, heads)
    return b.transpose(b.reshape(x, [*x.shape[:2], heads, size]), permutation=[0, 2, 1, 3])


def heads_joined(b: Operations, x: Operand) -> Operand:
    """[batches, heads, length, size] -> [batches, length, heads * size]."""
    batches, heads, length, size = x.shape
    return b.reshape(b.transpose(x, permutation=[0, 2, 1, 3]), [batches, length, heads * size])


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
    """Attention of several heads, which are joined in the last axis.

    Args:
        query: float32 or float16 [batches, queries, heads * size].
        key: [batches, keys, heads * size].
        value: [batches, keys, heads * size of values].
        mask: broadcasts to [batches, heads, queries, keys]; see `scaled_dot_product_attention`.
        heads: the number of heads.
        causal: whether query i sees only the keys up to i.
        scale: of the scores. Default: 1 / sqrt(size).
        label: a name for messages and tables.

    Returns:
        An operand of the data type of `query` [batches, queries, heads * size of values]. Queries that see no key give zeros.

    Raises:
        ValidationError: shapes that do not fit, or do not divide into heads.

    Vaswani et al., Attention Is All You Need (2017), arXiv:1706.03762; ONNX Runtime's MultiHeadAttention.

    >>> one, value = np.ones((1, 2, 8), "float32"), np.float32([[[1, 5], [3, 6]]])
    >>> multi_head_attention(one, one, value, heads=2, causal=True).tolist()
    [[[1.0, 5.0], [2.0, 5.5]]]
    """
    batches, queries, hidden = query.shape
    for name, operand in {"query": query, "key": key, "value": value}.items():
        check_divides(name, operand, heads)
    keys = key.shape[1]
    check_shape("key", key, [batches, keys, hidden], "of the batches and heads of query")
    check_shape("value", value, [batches, keys, value.shape[2]], "of the batches and length of key")
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
    q, k, v = (heads_first(b, x, heads) for x in (query, key, value))
    return heads_joined(b, scaled_dot_product_attention(b, q, k, v, mask, causal=causal, scale=scale))


# ---------------------------------------------------------------------------------------------------------------------
# Attention with a cache of keys and values


@declare(
    query=Limits(FLOATS, ranks=(3, 3)),
    key=_JOINED,
    value=_JOINED,
    past_key=_HEADS,
    past_value=_HEADS,
    lengths=Limits(("int32",), ranks=(1, 1)),
)
def group_query_attention(
    self: Builder,
    query: Operand,
    key: Operand,
    value: Operand,
    past_key: Operand | None = None,
    past_value: Operand | None = None,
    lengths: Operand | None = None,
    *,
    heads: int,
    groups: int,
    scale: float | None = None,
    label: str = "",
) -> tuple[Desc, Desc, Desc]:
    """Causal attention of heads that share keys and values in groups, with a cache of earlier keys and values.

    Args:
        query: float32 or float16 [batches, new, heads * size].
        key: [batches, new, groups * size].
        value: [batches, new, groups * size].
        past_key: the keys so far [batches, groups, past, size].
        past_value: the values so far [batches, groups, past, size].
        lengths: int32 [batches]: how many keys of the past are valid. The rest is room for the new keys, which must fit.
            Default: all are valid, and the cache grows.
        heads: the number of heads of the queries.
        groups: the number of heads of keys and values; divides `heads`.
        scale: of the scores. Default: 1 / sqrt(size).
        label: a name for messages and tables.

    Returns:
        The result [batches, new, heads * size], and the keys and values to pass as the past next time: of the shape of
        `past_key` if there are `lengths` (the contents of the room that is left are not specified), otherwise
        [batches, groups, past + new, size]. All have the data type of `query`.

    Raises:
        ValidationError: shapes that do not fit.

    ONNX Runtime's GroupQueryAttention; Ainslie et al., GQA (2023), arXiv:2305.13245.

    >>> one, value = np.ones((1, 1, 2), "float32"), np.float32([[[4, 8]]])
    >>> past = np.zeros((1, 1, 1, 2), "float32")
    >>> y, keys, values = group_query_attention(one, one, value, past + 1, past, heads=1, groups=1)
    >>> y.tolist(), values.tolist()
    ([[[2.0, 4.0]]], [[[[0.0, 0.0], [4.0, 8.0]]]])
    """
    size = check_divides("query", query, heads)
    require(groups > 0 and heads % groups == 0, f"groups must divide the {heads} heads, got {groups}")
    batches, new, _ = query.shape
    for name, operand in {"key": key, "value": value}.items():
        check_shape(
            name, operand, [batches, new, groups * size], "the batches and length of query with heads of groups"
        )
    require((past_key is None) == (past_value is None), "past_key and past_value must be given together")
    require(lengths is None or past_key is not None, "lengths must come with past_key and past_value")
    check_shape("lengths", lengths, [batches], "the number of batches")
    total = new
    if past_key is not None:
        past = past_key.shape[2]
        for name, memory in {"past_key": past_key, "past_value": past_value}.items():
            check_shape(name, memory, [batches, groups, past, size], "[batches, groups, past, size of a head]")
        require(lengths is None or past >= new, f"past_key must have room for {new} new keys, got {past_key.desc}")
        total = past if lengths is not None else past + new
    present = Desc(query.data_type, (batches, groups, total, size))
    return query.desc, present, present


group_query_attention.default("scale")(_scale)


@group_query_attention.decompose
def _(
    b: Operations,
    query: Operand,
    key: Operand,
    value: Operand,
    past_key: Operand | None,
    past_value: Operand | None,
    lengths: Operand | None,
    heads: int,
    groups: int,
    scale: float,
) -> tuple[Operand, Operand, Operand]:
    q, k, v = heads_first(b, query, heads), heads_first(b, key, groups), heads_first(b, value, groups)
    batches, new = query.shape[:2]
    mask = Mask()
    if lengths is None:
        if past_key is not None and past_value is not None:
            k, v = b.concat([past_key, k], 2), b.concat([past_value, v], 2)
        total = k.shape[2]
        mask.restrict(np.tri(new, total, total - new, dtype=bool))
        return heads_joined(b, attend(b, q, k, v, mask, scale=scale)), k, v
    assert past_key is not None
    assert past_value is not None
    start = b.reshape(lengths, [batches, 1, 1, 1])
    steps, places = (b.as_operand(range(count), "int32") for count in (new, past_key.shape[2]))
    positions = start + b.reshape(steps, [1, 1, new, 1])
    rows = b.expand(positions, k.shape)
    k, v = (b.scatter_elements(old, rows, x, axis=2) for old, x in ((past_key, k), (past_value, v)))
    # The unused room may hold anything, NaN included, and 0 * NaN is NaN.
    filled = b.lesser(b.reshape(places, [1, 1, past_key.shape[2], 1]), start + new)
    nothing = b.as_operand(0, query.data_type)
    mask.restrict(b.lesser_or_equal(b.reshape(places, [1, 1, 1, past_key.shape[2]]), positions))
    y = attend(b, q, b.where(filled, k, nothing), b.where(filled, v, nothing), mask, scale=scale)
    return heads_joined(b, y), k, v
