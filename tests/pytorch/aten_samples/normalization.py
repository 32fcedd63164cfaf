"""Sample calls of normalisations."""

from __future__ import annotations

from . import Sample, floats

X, W = floats(2, 3, 4), floats(4)

SAMPLES = {
    "aten.layer_norm.default": [
        Sample(X, [4], W, floats(4, seed=1)),
        Sample(X, [4]),
        Sample(X, [3, 4], floats(3, 4), None, 1e-3),
        Sample(X.half(), [4], W.half(), W.half()),
    ],
    "aten.native_layer_norm.default": [Sample(X, [4], W, None, 1e-5), Sample(X, [2, 3, 4], None, None, 1e-5)],
    "aten.rms_norm.default": [
        Sample(X, [4], W),
        Sample(X, [4]),
        Sample(X, [3, 4], floats(3, 4), 1e-3),
        Sample(X.half(), [4]),
    ],
    "aten._fused_rms_norm.default": [Sample(X, [4], W, 1e-6)],
}
