"""Reference rules of the activation functions."""

from __future__ import annotations

import math

import numpy as np

from ...ops import activation as ops
from .backend import Array, reference
from .elementwise import erf


@reference.lower(ops.elu)
def _(input: Array, alpha: float) -> Array:
    return np.maximum(input, 0) + alpha * np.expm1(np.minimum(input, 0))


@reference.lower(ops.gelu)
def _(input: Array) -> Array:
    return 0.5 * input * (1 + erf(input / math.sqrt(2)))


@reference.lower(ops.hard_sigmoid)
def _(input: Array, alpha: float, beta: float) -> Array:
    return np.clip(alpha * input + beta, 0, 1)


@reference.lower(ops.hard_swish)
def _(input: Array) -> Array:
    return input * np.clip(input + 3, 0, 6) / 6


@reference.lower(ops.leaky_relu)
def _(input: Array, alpha: float) -> Array:
    return np.maximum(input, 0) + alpha * np.minimum(input, 0)


@reference.lower(ops.linear)
def _(input: Array, alpha: float, beta: float) -> Array:
    return alpha * input + beta


@reference.lower(ops.prelu)
def _(input: Array, slope: Array) -> Array:
    return np.maximum(input, 0) + slope * np.minimum(input, 0)


@reference.lower(ops.relu)
def _(input: Array) -> Array:
    return np.maximum(input, 0)


@reference.lower(ops.sigmoid)
def _(input: Array) -> Array:
    return 1 / (1 + np.exp(-input))


@reference.lower(ops.softplus)
def _(input: Array) -> Array:
    return np.logaddexp(0, input)


@reference.lower(ops.softsign)
def _(input: Array) -> Array:
    return input / (1 + np.abs(input))


@reference.lower(ops.tanh)
def _(input: Array) -> Array:
    return np.tanh(input)
