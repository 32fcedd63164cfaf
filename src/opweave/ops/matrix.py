"""Matrix products."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import expr
from ..core.dtypes import FLOATS, DataType
from ..core.graph import Builder, Desc, Operand
from ..core.operation import Limits, N, op
from ..core.shapes import broadcast, broadcasts_to
from ..core.size_possibilities import may_equal
from ..support.errors import require

if TYPE_CHECKING:
    from .operations import Operations


@op(a=Limits(FLOATS, ranks=(2, N)), b=Limits("a", ranks=(2, N)), output=Limits("a", ranks=(2, N)))
def matmul(self: Builder, a: Operand, b: Operand, *, label: str = "") -> Desc:
    """Multiply matrices, or stacks of matrices.

    Args:
        a: float32 or float16 [..., rows, inner].
        b: [..., inner, columns]; the leading dimensions of both broadcast to each other.

    Returns: An operand of the data type of `a`, [..., rows, columns].
    Raises: the inner dimensions differ, or the leading ones do not broadcast.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-matmul

    >>> ow.ops.matmul(np.float32([[1, 2], [3, 4]]), np.float32([[1], [10]])).tolist()
    [[21.0], [43.0]]
    >>> ow.ops.matmul(np.ones([8, 2, 3], "float32"), np.ones([3, 4], "float32")).shape
    (8, 2, 4)
    """
    fits = may_equal(a.shape[-1], b.shape[-2])
    require(fits, f"the last dimension of a must be the last but one of b, got {a.desc} and {b.desc}")
    batches = broadcast(a.shape[:-2], b.shape[:-2], names="the stacks a and b")
    return Desc(a.data_type, (*batches, a.shape[-2], b.shape[-1]))


@op(a=Limits(FLOATS, ranks=(2, 2)), b=Limits("a", ranks=(2, 2)), c=Limits("a", ranks=(0, 2)))
def gemm(
    self: Builder,
    a: Operand,
    b: Operand,
    *,
    c: Operand | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    a_transpose: bool = False,
    b_transpose: bool = False,
    label: str = "",
) -> Desc:
    """Compute alpha * a @ b + beta * c, for matrices.

    Args:
        a: float32 or float16 [rows, inner], or [inner, rows] with `a_transpose`.
        b: [inner, columns], or [columns, inner] with `b_transpose`.
        c: what to add; its shape broadcasts to [rows, columns].
        alpha: the factor of the product, rounded to the data type.
        beta: the factor of `c`, rounded to the data type.
        a_transpose: whether to transpose `a` first.
        b_transpose: whether to transpose `b` first.

    Returns: An operand of the data type of `a`, [rows, columns].
    Raises: the inner dimensions differ, or `c` does not broadcast to the result.

    https://www.w3.org/TR/webnn/#api-mlgraphbuilder-gemm

    >>> ow.ops.gemm(np.float32([[1, 2]]), np.float32([[1, 10]]), c=np.float32([100]), b_transpose=True).tolist()
    [[121.0]]
    """
    rows, inner = reversed(a.shape) if a_transpose else a.shape
    depth, columns = reversed(b.shape) if b_transpose else b.shape
    require(may_equal(inner, depth), f"a and b must have the same inner dimension, got {inner} and {depth}")
    if c is not None:
        fits = broadcasts_to(c.shape, (rows, columns))
        require(fits, f"c must broadcast to [{rows}, {columns}], got {c.desc}")
    return Desc(a.data_type, (rows, columns))


gemm.cast("alpha", "beta", like="a")


@gemm.decompose
def _(
    builder: Operations,
    a: Operand,
    b: Operand,
    c: Operand | None,
    alpha: float,
    beta: float,
    a_transpose: bool,
    b_transpose: bool,
) -> Operand:
    left = builder.transpose(a) if a_transpose else a
    right = builder.transpose(b) if b_transpose else b
    product = builder.matmul(left if alpha == 1 else left * alpha, right)
    if c is None:
        return product
    return product + (c if beta == 1 else c * beta)


@gemm.alternative
def _(
    a: expr.Traced,
    b: expr.Traced,
    c: expr.Traced | None,
    alpha: float,
    beta: float,
    a_transpose: bool,
    b_transpose: bool,
) -> expr.Traced:
    rows, inner = reversed(a.shape) if a_transpose else a.shape
    columns = b.shape[0 if b_transpose else 1]

    def element(row: expr.Traced, column: expr.Traced) -> expr.Traced:
        def product(k: expr.Traced) -> expr.Traced:
            left = a[k, row] if a_transpose else a[row, k]
            right = b[column, k] if b_transpose else b[k, column]
            return expr.cast(left, "float32") * expr.cast(right, "float32")

        data_type: DataType = "float16" if a.data_type == "float16" else "float32"
        total = expr.sum_over(inner, product)
        result = total if alpha == 1 else total * alpha
        if c is None:
            return expr.cast(result, data_type)
        index = [0 if size == 1 else place for size, place in zip(c.shape, (row, column)[2 - c.rank :], strict=True)]
        added = expr.cast(c[tuple(index)] if index else c, "float32")
        return expr.cast(result + (added if beta == 1 else added * beta), data_type)

    return expr.compute((rows, columns), element)
