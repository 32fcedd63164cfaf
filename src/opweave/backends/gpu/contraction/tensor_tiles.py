"""Choose the tile of a kernel for tensor cores, with a cost model that `benchmarks/cuda_tune.py` fits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from math import ceil

from ....core.guards import estimate
from ....core.sizes import is_same_size
from ....expr.gpu import Features
from . import tiles
from .problem import Matrix, Problem, ProblemWindow, is_float32
from .tensor import TensorSteps, TensorTile
from .terms import form_of, needs_order
from .tiles import MAX_PARTIAL_BYTES, PARTIAL_SUMS_PER_US

TABLE = "tensor_tiles.json"
"""The table of tiles. `python -m benchmarks.cuda_tune` writes it."""

ADDITION_US = 1.25
"""Microseconds of the kernel that adds partial sums, without memory traffic, in a CUDA graph, where a launch takes less
time than in `tiles`. An estimate: values from 1 to 1.5 fit the measurements of `cuda_tune` on an H200 best."""
MAX_EARLY_US = 6.0
"""The longest kernel, in microseconds, that starts while the preceding one drains. Early workgroups crowd onto the few free
units, and stay there. If all kernels start early, MiniLM on an H100 takes 0.82 times as long with 1 sentence, but 1.05 times
as long with 32."""
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
SAVED_US = 1.5
"""Microseconds that a CUDA graph saves a kernel of `tiles`, whose cost model was fitted to single launches. An estimate:
`cuda_tune` prints the loss of `is_faster` against the best choices."""
READ_BYTES_PER_US = 3.6e6
"""Bytes of operands that a device reads from memory per microsecond: three quarters of an H200's bandwidth. An estimate."""
MAX_PROGRAMS = 1 << 20
"""The largest number of programs under split-K: no limit."""
MIN_STEPS = 4
"""Fewest steps of a program under split-K: with fewer, loads are not ahead of their use."""

MAX_UNROLLED = 64
"""Maximum elements of a thread under a long epilogue, which Triton unrolls for each element. A product of float16 with a
sigmoid compiles in 1.4 s with 128 elements, and in 0.8 s with 64."""
MAX_SLOWDOWN = 1.05
"""Largest slowdown, by estimate, for which a tile that compiles faster is preferred: the error of estimates."""
THREADS = 32
"""Threads of a warp."""


@dataclass(frozen=True, slots=True)
class MeasuredTile:
    """A tile and its measured speed.

    Attributes:
        rate: products per microsecond of a fully occupied multiprocessor.
        latency: microseconds of a step of a program that is alone on a multiprocessor.
        fixed: microseconds of the launch, prologue and epilogue.
    """

    tile: TensorTile
    rate: float
    latency: float
    fixed: float


@cache
def table() -> dict[str, tuple[MeasuredTile, ...]]:
    data = json.loads(files(__package__).joinpath(TABLE).read_text("utf-8"))
    return {
        kind: tuple(MeasuredTile(TensorTile(*row[:5]), *row[5:]) for row in rows)
        for kind, rows in data["tiles"].items()
    }


READINGS = ("terms", "columns", "windows", "strided windows")
"""Access to the right operand: a matrix with contiguous terms, a matrix with contiguous columns, windows with contiguous
origins, or other windows. Transposed convolutions count as the last, and were measured so. Hardware reads TF32 from shared
memory only with contiguous terms, addresses of windows cost time, and a TF32x3 step takes twice as long at a horizontal stride
of 2. A left matrix without contiguous terms counts as a right one whose rows and columns are swapped (`is_mirrored`)."""


def kind_of(problem: Problem, features: Features) -> str:
    """The key of `table` for a problem: the arithmetic and the access to the right operand, such as "tf32, terms".

    The arithmetic is "float16" (also for bfloat16), "tf32", "tf32x3", or "tf32x3 in kernels", which split both operands.
    """
    assert features.tensor_cores is not None
    kind: str = features.tensor_cores.float32
    if kind == "tf32x3" and not any(isinstance(side, Matrix) and side.rest for side in (problem.left, problem.right)):
        kind = "tf32x3 in kernels"
    if not (is_float32(problem.left) and kind.startswith("tf32")):
        kind = "float16"
    return f"{kind}, {'columns' if is_mirrored(problem, features) else _reading(problem.right)}"


def is_mirrored(problem: Problem, features: Features) -> bool:
    """Whether only the left matrix is in an order that tensor cores read from registers; of the right, `tensor.is_turned`.

    Tiles then have the speed of tiles with rows and columns swapped.
    """
    return (
        needs_order(problem, features)
        and not is_same_size(problem.left.step, 1)
        and is_same_size(problem.right.step, 1)
    )


def measured_tiles(problem: Problem, features: Features) -> tuple[MeasuredTile, ...]:
    """The tiles for a problem, with their speed."""
    rows = table()[kind_of(problem, features)]
    if not is_mirrored(problem, features):
        return rows
    return tuple(replace(row, tile=replace(row.tile, rows=row.tile.columns, columns=row.tile.rows)) for row in rows)


def _reading(right: Matrix | ProblemWindow) -> str:
    if isinstance(right, Matrix):
        return "terms" if is_same_size(right.step, 1) else "columns"
    is_strided = right.transposed or right.strides[-1] != 1
    return "strided windows" if is_strided and not is_same_size(right.step, 1) else "windows"


def is_faster(problem: Problem, features: Features) -> bool:
    """Whether tensor cores are estimated to beat kernels of `tiles` on an H100 or H200."""
    return least(problem, features) < tiles.least(problem, features) - SAVED_US


def least(problem: Problem, features: Features) -> float:
    """The least estimate, if the operands are in the cache, as `tiles.least` assumes."""
    options = _options(problem, features)
    return min(
        computing(problem, measured, splits, features) + addition(problem, splits) for measured, splits in options
    )


def choose(problem: Problem, features: Features) -> tuple[TensorTile, int]:
    return next(rank_tiles(problem, features))


def rank_tiles(problem: Problem, features: Features) -> Iterator[tuple[TensorTile, int]]:
    """The tiles and split-K factors that the device can run, fastest first by estimate."""
    for _, measured, splits in sorted(_estimates(problem, features), key=lambda estimate: estimate[0]):
        yield measured.tile, splits


def _estimates(problem: Problem, features: Features) -> Iterator[tuple[float, MeasuredTile, int]]:
    for measured, splits in _options(problem, features):
        yield microseconds(problem, measured, splits, features), measured, splits


def with_small_epilogue(problem: Problem, tile: TensorTile, features: Features) -> TensorTile:
    """Return a tile of at most `MAX_UNROLLED` elements a thread if one is about as fast as `tile`, else `tile`.

    For kernels without split-K; with split-K, another kernel computes the epilogue. If `tile` is not the fastest by estimate,
    it was chosen by a measurement, and is kept.
    """
    if _elements_of_thread(tile) <= MAX_UNROLLED:
        return tile
    ranked = sorted(_estimates(problem, features), key=lambda estimate: estimate[0])
    fastest, measured, _ = ranked[0]
    if measured.tile != tile:
        return tile
    close = [row.tile for time, row, splits in ranked if splits == 1 and time < MAX_SLOWDOWN * fastest]
    return next((option for option in close if _elements_of_thread(option) <= MAX_UNROLLED), tile)


def _elements_of_thread(tile: TensorTile) -> int:
    return tile.rows * tile.columns // (tile.warps * THREADS)


def is_short(problem: Problem, tile: TensorTile, splits: int, features: Features) -> bool:
    """Whether a kernel is short enough, by estimate, to start while the preceding one drains."""
    measured = _speed_of(problem, tile, features)
    if measured is None:
        return False
    return microseconds(problem, measured, splits, features) - addition(problem, splits) <= MAX_EARLY_US


def concurrency_of(problem: Problem, tile: TensorTile, features: Features) -> int:
    """The number of programs that a multiprocessor computes in the time of one, by estimate; at least 1."""
    measured = _speed_of(problem, tile, features)
    if measured is None:
        return 1
    return max(1, int(measured.latency * measured.rate / (tile.rows * tile.columns * tile.terms)))


def _speed_of(problem: Problem, tile: TensorTile, features: Features) -> MeasuredTile | None:
    """The measured speed of a tile; None for tiles that the table lacks."""
    return next((measured for measured in measured_tiles(problem, features) if measured.tile == tile), None)


def microseconds(problem: Problem, measured: MeasuredTile, splits: int, features: Features) -> float:
    """Estimated time on a device."""
    alone = computing(problem, measured, splits, features)
    return max(alone, measured.fixed + reading(problem, features)) + addition(problem, splits)


def computing(problem: Problem, measured: MeasuredTile, splits: int, features: Features) -> float:
    """Estimated microseconds of a kernel whose operands are in the cache."""
    steps, products = work(problem, measured.tile, splits, features.units)
    return measured.fixed + steps * max(measured.latency, products / measured.rate)


def reading(problem: Problem, features: Features, *, writes: bool = False) -> float:
    """Estimated microseconds to read the operands of a product of TF32 from memory, and to write the result if it `writes`.

    Products of other types take longer than that, or were not measured.
    """
    assert features.tensor_cores is not None
    if features.tensor_cores.float32 != "tf32":
        return 0.0
    read = estimate(sum(side.source.desc.byte_length for side in (problem.left, problem.right)))
    return (read + 4 * problem.stacks * problem.rows * problem.columns * writes) / READ_BYTES_PER_US


def work(problem: Problem, tile: TensorTile, splits: int, units: int) -> tuple[int, int]:
    """The steps of a program, and the products per step of all programs of one multiprocessor."""
    programs = ceil(problem.rows / tile.rows) * ceil(problem.columns / tile.columns) * problem.stacks * splits
    steps = ceil(TensorSteps(problem, tile.terms).count / splits)
    return steps, ceil(programs / units) * tile.rows * tile.columns * tile.terms


def is_division(steps: int, splits: int) -> bool:
    """Whether split-K leaves each program enough steps, and none without."""
    share = ceil(steps / splits)
    return splits == 1 or (share >= MIN_STEPS and (splits - 1) * share < steps)


def addition(problem: Problem, splits: int) -> float:
    """Estimated microseconds to add split-K partial sums."""
    if splits == 1:
        return 0.0
    return ADDITION_US + (splits + 1) * problem.stacks * problem.rows * problem.columns / PARTIAL_SUMS_PER_US


def shared_bytes(tile: TensorTile, left: int, right: int) -> int:
    """Bytes of shared memory for all stages; `left` and `right` are bytes per element of the operands."""
    return tile.stages * (tile.rows * left + tile.columns * right) * tile.terms


def _options(problem: Problem, features: Features) -> Iterator[tuple[MeasuredTile, int]]:
    """The tiles and split-K factors that the device can run, always including the first tile."""
    assert features.tensor_cores is not None
    left, right = (4 if is_float32(side) else 2 for side in (problem.left, problem.right))
    # Measured for TF32: more programs than multiprocessors are slower than estimated, because each waits for memory first.
    most = features.units if form_of(problem, features) == "tf32" else MAX_PROGRAMS
    for number, measured in enumerate(measured_tiles(problem, features)):
        if number and shared_bytes(measured.tile, left, right) > features.tensor_cores.max_shared:
            continue
        steps = TensorSteps(problem, measured.tile.terms).count
        programs = (
            ceil(problem.rows / measured.tile.rows) * ceil(problem.columns / measured.tile.columns) * problem.stacks
        )
        for splits in SPLITS:
            partial = 4 * splits * problem.stacks * problem.rows * problem.columns
            if is_division(steps, splits) and (
                splits == 1 or (partial <= MAX_PARTIAL_BYTES and programs * splits <= most)
            ):
                yield measured, splits
