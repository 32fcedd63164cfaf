"""One graph for a whole picture: expressions around the network, 8-bit pixels in, 8-bit pixels out.

rgb --+-- luma ---- network --+-- merged -- rgb, three times as wide and high
'-- chroma -------------'
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np

from .. import memory
from ..builder import MLGraphBuilder
from ..context import MLContext
from . import expressions
from .colours import FROM_YCBCR, TO_YCBCR, Pixels, bicubic, merge, split
from .network import FACTOR, Network, bicubic_taps

TILE = 512  # side of the largest piece that is enlarged at once: some 100 MB of intermediates


class Enlarger:
    """The graph that enlarges pictures of `height` by `width` pixels.

    A picture of more than about `tile` by `tile` pixels is enlarged in windows of equal size, so that memory does not grow
    with it. Windows overlap: what is kept of each depends on nothing outside of it, so there are no seams.
    """

    def __init__(self, context: MLContext, height: int, width: int, *, tile: int = TILE) -> None:
        network = Network.load()
        self._context, self._size, self._margin = context, (height, width), network.halo
        self.window = min(height, tile + 2 * network.halo), min(width, tile + 2 * network.halo)

        builder = MLGraphBuilder(context)
        to_ycbcr, from_ycbcr = builder.constant(TO_YCBCR), builder.constant(FROM_YCBCR)
        rgb = builder.input("small", "uint8", [*self.window, 3])
        sharp = network.build(builder, expressions.luma(rgb, to_ycbcr, margin=network.halo))
        smooth = expressions.chroma(rgb, to_ycbcr, builder.constant(bicubic_taps()))
        self.graph = builder.build({"large": expressions.merged(sharp, smooth, from_ycbcr)})

    @property
    def expressions(self) -> str:
        """What runs the expressions: a compiler's code, or NumPy."""
        return next(p.detail.removeprefix("expression, ") for p in self.graph.placements() if p.how == "expression")

    @property
    def windows(self) -> int:
        """How many times the graph runs for one picture."""
        return len(self._places())

    def _places(self) -> list[tuple[tuple[int, range], tuple[int, range]]]:
        rows, columns = (spans(*sizes, self._margin) for sizes in zip(self._size, self.window, strict=True))
        return list(product(rows, columns))

    def __call__(self, rgb: Pixels, done: Callable[[int], object] = lambda windows: None) -> Pixels:
        """Enlarge a picture, uint8 [height, width, 3]; `done` is called with the number of finished windows."""
        (height, width), (down, across) = self._size, self.window
        large = np.empty((FACTOR * height, FACTOR * width, 3), np.uint8)
        for number, ((top, rows), (left, columns)) in enumerate(self._places(), start=1):
            result = self.enlarge(rgb[top : top + down, left : left + across])
            done(number)
            if self.window == self._size:
                return result  # the whole picture, and nothing has been copied
            taken = result[_enlarged(rows, top), _enlarged(columns, left)]
            memory.copy(large[_enlarged(rows), _enlarged(columns)], taken, "place a window")
        return large

    def enlarge(self, window: Pixels) -> Pixels:
        """Enlarge one window."""
        large: Pixels = self._context.compute(self.graph, {"small": window})["large"]
        return large


def spans(size: int, window: int, margin: int) -> Iterator[tuple[int, range]]:
    """Where windows begin along one axis, and which pixels of the picture are taken of each."""
    step = size if window == size else window - 2 * margin
    for first in range(0, size, step):
        yield min(max(first - margin, 0), size - window), range(first, min(first + step, size))


def _enlarged(pixels: range, start: int = 0) -> slice:
    """The place of pixels in the enlargement of a picture that begins at `start`."""
    return slice(FACTOR * (pixels.start - start), FACTOR * (pixels.stop - start))


class AroundNetwork:
    """The same for one window, with NumPy and Pillow around a graph of the network alone."""

    def __init__(self, context: MLContext, height: int, width: int) -> None:
        network = Network.load()
        self._context, self._margin = context, network.halo
        builder = MLGraphBuilder(context)
        shape = [1, 1, height + 2 * network.halo, width + 2 * network.halo]
        blocks = network.build(builder, builder.input("small", "float32", shape))
        # Pixel shuffle: the channels become the rows and columns of each pixel's block.
        blocks = builder.reshape(blocks, [FACTOR, FACTOR, height, width])
        rows = builder.transpose(blocks, permutation=[2, 0, 3, 1])
        self.graph = builder.build({"large": builder.reshape(rows, [FACTOR * height, FACTOR * width])})

    def __call__(self, rgb: Pixels) -> Pixels:
        """Enlarge a picture, uint8 [height, width, 3]."""
        luma, *chroma = split(rgb)
        padded = np.pad(luma, self._margin, "edge")
        large = self._context.compute(self.graph, {"small": padded[None, None]})["large"]
        height, width = large.shape
        cb, cr = (bicubic(plane, width, height) for plane in chroma)
        return merge(large, cb, cr)
