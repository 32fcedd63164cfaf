"""One graph for a whole picture: expressions around the network, 8-bit pixels in, 8-bit pixels out.

rgb --+-- luma ---- network --+-- merged -- rgb, three times as wide and high
      '-- chroma -------------'
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np

from .. import memory
from ..builder import MLGraphBuilder
from ..context import MLContext
from . import expressions
from .colours import FROM_YCBCR, TO_YCBCR, Pixels, bicubic, merge, split
from .network import FACTOR, Network, bicubic_taps

TILE = 512  # side of the largest piece that is enlarged at once, which takes about 100 MB


class Enlarger:
    """The graph that enlarges pictures of `height` by `width` pixels.

    A picture of more than about `tile` by `tile` pixels is enlarged in windows of equal size, to bound the memory. Windows
    overlap, so that their edges, where pixels outside of them are missing, are not needed: there are no seams.

    Attributes:
        graph: enlarges one window, whose height and width are `shape`.
        windows: how many times the graph runs for one picture.
    """

    def __init__(self, context: MLContext, height: int, width: int, *, tile: int = TILE) -> None:
        network = Network.load()
        self._context, self._size, self._margin = context, (height, width), network.halo
        self.shape = min(height, tile + 2 * network.halo), min(width, tile + 2 * network.halo)
        rows, columns = (starts(*sizes, network.halo) for sizes in zip(self._size, self.shape, strict=True))
        self._corners = list(product(rows, columns))
        self.windows = len(self._corners)

        builder = MLGraphBuilder(context)
        to_ycbcr, from_ycbcr = builder.constant(TO_YCBCR), builder.constant(FROM_YCBCR)
        rgb = builder.input("small", "uint8", [*self.shape, 3])
        sharp = network.build(builder, expressions.luma(rgb, to_ycbcr, margin=network.halo))
        smooth = expressions.chroma(rgb, to_ycbcr, builder.constant(bicubic_taps()))
        self.graph = builder.build({"large": expressions.merged(sharp, smooth, from_ycbcr)})

    @property
    def expressions(self) -> str:
        """The engine for the expressions on a CPU: a compiler, or NumPy."""
        return next(p.detail.removeprefix("expression, ") for p in self.graph.placements() if p.how == "expression")

    def __call__(self, rgb: Pixels, done: Callable[[int], object] = lambda windows: None) -> Pixels:
        """Enlarge a picture, uint8 [height, width, 3]; `done` is called with the number of finished windows."""
        (height, width), (down, across) = self._size, self.shape
        large = np.empty((FACTOR * height, FACTOR * width, 3), np.uint8)
        for number, (top, left) in enumerate(self._corners, start=1):
            result = self.enlarge(rgb[top : top + down, left : left + across])
            done(number)
            if self.windows == 1:
                return result
            # The next windows overwrite the margins at the right and at the bottom.
            above, before = (FACTOR * self._margin if start else 0 for start in (top, left))
            target = large[FACTOR * top : FACTOR * (top + down), FACTOR * left : FACTOR * (left + across)]
            memory.copy(target[above:, before:], result[above:, before:], "place a window")
        return large

    def enlarge(self, window: Pixels) -> Pixels:
        """Enlarge one window."""
        large: Pixels = self._context.compute(self.graph, {"small": window})["large"]
        return large


def starts(size: int, window: int, margin: int) -> list[int]:
    """The first pixel of each window along one axis; neighbours overlap by two margins at least."""
    return [*range(0, size - window, window - 2 * margin), size - window]


def around_network(context: MLContext, height: int, width: int) -> Callable[[Pixels], Pixels]:
    """The same for pictures of one window, with NumPy and Pillow around a graph of the network alone."""
    network = Network.load()
    builder = MLGraphBuilder(context)
    shape = [1, 1, height + 2 * network.halo, width + 2 * network.halo]
    graph = builder.build({"blocks": network.build(builder, builder.input("luma", "float32", shape))})

    def enlarge(rgb: Pixels) -> Pixels:
        luma, *chroma = split(rgb)
        padded = np.pad(luma, network.halo, "edge")
        blocks = context.compute(graph, {"luma": padded[None, None]})["blocks"]
        # Pixel shuffle: the channels become the rows and columns of each pixel's block.
        rows = blocks.reshape(FACTOR, FACTOR, height, width).transpose(2, 0, 3, 1)
        cb, cr = (bicubic(plane, FACTOR * width, FACTOR * height) for plane in chroma)
        return merge(rows.reshape(FACTOR * height, FACTOR * width), cb, cr)

    return enlarge
