"""How long one graph of everything takes, and the same with NumPy around the network."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from ..context import MLContext
from .colours import Pixels
from .enlarger import AroundNetwork, Enlarger

SECONDS = 1.5  # about how long all measured runs take together


@dataclass(frozen=True)
class Timing:
    """Median seconds of one graph, of NumPy around the network, and of the graph's steps; `part`: of one window of several."""

    woven: float
    around: float
    steps: dict[str, float]
    rounds: int
    part: bool

    def __str__(self) -> str:
        woven, around = (f"{1000 * seconds:,.1f} ms" for seconds in (self.woven, self.around))
        ways = f"in one graph {woven}, with NumPy around the network {around} ({self.around / self.woven:.2f}x)"
        return ways + ", of one window" * self.part


def compare(context: MLContext, enlarger: Enlarger, rgb: Pixels) -> Timing:
    """Enlarge a picture, or what of it fits into one window, both ways in turns."""
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
