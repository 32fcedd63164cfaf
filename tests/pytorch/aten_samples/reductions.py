"""Sample calls of reductions."""

from __future__ import annotations

import torch

from . import Sample, bools, floats, integers

X, N = floats(2, 3, 4), integers(3, 4)
INF = float("inf")
NAN = float("nan")
NANS = torch.tensor([[1, NAN, 3], [NAN, 1, 2], [1, 2, NAN], [INF, NAN, 1], [3, 2, 1], [-INF, NAN, -INF]])
_DIMS = [Sample(X, [0]), Sample(X, [-1], True), Sample(X, [0, 2]), Sample(X, [0, 1, 2], True)]
_DEFAULT = [Sample(X), Sample(floats()), Sample(floats(3, 4).half())]
_DIM = [Sample(X, 0), Sample(X, -1, True), Sample(N, 1)]
_SPREAD = [Sample(X), Sample(X, [1]), Sample(X, [0, 2])]

SAMPLES = {
    "aten.sum.default": [*_DEFAULT, Sample(N), Sample(bools(4)), Sample(N.int()), Sample(X, dtype=torch.float64)],
    "aten.sum.dim_IntList": [*_DIMS, Sample(X, None), Sample(X, []), Sample(N, [0]), Sample(bools(3, 4), [1])],
    "aten.mean.default": [*_DEFAULT, Sample(N, dtype=torch.float32)],
    "aten.mean.dim": [*_DIMS, Sample(X, None, True), Sample(N, [1], dtype=torch.float32)],
    "aten.prod.default": [Sample(X), Sample(N), Sample(floats())],
    "aten.prod.dim_int": _DIM,
    "aten.amax.default": [*_DIMS, Sample(X), Sample(N, [0]), Sample(NANS, [1]), Sample(NANS, [0], True)],
    "aten.amin.default": [*_DIMS, Sample(X), Sample(N, [0]), Sample(NANS, [1]), Sample(NANS, [0], True)],
    "aten.max.default": [Sample(X), Sample(N), Sample(floats()), Sample(NANS)],
    "aten.min.default": [Sample(X), Sample(N), Sample(NANS[:3])],
    "aten.logsumexp.default": [*_DIMS, Sample(X * 90, [1])],
    "aten.aminmax.default": [Sample(X), Sample(X, dim=1), Sample(N, dim=0, keepdim=True), Sample(NANS, dim=1)],
    "aten._cdist_forward.default": [
        *[Sample(X, floats(2, 5, 4), p, None) for p in (0.0, 1.0, 2.0, 2.5, INF)],
        Sample(floats(3, 2), floats(6, 2), 2.0, 1),
    ],
    "aten._pdist_forward.default": [*[Sample(floats(4, 3), p, names=False) for p in (1.0, 2.0, 3.0, INF)]],
    "aten.dist.default": [Sample(X, floats(3, 4)), Sample(X, X + 1, 1.0), Sample(X, floats(4), INF)],
    "aten.max.dim": [*_DIM, Sample(floats(), 0), Sample(NANS, 1), Sample(NANS, 0, True)],
    "aten.min.dim": [*_DIM, Sample(NANS, 1), Sample(NANS.half(), 1)],
    "aten.argmax.default": [
        *[Sample(NANS), Sample(NANS, 1), Sample(NANS, 0, True)],
        *[Sample(X), Sample(X, 1), Sample(X, -1, True), Sample(X, None, True), Sample(N, 0)],
    ],
    "aten.argmin.default": [
        *[Sample(X), Sample(X, 1), Sample(X, -1, True), Sample(N, 0)],
        *[Sample(NANS), Sample(NANS, 1), Sample(NANS.half(), 0)],
    ],
    **{
        f"aten.{name}.default": [Sample(bools(2, 3)), Sample(X), Sample(torch.zeros(3)), Sample(bools())]
        for name in ("any", "all")
    },
    **{f"aten.{name}.dim": [Sample(bools(2, 3), 1), Sample(N, 0, True)] for name in ("any", "all")},
    **{f"aten.{name}.dims": [Sample(bools(2, 3), [0, 1]), Sample(N, [0], True)] for name in ("any", "all")},
    **{
        f"aten.{name}.correction": [
            *_SPREAD,
            Sample(X, [1], correction=0),
            Sample(X, [1], correction=1, keepdim=True),
            Sample(X, None, correction=2),
        ]
        for name in ("var", "std", "var_mean", "std_mean")
    },
    **{
        f"aten.{name}.dim": [Sample(X, [1]), Sample(X, [0], False, True)]
        for name in ("var", "std", "var_mean", "std_mean")
    },
    **{f"aten.{name}.default": [Sample(X), Sample(X, False)] for name in ("var", "std", "var_mean", "std_mean")},
    "aten.norm.Scalar": [Sample(X), Sample(X, 1)],
    "aten.norm.ScalarOpt_dim": [Sample(X, 2, [1]), Sample(X, 3, [0], True), Sample(X, None, [1])],
    "aten.linalg_vector_norm.default": [
        *[Sample(X, order, [1]) for order in (0, 1, 2, 3, 2.5, INF, -INF)],
        Sample(NANS, INF, [1]),
        Sample(X),
        Sample(X, 2, [-1], True),
        Sample(X.half(), dtype=torch.float32),
    ],
    "aten.softmax.int": [
        Sample(X, -1),
        Sample(X, 0),
        Sample(X.half(), 1, torch.float32),
        Sample(floats(), 0),
        Sample(X.half(), 1),
    ],
    "aten._softmax.default": [Sample(X, 1, False)],
    "aten._safe_softmax.default": [Sample(X, 1), Sample(torch.tensor([[0.0, 1.0], [-INF, -INF]]), 1)],
    "aten.log_softmax.int": [Sample(X, -1), Sample(X * 90, 0), Sample(floats(), 0)],
    "aten._log_softmax.default": [Sample(X, 1, False)],
    "aten.count_nonzero.default": [Sample(N), Sample(N, 1), Sample(bools(3))],
    "aten.count_nonzero.dim_IntList": [Sample(N, [0, 1]), Sample(N, [1])],
}
