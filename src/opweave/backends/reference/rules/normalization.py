"""Reference rules: normalisations and softmax."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....ops import normalization as ops
from ..backend import Array, reference


def _reshape_along(vector: Array | None, axes: tuple[int, ...], like: Array) -> Any:
    """Reshape `vector`, whose dimensions correspond to `axes` of `like` in this order, to broadcast to `like`; keep None."""
    if vector is None:
        return None
    others = tuple(axis for axis in range(like.ndim) if axis not in axes)
    return np.moveaxis(vector[(..., *(None,) * len(others))], range(like.ndim), (*axes, *others))


def _normalize(
    x: Array, mean: Array, variance: Array, scale: Array | None, bias: Array | None, epsilon: float
) -> Array:
    y = (x - mean) / np.sqrt(variance + epsilon)
    if scale is not None:
        y = scale * y
    return y if bias is None else y + bias


def _normalize_along(
    x: Array, reduce: tuple[int, ...], scale: Array | None, bias: Array | None, epsilon: float
) -> Array:
    mean, variance = np.mean(x, reduce, keepdims=True), np.var(x, reduce, keepdims=True)
    return _normalize(x, mean, variance, scale, bias, epsilon)


@reference.lower(ops.batch_normalization)
def _(
    input: Array, mean: Array, variance: Array, scale: Array | None, bias: Array | None, axis: int, epsilon: float
) -> Array:
    m, v, k, c = (_reshape_along(vector, (axis,), input) for vector in (mean, variance, scale, bias))
    return _normalize(input, m, v, k, c, epsilon)


@reference.lower(ops.instance_normalization)
def _(input: Array, scale: Array | None, bias: Array | None, epsilon: float, layout: str) -> Array:
    channels, plane = (layout.index("c"),), (layout.index("h"), layout.index("w"))
    k, c = _reshape_along(scale, channels, input), _reshape_along(bias, channels, input)
    return _normalize_along(input, plane, k, c, epsilon)


@reference.lower(ops.layer_normalization)
def _(input: Array, scale: Array | None, bias: Array | None, axes: tuple[int, ...], epsilon: float) -> Array:
    return _normalize_along(input, axes, _reshape_along(scale, axes, input), _reshape_along(bias, axes, input), epsilon)


@reference.lower(ops.softmax)
def _(input: Array, axis: int) -> Array:
    e = np.exp(input - np.max(input, axis, keepdims=True))
    return e / np.sum(e, axis, keepdims=True)
