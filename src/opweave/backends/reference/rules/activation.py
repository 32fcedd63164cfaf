"""Reference rules of the activation functions."""

from __future__ import annotations

import math

import numpy as np

from ....ops import activation as ops
from ..backend import reference
from .elementwise import erf

reference.apply(
    {
        ops.elu: lambda x, alpha: np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x),
        ops.gelu: lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
        ops.hard_sigmoid: lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1),
        ops.hard_swish: lambda x: x * np.clip(x + 3, 0, 6) / 6,
        ops.leaky_relu: lambda x, alpha: np.where(x < 0, alpha * x, x),
        ops.linear: lambda x, alpha, beta: alpha * x + beta,
        ops.prelu: lambda x, slope: np.where(x < 0, slope * x, x),
        ops.relu: lambda x: np.maximum(x, 0),
        ops.sigmoid: lambda x: 1 / (1 + np.exp(-x)),
        ops.softplus: lambda x: np.logaddexp(0, x),
        ops.softsign: lambda x: x / (1 + np.abs(x)),
        ops.tanh: np.tanh,
    }
)
