"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ... import composites
from ...composites.contraction import contract
from ...context.builder import MLGraphBuilder
from ...core.dtypes import DataType
from ...core.graph import MLOperand
from ...core.sizes import Size
from ...ops.constants import line
from ..registry import BFLOAT16, AtenCall, as_type, converts, refuse_if
from .elementwise import is_one
from .shapes import swap


def swap_last_axes(b: MLGraphBuilder, x: MLOperand) -> MLOperand:
    """Swap the last two axes of an operand; of an operand whose axes were swapped already, return the original."""
    node = x.node
    if node is not None and node.op.name == "transpose" and x.rank == 2:
        (source,) = node.operands
        return source
    return swap(b, x, -2, -1)


def _before_cast(weight: MLOperand) -> MLOperand | None:
    """The float32 operand of a cast of a dequantised matrix to bfloat16; None for other operands.

    Without the cast, kernels of products read the integers of the matrix.
    """
    node = weight.node
    if weight.data_type != BFLOAT16 or node is None or node.op.name != "cast":
        return None
    (wide,) = node.operands
    source = wide.node
    while source is not None and source.op.name == "transpose":
        source = source.operands[0].node
    return wide if source is not None and source.op.name == "dequantize_linear" else None


@converts("aten.linear.default")
def linear(b: MLGraphBuilder, input: MLOperand, weight: MLOperand, bias: MLOperand | None = None) -> MLOperand:
    """Multiply rows by the transposed weight, and add a bias."""
    if (wide := _before_cast(weight)) is not None:
        x, added = as_type(b, input, "float32"), None if bias is None else as_type(b, bias, "float32")
        return as_type(b, linear(b, x, wide, added), BFLOAT16)
    if weight.rank == 1:
        y = product(b, input, weight)
        return y if bias is None else b.add(y, bias)
    if input.rank == 1:
        y = b.reshape(b.matmul(b.reshape(input, [1, input.shape[0]]), swap_last_axes(b, weight)), [weight.shape[0]])
    elif input.rank == 2:
        return b.gemm(input, weight, c=bias, b_transpose=True)
    else:
        y = b.matmul(input, swap_last_axes(b, weight))
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
    if (wide := _before_cast(y)) is not None:
        return as_type(b, product(b, as_type(b, x, "float32"), wide), BFLOAT16)
    rows, columns = x.rank == 1, y.rank == 1
    left = b.reshape(x, [1, x.shape[0]]) if rows else x
    right = b.reshape(y, [y.shape[0], 1]) if columns else y
    z = b.matmul(left, right)
    if not rows and not columns:
        return z
    lead = list(z.shape[:-2])
    return b.reshape(z, lead + ([] if rows else [z.shape[-2]]) + ([] if columns else [z.shape[-1]]))


@converts("aten.einsum.default")
def _(b: MLGraphBuilder, equation: str, tensors: Sequence[MLOperand], *, path: Any = None) -> MLOperand:
    kinds = {tensor.data_type for tensor in tensors}
    refuse_if(
        kinds not in ({"float32"}, {"float16"}), f"products of {' and '.join(sorted(kinds))} are several operators"
    )
    result: MLOperand = contract(b, equation, tensors)
    return result


# Products of groups ---------------------------------------------------------------------------------------------------

MAX_GROUPED_FLOPS = 2**32
"""The most operations of a product of which each group computes all rows: a tenth of a second on one core; an estimate."""

MAX_GROUPS_OF_NAMED_ROWS = 16
"""The most groups of such a product whose number of rows is a name."""


@converts("aten._grouped_mm.default", "transformers.grouped_mm_fallback.default")
def _(
    b: MLGraphBuilder,
    self: MLOperand,
    mat2: MLOperand,
    offs: MLOperand | None = None,
    bias: MLOperand | None = None,
    out_dtype: Any = None,
    *,
    call: AtenCall,
) -> MLOperand:
    """Multiply each group of rows by its matrix, as for the experts that tokens are sent to.

    `offs` are the ends of the groups, of the rows of the left matrix if it is the only one that is no batch, of the columns of
    the right one, or if neither is a batch, of the axis that is summed over.
    """
    refuse_if(bias is not None, "it has a bias")
    if offs is None:
        y = b.matmul(self, mat2)
    elif self.rank == 2 and mat2.rank == 2:
        member = _members(b, offs, self.shape[1], [offs.shape[0], 1, self.shape[1]])
        _refuse_large(offs, self.shape[1], self.shape[0], mat2.shape[1])
        nothing = as_type(b, 0, self.data_type)
        parts = b.where(member, b.reshape(self, [1, *self.shape]), nothing)
        # Elements of other groups count as 0 on both sides: infinity times 0 is NaN.
        columns = b.where(
            b.reshape(member, [offs.shape[0], mat2.shape[0], 1]), b.reshape(mat2, [1, *mat2.shape]), nothing
        )
        y = b.matmul(parts, columns)
    elif self.rank == 3 and mat2.rank == 3:
        y = b.matmul(self, mat2)
    elif mat2.rank == 3:
        y = _rows_of_groups(b, self, mat2, offs)
    else:
        y = swap(b, _rows_of_groups(b, swap(b, mat2, 0, 1), swap(b, self, 1, 2), offs), 0, 1)
    return as_type(b, y, call.data_type)


def _refuse_large(offs: MLOperand, *sizes: Any) -> None:
    """Leave a product to PyTorch, which computes only the rows of each group, if all rows for each group would take long."""
    if any(isinstance(size, Size) for size in (*offs.shape, *sizes)):
        groups = offs.shape[0]
        refuse_if(
            isinstance(groups, Size) or groups > MAX_GROUPS_OF_NAMED_ROWS,
            f"each of the {groups} groups would compute all rows, whose number changes",
        )
        return
    flops = 2 * offs.shape[0] * prod(sizes)
    refuse_if(
        flops > MAX_GROUPED_FLOPS, f"each of the {offs.shape[0]} groups would compute all rows, {flops:.1e} operations"
    )


def _members(b: MLGraphBuilder, offs: MLOperand, count: Any, shape: list[Any]) -> MLOperand:
    """Whether each of `count` positions is in each group, [groups, count], in a shape."""
    groups = offs.shape[0]
    ends = b.reshape(as_type(b, offs, "int32"), [groups, 1])
    zero = as_type(b, 0, "int32")
    starts = b.pad(b.slice(ends, [0, 0], [groups - 1, 1]), [1, 0], [0, 0]) if groups != 1 else b.reshape(zero, [1, 1])
    positions = line(b, 0, count, "int32", [1, count])
    return b.reshape(b.logical_and(b.greater_or_equal(positions, starts), b.lesser(positions, ends)), shape)


def _rows_of_groups(b: MLGraphBuilder, rows: MLOperand, matrices: MLOperand, offs: MLOperand) -> MLOperand:
    """Rows [count, inputs], of each group by its own of the matrices [groups, inputs, outputs]; 0 behind the last group."""
    count, inputs = rows.shape
    groups, _, outputs = matrices.shape
    kind: DataType = rows.data_type
    nothing = as_type(b, 0, kind)
    if not isinstance(count, Size) and not isinstance(groups, Size) and count <= groups:
        # Few rows, as in a step of a decoder: read the matrices of their groups only.
        member = _members(b, offs, count, [groups, count])
        group = b.arg_max(b.cast(member, "int32"), 0)
        y = b.matmul(b.reshape(rows, [count, 1, inputs]), b.gather(matrices, group, axis=0))
        is_real = b.reshape(b.reduce_max(b.cast(member, "int32"), axes=[0]), [count, 1])
        return b.where(b.cast(is_real, "uint8"), b.reshape(y, [count, outputs]), nothing)
    _refuse_large(offs, count, inputs, outputs)
    member = _members(b, offs, count, [groups, count, 1])
    y = b.matmul(b.reshape(rows, [1, count, inputs]), matrices)
    return b.reduce_sum(b.where(member, y, nothing), axes=[0])
