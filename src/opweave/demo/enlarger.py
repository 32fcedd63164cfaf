"""Enlarge pictures with one graph: the network between expressions that convert 8-bit pixels.

rgb --+-- luma ---- network --+-- merged -- rgb, three times as wide and high
      '-- chroma -------------'
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np

from .. import memory
from ..context.builder import MLGraphBuilder
from ..context.context import MLContext
from . import expressions
from .colours import FROM_YCBCR, TO_YCBCR, Pixels, bicubic, merge, split
from .network import FACTOR, Network, bicubic_taps

TILE = 512
"""Default side of a window without its margins, in pixels; enlarging a window takes about 100 MB."""


class Enlarger:
    """Graph that enlarges pictures of `height` by `width` pixels.

    To bound the memory, a picture larger than about `tile` by `tile` pixels is enlarged in `windows` of equal size. Results in
    the margin of a window depend on pixels outside of the window, so windows overlap by two margins. Each pixel is taken from
    a window that has it outside of the margin (except at the edge of the picture), so no seams are visible.
    """

    def __init__(self, context: MLContext, height: int, width: int, *, tile: int = TILE) -> None:
        network = Network.load()
        margin = network.halo
        self._context, self._size, self._margin = context, (height, width), margin
        self.shape = min(height, tile + 2 * margin), min(width, tile + 2 * margin)
        self._corners = list(product(starts(height, self.shape[0], margin), starts(width, self.shape[1], margin)))
        self.windows = len(self._corners)

        builder = MLGraphBuilder(context)
        to_ycbcr, from_ycbcr = builder.constant(TO_YCBCR), builder.constant(FROM_YCBCR)
        rgb = builder.input("small", "uint8", [*self.shape, 3])
        sharp = network.build(builder, expressions.luma(rgb, to_ycbcr, margin=margin))
        smooth = expressions.chroma(rgb, to_ycbcr, builder.constant(bicubic_taps()))
        self.graph = builder.build({"large": expressions.merged(sharp, smooth, from_ycbcr)})

    @property
    def expression_engine(self) -> str:
        """Engine that runs the expressions on a CPU: a compiler, or NumPy."""
        return next(p.detail for p in self.graph.placements() if p.how == "expression")

    def __call__(self, rgb: Pixels, done: Callable[[int], object] = lambda windows: None) -> Pixels:
        """Enlarge a picture, uint8 [height, width, 3]; `done` is called with the number of finished windows."""
        (height, width), (window_height, window_width) = self._size, self.shape
        large = np.empty((FACTOR * height, FACTOR * width, 3), np.uint8)
        for number, (top, left) in enumerate(self._corners, start=1):
            bottom, right = top + window_height, left + window_width
            result = self.enlarge(rgb[top:bottom, left:right])
            done(number)
            if self.windows == 1:
                return result
            # Leave out the margins at the top and left, except at the edge of the picture. Later windows overwrite the margins
            # at the bottom and right.
            skip_y, skip_x = (FACTOR * self._margin if start else 0 for start in (top, left))
            target = large[FACTOR * top : FACTOR * bottom, FACTOR * left : FACTOR * right]
            memory.copy(target[skip_y:, skip_x:], result[skip_y:, skip_x:], "place a window")
        return large

    def enlarge(self, window: Pixels) -> Pixels:
        """Enlarge one window."""
        large: Pixels = self._context.compute(self.graph, {"small": window})["large"]
        return large


def starts(size: int, window: int, margin: int) -> list[int]:
    """Return the first pixel of each window along one axis; neighbouring windows overlap by at least two margins."""
    return [*range(0, size - window, window - 2 * margin), size - window]


def enlarger_with_numpy(context: MLContext, height: int, width: int) -> Callable[[Pixels], Pixels]:
    """Return a function that enlarges a picture like `Enlarger`, with NumPy and Pillow for the colours, for comparison."""
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
