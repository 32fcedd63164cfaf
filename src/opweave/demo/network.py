"""The network: a chain of convolutions on the small picture.

    luma [1, 1, h + 2 * halo, w + 2 * halo]
      |-- conv 5x5, leaky relu -- conv 3x3, leaky relu -- ... -- conv 3x3 --.
      '-- bicubic filter: a fixed conv 5x5 --------------------------------(+)-- blocks [1, 9, h, w]

Everything is computed at the small size: the nine channels of the last convolution are the nine pixels that each small
pixel becomes. Bicubic enlargement is a convolution with nine output channels, too, so the trained chain only adds the detail
that bicubic lacks. No convolution pads: the caller gives `halo` more pixels on each side.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from ..builder import MLGraphBuilder
from ..graph import MLOperand

FACTOR = 3
SLOPE = 0.1  # of the leaky relu, for negative values
WEIGHTS = Path(__file__).with_name("super_resolution.safetensors")


def bicubic_taps() -> NDArray[np.float32]:
    """The bicubic filter (Keys' cubic, a = -0.5) along one axis.

    Returns:
        float32 [3, 5]: the weights of the five nearest small pixels, for each of the three lines that one pixel becomes.
    """

    def cubic(x: float) -> float:
        x = abs(x)
        return 1.5 * x**3 - 2.5 * x**2 + 1 if x < 1 else -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2 if x < 2 else 0.0

    # The centres of a small pixel's three sub-pixels lie -1/3, 0 and 1/3 from its own.
    return np.array([[cubic(tap - line / FACTOR) for tap in range(-2, 3)] for line in (-1, 0, 1)], np.float32)


def bicubic_filter() -> NDArray[np.float32]:
    """The same as a filter of conv2d: float32 [9, 1, 5, 5]; output channel 3 * i + j is row i, column j of a block."""
    taps = bicubic_taps().astype(np.float64)
    blocks = taps[:, None, :, None] * taps[None, :, None, :]
    return np.asarray(blocks.reshape(FACTOR**2, 1, 5, 5), np.float32)


@dataclass(frozen=True)
class Network:
    """The trained weights.

    Attributes:
        layers: weight, float32 [outputs, inputs, k, k], and bias, float32 [outputs], of each convolution.
        metadata: how they were made: architecture, training, held-out photographs, PSNR, versions.
    """

    layers: tuple[tuple[NDArray[np.float32], NDArray[np.float32]], ...]
    metadata: dict[str, str]

    @classmethod
    def load(cls, path: Path = WEIGHTS) -> Network:
        """Read the weights from a safetensors file as `tools/train_super_resolution.py` writes it."""
        with safe_open(path, framework="numpy") as file:
            count = len(file.keys()) // 2
            layers = [(file.get_tensor(f"{i}.weight"), file.get_tensor(f"{i}.bias")) for i in range(count)]
            return cls(tuple(layers), file.metadata())

    @property
    def halo(self) -> int:
        """How many pixels around its own place a result depends on."""
        return sum(weight.shape[-1] // 2 for weight, _ in self.layers)

    def build(self, builder: MLGraphBuilder, luma: MLOperand) -> MLOperand:
        """Add the network to a graph; shapes are those of the drawing above, results may lie a little outside [0, 1]."""
        detail = luma
        for index, (weight, bias) in enumerate(self.layers):
            if index:
                detail = builder.leaky_relu(detail, alpha=SLOPE)
            label = f"detail {index}"
            detail = builder.conv2d(detail, builder.constant(weight), bias=builder.constant(bias), label=label)
        _, _, height, width = detail.shape
        edge = self.halo - 2  # the bicubic filter reaches 2 pixels far
        centre = builder.slice(luma, [0, 0, edge, edge], [1, 1, height + 4, width + 4])
        smooth = builder.conv2d(centre, builder.constant(bicubic_filter()), label="bicubic")
        return builder.add(smooth, detail)
