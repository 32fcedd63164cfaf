"""Choose the tile for a problem, with a cost model fitted to measurements.

Large tiles need the fewest loads from workgroup memory per product, so they suit large problems. A small problem has too few
large tiles to occupy the device, so it gets small ones. If even small tiles are too few, split-K divides the terms of a sum
among workgroups.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from math import ceil

from ....core.sizes import is_static
from ....expr.gpu import Features
from ....support.cache import Cache
from .problem import Problem
from .tiled import Steps, Tile

# Measured on an NVIDIA H200 (`python -m benchmarks webgpu gpu`).
PEAK_PRODUCTS_PER_US = 128 * 1755
"""Products per microsecond of one multiprocessor: lanes times clock in MHz."""
LAUNCH_US = 2.7
"""Time of an empty kernel, in microseconds."""
ADDITION_US = 2.7
"""Time of the kernel that adds partial sums, without memory traffic, in microseconds."""
PARTIAL_SUMS_PER_US = 1.5e6
"""Partial sums written or read per microsecond."""
STEP_OVERHEAD_TERMS = 4
"""Overhead of a step: as much time as this number of terms."""
DEPTHS = (16, 20, 12, 8)
"""Terms of a step. The first is the default; another is tried if it pads less and so saves at least 1/25 of the work."""
SPLITS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)
MAX_PARTIAL_BYTES = 1 << 26
"""Maximum size of all partial sums."""


@dataclass(frozen=True, slots=True)
class TileShape:
    """The shape of a tile and its measured speed. An invocation computes `height` x `width` of the tile.

    Attributes:
        rate: fraction of the peak rate of a fully occupied multiprocessor.
        latency: fixed part of a step's time when a single workgroup runs, in microseconds.
        deepening: additional part per 16 terms of the step, in microseconds.
    """

    rows: int
    columns: int
    height: int
    width: int
    rate: float
    latency: float
    deepening: float

    def step_latency(self, depth: int) -> float:
        """Microseconds that a step takes in a workgroup that is alone on a multiprocessor."""
        return self.latency + self.deepening * depth / 16

    def step_share(self, depth: int) -> float:
        """Microseconds that a step of each workgroup adds on a fully occupied multiprocessor."""
        return self.rows * self.columns * (depth + STEP_OVERHEAD_TERMS) / PEAK_PRODUCTS_PER_US / self.rate


# Fitted to 661 timings of ResNet-50's convolutions and other products. The model's mean error is 10%. The tiles it chooses are
# 2% slower than the fastest.
SHAPES = (
    TileShape(32, 32, 4, 4, 0.51, 0.21, 0.21),
    TileShape(32, 64, 4, 4, 0.55, 0.24, 0.24),
    TileShape(64, 32, 4, 4, 0.56, 0.23, 0.23),
    TileShape(64, 64, 4, 4, 0.62, 0.47, 0.22),
    TileShape(64, 64, 8, 4, 0.68, 0.27, 0.36),
    TileShape(64, 128, 8, 8, 0.74, 0.15, 0.52),
    TileShape(128, 64, 8, 8, 0.73, 0.27, 0.5),
    TileShape(128, 128, 8, 8, 0.82, 0.23, 0.49),
)


def microseconds(problem: Problem, shape: TileShape, depth: int, splits: int, units: int) -> float:
    """Estimate the time of a problem on a device that runs `units` workgroups concurrently."""
    groups = ceil(problem.rows / shape.rows) * ceil(problem.columns / shape.columns) * problem.stacks * splits
    steps = ceil(Steps.of(problem, depth).count / splits)
    total = LAUNCH_US + steps * max(shape.step_latency(depth), ceil(groups / units) * shape.step_share(depth))
    if splits > 1:
        total += ADDITION_US + (splits + 1) * problem.stacks * problem.rows * problem.columns / PARTIAL_SUMS_PER_US
    return total


def concurrency_of(tile: Tile) -> int:
    """The number of workgroups that a multiprocessor computes in the time of one, by estimate; at least 1."""
    shape = next(shape for shape in SHAPES if _tile(shape, tile.depth) == tile)
    return max(1, int(shape.step_latency(tile.depth) / shape.step_share(tile.depth)))


def choose(problem: Problem, features: Features) -> tuple[Tile, int]:
    """The tile, and the split-K factor. The sizes are numbers."""
    _, (shape, depth, splits) = _fastest(problem, features)
    return _tile(shape, depth), splits


def least(problem: Problem, features: Features) -> float:
    """Estimated microseconds with the tile of `choose`."""
    return _fastest(problem, features)[0]


def _fastest(problem: Problem, features: Features) -> tuple[float, tuple[TileShape, int, int]]:
    sizes = problem.rows, problem.columns, problem.stacks, problem.taps, problem.channels
    if not is_static(sizes):
        return _find_fastest(problem, features)
    return _estimates.make((*sizes, features), lambda: _find_fastest(problem, features))


_estimates: Cache[Hashable, tuple[float, tuple[TileShape, int, int]]] = Cache(1024, raw=True)
"""The fastest tiles by estimate, which depend on sizes alone: layers repeat them, and an estimate takes 1 ms."""


def _find_fastest(problem: Problem, features: Features) -> tuple[float, tuple[TileShape, int, int]]:
    options = ((microseconds(problem, *option, features.units), option) for option in _options(problem, features))
    return min(options, key=lambda pair: pair[0])


def _options(problem: Problem, features: Features) -> Iterator[tuple[TileShape, int, int]]:
    """Yield the shapes, depths and split-K factors that the device can run; the smallest tile always fits."""
    depths = list(_depths(problem))
    for shape in SHAPES[:1] if features.is_software else SHAPES:
        for depth in depths:
            tile = _tile(shape, depth)
            if tile.invocations > features.max_invocations or tile.shared_bytes > features.max_shared:
                continue
            steps = Steps.of(problem, depth).count
            if features.is_software:
                yield shape, depth, ceil(steps / (features.max_iterations // 2))
                continue
            for splits in SPLITS:
                bytes = 4 * splits * problem.stacks * problem.rows * problem.columns
                if splits > 1 and (steps < 2 * splits or bytes > MAX_PARTIAL_BYTES):
                    break
                # Reduce the factor so that each part has steps: a part without steps would read out of bounds.
                yield shape, depth, ceil(steps / ceil(steps / splits))


def _depths(problem: Problem) -> Iterator[int]:
    usual, *others = DEPTHS
    terms = usual * Steps.of(problem, usual).count
    yield usual
    for depth in others:
        if depth * Steps.of(problem, depth).count * 25 <= terms * 24:
            yield depth


def _tile(shape: TileShape, depth: int) -> Tile:
    return Tile(shape.rows, shape.columns, depth, shape.height, shape.width)
