"""Normalisations beyond the specification, alone and fused with the addition of a residual."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import expr
from ..core.dtypes import FLOATS, DataType
from ..core.graph import Builder, Desc, Operand, check_shape
from ..core.operation import Limits, N
from ..expr import Traced
from ..ops.constants import constant
from ..ops.reduction import narrow, widen
from ..support.errors import require
from .declare import check_axis, column, declare, last_axis

if TYPE_CHECKING:
    from ..ops import Operations

MAX_WINDOW = 2**12
"""The largest window of a local response normalisation whose neighbours are all counted. Of a larger one, those beyond the
channels are left out: there may be more of them than loops and kernels can count. An estimate."""


@declare(input=Limits(FLOATS, ranks=(4, 4)))
def local_response_normalization(
    self: Builder,
    input: Operand,
    size: int,
    *,
    alpha: float = 1e-4,
    beta: float = 0.75,
    bias: float = 1.0,
    label: str = "",
) -> Desc:
    """Divide each element by a power of the sum of squares of its neighbours in nearby channels.

    Args:
        input: float32 or float16 [batches, channels, height, width].
        size: the number of neighbouring channels, including the element's own. An even number has one more after than before.
        alpha: multiplied with the mean of the squares, in which channels beyond the first and last count as zeros.
        beta: the power.
        bias: added to the mean before the power is taken.

    Returns: `input / (bias + alpha * mean of squares) ** beta`, in the data type and shape of `input`.
    Raises: `size` is not positive.

    ONNX's LRN; Krizhevsky et al., ImageNet Classification with Deep Convolutional Neural Networks (2012), section 3.3.

    >>> x = np.float32([3, 4]).reshape(1, 2, 1, 1)
    >>> print(local_response_normalization(x, 1, alpha=1.0, beta=1.0).ravel().round(3))
    [0.3   0.235]
    """
    require(size > 0, f"size must be greater than 0, got {size}")
    return input.desc


def _neighbours(size: int, channels: int) -> tuple[int, int]:
    """The number of channels before and after that of an element: of a large window, no more than there are."""
    before, after = (size - 1) // 2, size // 2
    if size <= MAX_WINDOW:
        return before, after
    others = max(int(channels) - 1, 0)
    return min(before, others), min(after, others)


@local_response_normalization.decompose
def _(b: Operations, input: Operand, size: int, alpha: float, beta: float, bias: float) -> Operand:
    x = widen(b, input)
    batches, channels, height, width = x.shape
    before, after = _neighbours(size, channels)
    squares = b.reshape(x * x, [batches, 1, channels, height * width])
    # The mean includes the zeros around the channels. Poolings exclude their padding, so add the zeros before.
    padded = b.pad(squares, [0, 0, before, 0], [0, 0, after, 0])
    window = before + 1 + after
    mean = b.reshape(b.average_pool2d(padded, window_dimensions=[window, 1]), x.shape)
    return narrow(b, x / b.pow(mean * (alpha * (window / size)) + bias, constant(b, beta, "float32")), input)


@local_response_normalization.expression
def _(input: Traced, size: int, alpha: float, beta: float, bias: float) -> Traced:
    x, (before, after) = expr.cast(input, "float32"), _neighbours(size, input.shape[1])
    data_type: DataType = "float16" if input.data_type == "float16" else "float32"

    def element(n: Traced, c: Traced, h: Traced, w: Traced) -> Traced:
        def square(k: Traced) -> Traced:
            near = x.padded(0)[n, c + k - before, h, w]
            return near * near

        scale = expr.sum_over(before + 1 + after, square) * (alpha / size) + bias
        return expr.cast(x[n, c, h, w] / _power(scale, beta, alpha > 0 and bias >= 0), data_type)

    return expr.compute(input.shape, element)


def _power(base: Traced, exponent: float, is_positive: bool) -> Traced:
    """Compute `base ** exponent`, by square roots where the base is not negative, because they cost less than a power."""
    if is_positive and exponent in (0.5, 0.75):
        root = expr.sqrt(base)
        return root if exponent == 0.5 else root * expr.sqrt(root)
    return base if exponent == 1 else base**exponent


@declare(input=Limits(FLOATS, ranks=(1, N)), scale=Limits("input", ranks=(1, N)))
def rms_normalization(
    self: Builder,
    input: Operand,
    scale: Operand,
    axis: int | None = None,
    *,
    epsilon: float = 1e-5,
    label: str = "",
) -> Desc:
    """Divide `input` by its root mean square along the axes from `axis` on.

    Args:
        scale: multiplied with the result; its shape has the sizes of the axes from `axis` on.
        axis: the first of the axes to average over, in [0, rank). Default: the last one.
        epsilon: added to the mean square, so that nothing is divided by zero.

    Returns: `scale * input / sqrt(mean of input ** 2 + epsilon)`, in the data type and shape of `input`.
    Raises: there is no such axis, or `scale` does not have the sizes of the axes.

    ONNX's RMSNormalization; Zhang and Sennrich, Root Mean Square Layer Normalization (2019), arXiv:1910.07467.

    >>> print(rms_norm(np.float32([[3, 4]]), np.float32([1, 10])).round(3))
    [[ 0.849 11.314]]
    """
    axis = check_axis(input, axis)
    check_shape(input.shape[axis:], "the sizes of the axes", scale=scale)
    return input.desc


rms_normalization.default("axis")(last_axis)


@rms_normalization.decompose
def _(b: Operations, input: Operand, scale: Operand, axis: int, epsilon: float) -> Operand:
    x = widen(b, input)
    mean = b.reduce_mean(x * x, axes=list(range(axis, x.rank)), keep_dimensions=True)
    return narrow(b, x / b.sqrt(mean + epsilon) * widen(b, scale), input)


rms_norm = rms_normalization
"""Short name of `rms_normalization`."""


def _check_residual(input: Operand, residual: Operand, **vectors: Operand | None) -> None:
    check_shape(input.shape, "that of input", residual=residual)
    check_shape(input.shape[-1:], "the size of the last axis", **vectors)


_RESIDUAL = {
    "input": Limits(FLOATS, ranks=(2, 3)),
    "residual": Limits("input", ranks="input"),
    **{name: Limits("input", ranks=(1, 1)) for name in ("scale", "bias", "input_bias")},
}


@declare(**_RESIDUAL)
def skip_layer_norm(
    self: Builder,
    input: Operand,
    residual: Operand,
    scale: Operand,
    bias: Operand | None = None,
    input_bias: Operand | None = None,
    *,
    epsilon: float = 1e-5,
    label: str = "",
) -> tuple[Desc, Desc]:
    """Add a residual, and normalise the sum along its last axis to mean 0 and variance 1.

    Args:
        input: float32 or float16 [..., size], rank 2 or 3.
        residual: added to `input`, of the same shape.
        scale: multiplied with the normalised sum [size].
        bias: added to the result [size].
        input_bias: added to the sum before it is normalised [size].
        epsilon: added to the variance, so that nothing is divided by zero.

    Returns: The normalised sum, and the sum itself, which is the next residual: both of the data type and shape of `input`.

    ONNX Runtime's SkipLayerNormalization; Ba et al., Layer Normalization (2016), arXiv:1607.06450.

    >>> y, total = skip_layer_norm(np.float32([[1, 2]]), np.float32([[0, 1]]), np.float32([1, 1]), epsilon=0.0)
    >>> y.tolist(), total.tolist()
    ([[-1.0, 1.0]], [[1.0, 3.0]])
    """
    _check_residual(input, residual, scale=scale, bias=bias, input_bias=input_bias)
    return input.desc, input.desc


def _sum(b: Operations, input: Operand, residual: Operand, input_bias: Operand | None) -> Operand:
    total = input + residual
    return total if input_bias is None else total + input_bias


@skip_layer_norm.decompose
def _(
    b: Operations,
    input: Operand,
    residual: Operand,
    scale: Operand,
    bias: Operand | None,
    input_bias: Operand | None,
    epsilon: float,
) -> tuple[Operand, Operand]:
    total = _sum(b, input, residual, input_bias)
    return b.layer_normalization(total, scale=scale, bias=bias, axes=[total.rank - 1], epsilon=epsilon), total


@declare(**{name: limit for name, limit in _RESIDUAL.items() if name != "bias"})
def skip_rms_norm(
    self: Builder,
    input: Operand,
    residual: Operand,
    scale: Operand,
    input_bias: Operand | None = None,
    *,
    epsilon: float = 1e-5,
    label: str = "",
) -> tuple[Desc, Desc]:
    """Add a residual, and divide the sum by its root mean square along the last axis.

    Args:
        input: float32 or float16 [..., size], rank 2 or 3.
        residual: added to `input`, of the same shape.
        scale: multiplied with the normalised sum [size].
        input_bias: added to the sum before it is normalised [size].
        epsilon: added to the mean square, so that nothing is divided by zero.

    Returns: The normalised sum, and the sum itself, which is the next residual: both of the data type and shape of `input`.

    ONNX Runtime's SkipSimplifiedLayerNormalization; see `rms_normalization`.

    >>> y, total = skip_rms_norm(np.float32([[1, 4]]), np.float32([[2, 0]]), np.float32([1, 1]))
    >>> print(y.round(3), total)
    [[0.849 1.131]] [[3. 4.]]
    """
    _check_residual(input, residual, scale=scale, input_bias=input_bias)
    return input.desc, input.desc


@skip_rms_norm.decompose
def _(
    b: Operations, input: Operand, residual: Operand, scale: Operand, input_bias: Operand | None, epsilon: float
) -> tuple[Operand, Operand]:
    total = _sum(b, input, residual, input_bias)
    return rms_normalization(b, total, scale, total.rank - 1, epsilon=epsilon), total


@declare(input=Limits(FLOATS, ranks=(2, N)), scale=Limits("input", ranks=(1, 1)), bias=Limits("input", ranks=(1, 1)))
def group_normalization(
    self: Builder,
    input: Operand,
    scale: Operand | None = None,
    bias: Operand | None = None,
    *,
    groups: int,
    epsilon: float = 1e-5,
    label: str = "",
) -> Desc:
    """Normalise groups of neighbouring channels to mean 0 and variance 1.

    Args:
        input: float32 or float16 [batches, channels, ...].
        scale: multiplied with each channel of the result [channels].
        bias: added to each channel [channels].
        groups: the number of groups of channels.
        epsilon: added to the variance, so that nothing is divided by zero.

    Returns: `(input - mean) / sqrt(variance + epsilon) * scale + bias`, in the data type and shape of `input`, with one
        mean and variance for each batch and group.
    Raises: the groups do not divide the channels, or scale or bias have a different size.

    ONNX's GroupNormalization, from version 21 on; Wu and He, Group Normalization (2018), arXiv:1803.08494.

    >>> group_normalization(np.float32([[1, 3, 10, 20]]), groups=2, epsilon=0.0).tolist()
    [[-1.0, 1.0, -1.0, 1.0]]
    """
    channels = input.shape[1]
    fits = groups > 0 and channels % groups == 0
    require(fits, f"groups must divide the channels, got {groups} groups of {channels} channels")
    check_shape([channels], "the number of channels", scale=scale, bias=bias)
    return input.desc


@group_normalization.decompose
def _(
    b: Operations, input: Operand, scale: Operand | None, bias: Operand | None, groups: int, epsilon: float
) -> Operand:
    batches, channels = input.shape[:2]
    rest = input.desc.element_count // (batches * groups)
    y = b.instance_normalization(b.reshape(input, [batches, groups, rest, 1]), epsilon=epsilon)
    y = b.reshape(y, input.shape)
    per_channel = column(1, channels, input.rank)
    y = y if scale is None else y * b.reshape(scale, per_channel)
    return y if bias is None else y + b.reshape(bias, per_channel)


@declare(input=Limits(FLOATS, ranks=(1, N)))
def log_softmax(self: Builder, input: Operand, axis: int | None = None, *, label: str = "") -> Desc:
    """Compute the logarithm of a softmax without the loss of digits of `log(softmax(input))`.

    Args:
        axis: along which the exponentials sum up to one, in [0, rank). Default: the last one.

    Returns: `input - log(sum of exp(input))`, in the data type and shape of `input`.

    ONNX's LogSoftmax.

    >>> log_softmax(np.float32([0, 1000])).tolist()
    [-1000.0, 0.0]
    """
    check_axis(input, axis)
    return input.desc


log_softmax.default("axis")(last_axis)


@log_softmax.decompose
def _(b: Operations, input: Operand, axis: int) -> Operand:
    centred = widen(b, input - b.reduce_max(input, axes=[axis], keep_dimensions=True))
    # Three steps, because the engines' kernels for log(sum(exp(x))) are slow, and compute the maximum again.
    total = b.reduce_sum(b.exp(centred), axes=[axis], keep_dimensions=True)
    return narrow(b, centred - b.log(total), input)
