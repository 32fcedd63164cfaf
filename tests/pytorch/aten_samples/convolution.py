"""Sample calls of convolutions."""

from __future__ import annotations

from . import Sample, floats

X, W = floats(2, 4, 6, 7), floats(6, 4, 3, 3)

SAMPLES = {
    "aten.conv2d.default": [
        Sample(X, W, floats(6)),
        Sample(X, W, None, [2, 2], [1, 1]),
        Sample(X, floats(4, 1, 3, 3), None, [1, 1], [1, 1], [1, 1], 4),
    ],
    "aten.convolution.default": [Sample(X, W, None, [1, 1], [1, 1], [2, 2], False, [0, 0], 1)],
}
