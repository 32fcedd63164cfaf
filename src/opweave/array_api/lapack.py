"""Decompositions of matrices, of floats and of complex numbers, which NumPy's LAPACK computes when the graph runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.dtypes import FLOATS
from ..core.graph import Builder, Desc, Operand
from ..core.operation import Limits, N, Op
from ..core.shapes import broadcast
from ..support.errors import require
from .complex_array import COMPLEX_OF
from .host import on_host

_MATRICES = Limits(FLOATS, ranks=(2, N))

Shape = tuple[int, ...]


def joined(real: np.ndarray, imag: np.ndarray) -> np.ndarray:
    """Join the parts of complex numbers in NumPy. An infinite part times 1j would be NaN in the other one."""
    values: np.ndarray = np.empty(real.shape, COMPLEX_OF[real.dtype.name])
    values.real, values.imag = real, imag
    return values


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32) if x.dtype == np.float16 else x


def _fill(out: Any, results: Any, kinds: str) -> None:
    """Write results to the arrays in `out`: one array for a result of kind "f", its two parts for one of kind "c"."""
    targets = iter(out if isinstance(out, tuple) else (out,))
    for result, kind in zip(results if isinstance(results, tuple) else (results,), kinds, strict=True):
        parts = (result.real, result.imag) if kind == "c" else (result,)
        for part in parts:
            next(targets)[...] = part


@dataclass(frozen=True)
class Decomposition:
    """A function of matrices of floats, and of the parts of matrices of complex numbers.

    Attributes:
        kinds: a letter for each result of complex matrices: "c" for two parts of complex numbers, "f" for floats.
    """

    of_floats: Op[..., Any]
    of_parts: Op[..., Any]
    kinds: str


def _decomposition(
    name: str,
    shapes: Callable[..., tuple[Shape, ...]],
    compute: Callable[..., Any],
    kinds: str,
    is_square: bool = True,
) -> Decomposition:
    """Declare a decomposition of matrices.

    Args:
        name: the name in messages.
        shapes: the shapes of the results for the batch, the rows and the columns of `x`, and the attribute `flag`.
        compute: one of NumPy's functions of `x` and `flag`.
        kinds: as in `Decomposition`.
        is_square: whether the function takes square matrices only.
    """

    def descs_of(x: Operand, flag: bool) -> tuple[Desc, ...]:
        rows, columns = x.shape[-2:]
        require(not is_square or rows == columns, f"takes square matrices, got {x.desc}")
        return tuple(Desc(x.data_type, shape) for shape in shapes(x.shape[:-2], rows, columns, flag))

    def rule(self: Builder, x: Operand, *, flag: bool = False, label: str = "") -> tuple[Desc, ...]:
        return descs_of(x, flag)

    def kernel(x: np.ndarray, flag: bool, out: Any) -> None:
        _fill(out, compute(_wide(x), flag), "f" * len(kinds))

    def rule_of_parts(
        self: Builder, real: Operand, imag: Operand, *, flag: bool = False, label: str = ""
    ) -> tuple[Desc, ...]:
        descs = zip(descs_of(real, flag), kinds, strict=True)
        return tuple(part for desc, kind in descs for part in ((desc, desc) if kind == "c" else (desc,)))

    def kernel_of_parts(real: np.ndarray, imag: np.ndarray, flag: bool, out: Any) -> None:
        _fill(out, compute(joined(real, imag), flag), kinds)

    return Decomposition(
        on_host(name, rule, kernel, x=_MATRICES),
        on_host(name, rule_of_parts, kernel_of_parts, real=_MATRICES, imag=Limits("real")),
        kinds,
    )


def _svd_shapes(batch: Shape, rows: int, columns: int, full: bool) -> tuple[Shape, Shape, Shape]:
    rank = rows if rows < columns else columns
    left, right = (rows, columns) if full else (rank, rank)
    return (*batch, rows, left), (*batch, rank), (*batch, right, columns)


def _qr_shapes(batch: Shape, rows: int, columns: int, full: bool) -> tuple[Shape, Shape]:
    inner = rows if full or rows < columns else columns
    return (*batch, rows, inner), (*batch, inner, columns)


cholesky = _decomposition(
    "cholesky", lambda b, r, c, _: ((*b, r, c),), lambda x, upper: np.linalg.cholesky(x, upper=upper), "c"
)
det = _decomposition("det", lambda b, r, c, _: (b,), lambda x, _: np.linalg.det(x), "c")
eigh = _decomposition("eigh", lambda b, r, c, _: ((*b, r), (*b, r, c)), lambda x, _: tuple(np.linalg.eigh(x)), "fc")
eigvalsh = _decomposition("eigvalsh", lambda b, r, c, _: ((*b, r),), lambda x, _: np.linalg.eigvalsh(x), "f")
inv = _decomposition("inv", lambda b, r, c, _: ((*b, r, c),), lambda x, _: np.linalg.inv(x), "c")
qr = _decomposition(
    "qr", _qr_shapes, lambda x, full: tuple(np.linalg.qr(x, "complete" if full else "reduced")), "cc", is_square=False
)
slogdet = _decomposition("slogdet", lambda b, r, c, _: (b, b), lambda x, _: tuple(np.linalg.slogdet(x)), "cf")
svd = _decomposition(
    "svd", _svd_shapes, lambda x, full: tuple(np.linalg.svd(x, full_matrices=full)), "cfc", is_square=False
)
svdvals = _decomposition(
    "svdvals",
    lambda b, r, c, _: ((*b, r if r < c else c),),
    lambda x, _: np.linalg.svd(x, compute_uv=False),
    "f",
    is_square=False,
)


def _solution(x1: Operand, x2: Operand) -> Desc:
    rows, columns = x1.shape[-2:]
    require(rows == columns, f"takes square matrices as x1, got {x1.desc}")
    if x2.rank == 1:
        require(x2.shape == (rows,), f"x2 must have {rows} elements for {x1.desc}, got {x2.desc}")
        return Desc(x1.data_type, x1.shape[:-1])
    require(x2.shape[-2] == rows, f"x2 must have {rows} rows for {x1.desc}, got {x2.desc}")
    return Desc(x1.data_type, (*broadcast(x1.shape[:-2], x2.shape[:-2]), rows, x2.shape[-1]))


def _solve_rule(self: Builder, x1: Operand, x2: Operand, *, label: str = "") -> Desc:
    return _solution(x1, x2)


def _solve_kernel(x1: np.ndarray, x2: np.ndarray, out: np.ndarray) -> None:
    out[...] = np.linalg.solve(_wide(x1), _wide(x2))


def _solve_rule_of_parts(
    self: Builder, real: Operand, imag: Operand, real2: Operand, imag2: Operand, *, label: str = ""
) -> tuple[Desc, Desc]:
    desc = _solution(real, real2)
    return desc, desc


def _solve_kernel_of_parts(real: np.ndarray, imag: np.ndarray, real2: np.ndarray, imag2: np.ndarray, out: Any) -> None:
    _fill(out, np.linalg.solve(joined(real, imag), joined(real2, imag2)), "c")


_VECTORS = Limits("real", ranks=(1, N))

solve = Decomposition(
    on_host("solve", _solve_rule, _solve_kernel, x1=_MATRICES, x2=Limits("x1", ranks=(1, N))),
    on_host(
        "solve",
        _solve_rule_of_parts,
        _solve_kernel_of_parts,
        real=_MATRICES,
        imag=Limits("real"),
        real2=_VECTORS,
        imag2=_VECTORS,
    ),
    "c",
)
