"""Sample calls of comparisons, logic, bits and choices."""

from __future__ import annotations

import torch

from . import Sample, bools, floats, integers, specials

X, Y = floats(2, 3), floats(3, seed=1)
N, J = integers(3, 4), integers(4, seed=1)

_COMPARISON = [
    Sample(X, Y),
    Sample(N, J),
    Sample(N, floats(4)),
    Sample(N.int(), J),
    Sample(specials(), specials().flip(0)),
    Sample(bools(4), bools(4, seed=1)),
    Sample(bools(4), integers(4, low=0, high=2)),
    Sample(X.half(), Y),
]
_WITH_NUMBER = [
    Sample(N, 2),
    Sample(N, 2.5),
    Sample(X, 0),
    Sample(X, 0.1),
    Sample(bools(3), 1),
    Sample(N.to(torch.int8), 2),
]
_LOGICAL = [Sample(bools(2, 3), bools(3, seed=2)), Sample(N, J), Sample(specials(), bools(9))]
_BITS = [
    Sample(N, J),
    Sample(bools(3, 4), bools(4)),
    Sample(N.int(), J.int()),
    Sample(N.to(torch.uint8), J.to(torch.uint8)),
]
_BITS_NUMBER = [Sample(N, 6), Sample(bools(3), True), Sample(N.int(), -2)]
_TESTS = [Sample(specials()), Sample(N), Sample(specials().half())]

SAMPLES = {
    **{f"aten.{name}.Tensor": _COMPARISON for name in ("eq", "ne", "gt", "ge", "lt", "le")},
    **{f"aten.{name}.Scalar": _WITH_NUMBER for name in ("eq", "ne", "gt", "ge", "lt", "le")},
    **{f"aten.logical_{name}.default": _LOGICAL for name in ("and", "or", "xor")},
    "aten.logical_not.default": [Sample(bools(3)), Sample(N), Sample(specials())],
    **{f"aten.bitwise_{name}.Tensor": _BITS for name in ("and", "or", "xor")},
    **{f"aten.__{name}__.Tensor": _BITS for name in ("and", "or", "xor")},
    **{f"aten.bitwise_{name}.Scalar": _BITS_NUMBER for name in ("and", "or", "xor")},
    **{f"aten.__{name}__.Scalar": _BITS_NUMBER for name in ("and", "or", "xor")},
    **{f"aten.bitwise_{name}.Scalar_Tensor": [Sample(6, N), Sample(True, bools(3))] for name in ("and", "or", "xor")},
    "aten.bitwise_not.default": [Sample(N), Sample(bools(3)), Sample(N.to(torch.uint8))],
    **{
        name: [Sample(N.abs(), integers(4, low=0, high=5)), Sample(N.int(), integers(4, low=0, high=5).int())]
        for name in (
            "aten.bitwise_left_shift.Tensor",
            "aten.bitwise_right_shift.Tensor",
            "aten.__lshift__.Tensor",
            "aten.__rshift__.Tensor",
        )
    },
    **{
        name: [Sample(N, 2), Sample(N.int(), 3)]
        for name in (
            "aten.bitwise_left_shift.Tensor_Scalar",
            "aten.bitwise_right_shift.Tensor_Scalar",
            "aten.__lshift__.Scalar",
            "aten.__rshift__.Scalar",
        )
    },
    **{f"aten.{name}.default": _TESTS for name in ("isnan", "isinf", "isfinite", "isposinf", "isneginf")},
    "aten.where.self": [
        Sample(bools(2, 3), X, Y),
        Sample(bools(3, 1), N, J),
        Sample(bools(4), N, floats(4)),
        Sample(bools(4), bools(4), bools(4, seed=3)),
        Sample(torch.tensor(True), X, torch.tensor(0.0)),
    ],
    "aten.where.ScalarSelf": [Sample(bools(2, 3), 1.5, X)],
    "aten.where.ScalarOther": [Sample(bools(2, 3), X, 0), Sample(bools(2, 3), X, float("-inf"))],
    "aten.where.Scalar": [Sample(bools(2, 3), 1.0, 0.0), Sample(bools(2, 3), 1, 0)],
    "aten.masked_fill.Scalar": [
        Sample(X, bools(3), float("-inf")),
        Sample(N, bools(3, 1), 7),
        Sample(X, bools(2, 1), 2),
    ],
    "aten.masked_fill.Tensor": [Sample(X, bools(3), torch.tensor(2.5)), Sample(X, bools(3), torch.tensor(2))],
}
