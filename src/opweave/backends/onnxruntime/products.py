"""Products of dequantised operands: keep the engine from joining those that it would compute in another way."""

from __future__ import annotations

from typing import Any

from .barriers import MOVES
from .dequantised import is_scaled_along
from .emit import Emitter, Value
from .records import OnnxNode
from .rounding import rounds_input

MOVED_OR_REMOVED = MOVES | {"Clip", "Expand", "Relu"}
"""Operators that the engine's optimiser may move a quantisation or dequantisation through, or remove next to one."""

_ROUNDING = frozenset({"Gemm", "MatMul"})
"""Operators that the engine joins with a dequantised constant, and then rounds their first operand to 8 bits."""


def emit_product(
    ctx: Emitter, op_type: str, a: Value, b: Value, *others: Value | None, axis: int | None, **given: Any
) -> Any:
    """Emit a product of the operands `a` and `b` of the node, with a barrier where the engine would compute another one.

    The engine computes products of two dequantised operands in integers. It takes several scales for those along any axis of
    `b` that its kernel knows, with wrong results, and some kernels fail if there are several for `a`. If only `b` is
    dequantised, and known when the session is made, it rounds `a` to 8 bits. Only `rounds_input` may say so: the engine
    also finds constants that it has computed itself, and dequantised values behind operations that it removes.

    Args:
        op_type: the ONNX operator.
        others: further operands.
        axis: the one of the second operand of the node along which the engine's kernel has several scales: columns of a
            matrix, filters of a convolution. None if it has one scale only, as for a stack of matrices.
        given: the ONNX attributes.
    """
    if not ctx.portable and ctx.precision != "ieee" and _must_be_apart(ctx, op_type, a, b, axis, given.get("alpha", 1)):
        b = ctx.apart(b)
    return ctx.emit(op_type, a, b, *others, **given)


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
    # The engine takes an alpha within 1e-6 for 1.
    may_round = op_type in _ROUNDING and abs(alpha - 1) < 1e-5 and not is_joined
    return may_round and all(map(ctx.is_foldable, right.inputs)) and not rounds_input(ctx.node)


def dequantiser(ctx: Emitter, name: str) -> OnnxNode | None:
    """The node that dequantises the value called `name`, perhaps before the value is moved; None if there is none."""
    *_, last = None, *ctx.makers(name, MOVED_OR_REMOVED)
    return last if last is not None and last.op_type == "DequantizeLinear" else None


def has_one_scale(ctx: Emitter, node: OnnxNode) -> bool:
    """Whether a node quantises or dequantises with the same constant scale and zero point everywhere."""
    arrays = [ctx.constants.get(name) for name in node.inputs[1:]]
    return all(array is not None and array.size == 1 for array in arrays)
