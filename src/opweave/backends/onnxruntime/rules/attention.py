"""ONNX Runtime rules: attention and rotary embeddings."""

from __future__ import annotations

import platform
from math import inf
from typing import Any

import numpy as np

from .... import composites
from ....composites.attend import mask_bias
from ....composites.attention import key_count
from ....core.graph import Operand
from ....core.sizes import is_same_shape, is_static
from ....support.processors import processors
from ..backend import ort
from ..emit import MICROSOFT, Emitter, Value


def _has_plain_kernel(query: Operand, key: Operand, mask: Operand | None, causal: bool, scale: float) -> bool:
    """Whether the kernel computes the same: it gives NaN to a query that sees no key, and a scale of 0 is its default."""
    if not scale or query.data_type != "float32" or (mask is not None and not mask.is_constant):
        return False
    if mask is None:
        return True
    bias = _bias(mask.value, causal, query.shape[1], key.shape[1])
    return bool((bias.max(axis=-1) > -inf).all())


def _bias(mask: np.ndarray | None, causal: bool, queries: int, keys: int) -> np.ndarray:
    """Return the bias of the scores as float32, broadcastable to [batches, heads, queries, keys]."""
    bias = np.zeros((1, 1, queries, keys), np.float32)
    if mask is not None:
        bias = bias + (mask_bias(mask) if mask.dtype == np.uint8 else mask)
    return bias + mask_bias(np.tri(queries, keys, dtype=bool)) if causal else bias


@ort.lower_contrib(composites.multi_head_attention, when=_has_plain_kernel)
def _(
    ctx: Emitter, query: Value, key: Value, value: Value, mask: Value | None, heads: int, causal: bool, scale: float
) -> Value:
    queries, keys = query.dims[1], key.dims[1]
    bias = None
    unidirectional = causal and mask is None and queries == keys
    if mask is not None or (causal and not unidirectional):
        array = None if mask is None else ctx.array_of(mask)
        bias = ctx.constant(_bias(array, causal, queries, keys), "float32")
    operands = (query, key, value, None, None, bias)
    flags: dict[str, Any] = {"num_heads": heads, "unidirectional": int(unidirectional), "scale": scale}
    return ctx.emit("MultiHeadAttention", *operands, domain=MICROSOFT, **flags)


MIN_FUSED_SCORES = 2**20
"""Scores per head from which MultiHeadAttention is faster in spite of transpositions, since it never stores all scores."""


def _is_long(query: Operand, key: Operand, mask: Operand | None, causal: bool, scale: float) -> bool:
    (_, heads, queries, _), (_, groups, keys, _) = query.shape, key.shape
    plain = scale != 0 and heads == groups and mask is None and not causal and query.data_type == "float32"
    return plain and queries * keys >= MIN_FUSED_SCORES


@ort.lower_contrib(composites.scaled_dot_product_attention, when=_is_long)
def _(ctx: Emitter, query: Value, key: Value, value: Value, scale: float) -> Value:
    batches, heads, queries, _ = query.dims
    joined = [
        ctx.reshape(ctx.transpose(x, [0, 2, 1, 3]), [batches, x.dims[2], heads * x.dims[3]])
        for x in (query, key, value)
    ]
    y = ctx.emit("MultiHeadAttention", *joined, domain=MICROSOFT, num_heads=heads, scale=scale)
    return ctx.transpose(ctx.reshape(y, [batches, queries, heads, value.dims[3]]), [0, 2, 1, 3])


def _has_kernel(
    query: Operand,
    past_key: Operand | None,
    lengths: Operand | None,
    cosines: Operand | None,
    bias: Operand | None,
    past_key_scale: Operand | None,
    heads: int,
    scale: float,
) -> bool:
    """Whether the kernel supports the head size and the rotation; after a past, several new keys only for a single batch.

    The kernel reads keys of int8 with scales that are the same at all positions.
    """
    batches, new, hidden = query.shape
    size = hidden // heads
    if past_key_scale is not None or not scale:  # a scale of 0 is the default
        return False
    if cosines is not None:
        rows, pairs = cosines.shape
        if size % 16 or pairs % 8 or rows < key_count(query, past_key, lengths):
            return False
    return size % 8 == 0 and (past_key is None or batches == 1 or new == 1 or _has_no_past(lengths, bias))


def _has_no_past(lengths: Operand | None, bias: Operand | None) -> bool:
    """Whether the past has no valid key, and the kernel can ignore it; a bias would have to end with the new keys."""
    return bias is None and lengths is not None and lengths.is_constant and not lengths.value.any()


IS_X86 = platform.machine().lower() in ("x86_64", "amd64")

MAX_SCORES_OF_PRODUCTS = 2**24
"""Largest number of scores that GroupQueryAttention computes with the engine's matrix products: 64 MB of memory. The other
kernel stores few scores, and skips hidden keys, but uses instructions for four floats only
(https://github.com/microsoft/onnxruntime/pull/29216)."""


def _gains_from_products(
    ctx: Emitter, query: Value, past_key: Value | None, bias: Value | None, heads: int, window: int
) -> bool:
    """Whether GroupQueryAttention is faster with matrix products, which use one thread per head and ignore windows.

    If the bias hides all keys of a query, products return NaN.
    """
    batches, new = query.dims[:2]
    if bias is not None and ((array := ctx.array_of(bias)) is None or np.isneginf(array).any()):
        return False
    if not IS_X86 or ctx.portable or query.data_type != "float32" or past_key is None or window:
        return False
    scores = batches * heads * new * ctx.node.outputs[1].shape[2]
    return scores <= MAX_SCORES_OF_PRODUCTS and batches * heads >= processors()


@ort.lower_contrib(composites.group_query_attention, when=_has_kernel)
def _(
    ctx: Emitter,
    query: Value,
    key: Value,
    value: Value,
    past_key: Value | None,
    past_value: Value | None,
    lengths: Value | None,
    cosines: Value | None,
    sines: Value | None,
    bias: Value | None,
    sinks: Value | None,
    heads: int,
    groups: int,
    scale: float,
    softcap: float,
    window: int,
    interleaved: bool,
) -> list[Value]:
    batches, new = query.dims[:2]
    total = ctx.node.outputs[1].shape[2]
    arguments = ctx.node.arguments
    if lengths is None:
        last = ctx.constant([total - 1] * batches, "int32")
    else:
        is_single = not ctx.any_size and is_static((new,)) and new == 1
        last = lengths if is_single else ctx.emit("Add", lengths, ctx.parameter([new - 1], "int32"))
    # If `all_keys` is the number of new keys, the kernel ignores the past. Otherwise it reads the lengths from `last`, and the
    # capacity of the returned KV cache from `all_keys`.
    all_keys = new if _has_no_past(arguments["lengths"], arguments["bias"]) else total
    gains = _gains_from_products(ctx, query, past_key, bias, heads, window)
    if bias is not None:
        shape = [*[1] * (4 - bias.rank), *bias.dims]
        bias, whole = ctx.reshape(bias, shape), [*shape[:2], new, total]
        if not is_same_shape(shape, whole):
            bias = ctx.emit("Expand", bias, ctx.constant(whole))
    if gains:
        # With a scale other than 1, the product of a single query would copy all keys first.
        query, scale = ctx.emit("Mul", query, ctx.scalar(scale, query)), 1.0
        if sinks is None:  # sinks of -inf have no weight, and select the kernel with products
            sinks = ctx.constant([-inf] * heads, query.data_type)
    operands = (query, key, value, past_key, past_value, last, ctx.constant(all_keys, "int32"), cosines, sines)
    flags: dict[str, Any] = {
        "num_heads": heads,
        "kv_num_heads": groups,
        "scale": scale,
        "softcap": softcap,
        "local_window_size": window or -1,
        "do_rotary": int(cosines is not None),
        "rotary_interleaved": int(interleaved),
    }
    return ctx.emit("GroupQueryAttention", *operands, None, bias, sinks, outputs=3, domain=MICROSOFT, **flags)


def _has_rows(input: Operand, cosines: Operand) -> bool:
    """The kernel refuses longer sequences than tables, whatever the positions are."""
    return bool(input.shape[2 if input.rank == 4 else 1] <= cosines.shape[0])


@ort.lower_contrib(composites.rotary_embedding, when=_has_rows)
def _(
    ctx: Emitter, input: Value, cosines: Value, sines: Value, positions: Value | None, heads: int, interleaved: bool
) -> Value:
    heads, size = (input.dims[1], input.dims[3]) if input.rank == 4 else (heads, input.dims[2] // heads)
    turned = 2 * cosines.dims[1]
    # A constant single position is the start of all sequences.
    operands = (input, ctx.constant([0]) if positions is None else positions, cosines, sines)
    flags: dict[str, Any] = {
        "interleaved": int(interleaved),
        "num_heads": heads,
        "rotary_embedding_dim": turned if turned < size else 0,
    }
    return ctx.emit("RotaryEmbedding", *operands, domain=MICROSOFT, **flags)


def _is_float32(query: Operand, key: Operand, value: Operand, past_state: Operand | None, scale: float | None) -> bool:
    """Whether the engine's kernel computes the same: it takes float32 alone, and replaces a scale of 0 by the default."""
    return query.data_type == "float32" and (past_state is None or past_state.data_type == "float32") and scale != 0


@ort.lower_contrib(composites.linear_attention, when=_is_float32)
def _(
    ctx: Emitter,
    query: Value,
    key: Value,
    value: Value,
    past_state: Value | None,
    decay: Value | None,
    beta: Value | None,
    heads: int,
    groups: int,
    update_rule: str,
    scale: float,
) -> Any:
    operands = (query, key, value, past_state, decay, beta)
    flags: dict[str, Any] = {"q_num_heads": heads, "kv_num_heads": groups, "update_rule": update_rule, "scale": scale}
    return ctx.emit("LinearAttention", *operands, outputs=2, domain=MICROSOFT, **flags)
