"""ONNX activation functions; softmax and its relatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from .... import ops
from ....composites import fast_gelu, hard_max, log_softmax, quick_gelu, thresholded_relu
from ....context.builder import MLGraphBuilder
from ....core.graph import MLOperand
from ...model.registry import (
    MICROSOFT,
    Tensor,
    Unsupported,
    by_name,
    converts,
    normalize_axis,
    register,
    unsupported_if,
)
from .elementwise import is_float, is_unsigned

_FUSED = by_name(ops.elu, ops.hard_sigmoid, ops.leaky_relu, ops.relu, ops.sigmoid, ops.softplus, ops.softsign, ops.tanh)
"""The activations that ONNX Runtime fuses with the operator before them."""

register(_FUSED | by_name(ops.hard_swish, thresholded_relu))
register(by_name(ops.gelu, fast_gelu, quick_gelu), domain=MICROSOFT)


def activate(b: MLGraphBuilder, x: MLOperand, activation: str, parameters: Sequence[float]) -> MLOperand:
    """Apply the activation of a fused operator, if it has one. Surplus parameters are ignored."""
    if not activation:
        return x
    op = _FUSED.get(activation)
    if op is None:
        raise Unsupported(f"its activation is {activation!r}")
    names = op.attributes
    if len(parameters) < len(names):
        raise Unsupported(f"its activation {activation} takes {len(names)} parameters, and gets {len(parameters)}")
    result: MLOperand = op(b, x, **dict(zip(names, map(float, parameters), strict=False)))
    return result


@converts("Selu")
def _(
    b: MLGraphBuilder, X: MLOperand, *, alpha: float = 1.6732631921768188, gamma: float = 1.0507010221481323
) -> Tensor:
    return b.mul(b.elu(X, alpha=alpha), gamma)


@converts("PRelu")
def _(b: MLGraphBuilder, x: MLOperand, slope: MLOperand) -> Tensor:
    return x if is_unsigned(x) else b.prelu(x, slope)


@converts("Shrink")
def _(b: MLGraphBuilder, x: MLOperand, *, lambd: float = 0.5, bias: float = 0.0) -> Tensor:
    unsupported_if(not is_float(x), "integers are compared with a float")
    below, above = (x, x) if bias == 0 else (b.add(x, bias), b.sub(x, bias))
    return b.where(b.lesser(x, -lambd), below, b.where(b.greater(x, lambd), above, 0))


@converts("Swish")
def _(b: MLGraphBuilder, X: MLOperand, *, alpha: float = 1.0) -> Tensor:
    return quick_gelu(b, X, alpha=alpha)


@converts("Gelu")
def _(b: MLGraphBuilder, x: MLOperand, *, approximate: str = "none") -> Tensor:
    if approximate == "none":
        return b.gelu(x)
    if approximate == "tanh":
        return fast_gelu(b, x)
    raise Unsupported(f"the approximation {approximate!r} is not known")


@converts("BiasGelu", domain=MICROSOFT)
def _(b: MLGraphBuilder, A: Tensor, B: Tensor) -> Tensor:
    return b.gelu(b.add(A, B))


# Softmax -------------------------------------------------------------------------------------------------------------


def _along_axis(op: Callable[..., MLOperand]) -> Callable[..., Any]:
    """Make the converter of an operator that applies `op` along an axis."""

    def convert(b: MLGraphBuilder, input: MLOperand, *, axis: int | None = None, opset: int) -> Tensor:
        shape, rank = input.shape, input.rank
        if opset >= 13:
            return op(b, input, normalize_axis(-1 if axis is None else axis, rank))
        # Older versions flatten all dimensions from the axis on. If only one of them is longer than 1, it is the axis.
        first = normalize_axis(1 if axis is None else axis, rank)
        longer = [dimension for dimension in range(first, rank) if shape[dimension] > 1] or [first]
        if len(longer) == 1:
            return op(b, input, longer[0])
        return b.reshape(op(b, b.reshape(input, [prod(shape[:first]), prod(shape[first:])]), 1), shape)

    return convert


for _op_type, _op in {"Softmax": ops.softmax, "LogSoftmax": log_softmax, "Hardmax": hard_max}.items():
    converts(_op_type)(_along_axis(_op))
