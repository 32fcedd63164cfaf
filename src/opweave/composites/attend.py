"""Parts of the composites of attention: masks, scaled dot product attention of built-in operations, heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from math import copysign, inf, sqrt
from typing import TYPE_CHECKING

import numpy as np

from ..core.dtypes import DataType
from ..core.graph import Operand, check_shape
from ..ops.constants import constant
from ..support.errors import require
from .declare import check_divides

if TYPE_CHECKING:
    from ..ops import Operations


def check_heads(query: Operand, key: Operand, value: Operand) -> None:
    """Require that queries, keys and values, all of rank 4, fit each other."""
    batches, heads, _, size = query.shape
    _, groups, keys, _ = key.shape
    check_shape([batches, groups, keys, size], "of the batches and head size of query", key=key)
    check_shape([batches, groups, keys, value.shape[3]], "of the batches, heads and length of key", value=value)
    fits = heads == 0 if groups == 0 else heads % groups == 0
    require(fits, f"the heads of query must be a multiple of those of key, got {heads} and {groups}")


@dataclass
class Mask:
    """The keys that each query sees, and the bias of its scores; all parts broadcast to [batches, heads, queries, keys].

    Attributes:
        constant: the sum of the constant terms: 0, or -inf for a hidden key.
        allowed: uint8 operands; a key is visible if all are 1.
        added: operands that are added to the scores.
        may_hide_all: whether the operands may hide all keys from a query.
    """

    constant: np.ndarray | None = None
    allowed: list[Operand] = field(default_factory=list)
    added: list[Operand] = field(default_factory=list)
    may_hide_all: bool = False

    def restrict(self, visible: Operand | np.ndarray, *, some: bool = False) -> None:
        """Hide the keys for which `visible` is 0 or false; `some` promises that each query sees a key."""
        if isinstance(visible, Operand) and not visible.is_constant:
            self.allowed.append(visible)
            self.may_hide_all = self.may_hide_all or not some
            return
        array = visible.value if isinstance(visible, Operand) else visible
        if not array.all():
            self.add(mask_bias(array))

    def add(self, bias: Operand | np.ndarray, *, finite: bool = False) -> None:
        """Add `bias` to the scores; `finite` promises that it hides no key."""
        if isinstance(bias, Operand) and not bias.is_constant:
            self.added.append(bias)
            self.may_hide_all = self.may_hide_all or not finite
            return
        array = bias.value if isinstance(bias, Operand) else bias
        self.constant = array if self.constant is None else self.constant + array

    def build(self, b: Operations, data_type: DataType) -> tuple[Operand | None, Operand | None]:
        """Return the bias to add to the scores (or None), and whether each query sees a key (None if all do)."""
        terms = list(self.added)
        if self.allowed:
            visible = reduce(b.logical_and, self.allowed)
            terms.append(b.where(visible, constant(b, 0, data_type), constant(b, -inf, data_type)))
        seen = None
        if self.constant is not None:
            array = np.atleast_1d(self.constant).astype(data_type)
            terms.append(constant(b, array, data_type))
            some = array.max(axis=-1, keepdims=True) > -inf
            seen = None if some.all() else constant(b, some.astype(np.uint8), "uint8")
        if not terms:
            return None, None
        total = reduce(b.add, terms)
        # Masks that each leave a key may hide all keys together.
        is_certain = not self.allowed or self.constant is None or not np.isneginf(self.constant).any()
        if not self.may_hide_all and is_certain:
            return total, seen
        if not total.rank:
            total = b.reshape(total, [1])
        largest = b.reduce_max(total, axes=[total.rank - 1], keep_dimensions=True)
        return total, b.greater(largest, constant(b, -inf, data_type))


def mask_bias(visible: np.ndarray) -> np.ndarray:
    """Convert a mask to a bias of scores: 0 where `visible` is not 0, -inf elsewhere; float32."""
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
    sinks: Operand | None = None,
    factors: Sequence[Operand] = (),
) -> Operand:
    """Build scaled dot product attention from built-in operations: [batches, heads, queries, size of values].

    Queries are [batches, heads, queries, size], keys and values [batches, groups, keys, size]. A query that sees no key gives
    zeros. `sinks` are [heads]: the score of an additional key with value zero, which all queries of a head see. `factors` are
    those of keys and those of values, both [batches, groups, 1, keys].
    """
    check_heads(query, key, value)
    batches, heads, queries, size = query.shape
    groups, keys = key.shape[1:3]
    own = query.data_type
    scale = 1 / sqrt(size) if scale is None else scale
    columns = b.transpose(key, permutation=[0, 1, 3, 2])
    # In float16, scale both operands by sqrt(scale), so that the product does not overflow.
    if own == "float16":
        root = sqrt(abs(scale))
        query, columns = query * copysign(root, scale), columns * root
    else:
        query = query * scale
    # Stack heads that share keys as more queries, so that no key is repeated.
    shared = [batches, groups, heads // groups * queries]
    scores = b.matmul(query if heads == groups else b.reshape(query, [*shared, size]), columns)
    if factors:
        scores = scores * factors[0]
    if heads != groups:
        scores = b.reshape(scores, [batches, heads, queries, keys])
    if softcap:
        scores = b.tanh(scores * (1 / softcap)) * softcap
    bias, seen = mask.build(b, own)
    if bias is not None:
        scores = scores + bias
    if sinks is None:
        weights = b.softmax(scores, axis=3)
    else:
        column = b.expand(b.reshape(sinks, [1, heads, 1, 1]), [batches, heads, queries, 1])
        weights = b.slice(b.softmax(b.concat([scores, column], 3), axis=3), [0] * 4, scores.shape)
    if heads != groups:
        weights = b.reshape(weights, [*shared, keys])
    y = b.matmul(weights * factors[1] if factors else weights, value)
    if heads != groups:
        y = b.reshape(y, [batches, heads, queries, value.shape[3]])
    return y if seen is None else b.where(seen, y, constant(b, 0, own))


def split_heads(b: Operations, x: Operand, heads: int) -> Operand:
    """[batches, length, heads * size] -> [batches, heads, length, size]."""
    size = check_divides("input", x, heads)
    return b.transpose(b.reshape(x, [*x.shape[:2], heads, size]), permutation=[0, 2, 1, 3])


def join_heads(b: Operations, x: Operand) -> Operand:
    """[batches, heads, length, size] -> [batches, length, heads * size]."""
    batches, heads, length, size = x.shape
    return b.reshape(b.transpose(x, permutation=[0, 2, 1, 3]), [batches, length, heads * size])
