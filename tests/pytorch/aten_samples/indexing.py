"""Sample calls of slices, gathers and scatters."""

from __future__ import annotations

import torch

from . import Sample, bools, floats, integers

X = floats(4, 5, 6)
_SLICES = [
    Sample(X),
    Sample(X, 0, 1),
    Sample(X, 1, 1, 4),
    Sample(X, 2, -3),
    Sample(X, -1, 0, -1),
    Sample(X, 1, 0, 5, 2),
    Sample(X, 1, 0, 99),
    Sample(X, 0, 3, 2, names=False),
]

SAMPLES = {
    "aten.slice.Tensor": _SLICES,
    "aten.slice_copy.Tensor": _SLICES,
    "aten.narrow.default": [Sample(X, 1, 1, 3), Sample(X, 0, -2, 2)],
    "aten.select.int": [Sample(X, 0, 1), Sample(X, 1, -1), Sample(X, -1, 0), Sample(floats(3), 0, 2)],
    "aten.select_copy.int": [Sample(X, 0, 1)],
    "aten.slice_scatter.default": [
        Sample(X, floats(4, 2, 6), 1, 1, 3),
        Sample(X, floats(2, 5, 6), 0, -2),
        Sample(X, floats(4, 5, 6)),
        Sample(X, floats(4, 3, 6), 1, 0, 5, 2, names=False),
    ],
    "aten.select_scatter.default": [Sample(X, floats(5, 6), 0, 1), Sample(X, floats(4, 5), -1, -1)],
    "aten.embedding.default": [
        Sample(floats(7, 3), integers(2, 4, low=0, high=7)),
        Sample(floats(7, 3), integers(4, low=0, high=7).int(), 0),
        Sample(floats(7, 3), integers(low=0, high=7)),
    ],
    "aten.index_select.default": [Sample(X, 1, torch.tensor([4, 0, 0])), Sample(X, -1, torch.tensor(3))],
    "aten.gather.default": [
        Sample(X, 1, integers(4, 2, 6, low=0, high=5)),
        Sample(X, 0, integers(2, 3, 6, low=0, high=4)),
        Sample(floats(3), 0, torch.tensor([2, 2, 0, 1])),
        Sample(bools(3, 4), 1, integers(3, 2, low=0, high=4)),
    ],
    "aten.scatter.src": [
        Sample(
            X,
            1,
            torch.stack([torch.randperm(5)[:3] for _ in range(24)], 0).reshape(4, 6, 3).transpose(1, 2),
            floats(4, 3, 6),
        ),
        Sample(floats(3, 5), 0, torch.tensor([[0, 1, 2, 0, 0]]), floats(2, 5)),
    ],
    "aten.scatter.value": [
        Sample(floats(3, 5), 1, torch.tensor([[1, 4], [0, 2], [3, 1]]), 2.5),
        Sample(integers(5), 0, torch.tensor([1]), 7),
    ],
    "aten.index.Tensor": [
        Sample(X, [torch.tensor([3, 0])]),
        Sample(X, [None, integers(2, 3, low=0, high=5)]),
        Sample(X, [torch.tensor([-1, 0])]),
        Sample(X, [torch.tensor([3, 0, 1]), torch.tensor([1, 2, 0])]),
        Sample(X, [torch.tensor([[3], [0]]), torch.tensor([1, 2, 0])]),
        Sample(X, [None, torch.tensor([3, 0, 1]), torch.tensor([1, 2, 0])]),
        Sample(X, [torch.tensor([3, 0]), None, torch.tensor([1, 2])]),
        Sample(X, [torch.tensor([3, 0]), torch.tensor([1, -2]), torch.tensor([1, 5])]),
        Sample(X, [torch.tensor(1)]),
        Sample(floats(2, 3, 4, 5), [None, torch.tensor([[0], [2]]), None, torch.tensor([1, 2])]),
    ],
    "aten._unsafe_index.Tensor": [Sample(X, [None, None, integers(3, low=0, high=6)])],
}
