"""The extension `linalg` for matrices of complex numbers: decompositions by NumPy's LAPACK, and what follows from them."""

from __future__ import annotations

from typing import Any, Literal

from .. import ops
from ..lazy.array import Array
from ..support.errors import require
from ..support.names import short_repr
from . import lapack, linalg, manipulation, statistics, transcendental
from .complex_array import ComplexArray
from .complex_numbers import promote_complex, to_complex
from .creation import eye
from .public import on_complex


def _matrices(x: Any, name: str) -> ComplexArray:
    (matrices,) = promote_complex(name, x)
    require(matrices.ndim >= 2, f"{name}: takes matrices, got {matrices.desc}")
    return matrices


def _square(x: Any, name: str) -> ComplexArray:
    matrices = _matrices(x, name)
    require(matrices.shape[-1] == matrices.shape[-2], f"{name}: takes square matrices, got {matrices.desc}")
    return matrices


def _run(decomposition: lapack.Decomposition, *operands: ComplexArray, **attributes: Any) -> list[Any]:
    """Call a decomposition on the parts of matrices; return its results, of complex numbers or floats."""
    results = decomposition.of_parts(*(part for x in operands for part in (x.real, x.imag)), **attributes)
    parts = iter(results)
    return [ComplexArray(next(parts), next(parts)) if kind == "c" else next(parts) for kind in decomposition.kinds]


def _adjoint(x: ComplexArray) -> ComplexArray:
    return ComplexArray(x.real.mT, ops.neg(x.imag.mT))


@on_complex("linalg.cholesky")
def _cholesky(x: Any, /, *, upper: bool = False) -> Any:
    return _run(lapack.cholesky, _square(x, "cholesky"), flag=bool(upper))[0]


@on_complex("linalg.det")
def _det(x: Any, /) -> Any:
    return _run(lapack.det, _square(x, "det"))[0]


@on_complex("linalg.eigh")
def _eigh(x: Any, /) -> linalg.EighResult:
    return linalg.EighResult(*_run(lapack.eigh, _square(x, "eigh")))


@on_complex("linalg.eigvalsh")
def _eigvalsh(x: Any, /) -> Any:
    return _run(lapack.eigvalsh, _square(x, "eigvalsh"))[0]


@on_complex("linalg.inv")
def _inv(x: Any, /) -> Any:
    return _run(lapack.inv, _square(x, "inv"))[0]


@on_complex("linalg.matrix_norm")
def _matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Array:
    x = _matrices(x, "matrix_norm")
    return linalg.norm_of_matrices(lambda: transcendental.hypot(x.real, x.imag), lambda: _svdvals(x), keepdims, ord)


@on_complex("linalg.matrix_power")
def _matrix_power(x: Any, n: int, /) -> ComplexArray:
    x = _square(x, "matrix_power")
    result: ComplexArray | None = linalg.power_of(x, n, _inv)
    if result is None:
        identity = eye(x.shape[-1], dtype=x.real.dtype, device=x.context)
        return to_complex(manipulation.broadcast_to(identity, x.shape), x.dtype, "matrix_power")
    return result


@on_complex("linalg.matrix_rank")
def _matrix_rank(x: Any, /, *, rtol: float | Array | None = None) -> Array:
    x = _matrices(x, "matrix_rank")
    return statistics.sum(linalg.are_large(_svdvals(x), x.shape, rtol), axis=-1)


@on_complex("linalg.pinv")
def _pinv(x: Any, /, *, rtol: float | Array | None = None) -> ComplexArray:
    x = _matrices(x, "pinv")
    left, values, right = _run(lapack.svd, x, flag=False)
    inverse, right = linalg.inverse_of(values, x.shape, rtol), _adjoint(right)
    return ComplexArray(ops.mul(right.real, inverse), ops.mul(right.imag, inverse)) @ _adjoint(left)


@on_complex("linalg.qr")
def _qr(x: Any, /, *, mode: Literal["reduced", "complete"] = "reduced") -> linalg.QRResult:
    require(mode in ("reduced", "complete"), f"qr: mode must be 'reduced' or 'complete', got {short_repr(mode)}")
    return linalg.QRResult(*_run(lapack.qr, _matrices(x, "qr"), flag=mode == "complete"))


@on_complex("linalg.slogdet")
def _slogdet(x: Any, /) -> linalg.SlogdetResult:
    return linalg.SlogdetResult(*_run(lapack.slogdet, _square(x, "slogdet")))


@on_complex("linalg.solve")
def _solve(x1: Any, x2: Any, /) -> Any:
    a, b = promote_complex("solve", x1, x2)
    require(a.ndim >= 2 and b.ndim >= 1, f"solve: takes matrices and vectors, got {a.desc} and {b.desc}")
    return _run(lapack.solve, a, b)[0]


@on_complex("linalg.svd")
def _svd(x: Any, /, *, full_matrices: bool = True) -> linalg.SVDResult:
    return linalg.SVDResult(*_run(lapack.svd, _matrices(x, "svd"), flag=bool(full_matrices)))


@on_complex("linalg.svdvals")
def _svdvals(x: Any, /) -> Any:
    return _run(lapack.svdvals, _matrices(x, "svdvals"))[0]
