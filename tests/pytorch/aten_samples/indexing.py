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
    "aten.narrow_copy.default": [Sample(X, 1, 1, 3)],
    "aten.narrow.default": [Sample(X, 1, 1, 3), Sample(X, 0, -2, 2)],
    "aten.select.int": [Sample(X, 0, 1), Sample(X, 1, -1), Sample(X, -1, 0), Sample(floats(3), 0, 2)],
    "aten.select_copy.int": [Sample(X, 0, 1)],
    "aten.slice_scatter.default": [
        Sample(X, floats(4, 2, 6), 1, 1, 3),
        Sample(X, floats(2, 5, 6), 0, -2),
        Sample(X, floats(4, 5, 6)),
        Sample(X, floats(4, 3, 6), 1, 0, 5, 2, names=False),
        Sample(X, floats(4, 0, 6), 1, 3, 1, names=False),
    ],
    "aten.select_scatter.default": [Sample(X, floats(5, 6), 0, 1), Sample(X, floats(4, 5), -1, -1)],
    "aten.embedding.default": [
        Sample(floats(7, 3), integers(2, 4, low=0, high=7)),
        Sample(floats(7, 3), integers(4, low=0, high=7).int(), 0),
        Sample(floats(7, 3), integers(low=0, high=7)),
    ],
    **{
        f"aten.{name}.default": [
            *[
                Sample(
                    floats(7, 3), integers(6, low=0, high=7), torch.tensor([0, 2, 2, 5]), False, mode, padding_idx=-1
                )
                for mode in (0, 1, 2)
            ],
            *[
                Sample(
                    floats(7, 3),
                    torch.tensor([1, 4, 1, 0, 4]),
                    torch.tensor([0, 1, 5]),
                    False,
                    mode,
                    False,
                    None,
                    True,
                    4,
                )
                for mode in (0, 1, 2)
            ],
            Sample(
                floats(7, 3),
                integers(6, low=0, high=7).int(),
                torch.tensor([0, 3], dtype=torch.int32),
                False,
                0,
                False,
                floats(6),
            ),
        ]
        for name in ("_embedding_bag", "_embedding_bag_forward_only")
    },
    "aten.masked_scatter.default": [
        Sample(floats(3, 4), bools(3, 4), floats(12)),
        Sample(floats(3, 4), torch.zeros(4, dtype=torch.bool), floats(12)),
        Sample(integers(3, 4), bools(3, 1), integers(3, 4, seed=4)),
    ],
    "aten.diagonal_scatter.default": [
        Sample(floats(4, 5), floats(4), names=False),
        Sample(floats(4, 5), floats(3), -1, names=False),
        Sample(X, floats(5, 3), 1, 2, 0, names=False),
    ],
    **{
        f"aten.{name}.default": [
            Sample(floats(24), [3, 4], [5, 2], 1, names=False),
            Sample(floats(4, 6), [6, 4], [1, 6], names=False),
            Sample(floats(4, 6).T, [2, 3], [6, 1], 2, names=False),
            Sample(floats(4, 6), [24], [1], names=False),
            Sample(floats(3), [2, 3], [0, 1], names=False),
        ]
        for name in ("as_strided", "as_strided_copy")
    },
    "aten.index_select.default": [Sample(X, 1, torch.tensor([4, 0, 0])), Sample(X, -1, torch.tensor(3))],
    "aten.gather.default": [
        Sample(floats(5), 0, torch.zeros(2, 0, dtype=torch.int64), names=False),
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
    **{
        name: [
            Sample(X, [torch.tensor([3, 0])], floats(2, 5, 6)),
            Sample(X, [torch.tensor([3, -1])], floats(6)),
            Sample(X, [None, torch.tensor([3, 0])], floats(4, 2, 6)),
            Sample(X, [None, torch.tensor([3, 0])], torch.tensor(2.0)),
            Sample(X, [torch.tensor([3, 0]), torch.tensor([1, 2])], floats(2, 6)),
            Sample(X, [torch.tensor([[3], [0]]), torch.tensor([1, 2, 4])], floats(2, 3, 6)),
            Sample(X, [None, torch.tensor([3, 0]), torch.tensor([1, 2])], floats(4, 2)),
            Sample(X, [torch.tensor([3, 0]), None, torch.tensor([1, 2])], floats(2, 5)),
            Sample(X, [torch.tensor([3, 0, 3])], floats(3, 5, 6), True),
            Sample(X, [torch.tensor([3, 0, 3]), torch.tensor([1, 2, 1])], floats(3, 6), True),
            Sample(X, [None, torch.tensor([1, 1]), torch.tensor([1, -1])], floats(4, 2), True),
            Sample(X, [bools(4, 5, 6)], torch.tensor(7.0)),
            Sample(X, [bools(4)], torch.tensor(7.0)),
            Sample(X, [bools(4, 5)], torch.tensor([7.0]), True),
        ]
        for name in ("aten.index_put.default", "aten._unsafe_index_put.default")
    },
    "aten.scatter_add.default": [
        Sample(floats(3, 5), 0, integers(2, 5, low=0, high=3), floats(2, 5)),
        Sample(floats(3, 5), 1, integers(3, 7, low=0, high=5), floats(3, 7)),
        Sample(floats(3, 5), 1, integers(2, 4, low=0, high=5), floats(3, 7)),
        Sample(integers(5), 0, integers(8, low=0, high=5), integers(8)),
    ],
    "aten.scatter.reduce": [
        Sample(floats(3, 5), 1, integers(3, 4, low=0, high=5), floats(3, 4), reduce=reduce)
        for reduce in ("add", "multiply")
    ],
    "aten.scatter.value_reduce": [
        Sample(floats(3, 5), 1, integers(3, 4, low=0, high=5), 1.5, reduce=reduce) for reduce in ("add", "multiply")
    ],
    "aten.scatter_reduce.two": [
        Sample(floats(3, 5), 1, integers(3, 4, low=0, high=5), floats(3, 4), reduce)
        for reduce in ("sum", "prod", "amax", "amin", "mean")
    ]
    + [
        Sample(x, 0, integers(4, 3, low=0, high=3), new, reduce, include_self=include_self)
        for reduce in ("sum", "prod", "amax", "amin", "mean")
        for x, new in ((floats(5, 3), floats(4, 3, seed=1)), (integers(5, 3), integers(6, 3, low=-9, seed=1)))
        for include_self in (False, True)
    ]
    + [Sample(floats(), 0, torch.tensor(0), floats(seed=1), "mean", include_self=False)],
    "aten.index_reduce.default": [
        Sample(X, 1, torch.tensor([4, 0, 4]), floats(4, 3, 6, seed=1), reduce, include_self=include_self)
        for reduce in ("prod", "amax", "amin", "mean")
        for include_self in (False, True)
    ]
    + [Sample(floats(), 0, torch.tensor([0]), floats(seed=1), "mean")],
    "aten.index_add.default": [
        Sample(floats(), 0, torch.tensor([0]), floats(seed=1), alpha=2),
        Sample(X, 1, torch.tensor([4, 0, 4]), floats(4, 3, 6)),
        Sample(X, -1, torch.tensor([4, 0]), floats(4, 5, 2), alpha=-2),
    ],
    "aten.index_copy.default": [
        Sample(floats(), 0, torch.tensor([0]), floats(seed=1)),
        Sample(X, 0, torch.tensor([2, 0]), floats(2, 5, 6)),
        Sample(X, 1, torch.tensor([4, 0]), floats(4, 2, 6)),
        Sample(X, 2, torch.tensor([3]), floats(4, 5, 1)),
    ],
    "aten.index_fill.int_Scalar": [
        Sample(floats(), 0, torch.tensor([0]), 2.5),
        Sample(X, 1, torch.tensor([4, 0]), 2.5),
        Sample(integers(5), 0, torch.tensor([1]), 7),
    ],
    "aten.index_fill.int_Tensor": [Sample(X, 1, torch.tensor([4, 0]), torch.tensor(2.5))],
    "aten.take.default": [Sample(X, torch.tensor([[0, 119], [7, -1]]))],
    "aten.unfold.default": [
        Sample(floats(), 0, 1, 1),
        Sample(X, 1, 3, 1),
        Sample(X, 2, 2, 2),
        Sample(X, 0, 4, 1),
        Sample(floats(9), -1, 4, 3),
    ],
    "aten.unfold_copy.default": [Sample(X, 1, 3, 1)],
    "aten.diagonal.default": [
        *[Sample(floats(4, 5), offset, names=False) for offset in (0, 1, -2, 9)],
        Sample(X, 0, 1, 2, names=False),
        Sample(X, 1, 2, 0, names=False),
    ],
    "aten.diagonal_copy.default": [Sample(floats(4, 5), names=False)],
    **{
        f"aten.{name}.default": [Sample(floats(4, 5)), Sample(X, 1), Sample(X, -2), Sample(bools(3, 3))]
        for name in ("tril", "triu")
    },
    "aten.one_hot.default": [Sample(integers(2, 3, low=0, high=4), 5), Sample(integers(low=0, high=4), 4)],
}
