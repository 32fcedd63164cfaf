"""Activations of transformers: gated linear units, and approximations of gelu."""

from __future__ import annotations

from math import pi, sqrt
from typing import TYPE_CHECKING, Literal

from ..core.dtypes import FLOATS
from ..core.graph import Builder, Desc, Operand, check_shape
from ..core.operation import Limits
from ..ops.constants import constant
from .declare import declare

if TYPE_CHECKING:
    from ..ops import Operations

_GATED = {"gate": Limits(FLOATS), "input": Limits("gate", ranks="gate")}


@declare(input=Limits(FLOATS))
def quick_gelu(self: Builder, input: Operand, *, alpha: float = 1.702, label: str = "") -> Desc:
    """Compute `input * sigmoid(alpha * input)`; with `alpha=1.0` this is SiLU, also called swish.

    Args:
        alpha: the factor inside the sigmoid.

    Returns: `input * sigmoid(alpha * input)`, in the data type and shape of `input`.

    ONNX Runtime's QuickGelu; Hendrycks and Gimpel, Gaussian Error Linear Units (2016), arXiv:1606.08415.

    >>> print(quick_gelu(np.float32([-1, 0, 1])).round(4))
    [-0.1542  0.      0.8458]
    """
    return input.desc


@quick_gelu.decompose
def _(b: Operations, input: Operand, alpha: float) -> Operand:
    return input * b.sigmoid(input if alpha == 1 else input * alpha)


@declare(input=Limits(FLOATS), bias=Limits("input", ranks=(1, 1)))
def fast_gelu(self: Builder, input: Operand, bias: Operand | None = None, *, label: str = "") -> Desc:
    """Approximate gelu with a hyperbolic tangent.

    Args:
        input: float32 or float16, any rank; rank 1 or more if there is a bias.
        bias: added to the input first, [size of the last axis].

    Returns: `0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))` of `x = input + bias`, in the data type and
        shape of `input`.
    Raises: a bias of a different size.

    ONNX Runtime's FastGelu, ONNX's Gelu with approximate="tanh"; Hendrycks and Gimpel (2016), arXiv:1606.08415.

    >>> print(fast_gelu(np.float32([-1, 0, 1])).round(4))
    [-0.1588  0.      0.8412]
    """
    check_shape(input.shape[-1:], "the size of the last axis", bias=bias)
    return input.desc


@fast_gelu.decompose
def _(b: Operations, input: Operand, bias: Operand | None) -> Operand:
    x = input if bias is None else input + bias
    # ONNX Runtime recognises this form, and has a kernel. In float16, x * x * x would overflow before the tangent is 1.
    inner = x * sqrt(2 / pi) * (x * 0.044715 * x + 1)
    return x * 0.5 * (b.tanh(inner) + 1)


@declare(**_GATED)
def swiglu(self: Builder, gate: Operand, input: Operand, *, alpha: float = 1.0, label: str = "") -> Desc:
    """Multiply `input` with the SiLU of a gate.

    Args:
        input: an operand with the data type and shape of `gate`.
        alpha: the factor inside the sigmoid.

    Returns: `gate * sigmoid(alpha * gate) * input`, in the data type and shape of `gate`.
    Raises: shapes that differ.

    Shazeer, GLU Variants Improve Transformer (2020), arXiv:2002.05202.

    >>> print(swiglu(np.float32([-1, 1]), np.float32([10, 10])).round(3))
    [-2.689  7.311]
    """
    check_shape(gate.shape, "that of gate", input=input)
    return gate.desc


@swiglu.decompose
def _(b: Operations, gate: Operand, input: Operand, alpha: float) -> Operand:
    silu: Operand = quick_gelu(b, gate, alpha=alpha)
    return silu * input


@declare(**_GATED)
def geglu(
    self: Builder, gate: Operand, input: Operand, *, approximate: Literal["none", "tanh"] = "none", label: str = ""
) -> Desc:
    """Multiply `input` with the gelu of a gate.

    Args:
        input: an operand with the data type and shape of `gate`.
        approximate: "none" for gelu itself, "tanh" for `fast_gelu`.

    Returns: `gelu(gate) * input`, in the data type and shape of `gate`.
    Raises: shapes that differ.

    Shazeer, GLU Variants Improve Transformer (2020), arXiv:2002.05202.

    >>> print(geglu(np.float32([-1, 1]), np.float32([10, 10])).round(3))
    [-1.587  8.413]
    """
    check_shape(gate.shape, "that of gate", input=input)
    return gate.desc


@geglu.decompose
def _(b: Operations, gate: Operand, input: Operand, approximate: str) -> Operand:
    return (b.gelu(gate) if approximate == "none" else fast_gelu(b, gate)) * input


@declare(input=Limits(FLOATS))
def thresholded_relu(self: Builder, input: Operand, *, alpha: float = 1.0, label: str = "") -> Desc:
    """Replace elements that are not greater than `alpha` by 0.

    Args:
        alpha: the threshold.

    Returns: `input` where it is greater than `alpha`, else 0 (also for NaN), in the data type and shape of `input`.

    ONNX's ThresholdedRelu.

    >>> thresholded_relu(np.float32([1, 2])).tolist()
    [0.0, 2.0]
    """
    return input.desc


@thresholded_relu.decompose
def _(b: Operations, input: Operand, alpha: float) -> Operand:
    threshold, zero = (constant(b, number, input.data_type) for number in (alpha, 0))
    return b.where(b.greater(input, threshold), input, zero)
