"""Parts of transformers and language models besides attention."""

from __future__ import annotations

import numpy as np

from ...builder import MLGraphBuilder
from ...graph import MLOperand
from ..registry import MICROSOFT, Tensor, Unsupported, converts, operand


@converts("SwiGLU")
def _(b: MLGraphBuilder, gate: MLOperand, B: Tensor, *, alpha: float = 1.0) -> MLOperand:
    inner = gate if alpha == 1 else b.mul(gate, alpha)
    return b.mul(b.mul(gate, b.sigmoid(inner)), B)


@converts("CausalConvWithState")
def _(
    b: MLGraphBuilder,
    x: MLOperand,
    weight: Tensor,
    bias: MLOperand | None = None,
    past_state: Tensor | None = None,
    *,
    activation: str = "none",
) -> tuple[MLOperand, Tensor]:
    batch, channels, length = x.shape
    reach = weight.shape[2] - 1
    if not reach:
        whole = x
    elif past_state is None:
        whole = b.pad(x, [0, 0, reach], [0, 0, 0])
    else:
        whole = b.concat([operand(b, past_state), x], axis=2)
    y = b.conv2d(
        b.reshape(whole, [batch, channels, 1, length + reach]),
        b.reshape(operand(b, weight), [channels, 1, 1, reach + 1]),
        bias=bias,
        groups=channels,
    )
    y = b.reshape(y, x.shape)
    if activation in ("silu", "swish"):
        y = b.mul(y, b.sigmoid(y))
    elif activation != "none":
        raise Unsupported(f"the activation {activation!r}")
    if not reach:
        return y, np.empty((batch, channels, 0), x.data_type)
    return y, b.slice(whole, [0, 0, length], [batch, channels, reach])


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
