"""The whole way of a picture as one graph: expressions around the network, 8-bit pixels in, 8-bit pixels out.

    rgb --+-- luma ---- network --+-- merged -- rgb, three times as wide and high
          '-- chroma -------------'

`AroundNetwork` takes the same way with NumPy and Pillow around a graph of the network alone, to compare with.
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
    """The graph that enlarges pictures of one size.

    A picture of up to about TILE x TILE pixels is enlarged whole. A larger one is enlarged in windows of equal size, one
    graph for all. They overlap so far that what is taken of each depends on nothing outside of it: there are no seams, and
    memory does not grow with the picture.
    """

    def __init__(self, context: MLContext, height: int, width: int, *, tile: int = TILE) -> None:
        """Build the graph.

        Args:
            context: where it shall run.
            height: of the small pictures, at least 1.
            width: of the small pictures, at least 1.
            tile: side of the largest part that is taken of one window.
        """
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
    def devices(self) -> tuple[str, ...]:
        """What the graph runs on."""
        return self.graph.devices

    @property
    def expressions(self) -> str:
        """What runs the expressions: a compiler's code, or NumPy."""
        return next(p.detail.removeprefix("expression, ") for p in self.graph.placements() if p.how == "expression")

    @property
    def windows(self) -> int:
        """How many times the graph runs for one picture."""
        rows, columns = (
            sum(1 for _ in spans(*sizes, self._margin)) for sizes in zip(self._size, self.window, strict=True)
        )
        return rows * columns

    def __call__(self, rgb: Pixels, done: Callable[[int], object] = lambda windows: None) -> Pixels:
        """Enlarge one picture.

        Args:
            rgb: uint8 [height, width, 3].
            done: called after each window with the number of those that are finished.

        Returns:
            uint8 [3 * height, 3 * width, 3].
        """
        (height, width), (down, across) = self._size, self.window
        large = np.empty((FACTOR * height, FACTOR * width, 3), np.uint8)
        corners = product(spans(height, down, self._margin), spans(width, across, self._margin))
        for number, ((top, rows), (left, columns)) in enumerate(corners, start=1):
            result = self.enlarge(rgb[top : top + down, left : left + across])
            done(number)
            if self.window == self._size:
                return result  # the whole picture, and nothing has been copied
            taken = result[_enlarged(rows, top), _enlarged(columns, left)]
            memory.copy(large[_enlarged(rows), _enlarged(columns)], taken, "place a window")
        return large

    def enlarge(self, window: Pixels) -> Pixels:
        """Enlarge one window: a uint8 array [window height, window width, 3]."""
        large: Pixels = self._context.compute(self.graph, {"small": window})["large"]
        return large


def spans(size: int, window: int, margin: int) -> Iterator[tuple[int, range]]:
    """Where windows begin along one axis, and which pixels of the picture are taken of each."""
    step = size if window == size else window - 2 * margin
    for first in range(0, size, step):
        yield min(max(first - margin, 0), size - window), range(first, min(first + step, size))


def _enlarged(pixels: range, start: int = 0) -> slice:
    """The place of pixels in what is made of a picture that begins at `start`."""
    return slice(FACTOR * (pixels.start - start), FACTOR * (pixels.stop - start))


class AroundNetwork:
    """What `Enlarger` does, with NumPy and Pillow around a graph of the network alone; of one window."""

    def __init__(self, context: MLContext, height: int, width: int) -> None:
        """Build the graph.

        Args:
            context: where it shall run.
            height: of the small pictures.
            width: of the small pictures.
        """
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
        """Enlarge one picture.

        Args:
            rgb: uint8 [height, width, 3].

        Returns:
            uint8 [3 * height, 3 * width, 3].
        """
        luma, *chroma = split(rgb)
        padded = np.pad(luma, self._margin, "edge")
        large = self._context.compute(self.graph, {"small": padded[None, None]})["large"]
        height, width = large.shape
        cb, cr = (bicubic(plane, width, height) for plane in chroma)
        return merge(large, cb, cr)
