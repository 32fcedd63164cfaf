"""Determinants and inverses of small matrices, by elimination with partial pivoting."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from ..core.dtypes import FLOATS
from ..core.graph import Builder, Desc, Operand
from ..core.operation import Limits, N
from ..core.sizes import Size
from ..expr import abs as magnitude, arg_max_over, cast, compute, floor, is_nan, product_over, store, sum_over, where
from ..expr.array import Traced
from ..support.errors import require
from .declare import declare

MAX_SIZE = 64
"""Maximum rows of a matrix. Each row is two stages of the computation. An estimate."""


def _check_square(input: Operand) -> int:
    rows, columns = input.shape[-2:]
    require(rows == columns, f"the last two dimensions must be equal, got {input.desc}")
    size: Any = columns if isinstance(rows, Size) else rows
    require(size <= MAX_SIZE, f"matrices may have at most {MAX_SIZE} rows, got {input.desc}")
    return int(size)


@declare(input=Limits(FLOATS, ranks=(2, N)), output=Limits("input", ranks=(0, N)))
def det(self: Builder, input: Operand, *, label: str = "") -> Desc:
    """Compute the determinants of square matrices.

    Args:
        input: float32 or float16 [..., size, size], at most 64 rows.

    Returns: An operand of the data type of `input` and the shape [...], computed in float32 by elimination with
        partial pivoting.
    Raises: the matrices are not square, or too large.

    ONNX's Det.

    >>> det(np.float32([[1, 2], [3, 4]])).round(5).tolist()
    -2.0
    """
    _check_square(input)
    return Desc(input.data_type, input.shape[:-2])


@det.expression
def _(input: Traced) -> Traced:
    batch, size = input.shape[:-2], int(input.shape[-1])
    if not size:  # the product of no pivots
        return _as_type_of(input, compute(batch, lambda *_: 1.0))
    matrix = _begin(input, batch, size)
    for _ in range(size - 1):
        matrix = store(compute((*batch, size, size + 1), _eliminate(matrix, _pivots(matrix, batch, size), size)))

    def element(*b: Traced) -> Traced:
        def column_of(row: Traced) -> Traced:
            used = matrix[(*b, row, size)]
            return cast(where(used < 0, size - 1.0, used), "int32")

        pivots = product_over(size, lambda row: matrix.clamped[(*b, row, column_of(row))])
        # Each pair of rows whose pivots are in the other order changes the sign.
        crossed = sum_over((size, size), lambda i, j: where((i < j) & (column_of(i) > column_of(j)), 1.0, 0.0))
        return pivots * (1.0 - 2.0 * (crossed - 2.0 * floor(crossed * 0.5)))

    return _as_type_of(input, compute(batch, element))


def _as_type_of(input: Traced, result: Traced) -> Traced:
    data_type: Any = input.data_type
    return cast(result, data_type)


def _begin(input: Traced, batch: Sequence[int], size: int) -> Traced:
    """Matrices in float32 with a further column: the step in which the row was the pivot row, -1 before that step.

    The formula of a step finds its number in this column. So all steps are one kernel, which is compiled once.
    """
    matrix = cast(input, "float32")

    def element(*p: Traced) -> Traced:
        *places, column = p
        return where(column == size, -1.0, matrix.clamped[(*places, column)])

    return store(compute((*batch, size, size + 1), element))


def _pivots(matrix: Traced, batch: Sequence[int], size: int) -> Traced:
    """The step, and its pivot row: of the rows that have been none, the one with the largest element; int32 [*batch, 2]."""

    def element(*p: Traced) -> Traced:
        *places, which = p
        b = tuple(places)
        step = cast(sum_over(size, lambda row: where(matrix[(*b, row, size)] < 0, 0.0, 1.0)), "int32")

        def size_of(row: Traced) -> Traced:
            pivot = magnitude(matrix.clamped[(*b, row, step)])
            return where(matrix[(*b, row, size)] < 0, where(is_nan(pivot), inf, pivot), -1.0)

        return where(which == 0, step, arg_max_over(size, size_of))

    return store(compute((*batch, 2), element))


def _eliminate(matrix: Traced, pivots: Traced, size: int) -> Any:
    """The element after the column of a step is eliminated in the rows that have not been pivot rows."""

    def element(*p: Traced) -> Traced:
        *places, row, column = p
        b = tuple(places)
        step, best = pivots[(*b, 0)], pivots[(*b, 1)]
        pivot = matrix.clamped[(*b, best, step)]
        is_best = cast(row, "int32") == best
        mark = where(is_best, cast(step, "float32"), matrix[(*b, row, size)])
        factor = matrix.clamped[(*b, row, step)] / where(pivot == 0, 1.0, pivot)
        reduced = matrix[(*b, row, column)] - factor * matrix.clamped[(*b, best, column)]
        is_done = is_best | (matrix[(*b, row, size)] >= 0)
        return where(column == size, mark, where(is_done, matrix[(*b, row, column)], reduced))

    return element


@declare(input=Limits(FLOATS, ranks=(2, N)))
def inverse(self: Builder, input: Operand, *, label: str = "") -> Desc:
    """Compute the inverses of square matrices.

    Args:
        input: float32 or float16 [..., size, size], at most 64 rows.

    Returns: An operand of the data type and shape of `input`, computed in float32 by elimination with partial
        pivoting. Elements of inverses of singular matrices are infinite or NaN.
    Raises: the matrices are not square, or too large.

    ONNX Runtime's Inverse.

    >>> inverse(np.float32([[2, 0], [0, 4]])).tolist()
    [[0.5, 0.0], [0.0, 0.25]]
    """
    _check_square(input)
    return input.desc


@inverse.expression
def _(input: Traced) -> Traced:
    batch, size = input.shape[:-2], int(input.shape[-1])
    matrix = _begin(input, batch, size)
    for _ in range(size):
        matrix = store(
            compute((*batch, size, size + 1), _eliminate_and_invert(matrix, _pivots(matrix, batch, size), size))
        )

    def row_of(*p: Traced) -> Traced:
        *b, step = p
        return arg_max_over(size, lambda row: where(cast(matrix[(*b, row, size)], "int32") == step, 1.0, 0.0))

    rows = store(compute((*batch, size), row_of))

    def element(*p: Traced) -> Traced:
        *b, row, column = p
        # Row k of the inverse is the pivot row of step k, and column k has what belongs to that row.
        return matrix.clamped[(*b, rows[(*b, row)], cast(matrix[(*b, column, size)], "int32"))]

    return _as_type_of(input, compute(input.shape, element))


def _eliminate_and_invert(matrix: Traced, pivots: Traced, size: int) -> Any:
    """The element after a step of Gauss and Jordan.

    The column of the step is eliminated in all rows but the pivot row. It becomes that of the unit matrix, and is replaced by
    the column of the inverse that the step begins.
    """

    def element(*p: Traced) -> Traced:
        *places, row, column = p
        b = tuple(places)
        step, best = pivots[(*b, 0)], pivots[(*b, 1)]
        pivot = matrix.clamped[(*b, best, step)]
        is_best, is_own = cast(row, "int32") == best, cast(column, "int32") == step
        scaled = where(is_own, 1.0, matrix.clamped[(*b, best, column)]) / pivot
        rest = where(is_own, 0.0, matrix[(*b, row, column)]) - matrix.clamped[(*b, row, step)] * scaled
        mark = where(is_best, cast(step, "float32"), matrix[(*b, row, size)])
        return where(column == size, mark, where(is_best, scaled, rest))

    return element
