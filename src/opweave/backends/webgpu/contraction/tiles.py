"""Which tile serves which problem: a table of what was measured, and a formula of how long each choice would take.

Tiles of many sums for an invocation load least from shared memory, and are best where there is enough work. Small tiles
occupy all of a device where there is little; where even these are few, the terms of a sum are divided among workgroups.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from ....expr.wgsl import Features
from .problem import Problem
from .tiled import Steps, Tile, workgroups

PEAK = 128 * 1755
"""Products in a microsecond of each."""
START, ADDITION, MOVED = 2.7, 2.7, 1.5e6
"""Microseconds of a kernel that does nothing, of another one after it, and parts of sums moved in a microsecond."""
OVERHEAD = 4
"""Terms that take as long as what surrounds them in a step."""
DEPTHS = (16, 20, 12, 8)
"""Terms of a step; the first unless others leave out more than a 25th of what is computed in vain."""
SPLITS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)
MOST_PARTIAL = 1 << 26
"""Bytes that parts of sums may take."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A shape of tiles, and how fast it was.

    Attributes:
        rows: of a tile.
        columns: of a tile.
        height: rows for an invocation.
        width: columns for an invocation.
        rate: the part of the peak that a processor full of workgroups reaches.
        latency: microseconds of a step of a workgroup that is alone, apart from its depth.
        deepening: microseconds more for 16 terms in a step.
    """

    rows: int
    columns: int
    height: int
    width: int
    rate: float
    latency: float
    deepening: float


# Fitted to 661 timings on an NVIDIA H200, of the convolutions of ResNet-50 and other products. The formula was off by a
# tenth on the average, and its choices took 2% longer than the best ones.
SHAPES = (
    Shape(32, 32, 4, 4, 0.51, 0.21, 0.21),
    Shape(32, 64, 4, 4, 0.55, 0.24, 0.24),
    Shape(64, 32, 4, 4, 0.56, 0.23, 0.23),
    Shape(64, 64, 4, 4, 0.62, 0.47, 0.22),
    Shape(64, 64, 8, 4, 0.68, 0.27, 0.36),
    Shape(64, 128, 8, 8, 0.74, 0.15, 0.52),
    Shape(128, 64, 8, 8, 0.73, 0.27, 0.5),
    Shape(128, 128, 8, 8, 0.82, 0.23, 0.49),
)


def microseconds(problem: Problem, shape: Shape, depth: int, splits: int, units: int) -> float:
    """How long a problem takes, roughly, on a device that computes so many workgroups at once."""
    groups = ceil(problem.rows / shape.rows) * ceil(problem.columns / shape.columns) * problem.stacks * splits
    steps = ceil(Steps.of(problem, depth).count / splits)
    step = shape.rows * shape.columns * (depth + OVERHEAD) / PEAK / shape.rate
    alone = shape.latency + shape.deepening * depth / 16
    total = START + steps * max(alone, ceil(groups / units) * step)
    if splits > 1:
        total += ADDITION + (splits + 1) * problem.stacks * problem.rows * problem.columns / MOVED
    return total


def choose(problem: Problem, features: Features) -> tuple[Tile, int] | None:
    """The tile, and among how many workgroups its steps are divided; None if a device can run none of them."""
    options = list(_options(problem, features))
    if not options:
        return None
    times = [microseconds(problem, shape, depth, splits, features.units) for shape, depth, splits in options]
    shape, depth, splits = options[times.index(min(times))]
    return _tile(shape, depth), splits


def _options(problem: Problem, features: Features) -> Iterator[tuple[Shape, int, int]]:
    most = features.max_workgroups
    depths = list(_depths(problem))
    for shape in SHAPES[:1] if features.is_software else SHAPES:
        for depth in depths:
            tile = _tile(shape, depth)
            if tile.invocations > features.max_invocations or tile.shared > features.max_shared:
                continue
            steps = Steps.of(problem, depth).count
            for splits in (1,) if features.is_software else SPLITS:
                bytes = 4 * splits * problem.stacks * problem.rows * problem.columns
                if splits > 1 and (steps < 2 * splits or bytes > MOST_PARTIAL):
                    break
                if max(workgroups(problem, tile, splits)) <= most:
                    yield shape, depth, splits


def _depths(problem: Problem) -> Iterator[int]:
    usual, *others = DEPTHS
    terms = usual * Steps.of(problem, usual).count
    yield usual
    for depth in others:
        if depth * Steps.of(problem, depth).count * 25 <= terms * 24:
            yield depth


def _tile(shape: Shape, depth: int) -> Tile:
    return Tile(shape.rows, shape.columns, depth, shape.height, shape.width)
