"""Products of dequantised operands: barriers against fusions that would change results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .barriers import MOVED_OR_REMOVED as MOVED_OR_REMOVED
from .dequantised import is_scaled_along
from .emit import Emitter, Value
from .records import OnnxNode
from .rounding import rounds_input

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
      The rule of `add` has the barriers for a MatMul and an Add, which the engine fuses to a Gemm.
    - If only `b` is dequantised, and foldable, the engine rounds `a` to 8 bits. That is allowed for nodes that `rounds_input`
      reports, but the engine also does so after it has folded constants, or has removed operators behind a dequantisation.

    `axis` is the axis of the second operand that may have several scales: the columns of a matrix, or the filters of a
    convolution; None if no axis may.
    """
    alpha = attributes.get("alpha", 1)
    if not ctx.portable and ctx.precision != "ieee":
        if _needs_barrier(ctx, op_type, a, b, axis, alpha):
            b = ctx.insert_barrier(b)
        elif (
            op_type == "Gemm" and (c := others[0]) is not None and has_other_scale(ctx, [a.name, b.name, c.name], alpha)
        ):
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


def has_other_scale(ctx: Emitter, names: Sequence[str], alpha: float) -> bool:
    """Whether `names` are three dequantised values, the last of which has another scale than `alpha` times the product.

    A zero point counts as another scale.
    """
    dequantisers = [node for name in names if (node := dequantiser_of(ctx, name)) is not None]
    return len(dequantisers) == 3 and not is_scaled_as_product(
        [node.inputs for node in dequantisers], ctx.constants.get, alpha
    )


def is_scaled_as_product(
    dequantisers: Sequence[Sequence[str]], array_of: Callable[[str], np.ndarray | None], alpha: float
) -> bool:
    """Whether the third operand of a product has the scale of the product, and no zero point.

    Args:
        dequantisers: the inputs of the DequantizeLinear of each operand.
        array_of: the elements of a constant, by name; None for other values.
        alpha: the factor of the product.
    """
    scales = [array_of(inputs[1]) for inputs in dequantisers]
    zeros = [array_of(name) for name in dequantisers[2][2:] if name]
    if any(array is None for array in scales) or any(zero is None or zero.any() for zero in zeros):
        return False
    of_a, of_b, of_c = (np.asarray(array, np.float64).reshape(-1) for array in scales)
    # Scales of the rows of a square matrix are as many as those of its columns.
    numbers = array_of(dequantisers[2][0])
    is_row = numbers is not None and numbers.shape[-1:] == (numbers.size,)
    is_alike = of_a.size == 1 and (1 in (of_b.size, of_c.size) or (of_b.size == of_c.size and is_row))
    # Writers of models round the product to float32.
    return is_alike and np.allclose(of_c, alpha * of_a * of_b, rtol=1e-6, atol=0)


def dequantiser_of(ctx: Emitter, name: str) -> OnnxNode | None:
    """Return the DequantizeLinear from which the value `name` comes, directly or through `MOVED_OR_REMOVED`; None if none."""
    producers = list(ctx.producers(name, MOVED_OR_REMOVED))
    return producers[-1] if producers and producers[-1].op_type == "DequantizeLinear" else None


def has_one_scale(ctx: Emitter, node: OnnxNode) -> bool:
    """Whether a node quantises or dequantises with a single constant scale and zero point."""
    arrays = [ctx.constants.get(name) for name in node.inputs[1:]]
    return all(array is not None and array.size == 1 for array in arrays)
