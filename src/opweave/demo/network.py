"""The network: a chain of convolutions on the small picture.

    luma [1, 1, h + 2 * halo, w + 2 * halo]
      |-- conv 5x5, leaky relu -- conv 3x3, leaky relu -- ... -- conv 3x3 --.
      '-- bicubic filter: a fixed conv 5x5 --------------------------------(+)-- blocks [1, 9, h, w]

Each small pixel becomes a block of 3x3 pixels, the nine channels of the result. Bicubic enlargement is a convolution, too, so
the trained chain only adds the missing detail. No convolution pads: the caller adds `halo` pixels on each side.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from ..context.builder import MLGraphBuilder
from ..core.graph import MLOperand
from .colours import bicubic

FACTOR = 3
SLOPE = 0.1
"""Slope of the leaky relu for negative values."""
WEIGHTS = Path(__file__).with_name("super_resolution.safetensors")


def bicubic_taps() -> NDArray[np.float32]:
    """Return the bicubic filter along one axis, float32 [3, 5]: weights of the five nearest pixels for three new pixels."""
    impulses = bicubic(np.eye(11, dtype=np.float32), 11, FACTOR * 11)
    # The weights for a pixel in the middle, where edges have no effect.
    return impulses[FACTOR * 5 : FACTOR * 6, 3:8]


def bicubic_filter() -> NDArray[np.float32]:
    """Return the bicubic filter for conv2d, float32 [9, 1, 5, 5]; output channel 3 * i + j is row i, column j of a block."""
    taps = bicubic_taps()
    return np.asarray(np.einsum("iy,jx->ijyx", taps, taps).reshape(FACTOR**2, 1, 5, 5))


@dataclass(frozen=True)
class Network:
    """The trained weights.

    Attributes:
        layers: for each convolution, its weight, float32 [outputs, inputs, k, k], and bias, float32 [outputs].
        metadata: the origin of the weights: architecture, training, held-out photographs, PSNR, versions.
    """

    layers: tuple[tuple[NDArray[np.float32], NDArray[np.float32]], ...]
    metadata: dict[str, str]

    @classmethod
    def load(cls, path: Path = WEIGHTS) -> Network:
        """Read the weights from a safetensors file of `tools/train_super_resolution.py`."""
        with safe_open(path, framework="numpy") as file:
            count = len(file.keys()) // 2
            layers = [(file.get_tensor(f"{i}.weight"), file.get_tensor(f"{i}.bias")) for i in range(count)]
            return cls(tuple(layers), file.metadata())

    @property
    def halo(self) -> int:
        """Number of pixels on each side that a result depends on: the radius of the receptive field."""
        return sum(weight.shape[-1] // 2 for weight, _ in self.layers)

    def build(self, builder: MLGraphBuilder, luma: MLOperand) -> MLOperand:
        """Add the network to a graph, with the shapes of the drawing above. Results may be slightly outside [0, 1]."""
        detail = luma
        for index, (weight, bias) in enumerate(self.layers):
            if index:
                detail = builder.leaky_relu(detail, alpha=SLOPE)
            label = f"detail {index}"
            detail = builder.conv2d(detail, builder.constant(weight), bias=builder.constant(bias), label=label)
        _, _, height, width = detail.shape
        # The bicubic filter has a radius of 2 pixels.
        edge = self.halo - 2
        centre = builder.slice(luma, [0, 0, edge, edge], [1, 1, height + 4, width + 4])
        smooth = builder.conv2d(centre, builder.constant(bicubic_filter()), label="bicubic")
        return builder.add(smooth, detail)
