"""ONNX matrix products."""

from __future__ import annotations

from ....context.builder import MLGraphBuilder
from ....core.graph import MLOperand
from ...model.registry import MICROSOFT, Tensor, converts, unsupported_if
from .activation import activate


@converts("MatMul")
def _product(b: MLGraphBuilder, left: MLOperand, right: MLOperand) -> MLOperand:
    """A matrix product. A vector is a row (left) or a column (right), and the result lacks the axis added for it."""
    unsupported_if(not left.rank or not right.rank, "a scalar is not a matrix")
    row = b.reshape(left, [1, *left.shape]) if left.rank == 1 else left
    column = b.reshape(right, [*right.shape, 1]) if right.rank == 1 else right
    product = b.matmul(row, column)
    shape = list(product.shape)
    if left.rank == 1:
        del shape[-2]
    if right.rank == 1:
        del shape[-1]
    return product if len(shape) == product.rank else b.reshape(product, shape)


@converts("FusedMatMul", domain=MICROSOFT)
def fused_product(
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
    product = _product(b, _transpose(b, left, transA, transBatchA), _transpose(b, right, transB, transBatchB))
    return product if alpha == 1 else b.mul(product, alpha)


def _transpose(b: MLGraphBuilder, x: MLOperand, trans: int, trans_batch: int) -> MLOperand:
    """Transpose a factor to [batches..., rows, columns].

    The axes of `x` are [batches..., columns, rows] with `trans`, [rows, batches..., columns] with `trans_batch`, and
    [columns, batches..., rows] with both.
    """
    if x.rank < 2 or not (trans or trans_batch):
        return x
    axes = list(range(x.rank))
    if trans_batch:
        axes = [*axes[1:-1], axes[0], axes[-1]]
    if trans:
        axes[-2:] = axes[-1], axes[-2]
    return b.transpose(x, permutation=axes)


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
    # With a beta of 0, ONNX does not read C, which may be NaN or infinite.
    return b.gemm(
        A, B, c=C if beta else None, alpha=alpha, beta=beta, a_transpose=bool(transA), b_transpose=bool(transB)
    )


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
    activation_gamma: float = 0.0,  # for Selu alone; `activate` does not support Selu
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> MLOperand:
    product = gemm(b, A, B, C, alpha=alpha, beta=beta, transA=transA, transB=transB)
    return activate(b, product, activation, (activation_alpha, activation_beta))
