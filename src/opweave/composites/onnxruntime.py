"""ONNX Runtime's kernels for composites.

Where none is given here the engine has none (GroupNormalization), or one that is slower than the parts: OneHot takes 1.6
times as long as a comparison with a line of numbers, SkipLayerNormalization five times as long as Add and
LayerNormalization, and MatMulNBits of 8 bits, unless it may round its input, 40 times as long as a product of floats.
"""

from __future__ import annotations

from math import inf, prod
from typing import Any

import numpy as np

from ..backends.onnxruntime import kernels, ort
from ..backends.onnxruntime.emit import MICROSOFT, Emitter, Value
from ..backends.onnxruntime.lowerings.quantization import flip_sign
from ..dtypes import FLOATS
from ..graph import Operand
from . import activation, attention, movement, normalization, quantization, rotary, selection

ONLY_IN_ENGINE = frozenset(
    {
        activation.quick_gelu,
        activation.fast_gelu,
        attention.group_query_attention,
        attention.multi_head_attention,
        attention.scaled_dot_product_attention,
        rotary.rotary_embedding,
        normalization.rms_normalization,
        quantization.matmul_n_bits,
    }
)
"""Those whose kernels are of operators that ONNX itself does not have."""


def _is_single(input: Operand) -> bool:
    return input.data_type == "float32"


# ---------------------------------------------------------------------------------------------------------------------
# Activations and normalisations


@ort.lower(activation.quick_gelu, when=_is_single)
def _(ctx: Emitter, input: Value, alpha: float) -> Value:
    y: Value = ctx.emit("QuickGelu", input, alpha=alpha, domain=MICROSOFT)
    return y


@ort.lower(activation.fast_gelu, when=_is_single)
def _(ctx: Emitter, input: Value, bias: Value | None) -> Value:
    y: Value = ctx.emit("FastGelu", input, bias, domain=MICROSOFT)
    return y


@ort.lower(activation.thresholded_relu, when=_is_single)
def _(ctx: Emitter, input: Value, alpha: float) -> Value:
    y: Value = ctx.emit("ThresholdedRelu", input, alpha=alpha)
    return y


# The engine wants as many neighbours before as after the element.
@ort.lower(normalization.local_response_normalization, when=lambda input, size: _is_single(input) and size % 2 == 1)
def _(ctx: Emitter, input: Value, size: int, alpha: float, beta: float, bias: float) -> Value:
    y: Value = ctx.emit("LRN", input, size=size, alpha=alpha, beta=beta, bias=bias, shape=input.dims)
    return y


@ort.lower(normalization.rms_normalization)
def _(ctx: Emitter, input: Value, scale: Value, axis: int, epsilon: float) -> Value:
    # The engine's own operator of ONNX's domain, known to the engine's optimiser.
    y: Value = ctx.emit("SimplifiedLayerNormalization", input, scale, axis=axis, epsilon=epsilon, shape=input.dims)
    return y


# Along other axes the engine transposes before and after, which takes longer than the steps of the decomposition.
@ort.lower(normalization.log_softmax, when=lambda input, axis: _is_single(input) and axis == input.rank - 1)
def _(ctx: Emitter, input: Value, axis: int) -> Value:
    y: Value = ctx.emit("LogSoftmax", input, axis=axis)
    return y


# ---------------------------------------------------------------------------------------------------------------------
# Selection and movement


@ort.lower(selection.hard_max, when=_is_single)
def _(ctx: Emitter, input: Value, axis: int) -> Value:
    y: Value = ctx.emit("Hardmax", input, axis=axis)
    return y


SORTED = (*FLOATS, "int64", "int32", "int8", "uint8")
"""Data types of the kernel of TopK; float16 the engine widens itself."""


@ort.lower(selection.top_k, when=lambda input: input.data_type in SORTED)
def _(ctx: Emitter, input: Value, k: int, axis: int, largest: bool, index_type: str) -> tuple[Value, Value]:
    keys, shape = input, ctx.output.shape
    if input.data_type in FLOATS:  # the kernel finds any order of NaN and others right
        unordered = ctx.emit("IsNaN", input, data_type="bool")
        keys = ctx.emit("Where", unordered, ctx.scalar(inf, input), input, shape=input.dims)
    values, found = ctx.emit("TopK", keys, ctx.constant([k]), axis=axis, largest=int(largest), outputs=2, shape=shape)
    positions = Value(found.name, "int64", shape)
    if keys is not input:
        values = ctx.emit("GatherElements", input, positions, axis=axis, shape=shape)
    return values, ctx.cast(positions, index_type)


_BLOCKS = ("float32", "int8", "uint8")


@ort.lower(movement.depth_to_space, when=lambda input: input.data_type in _BLOCKS)
def _(ctx: Emitter, input: Value, block_size: int, mode: str) -> Value:
    y: Value = ctx.emit("DepthToSpace", input, blocksize=block_size, mode=mode.upper())
    return y


@ort.lower(movement.space_to_depth, when=lambda input: input.data_type in _BLOCKS)
def _(ctx: Emitter, input: Value, block_size: int) -> Value:
    y: Value = ctx.emit("SpaceToDepth", input, blocksize=block_size)
    return y


# ---------------------------------------------------------------------------------------------------------------------
# Small integers


def _per_column(a_zero_point: Operand, b_zero_point: Operand) -> bool:
    """Whether the zero points are such as the engine takes: one of `a`, and one of `b` or one for each of its columns."""
    one, columns = prod(a_zero_point.shape) == 1, prod(b_zero_point.shape)
    return one and (columns == 1 or (columns == b_zero_point.shape[-1]))


@ort.lower(quantization.integer_matmul, when=_per_column)
def _(ctx: Emitter, a: Value, b: Value, a_zero_point: Value, b_zero_point: Value) -> Value:
    columns = prod(b_zero_point.dims)
    can_saturate = a.data_type == "uint8" and b.data_type == "int8" and ctx.array_of(b) is None and not ctx.portable
    if can_saturate and kernels.saturates():
        a, a_zero_point = flip_sign(ctx, a), flip_sign(ctx, a_zero_point)
    zeros = ctx.reshape(a_zero_point, ()), ctx.reshape(b_zero_point, () if columns == 1 else (columns,))
    product: Value = ctx.emit("MatMulInteger", a, b, *zeros, data_type="int32", shape=ctx.output.shape)
    return product


ACCURACY_LEVELS = {"float32": 1, "int8": 4}


@ort.lower(quantization.matmul_n_bits, when=lambda bits, accuracy: bits == 4 or accuracy == "int8")
def _(
    ctx: Emitter,
    input: Value,
    weight: Value,
    scale: Value,
    zero_point: Value | None,
    bias: Value | None,
    bits: int,
    block_size: int,
    accuracy: str,
) -> Value:
    sizes: dict[str, Any] = {"K": input.dims[-1], "N": weight.dims[0], "bits": bits, "block_size": block_size}
    sizes["accuracy_level"] = ACCURACY_LEVELS[accuracy]
    operands = (input, weight, scale, zero_point, None, bias)
    y: Value = ctx.emit("MatMulNBits", *operands, domain=MICROSOFT, **sizes)
    return y


# ---------------------------------------------------------------------------------------------------------------------
# Attention


def _sees_always(query: Operand, mask: Operand | None, causal: bool) -> bool:
    """Whether it is known that each query sees a key; of others the engine makes NaN."""
    if query.data_type != "float32" or (mask is not None and not mask.is_constant):
        return False
    if mask is None:
        return True
    added = attention.added(mask.value, np.dtype("float32"))
    if causal:
        added = added + _causal(query.shape[1], added.shape[-1])
    return bool((added.max(axis=-1) > -inf).all())


def _causal(queries: int, keys: int) -> np.ndarray:
    return np.where(np.tri(queries, keys, dtype=bool), 0, -inf).astype(np.float32)


@ort.lower(attention.multi_head_attention, when=_sees_always)
def _(
    ctx: Emitter,
    query: Value,
    key: Value,
    value: Value,
    mask: Value | None,
    heads: int,
    causal: bool,
    scale: float,
) -> Value:
    queries, keys = query.dims[1], key.dims[1]
    bias = None
    unidirectional = causal and mask is None and queries == keys
    if mask is not None or (causal and not unidirectional):
        array = ctx.array_of(mask) if mask is not None else None
        total = np.zeros((1, 1, queries, keys), np.float32)
        if array is not None:
            total = total + attention.added(array, total.dtype)
        bias = ctx.constant(total + _causal(queries, keys) if causal else total, "float32")
    operands = (query, key, value, None, None, bias)
    flags: dict[str, Any] = {"num_heads": heads, "unidirectional": int(unidirectional), "scale": scale}
    y: Value = ctx.emit("MultiHeadAttention", *operands, domain=MICROSOFT, **flags)
    return y


LONG = 2**20
"""From so many scores a head on it is worth while to move heads to where the kernel keeps no scores in memory."""


def _is_long(query: Operand, key: Operand, mask: Operand | None, causal: bool) -> bool:
    (_, heads, queries, _), (_, groups, keys, _) = query.shape, key.shape
    plain = heads == groups and mask is None and not causal and query.data_type == "float32"
    return plain and queries * keys >= LONG


@ort.lower(attention.scaled_dot_product_attention, when=_is_long)
def _(ctx: Emitter, query: Value, key: Value, value: Value, scale: float) -> Value:
    batches, heads, queries, _ = query.dims
    joined = [
        ctx.reshape(ctx.transpose(x, [0, 2, 1, 3]), [batches, x.dims[2], heads * x.dims[3]])
        for x in (query, key, value)
    ]
    y = ctx.emit("MultiHeadAttention", *joined, domain=MICROSOFT, num_heads=heads, scale=scale)
    return ctx.transpose(ctx.reshape(y, [batches, queries, heads, value.dims[3]]), [0, 2, 1, 3])


def _has_kernel(query: Operand, past_key: Operand | None, heads: int) -> bool:
    """Whether the size of heads is one that the engine takes; and with a past, it takes one new key or one batch."""
    batches, new, hidden = query.shape
    return hidden // heads % 8 == 0 and (past_key is None or new == 1 or batches == 1)


@ort.lower(attention.group_query_attention, when=_has_kernel)
def _(
    ctx: Emitter,
    query: Value,
    key: Value,
    value: Value,
    past_key: Value | None,
    past_value: Value | None,
    lengths: Value | None,
    heads: int,
    groups: int,
    scale: float,
) -> list[Value]:
    batches, new = query.dims[:2]
    if lengths is None:
        total = new + (0 if past_key is None else past_key.dims[2])
        last, all_keys = ctx.constant([total - 1] * batches, "int32"), ctx.constant(total, "int32")
    else:
        last = ctx.emit("Add", lengths, ctx.constant(new - 1, "int32"))
        longest = ctx.emit("ReduceMax", lengths, keepdims=0)
        all_keys = ctx.emit("Add", longest, ctx.constant(new, "int32"))
    operands = (query, key, value, past_key, past_value, last, all_keys)
    flags: dict[str, Any] = {"num_heads": heads, "kv_num_heads": groups, "scale": scale}
    made: list[Value] = ctx.emit("GroupQueryAttention", *operands, outputs=3, domain=MICROSOFT, **flags)
    return made


@ort.lower(rotary.rotary_embedding)
def _(
    ctx: Emitter,
    input: Value,
    cosines: Value,
    sines: Value,
    positions: Value | None,
    heads: int,
    interleaved: bool,
) -> Value:
    heads, size = (input.dims[1], input.dims[3]) if input.rank == 4 else (heads, input.dims[2] // heads)
    turned = 2 * cosines.dims[1]
    # One position is that where the sequences begin.
    operands = (input, ctx.constant([0]) if positions is None else positions, cosines, sines)
    flags: dict[str, Any] = {
        "interleaved": int(interleaved),
        "num_heads": heads,
        "rotary_embedding_dim": turned if turned < size else 0,
    }
    y: Value = ctx.emit("RotaryEmbedding", *operands, domain=MICROSOFT, **flags)
    return y
