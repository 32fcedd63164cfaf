"""ONNX activation functions; softmax and its relatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from ... import ops
from ...builder import MLGraphBuilder
from ...composites import fast_gelu, hard_max, log_softmax, quick_gelu, thresholded_relu
from ...graph import MLOperand
from ..registry import MICROSOFT, Tensor, Unsupported, converts, normalized, operand
from .elementwise import is_float, is_unsigned, register

register(
    {
        "Relu": ops.relu,
        "Sigmoid": ops.sigmoid,
        "Tanh": ops.tanh,
        "HardSwish": ops.hard_swish,
        "Softplus": ops.softplus,
        "Softsign": ops.softsign,
    },
    inputs=1,
)


@converts("Elu")
def _(b: MLGraphBuilder, X: MLOperand, *, alpha: float = 1.0) -> Tensor:
    return b.elu(X, alpha=alpha)


@converts("Celu")
def _(b: MLGraphBuilder, x: MLOperand, *, alpha: float = 1.0) -> Tensor:
    return b.elu(x) if alpha == 1 else b.mul(b.elu(b.div(x, alpha)), alpha)


@converts("Selu")
def _(
    b: MLGraphBuilder, X: MLOperand, *, alpha: float = 1.6732631921768188, gamma: float = 1.0507010221481323
) -> Tensor:
    return b.mul(b.elu(X, alpha=alpha), gamma)


@converts("HardSigmoid")
def _(b: MLGraphBuilder, X: MLOperand, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    return b.hard_sigmoid(X, alpha=alpha, beta=beta)


@converts("LeakyRelu")
def _(b: MLGraphBuilder, X: MLOperand, *, alpha: float = 0.01) -> Tensor:
    return b.leaky_relu(X, alpha=alpha)


@converts("PRelu")
def _(b: MLGraphBuilder, x: MLOperand, slope: MLOperand) -> Tensor:
    return x if is_unsigned(x) else b.prelu(x, slope)


@converts("ThresholdedRelu")
def _(b: MLGraphBuilder, X: MLOperand, *, alpha: float = 1.0) -> Tensor:
    return thresholded_relu(b, X, alpha=alpha)


@converts("Shrink")
def _(b: MLGraphBuilder, input: Tensor, *, lambd: float = 0.5, bias: float = 0.0) -> Tensor:
    if not is_float(input):
        raise Unsupported("integers are compared with a float")
    x = operand(b, input)
    below, above = (x, x) if bias == 0 else (b.add(x, bias), b.sub(x, bias))
    return b.where(b.lesser(x, -lambd), below, b.where(b.greater(x, lambd), above, 0))


@converts("Mish")
def _(b: MLGraphBuilder, X: MLOperand) -> Tensor:
    return b.mul(X, b.tanh(b.softplus(X)))


@converts("Swish")
def _(b: MLGraphBuilder, X: MLOperand, *, alpha: float = 1.0) -> Tensor:
    return quick_gelu(b, X, alpha=alpha)


@converts("QuickGelu", domain=MICROSOFT)
def _(b: MLGraphBuilder, X: MLOperand, *, alpha: float = 1.702) -> Tensor:
    return quick_gelu(b, X, alpha=alpha)


# Fused with a product or a convolution --------------------------------------------------------------------------------

_FUSED: dict[str, tuple[Callable[..., MLOperand], tuple[str, ...]]] = {
    "Elu": (MLGraphBuilder.elu, ("alpha",)),
    "HardSigmoid": (MLGraphBuilder.hard_sigmoid, ("alpha", "beta")),
    "LeakyRelu": (MLGraphBuilder.leaky_relu, ("alpha",)),
    "Relu": (MLGraphBuilder.relu, ()),
    "Sigmoid": (MLGraphBuilder.sigmoid, ()),
    "Softplus": (MLGraphBuilder.softplus, ()),
    "Softsign": (MLGraphBuilder.softsign, ()),
    "Tanh": (MLGraphBuilder.tanh, ()),
}
"""The activations that ONNX Runtime fuses with the operator before them, and the names of their parameters, in order."""


def activated(b: MLGraphBuilder, x: MLOperand, activation: str, parameters: Sequence[float]) -> MLOperand:
    """The activation of a fused operator; `x` if it has none. Parameters beyond those that it takes are ignored."""
    if not activation:
        return x
    if activation not in _FUSED:
        raise Unsupported(f"its activation is {activation!r}")
    op, names = _FUSED[activation]
    if len(parameters) < len(names):
        raise Unsupported(f"its activation {activation} takes {len(names)} parameters, and gets {len(parameters)}")
    return op(b, x, **dict(zip(names, map(float, parameters), strict=False)))


# Gelu ----------------------------------------------------------------------------------------------------------------


@converts("Gelu")
def _(b: MLGraphBuilder, x: MLOperand, *, approximate: str = "none") -> Tensor:
    if approximate == "none":
        return b.gelu(x)
    if approximate == "tanh":
        return fast_gelu(b, x)
    raise Unsupported(f"the approximation {approximate!r} is not known")


@converts("Gelu", domain=MICROSOFT)
def _(b: MLGraphBuilder, X: MLOperand) -> Tensor:
    return b.gelu(X)


@converts("FastGelu", domain=MICROSOFT)
def _(b: MLGraphBuilder, X: MLOperand, bias: MLOperand | None = None) -> Tensor:
    return fast_gelu(b, X, bias)


@converts("BiasGelu", domain=MICROSOFT)
def _(b: MLGraphBuilder, A: Tensor, B: Tensor) -> Tensor:
    return b.gelu(b.add(A, B))


# Softmax -------------------------------------------------------------------------------------------------------------


def _matrix(b: MLGraphBuilder, input: Tensor, axis: int | None, opset: int) -> tuple[MLOperand, int]:
    """What a softmax works on, and along which axis: up to opset 12 the dimensions from the axis on are one."""
    x = operand(b, input)
    if opset >= 13:
        return x, normalized(-1 if axis is None else axis, x.rank)
    first = normalized(1 if axis is None else axis, x.rank)
    longer = [axis for axis in range(first, x.rank) if x.shape[axis] > 1] or [first]
    if len(longer) == 1:
        return x, longer[0]
    return b.reshape(x, [prod(x.shape[:first]), prod(x.shape[first:])]), 1


@converts("Softmax")
def _(b: MLGraphBuilder, input: Tensor, *, axis: int | None = None, opset: int) -> Tensor:
    x, along = _matrix(b, input, axis, opset)
    return _shaped(b, b.softmax(x, along), input)


@converts("LogSoftmax")
def _(b: MLGraphBuilder, input: Tensor, *, axis: int | None = None, opset: int) -> Tensor:
    x, along = _matrix(b, input, axis, opset)
    return _shaped(b, log_softmax(b, x, along), input)


@converts("Hardmax")
def _(b: MLGraphBuilder, input: Tensor, *, axis: int | None = None, opset: int) -> Tensor:
    x, along = _matrix(b, input, axis, opset)
    return _shaped(b, hard_max(b, x, along), input)


def _shaped(b: MLGraphBuilder, result: MLOperand, like: Tensor) -> MLOperand:
    return result if result.shape == tuple(like.shape) else b.reshape(result, like.shape)
