"""Sample calls with complex tensors, and of Fourier transforms."""

from __future__ import annotations

import math

import torch

from . import Sample, bools, floats, integers


def numbers(*shape: int, dtype: torch.dtype = torch.complex64) -> torch.Tensor:
    """Normally distributed complex numbers."""
    return torch.complex(floats(*shape), floats(*shape, seed=1)).to(dtype)


Z, X = numbers(2, 3, 4), floats(2, 3, 4)
DOUBLE = numbers(2, 3, 4, dtype=torch.complex128)
ROWS = torch.tensor([2, 0])
HUGE = torch.tensor([3e30 + 4e30j, 0j, 1e-30j, complex(math.inf, 0), complex(-math.inf, math.nan)])
_PAIRS = [
    Sample(Z, numbers(3, 4)),
    Sample(Z, X),
    Sample(X, Z),
    Sample(Z, torch.tensor(2 + 1j)),
    Sample(DOUBLE, X),
    Sample(integers(4), Z),
]
_NUMBERS = [Sample(Z, 3), Sample(Z, 1.5 - 2j), Sample(X, 2j)]

STRUCTURE = {
    **{
        name: [Sample(Z)]
        for name in (
            "alias", "alias_copy", "clone", "contiguous", "detach", "detach_copy", "lift_fresh_copy", "positive",
            "resolve_conj", "resolve_neg", "neg", "sum", "mean", "zeros_like", "zero", "numpy_T",
        )
    },
    "mT": [Sample(Z)],
    "t": [Sample(Z[0])],
    "squeeze": [Sample(Z[:1])],
    **{name: [Sample(Z, [6, 4])] for name in ("view", "reshape", "_unsafe_view", "view_copy")},
    "unsqueeze": [Sample(Z, 1), Sample(Z, -1)],
    "permute": [Sample(Z, [2, 0, 1]), Sample(Z, [-1, 1, 0])],
    "expand": [Sample(Z[:1], [5, -1, 4])],
    "broadcast_to": [Sample(Z[:1], [5, 3, 4])],
    "expand_as": [Sample(Z[:1], Z)],
    "view_as": [Sample(Z, numbers(6, 4))],
    "split_with_sizes": [Sample(Z, [1, 3], -1)],
    "chunk": [Sample(Z, 2, -1)],
    "repeat": [Sample(Z, [2, 1, 2])],
    "tile": [Sample(Z, [2, 1, 2])],
    "flip": [Sample(Z, [-1])],
    "roll": [Sample(Z, [1], [-1])],
    "swapaxes": [Sample(Z, 0, -1)],
    "swapdims": [Sample(Z, 0, -1)],
    "narrow": [Sample(Z, 1, 1, 2)],
    "index_select": [Sample(Z, -2, ROWS)],
    "gather": [Sample(Z, 1, integers(2, 2, 4, low=0, high=3))],
    "unfold": [Sample(Z, -1, 2, 1)],
    "diagonal": [Sample(Z, 0, 1, 2, names=False)],
    "tril": [Sample(Z)],
    "triu": [Sample(Z, 1)],
    "embedding": [Sample(Z[0], ROWS)],
    "take": [Sample(Z, torch.tensor([[0, 23], [7, -1]]))],
    "cumsum": [Sample(Z, -1)],
    "new_zeros": [Sample(Z, [2, 5]), Sample(Z, [2, 5], dtype=torch.float64)],
    "as_strided": [Sample(Z, [2, 2], [3, 1], 1, names=False)],
    **{name: [Sample([Z, Z[:1]]), Sample([Z, X], -1)] for name in ("cat", "concat")},
    "stack": [Sample([Z, Z], -1), Sample([Z, X])],
    "slice_scatter": [Sample(Z, Z[:, 1:], 1, 1)],
    "select_scatter": [Sample(Z, Z[0], 0, 1)],
    "constant_pad_nd": [Sample(Z, [1, 2]), Sample(Z, [0, 0, 1, -1], 2.5)],
    "new_full": [Sample(Z, [2, 3], 1 - 2j), Sample(Z, [2, 3], 1.5, dtype=torch.float32)],
    "full_like": [Sample(Z, 1 - 2j), Sample(Z, 1.5, dtype=torch.float32)],
    **{
        name: [Sample(Z, [torch.tensor([1, 0])], numbers(2, 3, 4)), Sample(Z, [None, ROWS], numbers(2, 2, 4), True)]
        for name in ("index_put", "_unsafe_index_put")
    },
    "scatter_add": [Sample(Z, 1, integers(2, 2, 4, low=0, high=3), numbers(2, 2, 4))],
    "index_copy": [Sample(Z, 1, ROWS, numbers(2, 2, 4))],
    "index_add": [Sample(Z, 1, ROWS, numbers(2, 2, 4))],
    "mm": [Sample(Z[0], Z[0].T)],
    "bmm": [Sample(Z, numbers(2, 4, 5))],
    "matmul": [Sample(Z, numbers(4, 5)), Sample(Z, numbers(4))],
    "mv": [Sample(Z[0], numbers(4))],
    "dot": [Sample(numbers(4), numbers(4) * 2j)],
    "view_as_real": [Sample(Z)],
    "view_as_complex": [Sample(floats(3, 2))],
    "view_as_real_copy": [Sample(Z)],
    "complex": [Sample(X, floats(2, 3, 4, seed=3))],
    "polar": [Sample(X, floats(2, 3, 4, seed=3))],
    "_conj_physical": [Sample(Z)],
    "conj_physical": [Sample(Z)],
    "abs": [Sample(Z), Sample(DOUBLE), Sample(HUGE)],
    "angle": [Sample(Z), Sample(X), Sample(torch.tensor([0.0, -1.0, 2.0, math.nan]))],
    "exp": [Sample(Z)],
    "log": [Sample(Z)],
    "reciprocal": [Sample(Z)],
    "_to_copy": [Sample(Z, dtype=torch.complex128), Sample(X, dtype=torch.complex64)],
    "_fft_r2c": [
        Sample(X, [2], 0, True),
        Sample(X, [1, 2], 1, True),
        Sample(X, [0, 1], 2, False),
        Sample(X.double(), [1], 0, True),
    ],
    "_fft_c2c": [Sample(Z, [2], 0, True), Sample(Z, [0, 2], 1, False), Sample(Z, [1], 2, False)],
    "_fft_c2r": [Sample(Z, [2], 0, 6), Sample(Z, [0, 2], 1, 7), Sample(Z, [2], 2, 6)],
}  # fmt: skip
"""Operator whose overload is "default" -> its calls."""

SAMPLES = {
    **{f"aten.{name}.default": calls for name, calls in STRUCTURE.items()},
    **{f"aten.{name}.Tensor": _PAIRS for name in ("add", "sub", "rsub", "mul", "div")},
    **{f"aten.{name}.Scalar": _NUMBERS for name in ("add", "sub", "rsub", "mul", "div")},
    "aten.pow.Tensor_Scalar": [Sample(Z, 2), Sample(Z, 3)],
    **{f"aten.{name}.Tensor": [Sample(Z, Z.clone()), Sample(Z, X)] for name in ("eq", "ne")},
    **{f"aten.{name}.Scalar": [Sample(torch.tensor([1 + 1j, 1, 2j]), 1 + 1j)] for name in ("eq", "ne")},
    "aten.flatten.using_ints": [Sample(Z, 1)],
    "aten.unflatten.int": [Sample(Z, -1, [2, 2])],
    "aten.squeeze.dim": [Sample(Z[:1], 0)],
    "aten.squeeze.dims": [Sample(Z[:1], [0, 1])],
    "aten.transpose.int": [Sample(Z, 0, -1)],
    **{f"aten.{name}.int": [Sample(Z, 0, -1)] for name in ("movedim", "moveaxis")},
    **{f"aten.{name}.intlist": [Sample(Z, [0, 1], [-1, 0])] for name in ("movedim", "moveaxis")},
    "aten.split.Tensor": [Sample(Z, 3, -1)],
    "aten.split.sizes": [Sample(Z, [1, 3], -1)],
    "aten.unbind.int": [Sample(Z, -1)],
    "aten.repeat_interleave.self_int": [Sample(Z, 2, -1)],
    "aten.slice.Tensor": [Sample(Z, -1, 1, 3), Sample(Z, 1, 0, 3, 2)],
    "aten.select.int": [Sample(Z, -1, 2), Sample(Z, 0, -1)],
    "aten.index.Tensor": [Sample(Z, [None, ROWS]), Sample(Z, [torch.tensor([1, 0]), ROWS])],
    "aten.sum.dim_IntList": [Sample(Z, [-1]), Sample(Z, [0, 2], True)],
    "aten.mean.dim": [Sample(Z, [1])],
    "aten.masked_fill.Scalar": [Sample(Z, bools(2, 3, 4), 1 + 2j)],
    "aten.masked_fill.Tensor": [Sample(Z, bools(3, 4), torch.tensor(2.0 + 1j))],
    "aten.scatter.src": [Sample(Z, 1, torch.tensor([[[0, 1, 2, 0]], [[1, 1, 0, 2]]]), numbers(2, 1, 4))],
    "aten.fill.Scalar": [Sample(Z, 2 - 1j)],
    "aten.where.self": [Sample(bools(3, 4), Z, numbers(4)), Sample(bools(3, 4), Z, X)],
    "aten.where.ScalarSelf": [Sample(bools(2, 3, 4), 2j, Z)],
    "aten.where.ScalarOther": [Sample(bools(2, 3, 4), Z, 1.5)],
    "aten.to.dtype": [Sample(X, torch.complex64), Sample(Z, torch.complex128), Sample(DOUBLE, torch.complex64)],
    "aten.to.other": [Sample(X, Z)],
    "prims.convert_element_type.default": [Sample(X, torch.complex64)],
    "aten.stft.default": [
        Sample(floats(2, 40), 8, 3, 8, torch.hann_window(8), False, None, True),
        Sample(floats(40), 8, None, 6, torch.hann_window(6), True, False, False),
        Sample(floats(1, 33), 8, 2, 6, None, False, True, True),
    ],
    "aten.stft.center": [
        Sample(floats(2, 40), 8, 3, 8, torch.hann_window(8), True, "reflect", False, True, True),
        Sample(floats(40), 8, 4, 8, torch.hann_window(8), False, "reflect", True, None, True),
        Sample(floats(40), 8, 4, 6, torch.hann_window(6), True, "constant", False, True, False),
    ],
}
