"""Matrix products."""

from __future__ import annotations

from typing import Any

from ... import composites
from ...context.builder import MLGraphBuilder
from ...core.graph import MLOperand
from ..registry import as_type, converts
from .elementwise import is_one
from .shapes import swap


def transposed(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    """Exchange the last two axes of an operand; for the result of such a transposition, return what was transposed."""
    node = x.node
    if node is not None and node.op.name == "transpose" and x.rank == 2:
        (source,) = node.operands
        return source
    return swap(b, x, -2, -1)


@converts("aten.linear.default")
def _(b: MLGraphBuilder, input: MLOperand, weight: MLOperand, bias: MLOperand | None = None) -> MLOperand:
    if weight.rank == 1:
        y = product(b, input, weight)
        return y if bias is None else b.add(y, bias)
    if input.rank == 1:
        y = b.reshape(b.matmul(b.reshape(input, [1, input.shape[0]]), transposed(b, weight)), [weight.shape[0]])
    elif input.rank == 2:
        return b.gemm(input, weight, c=bias, b_transpose=True)
    else:
        y = b.matmul(input, transposed(b, weight))
    return y if bias is None else b.add(y, bias)


@converts("aten.addmm.default")
def _(
    b: MLGraphBuilder, self: MLOperand, mat1: MLOperand, mat2: MLOperand, *, beta: Any = 1, alpha: Any = 1
) -> MLOperand:
    return b.gemm(mat1, mat2, c=self if beta != 0 else None, alpha=alpha, beta=beta)


@converts("aten.addmv.default")
def _(
    b: MLGraphBuilder, self: MLOperand, mat: MLOperand, vec: MLOperand, *, beta: Any = 1, alpha: Any = 1
) -> MLOperand:
    y = product(b, mat, vec)
    y = y if is_one(alpha) else b.mul(y, as_type(b, alpha, y.data_type))
    return y if beta == 0 else b.add(y, self if is_one(beta) else b.mul(self, as_type(b, beta, y.data_type)))


@converts("aten.baddbmm.default")
def _(
    b: MLGraphBuilder, self: MLOperand, batch1: MLOperand, batch2: MLOperand, *, beta: Any = 1, alpha: Any = 1
) -> MLOperand:
    y = b.matmul(batch1, batch2)
    y = y if is_one(alpha) else b.mul(y, as_type(b, alpha, y.data_type))
    return y if beta == 0 else b.add(y, self if is_one(beta) else b.mul(self, as_type(b, beta, y.data_type)))


@converts("aten.addbmm.default")
def _(
    b: MLGraphBuilder, self: MLOperand, batch1: MLOperand, batch2: MLOperand, *, beta: Any = 1, alpha: Any = 1
) -> MLOperand:
    y = b.reduce_sum(b.matmul(batch1, batch2), axes=[0])
    y = y if is_one(alpha) else b.mul(y, as_type(b, alpha, y.data_type))
    return y if beta == 0 else b.add(y, self if is_one(beta) else b.mul(self, as_type(b, beta, y.data_type)))


@converts("aten.linalg_inv_ex.default")
def _(b: MLGraphBuilder, A: MLOperand, check_errors: bool = False) -> tuple[MLOperand, MLOperand]:  # noqa: N803
    return composites.inverse(b, A), b.expand(as_type(b, 0, "int32"), A.shape[:-2])


@converts("aten._linalg_det.default")
def _(b: MLGraphBuilder, A: MLOperand) -> tuple[MLOperand | None, ...]:  # noqa: N803
    return composites.det(b, A), None, None


@converts("aten.mm.default", "aten.bmm.default", "aten.matmul.default", "aten.mv.default", "aten.dot.default")
def _(b: MLGraphBuilder, self: MLOperand, other: MLOperand) -> MLOperand:
    return product(b, self, other)


def product(b: MLGraphBuilder, x: MLOperand, y: MLOperand) -> MLOperand:
    """The product of matrices, or batches of them; a vector is a row at the left, and a column at the right."""
    rows, columns = x.rank == 1, y.rank == 1
    left = b.reshape(x, [1, x.shape[0]]) if rows else x
    right = b.reshape(y, [y.shape[0], 1]) if columns else y
    z = b.matmul(left, right)
    if not rows and not columns:
        return z
    lead = list(z.shape[:-2])
    return b.reshape(z, lead + ([] if rows else [z.shape[-2]]) + ([] if columns else [z.shape[-1]]))
