"""Contractions whose sizes have names: most kernels take sizes as parameters, others need numbers.

Which names need numbers depends on comparisons, whose answers the scope of `Guards` records: a single row, for example, has a
special kernel.
"""

from __future__ import annotations

from dataclasses import replace

from ....core.guards import estimate, guarded_sizes
from ....core.size_bounds import names_in_empty
from ....core.size_functions import larger, smaller
from ....core.size_values import variables_in
from ....core.sizes import Dimension, Size, is_static, may_exceed
from ....expr.gpu import Features
from . import tensor_tiles, tiles
from .gemv import MIN_THIN_TERMS
from .problem import Matrix, Problem, ProblemWindow
from .tensor import TensorTile, suits
from .tiled import Steps, Tile

MAX_SHORT = 128
"""The largest number of vectors of tiles for short prompts: two or more of the smallest tiles. An estimate."""

DEEPEST = 20
"""The largest number of terms of a step: the largest of `tiles.DEPTHS`."""


MAX_GROWING_BYTES = 1 << 22
"""Largest partial sums of the first run, in bytes, that may grow at later sizes to keep the device busy. An estimate."""


def has_names(problem: Problem) -> bool:
    return not is_static(_sizes(problem))


def at_estimates(problem: Problem) -> Problem:
    """The problem with the sizes of the first run, on which only speed depends; for cost models, which read no operands."""
    rows, columns, stacks = (estimate(size) for size in (problem.rows, problem.columns, problem.stacks))
    return replace(problem, rows=rows, columns=columns, stacks=stacks, channels=estimate(problem.channels))


def parts_for(problem: Problem, tile: Tile | TensorTile, splits: int, features: Features) -> Dimension:
    """The split-K factor as a formula: `splits` at the sizes of the first run, and less at sizes with more tiles.

    The programs fill whole waves, since a few programs beyond a wave take as long as another one. The number of waves is that
    of the first run, or of the waves that the device computes in the time of one if there are more; above `MAX_GROWING_BYTES`
    it is always that of the first run. By the cost models, sums at 1.2, 1.4 and 2 times the first size then take 1.01, 1.02
    and 1.05 times (float32), or 1.00, 1.00 and 1.02 times (TF32), as long as with the best tile and factor, in total.
    """
    count = -(-problem.rows // tile.rows) * -(-problem.columns // tile.columns) * problem.stacks
    if splits == 1 or is_static((count,)):
        return splits
    units, waves = features.units, -(-splits * estimate(count) // features.units)
    if 4 * splits * estimate(problem.stacks * problem.rows * problem.columns) <= MAX_GROWING_BYTES:
        if isinstance(tile, Tile):
            concurrency = tiles.concurrency_of(tile)
        else:
            concurrency = tensor_tiles.concurrency_of(at_estimates(problem), tile, features)
        waves = max(waves, concurrency)
    return smaller(splits, larger(1, waves * units // count))


def names_needed(problem: Problem, features: Features) -> tuple[set[str], set[str]]:
    """The names that need numbers for all sizes, and those that need numbers for the sizes of this run only."""
    names = variables_in(_sizes(problem))
    if not names:
        return set(), set()
    if empty := names_in_empty(_extents(problem)):
        return set(), empty
    if packed := _names_of_packed(problem):
        return packed, set()
    if single := [
        size for size in (problem.rows, problem.columns) if isinstance(size, Size) and _is_gemv(problem, size)
    ]:
        return set(), variables_in(tuple(single))
    if single_image := _names_of_single_image(problem):
        return set(), single_image
    if suits(problem, features):
        if not may_have_names(problem):
            return names, set()
        _note_short(problem)
    if features.is_software and Steps.of(problem, DEEPEST).count > features.max_iterations // 4:
        return set(), names  # `tiles.choose` divides such sums
    return set(), set()


def _names_of_packed(problem: Problem) -> set[str]:
    """The names in the shapes of quantized matrices, whose positions in words have no parameters."""
    sides = [side for side in (problem.left, problem.right) if isinstance(side, Matrix) and side.quantized is not None]
    shapes = [buffer.desc.shape for side in sides for buffer in side.buffers]
    return variables_in((*shapes, *(side.stride for side in sides)))


def _is_gemv(problem: Problem, lines: int) -> bool:
    """Whether a side of a product is a single vector in this run: `gemv` has a faster kernel for this number."""
    sides = isinstance(problem.left, Matrix) and isinstance(problem.right, Matrix) and not problem.is_integer
    return sides and problem.taps == 1 and may_exceed(problem.terms, MIN_THIN_TERMS - 1) and lines == 1


def _names_of_single_image(problem: Problem) -> set[str]:
    """The names in the number of images of a convolution, if that is 1 in this run; else none.

    A single image has faster kernels: its pixels are a matrix, and products with its means are GEMVs. The scope records no
    answer: kernels that were chosen for several images also run a single one, which need not wait until others are compiled.
    """
    image, sizes = problem.image, guarded_sizes()
    if not sizes or not isinstance(image, ProblemWindow) or not isinstance(image.batches, Size):
        return set()
    return variables_in((image.batches,)) if image.batches.at(sizes) == 1 else set()


def _note_short(problem: Problem) -> None:
    """Record whether a quantized matrix is multiplied with few vectors, for which kernels have special tiles.

    With the tiles for long prompts, a short prompt keeps few multiprocessors busy: with 4 bits, a product of 64 rows took as
    long as one of 512 rows on an H200.
    """
    for side, lines in ((problem.right, problem.rows), (problem.left, problem.columns)):
        if isinstance(side, Matrix) and side.quantized is not None and isinstance(lines, Size):
            _ = lines > MAX_SHORT  # the scope records the answer


def may_have_names(problem: Problem) -> bool:
    """Whether kernels for tensor cores take the sizes that are names: terms only of products, without taps."""
    return is_static((problem.taps,)) and (problem.taps == 1 or is_static((problem.channels,)))


def _extents(problem: Problem) -> list[int]:
    """The sizes of loops and arrays."""
    shapes = (size for side in (problem.left, problem.right) for size in side.source.desc.shape)
    return [problem.stacks, problem.rows, problem.columns, problem.channels, *shapes]


def _sizes(problem: Problem) -> tuple[int, ...]:
    """All sizes that kernels depend on."""
    sizes = [*_extents(problem), *problem.layout.shape, *problem.layout.grid]
    for side in (problem.left, problem.right):
        sizes += (number for pair in side.stack for number in pair)
        if isinstance(side, ProblemWindow):
            sizes += (*side.size, *side.output, *side.before)
    return tuple(sizes)
