"""The network: a chain of convolutions on the small picture, and a pixel shuffle at its end.

    luma [1, 1, h + 2 * halo, w + 2 * halo]
      |-- conv 5x5, leaky relu -- conv 3x3, leaky relu -- ... -- conv 3x3 --.
      '-- bicubic filter: a fixed conv 5x5 --------------------------------(+)-- [1, 9, h, w] -- pixel shuffle
                                                                                  [1, 1, 3 * h, 3 * w]

Everything is computed at the small size: the nine channels of the last convolution are the nine pixels that
each small pixel becomes. Bicubic enlargement by three is itself a convolution with nine output channels, so
the trained chain only adds the detail that bicubic lacks. No convolution pads: the caller gives `halo` more
pixels on each side, so that a tile of a large picture gets exactly what the whole picture would.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from .. import memory
from ..builder import MLGraphBuilder
from ..context import MLContext
from ..graph import MLOperand
from .colours import Plane

FACTOR = 3
SLOPE = 0.1  # of the leaky relu, for negative values
TILE = 512  # side of the largest piece that goes through the network at once: some 80 MB of intermediates
WEIGHTS = Path(__file__).with_name("super_resolution.safetensors")


def bicubic_filter() -> NDArray[np.float32]:
    """The convolution that enlarges by three as the bicubic filter (Keys' cubic, a = -0.5) does.

    Returns:
        float32 [9, 1, 5, 5]: output channel 3 * i + j makes row i, column j of the block of each small pixel.
    """

    def cubic(x: float) -> float:
        x = abs(x)
        return 1.5 * x**3 - 2.5 * x**2 + 1 if x < 1 else -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2 if x < 2 else 0.0

    # The centres of a small pixel's three sub-pixels lie -1/3, 0 and 1/3 from its own.
    taps = np.array([[cubic(tap - offset / FACTOR) for tap in range(-2, 3)] for offset in (-1, 0, 1)])
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
        """How many more pixels the input has on each side: those that the outermost result depends on."""
        return sum(weight.shape[-1] // 2 for weight, _ in self.layers)

    def build(self, builder: MLGraphBuilder, luma: MLOperand) -> MLOperand:
        """Add the network to a graph.

        Args:
            builder: of the graph.
            luma: float32 [1, 1, height + 2 * halo, width + 2 * halo], in [0, 1].

        Returns:
            float32 [1, 1, 3 * height, 3 * width]; may lie a little outside [0, 1].
        """
        detail = luma
        for index, (weight, bias) in enumerate(self.layers):
            label = f"detail {index}"
            detail = builder.conv2d(detail, builder.constant(weight), bias=builder.constant(bias), label=label)
            if index < len(self.layers) - 1:
                detail = builder.leaky_relu(detail, alpha=SLOPE)

        _, _, height, width = detail.shape
        edge = self.halo - 2  # the bicubic filter reaches 2 pixels far
        centre = builder.slice(luma, [0, 0, edge, edge], [1, 1, height + 4, width + 4])
        smooth = builder.conv2d(centre, builder.constant(bicubic_filter()), label="bicubic")

        # Pixel shuffle: the channels become the rows and columns of each pixel's block.
        blocks = builder.reshape(builder.add(smooth, detail), [FACTOR, FACTOR, height, width])
        rows = builder.transpose(blocks, permutation=[2, 0, 3, 1])
        return builder.reshape(rows, [1, 1, FACTOR * height, FACTOR * width])


class Enlarger:
    """The network, built for pictures of one size.

    A picture of up to TILE x TILE pixels goes through whole. A larger one goes through in tiles of equal size, one
    graph for all; those at the right and lower edges begin earlier instead of being smaller. Since a tile carries
    its halo, the seams are exact, and memory does not grow with the picture.
    """

    def __init__(self, context: MLContext, height: int, width: int, *, tile: int = TILE) -> None:
        """Build the graph.

        Args:
            context: where it shall run.
            height: of the small pictures, at least 1.
            width: of the small pictures, at least 1.
            tile: side of the largest tile.
        """
        network = Network.load()
        self.height, self.width, self.halo = height, width, network.halo
        self.tile_height, self.tile_width = min(height, tile), min(width, tile)
        self._context = context
        builder = MLGraphBuilder(context)
        shape = [1, 1, self.tile_height + 2 * self.halo, self.tile_width + 2 * self.halo]
        self.graph = builder.build({"large": network.build(builder, builder.input("small", "float32", shape))})

    @property
    def tiles(self) -> int:
        """How many times the graph runs for one picture."""
        return -(-self.height // self.tile_height) * -(-self.width // self.tile_width)

    def __call__(self, luma: Plane, done: Callable[[int], object] = lambda tiles: None) -> Plane:
        """Enlarge one picture.

        Args:
            luma: float32 [height, width], in [0, 1].
            done: called after each tile with the number of those that are finished.

        Returns:
            float32 [3 * height, 3 * width].
        """
        h, w = self.tile_height, self.tile_width
        # Beyond its edges a picture goes on with the colour of its edge.
        padded = np.pad(luma, self.halo, "edge")
        large = np.empty((FACTOR * self.height, FACTOR * self.width), np.float32)
        corners = product(range(0, self.height, h), range(0, self.width, w))
        for number, (top, left) in enumerate(corners, start=1):
            y, x = min(top, self.height - h), min(left, self.width - w)
            piece = padded[None, None, y : y + h + 2 * self.halo, x : x + w + 2 * self.halo]
            result: Plane = self._context.compute(self.graph, {"small": piece})["large"][0, 0]
            done(number)
            if self.tiles == 1:
                return result  # the whole picture, and nothing has been copied
            memory.copy(large[FACTOR * y : FACTOR * (y + h), FACTOR * x : FACTOR * (x + w)], result, "place a tile")
        return large
