"""Parts of transformers and language models besides attention."""

from __future__ import annotations

import numpy as np

from ...builder import MLGraphBuilder
from ...graph import MLOperand
from ..registry import MICROSOFT, Tensor, Unsupported, converts, operand


@converts("EmbedLayerNormalization", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    ids: MLOperand,
    segment_ids: Tensor | None,
    word_embedding: MLOperand,
    table: MLOperand,
    segment_embedding: Tensor | None,
    gamma: MLOperand,
    beta: MLOperand,
    mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int = 1,
) -> tuple[Tensor, ...]:
    if mask is not None and mask_index_type:
        raise Unsupported("the number of words that a mask leaves")
    total = b.gather(word_embedding, ids, axis=0)
    if position_ids is None:
        positions = b.slice(table, [0, 0], [ids.shape[1], table.shape[1]])
    else:
        positions = b.gather(table, operand(b, position_ids), axis=0)
    total = b.add(total, positions)
    if segment_ids is not None and segment_embedding is not None:
        total = b.add(total, b.gather(operand(b, segment_embedding), operand(b, segment_ids), axis=0))
    y = b.layer_normalization(total, scale=gamma, bias=beta, axes=[2], epsilon=epsilon)
    # Without a mask the engine's second output is zeros: no word ends early.
    return y, np.zeros(ids.shape[0], np.int32), total
