"""OpenVINO rules: attention.

RMS normalisation and rotary embeddings have none: the engine has no operators for them, and finds them in their parts.
"""

from __future__ import annotations

import numpy as np

from ....composites import attention as composites
from ....composites.attend import hidden
from ....graph import Operand
from ..backend import openvino
from ..emit import Emitter, Value


def _sees_always(query: Operand, key: Operand, mask: Operand | None, causal: bool) -> bool:
    """Whether each query is known to see a key, without which the engine returns NaN; and no keys are shared by heads."""
    if query.shape[1] != key.shape[1] or (mask is not None and not mask.is_constant):
        return False
    return mask is None or bool((_bias(mask.value, query, key, causal).max(axis=-1) > -np.inf).all())


def _bias(mask: np.ndarray, query: Operand, key: Operand, causal: bool) -> np.ndarray:
    """The bias of the scores for a mask, and for order."""
    bias = hidden(mask) if mask.dtype == np.uint8 else mask.astype(np.float32)
    sees = np.tri(query.shape[2], key.shape[2], dtype=bool) if causal else np.ones((1, 1), bool)
    total: np.ndarray = bias + hidden(sees)
    return total


@openvino.lower(composites.scaled_dot_product_attention, when=_sees_always)
def _(ctx: Emitter, query: Value, key: Value, value: Value, mask: Value | None, causal: bool, scale: float) -> Value:
    name, factor = "scaled_dot_product_attention", ctx.scalar(scale, query)
    if mask is None:
        return ctx.emit(name, query, key, value, scale=factor, causal=causal)
    assert mask.array is not None
    operands = ctx.node.inputs
    bias = _bias(mask.array, operands["query"], operands["key"], causal)  # type: ignore[arg-type]
    return ctx.emit(name, query, key, value, ctx.constant(bias, query.data_type), factor)
