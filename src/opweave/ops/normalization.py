"""Normalisations and softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import expr
from ..core.dtypes import FLOATS
from ..core.graph import Builder, Desc, Operand, check_shape
from ..core.operation import Limits, N, op
from ..core.shapes import check_axes
from ..support.errors import require
from .convolution import InputOperandLayout
from .reduction import narrow, widen

if TYPE_CHECKING:
    from .operations import Operations

_VECTOR = Limits("input", ranks=(1, 1))


@op(input=Limits(FLOATS, ranks=(1, N)), mean=_VECTOR, variance=_VECTOR, scale=_VECTOR, bias=_VECTOR)
def batch_normalization(
    self: Builder,
    input: Operand,
    mean: Operand,
    variance: Operand,
    *,
    scale: Operand | None = None,
    bias: Operand | None = None,
    axis: int = 1,
    epsilon: float = 1e-5,
    label: str = "",
) -> Desc:
    """Normalise each channel of `input` with a given mean and variance.

    Args:
        mean: of each channel, [channels].
        variance: of each channel, [channels].
        scale: factor of each channel, applied after normalisation, [channels]; default: ones.
        bias: added to each channel at the end, [channels]; default: zeros.
        axis: the dimension of the channels, in [0, rank).

    Returns: `scale * (input - mean) / sqrt(variance + epsilon) + bias`, in the data type and shape of `input`.
    Raises: there is no such axis, or the size of an operand is not the number of channels.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-batchnorm

    >>> x = np.float32([[1, 10], [3, 30]])
    >>> ow.ops.batch_normalization(x, np.float32([1, 10]), np.float32([4, 100]), epsilon=0.0).tolist()
    [[0.0, 0.0], [1.0, 2.0]]
    """
    require(axis < input.rank, f"axis must be in [0, {input.rank}), got {axis}")
    why = f"the size of axis {axis} of input"
    check_shape([input.shape[axis]], why, mean=mean, variance=variance, scale=scale, bias=bias)
    return input.desc


batch_normalization.cast("epsilon", like="input")


@op(input=Limits(FLOATS, ranks=(4, 4)), scale=_VECTOR, bias=_VECTOR)
def instance_normalization(
    self: Builder,
    input: Operand,
    *,
    scale: Operand | None = None,
    bias: Operand | None = None,
    epsilon: float = 1e-5,
    layout: InputOperandLayout = "nchw",
    label: str = "",
) -> Desc:
    """Normalise each channel of each image of the batch with its own mean and variance.

    Args:
        input: float32 or float16, [batches, channels, height, width], in the order of `layout`.
        scale: factor of each channel, applied after normalisation, [channels]; default: ones.
        bias: added to each channel at the end, [channels]; default: zeros.
        layout: "nchw" or "nhwc", the order of the dimensions of `input`.

    Returns: `scale * (input - mean) / sqrt(variance + epsilon) + bias`, in the data type and shape of `input`.
    Raises: the size of `scale` or `bias` is not the number of channels.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-instancenorm

    >>> x = np.float32([1, 3]).reshape(1, 1, 1, 2)
    >>> ow.ops.instance_normalization(x, bias=np.float32([5]), epsilon=0.0).tolist()
    [[[[4.0, 6.0]]]]
    """
    check_shape([input.shape[layout.index("c")]], "the channels of input", scale=scale, bias=bias)
    return input.desc


instance_normalization.cast("epsilon", like="input")


@op(input=Limits(FLOATS), scale=Limits("input"), bias=Limits("input"))
def layer_normalization(
    self: Builder,
    input: Operand,
    *,
    scale: Operand | None = None,
    bias: Operand | None = None,
    axes: Sequence[int] | None = None,
    epsilon: float = 1e-5,
    label: str = "",
) -> Desc:
    """Normalise `input` with mean and variance along `axes`.

    Args:
        scale: factor of the normalised values, with the sizes of `axes` in their order; default: ones.
        bias: added at the end, with the sizes of `axes` in their order; default: zeros.
        axes: the dimensions to normalise over, in any order, each in [0, rank) and named once; default: all but the
            first. Without axes (the default for rank 1), each value is its own mean, and the result is the bias.

    Returns: `scale * (input - mean) / sqrt(variance + epsilon) + bias`, in the data type and shape of `input`.
    Raises: an axis does not exist or is named twice, or `scale` or `bias` do not have the sizes of `axes`.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-layernorm

    >>> ow.ops.layer_normalization(np.float32([[1, 3], [20, 40]]), epsilon=0.0).tolist()
    [[-1.0, 1.0], [-1.0, 1.0]]
    """
    assert axes is not None  # the default below
    check_axes(axes, input.rank)
    why = f"the sizes of the axes {list(axes)} of input"
    check_shape([input.shape[axis] for axis in axes], why, scale=scale, bias=bias)
    return input.desc


layer_normalization.cast("epsilon", like="input")


@layer_normalization.default("axes")
def _(input: Operand) -> tuple[int, ...]:
    return tuple(range(1, input.rank))


@op(input=Limits(FLOATS, ranks=(1, N)))
def softmax(self: Builder, input: Operand, axis: int, *, label: str = "") -> Desc:
    """Normalise `input` along `axis` so that every slice is positive and sums to one.

    Returns: `exp(input) / sum of exp(input)`, in the data type and shape of `input`; no exponential overflows.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-softmax-method

    >>> print(np.round(ow.ops.softmax(np.float32([[0, 0], [0, 1]]), 1), 3))
    [[0.5   0.5  ]
     [0.269 0.731]]
    """
    require(axis < input.rank, f"axis must be in [0, {input.rank}), got {axis}")
    return input.desc


# ---------------------------------------------------------------------------------------------------------------------
# Decompositions, in float32, because squares of float16 values above 256 overflow


def _along(b: Operations, vector: Operand | None, axes: Sequence[int], like: Operand) -> Operand | None:
    """Reshape `vector`, whose dimensions are the `axes` of `like` in this order, so that it broadcasts to `like`."""
    if vector is None:
        return None
    order = sorted(range(len(axes)), key=lambda i: axes[i])
    shape = [like.shape[axis] if axis in axes else 1 for axis in range(like.rank)]
    return b.reshape(b.transpose(vector, permutation=order), shape)


def _normalize(
    b: Operations,
    input: Operand,
    centred: Operand,
    variance: Operand,
    scale: Operand | None,
    bias: Operand | None,
    epsilon: float,
) -> Operand:
    """Divide `centred` by the standard deviation, and apply scale and bias. `centred` and `variance` are float32."""
    y = centred / b.sqrt(variance + epsilon)
    if scale is not None:
        y = widen(b, scale) * y
    if bias is not None:
        y = y + widen(b, bias)
    return narrow(b, y, input)


def _normalize_along(
    b: Operations, input: Operand, reduce: Sequence[int], scale: Operand | None, bias: Operand | None, epsilon: float
) -> Operand:
    x = widen(b, input)
    centred = x - b.reduce_mean(x, axes=reduce, keep_dimensions=True)
    variance = b.reduce_mean(centred * centred, axes=reduce, keep_dimensions=True)
    return _normalize(b, input, centred, variance, scale, bias, epsilon)


@batch_normalization.decompose
def _(
    b: Operations,
    input: Operand,
    mean: Operand,
    variance: Operand,
    scale: Operand | None,
    bias: Operand | None,
    axis: int,
    epsilon: float,
) -> Operand:
    shape = [size if a == axis else 1 for a, size in enumerate(input.shape)]
    m, v = (widen(b, b.reshape(vector, shape)) for vector in (mean, variance))
    k, c = (None if vector is None else b.reshape(vector, shape) for vector in (scale, bias))
    return _normalize(b, input, widen(b, input) - m, v, k, c, epsilon)


@instance_normalization.decompose
def _(
    b: Operations, input: Operand, scale: Operand | None, bias: Operand | None, epsilon: float, layout: str
) -> Operand:
    channels = [layout.index("c")]
    k, c = _along(b, scale, channels, input), _along(b, bias, channels, input)
    return _normalize_along(b, input, [layout.index("h"), layout.index("w")], k, c, epsilon)


@layer_normalization.decompose
def _(
    b: Operations, input: Operand, scale: Operand | None, bias: Operand | None, axes: Sequence[int], epsilon: float
) -> Operand:
    k, c = _along(b, scale, axes, input), _along(b, bias, axes, input)
    return _normalize_along(b, input, axes, k, c, epsilon)


@softmax.decompose
def _(b: Operations, input: Operand, axis: int) -> Operand:
    # Subtract the maximum, so that no exponential overflows and the sum is at least 1.
    e = b.exp(input - b.reduce_max(input, axes=[axis], keep_dimensions=True))
    return e / b.reduce_sum(e, axes=[axis], keep_dimensions=True)


# ---------------------------------------------------------------------------------------------------------------------
# Formulas


@softmax.alternative
def _(input: expr.Traced, axis: int) -> expr.Traced:
    x = input if input.data_type == "float32" else expr.cast(input, "float32")
    exponentials = expr.exp(x - expr.reduce_max(x, [axis], keep_dimensions=True))
    result = exponentials / expr.reduce_sum(exponentials, [axis], keep_dimensions=True)
    return result if input.data_type == "float32" else expr.cast(result, "float16")
