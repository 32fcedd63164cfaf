"""Matrix products as sums: for data types and devices that the tuned kernels do not serve, and to check those."""

from __future__ import annotations

from ....expr import Array, compute, sum_over
from ....ops import matrix as ops
from ....shapes import broadcast
from .positions import own
from .registry import rule


@rule(ops.matmul)
def _(a: Array, b: Array) -> Array:
    (rows, inner), columns = a.shape[-2:], b.shape[-1]
    batches = broadcast(a.shape[:-2], b.shape[:-2])

    def element(*p: Array) -> Array:
        *batch, i, j = p
        left, right = _stack(a, batch), _stack(b, batch)
        return sum_over(inner, lambda k: a[(*left, i, k)] * b[(*right, k, j)])

    return compute((*batches, rows, columns), element)


def _stack(matrices: Array, batch: list[Array]) -> tuple[Array | int, ...]:
    """The position of a matrix in a stack of them that broadcasts."""
    sizes = matrices.shape[:-2]
    trailing = batch[len(batch) - len(sizes) :]
    return tuple(0 if size == 1 else position for size, position in zip(sizes, trailing, strict=True))


@rule(ops.gemm)
def _(a: Array, b: Array, c: Array | None, alpha: float, beta: float, a_transpose: bool, b_transpose: bool) -> Array:
    rows, inner = reversed(a.shape) if a_transpose else a.shape
    columns = b.shape[0 if b_transpose else 1]

    def element(i: Array, j: Array) -> Array:
        def term(k: Array) -> Array:
            return (a[k, i] if a_transpose else a[i, k]) * (b[j, k] if b_transpose else b[k, j])

        product = sum_over(inner, term)
        product = product if alpha == 1 else product * alpha
        if c is None:
            return product
        addend = c[own(c, (i, j))]
        return product + (addend if beta == 1 else addend * beta)

    return compute((rows, columns), element)
