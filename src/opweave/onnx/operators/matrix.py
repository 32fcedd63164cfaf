"""ONNX matrix products."""

from __future__ import annotations

from ...builder import MLGraphBuilder
from ...graph import MLOperand
from ..registry import MICROSOFT, Tensor, converts, unsupported_if
from .activation import activated


@converts("MatMul")
def _product(b: MLGraphBuilder, left: MLOperand, right: MLOperand) -> MLOperand:
    """A matrix product; a vector on the left is a row, on the right a column, and the result lacks that axis."""
    unsupported_if(not left.rank or not right.rank, "a scalar is not a matrix")
    row = b.reshape(left, [1, *left.shape]) if left.rank == 1 else left
    column = b.reshape(right, [*right.shape, 1]) if right.rank == 1 else right
    product = b.matmul(row, column)
    *batches, rows, columns = product.shape
    shape = [*batches, *[rows] * (left.rank > 1), *[columns] * (right.rank > 1)]
    return product if len(shape) == product.rank else b.reshape(product, shape)


@converts("FusedMatMul", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    left: MLOperand,
    right: MLOperand,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Tensor:
    if left.rank == right.rank == 2:
        return b.gemm(left, right, alpha=alpha, a_transpose=bool(transA), b_transpose=bool(transB))
    product = _product(b, _turned(b, left, transA, transBatchA), _turned(b, right, transB, transBatchB))
    return product if alpha == 1 else b.mul(product, alpha)


def _turned(b: MLGraphBuilder, x: MLOperand, trans: int, trans_batch: int) -> MLOperand:
    """A factor with its axes in order, [batches..., rows, columns].

    `trans_batch` means that the rows come before the batches, `trans` that rows and columns are exchanged.
    """
    if x.rank < 2 or not (trans or trans_batch):
        return x
    *rest, columns = range(x.rank)
    *batch, rows = [*rest[1:], rest[0]] if trans_batch else rest
    return b.transpose(x, permutation=[*batch, columns, rows] if trans else [*batch, rows, columns])


@converts("Gemm")
def gemm(
    b: MLGraphBuilder,
    A: MLOperand,
    B: MLOperand,
    C: MLOperand | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> MLOperand:
    return b.gemm(A, B, c=C, alpha=alpha, beta=beta, a_transpose=bool(transA), b_transpose=bool(transB))


@converts("FusedGemm", domain=MICROSOFT)
def _(
    b: MLGraphBuilder,
    A: MLOperand,
    B: MLOperand,
    C: MLOperand | None = None,
    *,
    activation: str = "",
    activation_alpha: float = 0.0,
    activation_beta: float = 0.0,
    activation_gamma: float = 0.0,  # of Selu, which is not fused
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> MLOperand:
    product = gemm(b, A, B, C, alpha=alpha, beta=beta, transA=transA, transB=transB)
    return activated(b, product, activation, (activation_alpha, activation_beta))
