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
from ..lazy.array import Array
from ..support.errors import require
from ..support.names import short_repr
from . import lapack
from .arguments import INTEGERS, as_array, axes_of, axis_of, convert, promote_operands, require_kind
from .creation import eye
from .docs import complete
from .elementwise import abs
from .manipulation import broadcast_arrays, broadcast_to, expand_dims, matrix_transpose, moveaxis, reshape, stack
from .products import matmul, tensordot, vecdot
from .public import publish
from .statistics import max, min, sum
from .types import float32


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
    """Decompose positive definite matrices into a triangular matrix and its conjugate transpose.

    Args:
        x: floats or complex numbers [..., size, size]. Only one triangle is read.
        upper: whether the result is upper triangular.

    Returns: An array of the shape and data type of `x`.
    Raises: the matrices are not square; when computed, one is not positive definite.

    >>> xp.linalg.cholesky(xp.asarray([[4.0, 2.0], [2.0, 2.0]])).tolist()
    [[2.0, 0.0], [1.0, 1.0]]
    """
    return _one(lapack.cholesky.of_floats(_square(x, "cholesky"), flag=bool(upper)))


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
        x: floats or complex numbers [..., size, size].

    Returns: An array [...], in the data type of `x`.
    Raises: the matrices are not square.

    >>> xp.linalg.det(xp.asarray([[2.0, 0.0], [0.0, 3.0]])).tolist()
    6.0
    """
    return _one(lapack.det.of_floats(_square(x, "det")))


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
        x: floats or complex numbers [..., size, size]. Only the lower triangle is read.

    Returns: A named tuple: `eigenvalues` [..., size], ascending, and `eigenvectors` [..., size, size], as columns.
    Raises: the matrices are not square.

    >>> values, vectors = xp.linalg.eigh(xp.asarray([[2.0, 0.0], [0.0, 1.0]]))
    >>> values.tolist(), abs(vectors).tolist()
    ([1.0, 2.0], [[0.0, 1.0], [1.0, 0.0]])
    """
    return EighResult(*lapack.eigh.of_floats(_square(x, "eigh")))


def eigvalsh(x: Array, /) -> Array:
    """Compute the eigenvalues of symmetric matrices.

    Args:
        x: floats or complex numbers [..., size, size]. Only the lower triangle is read.

    Returns: An array [..., size], ascending.
    Raises: the matrices are not square.

    >>> xp.linalg.eigvalsh(xp.asarray([[2.0, 0.0], [0.0, 1.0]])).tolist()
    [1.0, 2.0]
    """
    return _one(lapack.eigvalsh.of_floats(_square(x, "eigvalsh")))


def inv(x: Array, /) -> Array:
    """Compute the inverses of square matrices.

    Args:
        x: floats or complex numbers [..., size, size].

    Returns: An array of the shape and data type of `x`.
    Raises: the matrices are not square; when computed, one has no inverse.

    >>> xp.linalg.inv(xp.asarray([[2.0, 0.0], [0.0, 4.0]])).tolist()
    [[0.5, 0.0], [0.0, 0.25]]
    """
    return _one(lapack.inv.of_floats(_square(x, "inv")))


def matrix_norm(x: Array, /, *, keepdims: bool = False, ord: float | Literal["fro", "nuc"] | None = "fro") -> Array:
    """Compute norms of matrices.

    Args:
        x: floats or complex numbers [..., rows, columns].
        keepdims: whether the two axes stay, with size 1.
        ord: "fro" for the root of the sum of squares, "nuc" for the sum of singular values, 1 and -1 for the largest and
            smallest sum of a column, inf and -inf of a row, 2 and -2 for the largest and smallest singular value.

    Returns: An array [...], in the data type of `x`.
    Raises: `ord` is another one.

    >>> xp.linalg.matrix_norm(xp.asarray([[3.0, 0.0], [0.0, 4.0]])).tolist()
    5.0
    """
    x = _matrices(x, "matrix_norm")
    return norm_of_matrices(lambda: abs(x), lambda: svdvals(x), keepdims, ord)


def norm_of_matrices(
    magnitudes: Callable[[], Array], singular_values: Callable[[], Array], keepdims: bool, ord: Any
) -> Array:
    """Compute norms of matrices from the magnitudes of their elements, or from their singular values."""
    orders = ("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf, None)
    require(ord in orders, f"matrix_norm: ord must be one of {', '.join(map(repr, orders))}, got {short_repr(ord)}")
    if ord in ("fro", None):
        return vector_norm(magnitudes(), axis=(-2, -1), keepdims=keepdims)
    if ord in ("nuc", 2, -2):
        values = singular_values()
    else:
        values = sum(magnitudes(), axis=-2 if ord in (1, -1) else -1)
    is_empty = values.shape[-1] == 0
    if ord == "nuc" or (is_empty and ord in (1, 2, math.inf)):
        result = sum(values, axis=-1)
    elif ord in (1, 2, math.inf):
        result = max(values, axis=-1)
    else:
        require(not is_empty, f"matrix_norm: ord {ord} is a minimum, which matrices without elements lack")
        result = min(values, axis=-1)
    return reshape(result, (*result.shape, 1, 1)) if keepdims else result


def matrix_power(x: Array, n: int, /) -> Array:
    """Raise square matrices to a power.

    Args:
        x: floats or complex numbers [..., size, size].
        n: the power; negative ones are those of the inverse.

    Returns: An array of the shape and data type of `x`.
    Raises: the matrices are not square, or `n` is not an integer.

    >>> xp.linalg.matrix_power(xp.asarray([[1.0, 1.0], [0.0, 1.0]]), 3).tolist()
    [[1.0, 3.0], [0.0, 1.0]]
    """
    x = _square(x, "matrix_power")
    result: Array | None = power_of(x, n, inv)
    if result is None:
        return broadcast_to(eye(x.shape[-1], dtype=x.dtype, device=x.context), x.shape)
    return result


def power_of(x: Any, n: int, inverse: Callable[[Any], Any]) -> Any:
    """Multiply matrices of floats or complex numbers with themselves, by squares; return None for the power 0."""
    is_integer = isinstance(n, INTEGERS) and not isinstance(n, bool)
    require(is_integer, f"matrix_power: n must be an integer, got {short_repr(n)}")
    if n < 0:
        x, n = inverse(x), -n
    result: Any = None
    while n:
        if n % 2:
            result = +x if result is None else result @ x
        n //= 2
        x = x @ x if n else x
    return result


def matrix_rank(x: Array, /, *, rtol: float | Array | None = None) -> Array:
    """Count the singular values of matrices that are not negligible.

    Args:
        x: floats or complex numbers [..., rows, columns].
        rtol: singular values up to this fraction of the largest one are negligible; default: the larger of rows and columns
            times the distance from 1 to the next number.

    Returns: An int32 array [...].
    Raises: `x` has fewer than two dimensions.

    >>> xp.linalg.matrix_rank(xp.asarray([[1.0, 1.0], [1.0, 1.0]])).tolist()
    1
    """
    x = _matrices(x, "matrix_rank")
    return sum(are_large(svdvals(x), x.shape, rtol), axis=-1)


def are_large(values: Array, shape: Sequence[int], rtol: float | Array | None) -> Array:
    """Test which singular values of matrices exceed the fraction `rtol` of the largest one."""
    limit: Any = rtol
    if rtol is None:
        limit = float(np.finfo(values.dtype).eps * sorted(shape[-2:])[-1])
    elif not isinstance(rtol, (int, float)):
        limit = expand_dims(convert(as_array(rtol, "rtol"), values.dtype), -1)
    result: Array = values > limit * max(values, axis=-1, keepdims=True)
    return result


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
        x: floats or complex numbers [..., rows, columns].
        rtol: singular values up to this fraction of the largest one count as 0; default: the larger of rows and columns
            times the distance from 1 to the next number.

    Returns: An array [..., columns, rows], in the data type of `x`.
    Raises: `x` has fewer than two dimensions.

    >>> xp.linalg.pinv(xp.asarray([[2.0, 0.0], [0.0, 0.0]])).tolist()
    [[0.5, 0.0], [0.0, 0.0]]
    """
    x = _matrices(x, "pinv")
    left, values, right = svd(x, full_matrices=False)
    inverse = inverse_of(values, x.shape, rtol)
    return matmul(matrix_transpose(right) * inverse, matrix_transpose(left))


def inverse_of(values: Array, shape: Sequence[int], rtol: float | Array | None) -> Array:
    """Divide 1 by the singular values of matrices that are not negligible, as one row each; 0 for the others."""
    is_kept = are_large(values, shape, rtol)
    return expand_dims(ops.where(is_kept, ops.div(1.0, ops.where(is_kept, values, 1.0)), 0.0), -2)


def qr(x: Array, /, *, mode: Literal["reduced", "complete"] = "reduced") -> QRResult:
    """Decompose matrices into an orthogonal (unitary) and an upper triangular one.

    Args:
        x: floats or complex numbers [..., rows, columns].
        mode: "complete" for all columns of the orthogonal matrix, "reduced" for as many as `x` has at most.

    Returns: A named tuple: `Q` [..., rows, inner] and `R` [..., inner, columns].
    Raises: `mode` is another one.

    >>> [part.shape for part in xp.linalg.qr(xp.ones([3, 2]))]
    [(3, 2), (2, 2)]
    """
    require(mode in ("reduced", "complete"), f"qr: mode must be 'reduced' or 'complete', got {short_repr(mode)}")
    return QRResult(*lapack.qr.of_floats(_matrices(x, "qr"), flag=mode == "complete"))


def slogdet(x: Array, /) -> SlogdetResult:
    """Compute the signs of determinants, and the logarithms of their magnitudes.

    Args:
        x: floats or complex numbers [..., size, size].

    Returns: A named tuple: `sign` and `logabsdet`, arrays [...].
    Raises: the matrices are not square.

    >>> [part.tolist() for part in xp.linalg.slogdet(xp.asarray([[1.0, 0.0], [0.0, -1.0]]))]
    [-1.0, 0.0]
    """
    return SlogdetResult(*lapack.slogdet.of_floats(_square(x, "slogdet")))


def solve(x1: Array, x2: Array, /) -> Array:
    """Solve systems of linear equations: find y with x1 @ y = x2.

    Args:
        x1: floats or complex numbers [..., size, size].
        x2: floats or complex numbers [..., size, columns], or a vector [size].

    Returns: An array of the shape of `x2`, with the broadcast leading dimensions, in the promoted data type.
    Raises: the matrices are not square, or the sizes differ; when computed, a matrix has no inverse.

    >>> xp.linalg.solve(xp.asarray([[2.0, 0.0], [0.0, 4.0]]), xp.asarray([2.0, 2.0])).tolist()
    [1.0, 0.5]
    """
    (x1, x2), _ = promote_operands("solve", "real floating", x1, x2)
    require(x1.rank >= 2 and x2.rank >= 1, f"solve: takes matrices and vectors, got {x1.desc} and {x2.desc}")
    result: Array = lapack.solve.of_floats(x1, x2)
    return result


def svd(x: Array, /, *, full_matrices: bool = True) -> SVDResult:
    """Compute singular value decompositions.

    Args:
        x: floats or complex numbers [..., rows, columns].
        full_matrices: whether `U` and `Vh` are square.

    Returns: A named tuple: `U` [..., rows, rows or less], `S` [..., values], descending, `Vh` [..., columns or less, columns].
    Raises: `x` has fewer than two dimensions.

    >>> xp.linalg.svd(xp.asarray([[3.0, 0.0], [0.0, 4.0]])).S.tolist()
    [4.0, 3.0]
    """
    return SVDResult(*lapack.svd.of_floats(_matrices(x, "svd"), flag=bool(full_matrices)))


def svdvals(x: Array, /) -> Array:
    """Compute singular values.

    Args:
        x: floats or complex numbers [..., rows, columns].

    Returns: An array [..., smaller of rows and columns], descending.
    Raises: `x` has fewer than two dimensions.

    >>> xp.linalg.svdvals(xp.asarray([[3.0, 0.0], [0.0, 4.0]])).tolist()
    [4.0, 3.0]
    """
    return _one(lapack.svdvals.of_floats(_matrices(x, "svdvals")))


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
