"""OpenVINO rules: attention.

RMS normalisation has no rule: the engine has no operator, but recognises the decomposition. It also recognises rotary
embeddings in the form below. It has an operator for attention with a KV cache, but not in its public operator sets.
"""

from __future__ import annotations

import numpy as np

from ....composites import attention as composites, rotary
from ....composites.attend import mask_bias
from ....core.graph import Operand
from ..backend import openvino
from ..emit import Emitter, Value
from .indexing import positions_of


def _sees_always(query: Operand, key: Operand, mask: Operand | None, causal: bool) -> bool:
    """Whether heads share no keys, and each query surely sees a key; the engine returns NaN for a query that sees none."""
    if query.shape[1] != key.shape[1] or (mask is not None and not mask.is_constant):
        return False
    return mask is None or bool((_bias(mask.value, query, key, causal).max(axis=-1) > -np.inf).all())


def _bias(mask: np.ndarray, query: Operand, key: Operand, causal: bool) -> np.ndarray:
    bias = mask_bias(mask) if mask.dtype == np.uint8 else mask.astype(np.float32)
    sees = np.tri(query.shape[2], key.shape[2], dtype=bool) if causal else np.ones((1, 1), bool)
    total: np.ndarray = bias + mask_bias(sees)
    return total


@openvino.lower(composites.scaled_dot_product_attention, when=_sees_always)
def _(ctx: Emitter, query: Value, key: Value, value: Value, mask: Value | None, causal: bool, scale: float) -> Value:
    name, factor = "scaled_dot_product_attention", ctx.number(scale, query)
    if mask is None:
        return ctx.emit(name, query, key, value, scale=factor, causal=causal)
    assert mask.array is not None
    operands = ctx.node.inputs
    bias = _bias(mask.array, operands["query"], operands["key"], causal)  # type: ignore[arg-type]
    return ctx.emit(name, query, key, value, ctx.constant(bias, query.data_type), factor)


def _is_whole(input: Operand, cosines: Operand, interleaved: bool) -> bool:
    """Whether the rotation covers all elements of each head, and pairs its halves."""
    return input.rank == 4 and not interleaved and 2 * cosines.shape[1] == input.shape[3]


@openvino.lower(rotary.rotary_embedding, when=_is_whole)
def _(ctx: Emitter, input: Value, cosines: Value, sines: Value, positions: Value | None) -> Value:
    length, size = input.shape[2:]

    def angles(table: Value) -> Value:
        """Return the rows of a table by position, twice: [batches or 1, 1, length, size]."""
        if positions is not None:
            rows = ctx.emit("gather", table, positions_of(ctx, positions, table.shape[0]), ctx.constant(0))
        elif table.array is not None:
            rows = ctx.add_constant(table.array[:length])
        else:
            rows = ctx.emit("slice", table, *map(ctx.constant, ([0], [length], [1], [0])))
        shaped = ctx.reshape(rows, [rows.shape[0] if positions is not None else 1, 1, length, size // 2])
        if shaped.array is not None:
            return ctx.add_constant(np.concatenate([shaped.array] * 2, axis=3))
        return ctx.emit("concat", [shaped, shaped], 3)

    def half(start: int, end: int) -> Value:
        return ctx.emit("slice", input, *map(ctx.constant, ([start], [end], [1], [3])))

    minus = ctx.constant(np.full((1, 1, 1, 1), -1), input.data_type)
    second = ctx.emit("multiply", half(size // 2, _HIGHEST), minus)
    turned = ctx.emit("concat", [second, half(0, size // 2)], -1)  # not 3: the engine would not recognise the pattern
    return ctx.emit("add", ctx.emit("multiply", input, angles(cosines)), ctx.emit("multiply", turned, angles(sines)))


_HIGHEST = 2**31 - 1
"""Slice end that means the end of the axis."""
