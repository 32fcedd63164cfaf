"""Products of dequantised operands: barriers against fusions that would change results."""

from __future__ import annotations

from typing import Any

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

    The engine computes products of two dequantised operands in integers. It assumes that several scales of `b` belong to
    its kernel's axis, with wrong results for other axes, and some kernels fail for several scales of `a`. If only `b` is
    dequantised, and foldable, the engine rounds `a` to 8 bits. That is allowed only where `rounds_input` reports it; the
    engine also does so for constants that it has folded, and for dequantised values behind operations that it removes.

    `axis` of the second operand may have several scales: columns of a matrix, filters of a convolution; None if no axis may.
    """
    if (
        not ctx.portable
        and ctx.precision != "ieee"
        and _must_be_apart(ctx, op_type, a, b, axis, attributes.get("alpha", 1))
    ):
        b = ctx.insert_barrier(b)
    return ctx.emit(op_type, a, b, *others, **attributes)


def _must_be_apart(ctx: Emitter, op_type: str, a: Value, b: Value, axis: int | None, alpha: float) -> bool:
    right = dequantiser(ctx, b.name)
    if right is None:
        return False
    left = dequantiser(ctx, a.name)
    one, other = ctx.node.operands[:2]
    if left is not None and not (
        (is_scaled_along(one, None) or has_one_scale(ctx, left))
        and (is_scaled_along(other, axis) or has_one_scale(ctx, right))
    ):
        return True
    is_joined = left is not None and left is ctx.maker(a.name)
    # The engine treats an alpha within 1e-6 of 1 as 1.
    may_round = op_type in _ROUNDING and abs(alpha - 1) < 1e-5 and not is_joined
    return may_round and all(map(ctx.is_foldable, right.inputs)) and not rounds_input(ctx.node)


def dequantiser(ctx: Emitter, name: str) -> OnnxNode | None:
    """Return the node that dequantises the value `name`, perhaps before movements; None if there is none."""
    *_, last = None, *ctx.makers(name, MOVED_OR_REMOVED)
    return last if last is not None and last.op_type == "DequantizeLinear" else None


def has_one_scale(ctx: Emitter, node: OnnxNode) -> bool:
    """Whether a node quantises or dequantises with a single constant scale and zero point."""
    arrays = [ctx.constants.get(name) for name in node.inputs[1:]]
    return all(array is not None and array.size == 1 for array in arrays)
