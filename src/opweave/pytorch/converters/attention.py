"""Attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import composites
from ...context.builder import MLGraphBuilder
from ...core.graph import MLOperand
from ...core.sizes import Size
from ..registry import AtenCall, converts, refuse_if


@converts("aten.scaled_dot_product_attention.default")
def _(
    b: MLGraphBuilder,
    query: MLOperand,
    key: MLOperand,
    value: MLOperand,
    attn_mask: MLOperand | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    call: AtenCall,
) -> MLOperand:
    refuse_if(dropout_p > 0, "it drops elements at random; export the module after module.eval()")
    lead = list(query.shape[:-2])
    q, k, v = (_with_rank_4(b, x) for x in (query, key, value))
    mask = attn_mask
    if mask is not None and mask.rank > 4:
        mask = b.reshape(mask, [-1, *mask.shape[-3:]]) if not isinstance(mask.shape[0], Size) else None
        refuse_if(mask is None, "its mask has more than 4 dimensions")
    if is_causal:
        refuse_if(mask is not None, "it has a mask, and is causal")
        rows, columns = q.shape[2], k.shape[2]
        mask = causal_mask(b, rows, columns)
    y = composites.scaled_dot_product_attention(b, q, k, v, mask=mask, scale=scale)
    return y if y.rank == query.rank else b.reshape(y, [*lead, *y.shape[-2:]])


def causal_mask(b: MLGraphBuilder, rows: Any, columns: Any) -> MLOperand:
    """The keys that each query sees, as uint8: those up to its own position, counted from the first one."""
    if isinstance(rows, Size) or isinstance(columns, Size):
        from ...ops.constants import line

        return b.lesser_or_equal(line(b, 0, columns, "int32", [1, columns]), line(b, 0, rows, "int32", [rows, 1]))
    return b.constant(np.tri(rows, columns, dtype=np.uint8))


def _with_rank_4(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    if x.rank == 4:
        return x
    if x.rank < 4:
        return b.reshape(x, [*[1] * (4 - x.rank), *x.shape])
    batches: Any = 1
    for size in x.shape[:-3]:
        batches = batches * size
    return b.reshape(x, [batches, *x.shape[-3:]])
