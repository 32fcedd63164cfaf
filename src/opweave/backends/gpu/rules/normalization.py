"""Normalisations and softmax. Variance takes two passes (the mean first), to avoid cancellation."""

from __future__ import annotations

from collections.abc import Sequence

from ....composites import log_softmax, rms_normalization
from ....expr import Traced, exp, log, reduce_max, reduce_mean, reduce_sum, sqrt
from ....ops import normalization as ops
from ..table import gpu
from .positions import along
from .reduction import narrow, widen


def _normalize(
    x: Traced,
    mean: Traced,
    variance: Traced,
    scale: Traced | None,
    bias: Traced | None,
    axes: Sequence[int],
    epsilon: float,
) -> Traced:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias. The dimensions of scale and bias are `axes`, in order."""
    y = (x - mean) / sqrt(variance + epsilon)
    if scale is not None:
        y = along(scale, axes, x) * y
    return y if bias is None else y + along(bias, axes, x)


def _moments(x: Traced, axes: Sequence[int]) -> tuple[Traced, Traced]:
    """Mean and variance over `axes`, which stay as dimensions of size 1."""
    mean = reduce_mean(x, axes, keep_dimensions=True)
    return mean, reduce_mean((x - mean) * (x - mean), axes, keep_dimensions=True)


@gpu.lower(ops.batch_normalization)
def _(
    input: Traced, mean: Traced, variance: Traced, scale: Traced | None, bias: Traced | None, axis: int, epsilon: float
) -> Traced:
    m, v = along(mean, [axis], input), along(variance, [axis], input)
    return _normalize(input, m, v, scale, bias, [axis], epsilon)


@gpu.lower(ops.instance_normalization)
def _(input: Traced, scale: Traced | None, bias: Traced | None, epsilon: float, layout: str) -> Traced:
    plane = layout.index("h"), layout.index("w")
    return _normalize(input, *_moments(input, plane), scale, bias, [layout.index("c")], epsilon)


@gpu.lower(ops.layer_normalization)
def _(input: Traced, scale: Traced | None, bias: Traced | None, axes: Sequence[int], epsilon: float) -> Traced:
    return _normalize(input, *_moments(input, axes), scale, bias, axes, epsilon)


@gpu.lower(rms_normalization)
def _(input: Traced, scale: Traced, axis: int, epsilon: float) -> Traced:
    x, axes = widen(input), range(axis, input.rank)
    mean = reduce_mean(x * x, axes, keep_dimensions=True)
    return narrow(x / sqrt(mean + epsilon) * along(widen(scale), axes, x), input)


@gpu.lower(log_softmax)
def _(input: Traced, axis: int) -> Traced:
    x = widen(input)
    centred = x - reduce_max(x, [axis], keep_dimensions=True)
    return narrow(centred - log(reduce_sum(exp(centred), [axis], keep_dimensions=True)), input)


@gpu.lower(ops.softmax)
def _(input: Traced, axis: int) -> Traced:
    # The largest exponent is 0, so that no exponential overflows, and the sum is at least 1.
    e = exp(input - reduce_max(input, [axis], keep_dimensions=True))
    return e / reduce_sum(e, [axis], keep_dimensions=True)
