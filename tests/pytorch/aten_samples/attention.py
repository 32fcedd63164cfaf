"""Sample calls of attention."""

from __future__ import annotations

import torch

from . import Sample, bools, floats

Q, K, V = floats(2, 4, 5, 8), floats(2, 4, 6, 8), floats(2, 4, 6, 3)

SAMPLES = {
    "aten.scaled_dot_product_attention.default": [
        Sample(Q, K, V),
        Sample(Q, K, V, floats(5, 6)),
        Sample(Q, K, V, floats(2, 1, 5, 6)),
        Sample(Q, K, V, bools(5, 6) | torch.eye(5, 6).bool()),
        Sample(Q, K, V, bools(2, 4, 5, 6)),
        Sample(Q, K, V, None, 0.0, True, names=False),
        Sample(Q, K, V, scale=0.3),
        Sample(Q, K[:, :2].contiguous(), V[:, :2].contiguous(), enable_gqa=True),
        Sample(floats(3, 5, 8), floats(3, 6, 8), floats(3, 6, 8)),
        Sample(floats(5, 8), floats(6, 8), floats(6, 8), is_causal=True, names=False),
        Sample(floats(2, 2, 3, 5, 8), floats(2, 2, 3, 6, 8), floats(2, 2, 3, 6, 8), names=False),
        Sample(Q.half(), K.half(), V.half()),
    ],
}
