"""Normalisations and softmax. Variances are found in two passes, which loses no digits."""

from __future__ import annotations

from collections.abc import Sequence

from ....expr import Array, compute, exp, reduce_max, reduce_mean, reduce_sum, sqrt
from ....ops import normalization as ops
from .registry import rule


def _along(vector: Array | None, axes: Sequence[int], like: Array) -> Array | None:
    """`vector`, whose dimensions are the `axes` of `like` in that order, so that it broadcasts to `like`."""
    if vector is None:
        return None
    shape = [size if axis in axes else 1 for axis, size in enumerate(like.shape)]
    return compute(shape, lambda *p: vector[tuple(p[axis] for axis in axes)])


def _normalize(
    x: Array, mean: Array, variance: Array, scale: Array | None, bias: Array | None, epsilon: float
) -> Array:
    y = (x - mean) / sqrt(variance + epsilon)
    if scale is not None:
        y = scale * y
    return y if bias is None else y + bias


def _normalize_along(x: Array, axes: Sequence[int], scale: Array | None, bias: Array | None, epsilon: float) -> Array:
    mean = reduce_mean(x, axes, keep_dimensions=True)
    variance = reduce_mean((x - mean) * (x - mean), axes, keep_dimensions=True)
    return _normalize(x, mean, variance, scale, bias, epsilon)


@rule(ops.batch_normalization)
def _(
    input: Array,
    mean: Array,
    variance: Array,
    scale: Array | None,
    bias: Array | None,
    axis: int,
    epsilon: float,
) -> Array:
    m, v, k, c = (_along(vector, (axis,), input) for vector in (mean, variance, scale, bias))
    assert m is not None
    assert v is not None
    return _normalize(input, m, v, k, c, epsilon)


@rule(ops.instance_normalization)
def _(input: Array, scale: Array | None, bias: Array | None, epsilon: float, layout: str) -> Array:
    channels, plane = (layout.index("c"),), (layout.index("h"), layout.index("w"))
    return _normalize_along(input, plane, _along(scale, channels, input), _along(bias, channels, input), epsilon)


@rule(ops.layer_normalization)
def _(input: Array, scale: Array | None, bias: Array | None, axes: Sequence[int], epsilon: float) -> Array:
    return _normalize_along(input, axes, _along(scale, axes, input), _along(bias, axes, input), epsilon)


@rule(ops.softmax)
def _(input: Array, axis: int) -> Array:
    # The largest exponent becomes 0, so that no exponential overflows, and the sum is at least 1.
    e = exp(input - reduce_max(input, [axis], keep_dimensions=True))
    return e / reduce_sum(e, [axis], keep_dimensions=True)
