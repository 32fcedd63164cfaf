"""Custom operations around the network, as expressions: formulas of one element of the result.

An expression is traced when it is called in a graph, and compiled. `height` and `width` are the size of the small picture.
Each small pixel becomes a block of rows `i` and columns `j`.
"""

from __future__ import annotations

from collections.abc import Callable

from ..expr import Traced, cast, clamp, compute, round_even, store, sum_over, where
from ..lazy.custom_call import expression
from .network import FACTOR


@expression
def luma(rgb: Traced, to_ycbcr: Traced, *, margin: int = 0) -> Traced:
    """Compute the luma of uint8 [height, width, 3] in [0, 1], with a margin that repeats the edges: float32 [1, 1, ...]."""
    height, width, _ = rgb.shape
    colour = cast(rgb, "float32") / 255
    return compute(
        (1, 1, height + 2 * margin, width + 2 * margin),
        lambda n, c, y, x: sum_over(3, lambda k: to_ycbcr[0, k] * colour.clamped[y - margin, x - margin, k]),
    )


@expression
def chroma(rgb: Traced, to_ycbcr: Traced, taps: Traced) -> Traced:
    """Compute blue and red difference of uint8 [height, width, 3], enlarged by `taps`: float32 [2, 3, 3, height, width]."""
    height, width, _ = rgb.shape
    colour = cast(rgb, "float32") / 255
    small = store(
        compute((2, height, width), lambda c, y, x: sum_over(3, lambda k: to_ycbcr[c + 1, k] * colour[y, x, k]))
    )
    tall = store(
        compute(
            (2, FACTOR, height, width),
            lambda c, i, y, x: _filter(lambda near: small.clamped[c, near, x], y, height, taps, i),
        )
    )
    return compute(
        (2, FACTOR, FACTOR, height, width),
        lambda c, i, j, y, x: _filter(lambda near: tall.clamped[c, i, y, near], x, width, taps, j),
    )


def _filter(pixel: Callable[[Traced], Traced], position: Traced, size: int, taps: Traced, line: Traced) -> Traced:
    """Compute the weighted mean of the five pixels nearest to a position; pixels outside of the picture have no weight."""

    def weight(tap: Traced) -> Traced:
        near = position + tap - 2
        return where((near >= 0) & (near < size), taps[line, tap], 0)

    return sum_over(5, lambda tap: weight(tap) * pixel(position + tap - 2)) / sum_over(5, weight)


@expression
def merged(luma: Traced, chroma: Traced, from_ycbcr: Traced) -> Traced:
    """Merge luma and chroma into the large picture, uint8 [3 * height, 3 * width, 3].

    `luma` are blocks from the network, float32 [1, 9, height, width]; `chroma` is float32 [2, 3, 3, height, width].
    """
    _, _, height, width = luma.shape

    def level(row: Traced, column: Traced, k: Traced) -> Traced:
        # The small pixel, and the position in its block.
        y, x = row // FACTOR, column // FACTOR
        i, j = row % FACTOR, column % FACTOR
        ycbcr = luma[0, FACTOR * i + j, y, x], chroma[0, i, j, y, x], chroma[1, i, j, y, x]
        value = sum(from_ycbcr[k, c] * part for c, part in enumerate(ycbcr))
        return cast(clamp(round_even(255 * value), 0, 255), "uint8")

    return compute((FACTOR * height, FACTOR * width, 3), level)
