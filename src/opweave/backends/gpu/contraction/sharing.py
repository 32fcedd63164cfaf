"""Choose orders of constant matrices that the programs of a graph with names can share, so that they keep few copies.

GEMV kernels, tiles and tensor cores all read contiguous terms. For TF32x3, a matrix is split into TF32 parts and
remainders, which other kernels add. If another program has stored the whole matrix, tensor cores split it in registers.
Between these orders, a program makes a second copy only if its kernel would otherwise take more than `MAX_LOSS` times as long.
Float32 weights that tensor cores read as TF32, bfloat16 or float16 are a copy of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import replace

from ....core.sizes import is_multiple
from ....expr.gpu import Features
from ....expr.ir import Input
from ..constants import GpuConstant
from . import tensor_tiles
from .gemv import is_thin
from .named import at_estimates
from .problem import Matrix, Problem
from .terms import by_term, form_of, in_form
from .tiles import LAUNCH_US

MAX_LOSS = 1.15
"""Maximum of time with a shared copy / time with a second copy: the limit that `benchmarks gpu_sizes` has for calls."""

Arranged = tuple[Matrix, dict[Input, GpuConstant]]
"""A matrix in a new order, and its constants."""


def may_share(problem: Problem) -> bool:
    """Whether all kernels of a product read vectors of contiguous terms."""
    is_product = problem.layout.kind == "matrix" and problem.taps == 1 and not problem.is_integer
    return is_product and is_multiple(problem.terms, 4)


def for_sums(matrix: Matrix, problem: Problem, constant: GpuConstant, shared: Collection[Hashable]) -> Arranged:
    """A constant matrix for GEMV kernels and tiles. `shared` has the keys of constants of other programs."""
    whole = in_form(matrix, problem, constant, "")
    if matrix.is_widened or matrix.source.desc.data_type != "float32" or _has(whole, shared):
        return whole
    if _is_limited_by_reading(whole[0], problem):
        return whole
    # The key of a constant that no program has any more may be that of other elements, which are too large for parts.
    parts = by_term(matrix, problem, constant, "divided")
    return parts if _has(parts, shared) else whole


def for_tensor_cores(
    matrix: Matrix, problem: Problem, constant: GpuConstant, features: Features, shared: Collection[Hashable]
) -> Arranged:
    """A constant matrix for tensor cores: whole if another program has it whole, and splitting it costs little time."""
    form = form_of(problem, features)
    parts = by_term(matrix, problem, constant, form)
    whole = in_form(matrix, problem, constant, "")
    if form != "divided" or _has(parts, shared) or not _has(whole, shared):
        return parts
    one, other = (_least(matrix, arranged, problem, features) for arranged in (whole, parts))
    return whole if one <= MAX_LOSS * other else parts


def _has(arranged: Arranged, shared: Collection[Hashable]) -> bool:
    return all(constant.key in shared for constant in arranged[1].values())


def _is_limited_by_reading(matrix: Matrix, problem: Problem) -> bool:
    """Whether a GEMV kernel takes more than `MAX_LOSS` times as long if it reads twice the bytes."""
    once = matrix.source.desc.byte_length / tensor_tiles.READ_BYTES_PER_US
    return is_thin(problem) and LAUNCH_US + 2 * once > MAX_LOSS * (LAUNCH_US + once)


def _least(matrix: Matrix, arranged: Arranged, problem: Problem, features: Features) -> float:
    left, right = (arranged[0] if side is matrix else side for side in (problem.left, problem.right))
    return tensor_tiles.least(at_estimates(replace(problem, left=left, right=right)), features)
