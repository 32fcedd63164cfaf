"""Layers of networks in NumPy, written from their definitions: witnesses that share nothing with this project.

They compute in float64 whatever they are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

Array = np.ndarray


def wide(array: Array) -> Array:
    """In float64."""
    return array.astype(np.float64)


def _special() -> Any:
    """SciPy's special functions, which the environment for CUDA lacks."""
    from scipy import special

    return special


def sigmoid(x: Array) -> Array:
    return np.asarray(_special().expit(wide(x)))


def silu(x: Array) -> Array:
    return np.asarray(x * sigmoid(x))


def gelu(x: Array, approximate: str = "none") -> Array:
    x = np.asarray(x, np.float64)
    if approximate == "tanh":
        return np.asarray(x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))
    return np.asarray(x / 2 * _special().erfc(-x / np.sqrt(2)))


def softmax(x: Array, axis: int = -1) -> Array:
    return np.asarray(_special().softmax(np.asarray(x, np.float64), axis))


def log_softmax(x: Array, axis: int = -1) -> Array:
    return np.asarray(_special().log_softmax(np.asarray(x, np.float64), axis))


def layer_norm(x: Array, scale: Array | None, bias: Array | None, epsilon: float) -> Array:
    """Over the last axis."""
    x = np.asarray(x, np.float64)
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)
    return y * (1 if scale is None else scale) + (0 if bias is None else bias)


def rms_norm(x: Array, scale: Array, epsilon: float) -> Array:
    """Over the axes of `scale`, the last ones."""
    x = np.asarray(x, np.float64)
    axes = tuple(range(x.ndim - scale.ndim, x.ndim))
    return np.asarray(x / np.sqrt((x**2).mean(axes, keepdims=True) + epsilon) * scale)


def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    softcap: float = 0,
    sinks: Array | None = None,
) -> Array:
    """Scaled dot product attention of [batch, heads, length, size]; a query that sees no key gives zeros.

    Args:
        q: queries.
        k: keys; there may be fewer heads of them than of queries.
        v: values, as many heads as keys.
        mask: broadcasts to [batch, heads, queries, keys]: of booleans or bytes, what is seen; of floats, what is added.
        causal: whether query i sees the keys up to i only.
        scale: of the scores; the default is 1 / sqrt(size).
        softcap: the scores, before the mask is added, are bounded by this; 0 for no bound.
        sinks: [heads], the score of a key whose value is zero.
    """
    times = q.shape[1] // k.shape[1]
    k, v = (np.repeat(np.asarray(x, np.float64), times, 1) for x in (k, v))
    scores = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    if mask is not None:
        scores = scores + (np.where(mask != 0, 0.0, -np.inf) if mask.dtype.kind in "bu" else mask.astype(np.float64))
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:]) > 0, scores, -np.inf)
    largest = scores.max(-1, keepdims=True)
    largest = np.where(np.isfinite(largest), largest, 0)
    weights = np.exp(scores - largest)
    total = weights.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(wide(sinks)[:, None, None] - largest)
    return np.asarray(weights / np.where(total > 0, total, 1) @ v)


def cached_attention(
    q: Array,
    k: Array,
    v: Array,
    pasts: Sequence[Array],
    lengths: Sequence[int],
    keys: int,
    *,
    bias: Array | None = None,
    window: int = 0,
    **options: Any,
) -> tuple[Array, Array, Array]:
    """Causal attention after a past, all of [batch, heads, length, size].

    Args:
        q: queries.
        k: new keys; there may be fewer heads of them than of queries.
        v: new values.
        pasts: the keys and the values of the past; none for no past.
        lengths: how many of these are valid in each sequence.
        keys: how many keys and values to return.
        bias: broadcasts to [batch, heads, queries, keys].
        window: how many keys a query sees at most; 0 for all.
        **options: of `attention`.

    Returns:
        The result, and all keys and values, with NaN where there is none.
    """
    batch, heads, new, _ = q.shape
    results, memories = [], [np.full((*x.shape[:2], keys, x.shape[3]), np.nan) for x in (k, v)]
    for n, length in enumerate(lengths):
        total = length + new
        for memory, past in zip(memories, pasts, strict=False):
            memory[n, :, :length] = past[n, :, :length]
        for memory, x in zip(memories, (k, v), strict=True):
            memory[n, :, length:total] = x[n]
        query, place = np.ogrid[length:total, :total]
        seen = (place <= query) & (place > query - (window or total))
        mask = np.where(seen, 0.0, -np.inf)
        if bias is not None:
            mask = mask + np.broadcast_to(wide(bias), (batch, heads, new, keys))[n, :, :, :total]
        known_k, known_v = (memory[n : n + 1, :, :total] for memory in memories)
        results.append(attention(q[n : n + 1], known_k, known_v, mask, **options))
    return np.concatenate(results), memories[0], memories[1]


def rotated(x: Array, cos: Array, sin: Array, positions: Array, interleaved: bool = False) -> Array:
    """Rotate pairs of elements of [batch, heads, length, size] by the angles at `positions`, [batch or 1, length]."""
    pairs = cos.shape[1]
    halves = slice(pairs), slice(pairs, 2 * pairs)
    first, second = (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)) if interleaved else halves
    numbers = (wide(x[..., first]) + 1j * wide(x[..., second])) * (wide(cos) + 1j * wide(sin))[positions][:, None]
    y = wide(x)
    y[..., first], y[..., second] = numbers.real, numbers.imag
    return y


def conv2d(
    x: Array,
    filter: Array,
    bias: Array | None = None,
    *,
    padding: Sequence[int] = (0, 0, 0, 0),
    strides: Sequence[int] = (1, 1),
    dilations: Sequence[int] = (1, 1),
    groups: int = 1,
) -> Array:
    """Convolution of [batch, channels, height, width] with [filters, channels of a group, height, width]."""
    x = np.pad(np.asarray(x, np.float64), ((0, 0), (0, 0), padding[:2], padding[2:]))
    extents = [(size - 1) * dilation + 1 for size, dilation in zip(filter.shape[2:], dilations, strict=True)]
    windows = sliding_window_view(x, extents, axis=(2, 3))  # type: ignore[call-overload]
    windows = windows[:, :, :: strides[0], :: strides[1], :: dilations[0], :: dilations[1]]
    parts = [
        np.einsum("nchwij,ocij->nohw", part, taps)
        for part, taps in zip(np.split(windows, groups, 1), np.split(filter, groups, 0), strict=True)
    ]
    y = np.concatenate(parts, 1)
    return y if bias is None else y + bias[:, None, None]


def erf_inv(x: Array) -> Array:
    """The inverse of the error function."""
    return np.asarray(_special().erfinv(wide(x)))
