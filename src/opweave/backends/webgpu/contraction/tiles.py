"""Which tile serves which problem."""

from __future__ import annotations

from ....expr.wgsl import Features
from .problem import Problem
from .tiled import Steps, Tile

TILES: tuple[tuple[Tile, float], ...] = (
    (Tile(128, 128, 8, 8, 8, 2), 1.0),
    (Tile(64, 64, 16, 4, 4), 0.6),
    (Tile(32, 64, 16, 4, 4), 0.5),
    (Tile(32, 32, 16, 4, 4), 0.35),
)


def choose(problem: Problem, features: Features) -> tuple[Tile, int]:
    """The tile, and among how many workgroups its steps are divided."""
    best = None
    for tile, rate in TILES:
        if tile.invocations > features.max_invocations or tile.shared > features.max_shared:
            continue
        groups = -(-problem.rows // tile.rows) * -(-problem.columns // tile.columns) * problem.stacks
        steps = Steps.of(problem, tile.depth).count
        splits = 1
        while groups * splits < 264 and steps // (splits * 2) >= 8:
            splits *= 2
        waves = -(-groups * splits // 132)
        cost = waves * tile.rows * tile.columns * tile.depth * -(-steps // splits) / rate + splits * 1e4
        if best is None or cost < best[0]:
            best = (cost, tile, splits)
    assert best is not None
    return best[1], best[2]
