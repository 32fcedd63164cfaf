"""Products of dequantised operands: barriers against fusions that would change results."""

from __future__ import annotations

from typing import Any

import numpy as np

from .barriers import MOVES
from .dequantised import is_scaled_along
from .emit import Emitter, Value
from .records import OnnxNode
from .rounding import rounds_input

MOVED_OR_REMOVED = MOVES | {"Clip", "Expand", "Relu"}
"""The engine's optimiser may move a quantisation or dequantisation across these operators, or remove them next to one."""

_ROUNDING = frozenset({"Gemm", "MatMul"})
"""The engine fuses these operators with a dequantised constant, and then rounds the first operand to 8 bits."""


def emit_product(
    ctx: Emitter, op_type: str, a: Value, b: Value, *others: Value | None, axis: int | None, **attributes: Any
) -> Any:
    """Emit a product of the node's operands `a` and `b`, with a barrier where a fusion of the engine would change the result.

    The engine fuses products with dequantised operands:

    - If `a` and `b` are dequantised, the engine computes in integers. Several scales of `b` are right along `axis` only, and
      several scales of `a` are wrong or refused.
    - If the third operand of a Gemm is dequantised, too, the engine takes its scale for the product of those of `a` and `b`.
    - If only `b` is dequantised, and foldable, the engine rounds `a` to 8 bits. That is allowed for nodes that `rounds_input`
      reports, but the engine also does so after it has folded constants, or has removed operators behind a dequantisation.

    `axis` is the axis of the second operand that may have several scales: the columns of a matrix, or the filters of a
    convolution; None if no axis may.
    """
    alpha = attributes.get("alpha", 1)
    if not ctx.portable and ctx.precision != "ieee":
        if _needs_barrier(ctx, op_type, a, b, axis, alpha):
            b = ctx.insert_barrier(b)
        elif op_type == "Gemm" and (c := others[0]) is not None and _has_other_scale(ctx, a, b, c, alpha):
            others = (ctx.insert_barrier(c),)
    return ctx.emit(op_type, a, b, *others, **attributes)


def _needs_barrier(ctx: Emitter, op_type: str, a: Value, b: Value, axis: int | None, alpha: float) -> bool:
    b_dequantiser = dequantiser_of(ctx, b.name)
    if b_dequantiser is None:
        return False
    a_dequantiser = dequantiser_of(ctx, a.name)
    a_operand, b_operand = ctx.node.operands[:2]
    if a_dequantiser is not None:
        a_is_right = is_scaled_along(a_operand, None) or has_one_scale(ctx, a_dequantiser)
        b_is_right = is_scaled_along(b_operand, axis) or has_one_scale(ctx, b_dequantiser)
        if not (a_is_right and b_is_right):
            return True
    is_in_integers = a_dequantiser is not None and a_dequantiser is ctx.producer(a.name)
    # The engine treats an alpha within 1e-6 of 1 as 1.
    may_round = op_type in _ROUNDING and abs(alpha - 1) < 1e-5 and not is_in_integers
    # In a sub-graph, the optimiser looks only there for the weights, which belong to the graph around it, and fails.
    keeps_apart = ctx.is_inner or not rounds_input(ctx.node)
    return may_round and all(map(ctx.is_foldable, b_dequantiser.inputs)) and keeps_apart


def _has_other_scale(ctx: Emitter, a: Value, b: Value, c: Value, alpha: float) -> bool:
    """Whether `c` is dequantised by another scale than `alpha * a @ b` would be, or with a zero point."""
    dequantisers = [node for value in (a, b, c) if (node := dequantiser_of(ctx, value.name)) is not None]
    if len(dequantisers) < 3:
        return False
    arrays = [ctx.constants.get(node.inputs[1]) for node in dequantisers]
    zeros = [ctx.constants.get(name) for name in dequantisers[2].inputs[2:]]
    scales = [array.astype(np.float64).reshape(-1) for array in arrays if array is not None]
    if len(scales) < 3 or any(zero is None or zero.any() for zero in zeros):
        return True
    of_a, of_b, of_c = scales
    is_alike = of_a.size == 1 and (of_b.size == of_c.size or 1 in (of_b.size, of_c.size))
    # Writers of models round the product to float32.
    return not (is_alike and np.allclose(of_c, alpha * of_a * of_b, rtol=1e-6, atol=0))


def dequantiser_of(ctx: Emitter, name: str) -> OnnxNode | None:
    """Return the DequantizeLinear from which the value `name` comes, directly or through `MOVED_OR_REMOVED`; None if none."""
    producers = list(ctx.producers(name, MOVED_OR_REMOVED))
    return producers[-1] if producers and producers[-1].op_type == "DequantizeLinear" else None


def has_one_scale(ctx: Emitter, node: OnnxNode) -> bool:
    """Whether a node quantises or dequantises with a single constant scale and zero point."""
    arrays = [ctx.constants.get(name) for name in node.inputs[1:]]
    return all(array is not None and array.size == 1 for array in arrays)
