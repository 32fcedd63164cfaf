"""Determinants and inverses of small matrices, by elimination with partial pivoting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core.dtypes import FLOATS
from ..core.graph import Builder, Desc, Operand
from ..core.operation import Limits, N
from ..core.sizes import Size
from ..expr import abs as magnitude, arg_max_over, cast, compute, store, where
from ..expr.array import Traced
from ..support.errors import require
from .declare import declare

MAX_SIZE = 64
"""Maximum rows of a matrix. Each row is a stage of the computation, which is compiled by itself. An estimate."""


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
    matrix = cast(input, "float32")
    result: Any = 1.0
    for rest in range(size, 0, -1):
        best = _pivots(matrix, batch, rest, 0)
        pivot = compute(batch, _pivot_of(matrix, best))
        result = result * where(best == 0, pivot, -pivot)
        if rest > 1:
            matrix = store(compute((*batch, rest - 1, rest - 1), _smaller(matrix, best)))
    return _as_type_of(input, result)


def _as_type_of(input: Traced, result: Traced) -> Traced:
    data_type: Any = input.data_type
    return cast(result, data_type)


def _pivots(matrix: Traced, batch: Sequence[int], rest: int, column: int) -> Traced:
    """The rows with the largest elements of a column, among the rows from `column` on."""
    return store(compute(batch, lambda *p: arg_max_over(rest, lambda i: magnitude(matrix[(*p, i + column, column)]))))


def _pivot_of(matrix: Traced, best: Traced) -> Any:
    return lambda *p: matrix.clamped[(*p, best[p], 0)]


def _smaller(matrix: Traced, best: Traced) -> Any:
    """The element without the pivot row and the first column, after the column is eliminated."""

    def element(*p: Traced) -> Traced:
        *places, i, j = p
        b = tuple(places)
        row = cast(i, "int32") + 1
        row = where(row == best[b], 0, row)  # the first row is now where the pivot row was
        pivot = matrix.clamped[(*b, best[b], 0)]
        factor = matrix.clamped[(*b, row, 0)] / where(pivot == 0, 1.0, pivot)
        return matrix.clamped[(*b, row, j + 1)] - factor * matrix.clamped[(*b, best[b], j + 1)]

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
    matrix = cast(input, "float32")
    # Gauss and Jordan: column k becomes that of the unit matrix, and is replaced by column k of the inverse. Exchanges of rows
    # are exchanges of columns of the inverse, in the reverse order.
    exchanges = []
    for k in range(size):
        best = _pivots(matrix, batch, size - k, k)
        exchanges.append(best)
        matrix = store(compute(input.shape, _reduced(matrix, best, k)))
    for k in reversed(range(size)):
        matrix = store(compute(input.shape, _exchanged(matrix, exchanges[k], k)))
    return _as_type_of(input, matrix)


def _reduced(matrix: Traced, best: Traced, k: int) -> Any:
    """The element after column `k` is eliminated in all rows but row `k`, which is exchanged with the pivot row."""

    def element(*p: Traced) -> Traced:
        *places, i, j = p
        b = tuple(places)
        other = best[b] + k
        row = where(cast(i, "int32") == other, k, cast(i, "int32"))
        pivot = matrix.clamped[(*b, other, k)]
        scaled = where(j == k, 1.0, matrix.clamped[(*b, other, j)]) / pivot
        rest = where(j == k, 0.0, matrix.clamped[(*b, row, j)]) - matrix.clamped[(*b, row, k)] * scaled
        return where(i == k, scaled, rest)

    return element


def _exchanged(matrix: Traced, best: Traced, k: int) -> Any:
    def element(*p: Traced) -> Traced:
        *places, i, j = p
        b = tuple(places)
        other, column = best[b] + k, cast(j, "int32")
        source = where(column == k, other, where(column == other, k, column))
        return matrix.clamped[(*b, i, source)]

    return element
