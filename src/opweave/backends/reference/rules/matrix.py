"""Reference rules: matrix products."""

from __future__ import annotations

from ....ops import matrix as ops
from ..backend import Array, reference


@reference.lower(ops.matmul)
def _(a: Array, b: Array) -> Array:
    return a @ b


@reference.lower(ops.gemm)
def _(a: Array, b: Array, c: Array | None, alpha: float, beta: float, a_transpose: bool, b_transpose: bool) -> Array:
    product = alpha * ((a.T if a_transpose else a) @ (b.T if b_transpose else b))
    return product if c is None else product + beta * c
