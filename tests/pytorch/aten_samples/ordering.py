"""Sample calls of medians, histograms, and of partial sums of exponentials."""

from __future__ import annotations

import torch

from . import Sample, floats, integers, specials

X, N = floats(2, 5, 4), integers(3, 4)
INF, NAN = float("inf"), float("nan")
NANS = torch.tensor([[1, NAN, 3, 2], [NAN, NAN, NAN, 2], [NAN, NAN, NAN, NAN], [INF, 2, 1, 7], [-INF, NAN, INF, 3]])
_ALL = [Sample(X, names=False), Sample(N, names=False), Sample(floats(7), names=False), Sample(NANS[3:4], names=False)]
# Of equal elements, PyTorch returns the position of any: these have none.
_ALONG = [
    Sample(X, 1, names=False),
    Sample(X, -1, True, names=False),
    Sample(X.half(), 0, names=False),
    Sample(torch.randperm(12).reshape(3, 4), 0, names=False),
]

SAMPLES = {
    "aten.histc.default": [
        Sample(floats(40), 8, -2, 2),
        Sample(floats(4, 5), 4, names=False),
        Sample(integers(30, low=0, high=4).float(), 4, 0, 3),
        Sample(specials(2.0, 3.0, 0.75), 3, 0, 3),
        Sample(torch.full((3,), 2.0), 5, names=False),
        Sample(floats(30).double(), 7, -1, 1.5),
    ],
    "aten.median.default": [*_ALL, Sample(NANS, names=False)],
    "aten.median.dim": [*_ALONG, Sample(NANS[[0, 3, 4]], 1, names=False)],
    "aten.nanmedian.default": [*_ALL, Sample(NANS, names=False)],
    "aten.nanmedian.dim": [*_ALONG, Sample(NANS[[0, 1, 3, 4]], 1, names=False)],
    "aten.logcumsumexp.default": [
        Sample(X, 1, names=False),
        Sample(X * 90, -1, names=False),
        Sample(floats(9).half(), 0, names=False),
        Sample(torch.tensor([-INF, -INF, 1.0, INF, 2.0, NAN, 1.0]), 0, names=False),
        Sample(floats(), 0),
    ],
    "aten.logaddexp.default": [
        Sample(X, floats(4)),
        Sample(torch.tensor([INF, -INF, INF, -INF, NAN]), torch.tensor([INF, -INF, -INF, 1.0, 2.0])),
    ],
}
