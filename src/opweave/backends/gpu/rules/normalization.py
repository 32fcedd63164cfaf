"""Normalisations and softmax. Variance takes two passes (the mean first), to avoid cancellation."""

from __future__ import annotations

from collections.abc import Sequence

from ....composites import log_softmax, rms_normalization
from ....expr import Array, exp, log, reduce_max, reduce_mean, reduce_sum, sqrt
from ....ops import normalization as ops
from ..table import gpu
from .positions import along
from .reduction import narrow, widen


def _normalize(
    x: Array,
    mean: Array,
    variance: Array,
    scale: Array | None,
    bias: Array | None,
    axes: Sequence[int],
    epsilon: float,
) -> Array:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias. The dimensions of scale and bias are `axes`, in order."""
    y = (x - mean) / sqrt(variance + epsilon)
    if scale is not None:
        y = along(scale, axes, x) * y
    return y if bias is None else y + along(bias, axes, x)


def _moments(x: Array, axes: Sequence[int]) -> tuple[Array, Array]:
    """Mean and variance over `axes`, which stay as dimensions of size 1."""
    mean = reduce_mean(x, axes, keep_dimensions=True)
    return mean, reduce_mean((x - mean) * (x - mean), axes, keep_dimensions=True)


@gpu.lower(ops.batch_normalization)
def _(
    input: Array, mean: Array, variance: Array, scale: Array | None, bias: Array | None, axis: int, epsilon: float
) -> Array:
    m, v = along(mean, [axis], input), along(variance, [axis], input)
    return _normalize(input, m, v, scale, bias, [axis], epsilon)


@gpu.lower(ops.instance_normalization)
def _(input: Array, scale: Array | None, bias: Array | None, epsilon: float, layout: str) -> Array:
    plane = layout.index("h"), layout.index("w")
    return _normalize(input, *_moments(input, plane), scale, bias, [layout.index("c")], epsilon)


@gpu.lower(ops.layer_normalization)
def _(input: Array, scale: Array | None, bias: Array | None, axes: Sequence[int], epsilon: float) -> Array:
    return _normalize(input, *_moments(input, axes), scale, bias, axes, epsilon)


@gpu.lower(rms_normalization)
def _(input: Array, scale: Array, axis: int, epsilon: float) -> Array:
    x, axes = widen(input), range(axis, input.rank)
    mean = reduce_mean(x * x, axes, keep_dimensions=True)
    return narrow(x / sqrt(mean + epsilon) * along(widen(scale), axes, x), input)


@gpu.lower(log_softmax)
def _(input: Array, axis: int) -> Array:
    x = widen(input)
    centred = x - reduce_max(x, [axis], keep_dimensions=True)
    return narrow(centred - log(reduce_sum(exp(centred), [axis], keep_dimensions=True)), input)


@gpu.lower(ops.softmax)
def _(input: Array, axis: int) -> Array:
    # The largest exponent is 0, so that no exponential overflows, and the sum is at least 1.
    e = exp(input - reduce_max(input, [axis], keep_dimensions=True))
    return e / reduce_sum(e, [axis], keep_dimensions=True)
