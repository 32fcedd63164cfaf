"""The extension `linalg` of the standard: products and norms of operations, and decompositions by NumPy's LAPACK.

A decomposition is recorded like all other operations, and runs on the processor when a value is read. On GPUs, its operands
and results are copied, and the copies are counted.

https://data-apis.org/array-api/latest/extensions/linear_algebra_functions.html
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from .. import ops
from ..core.dtypes import FLOATS
from ..core.graph import Builder, Desc, Operand
from ..core.operation import Limits, N, Op
from ..core.shapes import broadcast
from ..lazy.array import Array
from ..support.errors import require
from ..support.names import short_repr
from .arguments import as_array, axes_of, axis_of, convert, promote_operands, require_kind
from .creation import eye
from .docs import complete
from .elementwise import abs
from .host import on_host
from .manipulation import broadcast_arrays, broadcast_to, expand_dims, matrix_transpose, moveaxis, reshape, stack
from .products import matmul, tensordot, vecdot
from .public import publish
from .statistics import max, min, sum
from .types import float32

_MATRICES = Limits(FLOATS, ranks=(2, N))


class EighResult(NamedTuple):
    """Eigenvalues in ascending order, and the eigenvectors as columns."""

    eigenvalues: Array
    eigenvectors: Array


class QRResult(NamedTuple):
    """An orthogonal and an upper triangular matrix."""

    Q: Array
    R: Array


class SlogdetResult(NamedTuple):
    """The sign of a determinant, and the logarithm of its magnitude."""

    sign: Array
    logabsdet: Array


class SVDResult(NamedTuple):
    """Left singular vectors, singular values in descending order, right singular vectors as rows."""

    U: Array
    S: Array
    Vh: Array


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32) if x.dtype == np.float16 else x


def _lapack(
    name: str, shapes: Callable[..., tuple[tuple[int, ...], ...]], compute: Callable[..., Any], is_square: bool = True
) -> Op[..., Any]:
    """Declare a decomposition of matrices.

    Args:
        name: the name in messages.
        shapes: the shapes of the results for the batch, the rows and the columns of `x`, and the attribute `flag`.
        compute: one of NumPy's functions of `x` and `flag`.
        is_square: whether it takes square matrices only.
    """

    def rule(self: Builder, x: Operand, *, flag: bool = False, label: str = "") -> tuple[Desc, ...]:
        rows, columns = x.shape[-2:]
        require(not is_square or rows == columns, f"takes square matrices, got {x.desc}")
        return tuple(Desc(x.data_type, shape) for shape in shapes(x.shape[:-2], rows, columns, flag))

    def kernel(x: np.ndarray, flag: bool, out: Any) -> None:
        results = compute(_wide(x), flag)
        targets = out if isinstance(out, tuple) else (out,)
        for target, result in zip(targets, results if isinstance(results, tuple) else (results,), strict=True):
            target[...] = result

    return on_host(name, rule, kernel, x=_MATRICES)


def _svd_shapes(
    batch: tuple[int, ...], rows: int, columns: int, full: bool
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    rank = rows if rows < columns else columns
    left, right = (rows, columns) if full else (rank, rank)
    return (*batch, rows, left), (*batch, rank), (*batch, right, columns)


def _qr_shapes(batch: tuple[int, ...], rows: int, columns: int, full: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    inner = rows if full or rows < columns else columns
    return (*batch, rows, inner), (*batch, inner, columns)


_cholesky = _lapack("cholesky", lambda b, r, c, _: ((*b, r, c),), lambda x, upper: np.linalg.cholesky(x, upper=upper))
_det = _lapack("det", lambda b, r, c, _: (b,), lambda x, _: np.linalg.det(x))
_eigh = _lapack("eigh", lambda b, r, c, _: ((*b, r), (*b, r, c)), lambda x, _: tuple(np.linalg.eigh(x)))
_eigvalsh = _lapack("eigvalsh", lambda b, r, c, _: ((*b, r),), lambda x, _: np.linalg.eigvalsh(x))
_inv = _lapack("inv", lambda b, r, c, _: ((*b, r, c),), lambda x, _: np.linalg.inv(x))
_qr = _lapack("qr", _qr_shapes, lambda x, full: tuple(np.linalg.qr(x, "complete" if full else "reduced")), False)
_slogdet = _lapack("slogdet", lambda b, r, c, _: (b, b), lambda x, _: tuple(np.linalg.slogdet(x)))
_svd = _lapack("svd", _svd_shapes, lambda x, full: tuple(np.linalg.svd(x, full_matrices=full)), False)
_svdvals = _lapack(
    "svdvals", lambda b, r, c, _: ((*b, r if r < c else c),), lambda x, _: np.linalg.svd(x, compute_uv=False), False
)


def _solve_rule(self: Builder, x1: Operand, x2: Operand, *, label: str = "") -> Desc:
    rows, columns = x1.shape[-2:]
    require(rows == columns, f"takes square matrices as x1, got {x1.desc}")
    if x2.rank == 1:
        require(x2.shape == (rows,), f"x2 must have {rows} elements for {x1.desc}, got {x2.desc}")
        return Desc(x1.data_type, x1.shape[:-1])
    require(x2.shape[-2] == rows, f"x2 must have {rows} rows for {x1.desc}, got {x2.desc}")
    return Desc(x1.data_type, (*broadcast(x1.shape[:-2], x2.shape[:-2]), rows, x2.shape[-1]))


def _solve_kernel(x1: np.ndarray, x2: np.ndarray, out: np.ndarray) -> None:
    out[...] = np.linalg.solve(_wide(x1), _wide(x2))


_solve = on_host("solve", _solve_rule, _solve_kernel, x1=_MATRICES, x2=Limits("x1", ranks=(1, N)))


def _matrices(x: Any, name: str) -> Array:
    matrices = as_array(x, name)
    require_kind(matrices, "real floating", name)
    require(matrices.rank >= 2, f"{name}: takes matrices, got {matrices.desc}")
    return matrices


def _square(x: Any, name: str) -> Array:
    matrices = _matrices(x, name)
    require(matrices.shape[-1] == matrices.shape[-2], f"{name}: takes square matrices, got {matrices.desc}")
    return matrices


def _one(result: Any) -> Array:
    array: Array = result[0]
    return array


def cholesky(x: Array, /, *, upper: bool = False) -> Array:
    """Decompose positive definite matrices into a triangular matrix and its transpose.

    Args:
        x: floats [..., size, size]. Only one triangle is read.
        upper: whether the result is upper triangular.

    Returns: An array of the shape and data type of `x`.
    Raises: the matrices are not square; when computed, one is not positive definite.

    >>> xp.linalg.cholesky(xp.asarray([[4.0, 2.0], [2.0, 2.0]])).tolist()
    [[2.0, 0.0], [1.0, 1.0]]
    """
    return _one(_cholesky(_square(x, "cholesky"), flag=bool(upper)))


def cross(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """Compute the cross product of vectors of three elements.

    Args:
        x1: integers or floats, with size 3 along the axis.
        x2: the same; the other axes broadcast.
        axis: the axis of the vectors.

    Returns: An array of the broadcast shape, in the promoted data type.
    Raises: the size of the axis is not 3, or the shapes do not broadcast.

    >>> xp.linalg.cross(xp.asarray([1, 0, 0]), xp.asarray([0, 1, 0])).tolist()
    [0, 0, 1]
    """
    (x1, x2), _ = promote_operands("cross", "numeric", x1, x2)
    at = [axis_of(axis, x.rank, "cross") for x in (x1, x2)]
    sizes = [x.shape[position] for x, position in zip((x1, x2), at, strict=True)]
    require(sizes == [3, 3], f"cross: the axis must have size 3 in both, got {x1.desc} and {x2.desc}")
    a, b = broadcast_arrays(*(moveaxis(x, position, -1) for x, position in zip((x1, x2), at, strict=True)))
    parts = [a[..., i] * b[..., j] - a[..., j] * b[..., i] for i, j in ((1, 2), (2, 0), (0, 1))]
    return moveaxis(stack(parts, axis=-1), -1, axis)


def det(x: Array, /) -> Array:
    """Compute the determinants of square matrices.

    Args:
        x: floats [..., size, size].

    Returns: An array [...], in the data type of `x`.
    Raises: the matrices are not square.

    >>> xp.linalg.det(xp.asarray([[2.0, 0.0], [0.0, 3.0]])).tolist()
    6.0
    """
    return _one(_det(_square(x, "det")))


def diagonal(x: Array, /, *, offset: int = 0) -> Array:
    """Return the diagonals of matrices.

    Args:
        x: any data type [..., rows, columns].
        offset: the diagonal: 0 is the main one, positive numbers are above it, negative ones below.

    Returns: An array [..., elements of the diagonal], in the data type of `x`.
    Raises: `x` has fewer than two dimensions.

    >>> xp.linalg.diagonal(xp.asarray([[1, 2], [3, 4]]), offset=1).tolist()
    [2]
    """
    x = as_array(x, "diagonal")
    require(x.rank >= 2, f"diagonal: takes matrices, got {x.desc}")
    numbers = np.arange(x.shape[-2] * x.shape[-1], dtype=np.int32).reshape(x.shape[-2:])
    positions = np.ascontiguousarray(np.diagonal(numbers, offset))
    flat = reshape(x, (*x.shape[:-2], numbers.size))
    return flat[(..., positions)]


def eigh(x: Array, /) -> EighResult:
    """Compute the eigenvalues and eigenvectors of symmetric matrices.

    Args:
        x: floats [..., size, size]. Only the lower triangle is read.

    Returns: A named tuple: `eigenvalues` [..., size], ascending, and `eigenvectors` [..., size, size], as columns.
    Raises: the matrices are not square.

    >>> values, vectors = xp.linalg.eigh(xp.asarray([[2.0, 0.0], [0.0, 1.0]]))
    >>> values.tolist(), abs(vectors).tolist()
    ([1.0, 2.0], [[0.0, 1.0], [1.0, 0.0]])
    """
    return EighResult(*_eigh(_square(x, "eigh")))


def eigvalsh(x: Array, /) -> Array:
    """Compute the eigenvalues of symmetric matrices.

    Args:
        x: floats [..., size, size]. Only the lower triangle is read.

    Returns: An array [..., size], ascending.
    Raises: the matrices are not square.

    >>> xp.linalg.eigvalsh(xp.asarray([[2.0, 0.0], [0.0, 1.0]])).tolist()
    [1.0, 2.0]
    """
    return _one(_eigvalsh(_square(x, "eigvalsh")))


def inv(x: Array, /) -> Array:
    """Compute the inverses of square matrices.

    Args:
        x: floats [..., size, size].

    Returns: An array of the shape and data type of `x`.
    Raises: the matrices are not square; when computed, one has no inverse.

    >>> xp.linalg.inv(xp.asarray([[2.0, 0.0], [0.0, 4.0]])).tolist()
    [[0.5, 0.0], [0.0, 0.25]]
    """
    return _one(_inv(_square(x, "inv")))


def matrix_norm(x: Array, /, *, keepdims: bool = False, ord: float | Literal["fro", "nuc"] | None = "fro") -> Array:
    """Compute norms of matrices.

    Args:
        x: floats [..., rows, columns].
        keepdims: whether the two axes stay, with size 1.
        ord: "fro" for the root of the sum of squares, "nuc" for the sum of singular values, 1 and -1 for the largest and
            smallest sum of a column, inf and -inf of a row, 2 and -2 for the largest and smallest singular value.

    Returns: An array [...], in the data type of `x`.
    Raises: `ord` is another one.

    >>> xp.linalg.matrix_norm(xp.asarray([[3.0, 0.0], [0.0, 4.0]])).tolist()
    5.0
    """
    x = _matrices(x, "matrix_norm")
    orders = ("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf, None)
    require(ord in orders, f"matrix_norm: ord must be one of {', '.join(map(repr, orders))}, got {short_repr(ord)}")
    if ord in ("fro", None):
        return vector_norm(x, axis=(-2, -1), keepdims=keepdims)
    if ord in ("nuc", 2, -2):
        values = svdvals(x)
        result = sum(values, axis=-1) if ord == "nuc" else max(values, axis=-1) if ord == 2 else min(values, axis=-1)
    else:
        sums = sum(abs(x), axis=-2 if ord in (1, -1) else -1)
        result = max(sums, axis=-1) if ord in (1, math.inf) else min(sums, axis=-1)
    return reshape(result, (*result.shape, 1, 1)) if keepdims else result


def matrix_power(x: Array, n: int, /) -> Array:
    """Raise square matrices to a power.

    Args:
        x: floats [..., size, size].
        n: the power; negative ones are those of the inverse.

    Returns: An array of the shape and data type of `x`.
    Raises: the matrices are not square, or `n` is not an integer.

    >>> xp.linalg.matrix_power(xp.asarray([[1.0, 1.0], [0.0, 1.0]]), 3).tolist()
    [[1.0, 3.0], [0.0, 1.0]]
    """
    x = _square(x, "matrix_power")
    require(isinstance(n, int) and not isinstance(n, bool), f"matrix_power: n must be an integer, got {short_repr(n)}")
    if n < 0:
        x, n = inv(x), -n
    result: Array | None = None
    while n:
        if n % 2:
            result = x if result is None else matmul(result, x)
        n //= 2
        x = matmul(x, x) if n else x
    if result is None:
        return broadcast_to(eye(x.shape[-1], dtype=x.dtype, device=x.context), x.shape)
    return ops.identity(result)


def matrix_rank(x: Array, /, *, rtol: float | Array | None = None) -> Array:
    """Count the singular values of matrices that are not negligible.

    Args:
        x: floats [..., rows, columns].
        rtol: singular values up to this fraction of the largest one are negligible; default: the larger of rows and columns
            times the distance from 1 to the next number.

    Returns: An int32 array [...].
    Raises: `x` has fewer than two dimensions.

    >>> xp.linalg.matrix_rank(xp.asarray([[1.0, 1.0], [1.0, 1.0]])).tolist()
    1
    """
    x = _matrices(x, "matrix_rank")
    values = svdvals(x)
    limit = _relative(x, rtol) * max(values, axis=-1, keepdims=True)
    return sum(values > limit, axis=-1)


def _relative(x: Array, rtol: float | Array | None) -> Any:
    if rtol is None:
        return float(np.finfo(x.dtype).eps * sorted(x.shape[-2:])[-1])
    return rtol if isinstance(rtol, (int, float)) else expand_dims(convert(as_array(rtol, "rtol"), x.dtype), -1)


def outer(x1: Array, x2: Array, /) -> Array:
    """Multiply each element of a vector by each of another.

    Args:
        x1: integers or floats [rows].
        x2: integers or floats [columns].

    Returns: An array [rows, columns], in the promoted data type.
    Raises: an argument is not a vector.

    >>> xp.linalg.outer(xp.asarray([1, 2]), xp.asarray([3, 4])).tolist()
    [[3, 4], [6, 8]]
    """
    (x1, x2), _ = promote_operands("outer", "numeric", x1, x2)
    require(x1.rank == 1 and x2.rank == 1, f"outer: takes vectors, got {x1.desc} and {x2.desc}")
    return ops.mul(expand_dims(x1, 1), expand_dims(x2, 0))


def pinv(x: Array, /, *, rtol: float | Array | None = None) -> Array:
    """Compute the pseudo-inverses of matrices.

    Args:
        x: floats [..., rows, columns].
        rtol: singular values up to this fraction of the largest one count as 0; default: the larger of rows and columns
            times the distance from 1 to the next number.

    Returns: An array [..., columns, rows], in the data type of `x`.
    Raises: `x` has fewer than two dimensions.

    >>> xp.linalg.pinv(xp.asarray([[2.0, 0.0], [0.0, 0.0]])).tolist()
    [[0.5, 0.0], [0.0, 0.0]]
    """
    x = _matrices(x, "pinv")
    left, values, right = svd(x, full_matrices=False)
    is_kept = values > _relative(x, rtol) * max(values, axis=-1, keepdims=True)
    inverse = ops.where(is_kept, ops.div(1.0, ops.where(is_kept, values, 1.0)), 0.0)
    return matmul(matrix_transpose(right) * expand_dims(inverse, -2), matrix_transpose(left))


def qr(x: Array, /, *, mode: Literal["reduced", "complete"] = "reduced") -> QRResult:
    """Decompose matrices into an orthogonal and an upper triangular one.

    Args:
        x: floats [..., rows, columns].
        mode: "complete" for all columns of the orthogonal matrix, "reduced" for as many as `x` has at most.

    Returns: A named tuple: `Q` [..., rows, inner] and `R` [..., inner, columns].
    Raises: `mode` is another one.

    >>> [part.shape for part in xp.linalg.qr(xp.ones([3, 2]))]
    [(3, 2), (2, 2)]
    """
    require(mode in ("reduced", "complete"), f"qr: mode must be 'reduced' or 'complete', got {short_repr(mode)}")
    return QRResult(*_qr(_matrices(x, "qr"), flag=mode == "complete"))


def slogdet(x: Array, /) -> SlogdetResult:
    """Compute the signs of determinants, and the logarithms of their magnitudes.

    Args:
        x: floats [..., size, size].

    Returns: A named tuple: `sign` and `logabsdet`, arrays [...].
    Raises: the matrices are not square.

    >>> [part.tolist() for part in xp.linalg.slogdet(xp.asarray([[1.0, 0.0], [0.0, -1.0]]))]
    [-1.0, 0.0]
    """
    return SlogdetResult(*_slogdet(_square(x, "slogdet")))


def solve(x1: Array, x2: Array, /) -> Array:
    """Solve systems of linear equations: find y with x1 @ y = x2.

    Args:
        x1: floats [..., size, size].
        x2: floats [..., size, columns], or a vector [size].

    Returns: An array of the shape of `x2`, with the broadcast leading dimensions, in the promoted data type.
    Raises: the matrices are not square, or the sizes differ; when computed, a matrix has no inverse.

    >>> xp.linalg.solve(xp.asarray([[2.0, 0.0], [0.0, 4.0]]), xp.asarray([2.0, 2.0])).tolist()
    [1.0, 0.5]
    """
    (x1, x2), _ = promote_operands("solve", "real floating", x1, x2)
    require(x1.rank >= 2 and x2.rank >= 1, f"solve: takes matrices and vectors, got {x1.desc} and {x2.desc}")
    result: Array = _solve(x1, x2)
    return result


def svd(x: Array, /, *, full_matrices: bool = True) -> SVDResult:
    """Compute singular value decompositions.

    Args:
        x: floats [..., rows, columns].
        full_matrices: whether `U` and `Vh` are square.

    Returns: A named tuple: `U` [..., rows, rows or less], `S` [..., values], descending, `Vh` [..., columns or less, columns].
    Raises: `x` has fewer than two dimensions.

    >>> xp.linalg.svd(xp.asarray([[3.0, 0.0], [0.0, 4.0]])).S.tolist()
    [4.0, 3.0]
    """
    return SVDResult(*_svd(_matrices(x, "svd"), flag=bool(full_matrices)))


def svdvals(x: Array, /) -> Array:
    """Compute singular values.

    Args:
        x: floats [..., rows, columns].

    Returns: An array [..., smaller of rows and columns], descending.
    Raises: `x` has fewer than two dimensions.

    >>> xp.linalg.svdvals(xp.asarray([[3.0, 0.0], [0.0, 4.0]])).tolist()
    [4.0, 3.0]
    """
    return _one(_svdvals(_matrices(x, "svdvals")))


def trace(x: Array, /, *, offset: int = 0, dtype: Any = None) -> Array:
    """Sum the diagonals of matrices.

    Args:
        x: integers or floats [..., rows, columns].
        offset: the diagonal: 0 is the main one, positive numbers are above it, negative ones below.
        dtype: data type of the result, as for `sum`.

    Returns: An array [...].
    Raises: `x` has fewer than two dimensions.

    >>> xp.linalg.trace(xp.asarray([[1, 2], [3, 4]])).tolist()
    5
    """
    return sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)


def vector_norm(
    x: Array, /, *, axis: int | Sequence[int] | None = None, keepdims: bool = False, ord: float = 2
) -> Array:
    """Compute norms of vectors.

    Args:
        x: floats.
        axis: the axes of the vectors; default: all.
        keepdims: whether the axes stay, with size 1.
        ord: the power, for the root of the sum of powers of the magnitudes; inf and -inf for the largest and the smallest
            magnitude, 0 for the number of elements that are not 0.

    Returns: An array without these axes, in the data type of `x`.
    Raises: `ord` is not a number, or an axis is out of range.

    >>> xp.linalg.vector_norm(xp.asarray([3.0, 4.0])).tolist()
    5.0
    """
    x = as_array(x, "vector_norm")
    require_kind(x, "real floating", "vector_norm")
    is_number = isinstance(ord, (int, float)) and not isinstance(ord, bool)
    require(is_number, f"vector_norm: ord must be a number, got {short_repr(ord)}")
    axes = tuple(axes_of(axis, x.rank, "vector_norm"))
    size = abs(convert(x, float32) if x.data_type == "float16" else x)
    if ord == math.inf:
        result = max(size, axis=axes, keepdims=keepdims)
    elif ord == -math.inf:
        result = min(size, axis=axes, keepdims=keepdims)
    elif ord == 0:
        result = sum(convert(size != 0, size.dtype), axis=axes, keepdims=keepdims)
    elif ord == 1:
        result = sum(size, axis=axes, keepdims=keepdims)
    elif ord == 2:
        result = ops.sqrt(sum(ops.mul(size, size), axis=axes, keepdims=keepdims))
    else:
        result = ops.pow(sum(ops.pow(size, float(ord)), axis=axes, keepdims=keepdims), 1 / ord)
    return convert(result, x.dtype)


__all__ = [
    "cholesky", "cross", "det", "diagonal", "eigh", "eigvalsh", "inv", "matmul", "matrix_norm", "matrix_power",
    "matrix_rank", "matrix_transpose", "outer", "pinv", "qr", "slogdet", "solve", "svd", "svdvals", "tensordot", "trace",
    "vecdot", "vector_norm",
]  # fmt: skip

complete(
    {name: globals()[name] for name in __all__ if name not in ("matmul", "matrix_transpose", "tensordot", "vecdot")}
)
publish(globals(), __all__, "linalg.")
