"""Activation functions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .. import expr
from ..core.dtypes import FLOATS, SIGNED
from ..core.graph import Builder, Desc, Operand
from ..core.operation import Limits, op
from ..core.shapes import broadcast
from .constants import constant
from .elementwise import on_arguments

if TYPE_CHECKING:
    from .operations import Operations


_SPECIFICATION = "https://www.w3.org/TR/webnn/#api-mlgraphbuilder-"


@op(input=Limits(FLOATS))
def _activation(self: Builder, input: Operand, *, label: str = "") -> Desc:
    """Apply a function to each element."""
    return input.desc


@op(input=Limits(FLOATS))
def elu(self: Builder, input: Operand, *, alpha: float = 1.0, label: str = "") -> Desc:
    """Exponential linear unit: max(0, x) + alpha * (exp(min(0, x)) - 1).

    Args:
        alpha: the factor for negative values; the result approaches -alpha.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-elu

    >>> print(np.round(ow.ops.elu(np.float32([-1, 0, 1]), alpha=2.0), 3))
    [-1.264  0.     1.   ]
    """
    return input.desc


elu.cast("alpha", like="input")


@elu.decompose
def _(b: Operations, input: Operand, alpha: float) -> Operand:
    below = (b.exp(b.clamp(input, max_value=0)) - 1) * alpha
    return b.where(b.lesser(input, constant(b, 0, input.data_type)), below, input)


@elu.expression
def _(input: expr.Traced, alpha: float) -> expr.Traced:
    # exp(x) - 1 is inaccurate for small x; this form in terms of tanh is not.
    half = expr.tanh(expr.min(input, 0) * 0.5)
    return expr.where(input < 0, 2 * half / (1 - half) * alpha, input)


gelu = _activation.named(
    "gelu",
    f"Gaussian error linear unit: 0.5 * x * (1 + erf(x / sqrt(2))).\n\n{_SPECIFICATION}gelu-method",
    ">>> print(np.round(ow.ops.gelu(np.float32([-1, 0, 1])), 3))\n[-0.159  0.     0.841]",
)


@gelu.decompose
def _(b: Operations, input: Operand) -> Operand:
    return input * 0.5 * (b.erf(input / math.sqrt(2)) + 1)


gelu.expression(on_arguments(expr.gelu))


@op(input=Limits(FLOATS))
def hard_sigmoid(self: Builder, input: Operand, *, alpha: float = 0.2, beta: float = 0.5, label: str = "") -> Desc:
    """Piecewise linear approximation of the sigmoid: max(0, min(1, alpha * x + beta)).

    Args:
        alpha: the slope.
        beta: the offset.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-hard-sigmoid

    >>> ow.ops.hard_sigmoid(np.float32([-3, 0, 3]), alpha=0.25).tolist()
    [0.0, 0.5, 1.0]
    """
    return input.desc


hard_sigmoid.cast("alpha", "beta", like="input")


@hard_sigmoid.decompose
def _(b: Operations, input: Operand, alpha: float, beta: float) -> Operand:
    return b.clamp(input * alpha + beta, min_value=0, max_value=1)


@hard_sigmoid.expression
def _(input: expr.Traced, alpha: float, beta: float) -> expr.Traced:
    return expr.clamp(input * alpha + beta, 0, 1)


hard_swish = _activation.named(
    "hard_swish",
    f"Piecewise approximation of swish: x * max(0, min(6, x + 3)) / 6.\n\n{_SPECIFICATION}hard-swish",
    ">>> ow.ops.hard_swish(np.float32([-1.5, 0, 3])).tolist()\n[-0.375, 0.0, 3.0]",
)


@hard_swish.decompose
def _(b: Operations, input: Operand) -> Operand:
    # Divide first: the specification's order overflows for results above a sixth of the maximum.
    return input * (b.clamp(input + 3, min_value=0, max_value=6) / 6)


@hard_swish.expression
def _(input: expr.Traced) -> expr.Traced:
    return input * (expr.clamp(input + 3, 0, 6) / 6)


@op(input=Limits(FLOATS))
def leaky_relu(self: Builder, input: Operand, *, alpha: float = 0.01, label: str = "") -> Desc:
    """Rectified linear unit with a slope for negative values: max(0, x) + alpha * min(0, x).

    Args:
        alpha: the slope where x is negative.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-leakyrelu

    >>> ow.ops.leaky_relu(np.float32([-2, 2]), alpha=0.25).tolist()
    [-0.5, 2.0]
    """
    return input.desc


leaky_relu.cast("alpha", like="input")


@leaky_relu.decompose
def _(b: Operations, input: Operand, alpha: float) -> Operand:
    return b.where(b.lesser(input, constant(b, 0, input.data_type)), input * alpha, input)


@leaky_relu.expression
def _(input: expr.Traced, alpha: float) -> expr.Traced:
    return expr.where(input < 0, input * alpha, input)


@op(input=Limits(FLOATS))
def linear(self: Builder, input: Operand, *, alpha: float = 1.0, beta: float = 0.0, label: str = "") -> Desc:
    """Linear function of each element: alpha * x + beta.

    Args:
        alpha: the slope.
        beta: the value at 0.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-linear

    >>> ow.ops.linear(np.float32([1, 2]), alpha=10.0, beta=0.5).tolist()
    [10.5, 20.5]
    """
    return input.desc


linear.cast("alpha", "beta", like="input")


@linear.decompose
def _(b: Operations, input: Operand, alpha: float, beta: float) -> Operand:
    return input * alpha + beta


@linear.expression
def _(input: expr.Traced, alpha: float, beta: float) -> expr.Traced:
    return input * alpha + beta


@op(input=Limits(SIGNED), slope=Limits("input"), output=Limits("input"))
def prelu(self: Builder, input: Operand, slope: Operand, *, label: str = "") -> Desc:
    """Rectified linear unit with a learned slope for negative values: slope * x where x < 0, else x.

    Args:
        slope: the data type of `input`; `input` and `slope` broadcast to each other.

    Returns: An operand of the data type of `input` and the broadcast shape. Slopes of NaN or infinity have no effect on
        elements that are not negative.
    Raises: the data types differ, or the shapes do not broadcast.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-prelu

    >>> ow.ops.prelu(np.float32([-2, -2, 2]), np.float32([0.25, 0.5, 0.5])).tolist()
    [-0.5, -1.0, 2.0]
    """
    return Desc(input.data_type, broadcast(input.shape, slope.shape, names="input and slope"))


@prelu.decompose
def _(b: Operations, input: Operand, slope: Operand) -> Operand:
    return b.where(b.lesser(input, constant(b, 0, input.data_type)), input * slope, input)


@prelu.expression
def _(input: expr.Traced, slope: expr.Traced) -> expr.Traced:
    return expr.where(input < 0, input * slope, input)


@op(input=Limits(SIGNED))
def relu(self: Builder, input: Operand, *, label: str = "") -> Desc:
    """Rectified linear unit: max(0, x).

    Returns: An operand of the data type and shape of `input`; NaN where that is NaN.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-relu-method

    >>> ow.ops.relu(np.int32([-1, 0, 2])).tolist()
    [0, 0, 2]
    """
    return input.desc


@relu.decompose
def _(b: Operations, input: Operand) -> Operand:
    return b.clamp(input, min_value=0)


relu.expression(on_arguments(expr.relu))


sigmoid = _activation.named(
    "sigmoid",
    f"Sigmoid: 1 / (1 + exp(-x)).\n\n{_SPECIFICATION}sigmoid-method",
    ">>> print(np.round(ow.ops.sigmoid(np.float32([-1, 0, 1])), 3))\n[0.269 0.5   0.731]",
)


@sigmoid.decompose
def _(b: Operations, input: Operand) -> Operand:
    return 1 / (b.exp(-input) + 1)


sigmoid.expression(on_arguments(expr.sigmoid))


softplus = _activation.named(
    "softplus",
    f"Smooth rectified linear unit: log(1 + exp(x)).\n\n{_SPECIFICATION}softplus-method",
    ">>> print(np.round(ow.ops.softplus(np.float32([-1, 0, 1])), 3))\n[0.313 0.693 1.313]",
)


@softplus.decompose
def _(b: Operations, input: Operand) -> Operand:
    # Equivalent to the specification's log(1 + exp(x)), which overflows for large x.
    return b.relu(input) + b.log(b.exp(-b.abs(input)) + 1)


softplus.expression(on_arguments(expr.softplus))


softsign = _activation.named(
    "softsign",
    f"Softsign: x / (1 + |x|).\n\n{_SPECIFICATION}softsign-method",
    ">>> ow.ops.softsign(np.float32([-1, 0, 3])).tolist()\n[-0.5, 0.0, 0.75]",
)


@softsign.decompose
def _(b: Operations, input: Operand) -> Operand:
    return input / (b.abs(input) + 1)


@softsign.expression
def _(input: expr.Traced) -> expr.Traced:
    return input / (expr.abs(input) + 1)


tanh = _activation.named(
    "tanh",
    f"Hyperbolic tangent.\n\n{_SPECIFICATION}tanh-method",
    ">>> print(np.round(ow.ops.tanh(np.float32([-1, 0, 1])), 3))\n[-0.762  0.     0.762]",
)


@tanh.decompose
def _(b: Operations, input: Operand) -> Operand:
    # Equivalent to the specification's (exp(2x) - 1) / (exp(2x) + 1), which is infinity / infinity for large x.
    return 1 - 2 / (b.exp(input * 2) + 1)


tanh.expression(on_arguments(expr.tanh))
