"""Choose the tile of a kernel for tensor cores, with a cost model whose numbers `benchmarks/cuda_tune.py` measures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import ceil

from ....expr.gpu import Features
from . import tiles
from .problem import Matrix, Problem, Window, is_float32
from .tensor import Steps, Tile
from .tiles import MAX_PARTIAL_BYTES, PARTIAL_SUMS_PER_US

TABLE = "tensor_tiles.json"
"""The table of tiles. `python -m benchmarks.cuda_tune` writes it."""

ADDITION_US = 1.25
"""Microseconds of the kernel that adds partial sums, without its memory traffic: in a CUDA graph, where a launch takes
less time than in `tiles`. An estimate: with values from 1 to 1.5, those of `microseconds` come nearest to what `cuda_tune`
measured on an H200."""
MAX_EARLY_US = 6.0
"""Most microseconds of a kernel that starts while the one before ends. Its workgroups take the units that are free then,
several of them the same one, and stay there. If all kernels start early, an H100 takes 0.82 times as long for one sentence
with MiniLM, but 1.05 times as long for 32 of them."""
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Numbers of programs that may share the terms of a sum."""
SAVED_US = 1.5
"""Microseconds that a kernel of `tiles` takes less in a CUDA graph: the estimates there are of kernels that are launched one
by one. An estimate: `cuda_tune` prints how near the choices of `is_faster` come to the best ones."""
MIN_STEPS = 4
"""Steps of a program, below which loads are not ahead of their use; so terms are not divided further."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A tile with its speed.

    Attributes:
        tile: the tile.
        rate: products per microsecond of a multiprocessor that has many such tiles to compute.
        latency: microseconds of a step of a program that is alone on a multiprocessor.
        fixed: microseconds of the launch, and of what comes before and after the steps.
    """

    tile: Tile
    rate: float
    latency: float
    fixed: float


@cache
def table() -> dict[str, tuple[Measured, ...]]:
    """The tiles for each kind of products, as `kind_of` names it."""
    data = json.loads(files(__package__).joinpath(TABLE).read_text("utf-8"))
    return {kind: tuple(Measured(Tile(*row[:5]), *row[5:]) for row in rows) for kind, rows in data["tiles"].items()}


READINGS = ("terms", "columns", "windows", "strided windows")
"""How a kernel reads the right operand: a matrix whose terms lie side by side, one whose columns do, or the windows of a
convolution, which start side by side or not; those of transposed convolutions count as the latter, and were measured so.
Hardware takes TF32 from shared memory only in the first case, addresses of windows take time, and with TF32x3, a step takes
twice as long where windows start at each second column."""


def kind_of(problem: Problem, features: Features) -> str:
    """How products are computed, and how the right operand is read, as a key of `table`: "tf32, terms", say.

    Products are "float16" (and bfloat16), "tf32", "tf32x3", or "tf32x3 in kernels", which divide both operands themselves.
    """
    assert features.tensor_cores is not None
    kind: str = features.tensor_cores.float32
    if kind == "tf32x3" and not any(isinstance(side, Matrix) and side.rest for side in (problem.left, problem.right)):
        kind = "tf32x3 in kernels"
    if not (is_float32(problem.left) and kind.startswith("tf32")):
        kind = "float16"
    return f"{kind}, {_reading(problem.right)}"


def _reading(right: Matrix | Window) -> str:
    """One of `READINGS`."""
    if isinstance(right, Matrix):
        return "terms" if right.step == 1 else "columns"
    is_strided = right.transposed or right.strides[1] != 1
    return "strided windows" if is_strided and right.step != 1 else "windows"


def is_faster(problem: Problem, features: Features) -> bool:
    """Whether tensor cores are estimated to take less time than kernels of `tiles`: on an H100 or H200, as the table is."""
    return least(problem, features) < tiles.least(problem, features) - SAVED_US


def least(problem: Problem, features: Features) -> float:
    """Estimated microseconds with the tile of `choose`."""
    options = _options(problem, features)
    return min(microseconds(problem, measured, splits, features.units) for measured, splits in options)


def choose(problem: Problem, features: Features) -> tuple[Tile, int]:
    """The tile, and the number of programs that share its steps."""
    return next(ranked(problem, features))


def ranked(problem: Problem, features: Features) -> Iterator[tuple[Tile, int]]:
    """The tiles and splits that the device can run; what is estimated to be the fastest comes first."""
    options = _options(problem, features)
    for measured, splits in sorted(
        options, key=lambda option: microseconds(problem, option[0], option[1], features.units)
    ):
        yield measured.tile, splits


def is_short(problem: Problem, tile: Tile, splits: int, features: Features) -> bool:
    """Whether a kernel is estimated to be so short that it starts while the one before ends."""
    measured = next((measured for measured in table()[kind_of(problem, features)] if measured.tile == tile), None)
    if measured is None:
        return False
    return microseconds(problem, measured, splits, features.units) - addition(problem, splits) <= MAX_EARLY_US


def microseconds(problem: Problem, measured: Measured, splits: int, units: int) -> float:
    """Estimated time of a problem on a device with `units` multiprocessors."""
    steps, products = work(problem, measured.tile, splits, units)
    return measured.fixed + steps * max(measured.latency, products / measured.rate) + addition(problem, splits)


def work(problem: Problem, tile: Tile, splits: int, units: int) -> tuple[int, int]:
    """The steps of a program, and the products in a step of those programs that one multiprocessor has to compute."""
    programs = ceil(problem.rows / tile.rows) * ceil(problem.columns / tile.columns) * problem.stacks * splits
    steps = ceil(Steps(problem, tile.terms).count / splits)
    return steps, ceil(programs / units) * tile.rows * tile.columns * tile.terms


def is_division(steps: int, splits: int) -> bool:
    """Whether steps can be divided among programs: each has some, and enough of them."""
    share = ceil(steps / splits)
    return splits == 1 or (share >= MIN_STEPS and (splits - 1) * share < steps)


def addition(problem: Problem, splits: int) -> float:
    """Estimated microseconds to add the parts of sums."""
    if splits == 1:
        return 0.0
    return ADDITION_US + (splits + 1) * problem.stacks * problem.rows * problem.columns / PARTIAL_SUMS_PER_US


def shared_bytes(tile: Tile, left: int, right: int) -> int:
    """Bytes of shared memory for the operands of all stages, whose elements have `left` and `right` bytes."""
    return tile.stages * (tile.rows * left + tile.columns * right) * tile.terms


def _options(problem: Problem, features: Features) -> Iterator[tuple[Measured, int]]:
    """The tiles and splits that the device can run; the first tile always is one of them."""
    assert features.tensor_cores is not None
    left, right = (4 if is_float32(side) else 2 for side in (problem.left, problem.right))
    for number, measured in enumerate(table()[kind_of(problem, features)]):
        if number and shared_bytes(measured.tile, left, right) > features.tensor_cores.max_shared:
            continue
        steps = Steps(problem, measured.tile.terms).count
        for splits in SPLITS:
            partial = 4 * splits * problem.stacks * problem.rows * problem.columns
            if is_division(steps, splits) and (splits == 1 or partial <= MAX_PARTIAL_BYTES):
                yield measured, splits
