"""How long one graph with everything in it takes, and the same with NumPy around the network alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from ..context import MLContext
from .colours import Pixels
from .enlarger import AroundNetwork, Enlarger

SECONDS = 1.5
"""About how long all runs take together, on top of a few that there are in any case."""


@dataclass(frozen=True)
class Timing:
    """What was measured; all times are medians in seconds.

    Attributes:
        woven: of the graph that holds everything.
        around: of the network's graph, with NumPy and Pillow around it.
        steps: of the parts of the woven graph, in the order in which they run.
        rounds: how many runs of each were measured, in turns.
        part: whether it is a part of the picture, because the whole does not fit into one window.
    """

    woven: float
    around: float
    steps: dict[str, float]
    rounds: int
    part: bool

    def __str__(self) -> str:
        ways = f"in one graph {_milliseconds(self.woven)}, with NumPy around the network {_milliseconds(self.around)}"
        return f"{ways} ({self.around / self.woven:.2f}x)" + (", of one window" if self.part else "")


def compare(context: MLContext, enlarger: Enlarger, rgb: Pixels) -> Timing:
    """Enlarge a picture, or what of it fits into one window, both ways in turns.

    Args:
        context: where the graph of the network alone shall run.
        enlarger: the woven graph.
        rgb: uint8 [height, width, 3], the picture of `enlarger`.
    """
    height, width = enlarger.window
    window = rgb[:height, :width].copy()
    ways = (enlarger.enlarge, AroundNetwork(context, height, width))
    for _ in range(2):  # the first run is slower
        once = sum(_seconds(way, window) for way in ways)
    rounds = max(3, min(15, int(SECONDS / 2 / once)))
    woven, around = zip(*([_seconds(way, window) for way in ways] for _ in range(rounds)), strict=True)
    profile = enlarger.graph.profile({"small": window}, repeat=rounds)
    steps = {s.title if s.how.startswith("expression") else "network": s.median for s in profile.steps}
    return Timing(median(woven), median(around), steps, rounds, enlarger.windows > 1)


def _seconds(enlarge: Callable[[Pixels], Pixels], rgb: Pixels) -> float:
    start = time.perf_counter()
    enlarge(rgb)
    return time.perf_counter() - start


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.1f} ms"
