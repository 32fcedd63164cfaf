"""Sample calls of operators that make tensors. Those without operands are constants, so others give them sizes."""

from __future__ import annotations

import torch

from . import Sample, bools, floats, integers

X = floats(2, 3)
_LIKE = [Sample(X), Sample(integers(3)), Sample(bools(2)), Sample(X, dtype=torch.int64), Sample(floats())]

SAMPLES = {
    "aten.full_like.default": [Sample(X, 2.5), Sample(integers(3), 2), Sample(X, True, dtype=torch.bool)],
    "aten.new_full.default": [Sample(X, [4, 2], 2.5), Sample(X, [], 1)],
    "aten.fill.Scalar": [Sample(X, 2.5), Sample(integers(3), 2)],
    "aten.new_zeros.default": [Sample(X, [4, 2]), Sample(X, [3], dtype=torch.int64)],
    "aten.new_ones.default": [Sample(X, [4, 2]), Sample(X, [3], dtype=torch.bool)],
    "aten.zeros_like.default": _LIKE,
    "aten.ones_like.default": _LIKE,
    "aten.zero.default": [Sample(X)],
}
