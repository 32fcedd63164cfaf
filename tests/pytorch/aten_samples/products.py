"""Sample calls of matrix products."""

from __future__ import annotations

import torch

from . import Sample, floats

A, B = floats(3, 4), floats(4, 5)


def halves(*shape: int) -> torch.Tensor:
    return floats(*shape, dtype=torch.bfloat16)  # PyTorch exports no other products of groups


def ends(*ends: int) -> torch.Tensor:
    return torch.tensor(ends, dtype=torch.int32)


SAMPLES = {
    "aten.linear.default": [
        Sample(A, floats(5, 4), floats(5)),
        Sample(A, floats(5, 4)),
        Sample(floats(2, 3, 4), floats(5, 4), floats(5)),
        Sample(floats(2, 2, 3, 4), floats(5, 4)),
        Sample(floats(4), floats(5, 4), floats(5)),
        Sample(A, floats(4)),
        Sample(floats(2, 3, 4).half(), floats(5, 4).half(), floats(5).half(), tolerance=1e-5),
    ],
    "aten.addmm.default": [
        Sample(floats(5), A, B),
        Sample(floats(3, 5), A, B, beta=0.5, alpha=2),
        Sample(floats(5), A, B, beta=0),
        Sample(floats(5), A, floats(5, 4).t()),
    ],
    "aten.addmv.default": [Sample(floats(3), A, floats(4)), Sample(floats(3), A, floats(4), beta=0.5, alpha=2)],
    "aten.baddbmm.default": [
        Sample(floats(2, 3, 5), floats(2, 3, 4), floats(2, 4, 5)),
        Sample(floats(5), floats(2, 3, 4), floats(2, 4, 5), beta=0, alpha=0.5),
        Sample(floats(3, 5), floats(2, 3, 4), floats(2, 4, 5), beta=2),
    ],
    "aten.addbmm.default": [
        Sample(floats(3, 5), floats(2, 3, 4), floats(2, 4, 5)),
        Sample(floats(5), floats(2, 3, 4), floats(2, 4, 5), beta=0.5, alpha=2),
        Sample(floats(3, 5), floats(2, 3, 4), floats(2, 4, 5), beta=0),
    ],
    "aten.linalg_inv_ex.default": [
        Sample(floats(4, 4) + 3 * torch.eye(4), names=False),
        Sample(floats(2, 3, 3) + 3 * torch.eye(3), names=False),
    ],
    "aten._linalg_det.default": [Sample(floats(4, 4), names=False), Sample(floats(2, 3, 3), names=False)],
    "aten.mm.default": [Sample(A, B), Sample(A, floats(5, 4).t())],
    "aten.einsum.default": [
        Sample("bhqd,bhkd->bhqk", [floats(2, 3, 4, 8), floats(2, 3, 5, 8)]),
        Sample("bhqk, bkhd -> bqhd", [floats(2, 3, 4, 5), floats(2, 5, 3, 8)]),
        Sample("ij,jk", [floats(3, 4), floats(4, 5)]),  # the axes of the result in the order of the letters
        Sample("bA,Ab", [floats(3, 4), floats(4, 3)]),
        Sample("...ij,...jk->...ik", [floats(2, 3, 4), floats(4, 5)]),
        Sample("ii->i", [floats(4, 4)], names=False),
        Sample("ii", [floats(4, 4)], names=False),
        Sample("i,j->ij", [floats(3), floats(4)]),
        Sample("ab,bc,cd->ad", [floats(2, 3), floats(3, 4), floats(4, 5)]),
        Sample("ab,cb->a", [floats(2, 3), floats(4, 1)]),
        Sample("ij->ji", [floats(2, 3).half()]),
    ],
    "aten.bmm.default": [Sample(floats(2, 3, 4), floats(2, 4, 5))],
    "aten.matmul.default": [
        Sample(A, B),
        Sample(floats(4), B),
        Sample(A, floats(4)),
        Sample(floats(4), floats(4, seed=2)),
        Sample(floats(2, 3, 4), B),
        Sample(floats(2, 1, 3, 4), floats(5, 4, 2)),
        Sample(floats(2, 3, 4), floats(4)),
        Sample(floats(4), floats(2, 4, 3)),
        Sample(A.double(), B.double()),
    ],
    "aten.mv.default": [Sample(A, floats(4))],
    "aten._grouped_mm.default": [
        Sample(halves(8, 16), halves(3, 8, 16).mT, ends(2, 2, 8), names=False),
        Sample(halves(2, 16), halves(3, 8, 16).mT, ends(0, 1, 2), names=False),
        Sample(halves(3, 8, 16), halves(8, 16).mT, ends(2, 2, 8), names=False),
        Sample(halves(8, 16), halves(8, 16).mT, ends(4, 4, 16), names=False),
        Sample(halves(3, 8, 16), halves(3, 8, 16).mT, names=False),
    ],
    "aten.dot.default": [Sample(floats(4), floats(4, seed=2))],
}
